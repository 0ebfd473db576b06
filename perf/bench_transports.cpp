// bench_transports [--json FILE] [--pairs N] [--only TEXT]: put latency and bandwidth of our transports
// beside ucx_perftest, bare UCX and plain sockets. Exit: 0 all bars met, 1 one is not, 2 it could not be
// measured.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <functional>

#include "perf/harness.h"
#include "perf/plain_sockets.h"
#include "perf/plain_ucx.h"
#include "perf/two_processes.h"
#include "perf/ucx_perftest.h"
#include "transports/shm/shm.h"
#include "transports/tcp/tcp.h"
#include "transports/ucx/ucx.h"

namespace cenote::perf {
namespace {

using transport::Completion;
using transport::Transport;
using Maker = std::function<Result<std::unique_ptr<Transport>>()>;

constexpr std::size_t mebibyte = 1 << 20;
constexpr auto patience = std::chrono::seconds(60);

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Progresses until the peer has given signal `slot` `count` times. False: the endpoint failed.
bool signalled(Side& side, std::uint32_t slot, std::uint64_t count) {
  for (std::uint64_t turns = 1; side.endpoint.signal(slot) < count; ++turns) {
    side.transport.progress();
    if (turns % 1'000'000 == 0 && side.endpoint.failure()) return false;
  }
  return true;
}

Result<void> until_signal(Side& side, std::uint32_t slot, std::uint64_t count) {
  if (signalled(side, slot, count)) return {};
  return fail(std::move(*side.endpoint.failure()));
}

Result<void> put(Side& side, std::span<const std::byte> data, std::uint32_t signal) {
  const Deadline deadline = Deadline::in(patience);
  while (true) {
    auto posted = side.endpoint.put(data, {&side.peer_key, 0}, signal, 0);
    Completion done[8];
    while (side.endpoint.poll(done) != 0) {
    }
    if (posted || posted.error().code != ErrorCode::resource_exhausted || deadline.passed()) return posted;
    side.transport.progress();
  }
}

/// Half a round trip of 8 bytes and a signal, in microseconds. The receiver reads what came. The loop makes
/// no Result but the put's own: clearing one costs as much as a cache miss.
Result<double> latency(Side& side, int iterations, int warmup) {
  auto start = Clock::now();
  std::uint64_t round = 0, came = 0;
  const auto take = [&] {
    if (!signalled(side, 0, round)) return false;
    std::memcpy(&came, side.memory.bytes().data(), sizeof came);
    return came == round;
  };
  for (int i = -warmup; i < iterations; ++i) {
    if (i == 0) start = Clock::now();
    ++round;
    if (!side.first && !take()) break;
    if (auto put = side.endpoint.put(std::as_bytes(std::span(&round, 1)), {&side.peer_key, 0}, 0, 0); !put)
      return fail(std::move(put).error());
    Completion done;
    while (side.endpoint.poll(std::span(&done, 1)) == 0) side.transport.progress();
    if (done.error) return fail(std::move(*done.error));
    if (side.first && !take()) break;
  }
  if (auto failure = side.endpoint.failure()) return fail(std::move(*failure));
  if (came != round) return fail(ErrorCode::internal, "measure latency", "other bytes came than were put");
  return seconds_since(start) / iterations / 2 * 1e6;
}

/// Puts of 1 MiB one behind the other, until the peer confirms the last; 10^9 bytes a second.
Result<double> bandwidth(Side& side, int iterations, int warmup) {
  Bytes data(mebibyte, std::byte{7});
  auto start = Clock::now();
  for (const int count : {warmup, iterations}) {
    const std::uint64_t rounds = count == warmup ? 1 : 2;
    start = Clock::now();
    if (side.first) {
      for (int i = 0; i < count; ++i) CENOTE_TRY(put(side, data, i + 1 == count ? 0 : transport::no_signal));
      CENOTE_TRY(until_signal(side, 0, rounds));
    } else {
      CENOTE_TRY(until_signal(side, 0, rounds));
      CENOTE_TRY(put(side, {}, 0));
      side.transport.progress();
    }
  }
  return static_cast<double>(iterations) * mebibyte / seconds_since(start) / 1e9;
}

struct Bench {
  Processors processors;
  int pairs = 7;
  std::string only;
  std::vector<Row> rows;

  [[nodiscard]] bool wanted(const std::string& name) const { return name.find(only) != std::string::npos; }

  Result<void> beside_ucx(const std::string& name, const Maker& make, const std::string& tls, bool is_latency,
                          int iterations, std::optional<double> bar) {
    if (!wanted(name)) return {};
    const Comparison comparison{name, is_latency ? "us" : "GB/s", "ucx_perftest " + tls,
                                is_latency ? Better::lower : Better::higher, bar};
    const UcxRun run{tls, is_latency ? "ucp_put_lat" : "ucp_put_bw", is_latency ? 8 : mebibyte, iterations,
                     iterations / 10};
    CENOTE_ASSIGN(auto row, compare(
                                comparison, pairs, [&] { return ours(make, is_latency, iterations); },
                                [&]() -> Result<double> {
                                  CENOTE_ASSIGN(const UcxResult result, run_ucx(run, processors));
                                  return is_latency ? result.latency_us : result.bandwidth_gbps;
                                }));
    rows.push_back(std::move(row));
    return {};
  }

