// What a worker says of its own: over the scripted fabric, as its process would be set up.
#include <gmock/gmock.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "pool/agent/worker_main.h"
#include "runtime/process.h"
#include "tests/unit/transports/verbs/scripted_provider.h"
#include "transports/fabric.h"

namespace cenote::pool::agent {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

std::string log_of_a_session(LogLevel level) {
  const auto folder = TemporaryFolder::create("worker-log").value();
  transport::verbs::test::ScriptedFabric network;
  network.add_device(transport::verbs::test::roce_device("card0", "10.0.0.1"));
  network.add_device(transport::verbs::test::roce_device("card1", "10.0.0.2"));
  const auto worker_api = network.process("worker", {"card0"}).api();
  const auto client_api = network.process("client", {"card1"}).api();

  transport::FabricOptions over_verbs;
  over_verbs.transports = {"verbs"};
  over_verbs.verbs.api = client_api.get();
  const auto client = transport::Fabric::create(over_verbs).value();

  WorkerSetup setup;
  setup.lease_id = "L7";
  setup.driver = {.machine = "test", .emulated = {{"H200", 64 << 20}}};
  setup.devices = {{.uuid = {}, .model = "H200", .memory_bytes = 64 << 20, .ordinal = 0}};
  setup.memory_limits = {32 << 20};
  setup.fabric = over_verbs;
  setup.fabric.verbs.api = worker_api.get();
  setup.client_fabric_address = client->address();
  setup.log = {.level = level, .format = LogFormat::text, .file = folder.file("log")};
  {
    const auto prepared = prepare_worker(setup, worker_log(setup).value());
    EXPECT_TRUE(prepared) << prepared.error().message();
    if (!prepared) return {};
    CancelFlag cancel;
    const auto link =
        client->connect(prepared->fabric->address(), "worker", setup.channel, Deadline::in(60s));
    EXPECT_TRUE(link) << link.error().message();
    std::thread serving([&] { (void)prepared->worker->serve(cancel); });
    EXPECT_TRUE(link->endpoint->put({}, {}, 0, 1));
    const Deadline deadline = Deadline::in(60s);
    transport::Completion done[1];
    while (link->endpoint->poll(done) == 0 && !deadline.passed()) client->progress();
    EXPECT_FALSE(deadline.passed());
    cancel.raise();
    prepared->fabric->interrupt();
    serving.join();
  }
  std::ostringstream text;
  text << std::ifstream(folder.file("log")).rdbuf();
  return text.str();
}

TEST(WorkerLog, SaysWhatWasChosenForItsRails) {
  const std::string log = log_of_a_session(LogLevel::debug);
  EXPECT_THAT(log, HasSubstr("worker L7"));
  EXPECT_THAT(log, HasSubstr("rail to client of lease L7"));
  EXPECT_THAT(log, HasSubstr("path mtu 4096"));
  EXPECT_THAT(log, HasSubstr("gid "));
}

TEST(WorkerLog, KeepsToItsLevel) {
  EXPECT_THAT(log_of_a_session(LogLevel::info), Not(HasSubstr("path mtu")));
}

}  // namespace
}  // namespace cenote::pool::agent
