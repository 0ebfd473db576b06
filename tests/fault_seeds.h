// A program that runs its cases once for each of many seeds, and says of one that fails how to repeat it:
//   PROGRAM --seed=17                 that seed alone
//   PROGRAM --seeds=300 [--seed=0]    so many, from that one on (GoogleTest's iterations)
// Its main() hands them to run_seeds(). What was done is recorded in GoogleTest's report for docs/faults.md.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "transports/fault/fault_plan.h"

namespace cenote::test {

/// The seed of the cases that run now.
std::uint64_t seed();

/// How the seeds of one case went, by what their plan has in it. Kept over all seeds of the program.
class FaultRecord {
 public:
  /// `name`: of the case, as docs/faults.md has it.
  static FaultRecord& of(const std::string& name);
  /// `did`: what the transports really did.
  void add(const transport::FaultPlan& plan, const transport::FaultTally& did, bool right);

 private:
  friend class SeedListener;
  std::uint64_t seeds_ = 0;
  std::uint64_t tried_[transport::faults] = {};  ///< seeds; habits: those without a blow
  std::uint64_t right_[transport::faults] = {};  ///< of them, with every result right
  transport::FaultTally did_;
};

/// `done` is called when all cases have run with a seed.
void after_each_seed(std::function<void()> done);

int run_seeds(int argc, char** argv);

}  // namespace cenote::test
