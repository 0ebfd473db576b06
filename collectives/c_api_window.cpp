// The C interface of windows: puts, gets and signals.
#include <fmt/format.h>

#include <cstdint>

#include "collectives/c_api.h"
#include "collectives/window.h"
#include "collectives/wire.h"

using cenote::Result;
using cenote::c_api::bad;
using cenote::c_api::deadline_of;
using cenote::c_api::guarded;
using cenote::c_api::in_its_process;
using cenote::c_api::known_part;
using cenote::c_api::started;
using cenote::collectives::Communicator;
using cenote::collectives::Request;

static_assert(CENOTE_SIGNALS == cenote::collectives::wire::user_signals);
static_assert(CENOTE_NO_SIGNAL == cenote::transport::no_signal);

struct cenote_window {
  cenote_comm* comm;
  std::unique_ptr<cenote::collectives::Window> window;
};

namespace {

/// The caller's side of a put or a get lies where the CPU reads it.
Result<void> on_the_host(const cenote_window& window, const char* stage, const void* local,
                         std::size_t bytes) {
  if (local == nullptr || bytes == 0) return {};
  CENOTE_ASSIGN(const auto memory, window.comm->devices->describe(local, bytes));
  if (memory.kind == cenote::MemoryKind::host) return {};
  return cenote::fail(
      cenote::Error{cenote::ErrorCode::not_supported, stage, "the buffer is memory of " + memory.home}.fix(
          "copy it to host memory first"));
}

cenote_status no_window(const char* stage) {
  return guarded([&]() -> Result<void> { return bad(stage, "the window is NULL"); });
}

}  // namespace

extern "C" {

cenote_status cenote_window_create(cenote_comm* comm, const cenote_window_options* options,
                                   cenote_window** window) {
  return guarded([&]() -> Result<void> {
    constexpr const char* stage = "create a window";
    if (comm == nullptr || options == nullptr || window == nullptr)
      return bad(stage, "the communicator, the options or the place to put it is NULL");
    *window = nullptr;
    CENOTE_TRY(in_its_process(*comm, stage));
    CENOTE_ASSIGN(const auto known, known_part(options, stage));
    cenote::collectives::WindowOptions wanted;
    wanted.memory.size = known.bytes;
    if (known.memory != nullptr && known.bytes > 0) {
      if (auto there = comm->devices->describe(known.memory, known.bytes)) {
        wanted.memory = std::move(*there);
      } else {
        wanted.refusal = std::move(there).error();  // the others wait inside the collective: they are told
      }
    }
    if (known.timeout_ms != 0) wanted.timeout = std::chrono::milliseconds(known.timeout_ms);
    auto made = std::make_unique<cenote_window>();
    made->comm = comm;
    CENOTE_ASSIGN(made->window, comm->communicator->create_window(wanted));
    *window = made.release();
    return {};
  });
}

void cenote_window_destroy(cenote_window* window) {
  if (window != nullptr && !window->comm->mark->forked()) delete window;
}

void* cenote_window_memory(const cenote_window* window) {
  if (window == nullptr) return nullptr;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a memory description carries its address as a number
  return reinterpret_cast<void*>(window->window->memory().address);
}

size_t cenote_window_bytes(const cenote_window* window, uint32_t rank) {
  return window != nullptr ? window->window->bytes(rank) : 0;
}

cenote_status cenote_put(cenote_window* window, uint32_t rank, uint64_t offset, const void* src, size_t bytes,
                         uint32_t signal, cenote_request* request) {
  if (window == nullptr) return no_window("put");
  return started("put", window->comm, request, [&](Communicator&) -> Result<Request> {
    CENOTE_TRY(on_the_host(*window, "put", src, bytes));
    const std::span from(static_cast<const std::byte*>(src), bytes);
    return window->window->put(rank, offset, from, signal);
  });
}

cenote_status cenote_get(cenote_window* window, uint32_t rank, uint64_t offset, void* dst, size_t bytes,
                         cenote_request* request) {
  if (window == nullptr) return no_window("get");
  return started("get", window->comm, request, [&](Communicator&) -> Result<Request> {
    CENOTE_TRY(on_the_host(*window, "get", dst, bytes));
    return window->window->get(rank, offset, std::span(static_cast<std::byte*>(dst), bytes));
  });
}

cenote_status cenote_signal(cenote_comm* comm, uint32_t rank, uint32_t signal, cenote_request* request) {
  return started("signal", comm, request, [&](Communicator& c) { return c.signal(rank, signal); });
}

cenote_status cenote_signal_count(cenote_comm* comm, uint32_t rank, uint32_t signal, uint64_t* count) {
  return guarded([&]() -> Result<void> {
    if (comm == nullptr || count == nullptr)
      return bad("count signals", "the communicator or the place to put it is NULL");
    *count = 0;
    CENOTE_TRY(in_its_process(*comm, "count signals"));
    auto counted = comm->communicator->signal_count(rank, signal);
    *count = counted ? *counted : comm->communicator->signals_arrived(rank, signal);
    return counted.map([](auto) {});
  });
}

cenote_status cenote_signal_wait(cenote_comm* comm, uint32_t rank, uint32_t signal, uint64_t count,
                                 uint32_t timeout_ms) {
  return guarded([&]() -> Result<void> {
    if (comm == nullptr) return bad("wait for a signal", "the communicator is NULL");
    CENOTE_TRY(in_its_process(*comm, "wait for a signal"));
    return comm->communicator->wait_signal(rank, signal, count, deadline_of(timeout_ms));
  });
}

cenote_status cenote_progress(cenote_comm* comm) {
  return guarded([&]() -> Result<void> {
    if (comm == nullptr) return bad("progress", "the communicator is NULL");
    CENOTE_TRY(in_its_process(*comm, "progress"));
    return comm->communicator->progress();
  });
}

}  // extern "C"
