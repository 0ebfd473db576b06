// What a network's card needs of device memory, over every driver: a dma-buf, a flush, copies that go on.
#include <sys/mman.h>

#include <cstring>
#include <numeric>

#include "cuda/device_memory.h"
#include "tests/unit/cuda/on_device_memory.h"

namespace cenote::cuda::test {
namespace {

using testing::HasSubstr;

class DeviceRdma : public OnDeviceMemory {};
INSTANTIATE_TEST_SUITE_P(Drivers, DeviceRdma, testing::ValuesIn(makers()),
                         [](const auto& at) { return at.param.name; });

TEST_P(DeviceRdma, ADmaBufIsOfThePagesAroundTheRangeAndSaysWhereItBegins) {
  const auto pointer = allocate(2 * kMiB);
  const auto what = describe(pointer + 4096 + 100, 5000);
  auto exported = what.device->export_dmabuf(what.address, what.size);
  ASSERT_TRUE(exported) << exported.error().message();
  EXPECT_EQ(exported->offset, 100u);
  const char text[] = "through the card";
  ASSERT_TRUE(what.device->write(what.address, reinterpret_cast<const std::byte*>(text), sizeof text));
  ASSERT_OK(driver->ctx_synchronize());
  char seen[sizeof text]{};
  ASSERT_EQ(pread(exported->fd.get(), seen, sizeof seen, 100), static_cast<ssize_t>(sizeof seen));
  EXPECT_STREQ(seen, text);
}

TEST_P(DeviceRdma, WhatACardWroteIsStaleUntilTheFlush) {
  const auto pointer = allocate(2 * kMiB);
  const auto what = describe(pointer, 4096);
  EXPECT_TRUE(what.peer_direct);
  EXPECT_TRUE(what.flush_before_read);
  EXPECT_THAT(what.visibility, HasSubstr("flush call: "));
  ASSERT_TRUE(what.device->flush);
  ASSERT_OK(driver->memset_d8(pointer, 1, 4096));
  ASSERT_OK(driver->ctx_synchronize());
  auto exported = what.device->export_dmabuf(pointer, 4096);
  ASSERT_TRUE(exported) << exported.error().message();
  const unsigned char two = 2;
  ASSERT_EQ(pwrite(exported->fd.get(), &two, 1, 7), 1);
  std::byte seen{};
  ASSERT_TRUE(what.device->read(&seen, pointer + 7, 1));
  EXPECT_EQ(seen, std::byte{1}) << "whoever forgets the flush reads what was there before";
  ASSERT_TRUE(what.device->flush());
  ASSERT_TRUE(what.device->read(&seen, pointer + 7, 1));
  EXPECT_EQ(seen, std::byte{2});
}

TEST_P(DeviceRdma, ADmaBufOfWhatIsNotThereNamesTheDevice) {
  const auto what = describe(allocate(4096), 4096);
  const auto exported = what.device->export_dmabuf(0x1000, 4096);
  ASSERT_FALSE(exported);
  EXPECT_EQ(exported.error().device, "cuda:0");
  EXPECT_EQ(exported.error().code, ErrorCode::driver_error);
}

TEST_P(DeviceRdma, CopiesGoOnByThemselvesInTheirOrder) {
  constexpr std::size_t half = kMiB;
  const auto pointer = allocate(half);
  const auto what = describe(pointer, half);
  auto copies = what.device->open_copies(2 * half);
  ASSERT_TRUE(copies) << copies.error().message();
  const auto pinned = (*copies)->pinned();
  ASSERT_EQ(pinned.size(), 2 * half);
  for (std::size_t i = 0; i < half; ++i) pinned[i] = static_cast<std::byte>(i * 31 >> 3);
  EXPECT_EQ((*copies)->finished().value(), 0u);
  std::uint64_t last = 0;
  for (std::size_t at = 0; at < half; at += half / 8) {
    last = (*copies)->to_device(pointer + at, &pinned[at], half / 8).value();
    last = (*copies)->from_device(&pinned[half + at], pointer + at, half / 8).value();
  }
  EXPECT_EQ(last, 16u);
  ASSERT_TRUE(eventually([&] { return (*copies)->finished().value() == last; }));
  EXPECT_EQ(std::memcmp(pinned.data(), &pinned[half], half), 0);
}

TEST_P(DeviceRdma, ACopyOfWhatIsNotThereIsRefusedByName) {
  auto copies = describe(allocate(64), 64).device->open_copies(64).value();
  const auto refused = copies->to_device(0x1000, copies->pinned().data(), 64);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().device, "cuda:0");
  EXPECT_EQ(copies->finished().value(), 0u);
}

TEST_P(DeviceRdma, CopiesMayEndWhileSomeAreUnderWay) {
  const auto pointer = allocate(8 * kMiB);
  const auto what = describe(pointer, 8 * kMiB);
  auto copies = what.device->open_copies(8 * kMiB).value();
  for (int i = 0; i < 4; ++i)
    ASSERT_TRUE(copies->to_device(pointer, copies->pinned().data(), copies->pinned().size()));
  copies.reset();
  memory.reset();  // and what they hang on
  EXPECT_OK(driver->ctx_synchronize());
}

}  // namespace
}  // namespace cenote::cuda::test
