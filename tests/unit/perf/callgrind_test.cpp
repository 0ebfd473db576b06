// Reading callgrind's files: what each object executed itself, in all the ways in which lines are shortened.
#include "perf/callgrind.h"

#include <gtest/gtest.h>

namespace cenote::perf {
namespace {

TEST(Callgrind, CountsWhatEachObjectExecutedItself) {
  const auto objects = instructions_by_object(
      "version: 1\npositions: line\nevents: Ir\n\n"
      "ob=(1) /usr/bin/tool\nfl=(1) a.c\nfn=(1) main\n10 5\n+2 7\n"
      "cob=(2) /lib/verbs.so\ncfn=(2) post\ncalls=3 50\n* 900\n-1 1\n\n"
      "ob=(2)\nfn=(2)\n50 300\n* 600\n\n"
      "ob=(1)\nfn=(3) after\n0 4\n"
      "totals: 917\n");
  ASSERT_TRUE(objects) << objects.error().message();
  EXPECT_EQ(*objects, (std::map<std::string, std::uint64_t>{{"/usr/bin/tool", 17}, {"/lib/verbs.so", 900}}));
}

TEST(Callgrind, KnowsAnObjectThatWasNamedAsACallee) {
  const auto objects = instructions_by_object("events: Ir\nob=/a\ncob=(7) /b\ncalls=1 0\n0 9\nob=(7)\n0 3\n");
  ASSERT_TRUE(objects);
  EXPECT_EQ(*objects, (std::map<std::string, std::uint64_t>{{"/b", 3}}));
}

TEST(Callgrind, RefusesWhatIsNoSuchFile) {
  EXPECT_FALSE(instructions_by_object(""));
  EXPECT_FALSE(instructions_by_object("events: Ir\nsummary: 0\n"));
  EXPECT_FALSE(instructions_by_object("events: Ir Dr\nob=/a\n0 3 4\n"));
}

}  // namespace
}  // namespace cenote::perf
