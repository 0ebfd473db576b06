// The inside of run(): one Machine executes blocks one after another on one host thread. The threads of a
// block are cut into groups of up to 256 lanes; each instruction is executed for all lanes of a group that
// stand at it. Lanes that stand at different instructions are in different fragments of the group: the one
// with the lowest address runs until it meets another, which brings the two together again after branches and
// loops; a fragment that runs for long makes way, so that lanes may wait for each other.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuda/emulator/launch.h"
#include "cuda/emulator/run_lanes.h"
#include "cuda/ptx/code.h"

namespace cenote::cuda::emulator {

inline constexpr unsigned group_lanes = 256;
inline constexpr unsigned warp_lanes = 32;
inline constexpr unsigned barriers_per_block = 16;
/// Instructions of a group before another fragment has a turn and the cancel flag is looked at.
inline constexpr unsigned slice = 1u << 14;

// Generic addresses of what is no device memory. Each window is 4 GiB.
inline constexpr std::uint64_t shared_window = generic_windows;
inline constexpr std::uint64_t local_window = generic_windows + (std::uint64_t{1} << 32);
inline constexpr std::uint64_t param_window = generic_windows + (std::uint64_t{2} << 32);
inline constexpr std::uint64_t window_bytes = std::uint64_t{1} << 32;

/// Memory for vectors: 64-byte aligned, zeroed by the kernel when it is first touched.
struct FreeAligned {
  void operator()(std::byte* p) const;
};
using AlignedBytes = std::unique_ptr<std::byte[], FreeAligned>;
AlignedBytes allocate_aligned(std::size_t bytes);

enum class FragmentState : std::uint8_t { ready, at_block_barrier, at_warp_barrier };

struct Fragment {
  alignas(64) std::uint8_t mask[group_lanes];
  std::uint32_t pc = 0;
  std::uint32_t active = 0;  ///< lanes whose mask is 1
  std::uint32_t low = 0;     ///< the active lanes lie in [low, high), multiples of 32
  std::uint32_t high = 0;
  FragmentState state = FragmentState::ready;
  std::uint32_t barrier = 0;     ///< which one it waits at
  std::uint32_t waiting_at = 0;  ///< the instruction of it
  std::uint64_t last_run = 0;
  std::vector<std::uint32_t> calls;  ///< where to return to
};

struct Group {
  unsigned first = 0;    ///< linear thread index of lane 0
  unsigned threads = 0;  ///< lanes that are threads
  unsigned width = 0;    ///< threads rounded up to warps: the stride of the registers
  unsigned live = 0;     ///< threads that have not exited
  std::uint8_t live_mask[group_lanes] = {};
  AlignedBytes registers, constants, local;
  std::vector<std::unique_ptr<Fragment>> fragments;
  std::vector<std::unique_ptr<Fragment>> spare;
};

struct Barrier {
  std::uint32_t arrived = 0;   ///< by bar.arrive
  std::uint32_t expected = 0;  ///< 0 = every thread that has not exited
};

/// What all machines of one launch share.
struct Shared {
  const Launch& launch;
  const ptx::Entry& entry;
  const ptx::Function& function;
  ptx::SharedLayout layout;
  std::uint64_t blocks = 0;
  unsigned block_threads = 0;
  std::atomic<std::uint64_t> next_block{0};
  std::atomic<bool> stop{false};
};

class Machine {
 public:
  explicit Machine(Shared& shared);
  /// Executes block number `index`; false when it ended by a fault or a cancel.
  bool run_block(std::uint64_t index);

  std::uint64_t lane_instructions = 0;
  Fault fault;
  bool cancelled = false;

 private:
  // run_block.cpp: fragments and barriers
  void start_block(std::uint64_t index);
  bool run_group(Group& g);
  Fragment* pick(Group& g, bool oldest);
  void absorb(Group& g, Fragment& into);
  Fragment& split(Group& g, Fragment& f, const std::uint8_t* leaving);
  void measure(Fragment& f);
  void drop(Group& g, Fragment& f);
  Fragment& add_fragment(Group& g);
  bool release_barriers();
  void finish_reduction(std::uint32_t id);
  bool release_warp_barriers(Group& g);
  bool deadlock();
  bool out_of_time();

