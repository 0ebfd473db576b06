#include "collectives/devices.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <utility>

#include "cuda/current_context.h"
#include "cuda/device_memory.h"
#include "cuda/real_driver.h"
#include "cuda/reduce_kernels.h"

namespace cenote::collectives {
namespace {

using cuda::CurrentContext;
using cuda::Status;

constexpr int memory_host = 1;

/// How many libraries this process has loaded so far: while that stays, so does who is among them.
unsigned long long libraries_loaded() {
  unsigned long long count = 0;
  const auto look = [](dl_phdr_info* info, std::size_t, void* out) {
    *static_cast<unsigned long long*>(out) = info->dlpi_adds;
    return 1;
  };
  (void)dl_iterate_phdr(look, &count);
  return count;
}

bool is_loaded(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

tl::unexpected<Error> refused(const cuda::Driver& driver, std::string stage, Status status) {
  return fail(cuda::driver_error(driver, std::move(stage), status));
}

/// An event behind the work of a stream.
struct Marker {
  Marker(std::shared_ptr<cuda::Driver> of, cuda::Context in) : driver(std::move(of)), context(in) {}
  ~Marker() {
    const CurrentContext current(*driver, context);
    if (current.status() == Status::success && event != nullptr) driver->event_destroy(event);
  }
  Marker(const Marker&) = delete;
  Marker& operator=(const Marker&) = delete;

  Status record(cuda::Stream stream) {
    const CurrentContext current(*driver, context);
    auto status = current.status();
    if (status == Status::success) status = driver->event_create(&event, cuda::event_disable_timing);
    if (status == Status::success) status = driver->event_record(event, stream);
    return status;
  }
  Result<bool> passed() {
    const CurrentContext current(*driver, context);
    auto status = current.status();
    if (status == Status::success) status = driver->event_query(event);
    if (status == Status::not_ready) return false;
    if (status != Status::success) return refused(*driver, "wait for the stream's earlier work", status);
    return true;
  }

  const std::shared_ptr<cuda::Driver> driver;
  const cuda::Context context;
  cuda::Event event = nullptr;
};

}  // namespace

/// One context's memory. Kept alive by the descriptions that it gave.
struct Devices::Card {
  std::shared_ptr<cuda::Driver> driver;
  cuda::Context context = nullptr;
  std::unique_ptr<cuda::DeviceMemory> memory{};
};

Devices::~Devices() = default;

Result<cuda::Driver*> Devices::driver() {
  if (auto* found = found_.load(std::memory_order_acquire)) return found;
  if (library_.empty()) return nullptr;
  const auto loaded = libraries_loaded();
  if (looked_at_.load(std::memory_order_relaxed) == loaded) return nullptr;
  const std::lock_guard lock(mutex_);
  if (driver_ == nullptr) {
    if (!is_loaded(library_)) {
      looked_at_.store(loaded, std::memory_order_relaxed);
      return nullptr;
    }
    auto opened = cuda::load_real_driver(library_);
    if (!opened)
      return fail(std::move(opened).error().fix("update the driver, or give the context no cuda_library"));
    driver_ = std::move(*opened);
    found_.store(driver_.get(), std::memory_order_release);
  }
  return driver_.get();
}

Result<MemoryDescription> Devices::describe(const void* pointer, std::size_t bytes) {
  CENOTE_ASSIGN(auto* driver, this->driver());
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  if (driver == nullptr || pointer == nullptr || bytes == 0)
    return MemoryDescription::of_host(pointer, bytes);
  int type = 0;
  const auto status = driver->pointer_get_attribute(&type, cuda::PointerAttribute::memory_type, address);
  // Unknown to the driver, or there is none at work: memory of the process's own.
  if (status == Status::invalid_value || status == Status::not_initialized ||
      status == Status::deinitialized || (status == Status::success && type == memory_host))
    return MemoryDescription::of_host(pointer, bytes);
  if (status == Status::invalid_context) {
    return fail(cuda::driver_error(*driver, "tell device memory from host memory", status)
                    .fix("make the buffer's context current to this thread"));
  }
  if (status != Status::success) return refused(*driver, "tell device memory from host memory", status);
  CENOTE_ASSIGN(auto card, card_of(*driver, address));
  auto described = card->memory->describe(address, bytes);
  if (!described) {
    auto error = std::move(described).error();
    error.code = ErrorCode::driver_error;
    const std::lock_guard lock(mutex_);
    if (const auto at = cards_.find(card->context); at != cards_.end() && at->second == card)
      cards_.erase(at);  // another context may have its name by now
    return fail(std::move(error));
  }
  described->device = std::shared_ptr<const DeviceAccess>(card, described->device.get());
  return described;
}

Result<std::shared_ptr<Devices::Card>> Devices::card_of(cuda::Driver& driver, std::uint64_t pointer) {
  constexpr auto stage = "find the context of device memory";
  cuda::Context context = nullptr;
  if (auto status = driver.pointer_get_attribute(&context, cuda::PointerAttribute::context, pointer);
      status == Status::success && context != nullptr)
    return card_in(driver, context);
  // Mapped and pooled memory belongs to no context: the thread's will do, on the same device.
  int device = 0;
  cuda::DeviceId current = -1;
  auto status = driver.pointer_get_attribute(&device, cuda::PointerAttribute::device_ordinal, pointer);
  if (status == Status::success) status = driver.ctx_get_current(&context);
  if (status == Status::success && context != nullptr) status = driver.ctx_get_device(&current);
  if (status != Status::success) return refused(driver, stage, status);
  if (current != device) {
    return fail(Error{ErrorCode::driver_error, stage,
                      "memory of cuda:" + std::to_string(device) + " belongs to no context"}
                    .fix("make a context of that device current to this thread"));
  }
  return card_in(driver, context);
}

Result<std::shared_ptr<Devices::Card>> Devices::card_in(cuda::Driver& driver, cuda::Context context) {
  const std::lock_guard lock(mutex_);
  if (const auto at = cards_.find(context); at != cards_.end()) return at->second;
  const CurrentContext current(driver, context);
  if (current.status() != Status::success)
    return refused(driver, "open a way to device memory", current.status());
  auto card = std::make_shared<Card>(Card{driver_, context});
  CENOTE_ASSIGN(card->memory, cuda::DeviceMemory::create(driver));
  cards_.emplace(context, card);
  return card;
}

Result<Gate> Devices::after(void* stream, std::span<const MemoryDescription> buffers) {
  constexpr auto stage = "follow a stream";
  CENOTE_ASSIGN(auto* driver, this->driver());
  if (driver == nullptr) {
    return fail(Error{ErrorCode::not_supported, stage,
                      library_.empty() ? std::string("the context was made without CUDA")
                                       : "this process has not loaded " + library_}
                    .fix("call the function without a stream"));
  }
  cuda::Context context = nullptr;
  const auto on_device = std::ranges::find(buffers, MemoryKind::device, &MemoryDescription::kind);
  if (on_device != buffers.end()) {
    CENOTE_ASSIGN(const auto card, card_of(*driver, on_device->address));
    context = card->context;
  } else if (auto status = driver->ctx_get_current(&context); status != Status::success) {
    return refused(*driver, stage, status);
  }
  std::shared_ptr<cuda::Driver> shared;
  {
    const std::lock_guard lock(mutex_);
    shared = driver_;
  }
  auto marker = std::make_shared<Marker>(std::move(shared), context);
  if (auto status = marker->record(static_cast<cuda::Stream>(stream)); status != Status::success)
    return refused(*driver, stage, status);
  return Gate([marker = std::move(marker)] { return marker->passed(); });
}

}  // namespace cenote::collectives
