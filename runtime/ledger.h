// Ledger: every operation in flight, so that a person can ask which rank holds the others up. A fixed table
// of slots; begin, stage and end touch one slot with atomic stores: no lock, no allocation, no system call
// (the clock is read without one). snapshot() may run on any thread meanwhile and never stops the writers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/deadline.h"

namespace cenote {

/// A string literal, and nothing else: the ledger keeps only the pointer.
class LiteralText {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a literal is meant to become one
  consteval LiteralText(const char* text) : text_(text) {}
  [[nodiscard]] const char* get() const { return text_; }

 private:
  const char* text_;
};

inline constexpr std::uint32_t nobody = ~0U;

/// One operation, as snapshot() saw it.
struct LedgerRow {
  std::uint64_t group;    ///< which communicator or lease; numbers are the caller's
  std::uint32_t rank;     ///< of this process in it
  std::string operation;  ///< "allreduce"
  std::uint64_t sequence;
  std::uint64_t bytes;
  std::string stage;        ///< "round 2: receive"
  std::uint32_t waits_for;  ///< a rank, or nobody
  Clock::time_point began;
  Clock::time_point in_stage_since;
};

class Ledger {
 public:
  /// A running operation's place; copied freely, used by one thread at a time, worthless after end().
  struct Ticket {
    std::uint32_t slot = nobody;  ///< nobody: the table was full, the operation is not shown
  };

  explicit Ledger(std::uint32_t slots = 1024);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  [[nodiscard]] Ticket begin(std::uint64_t group, std::uint32_t rank, LiteralText operation,
                             std::uint64_t sequence, std::uint64_t bytes, LiteralText stage,
                             std::uint32_t waits_for = nobody);
  void stage(Ticket ticket, LiteralText stage, std::uint32_t waits_for = nobody);
  void end(Ticket ticket);

  /// The operations in flight, oldest first. One that changes while it is read is read again.
  [[nodiscard]] std::vector<LedgerRow> snapshot() const;

 private:
  struct Slot;
  std::unique_ptr<Slot[]> slots_;
  std::uint32_t count_;
  std::atomic<std::uint32_t> next_{0};  ///< where the search for a free slot starts
};

/// A table for people; ages are counted back from `now`.
std::string ledger_text(std::span<const LedgerRow> rows, Clock::time_point now);

}  // namespace cenote
