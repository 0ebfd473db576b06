// Ledger: every operation in flight of one rank, where another process can read it while this one is stuck,
// stopped or busy: in a memfd, which `cenote who-is-stuck` finds in /proc/PID/fd. It leaves nothing behind,
// however the process ends; who may read it is who may look into the process.
//
// One thread at a time, its group's. begin, stage and end store a few words: no lock, no allocation, no
// system call.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/deadline.h"
#include "runtime/ledger_page.h"
#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace cenote {

/// A literal of at most 16 bytes, as the words that the ledger keeps.
class LedgerName {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): a literal is meant to become one
  consteval LedgerName(const char* text) {
    for (std::uint32_t i = 0; text[i] != 0; ++i) {
      if (i == sizeof words_) throw "longer than 16 bytes";
      words_[i / 8] |= std::uint64_t{static_cast<unsigned char>(text[i])} << (8 * (i % 8));
    }
  }
  [[nodiscard]] std::uint64_t word(std::uint32_t i) const { return words_[i]; }

 private:
  std::uint64_t words_[ledger_page::name_words]{};
};

inline constexpr std::uint32_t nobody = ~0U;

class Ledger {
 public:
  struct Member {
    std::uint64_t group = 0;  ///< the same number at all of its ranks
    std::uint32_t rank = 0, size = 1;
  };
  struct Operation {
    LedgerName name;
    std::uint64_t sequence = 0;
    std::uint64_t bytes = 0;
    std::uint64_t count = 0, detail = 0;  ///< the caller's own, for who reads
    Clock::time_point began{};
  };
  /// Whom a stage waits for: a rank of the group, and the one at the end of the chain.
  struct Wait {
    std::uint32_t on = nobody;
    std::uint32_t at_the_end = nobody;
  };
  /// A running operation's place; worthless after end().
  struct Ticket {
    static constexpr std::uint32_t none = ~0U;        ///< nothing has begun
    static constexpr std::uint32_t no_row = ~0U - 1;  ///< none was free: it is counted, not shown
    std::uint32_t row = none;
  };

  /// Errors: system_error (no memfd, no descriptor left).
  static Result<std::unique_ptr<Ledger>> create(const Member& member);
  ~Ledger();
  Ledger(const Ledger&) = delete;
  Ledger& operator=(const Ledger&) = delete;

  /// Its stage is "started".
  [[nodiscard]] Ticket begin(const Operation& operation);
  /// Collective number `sequence` begins.
  void begun(std::uint64_t sequence, Clock::time_point now);
  void stage(Ticket ticket, LedgerName stage, Clock::time_point since, Wait wait);
  void end(Ticket ticket);
  /// The program lets its operations move, and none does.
  void seen(Clock::time_point now);
  /// The group's first failure, and whose fault it is. Once.
  void fail(std::uint32_t culprit, std::string_view text, Clock::time_point now);

  /// Of its memory, for ledger_reader.h.
  [[nodiscard]] int descriptor() const { return memory_.get(); }

 private:
  Ledger(UniqueFd memory, ledger_page::Written* page);

  UniqueFd memory_;
  ledger_page::Written* page_;
  std::vector<std::uint32_t> free_;  ///< rows; the one used last is used next
};

}  // namespace cenote
