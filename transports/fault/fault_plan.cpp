#include "transports/fault/fault_plan.h"

#include <array>

namespace cenote::transport {
namespace {

constexpr std::string_view unnoticed = "the right result";
constexpr std::string_view named = "the right result, or an error that names peer, stage and cause";

constexpr std::array<FaultKind, faults> kinds{{
    {"delay", "an operation leaves some steps of progress later", unnoticed},
    {"reorder", "operations that nothing orders overtake each other", unnoticed},
    {"split", "a put or a get goes in pieces", unnoticed},
    {"duplicate", "the bytes of a put or a get move twice before they count, as after a replay", unnoticed},
    {"late completion", "completions are told late, and in another order", unnoticed},
    {"late signal", "a signal that has come is seen some looks later", unnoticed},
    {"late message", "a message that has come is handed out some looks later", unnoticed},
    {"full queue", "an operation is refused because earlier ones are under way", unnoticed},
    {"stall", "progress does nothing for a while", unnoticed},
    {"lost", "an operation never arrives, and its sender is told in the end, as by a card that gives up",
     named},
    {"damaged", "wrong bytes arrive, unsignalled, and the sender is told, as by a checksum", named},
    {"peer killed", "a member's transport goes with all its connections", named},
    {"peer frozen", "a member sends and takes nothing any more, and does not say so", named},
}};

/// The finaliser of splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
constexpr std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

}  // namespace

const FaultKind& kind_of(Fault fault) { return kinds.at(static_cast<std::size_t>(fault)); }

FaultPlan FaultPlan::draw_habits(std::uint64_t seed) {
  FaultPlan plan;
  plan.seed = seed;
  plan.habits = static_cast<std::uint32_t>(mix(seed ^ 0x68616269ULL)) & ((1U << transport::habits) - 1);
  return plan;
}

FaultPlan FaultPlan::draw(std::uint64_t seed, std::uint32_t members, std::uint64_t operations) {
  FaultPlan plan = draw_habits(seed);
  const std::uint64_t bits = mix(seed ^ 0x626c6f77ULL);
  if (bits % 3 != 0) return plan;
  Blow blow;
  blow.fault = static_cast<Fault>(transport::habits + (bits >> 8) % (faults - transport::habits));
  blow.victim = static_cast<std::uint32_t>((bits >> 16) % members);
  blow.at = (bits >> 32) % operations;
  plan.blow = blow;
  return plan;
}

std::uint64_t FaultPlan::number(Fault what, std::uint64_t stream, std::uint64_t n) const {
  return mix(
      mix(mix(seed ^ static_cast<std::uint64_t>(member) << 40 ^ static_cast<std::uint64_t>(what)) ^ stream) ^
      n);
}

}  // namespace cenote::transport
