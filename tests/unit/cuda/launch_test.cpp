// Modules and launches, over every driver. The kernels are those of cuda/kernels/basic.cu.
#include <cstring>
#include <numeric>

#include "cuda/kernels/embedded.h"
#include "tests/unit/cuda/conformance.h"

namespace cenote::cuda::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

class Launch : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    module = load(kernels::basic_ptx());
  }
  Module load(std::string_view text) {
    Module loaded = nullptr;
    EXPECT_OK(driver->module_load_data(&loaded, text.data(), text.size()));
    return loaded;
  }
  Function kernel(const char* name) {
    Function function = nullptr;
    EXPECT_OK(driver->module_get_function(&function, module, name));
    return function;
  }
  static LaunchConfig one_dimension(unsigned count) { return {{(count + 127) / 128, 1, 1}, {128, 1, 1}, 0}; }
  Status fill(DevicePtr to, unsigned value, unsigned count, Stream stream = nullptr) {
    void* params[] = {&to, &value, &count};
    return driver->launch_kernel(kernel("cenote_fill"), one_dimension(count), stream, params);
  }
  /// Stores one word at to[index].
  Status store_at(DevicePtr to, std::uint64_t index, unsigned thread = 0) {
    void* params[] = {&to, &index, &thread};
    return driver->launch_kernel(kernel("cenote_store_at"), one_dimension(256), nullptr, params);
  }

  Module module = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Drivers, Launch, testing::ValuesIn(makers()),
                         [](const auto& at) { return at.param.name; });

TEST_P(Launch, ComputesWhatTheKernelSays) {
  std::vector<float> x(1000), y(1000, 1.0f);
  std::iota(x.begin(), x.end(), 0.0f);
  auto dx = upload(x), dy = upload(y);
  float a = 2.0f;
  unsigned count = 1000;
  void* params[] = {&a, &dx, &dy, &count};
  ASSERT_OK(driver->launch_kernel(kernel("cenote_saxpy"), one_dimension(count), nullptr, params));
  const auto got = download<float>(dy, count);
  for (unsigned i = 0; i < count; ++i) ASSERT_EQ(got[i], 2.0f * x[i] + 1.0f) << i;
}

TEST_P(Launch, TakesParametersPacked) {
  const auto to = upload(std::vector<unsigned>(10, 0));
  const auto fill_kernel = kernel("cenote_fill");
  struct {
    DevicePtr to;
    unsigned value, count;
  } packed{to, 7, 10};
  ASSERT_OK(driver->launch_kernel_packed(fill_kernel, one_dimension(10), nullptr, &packed, sizeof(packed)));
  EXPECT_THAT(download<unsigned>(to, 10), Each(7u));
  EXPECT_EQ(driver->launch_kernel_packed(fill_kernel, one_dimension(10), nullptr, &packed, 8),
            Status::invalid_value);
  EXPECT_EQ(driver->launch_kernel_packed(fill_kernel, one_dimension(10), nullptr, nullptr, 16),
            Status::invalid_value);
}

TEST_P(Launch, SaysWhereParametersLie) {
  ParamInfo info{};
  const auto saxpy = kernel("cenote_saxpy");
  ASSERT_OK(driver->func_get_param_info(&info, saxpy, 1));
  EXPECT_EQ(info.offset, 8u);
  EXPECT_EQ(info.size, 8u);
  ASSERT_OK(driver->func_get_param_info(&info, saxpy, 3));
  EXPECT_EQ(info.offset, 24u);
  EXPECT_EQ(info.size, 4u);
  EXPECT_EQ(driver->func_get_param_info(&info, saxpy, 4), Status::invalid_value);
}

