// run(): executes one kernel launch on the CPU. It knows no streams, contexts or heaps: the emulated driver
// keeps those and calls it with a picture of the device's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cuda/driver.h"
#include "cuda/ptx/program.h"
#include "runtime/deadline.h"

namespace cenote::cuda::emulator {

/// Generic addresses at and above this one name shared, local and parameter memory, as on a real device.
/// Device memory has to lie below.
inline constexpr std::uint64_t generic_windows = std::uint64_t{1} << 48;
/// Most shared memory (static and dynamic together) and local memory of one thread that a launch may use.
inline constexpr std::size_t max_shared_bytes = std::size_t{228} << 10;
inline constexpr std::size_t max_local_bytes = std::size_t{512} << 10;

/// Device memory that the kernel may touch: `bytes` bytes at device address `address` lie at `host`.
struct MemoryRange {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::byte* host = nullptr;
  bool writable = true;
};

/// x, y, z.
struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  friend bool operator==(const Dim3&, const Dim3&) = default;
};

/// Everything pointed to outlives the call.
struct Launch {
  const ptx::Program* program = nullptr;
  std::size_t entry = 0;  ///< index into program->entries
  Dim3 grid;
  Dim3 block;
  std::size_t shared_bytes = 0;              ///< dynamic shared memory
  std::span<const std::byte> params;         ///< packed as Entry::params says; may be longer, not shorter
  std::span<const std::uint64_t> variables;  ///< device address of each program->variables
  std::span<const MemoryRange> memory;       ///< sorted by address, disjoint; the whole of what is accessible
  const CancelFlag* cancel = nullptr;        ///< ends the kernel soon after it is raised
  unsigned threads = 1;                      ///< host threads to spread the blocks over, at most
  std::function<void(std::string_view)>
      print{};  ///< what device printf writes; may be called from any of the threads
};

/// Why a kernel ended early. `text` is the whole story in one line.
struct Fault {
  Status status = Status::success;
  std::string kernel;
  Dim3 block{0, 0, 0};
  Dim3 thread{0, 0, 0};
  std::uint64_t address = 0;  ///< for memory faults
  unsigned bytes = 0;
  unsigned line = 0;  ///< of the PTX text
  std::string text;  ///< "kernel saxpy, block (3,0,0), thread (17,0,0): store of 4 bytes at 0x7f00: no memory
                     ///< there (PTX line 41)"
};

struct Outcome {
  Status status = Status::success;  ///< fault's, or launch_timeout when cancelled
  std::optional<Fault> fault;
  std::uint64_t lane_instructions = 0;  ///< instructions executed, summed over the threads that took part
};

/// Runs the launch to its end on the calling thread (and up to `threads` - 1 more that end before it
/// returns). Never throws, and never touches memory outside `memory`, whatever the program does.
/// invalid_value, launch_out_of_resources: the launch itself is impossible (dimensions, shared memory, short
/// `params`); illegal_address, misaligned_address, illegal_instruction, launch_failed (trap, barrier
/// deadlock, stack overflow), assert_failed: the kernel's own fault.
Outcome run(const Launch& launch);

}  // namespace cenote::cuda::emulator
