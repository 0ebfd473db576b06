// bench_verbs [--json FILE] [--pairs N] [--only TEXT]: `cenote perf` over verbs beside Debian's perftest,
// between the first two RDMA devices of this machine; each row stands behind one that compares perftest with
// itself in the same rounds. And two rails that tbf has made unequal, beside the sum of what each carries
// alone. For the test VM, as root: it shapes network devices. Exit: 0 all bars met, 1 one is not, 2 it could
// not be measured.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>

#include "perf/harness.h"
#include "perf/peer_process.h"
#include "perf/verbs_tools.h"
#include "runtime/process.h"

namespace cenote::perf {
namespace {

using Words = std::vector<std::string>;

/// One of `cenote perf`.
struct Ours {
  const char* what;  ///< "write bandwidth"
  const char* tool;
  Words words = {};
  bool same = true;  ///< as what it is compared with: it is to be as fast
};

/// One of perftest's, and what of ours is compared with it.
struct Measured {
  const char* peer;
  const char* size;  ///< as people write it
  int bytes;
  int iterations;  ///< about half a second of bandwidth where nothing else runs
  bool latency;
  std::vector<Ours> ours;
};

const std::vector<Measured>& all_measured() {
  static const std::vector<Measured> all{
      {"ib_write_bw", "64 KiB", 65536, 500, false, {{"write bandwidth", "write_bw"}}},
      {"ib_write_bw", "1 MiB", 1 << 20, 32, false, {{"write bandwidth", "write_bw"}}},
      {"ib_read_bw", "64 KiB", 65536, 500, false, {{"read bandwidth", "read_bw"}}},
      {"ib_read_bw", "1 MiB", 1 << 20, 32, false, {{"read bandwidth", "read_bw"}}},
      {"ib_send_bw", "64 KiB", 65536, 500, false, {{"send bandwidth", "send_bw"}}},
      {"ib_send_bw", "1 MiB", 1 << 20, 32, false, {{"send bandwidth", "send_bw"}}},
      {"ib_write_lat", "8 B", 8, 4000, true, {{"write latency", "write_lat", {"--poll-memory"}}}},
      {"ib_read_lat", "8 B", 8, 4000, true, {{"read latency", "read_lat"}}},
      // A put with its signal takes of the receiver's card what a send takes, a buffer and a completion, and
      // what a write takes.
      {"ib_send_lat",
       "8 B",
       8,
       4000,
       true,
       {{"send latency", "send_lat"}, {"put+signal latency", "write_lat", {}, false}}},
  };
  return all;
}

/// What leaves through a network device is limited while this lives, and loses nothing: what is too much
/// waits.
class Shaped {
 public:
  static Result<Shaped> make(const std::string& device, int megabits) {
    // What the machine did not let through in a fifth of a second may follow.
    CENOTE_TRY(tc({"qdisc", "add", "dev", device, "root", "tbf", "rate", fmt::format("{}mbit", megabits),
                   "burst", std::to_string(megabits * 25'000), "limit", "16777216"}));
    return Shaped(device);
  }
  Shaped(Shaped&& other) noexcept : device_(std::exchange(other.device_, {})) {}
  Shaped& operator=(Shaped&&) = delete;
  ~Shaped() {
    if (!device_.empty()) (void)tc({"qdisc", "del", "dev", device_, "root"});
  }

 private:
  explicit Shaped(std::string device) : device_(std::move(device)) {}
  static Result<void> tc(const Words& words) {
    Words command{"/sbin/tc"};
    command.insert(command.end(), words.begin(), words.end());
    CENOTE_ASSIGN(auto process, PeerProcess::start({std::move(command)}));
    CENOTE_TRY(process.finish(Deadline::in(std::chrono::seconds(30))));
    return {};
  }
  std::string device_;
};

/// Of this machine, by name.
Result<Words> rdma_devices() {
  Words names;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/infiniband", ignored))
    names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  if (names.size() >= 4) return names;
  return fail(Error{ErrorCode::not_found, "look for RDMA devices",
                    fmt::format("there are {}, and it takes four", names.size())}
                  .fix("./dev bench verbs runs it in the test VM"));
}

Result<std::string> network_device_of(const std::string& device) {
  std::ifstream file("/sys/class/infiniband/" + device + "/ports/1/gid_attrs/ndevs/0");
  std::string name;
  if (std::getline(file, name) && !name.empty()) return name;
  return fail(ErrorCode::not_found, "find the network device of " + device, "it names none");
}

struct Bench {
  Processors processors;
  Words devices;
  std::string folder;                           ///< where the programs are started from
  std::map<std::string, std::string> programs;  ///< their paths there, by name
  int pairs = 7;
  std::string only, json;
  std::vector<Row> rows;
  Clock::time_point began = Clock::now();

  [[nodiscard]] bool wanted(const std::string& name) const { return name.find(only) != std::string::npos; }
  void say(const std::string& what) const {
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - began);
    fmt::print(stderr, "{:4} s  {}\n", seconds.count(), what);
  }

  /// What was measured outlives a run that is cut off.
  Result<void> keep(Row row) {
    say(fmt::format("  {}: {:.2f} of {}, {:.2f} to {:.2f}", row.name, row.ratio, row.against, row.spread[0],
                    row.spread[1]));
    rows.push_back(std::move(row));
    return json.empty() ? Result<void>() : write_json(rows, json);
  }

  [[nodiscard]] ToolRun perf_run(const char* tool, const std::string& client,
                                 const std::string& server) const {
    ToolRun run;
    run.program = {programs.at("cenote"), "perf", tool, "--transport", "verbs", "--timeout", "60"};
    run.server = {"--bind", "127.0.0.1", "-d", server};
    run.client = {"127.0.0.1", "-d", client};
    run.both = same_for_all();
    run.environment = {"LD_LIBRARY_PATH=" + folder};
    run.client_waits = true;
    return run;
  }

  /// GID 1, as the VM has IPv4 there. A busy machine answers later than perftest's time-out of 67 ms (-u 14),
  /// and what is then sent again is no measure of anything: half a second.
  static Words same_for_all() { return {"-x", "1", "-u", "17"}; }

  /// A machine that is busy enough lets nothing at all happen while it is measured: once more then.
  [[nodiscard]] Result<double> figure(const ToolRun& run) const {
    for (int attempt = 0; attempt < 3; ++attempt) {
      const auto row = run_tool(run, processors);
      if (!row && row.error().message().find("nothing was complete") == std::string::npos)
        return fail(row.error());
      const double value = !row ? 0 : run.latency ? row->typical() : row->bandwidth();
      if (value > 0) return value;
    }
    return fail(ErrorCode::deadline_exceeded, "measure with " + run.program.front(), "nothing moved");
  }

  [[nodiscard]] Result<double> ours(const Measured& one, const Ours& mine) const {
    ToolRun run = perf_run(mine.tool, devices[0], devices[1]);
    run.both.insert(run.both.end(), {"--rails", "1"});
    run.client.insert(run.client.end(),
                      {"-s", std::to_string(one.bytes), "-n", std::to_string(one.iterations)});
    run.client.insert(run.client.end(), mine.words.begin(), mine.words.end());
    run.latency = one.latency;
    return figure(run);
  }

  [[nodiscard]] Result<double> perftest(const Measured& one) const {
    ToolRun run;
    run.program = {programs.at(one.peer)};
    run.both = same_for_all();
    run.both.insert(run.both.end(),
                    {"-F", "-s", std::to_string(one.bytes), "-n", std::to_string(one.iterations)});
    run.server = {"-d", devices[1]};
    run.client = {"127.0.0.1", "-d", devices[0]};
    run.environment = {"LD_LIBRARY_PATH=" + folder};
    run.latency = one.latency;
    return figure(run);
  }

  /// Perftest, perftest again, and ours, in turns and in all orders.
  Result<void> beside_perftest(const Measured& one) {
    std::vector<std::string> names;
    names.reserve(one.ours.size());
    for (const Ours& mine : one.ours) names.push_back(fmt::format("verbs {}, {}", mine.what, one.size));
    if (std::none_of(names.begin(), names.end(), [&](const auto& name) { return wanted(name); })) return {};
    say(names.front());
    constexpr std::size_t them = 0, again = 1, us = 2;
    std::vector<std::size_t> order(us + one.ours.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::vector<std::vector<Sample>> samples(order.size());
    for (int pair = 0; pair < pairs; ++pair) {
      std::vector<double> figures(order.size());
      for (const std::size_t who : order) {
        CENOTE_ASSIGN(figures[who], who < us ? perftest(one) : ours(one, one.ours[who - us]));
      }
      std::rotate(order.begin(), order.begin() + 1, order.end());
      if (pair % 2 == 1) std::reverse(order.begin(), order.end());
      for (std::size_t who = again; who < order.size(); ++who)
        samples[who].push_back({figures[who], figures[them]});
    }
    const Better better = one.latency ? Better::lower : Better::higher;
    const std::string unit = one.latency ? "us" : "MiB/s";
    const Row itself =
        summarise({fmt::format("{} {}", one.peer, one.size), unit, std::string(one.peer) + " itself", better},
                  samples[again]);
    CENOTE_TRY(keep(itself));
    // Which of the two is called the first is chance.
    const std::optional<double> bar = std::min(itself.spread[0], 1 / itself.spread[1]);
    for (std::size_t i = 0; i < names.size(); ++i)
      CENOTE_TRY(keep(summarise({names[i], unit, one.peer, better, one.ours[i].same ? bar : std::nullopt},
                                samples[us + i])));
    return {};
  }

  [[nodiscard]] Result<double> over_rails(std::size_t first, std::size_t count) const {
    std::string here, there;
    for (std::size_t i = first; i < first + count; ++i) {
      here += (here.empty() ? "" : ",") + devices[i];
      there += (there.empty() ? "" : ",") + devices[i + 2];
    }
    ToolRun run = perf_run("write_bw", here, there);
    run.both.insert(run.both.end(), {"--rails", std::to_string(count)});
    // A rail of several has at most 512 KiB under way; so has one that is alone.
    run.client.insert(run.client.end(),
                      {"-s", "32KiB", "-t", std::to_string(16 * count), "-D", "2", "-f", "0.4"});
    return figure(run);
  }

  Result<void> rails() {
    const Comparison comparison{"verbs write bandwidth, two rails", "MiB/s", "the sum of each rail alone",
                                Better::higher, 0.95};
    if (!wanted(comparison.name)) return {};
    say(comparison.name);
    CENOTE_ASSIGN(const auto fast, network_device_of(devices[0]));
    CENOTE_ASSIGN(const auto slow, network_device_of(devices[1]));
    CENOTE_ASSIGN(const auto fast_wire, Shaped::make(fast, 48));
    CENOTE_ASSIGN(const auto slow_wire, Shaped::make(slow, 16));
    CENOTE_ASSIGN(auto row, compare(
                                comparison, pairs, [&] { return over_rails(0, 2); },
                                [&]() -> Result<double> {
                                  CENOTE_ASSIGN(const double one, over_rails(0, 1));
                                  CENOTE_ASSIGN(const double other, over_rails(1, 1));
                                  return one + other;
                                }));
    return keep(std::move(row));
  }

  Result<void> run() {
    for (const auto& one : all_measured()) CENOTE_TRY(beside_perftest(one));
    CENOTE_TRY(rails());
    say("done");
    return {};
  }
};

/// The VM reads its files from the host, slowly: programs are started from memory.
Result<void> prepare(Bench& bench, const TemporaryFolder& memory) {
  CENOTE_ASSIGN(bench.processors, Processors::choose());
  CENOTE_ASSIGN(bench.devices, rdma_devices());
  bench.folder = memory.path();
  std::error_code failed;
  const auto here = std::filesystem::read_symlink("/proc/self/exe", failed).parent_path();
  std::map<std::string, std::string> from{{"cenote", here / "cenote"}};
  for (const auto& one : all_measured()) from[one.peer] = std::string("/usr/bin/") + one.peer;
  for (const auto& [name, path] : from) {
    if (!std::filesystem::exists(path))
      return fail(Error{ErrorCode::not_found, "look for " + name, "it is not at " + path}.fix(
          "./dev bench verbs installs and builds what it needs"));
    CENOTE_ASSIGN(bench.programs[name], stage_program(path, bench.folder));
  }
  return {};
}

int main_of(int argc, char** argv) {
  CLI::App app("cenote perf over verbs beside perftest, and two unequal rails beside their sum");
  Bench bench;
  app.add_option("--json", bench.json, "also write the rows to this file");
  app.add_option("--pairs", bench.pairs, "measurements of each side")->check(CLI::Range(2, 1000));
  app.add_option("--only", bench.only, "only the rows whose name contains this");
  CLI11_PARSE(app, argc, argv);
  const auto complain = [](const Error& error) {
    fmt::print(stderr, "{}\n", error.message());
    return 2;
  };
  const auto memory = TemporaryFolder::create("bench-verbs", "/dev/shm");
  if (!memory) return complain(memory.error());
  if (const auto prepared = prepare(bench, *memory); !prepared) return complain(prepared.error());
  const auto measured = bench.run();
  fmt::print("{}", table(bench.rows));
  if (!measured) return complain(measured.error());
  return std::all_of(bench.rows.begin(), bench.rows.end(), [](const Row& row) { return row.met; }) ? 0 : 1;
}

}  // namespace
}  // namespace cenote::perf

int main(int argc, char** argv) { return cenote::perf::main_of(argc, argv); }
