// docs/collectives.md against the schedules: the formulas are those of the catalogue (which the verifier's
// tests hold against what the schedules do), the figures are counted here.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "collectives/verifier.h"
#include "tests/test_paths.h"
#include "tests/unit/collectives/group.h"

namespace cenote::collectives {
namespace {

std::string formulas() {
  std::string out =
      "| operation | algorithm | rounds | bytes that the busiest rank sends |\n|---|---|---|---|\n";
  for (const auto& one : catalogue()) {
    fmt::format_to(std::back_inserter(out), "| {} | {} | {} | {} |\n", to_string(one.operation), one.name,
                   one.rounds_text, one.bytes_text);
  }
  return out;
}

std::string figures() {
  constexpr std::uint32_t groups[] = {2, 3, 4, 8, 33};
  std::string out = "| operation | algorithm |";
  for (auto n : groups) fmt::format_to(std::back_inserter(out), " N = {} |", n);
  out += "\n|---|---|---|---|---|---|---|\n";
  for (const auto& one : catalogue()) {
    fmt::format_to(std::back_inserter(out), "| {} | {} |", to_string(one.operation), one.name);
    for (auto n : groups) {
      const auto schedules = group(one, n);
      const auto parts = one.operation == Operation::barrier ? 1 : schedules[0].parts;
      const auto proof = verify(schedules, parts, {false, true, 0});
      fmt::format_to(std::back_inserter(out), " {}, {:.2f} n, {} |", proof->rounds,
                     static_cast<double>(proof->most_elements) / parts, proof->messages);
    }
    out += "\n";
  }
  return out;
}

TEST(Documentation, HasTheCataloguesTables) {
  std::ifstream file(CENOTE_SOURCE_DIR "/docs/collectives.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_NE(text.str().find(formulas()), std::string::npos) << "put this into docs/collectives.md:\n"
                                                            << formulas();
  EXPECT_NE(text.str().find(figures()), std::string::npos) << "put this into docs/collectives.md:\n"
                                                           << figures();
}

TEST(Documentation, HasTheScheduleThatItExplains) {
  std::ifstream file(CENOTE_SOURCE_DIR "/docs/collectives.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_NE(text.str().find(ring_allreduce({1, 4, 0}).text()), std::string::npos)
      << ring_allreduce({1, 4, 0}).text();
}

}  // namespace
}  // namespace cenote::collectives
