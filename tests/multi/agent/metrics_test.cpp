// What Prometheus is told of a pool that works, over HTTP, held against `cenote top`.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <map>
#include <regex>
#include <sstream>

#include "runtime/tcp_socket.h"
#include "tests/multi/agent/cluster.h"
#include "tests/multi/agent/work.h"

namespace cenote::pool::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// "name{labels}" -> value
using Samples = std::map<std::string, double>;

std::string free_address() {
  const auto listener = listen_on({"127.0.0.1", 0}, 1);
  EXPECT_TRUE(listener.has_value());
  return local_address(listener->get())->text();
}

std::string http_get(const std::string& address) {
  auto socket = start_connecting(*SocketAddress::parse(address));
  if (!socket) return {};
  pollfd ready{socket->get(), POLLOUT, 0};
  (void)::poll(&ready, 1, 10'000);
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n";
  (void)::send(socket->get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string text;
  char bytes[4096];
  for (ready.events = POLLIN; ::poll(&ready, 1, 10'000) == 1;) {
    const auto got = ::recv(socket->get(), bytes, sizeof bytes, 0);
    if (got <= 0) break;
    text.append(bytes, static_cast<std::size_t>(got));
  }
  return text;
}

/// Every line is one that the format allows, and each sample follows the TYPE of its family.
Samples scrape(const std::string& address) {
  const auto answer = http_get(address);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  static const std::regex comment("# (HELP|TYPE) ([a-z_]+) .+");
  static const std::regex sample(R"re(([a-z_]+)(\{([a-z_]+="[^"\n]*",?)+\})? (\S+))re");
  Samples samples;
  std::string typed;
  std::istringstream lines(answer.substr(std::min(answer.find("\r\n\r\n"), answer.size() - 4) + 4));
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    if (line.starts_with("#")) {
      EXPECT_TRUE(std::regex_match(line, found, comment)) << line;
      if (line.starts_with("# TYPE ")) typed = found[2];
      continue;
    }
    EXPECT_TRUE(std::regex_match(line, found, sample)) << line;
    EXPECT_THAT(found[1].str(), StartsWith(typed)) << line;
    EXPECT_TRUE(samples.emplace(found[1].str() + found[2].str(), std::stod(found[4])).second) << line;
  }
  return samples;
}

/// A broker and one agent with two cards, both with metrics.
class MetricsOfAPool : public ::testing::Test {
 protected:
  void SetUp() override {
    cli::ProcessSetOptions options;
    options.executable = kCenote;
    options.prefix = "cenote-test";
    options.agents = {{"a", "emulated:H200:64MiB,emulated:H200:64MiB"}};
    options.settings = {"broker.heartbeat=50ms", "broker.agent_timeout=1s", "broker.agent_dead=2s",
                        "broker.metrics=" + broker, "agent.metrics=" + agent};
    auto made = cli::ProcessSet::create(std::move(options));
    ASSERT_TRUE(made.has_value()) << made.error().message();
    pool = std::move(*made);
    const auto started = pool->start(patience());
    ASSERT_TRUE(started.has_value()) << started.error().message();
  }
  bool shows(const std::string& address, const Samples& wanted) {
    Samples last;
    const bool shown = eventually([&] {
      last = scrape(address);
      return std::ranges::all_of(
          wanted, [&](const auto& one) { return last.contains(one.first) && last[one.first] == one.second; });
    });
    for (const auto& [name, value] : wanted)
      EXPECT_TRUE(last.contains(name) && last[name] == value)
          << name << " is " << (last.contains(name) ? std::to_string(last[name]) : "missing") << ", not "
          << value;
    return shown;
  }
  const std::string broker = free_address(), agent = free_address();
  std::unique_ptr<cli::ProcessSet> pool;
};

