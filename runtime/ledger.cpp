#include "runtime/ledger.h"

#include <fmt/format.h>

#include <algorithm>

namespace cenote {

/// A sequence lock of atomics. The version is odd while the owner writes. Fields are stored with release and
/// loaded with acquire: a reader that saw a new field also sees the odd version before it.
struct alignas(64) Ledger::Slot {
  std::atomic<bool> taken{false};
  std::atomic<std::uint32_t> version{0};
  std::atomic<std::uint32_t> rank{0};
  std::atomic<std::uint32_t> waits_for{nobody};
  std::atomic<std::uint64_t> group{0};
  std::atomic<std::uint64_t> sequence{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<const char*> operation{nullptr};  ///< nullptr: free
  std::atomic<const char*> stage{nullptr};
  std::atomic<std::int64_t> began{0};
  std::atomic<std::int64_t> in_stage_since{0};

  void open() { version.fetch_add(1, std::memory_order_acq_rel); }
  void close() { version.fetch_add(1, std::memory_order_release); }
};

namespace {

template <class T>
void set(std::atomic<T>& field, T value) {
  field.store(value, std::memory_order_release);
}
template <class T>
T get(const std::atomic<T>& field) {
  return field.load(std::memory_order_acquire);
}
std::int64_t now_ticks() { return Clock::now().time_since_epoch().count(); }
Clock::time_point time_of(std::int64_t ticks) { return Clock::time_point(Clock::duration(ticks)); }

}  // namespace

Ledger::Ledger(std::uint32_t slots)
    : slots_(std::make_unique<Slot[]>(std::max(slots, 1U))), count_(std::max(slots, 1U)) {}
Ledger::~Ledger() = default;

Ledger::Ticket Ledger::begin(std::uint64_t group, std::uint32_t rank, LiteralText operation,
                             std::uint64_t sequence, std::uint64_t bytes, LiteralText stage,
                             std::uint32_t waits_for) {
  const auto start = next_.fetch_add(1, std::memory_order_relaxed);
  for (std::uint32_t tried = 0; tried < count_; ++tried) {
    const auto index = (start + tried) % count_;
    auto& slot = slots_[index];
    if (slot.taken.load(std::memory_order_relaxed) || slot.taken.exchange(true, std::memory_order_acquire))
      continue;
    const auto now = now_ticks();
    slot.open();
    set(slot.group, group);
    set(slot.rank, rank);
    set(slot.operation, operation.get());
    set(slot.sequence, sequence);
    set(slot.bytes, bytes);
    set(slot.stage, stage.get());
    set(slot.waits_for, waits_for);
    set(slot.began, now);
    set(slot.in_stage_since, now);
    slot.close();
    return {index};
  }
  return {};
}

void Ledger::stage(Ticket ticket, LiteralText stage, std::uint32_t waits_for) {
  if (ticket.slot >= count_) return;
  auto& slot = slots_[ticket.slot];
  slot.open();
  set(slot.stage, stage.get());
  set(slot.waits_for, waits_for);
  set(slot.in_stage_since, now_ticks());
  slot.close();
}

void Ledger::end(Ticket ticket) {
  if (ticket.slot >= count_) return;
  auto& slot = slots_[ticket.slot];
  slot.open();
  set<const char*>(slot.operation, nullptr);
  slot.close();
  slot.taken.store(false, std::memory_order_release);
}

std::vector<LedgerRow> Ledger::snapshot() const {
  constexpr int most_tries = 1000;  // a slot that changes this often is not stuck
  std::vector<LedgerRow> rows;
  for (std::uint32_t i = 0; i < count_; ++i) {
    const auto& slot = slots_[i];
    for (int tries = 0; tries < most_tries; ++tries) {
      const auto before = get(slot.version);
      const auto* operation = get(slot.operation);
      const auto* stage = get(slot.stage);
      LedgerRow row{get(slot.group),     get(slot.rank),           {},
                    get(slot.sequence),  get(slot.bytes),          {},
                    get(slot.waits_for), time_of(get(slot.began)), time_of(get(slot.in_stage_since))};
      if (before % 2 != 0 || slot.version.load(std::memory_order_relaxed) != before) continue;
      if (operation == nullptr) break;
      row.operation = operation;
      row.stage = stage;
      rows.push_back(std::move(row));
      break;
    }
  }
  std::ranges::stable_sort(rows, {}, &LedgerRow::began);
  return rows;
}

std::string ledger_text(std::span<const LedgerRow> rows, Clock::time_point now) {
  if (rows.empty()) return "no operation in flight\n";
  auto text = fmt::format("{:>6} {:>6} {:<14} {:>10} {:>12} {:>10} {:<24} {}\n", "group", "rank", "operation",
                          "sequence", "bytes", "since", "stage", "waits for");
  for (const auto& row : rows) {
    const auto seconds = std::chrono::duration<double>(now - row.began).count();
    text += fmt::format("{:>6} {:>6} {:<14} {:>10} {:>12} {:>8.3f} s {:<24} {}\n", row.group, row.rank,
                        row.operation, row.sequence, row.bytes, std::max(seconds, 0.0), row.stage,
                        row.waits_for == nobody ? "-" : fmt::format("rank {}", row.waits_for));
  }
  return text;
}

}  // namespace cenote
