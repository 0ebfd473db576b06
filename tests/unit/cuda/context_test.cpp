// Devices and contexts, over every driver.
#include <cstring>

#include "tests/unit/cuda/conformance.h"

namespace cenote::cuda::test {
namespace {

class Contexts : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Drivers, Contexts, testing::ValuesIn(makers()),
                         [](const auto& at) { return at.param.name; });

TEST_P(Contexts, NothingWorksBeforeInit) {
  auto fresh = GetParam().make(machine());
  driver.swap(fresh);
  int count = 0;
  DevicePtr pointer = 0;
  EXPECT_EQ(driver->device_get_count(&count), Status::not_initialized);
  EXPECT_EQ(driver->mem_alloc(&pointer, 1), Status::not_initialized);
  EXPECT_EQ(driver->init(1), Status::invalid_value);
  EXPECT_OK(driver->init(0));
  EXPECT_OK(driver->init(0));
  EXPECT_OK(driver->device_get_count(&count));
  EXPECT_EQ(count, 2);
}

TEST_P(Contexts, DevicesSayWhatTheyAre) {
  DeviceId device = -1;
  ASSERT_OK(driver->device_get(&device, 1));
  EXPECT_EQ(driver->device_get(&device, 2), Status::invalid_device);
  EXPECT_EQ(driver->device_get(&device, -1), Status::invalid_device);
  char name[64];
  ASSERT_OK(driver->device_get_name(name, sizeof(name), 0));
  EXPECT_THAT(name, testing::HasSubstr("A100"));
  ASSERT_OK(driver->device_get_name(name, 5, 0));
  EXPECT_EQ(std::strlen(name), 4u) << "cut short, and ended";
  std::size_t bytes = 0;
  ASSERT_OK(driver->device_total_mem(&bytes, 0));
  EXPECT_EQ(bytes, kCardBytes);
  int value = 0;
  ASSERT_OK(driver->device_get_attribute(&value, DeviceAttribute::compute_capability_major, 0));
  EXPECT_EQ(value, 8);
  ASSERT_OK(driver->device_get_attribute(&value, DeviceAttribute::warp_size, 0));
  EXPECT_EQ(value, 32);
  EXPECT_EQ(driver->device_get_attribute(&value, static_cast<DeviceAttribute>(99999), 0),
            Status::invalid_value);
  EXPECT_EQ(driver->device_get_attribute(&value, DeviceAttribute::warp_size, 2), Status::invalid_device);
  DeviceUuid first{}, second{};
  ASSERT_OK(driver->device_get_uuid(&first, 0));
  ASSERT_OK(driver->device_get_uuid(&second, 1));
  EXPECT_NE(std::memcmp(&first, &second, sizeof(first)), 0);
  int version = 0;
  ASSERT_OK(driver->driver_get_version(&version));
  EXPECT_GE(version, 11070);
}

TEST_P(Contexts, AThreadWithoutAContextCanDoNothing) {
  Status status = Status::unknown;
  DevicePtr pointer = 0;
  std::thread([&] { status = driver->mem_alloc(&pointer, 1); }).join();
  EXPECT_EQ(status, Status::invalid_context);
  ASSERT_OK(driver->ctx_set_current(nullptr));
  EXPECT_EQ(driver->mem_alloc(&pointer, 1), Status::invalid_context);
  Context none = context;
  ASSERT_OK(driver->ctx_get_current(&none));
  EXPECT_EQ(none, nullptr);
}

TEST_P(Contexts, TheStackIsTheThreads) {
  Context second = nullptr, current = nullptr;
  ASSERT_OK(driver->ctx_create(&second, 0, 1));
  DeviceId device = -1;
  ASSERT_OK(driver->ctx_get_device(&device));
  EXPECT_EQ(device, 1) << "creating makes it current";
  ASSERT_OK(driver->ctx_push_current(context));
  ASSERT_OK(driver->ctx_get_device(&device));
  EXPECT_EQ(device, 0);
  ASSERT_OK(driver->ctx_pop_current(&current));
  EXPECT_EQ(current, context);
  ASSERT_OK(driver->ctx_get_current(&current));
  EXPECT_EQ(current, second);
  ASSERT_OK(driver->ctx_destroy(second));
  ASSERT_OK(driver->ctx_get_current(&current));
  EXPECT_EQ(current, context) << "destroying the current one pops it";
  ASSERT_OK(driver->ctx_pop_current(nullptr));
  EXPECT_EQ(driver->ctx_pop_current(nullptr), Status::invalid_context);
}

TEST_P(Contexts, ThePrimaryContextIsOneAndIsCounted) {
  Context again = nullptr;
  ASSERT_OK(driver->primary_ctx_retain(&again, 0));
  EXPECT_EQ(again, context);
  ASSERT_OK(driver->primary_ctx_release(0));
  EXPECT_OK(driver->ctx_synchronize()) << "still retained once";
  ASSERT_OK(driver->primary_ctx_release(0));
  EXPECT_EQ(driver->ctx_synchronize(), Status::context_is_destroyed);
  EXPECT_EQ(driver->primary_ctx_release(0), Status::invalid_context);
  EXPECT_EQ(driver->primary_ctx_retain(&again, 2), Status::invalid_device);
}

TEST_P(Contexts, APrimaryContextIsNotDestroyedByHand) {
  EXPECT_EQ(driver->ctx_destroy(context), Status::invalid_context);
  EXPECT_EQ(driver->ctx_destroy(nullptr), Status::invalid_context);
}

TEST_P(Contexts, ADestroyedContextIsRefused) {
  Context mine = nullptr;
  ASSERT_OK(driver->ctx_create(&mine, 0, 0));
  Status seen = Status::unknown;
  std::atomic<int> step{0};
  std::thread user([&] {
    driver->ctx_set_current(mine);
    step = 1;
    eventually([&] { return step == 2; });
    DevicePtr pointer = 0;
    seen = driver->mem_alloc(&pointer, 1);
  });
  ASSERT_TRUE(eventually([&] { return step == 1; }));
  ASSERT_OK(driver->ctx_destroy(mine));
  step = 2;
  user.join();
  EXPECT_EQ(seen, Status::context_is_destroyed);
  EXPECT_EQ(driver->ctx_set_current(mine), Status::invalid_context);
  EXPECT_EQ(driver->ctx_destroy(mine), Status::invalid_context);
}

TEST_P(Contexts, ContextsTakeMemoryOfTheCard) {
  std::size_t before = 0, with = 0, after = 0, total = 0;
  ASSERT_OK(driver->mem_get_info(&before, &total));
  Context mine = nullptr;
  ASSERT_OK(driver->ctx_create(&mine, 0, 0));
  ASSERT_OK(driver->mem_get_info(&with, &total));
  EXPECT_EQ(before - with, kMiB);
  ASSERT_OK(driver->ctx_destroy(mine));
  ASSERT_OK(driver->mem_get_info(&after, &total));
  EXPECT_EQ(after, before);
}

TEST_P(Contexts, AFullCardHasNoRoomForAContext) {
  std::size_t free = 0, total = 0;
  ASSERT_OK(driver->mem_get_info(&free, &total));
  allocate(free);
  Context mine = nullptr;
  EXPECT_EQ(driver->ctx_create(&mine, 0, 0), Status::out_of_memory);
}

TEST_P(Contexts, ACardIsNotItsOwnPeer) {
  int can = 1;
  ASSERT_OK(driver->device_can_access_peer(&can, 0, 0));
  EXPECT_EQ(can, 0);
  EXPECT_EQ(driver->device_can_access_peer(&can, 0, 5), Status::invalid_device);
  EXPECT_EQ(driver->ctx_enable_peer_access(context, 0), Status::peer_access_unsupported);
}

TEST_P(Contexts, NullAnswersAreRefused) {
  EXPECT_EQ(driver->device_get_count(nullptr), Status::invalid_value);
  EXPECT_EQ(driver->mem_alloc(nullptr, 1), Status::invalid_value);
  EXPECT_EQ(driver->stream_create(nullptr, 0), Status::invalid_value);
  EXPECT_EQ(driver->event_create(nullptr, 0), Status::invalid_value);
  EXPECT_EQ(driver->ctx_get_current(nullptr), Status::invalid_value);
  EXPECT_EQ(driver->ctx_create(nullptr, 0, 0), Status::invalid_value);
  Stream stream = nullptr;
  EXPECT_EQ(driver->stream_create(&stream, 2), Status::invalid_value);
}

}  // namespace
}  // namespace cenote::cuda::test
