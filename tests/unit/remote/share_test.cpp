// A lease's share of a device's memory, and of its worker's: every way to it is charged, and given back once.
#include <cstring>

#include "cuda/fatbin.h"
#include "tests/unit/remote/rig.h"

namespace cenote::pool::remote {
namespace {

using cuda::Status;
using test::Rig;

constexpr std::size_t MiB = std::size_t{1} << 20;

cuda::EmulatorOptions large() {
  cuda::EmulatorOptions options;
  options.devices.front().memory_bytes = 256 * MiB;
  options.devices.front().context_bytes = MiB;
  return options;
}

/// A lease of 64 MiB on a device that has more.
struct Share : testing::Test {
  void lease(std::uint64_t module_bytes = WorkerOptions{}.module_bytes) {
    rig.emplace("shm", std::vector<std::size_t>{1}, large(), 64 * MiB, module_bytes);
    ASSERT_NE(rig->client, nullptr);
    driver = rig->client.get();
    ASSERT_EQ(driver->init(0), Status::success);
    cuda::Context context = nullptr;
    ASSERT_EQ(driver->primary_ctx_retain(&context, 0), Status::success);
    ASSERT_EQ(driver->ctx_set_current(context), Status::success);
  }
  /// Once everything sent has been executed.
  std::uint64_t used() {
    EXPECT_EQ(driver->ctx_synchronize(), Status::success) << driver->last_error_detail();
    return rig->workers[0]->worker().load().devices[0].memory_used;
  }
  static std::string with_variable(std::size_t bytes) {
    return ".version 7.0\n.target sm_70\n.address_size 64\n.visible .global .align 4 .b8 table[" +
           std::to_string(bytes) + "];\n.visible .entry nothing() { ret; }\n";
  }
  std::optional<Rig> rig;
  RemoteDriver* driver = nullptr;
};

TEST_F(Share, MemoryThatIsMappedTwiceIsChargedOnceUntilItsLastHoldGoes) {
  lease();
  constexpr std::size_t bytes = 8 * MiB;
  const auto before = used();
  cuda::AllocationHandle memory = 0;
  cuda::DevicePtr one = 0, two = 0;
  ASSERT_EQ(driver->mem_create(&memory, bytes, 0), Status::success) << driver->last_error_detail();
  ASSERT_EQ(driver->mem_address_reserve(&one, bytes, 0, 0), Status::success);
  ASSERT_EQ(driver->mem_address_reserve(&two, bytes, 0, 0), Status::success);
  ASSERT_EQ(driver->mem_map(one, bytes, 0, memory), Status::success) << driver->last_error_detail();
  ASSERT_EQ(driver->mem_map(two, bytes, 0, memory), Status::success) << driver->last_error_detail();
  EXPECT_EQ(used() - before, bytes);
  ASSERT_EQ(driver->mem_release(memory), Status::success);
  EXPECT_EQ(used() - before, bytes) << "it is still mapped";
  ASSERT_EQ(driver->mem_unmap(one, bytes), Status::success) << driver->last_error_detail();
  EXPECT_EQ(used() - before, bytes) << "it is still mapped once";
  ASSERT_EQ(driver->mem_unmap(two, bytes), Status::success) << driver->last_error_detail();
  EXPECT_EQ(used(), before);
}

TEST_F(Share, AHandlesNumberThatIsUsedAgainHasItsOwnCharge) {
  lease();
  constexpr std::size_t bytes = 8 * MiB;
  const auto before = used();
  cuda::AllocationHandle first = 0, second = 0;
  cuda::DevicePtr at = 0;
  ASSERT_EQ(driver->mem_create(&first, bytes, 0), Status::success);
  ASSERT_EQ(driver->mem_address_reserve(&at, bytes, 0, 0), Status::success);
  ASSERT_EQ(driver->mem_map(at, bytes, 0, first), Status::success);
  ASSERT_EQ(driver->mem_release(first), Status::success);
  ASSERT_EQ(driver->mem_create(&second, 2 * bytes, 0), Status::success);
  EXPECT_EQ(used() - before, 3 * bytes);
  ASSERT_EQ(driver->mem_unmap(at, bytes), Status::success);
  EXPECT_EQ(used() - before, 2 * bytes);
  ASSERT_EQ(driver->mem_release(second), Status::success);
  EXPECT_EQ(used(), before);
}

TEST_F(Share, AModulesVariablesAreChargedAndGivenBack) {
  lease();
  const auto before = used();
  const auto image = with_variable(40 * MiB);
  cuda::Module module = nullptr, another = nullptr;
  ASSERT_EQ(driver->module_load_data(&module, image.c_str(), 0), Status::success)
      << driver->last_error_detail();
  EXPECT_GE(used() - before, 40 * MiB);
  cuda::DevicePtr memory = 0;
  EXPECT_EQ(driver->mem_alloc(&memory, 40 * MiB), Status::out_of_memory);
  EXPECT_EQ(driver->module_load_data(&another, image.c_str(), 0), Status::out_of_memory);
  EXPECT_EQ(driver->module_unload(module), Status::success);
  EXPECT_EQ(used(), before);
  EXPECT_EQ(driver->mem_alloc(&memory, 40 * MiB), Status::success) << driver->last_error_detail();
}

TEST_F(Share, VariablesOfAResetContextAreGivenBack) {
  lease();
  const auto before = used();
  cuda::Module module = nullptr;
  ASSERT_EQ(driver->module_load_data(&module, with_variable(40 * MiB).c_str(), 0), Status::success);
  ASSERT_EQ(driver->primary_ctx_release(0), Status::success);
  cuda::Context context = nullptr;
  ASSERT_EQ(driver->primary_ctx_retain(&context, 0), Status::success);
  ASSERT_EQ(driver->ctx_set_current(context), Status::success);
  EXPECT_EQ(used(), before);
}

TEST_F(Share, ModuleImagesBeyondTheSessionsShareOfTheWorkerAreRefused) {
  lease(MiB);
  auto image = with_variable(4);
  image += "// " + std::string(600 << 10, '-') + "\n";
  cuda::Module first = nullptr, second = nullptr;
  ASSERT_EQ(driver->module_load_data(&first, image.c_str(), 0), Status::success)
      << driver->last_error_detail();
  EXPECT_EQ(driver->module_load_data(&second, image.c_str(), 0), Status::out_of_memory);
  EXPECT_NE(driver->last_error_detail().find("1048576 bytes"), std::string::npos)
      << driver->last_error_detail();
  // What was refused leaves nothing behind, and what is unloaded makes room.
  EXPECT_EQ(driver->module_load_data(&second, with_variable(4).c_str(), 0), Status::success);
  EXPECT_EQ(driver->module_unload(first), Status::success);
  EXPECT_EQ(driver->module_load_data(&first, image.c_str(), 0), Status::success)
      << driver->last_error_detail();
}

TEST_F(Share, AFatBinaryThatWouldUnpackToMoreIsRefusedBeforeItIsUnpacked) {
  lease();
  // Three entries of 48 bytes that claim 200 MiB each.
  constexpr std::uint64_t payload = 48;
  std::vector<std::byte> image(16 + 3 * (64 + payload));
  const auto put = [&](std::size_t at, auto value) { std::memcpy(image.data() + at, &value, sizeof value); };
  put(0, cuda::fatbin_container_magic);
  put(4, std::uint16_t{1});
  put(6, std::uint16_t{16});
  put(8, std::uint64_t{image.size() - 16});
  for (std::size_t at = 16; at < image.size(); at += 64 + payload) {
    put(at, std::uint16_t{1});
    put(at + 4, std::uint32_t{64});
    put(at + 8, payload);
    put(at + 16, std::uint32_t{payload});
    put(at + 28, std::uint32_t{70});
    put(at + 40, std::uint64_t{0x2000});
    put(at + 56, std::uint64_t{200 * MiB});
  }
  EXPECT_EQ(cuda::fatbin_decompressed_size(image), 600 * MiB);
  cuda::Module module = nullptr;
  EXPECT_EQ(driver->module_load_data(&module, image.data(), image.size()), Status::out_of_memory);
  put(56 + 16, std::uint64_t{1});
  put(56 + 16 + 64 + payload, std::uint64_t{1});
  put(56 + 16 + 2 * (64 + payload), std::uint64_t{1});
  EXPECT_EQ(driver->module_load_data(&module, image.data(), image.size()), Status::invalid_image)
      << "small enough, it is looked at";
}

}  // namespace
}  // namespace cenote::pool::remote
