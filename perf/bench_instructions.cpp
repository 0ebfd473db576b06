// bench_instructions [--json FILE] [--pairs N] [--only TEXT]: instructions of an 8-byte write over verbs and
// of its completion, ours beside perftest's, counted by callgrind. Both write over a libibverbs under which
// everything is done at once (perf/at_once): what it executes itself is left out, and no poll is empty. Each
// program runs twice, a longer time and a shorter one; the difference is what the writes cost, without start
// and end. Exit: 0 all bars met, 1 one is not, 2 it could not be measured.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "perf/callgrind.h"
#include "perf/harness.h"
#include "perf/peer_process.h"
#include "runtime/process.h"

namespace cenote::perf {
namespace {

using Words = std::vector<std::string>;

constexpr std::uint64_t fewer = 50'000, more = 550'000;
constexpr auto patience = std::chrono::minutes(5);
constexpr const char* peer = "/usr/bin/ib_write_bw";
constexpr const char* valgrind = "/usr/bin/valgrind";

/// Where the program of this bench lies, and what was built beside it.
struct Programs {
  std::filesystem::path writes, provider;
  std::filesystem::path scratch;
};

/// Runs `command` under callgrind: what it executed, but for the stand-in.
Result<double> count(const Programs& programs, const Words& command, const std::string& variable,
                     const Deadline& deadline) {
  const std::string file = (programs.scratch / "callgrind.out").string();
  Words words{valgrind, "--tool=callgrind", "--callgrind-out-file=" + file, "-q"};
  words.insert(words.end(), command.begin(), command.end());
  CENOTE_ASSIGN(auto child, PeerProcess::start({.command = words, .environment = {variable}}));
  CENOTE_TRY(child.finish(deadline));
  std::ifstream in(file);
  std::stringstream text;
  text << in.rdbuf();
  CENOTE_ASSIGN(const auto objects, instructions_by_object(text.view()));
  double sum = 0;
  for (const auto& [object, instructions] : objects) {
    if (object != programs.provider.string()) sum += static_cast<double>(instructions);
  }
  return sum;
}

Result<double> count_ours(const Programs& programs, std::uint64_t writes) {
  return count(programs, {programs.writes.string(), std::to_string(writes)},
               "LD_LIBRARY_PATH=" + programs.provider.parent_path().string(), Deadline::in(patience));
}

/// `moderation` writes have one completion.
Result<double> count_theirs(const Programs& programs, std::uint64_t writes, int moderation) {
  const Deadline deadline = Deadline::in(patience);
  CENOTE_ASSIGN(const auto port, free_port());
  const Words both{peer,
                   "-d",
                   "at_once0",
                   "-s",
                   "8",
                   "-I",
                   "8",
                   "-F",
                   "-N",
                   "-Q",
                   std::to_string(moderation),
                   "-n",
                   std::to_string(writes),
                   "-p",
                   std::to_string(port)};
  const std::string preload = "LD_PRELOAD=" + programs.provider.string();
  CENOTE_ASSIGN(auto server, PeerProcess::start({.command = both, .environment = {preload}}));
  CENOTE_TRY(await_listener(port, server, deadline));
  Words client = both;
  client.emplace_back("127.0.0.1");
  CENOTE_ASSIGN(const double counted, count(programs, client, preload, deadline));
  CENOTE_TRY(server.finish(deadline));
  return counted;
}

Result<double> per_write(const std::function<Result<double>(std::uint64_t)>& counted) {
  CENOTE_ASSIGN(const double short_run, counted(fewer));
  CENOTE_ASSIGN(const double long_run, counted(more));
  return (long_run - short_run) / static_cast<double>(more - fewer);
}

struct Measured {
  const char* against;
  int moderation;
  std::optional<double> bar;
};

Result<std::vector<Row>> measure(const Programs& programs, int pairs, const std::string& only) {
  // At most perftest's plus 20 %, where each write of perftest has a completion, as each of ours has.
  const Measured all[] = {{"ib_write_bw, a completion each", 1, 1 / 1.2},
                          {"ib_write_bw, a completion for 100", 100, std::nullopt}};
  std::vector<Row> rows;
  for (const auto& [against, moderation, bar] : all) {
    const Comparison comparison{"8 B write, completed", "instructions", against, Better::lower, bar};
    if ((comparison.name + " " + against).find(only) == std::string::npos) continue;
    CENOTE_ASSIGN(
        auto row,
        compare(
            comparison, pairs,
            [&] { return per_write([&](std::uint64_t writes) { return count_ours(programs, writes); }); },
            [&] {
              return per_write(
                  [&](std::uint64_t writes) { return count_theirs(programs, writes, moderation); });
            }));
    rows.push_back(std::move(row));
  }
  return rows;
}

Result<int> run(int pairs, const std::string& only, const std::string& json) {
  for (const char* program : {peer, valgrind}) {
    if (!std::filesystem::exists(program))
      return fail(
          Error{ErrorCode::not_found, "count instructions", std::string(program) + " is not there"}.fix(
              "apt-get install perftest valgrind"));
  }
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  CENOTE_ASSIGN(const auto folder, TemporaryFolder::create("bench-instructions"));
  const Programs programs{here / "verbs_writes", here.parent_path() / "at_once" / "libibverbs.so.1",
                          folder.path()};
  CENOTE_ASSIGN(const auto rows, measure(programs, pairs, only));
  fmt::print("{}", table(rows));
  if (!json.empty()) CENOTE_TRY(write_json(rows, json));
  return std::all_of(rows.begin(), rows.end(), [](const Row& row) { return row.met; }) ? 0 : 1;
}

}  // namespace
}  // namespace cenote::perf

int main(int count, char** words) {
  CLI::App app("Instructions of a small write over verbs, beside perftest's");
  int pairs = 3;
  std::string only, json;
  app.add_option("--pairs", pairs, "how often each row is measured")->check(CLI::Range(2, 99));
  app.add_option("--only", only, "rows whose name holds this text");
  app.add_option("--json", json, "file for the rows");
  CLI11_PARSE(app, count, words);
  const auto result = cenote::perf::run(pairs, only, json);
  if (result) return *result;
  fmt::print(stderr, "bench_instructions: {}\n", result.error().message());
  return 2;
}
