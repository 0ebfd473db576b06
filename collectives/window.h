// Window: memory of every rank of a communicator that every other rank may write and read, one-sided.
//
// What a rank asks for is checked against what the others said of their parts, before anything moves; the
// target's transport checks it again. Threads and failures as the communicator's: they are one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "collectives/communicator.h"
#include "runtime/memory.h"
#include "runtime/result.h"

namespace cenote::collectives {

class Executor;

struct WindowOptions {
  MemoryDescription memory{};  ///< this rank's part; one without address is allocated: zeroed, page aligned
  Clock::duration timeout = std::chrono::seconds(30);
  std::optional<Error> refusal{};  ///< why this rank cannot take part: all ranks are told
};

class Window {
 public:
  virtual ~Window() = default;
  [[nodiscard]] virtual const MemoryDescription& memory() const = 0;
  /// Of the part of `rank`; 0 for a rank that there is not.
  [[nodiscard]] virtual std::size_t bytes(std::uint32_t rank) const = 0;
  /// `signal`: a counter of the target to add 1 to, below wire::user_signals, or transport::no_signal.
  virtual Result<Request> put(std::uint32_t rank, std::uint64_t offset, std::span<const std::byte> src,
                              std::uint32_t signal) = 0;
  virtual Result<Request> get(std::uint32_t rank, std::uint64_t offset, std::span<std::byte> dst) = 0;
};

/// Collective. A rank whose part cannot be made fails all of them, named, and breaks nothing. Both outlive
/// the window.
Result<std::unique_ptr<Window>> make_window(Communicator& communicator, Executor& executor,
                                            const WindowOptions& options);

}  // namespace cenote::collectives