TEST_P(Launch, RunsInTheOrderOfItsStream) {
  auto stream = new_stream();
  const auto word = upload(std::vector<unsigned>{0});
  auto* seen = pinned<unsigned>(3);
  for (unsigned i = 0; i < 3; ++i) {
    ASSERT_OK(fill(word, i + 1, 1, stream));
    ASSERT_OK(driver->memcpy_dtoh_async(seen + i, word, 4, stream));
  }
  ASSERT_OK(driver->stream_synchronize(stream));
  EXPECT_THAT(std::vector<unsigned>(seen, seen + 3), ElementsAre(1, 2, 3));
}

TEST_P(Launch, ParametersAreTakenWhenTheCallReturns) {
  auto stream = new_stream(), opener = new_stream();
  const auto gate = upload(std::vector<unsigned>{0});
  auto to = upload(std::vector<unsigned>(4, 0));
  unsigned value = 5, count = 4;
  void* params[] = {&to, &value, &count};
  const auto fill_kernel = kernel("cenote_fill");
  hold(stream, gate);
  ASSERT_OK(driver->launch_kernel(fill_kernel, one_dimension(4), stream, params));
  const auto target = to;
  to = 0, value = 9, count = 0;
  ASSERT_OK(driver->stream_write_value32(opener, gate, 1, 0));
  ASSERT_OK(driver->stream_synchronize(stream));
  EXPECT_THAT(download<unsigned>(target, 4), Each(5u));
}

TEST_P(Launch, ModulesHaveVariablesInDeviceMemory) {
  DevicePtr counter = 0, factors = 0;
  std::size_t size = 0;
  ASSERT_OK(driver->module_get_global(&counter, &size, module, "cenote_counter"));
  EXPECT_EQ(size, 4u);
  ASSERT_OK(driver->module_get_global(&factors, &size, module, "cenote_factors"));
  EXPECT_EQ(size, 16u);
  EXPECT_THAT(download<float>(factors, 4), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(download<unsigned>(counter, 1), ElementsAre(0u));
  auto x = upload(std::vector<float>(100, 1.0f));
  unsigned count = 100;
  void* params[] = {&x, &count};
  ASSERT_OK(driver->launch_kernel(kernel("cenote_scale_and_count"), one_dimension(count), nullptr, params));
  EXPECT_THAT(download<unsigned>(counter, 1), ElementsAre(100u));
  EXPECT_THAT(download<float>(x, 5), ElementsAre(1, 2, 4, 8, 1));
  EXPECT_EQ(driver->module_get_global(&counter, &size, module, "no_such"), Status::not_found);
}

TEST_P(Launch, EveryModuleHasVariablesOfItsOwn) {
  const auto other = load(kernels::basic_ptx());
  DevicePtr first = 0, second = 0;
  ASSERT_OK(driver->module_get_global(&first, nullptr, module, "cenote_counter"));
  ASSERT_OK(driver->module_get_global(&second, nullptr, other, "cenote_counter"));
  EXPECT_NE(first, second);
  EXPECT_EQ(driver->mem_free(first), Status::invalid_value) << "not of mem_alloc";
}

TEST_P(Launch, WhatIsUnloadedIsGone) {
  const auto function = kernel("cenote_null");
  DevicePtr counter = 0;
  ASSERT_OK(driver->module_get_global(&counter, nullptr, module, "cenote_counter"));
  ASSERT_OK(driver->module_unload(module));
  EXPECT_EQ(driver->launch_kernel(function, {}, nullptr, nullptr), Status::invalid_handle);
  EXPECT_EQ(driver->module_unload(module), Status::invalid_handle);
  unsigned value = 0;
  EXPECT_EQ(driver->memcpy_dtoh(&value, counter, 4), Status::invalid_value);
}

TEST_P(Launch, ImagesThatAreNoneAreRefused) {
  Module none = nullptr;
  const std::string text = "this is not PTX";
  EXPECT_EQ(driver->module_load_data(&none, text.data(), text.size()), Status::invalid_ptx);
  const std::string elf("\177ELF and so on", 14);
  EXPECT_NE(driver->module_load_data(&none, elf.data(), elf.size()), Status::success);
  std::uint32_t container[4] = {0xBA55ED50, 0x00100001, 1u << 20, 0};
  EXPECT_EQ(driver->module_load_data(&none, container, sizeof(container)), Status::invalid_image)
      << "longer than it is";
  std::uint32_t wrapper[6] = {0x466243B1, 1, 0x1000, 0, 0, 0};
  EXPECT_EQ(driver->module_load_data(&none, wrapper, sizeof(wrapper)), Status::invalid_image)
      << "pointers from a peer";
  EXPECT_EQ(driver->module_load_data(&none, nullptr, 0), Status::invalid_value);
}

TEST_P(Launch, VariablesOfOtherModulesAreRefusedByName) {
  const auto load = [&](const std::string& body) {
    const auto text = ".version 8.0\n.target sm_75\n.address_size 64\n" + body +
                      ".visible .entry k() {\n.reg .b64 %q;\nmov.u64 %q, elsewhere;\nret; }\n";
    Module loaded = nullptr;
    const auto status = driver->module_load_data(&loaded, text.data(), text.size());
    if (status == Status::success) {
      EXPECT_OK(driver->module_unload(loaded));
    }
    return status;
  };
  for (const std::string space : {".global", ".const"}) {
    const auto declared = ".extern " + space + " .align 4 .u32 elsewhere;\n",
               defined = ".visible " + space + " .align 4 .u32 elsewhere = 7;\n";
    EXPECT_NE(load(declared), Status::success) << space;
    EXPECT_NE(load(declared + declared), Status::success) << space;
    EXPECT_OK(load(declared + declared + defined));
    EXPECT_OK(load(defined + declared));
  }
}

TEST_P(Launch, PtxForANewerCardIsRefused) {
  std::string text(kernels::basic_ptx());
  const auto at = text.find(".target sm_");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, text.find_first_of(",\n", at) - at, ".target sm_120");
  Module none = nullptr;
  EXPECT_EQ(driver->module_load_data(&none, text.data(), text.size()), Status::no_binary_for_gpu);
}

