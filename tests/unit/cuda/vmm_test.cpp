// Virtual memory management, over every driver.
#include "cuda/kernels/embedded.h"
#include "tests/unit/cuda/conformance.h"

namespace cenote::cuda::test {
namespace {

using testing::Each;

class Vmm : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    ASSERT_OK(driver->mem_get_allocation_granularity(&unit, 0));
  }
  DevicePtr reserve(std::size_t bytes, DevicePtr hint = 0) {
    DevicePtr pointer = 0;
    EXPECT_OK(driver->mem_address_reserve(&pointer, bytes, 0, hint));
    return pointer;
  }
  AllocationHandle create(std::size_t bytes, DeviceId device = 0) {
    AllocationHandle handle = 0;
    EXPECT_OK(driver->mem_create(&handle, bytes, device));
    return handle;
  }
  void map(DevicePtr pointer, std::size_t bytes, AllocationHandle handle) {
    EXPECT_OK(driver->mem_map(pointer, bytes, 0, handle));
    EXPECT_OK(driver->mem_set_access(pointer, bytes, 0));
  }
  Status fill_by_kernel(DevicePtr to, unsigned value, unsigned count) {
    const auto text = kernels::basic_ptx();
    Module module = nullptr;
    Function fill = nullptr;
    EXPECT_OK(driver->module_load_data(&module, text.data(), text.size()));
    EXPECT_OK(driver->module_get_function(&fill, module, "cenote_fill"));
    void* params[] = {&to, &value, &count};
    EXPECT_OK(driver->launch_kernel(fill, {{(count + 255) / 256, 1, 1}, {256, 1, 1}, 0}, nullptr, params));
    return driver->ctx_synchronize();
  }
  std::size_t unit = 0;
};
INSTANTIATE_TEST_SUITE_P(Drivers, Vmm, testing::ValuesIn(makers()),
                         [](const auto& at) { return at.param.name; });

TEST_P(Vmm, MappedMemoryIsMemory) {
  const auto range = reserve(4 * unit);
  const auto memory = create(unit);
  map(range + unit, unit, memory);
  ASSERT_OK(driver->memset_d32_async(range + unit, 7, 100, nullptr));
  EXPECT_THAT(download<unsigned>(range + unit, 100), Each(7u));
  EXPECT_OK(fill_by_kernel(range + unit, 8, 1000));
  EXPECT_THAT(download<unsigned>(range + unit, 1000), Each(8u));
  unsigned word = 0;
  EXPECT_EQ(driver->memcpy_dtoh(&word, range, 4), Status::invalid_value) << "reserved, not mapped";
  EXPECT_EQ(driver->mem_free(range + unit), Status::invalid_value) << "not of mem_alloc";
}

TEST_P(Vmm, CopiesCrossMappingsThatLieSideBySide) {
  const auto range = reserve(2 * unit);
  map(range, unit, create(unit));
  map(range + unit, unit, create(unit));
  std::vector<unsigned> sent(1000, 3);
  ASSERT_OK(driver->memcpy_htod(range + unit - 2000, sent.data(), 4000));
  EXPECT_EQ(download<unsigned>(range + unit - 2000, 1000), sent);
}

TEST_P(Vmm, MappedWithoutAccessFaults) {
  const auto range = reserve(unit);
  ASSERT_OK(driver->mem_map(range, unit, 0, create(unit)));
  unsigned word = 0;
  EXPECT_EQ(driver->memcpy_dtoh(&word, range, 4), Status::invalid_value);
  EXPECT_EQ(fill_by_kernel(range, 1, 4), Status::illegal_address);
}

TEST_P(Vmm, OneMemoryMappedTwiceIsOneMemory) {
  const auto range = reserve(2 * unit);
  const auto memory = create(unit);
  map(range, unit, memory);
  map(range + unit, unit, memory);
  ASSERT_OK(driver->memset_d8(range, 5, 64));
  EXPECT_THAT(download<unsigned char>(range + unit, 64), Each(5));
}