  /// What our contract costs over UCX: against bare UCX, and, for what it leaves out, against its one-sided
  /// put.
  Result<void> over_ucx(const std::string& name, const std::string& tls, bool is_latency, int iterations) {
    if (!wanted(name)) return {};
    transport::UcxOptions options;
    options.tls = tls;
    const Maker make = [options] { return transport::make_ucx_transport(options); };
    // Who uses UCX by himself has it as it comes; "our settings" shows what is due to the settings alone.
    const std::optional<double> bar = is_latency ? 1 / 1.3 : 0.95;
    for (const auto settings : {PlainUcx::with_our_settings, PlainUcx::as_it_comes}) {
      const std::string against =
          "bare UCX " + tls + (settings == PlainUcx::as_it_comes ? "" : ", our settings");
      const Comparison comparison{name, is_latency ? "us" : "GB/s", against,
                                  is_latency ? Better::lower : Better::higher,
                                  settings == PlainUcx::as_it_comes ? bar : std::nullopt};
      CENOTE_ASSIGN(auto row, compare(
                                  comparison, pairs, [&] { return ours(make, is_latency, iterations); },
                                  [&] {
                                    return is_latency
                                               ? plain_ucx_latency(processors, tls, settings, iterations)
                                               : plain_ucx_bandwidth(processors, tls, settings, mebibyte,
                                                                     iterations);
                                  }));
      rows.push_back(std::move(row));
    }
    return beside_ucx(name, make, tls, is_latency, iterations, std::nullopt);
  }

  Result<double> ours(const Maker& make, bool is_latency, int iterations) const {
    return in_two_processes(processors, make, mebibyte, [&](Side& side) {
      return is_latency ? latency(side, iterations, iterations / 10)
                        : bandwidth(side, iterations, iterations / 10);
    });
  }

  Result<void> run() {
    const Maker shm = [] { return transport::make_shm_transport(); };
    const Maker tcp = [] { return transport::make_tcp_transport(); };
    CENOTE_TRY(beside_ucx("shm put latency, 8 B", shm, "posix,self", true, 100'000, 1 / 1.5));
    CENOTE_TRY(beside_ucx("shm put bandwidth, 1 MiB", shm, "posix,self", false, 1'000, 0.9));
    CENOTE_TRY(beside_ucx("tcp put latency, 8 B", tcp, "tcp", true, 5'000, 1.0));
    CENOTE_TRY(beside_ucx("tcp put bandwidth, 1 MiB", tcp, "tcp", false, 1'000, 1.0));
    CENOTE_TRY(over_ucx("ucx posix put latency, 8 B", "posix", true, 100'000));
    CENOTE_TRY(over_ucx("ucx posix put bandwidth, 1 MiB", "posix", false, 1'000));
    CENOTE_TRY(over_ucx("ucx tcp put latency, 8 B", "tcp", true, 5'000));
    CENOTE_TRY(over_ucx("ucx tcp put bandwidth, 1 MiB", "tcp", false, 1'000));
    const Comparison limit{"tcp put bandwidth, 1 MiB", "GB/s", "plain blocking sockets", Better::higher};
    if (!wanted(limit.name)) return {};
    CENOTE_ASSIGN(auto row, compare(
                                limit, pairs, [&] { return ours(tcp, false, 1'000); },
                                [&] { return plain_socket_bandwidth(processors, mebibyte, 1'000); }));
    rows.push_back(std::move(row));
    return {};
  }
};

int main_of(int argc, char** argv) {
  CLI::App app(
      "put latency and bandwidth of shm, tcp and ucx beside ucx_perftest, bare UCX and plain sockets");
  std::string json;
  Bench bench;
  app.add_option("--json", json, "also write the rows to this file");
  app.add_option("--pairs", bench.pairs, "measurements of each side")->check(CLI::Range(2, 1000));
  app.add_option("--only", bench.only, "only the rows whose name contains this");
  CLI11_PARSE(app, argc, argv);
  const auto complain = [](const Error& error) {
    fmt::print(stderr, "{}\n", error.message());
    return 2;
  };
  auto processors = Processors::choose();
  if (!processors) return complain(processors.error());
  bench.processors = *processors;
  const auto measured = bench.run();
  fmt::print("{}", table(bench.rows));
  if (!json.empty()) {
    if (const auto written = write_json(bench.rows, json); !written) return complain(written.error());
  }
  if (!measured) return complain(measured.error());
  for (const Row& row : bench.rows) {
    if (!row.met) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace cenote::perf

int main(int argc, char** argv) { return cenote::perf::main_of(argc, argv); }
