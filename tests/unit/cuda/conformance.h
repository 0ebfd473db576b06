// The driver conformance suite: what every cuda::Driver does, written once and run over each maker of
// drivers.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "cuda/driver.h"
#include "cuda/emulator/emulated_driver.h"

namespace cenote::cuda {

inline void PrintTo(Status status, std::ostream* out) { *out << status_name(status); }

namespace test {

struct Maker {
  std::string name;
  std::function<std::unique_ptr<Driver>(EmulatorOptions)> make;
  bool emulated = true;  ///< details of errors are there to be read
};

/// Emulated, emulated and adversarial on some seeds, the loader over the stand-in library.
std::vector<Maker> makers();
/// The stand-in library, and a fresh driver behind its exports (nullptr: none). False: it cannot be loaded.
std::string standin_path();
bool reset_standin(const EmulatorOptions* options);

inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kCardBytes = 256 * kMiB;

/// Two linked A100 of 256 MiB.
inline EmulatorOptions small_machine() {
  EmulatorOptions options;
  EmulatedDevice card;
  card.model = "A100";
  card.memory_bytes = kCardBytes;
  card.context_bytes = kMiB;
  options.devices = {card, card};
  return options;
}

#define ASSERT_OK(expression) ASSERT_EQ(expression, Status::success) << driver->last_error_detail()
#define EXPECT_OK(expression) EXPECT_EQ(expression, Status::success) << driver->last_error_detail()

class Conformance : public testing::TestWithParam<Maker> {
 protected:
  void SetUp() override {
    driver = GetParam().make(machine());
    ASSERT_NE(driver, nullptr);
    ASSERT_OK(driver->init(0));
    ASSERT_OK(driver->primary_ctx_retain(&context, 0));
    ASSERT_OK(driver->ctx_set_current(context));
  }
  virtual EmulatorOptions machine() { return small_machine(); }

  DevicePtr allocate(std::size_t bytes) {
    DevicePtr pointer = 0;
    EXPECT_OK(driver->mem_alloc(&pointer, bytes));
    return pointer;
  }
  template <class T>
  DevicePtr upload(const std::vector<T>& values) {
    const auto pointer = allocate(values.size() * sizeof(T));
    EXPECT_OK(driver->memcpy_htod(pointer, values.data(), values.size() * sizeof(T)));
    // A small copy from pageable memory returns once it is staged; streams that do not block would overtake
    // it.
    EXPECT_OK(driver->ctx_synchronize());
    return pointer;
  }
  template <class T>
  std::vector<T> download(DevicePtr pointer, std::size_t count) {
    std::vector<T> values(count);
    EXPECT_OK(driver->memcpy_dtoh(values.data(), pointer, count * sizeof(T)));
    return values;
  }
  template <class T>
  T* pinned(std::size_t count) {
    void* pointer = nullptr;
    EXPECT_OK(driver->mem_host_alloc(&pointer, count * sizeof(T), 0));
    return static_cast<T*>(pointer);
  }
  Stream new_stream(unsigned flags = stream_non_blocking) {
    Stream stream = nullptr;
    EXPECT_OK(driver->stream_create(&stream, flags));
    return stream;
  }
  Event new_event(unsigned flags = event_default) {
    Event event = nullptr;
    EXPECT_OK(driver->event_create(&event, flags));
    return event;
  }
  /// Whatever was queued in `stream` before stays there until `gate` becomes 1.
  void hold(Stream stream, DevicePtr gate) {
    EXPECT_OK(driver->stream_wait_value32(stream, gate, 1, wait_eq));
  }

  std::unique_ptr<Driver> driver;
  Context context = nullptr;
};

/// Waits for `condition` for as long as a slow machine may take.
template <class Condition>
bool eventually(Condition condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace test
}  // namespace cenote::cuda
