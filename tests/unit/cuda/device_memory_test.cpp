// Descriptions of device memory and reductions by kernels, over every driver.
#include "cuda/device_memory.h"

#include <limits>
#include <numeric>
#include <span>

#include "cuda/reduce_kernels.h"
#include "tests/unit/cuda/on_device_memory.h"

namespace cenote::cuda::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Described : public OnDeviceMemory {};
INSTANTIATE_TEST_SUITE_P(Drivers, Described, testing::ValuesIn(makers()),
                         [](const auto& at) { return at.param.name; });

TEST_P(Described, SaysWhatDeviceMemoryCanDo) {
  const auto pointer = allocate(4096);
  const auto what = describe(pointer + 100, 1000);
  EXPECT_EQ(what.kind, MemoryKind::device);
  EXPECT_EQ(what.address, pointer + 100);
  EXPECT_EQ(what.size, 1000u);
  EXPECT_FALSE(what.cpu_readable);
  EXPECT_TRUE(what.exportable);
  EXPECT_TRUE(what.dmabuf);
  EXPECT_TRUE(what.flush_before_read);
  EXPECT_EQ(what.home, "cuda:0");
  ASSERT_NE(what.device, nullptr);
}

TEST_P(Described, PinnedMemoryIsHostMemory) {
  auto* host = pinned<int>(4);
  const auto what = describe(reinterpret_cast<DevicePtr>(host), 16);
  EXPECT_EQ(what.kind, MemoryKind::host);
  EXPECT_TRUE(what.cpu_readable);
}

TEST_P(Described, WhatIsNotTheDriversIsRefused) {
  const auto pointer = allocate(4096);
  const auto longer = memory->describe(pointer, 4097);
  ASSERT_FALSE(longer);
  EXPECT_EQ(longer.error().code, ErrorCode::invalid_argument);
  int local = 0;
  EXPECT_FALSE(memory->describe(reinterpret_cast<DevicePtr>(&local), 4));
}

TEST_P(Described, BytesGoThereAndBackThroughTheSlots) {
  for (const std::size_t count : {std::size_t{1}, kMiB - 1, kMiB, 3 * kMiB + 17}) {
    std::vector<std::byte> sent(count), got(count);
    for (std::size_t i = 0; i < count; ++i) sent[i] = static_cast<std::byte>(i * 2654435761u >> 13);
    const auto pointer = allocate(count);
    const auto what = describe(pointer, count);
    ASSERT_TRUE(what.device->write(pointer, sent.data(), count));
    ASSERT_TRUE(what.device->read(got.data(), pointer, count));
    EXPECT_EQ(got, sent) << count;
  }
}

TEST_P(Described, AnyThreadMayUseItWithoutAContext) {
  const auto pointer = upload(std::vector<int>{1, 2, 3});
  const auto what = describe(pointer, 12);
  std::vector<int> got(3);
  bool good = false;
  std::thread([&] {
    good = what.device->read(reinterpret_cast<std::byte*>(got.data()), pointer, 12).has_value();
  }).join();
  EXPECT_TRUE(good);
  EXPECT_THAT(got, ElementsAre(1, 2, 3));
}

TEST_P(Described, ErrorsNameTheDeviceAndTheDriversCode) {
  const auto what = describe(allocate(64), 64);
  std::byte byte{};
  const auto failed = what.device->read(&byte, 0x1000, 1);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::driver_error);
  EXPECT_EQ(failed.error().device, "cuda:0");
  EXPECT_EQ(failed.error().native, static_cast<int>(Status::invalid_value));
  EXPECT_THAT(failed.error().message(), HasSubstr("CUDA_ERROR_INVALID_VALUE"));
}

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

TEST_P(Described, ReducesOnTheDeviceWithWhatComesFromTheHost) {
  const auto own = upload(std::vector<float>{1, 5, -3, 0}), dst = upload(std::vector<float>(4, 99));
  const auto incoming = bytes_of({2, -5, -4, 7});
  const auto what = describe(dst, 16);
  ASSERT_TRUE(what.device->reduce);
  ASSERT_TRUE(what.device->reduce(dst, own, incoming.data(), 4, CENOTE_FLOAT32, CENOTE_SUM));
  EXPECT_THAT(download<float>(dst, 4), ElementsAre(3, 0, -7, 7));
  EXPECT_THAT(download<float>(own, 4), ElementsAre(1, 5, -3, 0)) << "only read";
  ASSERT_TRUE(what.device->reduce(dst, dst, incoming.data(), 4, CENOTE_FLOAT32, CENOTE_MAX)) << "in place";
  EXPECT_THAT(download<float>(dst, 4), ElementsAre(3, 0, -4, 7));
  EXPECT_FALSE(what.device->reduce(dst, dst, incoming.data(), 4, 99, CENOTE_MAX)) << "no such type";
  ASSERT_TRUE(what.device->divide(dst, 4, CENOTE_FLOAT32, 2));
  EXPECT_THAT(download<float>(dst, 4), ElementsAre(1.5F, 0, -2, 3.5F));
  EXPECT_FALSE(what.device->divide(dst, 4, 99, 2));
}

