// The loader of a real libcuda, on the stand-in library and on files that are none.
#include "cuda/real_driver.h"

#include <dlfcn.h>

#include "cuda/abi/types.h"
#include "tests/unit/cuda/conformance.h"

namespace cenote::cuda::test {
namespace {

using testing::HasSubstr;

TEST(RealDriver, AMissingLibraryIsNotFoundAndSaysWhatToDo) {
  const auto loaded = load_real_driver("/no/such/libcuda.so.1");
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::not_found);
  EXPECT_THAT(loaded.error().cause, HasSubstr("/no/such/libcuda.so.1"));
  EXPECT_THAT(loaded.error().remedy, HasSubstr("install the NVIDIA driver"));
}

TEST(RealDriver, ALibraryThatIsNotCudaIsRefusedWithWhatItLacks) {
  const auto loaded = load_real_driver("libm.so.6");
  ASSERT_FALSE(loaded);
  EXPECT_EQ(loaded.error().code, ErrorCode::not_supported);
  EXPECT_THAT(loaded.error().cause, HasSubstr("cuMemAlloc_v2"));
}

TEST(RealDriver, SaysItsVersion) {
  const auto options = small_machine();
  ASSERT_TRUE(reset_standin(&options));
  auto loaded = load_real_driver(standin_path());
  ASSERT_TRUE(loaded) << loaded.error().message();
  EXPECT_THAT((*loaded)->name(), HasSubstr("13.0"));
}

TEST(RealDriver, ALibraryWithoutADriverBehindItAnswersNotInitialized) {
  ASSERT_TRUE(reset_standin(nullptr));
  auto loaded = load_real_driver(standin_path());
  ASSERT_TRUE(loaded) << loaded.error().message();
  EXPECT_EQ((*loaded)->init(0), Status::not_initialized);
}

class ProcAddress : public testing::Test {
 protected:
  void SetUp() override {
    library = dlopen(standin_path().c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << dlerror();
    get = reinterpret_cast<decltype(get)>(dlsym(library, "cuGetProcAddress_v2"));
    ASSERT_NE(get, nullptr);
  }
  void* find(const char* name, int version, std::uint64_t flags = abi::proc_legacy_stream) {
    void* found = nullptr;
    EXPECT_EQ(get(name, &found, version, flags, &how), 0);
    return found;
  }
  void* symbol(const char* name) { return dlsym(library, name); }

  void* library = nullptr;
  int (*get)(const char*, void**, int, std::uint64_t, int*) = nullptr;
  int how = -1;
};

TEST_F(ProcAddress, TheVersionPicksTheAbi) {
  EXPECT_EQ(find("cuMemAlloc", 3020), symbol("cuMemAlloc_v2"));
  EXPECT_EQ(find("cuCtxGetDevice", 2000), symbol("cuCtxGetDevice"));
  EXPECT_EQ(find("cuCtxGetDevice", 12990), symbol("cuCtxGetDevice"));
  EXPECT_EQ(find("cuCtxGetDevice", 13000), symbol("cuCtxGetDevice_v2"));
  EXPECT_EQ(find("cuCtxSynchronize", 13000), symbol("cuCtxSynchronize_v2"));
  EXPECT_EQ(find("cuEventElapsedTime", 12080), symbol("cuEventElapsedTime_v2"));
  EXPECT_EQ(find("cuCtxCreate", 12040), symbol("cuCtxCreate_v3"));
  EXPECT_EQ(find("cuCtxCreate", 12050), symbol("cuCtxCreate_v4"));
  EXPECT_EQ(find("cuGetProcAddress", 12000), symbol("cuGetProcAddress_v2"));
  EXPECT_EQ(how, abi::proc_found);
}

TEST_F(ProcAddress, WhatIsNotThereIsSaidToBe) {
  EXPECT_EQ(find("cuNoSuchFunction", 13000), nullptr);
  EXPECT_EQ(how, abi::proc_not_found);
  EXPECT_EQ(find("cuMemAlloc", 2000), nullptr);
  EXPECT_EQ(how, abi::proc_version_not_sufficient);
}

TEST_F(ProcAddress, AFlagPicksTheStreamPerThread) {
  EXPECT_EQ(find("cuLaunchKernel", 13000, abi::proc_per_thread_stream), symbol("cuLaunchKernel_ptsz"));
  EXPECT_EQ(find("cuMemcpyHtoD", 13000, abi::proc_per_thread_stream), symbol("cuMemcpyHtoD_v2_ptds"));
  EXPECT_EQ(find("cuMemAlloc", 13000, abi::proc_per_thread_stream), symbol("cuMemAlloc_v2"))
      << "it has no stream";
  EXPECT_EQ(find("cuLaunchKernel", 13000, 0), symbol("cuLaunchKernel"));
}

TEST_F(ProcAddress, EveryEntryIsTheSymbolOfItsName) {
  struct Entry {
    const char* symbol;
    const char* name;
    int version;
    bool per_thread;
  };
  const Entry entries[] = {
#define CENOTE_PROC(symbol, name, version, per_thread) {#symbol, name, version, per_thread != 0},
#include "cuda/abi/procs.def"
#undef CENOTE_PROC
  };
  for (const auto& entry : entries) {
    ASSERT_NE(symbol(entry.symbol), nullptr) << entry.symbol;
    const auto flags = entry.per_thread ? abi::proc_per_thread_stream : abi::proc_legacy_stream;
    EXPECT_EQ(find(entry.name, entry.version, flags), symbol(entry.symbol)) << entry.symbol;
  }
}

TEST_F(ProcAddress, EveryFunctionOfTheLoaderIsThere) {
  struct Entry {
    const char* symbol;
    const char* name;
    int version;
  };
  const Entry entries[] = {
#define CENOTE_CU(member, name, version, symbol, need, arguments) {symbol, name, version},
#include "cuda/abi/functions.def"
#undef CENOTE_CU
  };
  for (const auto& entry : entries) {
    EXPECT_EQ(find(entry.name, entry.version), symbol(entry.symbol)) << entry.symbol;
    EXPECT_NE(symbol(entry.symbol), nullptr) << entry.symbol;
  }
}

TEST_F(ProcAddress, MisuseIsRefused) {
  void* found = nullptr;
  EXPECT_EQ(get(nullptr, &found, 13000, 0, nullptr), static_cast<int>(Status::invalid_value));
  EXPECT_EQ(get("cuInit", nullptr, 13000, 0, nullptr), static_cast<int>(Status::invalid_value));
  EXPECT_EQ(get("cuInit", &found, 13000, 4, nullptr), static_cast<int>(Status::invalid_value));
}

}  // namespace
}  // namespace cenote::cuda::test
