// The verifier must catch what it is there to catch: every way of breaking a schedule that is tried here, at
// every step of every rank, is an error (or, where the change happens to mean the same, is proved to mean the
// same).
#include <gmock/gmock.h>

#include <functional>

#include "collectives/verifier.h"
#include "tests/unit/collectives/group.h"

namespace cenote::collectives {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

/// The same schedules with every repeat written out, so that single steps can be changed.
std::vector<Schedule> unrolled(const Algorithm& algorithm, std::uint32_t ranks) {
  auto schedules = group(algorithm, ranks);
  const auto freeze = [](Index& index, std::uint32_t i) { index = {index.at(i), 0, 0}; };
  for (auto& schedule : schedules) {
    std::vector<Step> steps;
    for (const auto& repeat : schedule.program) {
      for (std::uint32_t i = 0; i < repeat.times; ++i) {
        for (auto step : repeat.steps) {
          freeze(step.peer, i);
          freeze(step.dst.first, i);
          freeze(step.src.first, i);
          steps.push_back(step);
        }
      }
    }
    schedule.program = {{1, steps}};
  }
  return schedules;
}

struct Tally {
  std::size_t tried = 0;
  std::size_t caught = 0;
  std::vector<std::string> missed;
};

using Mutation = std::function<bool(std::vector<Step>& steps, std::size_t at, const Schedule& schedule)>;

/// Applies the mutation to every step of every rank in turn. It returns false where it does not apply.
Tally mutate(const Algorithm& algorithm, std::uint32_t ranks, const Mutation& mutation) {
  const auto original = unrolled(algorithm, ranks);
  const std::uint64_t count = algorithm.operation == Operation::barrier ? 1 : 2 * std::uint64_t{ranks} + 1;
  Tally tally;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    const auto steps = original[r].program[0].steps.size();
    for (std::size_t at = 0; at < steps; ++at) {
      auto broken = original;
      if (!mutation(broken[r].program[0].steps, at, broken[r])) continue;
      ++tally.tried;
      if (prove(broken, count)) {
        tally.missed.push_back(broken[r].text());
      } else {
        ++tally.caught;
      }
    }
  }
  return tally;
}

bool talks(const Step& step) { return step.kind != StepKind::copy && step.kind != StepKind::finish; }

struct Case {
  Operation operation;
  std::string_view name;
  std::uint32_t ranks;
};

class BrokenSchedules : public ::testing::TestWithParam<Case> {
 protected:
  void expect_all_caught(const Mutation& mutation) {
    const auto [operation, name, ranks] = GetParam();
    const auto tally = mutate(algorithm(operation, name), ranks, mutation);
    EXPECT_GT(tally.tried, 0U);
    EXPECT_EQ(tally.caught, tally.tried) << (tally.missed.empty() ? "" : tally.missed[0]);
  }
};

TEST_P(BrokenSchedules, WithADroppedMessageAreCaught) {
  expect_all_caught([](auto& steps, std::size_t at, const Schedule&) {
    if (!talks(steps[at])) return false;
    steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(at));
    return true;
  });
}

TEST_P(BrokenSchedules, WithARepeatedMessageAreCaught) {
  expect_all_caught([](auto& steps, std::size_t at, const Schedule&) {
    if (!talks(steps[at])) return false;
    steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(at), steps[at]);
    return true;
  });
}

TEST_P(BrokenSchedules, WithAnotherPeerAreCaught) {
  expect_all_caught([](auto& steps, std::size_t at, const Schedule& schedule) {
    if (!talks(steps[at])) return false;
    auto& peer = steps[at].peer.base;
    do peer = (peer + 1) % schedule.ranks;
    while (peer == schedule.rank);
    return true;
  });
}

TEST_P(BrokenSchedules, WithAnotherBlockOrBufferAreCaught) {
  expect_all_caught([](auto& steps, std::size_t at, const Schedule& schedule) {
    auto& step = steps[at];
    auto& slice = step.kind == StepKind::send ? step.src : step.dst;
    const auto blocks = schedule.vectors(slice.buffer) * schedule.parts;
    if (schedule.vectors(slice.buffer) != schedule.vectors(Buffer::scratch)) {
      if (slice.blocks == blocks) return false;  // all of it, and no other buffer is as long
    } else if (slice.blocks == blocks) {
      slice.buffer = slice.buffer == Buffer::output ? Buffer::scratch : Buffer::output;
      return true;
    }
    slice.first.base = (slice.first.base + 1) % (blocks - slice.blocks + 1);
    if (step.kind == StepKind::reduce) step.src.first = slice.first;
    return true;
  });
}

TEST_P(BrokenSchedules, WithAReceiveForAReductionOrTheOtherWayRoundAreCaught) {
  expect_all_caught([](auto& steps, std::size_t at, const Schedule&) {
    auto& step = steps[at];
    if (step.kind == StepKind::reduce) {
      step.kind = StepKind::receive;
    } else if (step.kind == StepKind::receive) {
      step.kind = StepKind::reduce;
      step.src = step.dst;
    } else {
      return false;
    }
    return true;
  });
}