TEST_F(MetricsOfAPool, AgreeWithTop) {
  EXPECT_TRUE(shows(broker, {{"cenote_broker_agents{state=\"alive\"}", 1},
                             {"cenote_broker_agents{state=\"silent\"}", 0},
                             {"cenote_broker_agent_up{agent=\"a\"}", 1},
                             {"cenote_broker_gpus{state=\"free\"}", 2},
                             {"cenote_broker_gpus{state=\"leased\"}", 0},
                             {"cenote_broker_leases", 0},
                             {"cenote_broker_term", 1}}));
  EXPECT_TRUE(shows(agent, {{"cenote_agent_gpus{state=\"free\"}", 2}, {"cenote_agent_broker_reached", 1}}));
  const auto client = pool->client();
  ASSERT_TRUE(client.has_value());
  auto lease = (*client)->lease({.gpus = 1, .ttl = std::chrono::seconds(60)}, patience());
  ASSERT_TRUE(lease.has_value()) << lease.error().message();
  EXPECT_FALSE((*client)->lease({.gpus = 2, .ttl = std::chrono::seconds(60)}, patience()).has_value());
  auto work = CountingWork::open(**lease, patience());
  ASSERT_TRUE(work.has_value()) << work.error().message();
  ASSERT_TRUE(work->round().has_value());
  EXPECT_TRUE(shows(broker, {{"cenote_broker_gpus{state=\"free\"}", 1},
                             {"cenote_broker_gpus{state=\"leased\"}", 1},
                             {"cenote_broker_leases", 1},
                             {"cenote_broker_leases_granted_total", 1},
                             {"cenote_broker_requests_refused_total{reason=\"resource exhausted\"}", 1}}));
  EXPECT_TRUE(shows(agent, {{"cenote_agent_gpus{state=\"leased\"}", 1},
                            {"cenote_agent_workers", 1},
                            {"cenote_agent_workers_started_total", 1}}));
  // What the tables say, the samples say: launches and memory, once the load has come there.
  EXPECT_TRUE(eventually([&] {
    const auto top = (*client)->top(patience());
    if (!top) return false;
    const auto samples = scrape(agent);
    std::uint64_t launches = 0;
    for (const auto& device : top->agents.at(0).devices) {
      launches += device.launches;
      const auto labels = "{gpu=\"" + device.uuid + "\",model=\"" + device.model + "\"}";
      if (samples.at("cenote_agent_gpu_launches" + labels) != static_cast<double>(device.launches) ||
          samples.at("cenote_agent_gpu_memory_bytes" + labels) != static_cast<double>(device.memory_bytes) ||
          samples.at("cenote_agent_gpu_memory_used_bytes" + labels) !=
              static_cast<double>(device.memory_used_bytes))
        return false;
    }
    return launches == 1;
  }));
  ASSERT_TRUE((*lease)->release(patience()).has_value());
  EXPECT_TRUE(shows(broker, {{"cenote_broker_leases_ended_total{cause=\"released\"}", 1},
                             {"cenote_broker_leases_ended_total{cause=\"failed\"}", 0},
                             {"cenote_broker_gpus{state=\"free\"}", 2}}));
  const auto samples = scrape(broker);
  EXPECT_GT(samples.at("cenote_broker_heartbeats_total"), 1);
  EXPECT_GE(samples.at("cenote_broker_store_write_seconds_count"), 4);
  EXPECT_EQ(samples.at("cenote_broker_store_write_seconds_bucket{le=\"+Inf\"}"),
            samples.at("cenote_broker_store_write_seconds_count"));
  EXPECT_EQ(samples.at("cenote_broker_store_failures_total"), 0);
}

TEST_F(MetricsOfAPool, TellOfWorkersAndAgentsThatDie) {
  const auto client = pool->client();
  ASSERT_TRUE(client.has_value());
  auto lease = (*client)->lease({.gpus = 1, .ttl = std::chrono::seconds(60)}, patience());
  ASSERT_TRUE(lease.has_value()) << lease.error().message();
  const auto work = CountingWork::open(**lease, patience());  // kept: without it the worker ends by itself
  ASSERT_TRUE(work.has_value());
  const auto workers = pool->worker_pids("a");
  ASSERT_EQ(workers.size(), 1U);
  ::kill(workers[0], SIGKILL);
  EXPECT_TRUE(
      shows(agent, {{"cenote_agent_workers_ended_total{how=\"died\"}", 1}, {"cenote_agent_workers", 0}}));
  EXPECT_TRUE(shows(broker, {{"cenote_broker_leases_ended_total{cause=\"failed\"}", 1}}));
  pool->kill_agent("a");
  EXPECT_TRUE(shows(broker, {{"cenote_broker_agents{state=\"silent\"}", 1},
                             {"cenote_broker_agent_up{agent=\"a\"}", 0},
                             {"cenote_broker_agents_lost_total", 1},
                             {"cenote_broker_gpus{state=\"unreachable\"}", 2}}));
}

TEST_F(MetricsOfAPool, APortThatIsTakenIsSaid) {
  const auto folder = TemporaryFolder::create("cenote-test");
  ASSERT_TRUE(folder.has_value());
  const auto result =
      run_cenote({"--config", pool->config_file(), "broker", "--set", "broker.state_dir=" + folder->path(),
                  "--set", "broker.listen=127.0.0.1:0", "--set", "broker.metrics=" + broker});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.error, HasSubstr("listen on " + broker));
}

}  // namespace
}  // namespace cenote::pool::testing
