#include "collectives/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "collectives/algorithms/catalogue.h"
#include "collectives/failure.h"
#include "transports/endpoint_base.h"

namespace cenote::collectives {
namespace {

constexpr std::size_t kept_plans = 64;

std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (char c : text) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001b3ULL;
  return hash;
}

Ledger::Ticket begin_in(Ledger& ledger, const ActiveOperation& operation) {
  const auto& call = operation.header;
  const auto begin = [&](LedgerName name) {
    ledger.begun(operation.sequence, operation.started);
    return ledger.begin({name, operation.sequence, call.count * operation.element_bytes, call.count,
                         wire::packed(call), operation.started});
  };
  switch (static_cast<Operation>(call.operation)) {
    case Operation::allreduce:
      return begin("allreduce");
    case Operation::allgather:
      return begin("allgather");
    case Operation::broadcast:
      return begin("broadcast");
    case Operation::barrier:
      return begin("barrier");
  }
  return {};
}

/// How many chunks of a flow come through the staging ring.
std::uint64_t staged_chunks(const ActiveOperation& operation, const Flow& flow, const PeerLink& link) {
  const auto staged = [&](std::uint64_t elements) {
    return !link.fits_message(elements * operation.element_bytes);
  };
  if (!staged(operation.chunk)) return 0;
  std::uint64_t chunks = 0;
  for (const auto number : flow.instances) {
    const auto length = operation.plan().instances[number].length;
    chunks += length / operation.chunk + (staged(length % operation.chunk) ? 1 : 0);
  }
  return chunks;
}

Place place_of(const MemoryDescription& memory) {
  if (memory.kind == MemoryKind::device) return {nullptr, memory.address, memory.device};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a memory description carries its address as a number
  return {reinterpret_cast<std::byte*>(memory.address), memory.address, {}};
}

Place place_of(std::byte* host) { return {host, reinterpret_cast<std::uint64_t>(host), {}}; }

}  // namespace

std::string describe(const ActiveOperation& operation) {
  return fmt::format("{}, operation {} by {}", wire::text(operation.header), operation.sequence,
                     operation.plan().algorithm);
}

Executor::Executor(std::unique_ptr<transport::Fabric> fabric, std::vector<Bytes> addresses,
                   ExecutorOptions options)
    : fabric_(std::move(fabric)), addresses_(std::move(addresses)), options_(std::move(options)) {}

Executor::~Executor() {
  // What was sent last may still lie in a transport's queue: push it once, without waiting.
  if (!broken_) {
    (void)check_abort();
    (void)fabric_->progress();
  }
  if (!broken_ && (!active_.empty() || outstanding_.in_flight())) {
    for (auto& [rank, state] : links_) {
      state->link->close(
          closing_reason(options_.rank, "its communicator was destroyed with operations in flight"));
    }
  }
  for (auto& operation : active_) end_in_ledger(*operation);
  links_.clear();
}

Result<std::shared_ptr<const KeptPlan>> Executor::plan_for(const Call& call) {
  const auto element_bytes = size_of(call.type);
  for (auto it = plans_.begin(); it != plans_.end(); ++it) {
    const auto& kept = **it;
    if (kept.operation == call.operation && kept.count == call.count && kept.element_bytes == element_bytes &&
        kept.root == call.root && kept.in_place == call.in_place) {
      std::rotate(plans_.begin(), it, it + 1);
      return plans_.front();
    }
  }
  CENOTE_ASSIGN(const auto* algorithm,
                choose(call.operation, options_.algorithm, options_.size, call.count * element_bytes));
  const auto schedule = algorithm->make({options_.rank, options_.size, call.root});
  CENOTE_ASSIGN(auto plan, compile(schedule, call.count, call.in_place));
  auto kept =
      std::make_shared<const KeptPlan>(KeptPlan{call.operation, call.count, element_bytes, call.root,
                                                call.in_place, hash_of(algorithm->name), std::move(plan)});
  if (plans_.size() == kept_plans) plans_.pop_back();
  plans_.insert(plans_.begin(), kept);
  return kept;
}