TEST_P(Launch, ImpossibleLaunchesAreRefusedAtOnce) {
  const auto null = kernel("cenote_null");
  const auto with = [](std::vector<unsigned> g, std::vector<unsigned> b, unsigned shared = 0) {
    return LaunchConfig{{g[0], g[1], g[2]}, {b[0], b[1], b[2]}, shared};
  };
  const auto launch = [&](const LaunchConfig& config) {
    return driver->launch_kernel(null, config, nullptr, nullptr);
  };
  EXPECT_EQ(launch(with({0, 1, 1}, {1, 1, 1})), Status::invalid_value);
  EXPECT_EQ(launch(with({1, 65536, 1}, {1, 1, 1})), Status::invalid_value);
  EXPECT_EQ(launch(with({1, 1, 1}, {1, 0, 1})), Status::invalid_value);
  EXPECT_EQ(launch(with({1, 1, 1}, {1025, 1, 1})), Status::invalid_value);
  EXPECT_EQ(launch(with({1, 1, 1}, {1, 1, 65})), Status::invalid_value);
  EXPECT_EQ(launch(with({1, 1, 1}, {32, 32, 2})), Status::invalid_value);
  EXPECT_EQ(launch(with({1, 1, 1}, {1, 1, 1}, 49153)), Status::invalid_value);
  EXPECT_EQ(launch(with({1, 1, 1}, {32, 32, 1}, 49152)), Status::success);
  EXPECT_EQ(driver->launch_kernel(nullptr, {}, nullptr, nullptr), Status::invalid_handle);
  EXPECT_EQ(driver->launch_kernel(kernel("cenote_fill"), {}, nullptr, nullptr), Status::invalid_value);
  EXPECT_OK(driver->ctx_synchronize());
}

