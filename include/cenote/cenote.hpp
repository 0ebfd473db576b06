// C++20 over cenote.h: the same objects as move-only owners, spans instead of pointers and counts, and
// exceptions instead of status codes. Header-only; nothing but the C interface crosses the library's border,
// so a program may be built with any compiler and standard library.
//
//   cenote::Context context;
//   cenote::Communicator group(context, {.rank = rank, .ranks = ranks, .id = id});
//   std::vector<float> values(n);
//   group.allreduce(std::span(values), CENOTE_SUM).wait();
//
// Ownership: whoever holds an object ends it; an object outlives what was made from it (context,
// communicator, window and requests, in that order). No destructor waits for a peer. Threads: as cenote.h
// says. Errors: every function that can fail throws cenote::Error, which has the status and the text of
// cenote_last_error(); nothing else is thrown, but for std::bad_alloc. A moved-from object may be destroyed
// and assigned to; any other call on it is CENOTE_INVALID_ARGUMENT.
#ifndef CENOTE_CENOTE_HPP
#define CENOTE_CENOTE_HPP

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "cenote/cenote.h"

namespace cenote {

/// A call that failed. what() is the text that cenote_last_error() or cenote_pool_last_error() had.
class Error : public std::runtime_error {
 public:
  Error(cenote_status status, const std::string& text) : std::runtime_error(text), status_(status) {}
  [[nodiscard]] cenote_status status() const noexcept { return status_; }

 private:
  cenote_status status_;
};

namespace detail {

inline void check(cenote_status status) {
  if (status != CENOTE_SUCCESS) throw Error(status, cenote_last_error());
}

/// Milliseconds as the C interface takes them: zero is its default, and a shorter time than one is not zero.
inline std::uint32_t milliseconds(std::chrono::nanoseconds time) {
  if (time <= std::chrono::nanoseconds::zero()) return 0;
  const auto rounded = std::chrono::ceil<std::chrono::milliseconds>(time).count();
  return rounded < std::int64_t{0xffffffff} ? static_cast<std::uint32_t>(rounded) : 0xffffffffU;
}

inline const char* or_default(const std::optional<std::string>& text) {
  return text ? text->c_str() : nullptr;
}

template <auto destroy>
struct Destroy {
  template <class Handle>
  void operator()(Handle* handle) const noexcept {
    destroy(handle);
  }
};
template <class Handle, auto destroy>
using Owner = std::unique_ptr<Handle, Destroy<destroy>>;

template <class T>
constexpr std::optional<cenote_type> type_of() {
  if constexpr (std::is_same_v<T, float>) return CENOTE_FLOAT32;
  if constexpr (std::is_same_v<T, double>) return CENOTE_FLOAT64;
  if constexpr (std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) == 4) return CENOTE_INT32;
  if constexpr (std::is_integral_v<T> && std::is_signed_v<T> && sizeof(T) == 8) return CENOTE_INT64;
  return std::nullopt;
}

}  // namespace detail

/// What can be moved as bytes; Writable: and be moved to.
template <class T>
concept Bytewise = std::is_trivially_copyable_v<T>;
template <class T>
concept Writable = Bytewise<T> && !std::is_const_v<T>;

/// What collectives take as it is. Other element types: the C functions, with handle().
template <class T>
concept Element = detail::type_of<std::remove_const_t<T>>().has_value();

/// An operation in flight. Ready once; the buffers it was given belong to the library until then. Dropping it
/// leaves the operation in flight. It does not outlive its communicator.
class [[nodiscard]] Request {
 public:
  Request() = default;
  Request(cenote_comm* comm, cenote_request request) : comm_(comm), request_(request) {}
  Request(Request&& other) noexcept
      : comm_(other.comm_),
        request_(std::exchange(other.request_, {})),
        failed_(std::exchange(other.failed_, false)) {}
  Request& operator=(Request&& other) noexcept {
    comm_ = other.comm_;
    request_ = std::exchange(other.request_, {});
    failed_ = std::exchange(other.failed_, false);
    return *this;
  }
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request() = default;

