#include "tests/fault_seeds.h"

#include <dirent.h>

#include <charconv>
#include <cstdio>
#include <map>
#include <vector>

#include "tests/fault_row.h"

namespace cenote::test {
namespace {

std::uint64_t first_seed = 0, seeds = 1, now = 0;

std::map<std::string, FaultRecord>& records() {
  static std::map<std::string, FaultRecord> all;
  return all;
}

std::vector<std::function<void()>>& hooks() {
  static std::vector<std::function<void()>> all;
  return all;
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (folder != nullptr && ::readdir(folder) != nullptr) ++count;
  if (folder != nullptr) ::closedir(folder);
  return count;
}

bool take(std::string_view argument, std::string_view name, std::uint64_t& value) {
  if (!argument.starts_with(name)) return false;
  argument.remove_prefix(name.size());
  const auto [end, error] = std::from_chars(argument.data(), argument.data() + argument.size(), value);
  if (error == std::errc{} && end == argument.data() + argument.size()) return true;
  std::fprintf(stderr, "%.*s takes a number\n", static_cast<int>(name.size() - 1), name.data());
  value = 0;
  return false;
}

/// What the cases ask of a seed with that blow.
std::string endings(std::size_t fault) {
  const bool silent = static_cast<transport::Fault>(fault) == transport::Fault::freeze;
  return silent ? "nobody waits beyond the deadline" : "once connected, nobody waits for a deadline";
}

}  // namespace

std::uint64_t seed() { return now; }

void after_each_seed(std::function<void()> done) { hooks().push_back(std::move(done)); }

FaultRecord& FaultRecord::of(const std::string& name) { return records()[name]; }

void FaultRecord::add(const transport::FaultPlan& plan, const transport::FaultTally& did, bool right) {
  ++seeds_;
  did_ += did;
  for (std::size_t i = 0; i < transport::faults; ++i) {
    const auto fault = static_cast<transport::Fault>(i);
    const bool in_it = plan.blow ? plan.blow->fault == fault : plan.has(fault);
    tried_[i] += in_it ? 1U : 0U;
    right_[i] += in_it && right ? 1U : 0U;
  }
}

class SeedListener : public testing::EmptyTestEventListener {
 public:
  explicit SeedListener(std::string program) : program_(std::move(program)) {}
  void OnTestIterationStart(const testing::UnitTest& /*all*/, int iteration) override {
    now = first_seed + static_cast<std::uint64_t>(iteration);
  }
  void OnTestStart(const testing::TestInfo& /*test*/) override { descriptors_ = open_descriptors(); }
  void OnTestEnd(const testing::TestInfo& test) override {
    const std::size_t left = open_descriptors();
    if (!test.result()->Failed() && left != descriptors_)
      ADD_FAILURE() << left << " descriptors are open, before there were " << descriptors_;
    if (!test.result()->Failed()) return;
    std::printf("seed %llu failed; again: %s --seed=%llu --gtest_filter='%s.%s'\n",
                static_cast<unsigned long long>(now), program_.c_str(), static_cast<unsigned long long>(now),
                test.test_suite_name(), test.name());
    std::fflush(stdout);
  }
  void OnTestIterationEnd(const testing::UnitTest& /*all*/, int iteration) override {
    for (const auto& done : hooks()) done();
    if (static_cast<std::uint64_t>(iteration) + 1 != seeds) return;
    for (const auto& [name, record] : records()) {
      for (std::size_t i = 0; i < transport::faults; ++i) {
        const auto& kind = transport::kind_of(static_cast<transport::Fault>(i));
        const bool habit = i < transport::habits;
        std::printf("%s: %-16s in %5llu seeds, %9llu times; right in %llu\n", name.c_str(),
                    std::string(kind.name).c_str(), static_cast<unsigned long long>(record.tried_[i]),
                    static_cast<unsigned long long>(record.did_.of[i]),
                    static_cast<unsigned long long>(record.right_[i]));
        if (record.tried_[i] == 0) continue;
        tried({name + ", " + std::to_string(record.seeds_) + " seeds",
               std::string(kind.name) + ": " + std::string(kind.what), record.tried_[i],
               std::string(kind.promise), habit ? "so in all" : "so in all; " + endings(i)});
      }
    }
  }

 private:
  std::string program_;
  std::size_t descriptors_ = 0;
};

int run_seeds(int argc, char** argv) {
  std::vector<char*> rest;
  for (int i = 0; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!take(argument, "--seed=", first_seed) && !take(argument, "--seeds=", seeds)) rest.push_back(argv[i]);
  }
  std::string brief = "--gtest_brief=1";
  if (seeds > 1) rest.push_back(brief.data());
  int left = static_cast<int>(rest.size());
  rest.push_back(nullptr);
  testing::InitGoogleTest(&left, rest.data());
  GTEST_FLAG_SET(repeat, static_cast<int>(seeds));
  testing::UnitTest::GetInstance()->listeners().Append(new SeedListener(argv[0]));
  return RUN_ALL_TESTS();
}

}  // namespace cenote::test
