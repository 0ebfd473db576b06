// The state of the drop-in runtime: the driver below it, primary contexts, registered fatbins. The interface
// it serves demands global state; there is one Runtime in a process, never destroyed, because libraries call
// back after static destructors have run. Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda/driver.h"
#include "pool/dropin/cudart/abi.h"
#include "runtime/fork_mark.h"

namespace cenote::cudart {

struct Fatbin;

/// A `__global__` function: what cudaKernel_t points at. Independent of contexts.
struct Kernel {
  Fatbin* fatbin;
  std::string name;
  std::unordered_map<int, cuda::Function> by_device;
};

/// A `__device__` or `__constant__` variable.
struct Variable {
  Fatbin* fatbin;
  std::string name;
};

/// What one __cudaRegisterFatBinary brought: loaded into a device's context at first use there.
struct Fatbin {
  const void* wrapper;
  std::unordered_map<int, cuda::Module> by_device;
};

class Runtime {
 public:
  static Runtime& get();

  /// Loads the driver and initialises it, once; its error every time after that.
  int ready();
  cuda::Driver& driver() { return *driver_; }
  int device_count() const { return device_count_; }
  /// Makes the calling thread's device current (its primary context, made on first use).
  int enter();
  int set_device(int device);
  int current_device() const;

  Fatbin* add_fatbin(const void* wrapper);
  void remove_fatbin(Fatbin* fatbin);
  void add_kernel(Fatbin* fatbin, const void* host_symbol, const char* name);
  void add_variable(Fatbin* fatbin, const void* host_symbol, const char* name);
  /// The kernel behind a host symbol or a cudaKernel_t; nullptr: neither.
  Kernel* kernel(const void* symbol);
  /// Calls enter(). invalid_device_function: unknown symbol, or not in the image.
  int function(const void* symbol, cuda::Function* function);
  int variable(const void* symbol, cuda::DevicePtr* address, std::size_t* bytes);
  /// cudaDeviceReset: forgets what was loaded on the device and releases its context.
  int reset_device();

 private:
  Runtime() = default;
  int load_driver();
  int module(Fatbin& fatbin, int device, cuda::Module* module);

  ForkMark process_;
  std::mutex mutex_;
  bool tried_ = false;
  int init_error_ = success;
  std::unique_ptr<cuda::Driver> driver_;
  int device_count_ = 0;
  std::vector<cuda::Context> contexts_;
  std::deque<std::unique_ptr<Fatbin>> fatbins_;
  std::unordered_map<const void*, std::unique_ptr<Kernel>> kernels_;
  std::unordered_map<const void*, Variable> variables_;
};

void set_last_error(int error);
/// Remembers `error` for cudaGetLastError when it is one, and returns it.
inline int remember(int error) {
  if (error != success) set_last_error(error);
  return error;
}
inline int remember(cuda::Status status) { return remember(static_cast<int>(status)); }
int take_last_error();
int peek_last_error();

/// One line on standard error for each function that is asked for and not served.
int say_unserved(const char* function);

}  // namespace cenote::cudart

/// Returns, and remembers, the error of a step that failed.
#define CENOTE_RT_TRY(expression)                                                 \
  do {                                                                            \
    const int cenote_rt_error = static_cast<int>(expression);                     \
    if (cenote_rt_error != 0) return ::cenote::cudart::remember(cenote_rt_error); \
  } while (false)