  /// Makes progress, never blocks. True: complete. Throws how the operation failed, each time.
  [[nodiscard]] bool ready() {
    if (over()) return true;
    int done = 0;
    ended(cenote_test(comm_, &request_, &done));
    return done != 0;
  }
  /// Zero: until the operation's own deadline. A shorter `timeout` that passes breaks the communicator too.
  /// Throws how the operation failed, each time.
  void wait(std::chrono::nanoseconds timeout = {}) {
    if (!over()) ended(cenote_wait(comm_, &request_, detail::milliseconds(timeout)));
  }

 private:
  [[nodiscard]] bool over() const { return request_.sequence == 0 && !failed_; }
  void ended(cenote_status status) {
    failed_ = status != CENOTE_SUCCESS;
    detail::check(status);
  }

  cenote_comm* comm_ = nullptr;
  cenote_request request_{};
  bool failed_ = false;
};

/// cenote_context_options; an empty optional is the default there.
struct ContextOptions {
  std::optional<std::string> transports{};
  std::optional<std::string> host{};
  std::optional<std::string> cuda_library{};
};

/// What communicators share. Any thread.
class Context {
 public:
  explicit Context(const ContextOptions& options = {}) {
    cenote_context_options given{};
    given.size = sizeof given;
    given.transports = detail::or_default(options.transports);
    given.host = detail::or_default(options.host);
    given.cuda_library = detail::or_default(options.cuda_library);
    cenote_context* made = nullptr;
    detail::check(cenote_context_create(&given, &made));
    context_.reset(made);
  }
  /// Names a group that is about to form, for all its ranks. Keep the context until they have formed it.
  [[nodiscard]] std::string create_unique_id() {
    cenote_unique_id id{};
    detail::check(cenote_unique_id_create(context_.get(), &id));
    return id.text;
  }
  [[nodiscard]] cenote_context* handle() const noexcept { return context_.get(); }

 private:
  detail::Owner<cenote_context, cenote_context_destroy> context_;
};

/// cenote_comm_options; zero and an empty optional are the defaults there.
struct CommunicatorOptions {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
  std::string id{};
  std::optional<std::string> algorithm{};
  std::chrono::nanoseconds init_timeout{};
  std::chrono::nanoseconds operation_timeout{};
  bool check = true;
};

/// Who the launcher says that this process is. Throws as cenote_launch_find fails.
[[nodiscard]] inline cenote_launch find_launch(Context& context,
                                               const std::optional<std::string>& launcher = {}) {
  cenote_launch found{};
  found.size = sizeof found;
  detail::check(cenote_launch_find(context.handle(), detail::or_default(launcher), &found));
  return found;
}

/// cenote_launch_options; zero and an empty optional are the defaults there.
struct LaunchOptions {
  std::optional<std::string> launcher{};
  std::optional<std::string> group{};
  std::uint32_t port = 0;
  std::optional<std::string> algorithm{};
  std::chrono::nanoseconds init_timeout{};
  std::chrono::nanoseconds operation_timeout{};
  bool check = true;
};

class Window;

/// One rank's membership in a group. One thread at a time, but for abort().
class Communicator {
 public:
  /// Collective: returns when all ranks have called it.
  Communicator(Context& context, const CommunicatorOptions& options) {
    cenote_comm_options given{};
    given.size = sizeof given;
    given.rank = options.rank;
    given.ranks = options.ranks;
    if (options.id.size() >= sizeof given.id.text)
      throw Error(CENOTE_INVALID_ARGUMENT, "create a communicator failed: the id is too long");
    options.id.copy(given.id.text, options.id.size());
    given.algorithm = detail::or_default(options.algorithm);
    given.init_timeout_ms = detail::milliseconds(options.init_timeout);
    given.operation_timeout_ms = detail::milliseconds(options.operation_timeout);
    given.no_check = options.check ? 0 : 1;
    cenote_comm* made = nullptr;
    detail::check(cenote_comm_create(context.handle(), &given, &made));
    comm_.reset(made);
  }

