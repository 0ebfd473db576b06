// Collectives over transports that inject faults, a seed an iteration: every rank has the right result of
// every operation, or an error that names a rank, what was being done, and why; in time, whatever the seed
// brought.
#include <atomic>
#include <mutex>

#include "collectives/window.h"
#include "runtime/rank_name.h"
#include "tests/fault_seeds.h"
#include "tests/multi/collectives/ranks.h"
#include "tests/unit/collectives/reference.h"
#include "transports/fault/fault_transport.h"

namespace cenote::collectives {
namespace {

using namespace std::chrono_literals;
using transport::Fault;
using transport::FaultPlan;
using transport::FaultTally;
using transport::Sabotage;

constexpr std::uint64_t blow_within = 12;  ///< a rank of two posts more while the group forms and reduces

struct World {
  Mode mode;
  std::uint32_t ranks;
  std::string algorithm;
  FaultPlan plan;
  std::uint64_t seed;

  static World draw(std::uint64_t seed) {
    constexpr Mode all[] = {Mode::shm, Mode::tcp, Mode::mixed};
    constexpr const char* names[] = {"auto", "ring", "recursive_doubling"};
    const auto mode = all[seed % 3];
    const auto ranks = mode == Mode::mixed ? 3 : 2 + static_cast<std::uint32_t>(seed / 3 % 3);
    return {mode, ranks, names[seed / 9 % 3], FaultPlan::draw(seed, ranks, blow_within), seed};
  }
  [[nodiscard]] bool freezes() const { return plan.blow && plan.blow->fault == Fault::freeze; }
  [[nodiscard]] bool falls_on(std::uint32_t rank) const { return plan.blow && plan.blow->victim == rank; }
};

/// What the ranks of a world have to say.
struct Verdict {
  std::mutex mutex;
  std::string wrong;
  std::vector<std::optional<Error>> errors;  ///< the first of each rank

  void say(const std::string& what) {
    const std::lock_guard lock(mutex);
    if (wrong.empty()) wrong = what;
  }
};

/// One rank's work. Stops at the first operation that does not end well.
class Work {
 public:
  Work(const World& world, Communicator& communicator, Verdict& verdict)
      : world_(world), communicator_(communicator), verdict_(verdict), rank_(communicator.rank()) {}

  Result<void> run() {
    for (const std::uint64_t count : {1ULL, 700ULL, 5000ULL}) {
      CENOTE_TRY(reduce(CENOTE_FLOAT32, CENOTE_SUM, count));
      CENOTE_TRY(gather(count / 3));
      CENOTE_TRY(broadcast(count, static_cast<std::uint32_t>(count) % world_.ranks));
    }
    CENOTE_TRY(several());
    CENOTE_TRY(one_sided());
    return finish(communicator_, communicator_.barrier());
  }

 private:
  void check(bool right, const std::string& what) {
    if (!right) verdict_.say(what + " of rank " + std::to_string(rank_) + " is said to be done and is wrong");
  }
  Bytes reference(DataType type, ReduceOp op, std::uint64_t count, std::uint64_t salt) const {
    std::vector<Bytes> shards;
    for (std::uint32_t r = 0; r < world_.ranks; ++r) shards.push_back(shard(type, count, r, salt));
    return reduced(type, op, world_.algorithm, std::move(shards));
  }

