// Device memory, pinned memory, pointer attributes and copies, over every driver.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <numeric>

#include "tests/unit/cuda/conformance.h"

namespace cenote::cuda::test {
namespace {

using testing::Each;
using testing::ElementsAre;

class Memory : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Drivers, Memory, testing::ValuesIn(makers()),
                         [](const auto& at) { return at.param.name; });

TEST_P(Memory, CopiesComeBackAsTheyWent) {
  std::vector<int> sent(100'003);
  std::iota(sent.begin(), sent.end(), 5);
  EXPECT_EQ(download<int>(upload(sent), sent.size()), sent);
}

TEST_P(Memory, AllocationsAreAlignedAndDisjoint) {
  std::vector<std::pair<DevicePtr, std::size_t>> got;
  for (const std::size_t bytes : {1, 511, 512, 513, 4096, 1 << 20, (3 << 20) + 1})
    got.emplace_back(allocate(bytes), bytes);
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].first % 256, 0u);
    for (std::size_t j = 0; j < got.size(); ++j) {
      if (i == j) continue;
      EXPECT_TRUE(got[i].first + got[i].second <= got[j].first ||
                  got[j].first + got[j].second <= got[i].first);
    }
  }
}

TEST_P(Memory, TheCardIsFullWhenItsBytesAreTaken) {
  std::size_t free = 0, total = 0;
  ASSERT_OK(driver->mem_get_info(&free, &total));
  EXPECT_EQ(total, kCardBytes);
  EXPECT_LE(free, kCardBytes - kMiB) << "the context takes its part";
  DevicePtr most = allocate(free);
  DevicePtr more = 0;
  EXPECT_EQ(driver->mem_alloc(&more, 1), Status::out_of_memory);
  ASSERT_OK(driver->mem_free(most));
  EXPECT_OK(driver->mem_alloc(&more, 1));
}

TEST_P(Memory, AnAllocationLargerThanTheCardIsRefused) {
  DevicePtr pointer = 0;
  EXPECT_EQ(driver->mem_alloc(&pointer, kCardBytes + 1), Status::out_of_memory);
  EXPECT_EQ(driver->mem_alloc(&pointer, ~std::size_t{0}), Status::out_of_memory);
  EXPECT_EQ(driver->mem_alloc(&pointer, 0), Status::invalid_value);
}

TEST_P(Memory, FreeingTwiceOrInTheMiddleIsRefused) {
  const auto pointer = allocate(4096);
  EXPECT_EQ(driver->mem_free(pointer + 256), Status::invalid_value);
  ASSERT_OK(driver->mem_free(pointer));
  EXPECT_EQ(driver->mem_free(pointer), Status::invalid_value);
  EXPECT_EQ(driver->mem_free(0xdead0000), Status::invalid_value);
}