TEST_P(Vmm, AHintIsTakenWhereTheRangeIsFree) {
  const auto first = reserve(8 * unit);
  ASSERT_OK(driver->mem_address_free(first, 8 * unit));
  EXPECT_EQ(reserve(8 * unit, first), first);
  const auto elsewhere = reserve(8 * unit, first);
  EXPECT_NE(elsewhere, first) << "taken: somewhere else, as CUDA does";
}

TEST_P(Vmm, AlignmentIsKept) {
  DevicePtr pointer = 0;
  ASSERT_OK(driver->mem_address_reserve(&pointer, unit, 64 * kMiB, 0));
  EXPECT_EQ(pointer % (64 * kMiB), 0u);
  EXPECT_EQ(driver->mem_address_reserve(&pointer, unit, 3 * unit, 0), Status::invalid_value);
}

TEST_P(Vmm, MemoryLivesUntilReleasedAndUnmapped) {
  std::size_t before = 0, held = 0, after = 0, total = 0;
  ASSERT_OK(driver->mem_get_info(&before, &total));
  const auto range = reserve(unit);
  const auto memory = create(unit);
  map(range, unit, memory);
  ASSERT_OK(driver->mem_release(memory));
  ASSERT_OK(driver->memset_d8(range, 5, 64));
  EXPECT_THAT(download<unsigned char>(range, 64), Each(5)) << "the mapping keeps it";
  ASSERT_OK(driver->mem_get_info(&held, &total));
  EXPECT_EQ(before - held, unit);
  ASSERT_OK(driver->mem_unmap(range, unit));
  ASSERT_OK(driver->mem_get_info(&after, &total));
  EXPECT_EQ(after, before);
  EXPECT_OK(driver->mem_address_free(range, unit));
}

TEST_P(Vmm, MisuseIsRefused) {
  const auto range = reserve(2 * unit);
  const auto memory = create(unit);
  DevicePtr pointer = 0;
  AllocationHandle none = 0;
  EXPECT_EQ(driver->mem_address_reserve(&pointer, unit - 1, 0, 0), Status::invalid_value);
  EXPECT_EQ(driver->mem_create(&none, unit + 1, 0), Status::invalid_value);
  EXPECT_EQ(driver->mem_create(&none, unit, 7), Status::invalid_device);
  EXPECT_EQ(driver->mem_create(&none, kCardBytes, 0), Status::out_of_memory) << "the context has its part";
  EXPECT_EQ(driver->mem_map(range, 2 * unit, 0, memory), Status::invalid_value) << "smaller than that";
  EXPECT_EQ(driver->mem_map(range + 2 * unit, unit, 0, memory), Status::invalid_value) << "not reserved";
  EXPECT_EQ(driver->mem_map(range, unit, 0, 0xbad), Status::invalid_value);
  ASSERT_OK(driver->mem_map(range, unit, 0, memory));
  EXPECT_EQ(driver->mem_map(range, unit, 0, memory), Status::already_mapped);
  EXPECT_EQ(driver->mem_address_free(range, 2 * unit), Status::invalid_value) << "still mapped";
  EXPECT_EQ(driver->mem_unmap(range, 2 * unit), Status::invalid_value);
  EXPECT_EQ(driver->mem_set_access(range + unit, unit, 0), Status::invalid_value);
  ASSERT_OK(driver->mem_unmap(range, unit));
  ASSERT_OK(driver->mem_release(memory));
  EXPECT_EQ(driver->mem_release(memory), Status::invalid_value);
  EXPECT_EQ(driver->mem_address_free(range, unit), Status::invalid_value) << "not the whole";
  EXPECT_OK(driver->mem_address_free(range, 2 * unit));
}

TEST_P(Vmm, APeerIsGivenAccess) {
  const auto range = reserve(unit);
  ASSERT_OK(driver->mem_map(range, unit, 0, create(unit, 1)));
  ASSERT_OK(driver->mem_set_access(range, unit, 0));
  EXPECT_OK(fill_by_kernel(range, 4, 64));
  EXPECT_THAT(download<unsigned>(range, 64), Each(4u));
}

}  // namespace
}  // namespace cenote::cuda::test
