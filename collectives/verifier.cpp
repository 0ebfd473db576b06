#include "collectives/verifier.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "collectives/plan.h"

namespace cenote::collectives {
namespace {

/// What one element holds: a tree, of the vectors' element `of`.
struct Value {
  std::uint32_t tree = 0;
  std::uint64_t of = 0;
  bool operator==(const Value&) const = default;
};

/// Interns trees, so that equal ones have equal numbers.
class Trees {
 public:
  explicit Trees(std::uint32_t ranks) : ranks_(ranks) {
    out_.nodes.resize(std::size_t{ranks} + 1);
    sets_.resize(std::size_t{ranks} + 1, Set((ranks + 63) / 64));
    for (std::uint32_t r = 0; r < ranks; ++r) {
      out_.nodes[r + 1].lowest = r;
      sets_[r + 1][r / 64] |= std::uint64_t{1} << (r % 64);
    }
  }

  [[nodiscard]] static std::uint32_t own(std::uint32_t rank) { return rank + 1; }

  /// nullopt: a rank would be counted twice.
  std::optional<std::uint32_t> combine(std::uint32_t a, std::uint32_t b, bool idempotent) {
    if (out_.nodes[b].lowest < out_.nodes[a].lowest) std::swap(a, b);
    Set both = sets_[a];
    for (std::size_t i = 0; i < both.size(); ++i) {
      if (!idempotent && (both[i] & sets_[b][i]) != 0) return std::nullopt;
      both[i] |= sets_[b][i];
    }
    return intern({a, b, out_.nodes[a].lowest, false}, std::move(both));
  }
  std::uint32_t finish(std::uint32_t a) { return intern({a, 0, out_.nodes[a].lowest, true}, sets_[a]); }

  [[nodiscard]] bool finished(std::uint32_t a) const { return out_.nodes[a].finished; }
  [[nodiscard]] bool complete(std::uint32_t a) const {
    for (std::uint32_t r = 0; r < ranks_; ++r) {
      if ((sets_[a][r / 64] >> (r % 64) & 1) == 0) return false;
    }
    return true;
  }
  [[nodiscard]] std::string text(std::uint32_t a) const { return out_.text(a); }
  [[nodiscard]] ReductionTrees take() { return std::move(out_); }

 private:
  using Set = std::vector<std::uint64_t>;
  std::uint32_t intern(const ReductionTrees::Node& node, Set set) {
    const auto [found, fresh] =
        known_.try_emplace(std::array{node.left, node.right}, static_cast<std::uint32_t>(out_.nodes.size()));
    if (fresh) {
      out_.nodes.push_back(node);
      sets_.push_back(std::move(set));
    }
    return found->second;
  }

  std::uint32_t ranks_;
  ReductionTrees out_;
  std::vector<Set> sets_;
  std::map<std::array<std::uint32_t, 2>, std::uint32_t> known_;
};

struct Chunk {
  std::vector<Value> values;
  std::uint64_t round = 0;
};

struct Rank {
  Plan plan;
  std::array<std::vector<Value>, 3> memory;
  std::vector<std::uint64_t> done;   ///< by instance
  std::vector<std::uint64_t> round;  ///< by instance: when its last chunk moved
  std::vector<std::size_t> cursor;   ///< by flow
  std::uint64_t last_send = 0;       ///< round of this rank's latest send
  std::uint64_t sent = 0;
};

class Run {
 public:
  Run(std::span<const Schedule> schedules, std::uint64_t count, const VerifierOptions& options)
      : schedules_(schedules),
        count_(count),
        options_(options),
        trees_(static_cast<std::uint32_t>(schedules.size())) {}

  Result<Proof> run() {
    CENOTE_TRY(prepare());
    std::vector<std::uint32_t> turns(ranks_.size());
    std::iota(turns.begin(), turns.end(), 0U);
    auto seed = options_.order;
    for (bool moved = true; moved;) {
      moved = false;
      if (seed != 0) shuffle(turns, seed);
      for (auto r : turns) {
        CENOTE_ASSIGN(bool one, turn(r));
        moved = moved || one;
      }
    }
    CENOTE_TRY(everything_ended());
    return outputs();
  }

 private:
  [[nodiscard]] tl::unexpected<Error> bad(std::uint32_t rank, std::string cause) const {
    return fail(Error{ErrorCode::invalid_argument,
                      fmt::format("verify {} by {} over {} ranks, {} elements{}",
                                  to_string(schedules_[0].operation), schedules_[0].algorithm,
                                  schedules_.size(), count_, options_.in_place ? ", in place" : ""),
                      fmt::format("rank {}: {}", rank, cause)});
  }

  static void shuffle(std::vector<std::uint32_t>& turns, std::uint64_t& seed) {
    for (auto i = turns.size(); i > 1; --i) {
      seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
      std::swap(turns[i - 1], turns[(seed >> 33) % i]);
    }
  }