TEST_P(Memory, CopiesBeyondTheEndAreRefusedAndMoveNothing) {
  const auto pointer = upload(std::vector<int>{1, 2, 3, 4});
  std::vector<int> five(5, 9);
  EXPECT_EQ(driver->memcpy_htod(pointer, five.data(), 20), Status::invalid_value);
  EXPECT_EQ(driver->memcpy_dtoh(five.data(), pointer, 20), Status::invalid_value);
  EXPECT_EQ(driver->memset_d8(pointer, 0, 17), Status::invalid_value);
  EXPECT_EQ(driver->memcpy_dtod(pointer + 8, pointer, 16), Status::invalid_value);
  EXPECT_THAT(download<int>(pointer, 4), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(five, Each(9));
}

TEST_P(Memory, FreedMemoryCannotBeCopied) {
  const auto pointer = upload(std::vector<int>(1000, 1));
  ASSERT_OK(driver->mem_free(pointer));
  int value = 0;
  EXPECT_EQ(driver->memcpy_dtoh(&value, pointer, 4), Status::invalid_value);
}

TEST_P(Memory, HostAndDeviceAddressesAreNotMistakenForEachOther) {
  const auto pointer = allocate(64);
  int here = 0;
  EXPECT_EQ(driver->memcpy_htod(pointer, reinterpret_cast<const void*>(pointer), 4), Status::invalid_value);
  EXPECT_EQ(driver->memcpy_htod(reinterpret_cast<DevicePtr>(&here), &here, 4), Status::invalid_value);
  EXPECT_EQ(driver->memcpy_htod(pointer, nullptr, 4), Status::invalid_value);
}

TEST_P(Memory, CopiesOfNothingSucceed) {
  EXPECT_OK(driver->memcpy_htod(0, nullptr, 0));
  EXPECT_OK(driver->memcpy_dtoh(nullptr, 0, 0));
  EXPECT_OK(driver->memset_d8(0, 1, 0));
}

TEST_P(Memory, FillsBytesAndWords) {
  const auto pointer = allocate(32);
  ASSERT_OK(driver->memset_d8(pointer, 0xab, 32));
  ASSERT_OK(driver->memset_d32_async(pointer + 8, 0x01020304, 2, nullptr));
  EXPECT_THAT(download<unsigned>(pointer, 4),
              ElementsAre(0xababababu, 0xababababu, 0x01020304u, 0x01020304u));
  EXPECT_EQ(driver->memset_d32_async(pointer + 2, 0, 1, nullptr), Status::invalid_value) << "not aligned";
}

TEST_P(Memory, CopiesBetweenCards) {
  const auto here = upload(std::vector<int>{4, 5, 6});
  Context other = nullptr;
  ASSERT_OK(driver->primary_ctx_retain(&other, 1));
  ASSERT_OK(driver->ctx_push_current(other));
  const auto there = allocate(12);
  ASSERT_OK(driver->memcpy_dtod(there, here, 12));
  EXPECT_THAT(download<int>(there, 3), ElementsAre(4, 5, 6));
  ASSERT_OK(driver->ctx_pop_current(nullptr));
  ASSERT_OK(driver->primary_ctx_release(1));
}

TEST_P(Memory, TheAddressRangeOfAnInteriorPointerIsTheAllocation) {
  const auto pointer = allocate(1000);
  DevicePtr base = 0;
  std::size_t size = 0;
  ASSERT_OK(driver->mem_get_address_range(&base, &size, pointer + 999));
  EXPECT_EQ(base, pointer);
  EXPECT_EQ(size, 1000u);
  EXPECT_EQ(driver->mem_get_address_range(&base, &size, pointer + 1000), Status::not_found);
}

TEST_P(Memory, PointersSayWhatTheyAre) {
  const auto device = allocate(64);
  auto* host = pinned<int>(16);
  int type = 0, ordinal = -1;
  ASSERT_OK(driver->pointer_get_attribute(&type, PointerAttribute::memory_type, device + 3));
  EXPECT_EQ(type, 2);
  ASSERT_OK(driver->pointer_get_attribute(&ordinal, PointerAttribute::device_ordinal, device));
  EXPECT_EQ(ordinal, 0);
  Context owner = nullptr;
  ASSERT_OK(driver->pointer_get_attribute(&owner, PointerAttribute::context, device));
  EXPECT_EQ(owner, context);
  ASSERT_OK(
      driver->pointer_get_attribute(&type, PointerAttribute::memory_type, reinterpret_cast<DevicePtr>(host)));
  EXPECT_EQ(type, 1);
  DevicePtr start = 0;
  std::size_t size = 0;
  ASSERT_OK(driver->pointer_get_attribute(&start, PointerAttribute::range_start_address, device + 3));
  ASSERT_OK(driver->pointer_get_attribute(&size, PointerAttribute::range_size, device + 3));
  EXPECT_EQ(start, device);
  EXPECT_EQ(size, 64u);
  int plain = 0;
  EXPECT_EQ(driver->pointer_get_attribute(&type, PointerAttribute::memory_type,
                                          reinterpret_cast<DevicePtr>(&plain)),
            Status::invalid_value);
  EXPECT_EQ(driver->pointer_get_attribute(&start, PointerAttribute::host_pointer, device),
            Status::invalid_value);
}

TEST_P(Memory, HostMemoryIsRegisteredOnceAndUnregisteredOnce) {
  std::vector<char> memory(10000);
  ASSERT_OK(driver->mem_host_register(memory.data(), memory.size(), 0));
  EXPECT_EQ(driver->mem_host_register(memory.data() + 100, 10, 0), Status::host_memory_already_registered);
  EXPECT_EQ(driver->mem_host_unregister(memory.data() + 1), Status::host_memory_not_registered);
  EXPECT_EQ(driver->mem_free_host(memory.data()), Status::invalid_value) << "not of mem_host_alloc";
  ASSERT_OK(driver->mem_host_unregister(memory.data()));
  EXPECT_EQ(driver->mem_host_unregister(memory.data()), Status::host_memory_not_registered);
}

TEST_P(Memory, WhatIsNotMappedCannotBeRegistered) {
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  munmap(page, 4096);
  EXPECT_EQ(driver->mem_host_register(page, 4096, 0), Status::invalid_value);
  std::vector<char> memory(10000);
  EXPECT_NE(driver->mem_host_register(memory.data(), std::size_t{1} << 62, 0), Status::success)
      << "refused, without a table of its pages";
}

TEST_P(Memory, PinnedMemoryIsFreedOnce) {
  auto* host = pinned<int>(16);
  ASSERT_OK(driver->mem_free_host(host));
  EXPECT_EQ(driver->mem_free_host(host), Status::invalid_value);
}

TEST_P(Memory, PageableSourceMayBeOverwrittenOnceTheCallReturns) {
  const auto gate = upload(std::vector<int>{0});
  const auto target = upload(std::vector<int>(64, 0));
  auto stream = new_stream(), opener = new_stream();
  hold(stream, gate);
  std::vector<int> source(64, 7);
  ASSERT_OK(driver->memcpy_htod_async(target, source.data(), 256, stream));
  source.assign(64, -1);
  ASSERT_OK(driver->stream_write_value32(opener, gate, 1, 0));
  ASSERT_OK(driver->stream_synchronize(stream));
  EXPECT_THAT(download<int>(target, 64), Each(7));
}

TEST_P(Memory, PinnedSourceIsReadWhenTheStreamGetsThere) {
  const auto gate = upload(std::vector<int>{0});
  const auto target = upload(std::vector<int>(64, 0));
  auto stream = new_stream(), opener = new_stream();
  hold(stream, gate);
  auto* source = pinned<int>(64);
  std::fill_n(source, 64, 7);
  ASSERT_OK(driver->memcpy_htod_async(target, source, 256, stream));
  std::fill_n(source, 64, 8);
  ASSERT_OK(driver->stream_write_value32(opener, gate, 1, 0));
  ASSERT_OK(driver->stream_synchronize(stream));
  EXPECT_THAT(download<int>(target, 64), Each(8));
}

TEST_P(Memory, PageableTargetIsWrittenWhenTheCallReturns) {
  const auto source = upload(std::vector<int>(64, 3));
  auto stream = new_stream();
  std::vector<int> target(64, 0);
  ASSERT_OK(driver->memcpy_dtoh_async(target.data(), source, 256, stream));
  EXPECT_THAT(target, Each(3));
}

TEST_P(Memory, PinnedTargetIsWrittenWhenTheStreamGetsThere) {
  const auto gate = upload(std::vector<int>{0});
  const auto source = upload(std::vector<int>(64, 3));
  auto stream = new_stream(), opener = new_stream();
  auto* target = pinned<int>(64);
  std::fill_n(target, 64, 0);
  hold(stream, gate);
  ASSERT_OK(driver->memcpy_dtoh_async(target, source, 256, stream));
  EXPECT_EQ(target[0], 0);
  ASSERT_OK(driver->stream_write_value32(opener, gate, 1, 0));
  ASSERT_OK(driver->stream_synchronize(stream));
  EXPECT_EQ(target[63], 3);
}

TEST_P(Memory, EndsWithItsContext) {
  Context mine = nullptr;
  std::size_t before = 0, after = 0, total = 0;
  ASSERT_OK(driver->mem_get_info(&before, &total));
  ASSERT_OK(driver->ctx_create(&mine, 0, 0));
  const auto pointer = allocate(kMiB);
  ASSERT_OK(driver->ctx_destroy(mine));
  ASSERT_OK(driver->ctx_set_current(context));
  ASSERT_OK(driver->mem_get_info(&after, &total));
  EXPECT_EQ(after, before);
  int value = 0;
  EXPECT_EQ(driver->memcpy_dtoh(&value, pointer, 4), Status::invalid_value);
}

TEST_P(Memory, DeviceAddressesFaultOnTheCpu) {
  const auto pointer = allocate(4096);
  // The kernel's own check of the address, instead of a crash.
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(write(ends[1], reinterpret_cast<const void*>(pointer), 1), -1);
  EXPECT_EQ(errno, EFAULT);
  close(ends[0]);
  close(ends[1]);
}

TEST_P(Memory, FreshMemoryIsNotZero) {
  const auto bytes = download<unsigned char>(allocate(4096), 4096);
  EXPECT_THAT(bytes, testing::Contains(testing::Ne(0)));
}

}  // namespace
}  // namespace cenote::cuda::test
