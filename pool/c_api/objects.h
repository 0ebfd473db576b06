// What the handles of cenote/pool.h point at, and how their functions turn a Result into a status. Not API.
#pragma once

#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "cenote/pool.h"
#include "pool/dropin/helper_client.h"
#include "runtime/fork_mark.h"
#include "runtime/settings.h"

struct cenote_pool {
  cenote::Settings settings;
  std::unique_ptr<cenote::pool::dropin::HelperPool> helper;
};

struct cenote_lease {
  std::unique_ptr<cenote::pool::dropin::HelperLease> lease;
};

struct cenote_gpus;

struct cenote_module {
  cenote_gpus* gpus;
  std::uint32_t device;
  cenote::cuda::Module module;
};

struct cenote_kernel {
  cenote_module* module;
  cenote::cuda::Function function;
  std::size_t parameters;
};

struct cenote_gpus {
  cenote::ForkMark process;  ///< that opened it; a child leaves all below alone
  std::unique_ptr<cenote::pool::remote::RemoteDriver> driver;
  std::vector<cenote::cuda::Context> contexts;                             ///< by device
  std::mutex mutex;                                                        ///< guards what follows
  std::unique_ptr<cenote::pool::remote::RemoteCommunicator> communicator;  ///< made by the first collective
  std::vector<std::unique_ptr<cenote_module>> modules;
  std::vector<std::unique_ptr<cenote_kernel>> kernels;
};

namespace cenote::pool::c_api {

/// The enums agree by construction: CENOTE_SUCCESS, then ErrorCode in its order.
inline cenote_status status_of(ErrorCode code) {
  return static_cast<cenote_status>(static_cast<int>(code) + 1);
}
static_assert(static_cast<int>(ErrorCode::invalid_argument) + 1 == CENOTE_INVALID_ARGUMENT);
static_assert(static_cast<int>(ErrorCode::permission_denied) + 1 == CENOTE_PERMISSION_DENIED);
static_assert(static_cast<int>(ErrorCode::peer_failed) + 1 == CENOTE_PEER_FAILED);
static_assert(static_cast<int>(ErrorCode::internal) + 1 == CENOTE_INTERNAL);

/// errno's way: the text belongs to the thread whose call failed.
std::string& last_error();

/// Runs the body of one function; nothing gets out of it but a status.
template <class Body>
cenote_status guarded(const Body& body) noexcept {
  try {
    const Result<void> result = body();
    if (result) return CENOTE_SUCCESS;
    last_error() = result.error().message();
    return status_of(result.error().code);
  } catch (const std::bad_alloc&) {
    last_error() = "out of memory";  // fits the string without an allocation
    return CENOTE_RESOURCE_EXHAUSTED;
  } catch (const std::exception& error) {
    last_error() = error.what();
    return CENOTE_INTERNAL;
  }
}

inline tl::unexpected<Error> bad(std::string stage, std::string cause) {
  return fail(ErrorCode::invalid_argument, std::move(stage), std::move(cause));
}

/// As much of the caller's struct as it has, the rest zero.
template <class T>
Result<T> known_part(const T* given, const char* stage) {
  T known{};
  if (given == nullptr) return known;
  if (given->size < sizeof(std::size_t)) return bad(stage, "the struct's size is not set");
  std::memcpy(&known, given, std::min(given->size, sizeof known));
  return known;
}

inline std::string text(const char* given) { return given == nullptr ? std::string() : std::string(given); }

inline Deadline within(std::uint32_t timeout_ms, Clock::duration otherwise) {
  return Deadline::in(timeout_ms == 0 ? otherwise : std::chrono::milliseconds(timeout_ms));
}

}  // namespace cenote::pool::c_api