void Executor::prepare(ActiveOperation& operation, const Call& call, std::shared_ptr<const KeptPlan> kept) {
  const auto& plan = kept->plan;
  operation.sequence = next_sequence_;
  operation.header = {call.count,
                      kept->algorithm_hash,
                      call.root,
                      static_cast<std::uint8_t>(call.operation),
                      static_cast<std::uint8_t>(call.type),
                      static_cast<std::uint8_t>(call.op),
                      0};
  operation.element_bytes = size_of(call.type);
  operation.chunk = std::max<std::uint64_t>(1, options_.link.chunk_bytes / operation.element_bytes);
  operation.reduce = reduce_kernel(call.type, call.op);
  operation.divide = call.op == CENOTE_AVG && options_.size > 1 ? divide_kernel(call.type) : nullptr;
  operation.posted.assign(plan.instances.size(), 0);
  operation.done.assign(plan.instances.size(), 0);
  operation.cursor.assign(plan.flows.size(), 0);
  operation.introduced.assign(plan.flows.size(), options_.check ? 0 : 1);
  operation.local_flow = ~0U;
  operation.gate = call.gate;
  operation.remaining = plan.instances.size();
  operation.started = Clock::now();
  operation.deadline = call.deadline.value_or(Deadline::at(operation.started + options_.timeout));
  if (plan.uses_scratch) operation.scratch.resize(call.count * operation.element_bytes);
  operation.place(Buffer::scratch) = place_of(operation.scratch.data());
  if (call.operation == Operation::barrier) {
    operation.token[0] = operation.token[1] = 0;
    operation.place(Buffer::input) = place_of(reinterpret_cast<std::byte*>(&operation.token[0]));
    operation.place(Buffer::output) = place_of(reinterpret_cast<std::byte*>(&operation.token[1]));
  } else {
    operation.place(Buffer::input) = place_of(call.input);
    operation.place(Buffer::output) = place_of(call.output);
  }
  operation.kept = std::move(kept);
  if (options_.ledger != nullptr) operation.ticket = begin_in(*options_.ledger, operation);
}

void Executor::end_in_ledger(ActiveOperation& operation) {
  if (options_.ledger != nullptr) options_.ledger->end(std::exchange(operation.ticket, {}));
}

Result<Executor::LinkState*> Executor::link_to(std::uint32_t rank, Deadline deadline) {
  auto& state = links_[rank];
  if (state == nullptr) {
    auto options = options_.link;
    options.outstanding = &outstanding_;
    auto link = PeerLink::open(*fabric_, addresses_[rank], rank, options, deadline);
    if (!link) {
      links_.erase(rank);
      return fail(std::move(link).error().with(fmt::format("rank {}", rank)));
    }
    state = std::make_unique<LinkState>();
    state->link = std::move(*link);
  }
  return state.get();
}

Result<void> Executor::enqueue(ActiveOperation& operation) {
  const auto& plan = operation.plan();
  for (std::uint32_t f = 0; f < plan.flows.size(); ++f) {
    const auto& flow = plan.flows[f];
    if (flow.kind == FlowKind::local) {
      operation.local_flow = f;
      continue;
    }
    CENOTE_ASSIGN(auto* state, link_to(flow.peer, operation.deadline));
    if (flow.kind == FlowKind::send) {
      state->sending.push({&operation, f});
      continue;
    }
    const auto staged = staged_chunks(operation, flow, *state->link);
    if (staged > 0) {
      CENOTE_TRY(state->link->announce().map_error(
          [&](Error error) { return local_error(operation, std::move(error)); }));
    }
    state->link->expect(staged);
    state->receiving.push({&operation, f});
  }
  return {};
}

Result<std::uint64_t> Executor::start(const Call& call) {
  CENOTE_TRY(check_abort());
  CENOTE_ASSIGN(auto kept, plan_for(call));
  std::unique_ptr<ActiveOperation> operation;
  if (idle_.empty()) {
    operation = std::make_unique<ActiveOperation>();
  } else {
    operation = std::move(idle_.back());
    idle_.pop_back();
  }
  prepare(*operation, call, std::move(kept));
  auto& started = *operation;
  active_.push_back(std::move(operation));
  last_moved_ = started.started;
  const auto sequence = next_sequence_++;
  if (auto queued = enqueue(started); !queued) return break_with(std::move(queued).error());
  auto moved = progress();
  if (!moved) {
    CENOTE_TRY(end_with(std::move(moved).error(), sequence).map([](bool) {}));
    return sequence;
  }
  retire();
  return sequence;
}