TEST_P(Described, ReducesMoreThanItsSlotsHold) {
  const auto count = 2 * kMiB / sizeof(float) + 3;
  const auto own = upload(std::vector<float>(count, 1)), dst = allocate(count * sizeof(float));
  const auto incoming = bytes_of(std::vector<float>(count, 2));
  const auto what = describe(dst, count * sizeof(float));
  ASSERT_TRUE(what.device->reduce(dst, own, incoming.data(), count, CENOTE_FLOAT32, CENOTE_SUM));
  ASSERT_TRUE(what.device->reduce(dst, dst, incoming.data(), count, CENOTE_FLOAT32, CENOTE_SUM));
  EXPECT_THAT(download<float>(dst, count), testing::Each(5));
}

TEST_P(Described, CopiesOnTheDevice) {
  const auto src = upload(std::vector<int>{1, 2, 3}), dst = upload(std::vector<int>{0, 0, 0});
  ASSERT_TRUE(describe(dst, 12).device->copy(dst, src + 4, 8));
  EXPECT_THAT(download<int>(dst, 3), ElementsAre(2, 3, 0));
  EXPECT_FALSE(describe(dst, 12).device->copy(dst, 0x1000, 8));
}

TEST_P(Described, MappedMemoryMayBeMappedPieceByPiece) {
  std::size_t piece = 0;
  ASSERT_OK(driver->mem_get_allocation_granularity(&piece, 0));
  DevicePtr at = 0;
  AllocationHandle handles[2] = {};
  ASSERT_OK(driver->mem_address_reserve(&at, 3 * piece, 0, 0));
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_OK(driver->mem_create(&handles[i], piece, 0));
    ASSERT_OK(driver->mem_map(at + i * piece, piece, 0, handles[i]));
    ASSERT_OK(driver->mem_set_access(at + i * piece, piece, 0));
  }
  const auto both = memory->describe(at + 100, 2 * piece - 100);
  EXPECT_TRUE(both) << both.error().message();
  const auto more = memory->describe(at + 100, 2 * piece);
  ASSERT_FALSE(more);
  EXPECT_THAT(more.error().message(), HasSubstr("longer than the allocation"));
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_OK(driver->mem_unmap(at + i * piece, piece));
    ASSERT_OK(driver->mem_release(handles[i]));
  }
  ASSERT_OK(driver->mem_address_free(at, 3 * piece));
}

TEST_P(Described, ReducesEveryTypeAndDividesOnce) {
  auto kernels = ReduceKernels::load(*driver);
  ASSERT_TRUE(kernels) << kernels.error().message();
  const auto ints = upload(std::vector<std::int64_t>{7, -7, std::numeric_limits<std::int64_t>::max()});
  const auto ones = upload(std::vector<std::int64_t>{0, 0, 1});
  ASSERT_TRUE((*kernels)->reduce(ints, ones, 3, CENOTE_INT64, CENOTE_AVG, nullptr))
      << "an average is a sum first";
  ASSERT_TRUE((*kernels)->divide(ints, 3, CENOTE_INT64, 2, nullptr));
  EXPECT_THAT(download<std::int64_t>(ints, 3),
              ElementsAre(3, -3, std::numeric_limits<std::int64_t>::min() / 2));
  // 1.0 + 2.0 in the two 16-bit formats.
  const auto half = upload(std::vector<std::uint16_t>{0x3C00}),
             half2 = upload(std::vector<std::uint16_t>{0x4000});
  ASSERT_TRUE((*kernels)->reduce(half, half2, 1, CENOTE_FLOAT16, CENOTE_SUM, nullptr));
  EXPECT_THAT(download<std::uint16_t>(half, 1), ElementsAre(0x4200));
  const auto brain = upload(std::vector<std::uint16_t>{0x3F80}),
             brain2 = upload(std::vector<std::uint16_t>{0x4000});
  ASSERT_TRUE((*kernels)->reduce(brain, brain2, 1, CENOTE_BFLOAT16, CENOTE_SUM, nullptr));
  EXPECT_THAT(download<std::uint16_t>(brain, 1), ElementsAre(0x4040));
  const auto doubles = upload(std::vector<double>(1000, 0.5)), more = upload(std::vector<double>(1000, 0.25));
  ASSERT_TRUE((*kernels)->reduce(doubles, more, 1000, CENOTE_FLOAT64, CENOTE_MIN, nullptr));
  EXPECT_THAT(download<double>(doubles, 1000), testing::Each(0.25));
  EXPECT_TRUE((*kernels)->reduce(0, 0, 0, CENOTE_INT32, CENOTE_SUM, nullptr)) << "nothing to do";
  EXPECT_FALSE((*kernels)->divide(doubles, 1, CENOTE_FLOAT64, 0, nullptr));
}

}  // namespace
}  // namespace cenote::cuda::test