  Result<void> reduce(DataType type, ReduceOp op, std::uint64_t count) {
    Bytes& buffer = keep(shard(type, count, rank_, count));
    CENOTE_TRY(finish(communicator_,
                      communicator_.allreduce(memory_of(buffer), memory_of(buffer), count, type, op)));
    check(buffer == reference(type, op, count, count), "allreduce of " + std::to_string(count));
    return {};
  }
  Result<void> gather(std::uint64_t count) {
    Bytes& mine = keep(shard(CENOTE_INT64, count, rank_, 3));
    Bytes& all = keep(Bytes(mine.size() * world_.ranks));
    CENOTE_TRY(
        finish(communicator_, communicator_.allgather(memory_of(mine), memory_of(all), count, CENOTE_INT64)));
    Bytes expected;
    for (std::uint32_t r = 0; r < world_.ranks; ++r) {
      const auto part = shard(CENOTE_INT64, count, r, 3);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    check(all == expected, "allgather of " + std::to_string(count));
    return {};
  }
  Result<void> broadcast(std::uint64_t count, std::uint32_t root) {
    Bytes& buffer = keep(shard(CENOTE_INT32, count, rank_, 4));
    CENOTE_TRY(finish(communicator_, communicator_.broadcast(memory_of(buffer), count, CENOTE_INT32, root)));
    check(buffer == shard(CENOTE_INT32, count, root, 4), "broadcast of " + std::to_string(count));
    return {};
  }
  /// In flight at the same time.
  Result<void> several() {
    constexpr std::uint64_t counts[] = {3, 2500, 40, 900};
    std::vector<std::pair<Bytes*, Request>> under_way;
    for (const auto count : counts) {
      Bytes& buffer = keep(shard(CENOTE_FLOAT64, count, rank_, count + 1));
      CENOTE_ASSIGN(const auto request, communicator_.allreduce(memory_of(buffer), memory_of(buffer), count,
                                                                CENOTE_FLOAT64, CENOTE_AVG));
      under_way.emplace_back(&buffer, request);
    }
    for (std::size_t i = std::size(counts); i-- > 0;) {
      CENOTE_TRY(communicator_.wait(under_way[i].second, Deadline::never()));
      check(*under_way[i].first == reference(CENOTE_FLOAT64, CENOTE_AVG, counts[i], counts[i] + 1),
            "allreduce in flight with others");
    }
    return {};
  }
  /// Each rank writes to the next one's memory, signals, and reads it back.
  Result<void> one_sided() {
    constexpr std::size_t bytes = 6000;
    CENOTE_ASSIGN(const auto window, communicator_.create_window({.memory = {.size = bytes}}));
    const auto next = (rank_ + 1) % world_.ranks, previous = (rank_ + world_.ranks - 1) % world_.ranks;
    Bytes& data = keep(shard(CENOTE_INT32, bytes / 4, rank_, 5));
    CENOTE_TRY(
        finish(communicator_, window->put(next, 0, std::span(data).first(bytes / 2), transport::no_signal)));
    CENOTE_TRY(finish(communicator_, window->put(next, bytes / 2, std::span(data).last(bytes / 2), 0)));
    CENOTE_TRY(finish(communicator_, communicator_.signal(next, 1)));
    CENOTE_TRY(communicator_.wait_signal(previous, 1, 1, Deadline::never()));
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a memory description carries its address as a number
    const auto* here = reinterpret_cast<const std::byte*>(window->memory().address);
    check(std::ranges::equal(std::span(here, bytes), shard(CENOTE_INT32, bytes / 4, previous, 5)),
          "what was put before a signal");
    Bytes& back = keep(Bytes(bytes));
    CENOTE_TRY(finish(communicator_, window->get(next, 0, back)));
    check(back == data, "what a get brought");
    // Nobody's memory goes before everybody has read it.
    return finish(communicator_, communicator_.barrier());
  }
  /// Buffers stay in use until the communicator is gone, where an operation fails.
  Bytes& keep(Bytes bytes) { return *kept_.emplace_back(std::make_unique<Bytes>(std::move(bytes))); }

  const World& world_;
  Communicator& communicator_;
  Verdict& verdict_;
  std::uint32_t rank_;

 public:
  std::vector<std::unique_ptr<Bytes>> kept_;
};

struct Ended {
  std::string wrong;
  std::vector<std::optional<Error>> errors;
  FaultTally did;
  Clock::duration took{};
};

Ended run(const World& world, Clock::duration timeout) {
  Verdict verdict;
  verdict.errors.resize(world.ranks);
  std::vector<FaultTally> tallies(world.ranks);
  std::vector<std::unique_ptr<Bytes>> kept[8];
  std::vector<CommunicatorOptions> all;
  for (std::uint32_t r = 0; r < world.ranks; ++r) {
    auto options = options_for(world.mode, r, world.ranks);
    options.algorithm = world.algorithm;
    options.chunk_bytes = 4096;
    options.chunks_ahead = 1 + static_cast<std::uint32_t>(world.seed / 27 % 4);
    // Who is frozen itself hangs on for longer, so that nobody is told by its end.
    options.operation_timeout = options.init_timeout =
        world.freezes() && world.falls_on(r) ? 2 * timeout : timeout;
    options.fabric.wrap = [member = transport::FaultMember(world.plan.of(r), &tallies.at(r))](auto inside) {
      return member.wrap(std::move(inside));
    };
    all.push_back(std::move(options));
  }
  const auto started = Clock::now();
  on_threads(
      std::move(all),
      [&](Communicator& communicator) {
        Work work(world, communicator, verdict);
        auto done = work.run();
        if (!done) verdict.errors[communicator.rank()] = done.error();
        kept[communicator.rank()] = std::move(work.kept_);
      },
      [&](std::uint32_t rank, const Error& error) { verdict.errors[rank] = error; });
  Ended ended{verdict.wrong, std::move(verdict.errors), {}, Clock::now() - started};
  for (const auto& tally : tallies) ended.did += tally;
  return ended;
}

/// Whether an error says whom, what and why.
std::string complaint(std::uint32_t rank, const Error& error) {
  // Who joins names the root's address, or all the ranks that are missing.
  const bool joins = error.stage.starts_with("join group");
  if (!rank_of(error.peer) && !joins)
    return "rank " + std::to_string(rank) + " names nobody: " + error.message();
  if (error.stage.empty() || error.cause.empty())
    return "rank " + std::to_string(rank) + " does not say what or why: " + error.message();
  return {};
}

TEST(CollectivesUnderFaults, AreRightOrEndInTimeWithARankNamed) {
  const auto world = World::draw(cenote::test::seed());
  const auto struck = [&](const Ended& ended) {
    return world.plan.blow && ended.did.of[static_cast<std::size_t>(world.plan.blow->fault)] == 1;
  };
  auto ended = run(world, world.freezes() ? Clock::duration(300ms) : Clock::duration(60s));
  // On a busy machine the deadline may pass before anybody is frozen.
  if (world.freezes() && !struck(ended)) ended = run(world, 10s);
  EXPECT_EQ(ended.wrong, "");
  bool right = true;
  for (std::uint32_t rank = 0; rank < world.ranks; ++rank) {
    const auto& error = ended.errors[rank];
    if (!error) continue;
    right = false;
    EXPECT_EQ(complaint(rank, *error), "");
    EXPECT_TRUE(world.plan.blow) << "no blow, but rank " << rank << ": " << error->message();
    // While the group forms, the rank that is killed is still there to say whom it lost itself.
    const bool forms = error->stage.find("bootstrap") != std::string::npos;
    if (world.plan.blow && world.plan.blow->fault == Fault::kill && !world.falls_on(rank) && !forms) {
      EXPECT_EQ(rank_of(error->peer), world.plan.blow->victim) << "rank " << rank << ": " << error->message();
    }
    if (!world.freezes()) {
      EXPECT_NE(error->code, ErrorCode::deadline_exceeded) << error->message();
    }
  }
  EXPECT_LT(ended.took, world.freezes() ? 40s : 50s);
  EXPECT_EQ(struck(ended), world.plan.blow.has_value()) << "the blow did not fall";
  cenote::test::FaultRecord::of("Collectives over shm, tcp and both").add(world.plan, ended.did, right);
}

}  // namespace
}  // namespace cenote::collectives

int main(int argc, char** argv) { return cenote::test::run_seeds(argc, argv); }
