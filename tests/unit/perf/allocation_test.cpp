// The loops that are measured do not allocate: a hundred times the messages, no more allocations than the
// conversation of the two ends takes meanwhile.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/unit/perf/two_ends.h"

namespace {
std::atomic<std::uint64_t> allocations = 0;
}

// Out of line: where g++ sees both it takes the pair for mismatched.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }

namespace cenote::perf::test {
namespace {

class Loops : public ::testing::TestWithParam<const Tool*> {
 protected:
  /// Of both ends together, from the first word to the last.
  std::uint64_t allocations_of(std::uint64_t messages) const {
    Work work;
    work.sizes = {GetParam()->verb == Verb::atomic ? 8U : 64U};
    work.iterations = messages;
    work.depth = 8;
    const std::uint64_t before = allocations;
    const auto outcome = run_both(*GetParam(), "shm", work);
    EXPECT_FALSE(outcome.client_error) << outcome.client_error->message();
    return allocations - before;
  }
};

TEST_P(Loops, DoNotAllocateForAMessage) {
  allocations_of(100);  // what is made once in a process
  const std::uint64_t few = allocations_of(100), many = allocations_of(10'000);
  EXPECT_GT(few, 0U) << "allocations are not counted";
  // A pulse each 200 ms at either end allocates a little; one allocation a message would be 9,900 more.
  EXPECT_LT(many, few + 2'000);
}

INSTANTIATE_TEST_SUITE_P(, Loops, ::testing::ValuesIn(all_tools().begin(), all_tools().end()),
                         [](const auto& kind) { return std::string(kind.param->name); });

}  // namespace
}  // namespace cenote::perf::test
