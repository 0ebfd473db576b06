#include "pool/dropin/cudart/runtime.h"

#include <cstdio>
#include <set>

#include "cuda/real_driver.h"

namespace cenote::cudart {
namespace {

struct ThreadState {
  int device = 0;
  int last_error = success;
};
thread_local ThreadState thread_state;

}  // namespace

void set_last_error(int error) { thread_state.last_error = error; }
int take_last_error() { return std::exchange(thread_state.last_error, success); }
int peek_last_error() { return thread_state.last_error; }

int say_unserved(const char* function) {
  static std::mutex mutex;
  static auto* said = new std::set<std::string>;  // outlives static destructors: calls may come after them
  const std::lock_guard lock(mutex);
  if (said->insert(function).second) std::fprintf(stderr, "cenote: libcudart: %s is not served\n", function);
  return remember(not_supported);
}

Runtime& Runtime::get() {
  static auto* runtime = new Runtime;  // never destroyed, see runtime.h
  return *runtime;
}

int Runtime::load_driver() {
  if (!process_.set()) return initialization_error;
  auto loaded = cuda::load_real_driver();
  if (!loaded) {
    std::fprintf(stderr, "cenote: libcudart: %s\n", loaded.error().message().c_str());
    return insufficient_driver;
  }
  driver_ = std::move(*loaded);
  if (const auto status = driver_->init(0); status != cuda::Status::success) return static_cast<int>(status);
  if (driver_->device_get_count(&device_count_) != cuda::Status::success || device_count_ == 0)
    return no_device;
  contexts_.assign(static_cast<std::size_t>(device_count_), nullptr);
  return success;
}

int Runtime::ready() {
  // Of a child of fork(): the lock may be held by a thread that there is not in it.
  if (process_.forked()) return initialization_error;
  const std::lock_guard lock(mutex_);
  if (!tried_) {
    tried_ = true;
    init_error_ = load_driver();
  }
  return init_error_;
}

int Runtime::current_device() const { return thread_state.device; }

int Runtime::set_device(int device) {
  if (const int error = ready(); error != success) return error;
  if (device < 0 || device >= device_count_) return invalid_device;
  thread_state.device = device;
  return enter();
}

int Runtime::enter() {
  if (const int error = ready(); error != success) return error;
  const std::lock_guard lock(mutex_);
  auto& context = contexts_[static_cast<std::size_t>(thread_state.device)];
  if (context == nullptr) {
    const auto status = driver_->primary_ctx_retain(&context, thread_state.device);
    if (status != cuda::Status::success) return static_cast<int>(status);
  }
  return static_cast<int>(driver_->ctx_set_current(context));
}

Fatbin* Runtime::add_fatbin(const void* wrapper) {
  const std::lock_guard lock(mutex_);
  fatbins_.push_back(std::make_unique<Fatbin>(Fatbin{wrapper, {}}));
  return fatbins_.back().get();
}

void Runtime::remove_fatbin(Fatbin* fatbin) {
  const std::lock_guard lock(mutex_);
  std::erase_if(kernels_, [&](const auto& entry) { return entry.second->fatbin == fatbin; });
  std::erase_if(variables_, [&](const auto& entry) { return entry.second.fatbin == fatbin; });
  std::erase_if(fatbins_, [&](const auto& entry) { return entry.get() == fatbin; });
}

void Runtime::add_kernel(Fatbin* fatbin, const void* host_symbol, const char* name) {
  const std::lock_guard lock(mutex_);
  kernels_[host_symbol] = std::make_unique<Kernel>(Kernel{fatbin, name, {}});
}

void Runtime::add_variable(Fatbin* fatbin, const void* host_symbol, const char* name) {
  const std::lock_guard lock(mutex_);
  variables_[host_symbol] = Variable{fatbin, name};
}

Kernel* Runtime::kernel(const void* symbol) {
  const std::lock_guard lock(mutex_);
  if (const auto found = kernels_.find(symbol); found != kernels_.end()) return found->second.get();
  for (const auto& [host_symbol, kernel] : kernels_) {
    if (kernel.get() == symbol) return kernel.get();
  }
  return nullptr;
}

int Runtime::module(Fatbin& fatbin, int device, cuda::Module* module) {
  auto& loaded = fatbin.by_device[device];
  if (loaded == nullptr) {
    const auto status = driver_->module_load_data(&loaded, fatbin.wrapper, 0);
    if (status != cuda::Status::success) {
      if (const auto detail = driver_->last_error_detail(); !detail.empty())
        std::fprintf(stderr, "cenote: libcudart: module not loaded: %s\n", detail.c_str());
      fatbin.by_device.erase(device);
      return static_cast<int>(status);
    }
  }
  *module = loaded;
  return success;
}

int Runtime::function(const void* symbol, cuda::Function* function) {
  if (const int error = enter(); error != success) return error;
  auto* found = kernel(symbol);
  if (found == nullptr) return invalid_device_function;
  const std::lock_guard lock(mutex_);
  const int device = thread_state.device;
  auto& cached = found->by_device[device];
  if (cached == nullptr) {
    cuda::Module loaded = nullptr;
    if (const int error = module(*found->fatbin, device, &loaded); error != success) return error;
    if (driver_->module_get_function(&cached, loaded, found->name.c_str()) != cuda::Status::success) {
      found->by_device.erase(device);
      return invalid_device_function;
    }
  }
  *function = cached;
  return success;
}

int Runtime::variable(const void* symbol, cuda::DevicePtr* address, std::size_t* bytes) {
  if (const int error = enter(); error != success) return error;
  const std::lock_guard lock(mutex_);
  const auto found = variables_.find(symbol);
  if (found == variables_.end()) return invalid_symbol;
  cuda::Module loaded = nullptr;
  if (const int error = module(*found->second.fatbin, thread_state.device, &loaded); error != success)
    return error;
  const auto status = driver_->module_get_global(address, bytes, loaded, found->second.name.c_str());
  return status == cuda::Status::not_found ? invalid_symbol : static_cast<int>(status);
}

int Runtime::reset_device() {
  if (const int error = enter(); error != success) return error;
  const std::lock_guard lock(mutex_);
  const int device = thread_state.device;
  const auto status = driver_->ctx_synchronize();
  for (auto& fatbin : fatbins_) fatbin->by_device.erase(device);
  for (auto& [symbol, kernel] : kernels_) kernel->by_device.erase(device);
  driver_->ctx_set_current(nullptr);
  driver_->primary_ctx_release(device);
  contexts_[static_cast<std::size_t>(device)] = nullptr;
  return static_cast<int>(status);
}

}  // namespace cenote::cudart