  Result<void> prepare() {
    if (schedules_.empty()) return fail(ErrorCode::invalid_argument, "verify", "no schedules");
    const auto& first = schedules_[0];
    for (std::uint32_t r = 0; r < schedules_.size(); ++r) {
      const auto& s = schedules_[r];
      if (s.rank != r || s.ranks != schedules_.size() || s.operation != first.operation ||
          s.root != first.root || s.parts != first.parts) {
        return bad(r, "its schedule is of another rank, group, operation, root or number of blocks");
      }
      CENOTE_ASSIGN(auto plan, compile(s, count_, options_.in_place));
      Rank rank{std::move(plan), {}, {}, {}, {}};
      rank.done.resize(rank.plan.instances.size());
      rank.round.resize(rank.plan.instances.size());
      rank.cursor.resize(rank.plan.flows.size());
      for (auto buffer : {Buffer::input, Buffer::output, Buffer::scratch}) {
        memory(rank, buffer).resize(s.vectors(buffer) * count_);
      }
      const auto shift = s.operation == Operation::allgather ? r * count_ : 0;
      for (std::uint64_t x = 0; x < count_; ++x) {
        if (options_.in_place) {
          memory(rank, Buffer::output)[shift + x] = {Trees::own(r), x};
        } else {
          memory(rank, Buffer::input)[x] = {Trees::own(r), x};
        }
      }
      ranks_.push_back(std::move(rank));
    }
    return {};
  }

  static std::vector<Value>& memory(Rank& rank, Buffer buffer) {
    return rank.memory[static_cast<std::size_t>(buffer)];
  }

  /// Moves the front of every flow of one rank by a chunk where it can.
  Result<bool> turn(std::uint32_t r) {
    auto& rank = ranks_[r];
    bool moved = false;
    for (std::size_t f = 0; f < rank.plan.flows.size(); ++f) {
      const auto& flow = rank.plan.flows[f];
      if (rank.cursor[f] == flow.instances.size()) continue;
      const auto number = flow.instances[rank.cursor[f]];
      const auto& instance = rank.plan.instances[number];
      const auto begin = rank.done[number];
      const auto end = options_.whole_slices ? instance.length : begin + 1;
      if (!rank.plan.ready(instance, begin, end, rank.done)) continue;
      CENOTE_ASSIGN(bool could, move(r, number, begin, end));
      if (!could) continue;
      moved = true;
      rank.done[number] = end;
      if (end == instance.length) ++rank.cursor[f];
    }
    return moved;
  }

  /// False when the link is full, or empty.
  Result<bool> move(std::uint32_t r, std::uint32_t number, std::uint64_t begin, std::uint64_t end) {
    auto& rank = ranks_[r];
    const auto& instance = rank.plan.instances[number];
    auto& src = memory(rank, instance.src_buffer);
    auto& dst = memory(rank, instance.dst_buffer);
    auto round = earliest(rank, instance);
    if (instance.kind == StepKind::send) {
      auto& link = links_[{r, instance.peer}];
      if (!link.empty()) return false;
      if (begin == 0) rank.last_send = std::max(round, rank.last_send) + 1;
      rank.round[number] = rank.last_send;
      Chunk chunk{{}, rank.last_send};
      for (auto x = begin; x < end; ++x) {
        const auto value = src[instance.src + x];
        if (value.tree == 0)
          return bad(
              r, fmt::format("sends {}, which nobody wrote", place(instance.src_buffer, instance.src + x)));
        chunk.values.push_back(value);
      }
      rank.sent += end - begin;
      link.push_back(std::move(chunk));
      messages_ += begin == 0 ? 1 : 0;
      return true;
    }
    Chunk incoming;
    if (instance.kind == StepKind::receive || instance.kind == StepKind::reduce) {
      auto& link = links_[{instance.peer, r}];
      if (link.empty()) return false;
      incoming = std::move(link.front());
      link.pop_front();
      if (incoming.values.size() != end - begin) {
        return bad(r, fmt::format("expects {} elements from rank {}, which sent {}", end - begin,
                                  instance.peer, incoming.values.size()));
      }
      round = std::max(round, incoming.round);
    }
    rank.round[number] = std::max(rank.round[number], round);
    for (auto x = begin; x < end; ++x) {
      const auto none = Value{};
      CENOTE_ASSIGN(
          auto value,
          result(r, instance, x, incoming.values.empty() ? none : incoming.values[x - begin], src, dst));
      dst[instance.dst + x] = value;
    }
    return true;
  }

  Result<Value> result(std::uint32_t r, const Instance& instance, std::uint64_t x, Value incoming,
                       const std::vector<Value>& src, const std::vector<Value>& dst) {
    const auto where = place(instance.dst_buffer, instance.dst + x);
    if (instance.kind == StepKind::receive) return incoming;
    const auto value = instance.kind == StepKind::finish ? dst[instance.dst + x] : src[instance.src + x];
    if (value.tree == 0)
      return bad(r, fmt::format("{} {} from elements that nobody wrote", to_string(instance.kind), where));
    if (instance.kind == StepKind::copy) return value;
    if (trees_.finished(value.tree) || trees_.finished(incoming.tree)) {
      return bad(r, fmt::format("{} {} after it was finished", to_string(instance.kind), where));
    }
    if (instance.kind == StepKind::finish) return Value{trees_.finish(value.tree), value.of};
    if (value.of != incoming.of) {
      return bad(r, fmt::format("reduces element {} of rank {} with its own element {}", incoming.of,
                                instance.peer, value.of));
    }
    const auto tree =
        trees_.combine(value.tree, incoming.tree, schedules_[0].operation == Operation::barrier);
    if (!tree) {
      return bad(r, fmt::format("{} counts a rank twice: {} with {} from rank {}", where,
                                trees_.text(value.tree), trees_.text(incoming.tree), instance.peer));
    }
    return Value{*tree, value.of};
  }

