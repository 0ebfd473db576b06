// Life of a driver, its devices, and what every call begins with.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "cuda/emulator/driver_state.h"

namespace cenote::cuda {

std::unique_ptr<Driver> make_emulated_driver(EmulatorOptions options) {
  return std::make_unique<emulator::EmulatedDriver>(std::move(options));
}

}  // namespace cenote::cuda

namespace cenote::cuda::emulator {
namespace {

constexpr int kDriverVersion = 13000;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kMostDevices = 64;  // a region's access is a mask of 64 bits

std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

std::uint64_t hash(std::string_view text, std::uint64_t seed) {
  for (const char c : text) seed = mix(seed ^ static_cast<unsigned char>(c));
  return mix(seed);
}

DeviceUuid uuid_of(std::string_view machine, std::string_view model, std::size_t ordinal) {
  const std::uint64_t words[2] = {hash(machine, ordinal), hash(model, hash(machine, ~ordinal))};
  DeviceUuid uuid;
  static_assert(sizeof(words) == sizeof(uuid));
  std::memcpy(&uuid, words, sizeof(uuid));
  return uuid;
}

Refusals draw(const EmulatorOptions& options) {
  std::uint64_t state = options.seed;
  const auto drawn = [&](bool given) {
    state = mix(state);
    return given || static_cast<double>(state >> 11) * 0x1p-53 < options.refusals.chance;
  };
  const auto& given = options.refusals;
  Refusals refusals{};
  refusals.ipc = drawn(given.ipc);
  refusals.dmabuf = drawn(given.dmabuf);
  refusals.address_hints = drawn(given.address_hints);
  refusals.peer_access = drawn(given.peer_access);
  return refusals;
}

// A driver's own context takes some hundred MiB of a large card.
std::size_t usual_context_bytes(std::size_t memory) {
  return std::clamp(memory / 256 / kMiB * kMiB, kMiB, 512 * kMiB);
}

DeviceState make_device(const EmulatorOptions& options, std::size_t ordinal) {
  const auto& given = options.devices[ordinal];
  DeviceState device;
  device.model = card_model(given.model);
  device.name = device.model.device_name;
  if (device.model.model != given.model) device.name = given.model + " (emulated)";
  device.memory_bytes = given.memory_bytes != 0 ? given.memory_bytes : device.model.memory_bytes;
  device.context_bytes =
      given.context_bytes != 0 ? given.context_bytes : usual_context_bytes(device.memory_bytes);
  if (given.compute_major != 0) {
    device.model.major = given.compute_major;
    device.model.minor = given.compute_minor;
  }
  device.worker_threads = std::max(1u, given.worker_threads);
  device.uuid = uuid_of(options.machine, given.model, ordinal);
  for (std::size_t peer = 0; peer < options.devices.size(); ++peer) {
    const bool linked =
        given.peers_given
            ? std::find(given.peers.begin(), given.peers.end(), static_cast<int>(peer)) != given.peers.end()
            : device.model.nvlink && card_model(options.devices[peer].model).nvlink;
    if (linked && peer != ordinal) device.peers |= std::uint64_t{1} << peer;
  }
  return device;
}

// One thread's states, one for each driver it has called. A state whose driver is gone goes with the next
// insertion; the weak pointer keeps the token's address from being used again before.
struct ThreadStates {
  struct One {
    std::weak_ptr<int> driver;
    const int* token;
    std::unique_ptr<ThreadState> state;
  };
  std::vector<One> all;