INSTANTIATE_TEST_SUITE_P(Mutants, BrokenSchedules,
                         ::testing::Values(Case{Operation::allreduce, "ring", 4},
                                           Case{Operation::allreduce, "ring", 5},
                                           Case{Operation::allreduce, "recursive_doubling", 4},
                                           Case{Operation::allreduce, "recursive_doubling", 6},
                                           Case{Operation::allgather, "ring", 5},
                                           Case{Operation::allgather, "recursive_doubling", 4},
                                           Case{Operation::allgather, "recursive_doubling", 6}),
                         [](const auto& tested) {
                           return std::string(to_string(tested.param.operation)) + "_" +
                                  std::string(tested.param.name) + "_" + std::to_string(tested.param.ranks);
                         });

std::vector<Schedule> pair_of(std::vector<Step> zero, std::vector<Step> one) {
  std::vector<Schedule> schedules(2);
  for (std::uint32_t r = 0; r < 2; ++r) {
    schedules[r] = {Operation::allreduce, "by hand", r, 2, 0, 1, {{1, r == 0 ? zero : one}}};
  }
  return schedules;
}

const Slice in{Buffer::input, {}, 1};
const Slice out{Buffer::output, {}, 1};
const Slice scratch{Buffer::scratch, {}, 1};

TEST(Verifier, FindsADeadlockAndSaysWhoWaitsForWhom) {
  // Both reduce before they send what they reduced: each waits for the other.
  const auto swap = [](std::uint32_t peer) {
    return std::vector<Step>{{StepKind::reduce, {peer, 0, 0}, out, in},
                             {StepKind::send, {peer, 0, 0}, {}, out}};
  };
  const auto proof = prove(pair_of(swap(1), swap(0)), 3);
  ASSERT_FALSE(proof.has_value());
  EXPECT_THAT(proof.error().message(),
              HasSubstr("deadlock; rank 0 waits to reduce (peer 1); rank 0 waits to send"));
}

TEST(Verifier, FindsAResultThatWasNotFinished) {
  const auto swap = [](std::uint32_t peer) {
    return std::vector<Step>{{StepKind::send, {peer, 0, 0}, {}, in},
                             {StepKind::reduce, {peer, 0, 0}, out, in}};
  };
  const auto proof = verify(pair_of(swap(1), swap(0)), 1);
  ASSERT_FALSE(proof.has_value());
  EXPECT_THAT(proof.error().message(), HasSubstr("element 0 of the output holds (0 + 1)"));
}

TEST(Verifier, FindsARankCountedTwice) {
  const auto twice = [](std::uint32_t peer) {
    return std::vector<Step>{{StepKind::send, {peer, 0, 0}, {}, in},
                             {StepKind::send, {peer, 0, 0}, {}, in},
                             {StepKind::reduce, {peer, 0, 0}, scratch, in},
                             {StepKind::reduce, {peer, 0, 0}, out, scratch},
                             {StepKind::finish, {}, out, {}}};
  };
  EXPECT_THAT(verify(pair_of(twice(1), twice(0)), 1).error().message(), HasSubstr("counts a rank twice"));
}

TEST(Verifier, FindsASendOfWhatNobodyWrote) {
  const auto early = [](std::uint32_t peer) {
    return std::vector<Step>{{StepKind::send, {peer, 0, 0}, {}, scratch},
                             {StepKind::reduce, {peer, 0, 0}, out, in}};
  };
  EXPECT_THAT(verify(pair_of(early(1), early(0)), 1).error().message(), HasSubstr("which nobody wrote"));
}

TEST(Verifier, FindsTwoRanksThatAssociateDifferently) {
  // Three ranks: rank 0 and 1 compute (0 + 1) + 2, rank 2 computes 0 + (1 + 2).
  std::vector<Schedule> schedules(3);
  const auto to = [](std::uint32_t peer, Slice src) { return Step{StepKind::send, {peer, 0, 0}, {}, src}; };
  const auto add = [](std::uint32_t peer, Slice dst, Slice src) {
    return Step{StepKind::reduce, {peer, 0, 0}, dst, src};
  };
  const Step end{StepKind::finish, {}, out, {}};
  const std::vector<std::vector<Step>> programs{
      {to(1, in), to(2, in), add(1, scratch, in), add(2, out, scratch), end},
      {to(0, in), to(2, in), add(0, scratch, in), add(2, out, scratch), end},
      {to(0, in), to(1, in), add(1, scratch, in), add(0, out, scratch), end},
  };
  for (std::uint32_t r = 0; r < 3; ++r) {
    schedules[r] = {Operation::allreduce, "by hand", r, 3, 0, 1, {{1, programs[r]}}};
  }
  EXPECT_THAT(verify(schedules, 1).error().message(), HasSubstr("not the same bits"));
}

TEST(Verifier, FindsSidesThatDisagreeAboutALength) {
  auto schedules = group(algorithm(Operation::allgather, "recursive_doubling"), 4);
  for (auto& step : schedules[0].program[0].steps) {
    if (step.kind == StepKind::send && step.src.blocks == 2) step.src.blocks = 1;
  }
  EXPECT_THAT(verify(schedules, 4, {false, true, 0}).error().message(),
              AnyOf(HasSubstr("expects 8 elements from rank 0, which sent 4"), HasSubstr("deadlock")));
}

}  // namespace
}  // namespace cenote::collectives