TEST_P(Launch, MoreSharedMemoryIsAskedFor) {
  const auto null = kernel("cenote_null");
  ASSERT_OK(driver->func_set_attribute(null, FunctionAttribute::max_dynamic_shared_size_bytes, 100 << 10));
  LaunchConfig config;
  config.shared_bytes = 100 << 10;
  EXPECT_OK(driver->launch_kernel(null, config, nullptr, nullptr));
  EXPECT_EQ(driver->func_set_attribute(null, FunctionAttribute::max_dynamic_shared_size_bytes, 1 << 20),
            Status::invalid_value);
  int value = 0;
  ASSERT_OK(driver->func_get_attribute(&value, FunctionAttribute::max_dynamic_shared_size_bytes, null));
  EXPECT_EQ(value, 100 << 10);
}

TEST_P(Launch, FunctionsSayWhatTheyAre) {
  int value = 0;
  const auto saxpy = kernel("cenote_saxpy");
  ASSERT_OK(driver->func_get_attribute(&value, FunctionAttribute::max_threads_per_block, saxpy));
  EXPECT_EQ(value, 1024);
  ASSERT_OK(driver->func_get_attribute(&value, FunctionAttribute::ptx_version, saxpy));
  EXPECT_EQ(value, 75);
  ASSERT_OK(driver->func_get_attribute(&value, FunctionAttribute::binary_version, saxpy));
  EXPECT_EQ(value, 80);
  EXPECT_EQ(driver->module_get_function(nullptr, module, "cenote_saxpy"), Status::invalid_value);
  Function none = nullptr;
  EXPECT_EQ(driver->module_get_function(&none, module, "no_such"), Status::not_found);
}

TEST_P(Launch, AStoreBehindTheEndIsAnIllegalAddressThatSticks) {
  const auto to = upload(std::vector<unsigned>(128, 0));
  ASSERT_OK(store_at(to, 128, 17));  // the very next word
  EXPECT_EQ(driver->ctx_synchronize(), Status::illegal_address);
  if (GetParam().emulated) {
    EXPECT_THAT(driver->last_error_detail(), HasSubstr("cenote_store_at"));
    EXPECT_THAT(driver->last_error_detail(), HasSubstr("thread (17,0,0)"));
  }
  unsigned value = 0;
  DevicePtr more = 0;
  Stream stream = nullptr;
  EXPECT_EQ(driver->memcpy_dtoh(&value, to, 4), Status::illegal_address);
  EXPECT_EQ(driver->mem_alloc(&more, 4), Status::illegal_address);
  EXPECT_EQ(driver->stream_create(&stream, 0), Status::illegal_address);
  EXPECT_EQ(driver->stream_synchronize(nullptr), Status::illegal_address);
  EXPECT_EQ(driver->launch_kernel(nullptr, {}, nullptr, nullptr), Status::illegal_address);
}

TEST_P(Launch, AFaultDoesNotReachOtherContexts) {
  Context other = nullptr;
  ASSERT_OK(driver->primary_ctx_retain(&other, 1));
  ASSERT_OK(driver->ctx_push_current(other));
  const auto there = upload(std::vector<unsigned>{5});
  ASSERT_OK(driver->ctx_pop_current(nullptr));
  ASSERT_OK(store_at(allocate(4), 1000));
  EXPECT_EQ(driver->ctx_synchronize(), Status::illegal_address);
  ASSERT_OK(driver->ctx_push_current(other));
  EXPECT_THAT(download<unsigned>(there, 1), ElementsAre(5u));
  ASSERT_OK(driver->ctx_pop_current(nullptr));
  // A primary context that everybody has released starts afresh.
  ASSERT_OK(driver->primary_ctx_release(0));
  ASSERT_OK(driver->primary_ctx_retain(&context, 0));
  ASSERT_OK(driver->ctx_set_current(context));
  EXPECT_OK(driver->ctx_synchronize());
}