  /// Collective over all processes that a launcher (mpirun, srun, torchrun) started.
  [[nodiscard]] static Communicator launched(Context& context, const LaunchOptions& options = {}) {
    cenote_launch_options given{};
    given.size = sizeof given;
    given.launcher = detail::or_default(options.launcher);
    given.group = detail::or_default(options.group);
    given.port = options.port;
    given.algorithm = detail::or_default(options.algorithm);
    given.init_timeout_ms = detail::milliseconds(options.init_timeout);
    given.operation_timeout_ms = detail::milliseconds(options.operation_timeout);
    given.no_check = options.check ? 0 : 1;
    cenote_comm* made = nullptr;
    detail::check(cenote_comm_create_launched(context.handle(), &given, &made));
    return Communicator(made);
  }

  [[nodiscard]] std::uint32_t rank() const noexcept { return cenote_comm_rank(handle()); }
  [[nodiscard]] std::uint32_t ranks() const noexcept { return cenote_comm_ranks(handle()); }

  /// recv[i] = op over all ranks of send[i]. Spans of one length, host or device memory.
  template <Element T>
  Request allreduce(std::span<const T> send, std::span<T> recv, cenote_op op) {
    same("allreduce", send.size(), recv.size());
    return begun([&](cenote_request* request) {
      return cenote_allreduce(handle(), send.data(), recv.data(), recv.size(), *detail::type_of<T>(), op,
                              request);
    });
  }
  /// In place.
  template <Element T>
  Request allreduce(std::span<T> values, cenote_op op) {
    return allreduce(std::span<const T>(values), values, op);
  }
  /// After what is in `stream` (a CUstream or cudaStream_t) now.
  template <Element T>
  Request allreduce(std::span<const T> send, std::span<T> recv, cenote_op op, void* stream) {
    same("allreduce", send.size(), recv.size());
    return begun([&](cenote_request* request) {
      return cenote_allreduce_stream(handle(), send.data(), recv.data(), recv.size(), *detail::type_of<T>(),
                                     op, stream, request);
    });
  }
  /// recv = send of rank 0, send of rank 1, ...
  template <Element T>
  Request allgather(std::span<const T> send, std::span<T> recv) {
    same("allgather", send.size() * ranks(), recv.size());
    return begun([&](cenote_request* request) {
      return cenote_allgather(handle(), send.data(), recv.data(), send.size(), *detail::type_of<T>(),
                              request);
    });
  }
  template <Element T>
  Request broadcast(std::span<T> values, std::uint32_t root) {
    return begun([&](cenote_request* request) {
      return cenote_broadcast(handle(), values.data(), values.size(), *detail::type_of<T>(), root, request);
    });
  }
  Request barrier() {
    return begun([&](cenote_request* request) { return cenote_barrier(handle(), request); });
  }

  /// Adds 1 to counter `signal` of `rank`, after all that this rank has put there.
  Request signal(std::uint32_t rank, std::uint32_t signal) {
    return begun([&](cenote_request* request) { return cenote_signal(handle(), rank, signal, request); });
  }
  /// How often `rank` has added to counter `signal` of this one.
  [[nodiscard]] std::uint64_t signal_count(std::uint32_t rank, std::uint32_t signal) {
    std::uint64_t count = 0;
    detail::check(cenote_signal_count(handle(), rank, signal, &count));
    return count;
  }
  /// Until that is `count` or more. Zero: the communicator's operation timeout.
  void wait_signal(std::uint32_t rank, std::uint32_t signal, std::uint64_t count,
                   std::chrono::nanoseconds timeout = {}) {
    detail::check(cenote_signal_wait(handle(), rank, signal, count, detail::milliseconds(timeout)));
  }
  /// Moves all that is in flight forward, never blocks.
  void progress() { detail::check(cenote_progress(handle())); }

