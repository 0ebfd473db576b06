// For tests of what describes device memory, on every driver.
#pragma once

#include <memory>

#include "cuda/device_memory.h"
#include "tests/unit/cuda/conformance.h"

namespace cenote::cuda::test {

class OnDeviceMemory : public Conformance {
 protected:
  void SetUp() override {
    Conformance::SetUp();
    auto made = DeviceMemory::create(*driver);
    ASSERT_TRUE(made) << made.error().message();
    memory = std::move(*made);
  }
  void TearDown() override { memory.reset(); }
  MemoryDescription describe(DevicePtr pointer, std::size_t bytes) {
    auto description = memory->describe(pointer, bytes);
    EXPECT_TRUE(description) << description.error().message();
    return description ? *description : MemoryDescription{};
  }
  std::unique_ptr<DeviceMemory> memory;
};

}  // namespace cenote::cuda::test
