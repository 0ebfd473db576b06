// Where the C interfaces end and Results begin. Nothing gets out of a function but a status: what the
// standard library may throw (no memory) becomes one too. Each library has a copy of its own: it is compiled
// into both.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <utility>

#include "cenote/cenote.h"
#include "runtime/deadline.h"
#include "runtime/result.h"

namespace cenote::c_boundary {

/// The enums agree by construction: CENOTE_SUCCESS, then ErrorCode in its order.
inline cenote_status status_of(ErrorCode code) {
  return static_cast<cenote_status>(static_cast<int>(code) + 1);
}
static_assert(static_cast<int>(ErrorCode::invalid_argument) + 1 == CENOTE_INVALID_ARGUMENT);
static_assert(static_cast<int>(ErrorCode::permission_denied) + 1 == CENOTE_PERMISSION_DENIED);
static_assert(static_cast<int>(ErrorCode::peer_failed) + 1 == CENOTE_PEER_FAILED);
static_assert(static_cast<int>(ErrorCode::internal) + 1 == CENOTE_INTERNAL);

/// errno's way: the text belongs to the thread whose call failed.
inline std::string& last_error() {
  thread_local std::string text;
  return text;
}

/// Runs the body of one function; its Result becomes the status, its error the thread's text.
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

}  // namespace cenote::c_boundary