  /// Ends everything in flight, here and at the others, who are told `reason`. From any thread.
  void abort(const std::string& reason) noexcept { cenote_comm_abort(handle(), reason.c_str()); }

  [[nodiscard]] cenote_comm* handle() const noexcept { return comm_.get(); }

 private:
  friend class Window;

  explicit Communicator(cenote_comm* made) : comm_(made) {}

  static void same(const char* operation, std::size_t wanted, std::size_t given) {
    if (wanted == given) return;
    throw Error(CENOTE_INVALID_ARGUMENT, std::string(operation) + " failed: recv has " +
                                             std::to_string(given) + " elements, " + std::to_string(wanted) +
                                             " are needed");
  }
  template <class Begin>
  Request begun(Begin begin) const {
    cenote_request request{};
    detail::check(begin(&request));
    return Request(handle(), request);
  }

  detail::Owner<cenote_comm, cenote_comm_destroy> comm_;
};

/// Memory of every rank that all ranks of a communicator may write and read. It ends before its communicator.
class Window {
 public:
  /// Collective. This rank's part: `bytes` that the library allocates, zeroed.
  Window(Communicator& group, std::size_t bytes, std::chrono::nanoseconds timeout = {})
      : Window(group, bytes, nullptr, timeout) {}
  /// This rank's part: memory of the caller, which outlives the window.
  Window(Communicator& group, std::span<std::byte> memory, std::chrono::nanoseconds timeout = {})
      : Window(group, memory.size(), memory.data(), timeout) {}

  /// This rank's part.
  [[nodiscard]] std::span<std::byte> memory() const noexcept {
    return {static_cast<std::byte*>(cenote_window_memory(handle())), cenote_window_bytes(handle(), rank_)};
  }
  /// The same as elements; bytes that are not a whole one are left out.
  template <Bytewise T>
  [[nodiscard]] std::span<T> as() const noexcept {
    return {static_cast<T*>(cenote_window_memory(handle())), memory().size() / sizeof(T)};
  }
  [[nodiscard]] std::size_t bytes(std::uint32_t rank) const noexcept {
    return cenote_window_bytes(handle(), rank);
  }

  /// Writes `src` to byte `offset` in the part of `rank`, then adds 1 to its counter `signal`.
  template <Bytewise T, std::size_t extent>
  Request put(std::uint32_t rank, std::uint64_t offset, std::span<T, extent> src,
              std::uint32_t signal = CENOTE_NO_SIGNAL) {
    cenote_request request{};
    detail::check(cenote_put(handle(), rank, offset, src.data(), src.size_bytes(), signal, &request));
    return Request(comm_, request);
  }
  /// Reads from byte `offset` in the part of `rank` into `dst`.
  template <Writable T, std::size_t extent>
  Request get(std::uint32_t rank, std::uint64_t offset, std::span<T, extent> dst) {
    cenote_request request{};
    detail::check(cenote_get(handle(), rank, offset, dst.data(), dst.size_bytes(), &request));
    return Request(comm_, request);
  }

  [[nodiscard]] cenote_window* handle() const noexcept { return window_.get(); }

 private:
  Window(Communicator& group, std::size_t bytes, void* memory, std::chrono::nanoseconds timeout)
      : comm_(group.handle()), rank_(group.rank()) {
    cenote_window_options given{};
    given.size = sizeof given;
    given.bytes = bytes;
    given.memory = memory;
    given.timeout_ms = detail::milliseconds(timeout);
    cenote_window* made = nullptr;
    detail::check(cenote_window_create(comm_, &given, &made));
    window_.reset(made);
  }

  cenote_comm* comm_;
  std::uint32_t rank_;
  detail::Owner<cenote_window, cenote_window_destroy> window_;
};

}  // namespace cenote

#endif
