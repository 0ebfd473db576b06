#include "perf/ucx_perftest.h"

#include <filesystem>
#include <sstream>
#include <vector>

#include "perf/peer_process.h"

namespace cenote::perf {
namespace {

constexpr const char* program = "/usr/bin/ucx_perftest";

}  // namespace

Result<UcxResult> run_ucx(const UcxRun& run, const Processors& processors) {
  if (!std::filesystem::exists(program))
    return fail(Error{ErrorCode::not_found, "run ucx_perftest", std::string(program) + " is not there"}.fix(
        "apt-get install ucx-utils"));
  CENOTE_ASSIGN(const auto port, free_port());
  const auto start = [&](int processor, const std::vector<std::string>& more) {
    std::vector<std::string> all{program, "-p", std::to_string(port)};
    all.insert(all.end(), more.begin(), more.end());
    return PeerProcess::start({std::move(all), processor, {"UCX_TLS=" + run.transports}});
  };
  CENOTE_ASSIGN(const PeerProcess server, start(processors.second, {}));
  CENOTE_TRY(await_listener(port, server, Deadline::in(std::chrono::seconds(20))));
  CENOTE_ASSIGN(
      PeerProcess client,
      start(processors.first, {"127.0.0.1", "-t", run.test, "-s", std::to_string(run.bytes), "-n",
                               std::to_string(run.iterations), "-w", std::to_string(run.warmup), "-f"}));
  CENOTE_ASSIGN(const std::string text, client.finish(Deadline::in(std::chrono::minutes(10))));
  // The last line of numbers: iterations, then latency typical, average, overall, bandwidth average, overall.
  std::istringstream lines(text);
  UcxResult result;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    double iterations = 0, typical = 0, average = 0, latency = 0, bandwidth_average = 0, bandwidth = 0;
    if (!(in >> iterations >> typical >> average >> latency >> bandwidth_average >> bandwidth)) continue;
    result.latency_us = latency;
    result.bandwidth_gbps = bandwidth * 1024 * 1024 / 1e9;
  }
  if (result.latency_us <= 0)
    return fail(ErrorCode::peer_failed, "run ucx_perftest -t " + run.test, "it printed no result: " + text);
  return result;
}

}  // namespace cenote::perf
