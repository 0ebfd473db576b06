// Contexts: made, destroyed, current to a thread; peers.
#include <utility>

#include "cuda/emulator/driver_state.h"
#include "cuda/emulator/ipc.h"

namespace cenote::cuda::emulator {

Status EmulatedDriver::make_context(DeviceState& card, DeviceId id, bool primary, ContextEntry& made) {
  auto& thread = thread_state();
  if (!card.heap->charge(card.context_bytes)) {
    return refuse(thread, Status::out_of_memory,
                  "a context takes " + std::to_string(card.context_bytes) + " bytes of the card, " +
                      std::to_string(card.heap->available()) + " are free");
  }
  ContextOptions options;
  options.id = ++state_->last_context;
  options.device = id;
  options.primary = primary;
  options.charged = card.context_bytes;
  options.adversarial = state_->options.adversarial_streams;
  options.seed = state_->options.seed * 131 + options.id;
  made.state = std::make_shared<ContextState>(options);
  made.handle = state_->contexts.put(made.state);
  state_->live[options.id] = made;
  return Status::success;
}

// The caller has made sure that it is the only one to do so for this context.
void EmulatedDriver::destroy_context(const ContextEntry& entry) {
  const auto& context = *entry.state;
  const auto id = context.id();
  state_->contexts.take(entry.handle);
  entry.state->shutdown();
  state_->streams.take_if([&](const StreamState& stream) { return stream.context == entry.state; });
  state_->events.take_if([&](const EventState& event) { return event.context() == id; });
  state_->functions.take_if([&](const FunctionState& function) { return function.module->context == id; });
  state_->modules.take_if([&](const ModuleState& module) { return module.context == id; });
  for (const auto& region : state_->space.remove_all([&](const Region& r) { return r.context == id; })) {
    release_region(region);
  }
  device(context.device())->heap->discharge(context.charged());
  std::lock_guard lock(state_->contexts_mutex);
  state_->live.erase(id);
}

std::shared_ptr<ContextState> EmulatedDriver::context_by_id(std::uint64_t id) const {
  std::lock_guard lock(state_->contexts_mutex);
  auto it = state_->live.find(id);
  return it != state_->live.end() ? it->second.state : nullptr;
}

void EmulatedDriver::drop_views() {
  std::lock_guard lock(state_->contexts_mutex);
  for (const auto& [id, entry] : state_->live) entry.state->drop_view();
}

Status EmulatedDriver::primary_ctx_retain(Context* context, DeviceId id) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  if (context == nullptr) return Status::invalid_value;
  auto* card = device(id);
  if (card == nullptr) return Status::invalid_device;
  std::lock_guard lock(state_->contexts_mutex);
  if (card->primary_users == 0) {
    ContextEntry made;
    if (const auto status = make_context(*card, id, true, made); status != Status::success) return status;
    card->primary = made.state;
    card->primary_handle = made.handle;
  }
  ++card->primary_users;
  *context = card->primary_handle;
  return Status::success;
}

Status EmulatedDriver::primary_ctx_release(DeviceId id) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  auto* card = device(id);
  if (card == nullptr) return Status::invalid_device;
  ContextEntry last;
  {
    std::lock_guard lock(state_->contexts_mutex);
    if (card->primary_users == 0) return refuse(*in.thread, Status::invalid_context, "it was not retained");
    if (--card->primary_users > 0) return Status::success;
    last = {std::exchange(card->primary, nullptr), std::exchange(card->primary_handle, nullptr)};
  }
  destroy_context(last);
  return Status::success;
}

Status EmulatedDriver::ctx_create(Context* context, unsigned flags, DeviceId id) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  constexpr unsigned kScheduling = 0x7, kMapHost = 0x8, kLocalMemory = 0x10, kCoredumps = 0x60,
                     kSyncMemops = 0x80;
  if (context == nullptr ||
      (flags & ~(kScheduling | kMapHost | kLocalMemory | kCoredumps | kSyncMemops)) != 0) {
    return Status::invalid_value;
  }
  auto* card = device(id);
  if (card == nullptr) return Status::invalid_device;
  ContextEntry made;
  {
    std::lock_guard lock(state_->contexts_mutex);
    if (const auto status = make_context(*card, id, false, made); status != Status::success) return status;
  }
  in.thread->contexts.push_back(made);
  *context = made.handle;
  return Status::success;
}

Status EmulatedDriver::ctx_destroy(Context context) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  auto state = state_->contexts.get(context);
  if (state == nullptr || state->primary()) {
    return refuse(*in.thread, Status::invalid_context,
                  state == nullptr ? "no such context" : "a primary context is released, not destroyed");
  }
  // Of several threads that destroy it, one gets the object.
  if (state_->contexts.take(context) == nullptr) return Status::invalid_context;
  destroy_context({state, context});
  auto& stack = in.thread->contexts;
  if (!stack.empty() && stack.back().state == state) stack.pop_back();
  return Status::success;
}

Status EmulatedDriver::ctx_set_current(Context context) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  auto& stack = in.thread->contexts;
  if (context == nullptr) {
    if (!stack.empty()) stack.pop_back();
    return Status::success;
  }
  auto state = state_->contexts.get(context);
  if (state == nullptr) return refuse(*in.thread, Status::invalid_context, "no such context");
  if (stack.empty()) stack.emplace_back();
  stack.back() = {std::move(state), context};
  return Status::success;
}

Status EmulatedDriver::ctx_get_current(Context* context) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  if (context == nullptr) return Status::invalid_value;
  *context = in.thread->contexts.empty() ? nullptr : in.thread->contexts.back().handle;
  return Status::success;
}

Status EmulatedDriver::ctx_push_current(Context context) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  auto state = state_->contexts.get(context);
  if (state == nullptr) return refuse(*in.thread, Status::invalid_context, "no such context");
  in.thread->contexts.push_back({std::move(state), context});
  return Status::success;
}

Status EmulatedDriver::ctx_pop_current(Context* context) {
  auto in = enter();
  if (in.status != Status::success) return in.status;
  auto& stack = in.thread->contexts;
  if (stack.empty()) return refuse(*in.thread, Status::invalid_context, "this thread has no current context");
  if (context != nullptr) *context = stack.back().handle;
  stack.pop_back();
  return Status::success;
}

Status EmulatedDriver::ctx_get_device(DeviceId* id) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (id == nullptr) return Status::invalid_value;
  *id = in.context->device();
  return Status::success;
}

Status EmulatedDriver::ctx_synchronize() {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  in.context->synchronize();
  state_->rdma.publish();
  return fault_of(in);
}

Status EmulatedDriver::ctx_enable_peer_access(Context peer, unsigned flags) {
  auto in = enter_context();
  if (in.status != Status::success) return in.status;
  if (flags != 0) return Status::invalid_value;
  auto other = state_->contexts.get(peer);
  if (other == nullptr) return refuse(*in.thread, Status::invalid_context, "no such context");
  const auto* card = device(in.context->device());
  if (state_->refusals.peer_access || (card->peers >> other->device() & 1) == 0) {
    return refuse(*in.thread, Status::peer_access_unsupported,
                  "no link from device " + std::to_string(in.context->device()) + " to device " +
                      std::to_string(other->device()));
  }
  if (!in.context->enable_peer(other->device())) return Status::peer_access_already_enabled;
  return Status::success;
}

}  // namespace cenote::cuda::emulator
