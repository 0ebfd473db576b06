// A pool over two machines, each with an agent of two GPUs, set up by the commands that docs/cli.md tells its
// reader to type; `cenote demo --pool` trains on all four, and the gradients cross the network over verbs.
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "pool/cli/child_process.h"
#include "runtime/process.h"
#include "tests/multi/agent/cluster.h"
#include "tests/vm/rendezvous.h"

namespace cenote::test::vm {
namespace {

using pool::cli::ChildProcess;
using pool::testing::kCenote;
using pool::testing::run_cenote;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

std::string contents(const std::string& path) {
  auto text = read_file(path, std::size_t{1} << 20);
  EXPECT_TRUE(text) << text.error().message();
  return text ? *text : "";
}

/// `cenote WORDS` for as long as this lives.
struct Service {
  explicit Service(const Words& words) {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe(ends), 0);
    const UniqueFd ready(ends[0]);
    UniqueFd theirs(ends[1]);
    pool::cli::ChildOptions options;
    options.command = {kCenote, "--log-level", "warn"};
    options.command.insert(options.command.end(), words.begin(), words.end());
    options.command.insert(options.command.end(), {"--ready-fd", "3"});
    options.pass = theirs.get();
    auto child = ChildProcess::start(options);
    EXPECT_TRUE(child) << child.error().message();
    if (child) process = std::move(*child);
    theirs.reset();
    // Ends with the line, or with the child.
    for (char c = 0; ::read(ready.get(), &c, 1) == 1 && c != '\n';) endpoint += c;
    EXPECT_FALSE(endpoint.empty()) << "it did not start";
  }
  ChildProcess process;
  std::string endpoint;  ///< where it listens
};

class DemoOnTwoMachines : public TwoVmTest {
 protected:
  [[nodiscard]] std::string tls() const { return folder_.file("tls"); }
  static Words set(const Words& settings) {
    Words words;
    for (const auto& setting : settings) words.insert(words.end(), {"--set", setting});
    return words;
  }
  /// What every process of the pool on this machine is told.
  [[nodiscard]] Words here(const std::string& broker, Words settings = {}) const {
    settings.insert(settings.end(), {"tls.dir=" + tls(), "broker.address=" + broker,
                                     "tcp.host=" + environment().control_address,
                                     "verbs.timeout=" + std::to_string(patient_timeout)});
    return set(settings);
  }
  [[nodiscard]] std::unique_ptr<Service> agent(const std::string& name, const std::string& broker) const {
    Words words = here(broker, {"agent.devices=emulated:H200:256MiB,emulated:A100:256MiB",
                                "agent.listen=" + environment().control_address + ":0"});
    words.insert(words.end(), {"agent", "--name", name});
    return std::make_unique<Service>(words);
  }
  TemporaryFolder folder_ = std::move(*TemporaryFolder::create("cenote-test"));
};

std::uint64_t packets_received() {
  std::uint64_t sum = 0;
  for (const auto& device : environment().devices) {
    std::ifstream in("/sys/class/infiniband/" + device + "/ports/1/hw_counters/rcvd_pkts");
    std::uint64_t value = 0;
    EXPECT_TRUE(in >> value) << device;
    sum += value;
  }
  return sum;
}

TEST_F(DemoOnTwoMachines, GradientsCrossTheNetworkOverVerbsAndTheWeightsAreThoseOfASingleGpu) {
  const Words files = {"ca.pem", "agent-node2.pem", "agent-node2.key"};
  const std::uint64_t before = packets_received();
  if (!first()) {
    const auto broker = other().receive();
    std::filesystem::create_directory(tls());
    for (const auto& file : files) std::ofstream(tls() + "/" + file) << other().receive();
    std::filesystem::permissions(tls() + "/agent-node2.key", std::filesystem::perms::owner_read);
    const auto node2 = agent("node2", broker);
    other().barrier("agents");
    other().barrier("trained");
    const auto exchanged = std::stoull(other().receive());
    EXPECT_GT(packets_received() - before, exchanged / 2 / 4096) << "rxe0 and rxe1 took the gradients";
    return;
  }
  auto made = set({"tls.dir=" + tls()});
  made.insert(made.end(),
              {"broker", "--init-tls", "--agent", "node1", "--agent", "node2", "--client", "alice"});
  ASSERT_EQ(run_cenote(made).exit_code, 0);
  auto words = set({"tls.dir=" + tls(), "broker.state_dir=" + folder_.file("broker"),
                    "broker.listen=" + environment().control_address + ":0"});
  words.emplace_back("broker");
  const Service broker(words);
  other().send(broker.endpoint);
  for (const auto& file : files) other().send(contents(tls() + "/" + file));
  const auto node1 = agent("node1", broker.endpoint);
  other().barrier("agents");

  auto demo = here(broker.endpoint);
  demo.insert(demo.end(),
              {"demo", "--pool", "--epochs", "1", "--hidden", "16", "--json", folder_.file("figures")});
  const auto result = run_cenote(demo);
  ASSERT_EQ(result.exit_code, 1) << "one epoch is too few";
  ASSERT_THAT(result.error, HasSubstr("less than 0.95"));
  EXPECT_THAT(result.output, HasSubstr("2 agents with 4 GPUs"));
  const auto figures = nlohmann::json::parse(contents(folder_.file("figures")));
  EXPECT_EQ(figures["weights_bit_equal"], true);
  EXPECT_THAT(figures["client_transports"], ::testing::UnorderedElementsAre("shm", "verbs"));
  std::uint64_t exchanged = 0;
  for (const auto& pair : figures["pairs"]) {
    const bool same_machine = pair["from"].get<int>() / 2 == pair["to"].get<int>() / 2;
    EXPECT_EQ(pair["transport"], same_machine ? "shm" : "verbs") << pair;
    if (!same_machine) exchanged += pair["bytes"].get<std::uint64_t>();
  }
  EXPECT_GE(exchanged,
            figures["steps"].get<std::uint64_t>() * figures["gradient_bytes"].get<std::uint64_t>());
  other().barrier("trained");
  other().send(std::to_string(exchanged));
}

}  // namespace
}  // namespace cenote::test::vm