TEST_P(Launch, UseAfterFreeIsAnIllegalAddress) {
  const auto to = upload(std::vector<unsigned>(128, 0));
  ASSERT_OK(driver->mem_free(to));
  ASSERT_OK(store_at(to, 0));
  EXPECT_EQ(driver->ctx_synchronize(), Status::illegal_address);
}

TEST_P(Launch, AnotherCardsMemoryNeedsPeerAccess) {
  Context other = nullptr;
  ASSERT_OK(driver->primary_ctx_retain(&other, 1));
  ASSERT_OK(driver->ctx_push_current(other));
  const auto there = upload(std::vector<unsigned>(4, 0));
  ASSERT_OK(driver->ctx_pop_current(nullptr));
  int can = 0;
  ASSERT_OK(driver->device_can_access_peer(&can, 0, 1));
  ASSERT_EQ(can, 1);
  ASSERT_OK(driver->ctx_enable_peer_access(other, 0));
  EXPECT_EQ(driver->ctx_enable_peer_access(other, 0), Status::peer_access_already_enabled);
  ASSERT_OK(fill(there, 6, 4));
  ASSERT_OK(driver->ctx_synchronize());
  EXPECT_THAT(download<unsigned>(there, 4), Each(6u));

  Context fresh = nullptr;  // without peer access
  ASSERT_OK(driver->ctx_create(&fresh, 0, 0));
  module = load(kernels::basic_ptx());
  ASSERT_OK(fill(there, 7, 4));
  EXPECT_EQ(driver->ctx_synchronize(), Status::illegal_address);
  EXPECT_OK(driver->ctx_destroy(fresh));
}

TEST_P(Launch, KernelsReachPinnedHostMemory) {
  auto* host = pinned<unsigned>(256);
  std::fill_n(host, 256, 0);
  ASSERT_OK(fill(reinterpret_cast<DevicePtr>(host), 3, 256));
  ASSERT_OK(driver->ctx_synchronize());
  EXPECT_THAT(std::vector<unsigned>(host, host + 256), Each(3u));
  std::vector<unsigned> pageable(256, 0);
  ASSERT_OK(fill(reinterpret_cast<DevicePtr>(pageable.data()), 3, 256));
  EXPECT_EQ(driver->ctx_synchronize(), Status::illegal_address) << "pageable memory is the host's alone";
  EXPECT_THAT(pageable, Each(0u));
}

TEST_P(Launch, DestroyingAContextEndsItsKernels) {
  Context mine = nullptr;
  ASSERT_OK(driver->ctx_create(&mine, 0, 0));
  module = load(kernels::basic_ptx());
  auto flag = upload(std::vector<unsigned>{0});
  void* params[] = {&flag};
  ASSERT_OK(driver->launch_kernel(kernel("cenote_spin"), {}, nullptr, params));
  EXPECT_EQ(driver->stream_query(nullptr), Status::not_ready);
  EXPECT_OK(driver->ctx_destroy(mine));
}

TEST_P(Launch, AFunctionRunsInItsModulesContextOnly) {
  const auto null = kernel("cenote_null");
  Context mine = nullptr;
  ASSERT_OK(driver->ctx_create(&mine, 0, 0));
  EXPECT_EQ(driver->launch_kernel(null, {}, nullptr, nullptr), Status::invalid_context);
  EXPECT_OK(driver->ctx_destroy(mine));
}

TEST_P(Launch, ManyLaunchesDrain) {
  auto stream = new_stream();
  const auto null = kernel("cenote_null");
  // More than may wait in a stream; an adversarial one takes its time for each.
  const bool slow = GetParam().name.starts_with("Adversarial");
  const int launches = slow ? 500 : 50'000;
  for (int i = 0; i < launches; ++i) ASSERT_OK(driver->launch_kernel(null, {}, stream, nullptr));
  ASSERT_OK(driver->ctx_synchronize());
  EXPECT_OK(driver->stream_query(stream));
}

}  // namespace
}  // namespace cenote::cuda::test
