// FaultPlan: what the fault transport does to its traffic, as a pure function of a seed. Each decision is
// drawn from the seed, who decides, and the number of the operation that it is about: never from a clock or
// from who came first. The same seed decides the same.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace cenote::transport {

/// The first nine are habits: what a layer below may do at any time, and nobody may notice. Each has a bit in
/// FaultPlan::habits. The others are blows: one of them falls once.
enum class Fault : std::uint8_t {
  delay,
  reorder,
  split,
  duplicate,
  late_completion,
  late_signal,
  late_message,
  refuse,
  stall,
  lose,
  corrupt,
  kill,
  freeze,
};
inline constexpr std::size_t faults = 13;
inline constexpr std::size_t habits = 9;

struct FaultKind {
  std::string_view name;
  std::string_view what;     ///< what is done
  std::string_view promise;  ///< what the contract says of it
};
const FaultKind& kind_of(Fault fault);

/// What no layer below may do. Never drawn: with them tests show that they would see it.
enum class Sabotage : std::uint8_t {
  none,
  damage,        ///< a put's bytes arrive changed, and are signalled
  early_signal,  ///< a put's signal comes before its bytes
  vanish,        ///< an operation is said to be done and never was
  repeat,        ///< a message or a signal comes twice
};

struct FaultPlan {
  struct Blow {
    Fault fault = Fault::lose;
    std::uint32_t victim = 0;
    std::uint64_t at = 0;  ///< the victim's operation, counted over all its endpoints from 0
  };

  std::uint64_t seed = 0;
  std::uint32_t member = 0;  ///< whose transport it is
  std::uint32_t habits = 0;
  std::optional<Blow> blow{};
  Sabotage sabotage = Sabotage::none;
  std::uint32_t saboteur = 0;
  std::uint64_t sabotage_at = 0;  ///< its operation that has something to spoil, from 0

  /// The plan of all members: each habit in every other seed, a blow in every third, which falls on one of
  /// the first `operations` of its victim.
  static FaultPlan draw(std::uint64_t seed, std::uint32_t members, std::uint64_t operations);
  /// The same without a blow: everything must come out right.
  static FaultPlan draw_habits(std::uint64_t seed);
  [[nodiscard]] FaultPlan of(std::uint32_t which) const {
    FaultPlan mine = *this;
    mine.member = which;
    return mine;
  }

  [[nodiscard]] bool has(Fault habit) const { return (habits >> static_cast<unsigned>(habit) & 1U) != 0; }
  [[nodiscard]] bool falls_here() const { return blow && blow->victim == member; }
  /// A number for decision `what` about the n-th operation of `stream`.
  [[nodiscard]] std::uint64_t number(Fault what, std::uint64_t stream, std::uint64_t n) const;
};

/// How often each was done. Of one transport; not thread-safe.
struct FaultTally {
  std::uint64_t of[faults] = {};
  FaultTally& operator+=(const FaultTally& other) {
    for (std::size_t i = 0; i < faults; ++i) of[i] += other.of[i];
    return *this;
  }
};

}  // namespace cenote::transport