  /// The round after which everything that this instance follows was done.
  static std::uint64_t earliest(const Rank& rank, const Instance& instance) {
    std::uint64_t round = 0;
    for (std::uint32_t k = 0; k < instance.dependencies; ++k) {
      const auto earlier = rank.plan.dependencies[instance.first_dependency + k].instance;
      if (rank.plan.instances[earlier].kind != StepKind::send) round = std::max(round, rank.round[earlier]);
    }
    return round;
  }

  [[nodiscard]] static std::string place(Buffer buffer, std::uint64_t element) {
    return fmt::format("element {} of the {}", element, to_string(buffer));
  }

  [[nodiscard]] Result<void> everything_ended() const {
    std::string waits;
    std::optional<std::uint32_t> first;
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
      const auto& rank = ranks_[r];
      for (std::size_t f = 0; f < rank.plan.flows.size(); ++f) {
        const auto& flow = rank.plan.flows[f];
        if (rank.cursor[f] == flow.instances.size()) continue;
        const auto& instance = rank.plan.instances[flow.instances[rank.cursor[f]]];
        if (!first) first = r;
        waits += fmt::format("; rank {} waits to {} (peer {})", r, to_string(instance.kind), instance.peer);
      }
    }
    if (first) return bad(*first, "deadlock" + waits);
    for (const auto& [ends, link] : links_) {
      if (!link.empty()) return bad(ends.second, fmt::format("never takes what rank {} sent", ends.first));
    }
    return {};
  }

  /// What element x of the output should be, apart from the order of its reduction.
  [[nodiscard]] bool right(Value value, std::uint64_t x) const {
    if (value.tree == 0) return false;
    switch (schedules_[0].operation) {
      case Operation::allreduce:
        return value.of == x && trees_.finished(value.tree) && trees_.complete(value.tree);
      case Operation::barrier:
        return value.of == x && trees_.complete(value.tree);
      case Operation::broadcast:
        return value == Value{Trees::own(schedules_[0].root), x};
      case Operation::allgather:
        return value == Value{Trees::own(static_cast<std::uint32_t>(x / count_)), x % count_};
    }
    return false;
  }

  Result<Proof> outputs() {
    Proof proof;
    const auto operation = schedules_[0].operation;
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
      auto& rank = ranks_[r];
      const auto& output = memory(rank, Buffer::output);
      for (std::uint64_t x = 0; x < output.size(); ++x) {
        if (!right(output[x], x)) {
          return bad(r, fmt::format("{} holds {} of element {}", place(Buffer::output, x),
                                    trees_.text(output[x].tree), output[x].of));
        }
        if (operation != Operation::allreduce) continue;
        if (r == 0) proof.output.push_back(output[x].tree);
        if (proof.output[x] != output[x].tree) {
          return bad(r, fmt::format("{} is {}, at rank 0 {}: not the same bits", place(Buffer::output, x),
                                    trees_.text(output[x].tree), trees_.text(proof.output[x])));
        }
      }
      for (auto round : rank.round) proof.rounds = std::max(proof.rounds, round);
      proof.most_elements = std::max(proof.most_elements, rank.sent);
    }
    proof.messages = messages_;
    proof.trees = trees_.take();
    return proof;
  }

  std::span<const Schedule> schedules_;
  std::uint64_t count_;
  VerifierOptions options_;
  Trees trees_;
  std::vector<Rank> ranks_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::deque<Chunk>> links_;
  std::uint64_t messages_ = 0;
};

}  // namespace

std::string ReductionTrees::text(std::uint32_t node) const {
  if (node == 0 || node >= nodes.size()) return "nothing";
  const auto& n = nodes[node];
  if (n.finished) return text(n.left);
  if (n.left == 0) return std::to_string(n.lowest);
  return fmt::format("({} + {})", text(n.left), text(n.right));
}

Result<Proof> verify(std::span<const Schedule> schedules, std::uint64_t count,
                     const VerifierOptions& options) {
  return Run(schedules, count, options).run();
}

Result<Proof> prove(std::span<const Schedule> schedules, std::uint64_t count) {
  Result<Proof> proof = fail(ErrorCode::internal, "verify", "nothing ran");
  for (bool in_place : {false, true}) {
    for (bool whole : {false, true}) {
      proof = verify(schedules, count, {in_place, whole, 0});
      if (!proof) return proof;
    }
  }
  return proof;
}

}  // namespace cenote::collectives
