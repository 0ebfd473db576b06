// Result<T> and Error: how everything below the C ABI reports failure. Nothing throws, nothing aborts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace cenote {

/// What kind of failure it was; what a program may branch on. The text is in Error.
enum class ErrorCode : std::uint8_t {
  invalid_argument,    ///< the caller asked for something undefined; retrying is useless
  not_supported,       ///< defined, but not by this device, transport or build
  not_found,           ///< no such lease, file, symbol, setting
  already_exists,      ///< port in use, second broker on one store
  permission_denied,   ///< bad signature, missing key, expired lease, older epoch
  resource_exhausted,  ///< no free GPU, out of memory, queue full
  deadline_exceeded,   ///< a wait ended at its deadline
  cancelled,           ///< a wait ended because its cancel flag was raised
  peer_failed,         ///< the other side died, was cut off or hung
  protocol_error,      ///< the other side sent bytes that make no sense
  system_error,        ///< a system call failed; `native` is errno
  driver_error,        ///< the GPU driver refused; `native` is its CUresult
  internal,            ///< a bug of ours
};

std::string_view to_string(ErrorCode code);

/// A failure. `stage` says what was being done, `device` and `peer` with whom (empty when it does not apply),
/// `cause` the exact cause (never the assumed one), `remedy` what a person can do about it (may be empty),
/// `native` the code of the layer below (errno, CUresult, gRPC code; 0 = none).
struct Error {
  ErrorCode code = ErrorCode::internal;
  std::string stage;
  std::string cause;
  std::string device{};
  std::string peer{};
  std::string remedy{};
  int native = 0;

  /// One line: "<stage> [on <device>] [with <peer>] failed: <cause>", and after a newline and two blanks the
  /// remedy, where there is one.
  [[nodiscard]] std::string message() const;

  Error& on(std::string where) & {
    device = std::move(where);
    return *this;
  }
  Error&& on(std::string where) && {
    device = std::move(where);
    return std::move(*this);
  }
  Error&& with(std::string whom) && {
    peer = std::move(whom);
    return std::move(*this);
  }
  Error&& fix(std::string what) && {
    remedy = std::move(what);
    return std::move(*this);
  }
};

template <class T>
using Result = tl::expected<T, Error>;

/// `return fail(ErrorCode::not_found, "open lease", "no lease 17");`
inline tl::unexpected<Error> fail(ErrorCode code, std::string stage, std::string cause) {
  return tl::unexpected<Error>(Error{code, std::move(stage), std::move(cause)});
}
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }

/// A failed system call: the cause is the system's own text for `error_number`.
Error system_error(std::string stage, int error_number);

}  // namespace cenote

#define CENOTE_CONCAT_INNER(a, b) a##b
#define CENOTE_CONCAT(a, b) CENOTE_CONCAT_INNER(a, b)

/// Returns the error of a Result<void> expression to the caller.
#define CENOTE_TRY(expression)                                                           \
  do {                                                                                   \
    auto cenote_try_result = (expression);                                               \
    if (!cenote_try_result) return ::cenote::fail(std::move(cenote_try_result).error()); \
  } while (false)

/// `CENOTE_ASSIGN(auto fd, open_socket());` binds the value, or returns the error to the caller.
/// NOLINTBEGIN(bugprone-macro-parentheses): a declaration
#define CENOTE_ASSIGN(declaration, expression) \
  CENOTE_ASSIGN_INNER(CENOTE_CONCAT(cenote_assign_, __LINE__), declaration, expression)
#define CENOTE_ASSIGN_INNER(name, declaration, expression)   \
  auto name = (expression);                                  \
  if (!name) return ::cenote::fail(std::move(name).error()); \
  declaration = std::move(*name)  // NOLINTEND(bugprone-macro-parentheses)