ActiveOperation* Executor::find(std::uint64_t sequence) {
  for (auto& operation : active_) {
    if (operation->sequence == sequence) return operation.get();
  }
  return nullptr;
}

// What this rank sent last may still stand in the transport: a rank that went on to compute would leave its
// peers waiting for it.
bool Executor::settled(const ActiveOperation& operation) const {
  if (!operation.finished()) return false;
  return std::ranges::all_of(links_, [](const auto& entry) { return entry.second->link->drained(); });
}

void Executor::retire(bool breaking) {
  for (auto it = active_.begin(); it != active_.end();) {
    const bool over = breaking ? (*it)->finished() : settled(**it);
    if (!over) {
      ++it;
      continue;
    }
    (*it)->places = {};
    (*it)->gate = nullptr;
    end_in_ledger(**it);
    idle_.push_back(std::move(*it));
    it = active_.erase(it);
  }
}

/// Ends everything with `error`, but for what is complete: true where that is so of `sequence`.
Result<bool> Executor::end_with(Error error, std::uint64_t sequence) {
  retire(true);
  auto broken = break_with(std::move(error));
  if (find(sequence) == nullptr) return true;
  return broken;
}

Result<void> Executor::check_abort() {
  if (broken_) return fail(*broken_);
  if (aborted_.load(std::memory_order_acquire)) {
    std::string reason;
    {
      const std::lock_guard lock(abort_mutex_);
      reason = abort_reason_;
    }
    return break_with(Error{ErrorCode::cancelled, fmt::format("collectives of rank {}", options_.rank),
                            fmt::format("aborted: {}", transport::printable(as_bytes(reason)))});
  }
  if (options_.cancel != nullptr && options_.cancel->raised()) {
    return break_with(Error{ErrorCode::cancelled, fmt::format("collectives of rank {}", options_.rank),
                            "its cancel flag was raised"}
                          .with(fmt::format("rank {}", options_.rank)));
  }
  return {};
}

/// True: the operation is over, and well.
Result<bool> Executor::advance(std::uint64_t sequence, bool& moved) {
  moved = false;
  auto* operation = find(sequence);
  if (operation == nullptr) return true;
  CENOTE_TRY(check_abort());
  auto progressed = progress();
  if (!progressed) return end_with(std::move(progressed).error(), sequence);
  moved = *progressed;
  if (!settled(*operation)) return false;
  retire();
  return true;
}

Result<bool> Executor::test(std::uint64_t sequence) {
  if (bool moved = false; Outstanding::marked(sequence)) return advance_one_sided(sequence, moved);
  if (sequence == 0 || sequence >= next_sequence_) {
    return fail(ErrorCode::invalid_argument, "test an operation",
                fmt::format("no operation {} was started", sequence));
  }
  bool moved = false;
  CENOTE_ASSIGN(const bool done, advance(sequence, moved));
  if (!done && !moved) CENOTE_TRY(on_idle(*find(sequence), std::nullopt));
  return done;
}

Result<void> Executor::wait(std::uint64_t sequence, Deadline deadline) {
  if (Outstanding::marked(sequence)) return wait_one_sided(sequence, deadline);
  if (sequence == 0 || sequence >= next_sequence_) {
    return fail(ErrorCode::invalid_argument, "wait for an operation",
                fmt::format("no operation {} was started", sequence));
  }
  for (;;) {
    bool moved = false;
    CENOTE_ASSIGN(const bool done, advance(sequence, moved));
    if (done) return {};
    if (moved) continue;
    auto& operation = *find(sequence);
    const auto until = std::min(deadline.when(), operation.deadline.when());
    CENOTE_TRY(on_idle(operation, Deadline::at(until)));
  }
}

void Executor::abort(std::string_view reason) {
  {
    const std::lock_guard lock(abort_mutex_);
    if (aborted_.load(std::memory_order_relaxed)) return;
    abort_reason_ = reason;
    aborted_.store(true, std::memory_order_release);
  }
  fabric_->interrupt();
}

std::vector<Executor::LinkStats> Executor::stats() const {
  std::vector<LinkStats> out;
  for (const auto& [rank, state] : links_) {
    const auto& link = *state->link;
    out.push_back(
        {rank, std::string(link.transport_name()), link.reason(), link.bytes_sent(), link.bytes_received()});
  }
  return out;
}

}  // namespace cenote::collectives