  // run_step.cpp: instructions
  enum class Stop : std::uint8_t { reschedule, budget, failed };
  Stop run_fragment(Group& g, Fragment& f, std::uint32_t limit);
  Stop control(Group& g, Fragment& f, const ptx::Inst& i);
  void run_lane_op(Group& g, const Fragment& f, const ptx::Inst& i, const std::uint8_t* mask, bool whole);
  void run_special(Group& g, const Fragment& f, const ptx::Inst& i, const std::uint8_t* mask);
  bool block_barrier(Group& g, Fragment& f, const ptx::Inst& i);
  void exit_lanes(Group& g, Fragment& f);

  // run_memory.cpp
  bool load(Group& g, const Fragment& f, const ptx::Inst& i, const std::uint8_t* mask, unsigned active);
  bool store(Group& g, const Fragment& f, const ptx::Inst& i, const std::uint8_t* mask, unsigned active);
  bool atomic(Group& g, const Fragment& f, const ptx::Inst& i, const std::uint8_t* mask);
  void move_slot(Group& g, const Fragment& f, const ptx::Inst& i, const std::uint8_t* mask);
  void convert_address(Group& g, const Fragment& f, const ptx::Inst& i, const std::uint8_t* mask);
  std::byte* whole_access(const ptx::Inst& i, const AddressScan& scan, unsigned bytes, bool writes,
                          std::uint64_t& origin);
  std::byte* lane_access(Group& g, ptx::Space space, unsigned lane, std::uint64_t address, unsigned bytes,
                         bool writes, const char** why);
  const MemoryRange* range_of(std::uint64_t address);
  bool access_fault(Group& g, const ptx::Inst& i, unsigned lane, unsigned bytes, const char* what,
                    const char* why, bool misaligned);

  // run_warp.cpp
  /// Splits off the warps that wait for lanes; false when none is complete.
  bool gather_warps(Group& g, Fragment& f, const ptx::Inst& i);
  void shuffle(Group& g, const Fragment& f, const ptx::Inst& i);
  void vote(Group& g, const Fragment& f, const ptx::Inst& i);
  void match(Group& g, const Fragment& f, const ptx::Inst& i);

  // run_print.cpp
  bool print(Group& g, const Fragment& f, const ptx::Inst& i, const std::uint8_t* mask);
  bool read_string(Group& g, unsigned lane, std::uint64_t address, std::string& out);

  void fail(Group& g, unsigned lane, const ptx::Inst& i, Status status, const std::string& what);
  [[nodiscard]] Dim3 thread_at(unsigned linear) const;
  void fill_constants(Group& g, const ptx::Function& f);
  void fill_block_constants(Group& g);
  [[nodiscard]] std::uint64_t special_value(ptx::Special s, unsigned thread, std::uint64_t index) const;

  std::byte* at(Group& g, ptx::Slot s) {
    return s & ptx::constant_bit ? g.constants.get() + std::size_t{s & ~ptx::constant_bit} * g.width
                                 : g.registers.get() + std::size_t{s} * g.width;
  }
  template <class T>
  T* at(Group& g, ptx::Slot s) {
    return reinterpret_cast<T*>(at(g, s));
  }

  Shared& shared_;
  const ptx::Code& code_;
  const LaneTable& lanes_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<ptx::Constant> block_constants_;  ///< those that differ between blocks
  AlignedBytes shared_memory_;
  std::size_t shared_bytes_ = 0;
  Dim3 block_;
  Barrier barriers_[barriers_per_block];
  std::uint64_t clock_ = 0;
  std::uint64_t turns_ = 0;
  unsigned left_ = slice;  ///< of the slice
  const MemoryRange* last_range_ = nullptr;
  alignas(64) std::uint8_t guarded_[group_lanes] = {};
  alignas(64) std::byte scratch_[group_lanes * 8] = {};
  alignas(64) std::uint64_t addresses_[group_lanes] = {};
};

}  // namespace cenote::cuda::emulator