  ThreadState& of(const std::shared_ptr<int>& token) {
    for (auto& one : all) {
      if (one.token == token.get()) return *one.state;
    }
    std::erase_if(all, [](const One& one) { return one.driver.expired(); });
    all.push_back({token, token.get(), std::make_unique<ThreadState>()});
    return *all.back().state;
  }
};

}  // namespace

const void*& host_function_of() {
  thread_local const void* driver = nullptr;
  return driver;
}

EmulatedDriver::State::State(EmulatorOptions given) : options(std::move(given)), refusals(draw(options)) {
  const auto count = std::min(options.devices.size(), kMostDevices);
  for (std::size_t i = 0; i < count; ++i) devices.push_back(make_device(options, i));
}

void EmulatedDriver::State::print(std::string_view text) {
  std::lock_guard lock(print_mutex);
  if (options.print) {
    options.print(text);
  } else {
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
}

EmulatedDriver::EmulatedDriver(EmulatorOptions options) : state_(new State(std::move(options))) {}

EmulatedDriver::~EmulatedDriver() {
  if (state_->fork_mark.forked()) return;
  std::vector<ContextEntry> left;
  {
    std::lock_guard lock(state_->contexts_mutex);
    for (const auto& [id, entry] : state_->live) left.push_back(entry);
  }
  // All are told to end before the first is waited for: they may wait for each other.
  for (const auto& entry : left) entry.state->faults().cancel.raise();
  for (const auto& entry : left) destroy_context(entry);
  for (const auto& [pointer, bytes] : state_->reservations) {
    munmap(reinterpret_cast<void*>(pointer), bytes);  // NOLINT(performance-no-int-to-ptr)
  }
  state_->mapped.clear();
  state_->memory.clear();
  delete state_;
}

std::string EmulatedDriver::name() const {
  return "emulated (" + std::to_string(state_->devices.size()) + " devices)";
}

std::string EmulatedDriver::last_error_detail() const { return thread_state().detail; }

ThreadState& EmulatedDriver::thread_state() const {
  thread_local ThreadStates states;
  return states.of(state_->token);
}

EmulatedDriver::Entered EmulatedDriver::enter() const {
  auto& thread = thread_state();
  if (!thread.detail.empty()) thread.detail.clear();
  Entered in{Status::success, &thread, nullptr};
  if (state_->fork_mark.forked()) {
    in.status = refuse(thread, Status::not_initialized, "this process is a fork of the one that called init");
  } else if (!state_->initialized.load(std::memory_order_acquire)) {
    in.status = refuse(thread, Status::not_initialized, "init was not called");
  } else if (host_function_of() == state_) {
    in.status = refuse(thread, Status::not_permitted, "a host function may not call the driver");
  }
  return in;
}

EmulatedDriver::Entered EmulatedDriver::enter_context() const {
  auto in = enter();
  if (in.status != Status::success) return in;
  if (in.thread->contexts.empty() || in.thread->contexts.back().state == nullptr) {
    in.status = refuse(*in.thread, Status::invalid_context, "this thread has no current context");
    return in;
  }
  in.context = in.thread->contexts.back().state.get();
  if (!in.context->alive()) {
    in.status = refuse(*in.thread, Status::context_is_destroyed, "the current context was destroyed");
    return in;
  }
  in.status = fault_of(in);
  return in;
}

Status EmulatedDriver::refuse(ThreadState& thread, Status status, std::string detail) const {
  thread.detail = std::move(detail);
  return status;
}

Status EmulatedDriver::fault_of(const Entered& in) const {
  const auto status = in.context->faults().status();
  if (status == Status::success) return status;
  return refuse(*in.thread, status, in.context->faults().detail());
}

Status EmulatedDriver::init_devices() {
  if (auto marked = state_->fork_mark.set(); !marked)
    return refuse(thread_state(), Status::operating_system, marked.error().message());
  for (std::size_t i = 0; i < state_->devices.size(); ++i) {
    auto& card = state_->devices[i];
    auto heap = DeviceHeap::create(card.memory_bytes, mix(state_->options.seed + i));
    if (!heap) return refuse(thread_state(), Status::out_of_memory, heap.error().message());
    card.heap = std::move(*heap);
  }
  return Status::success;
}

Status EmulatedDriver::init(unsigned flags) {
  if (flags != 0) return refuse(thread_state(), Status::invalid_value, "init takes no flags");
  if (state_->fork_mark.forked()) {
    return refuse(thread_state(), Status::not_initialized,
                  "this process is a fork of the one that called init");
  }
  std::lock_guard lock(state_->init_mutex);
  if (state_->initialized.load(std::memory_order_relaxed)) return Status::success;
  if (state_->devices.empty())
    return refuse(thread_state(), Status::no_device, "the machine has no emulated device");
  const auto status = init_devices();
  if (status == Status::success) state_->initialized.store(true, std::memory_order_release);
  return status;
}

Status EmulatedDriver::driver_get_version(int* version) {
  if (version == nullptr) return Status::invalid_value;
  *version = kDriverVersion;
  return Status::success;
}

DeviceState* EmulatedDriver::device(DeviceId id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= state_->devices.size()) return nullptr;
  return &state_->devices[static_cast<std::size_t>(id)];
}

}  // namespace cenote::cuda::emulator
