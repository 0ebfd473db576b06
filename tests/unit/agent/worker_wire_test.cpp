// The words between an agent and its worker.
#include "pool/agent/worker_wire.h"

#include <gtest/gtest.h>

#include <tuple>

namespace cenote::pool::agent {
namespace {

WorkerSetup a_setup() {
  WorkerSetup setup;
  setup.lease_id = "L1";
  setup.client = "alice";
  setup.generation = 7;
  setup.driver = {
      .machine = "a@b", .emulated = {{"H200", 1024}, {"A100", 512}}, .seed = 3, .adversarial = true};
  setup.devices = {{.uuid = "u0", .model = "H200", .memory_bytes = 1024, .ordinal = 1}};
  setup.memory_limits = {99};
  setup.fabric.transports = {"tcp", "shm"};
  setup.fabric.tcp_host = "10.0.0.1";
  setup.fabric.spin = std::chrono::microseconds(70);
  setup.fabric.ucx.tls = "tcp,self";
  transport::VerbsOptions& verbs = setup.fabric.verbs;
  verbs.devices = {"mlx5_0:1"};
  verbs.rails = 3;
  verbs.mtu = 1024;
  verbs.gid_index = 4;
  verbs.pkey_index = 5;
  verbs.service_level = 6;
  verbs.traffic_class = 7;
  verbs.timeout = 8;
  verbs.retries = 2;
  verbs.queue_depth = 10;
  verbs.receives = 11;
  verbs.connections = 12;
  verbs.relaxed_ordering = false;
  verbs.gpu_memory = {"peermem"};
  verbs.path_bits = 3;
  verbs.near = "0000:17:00.0";
  setup.log = {.level = LogLevel::debug, .format = LogFormat::json, .file = "/var/log/cenote"};
  setup.collectives = {"ring", std::chrono::seconds(7)};
  setup.client_fabric_address = Bytes(40, std::byte{5});
  setup.channel = 12;
  setup.cage = {
      .user = 7, .groups = {44, 109}, .cgroup = "/g", .threads = 9, .filtered = true, .dumpable = false};
  return setup;
}

TEST(WorkerWire, ASetupArrivesAsItWasSent) {
  const auto sent = a_setup();
  const auto got = decode_setup(encode_setup(sent));
  ASSERT_TRUE(got) << got.error().message();
  EXPECT_EQ(encode_setup(*got), encode_setup(sent));
  EXPECT_EQ(got->driver.emulated[1].model, "A100");
  EXPECT_TRUE(got->driver.adversarial);
  EXPECT_EQ(got->devices[0].ordinal, 1U);
  EXPECT_EQ(got->memory_limits, sent.memory_limits);
  EXPECT_EQ(got->fabric.transports, sent.fabric.transports);
  EXPECT_EQ(got->fabric.tcp_host, "10.0.0.1");
  EXPECT_EQ(got->fabric.spin, std::chrono::microseconds(70));
  EXPECT_EQ(got->fabric.ucx.tls, "tcp,self");
  const transport::VerbsOptions &verbs = got->fabric.verbs, &wanted = sent.fabric.verbs;
  EXPECT_EQ(verbs.devices, wanted.devices);
  EXPECT_EQ(std::tie(verbs.rails, verbs.mtu, verbs.gid_index, verbs.pkey_index, verbs.service_level),
            std::tie(wanted.rails, wanted.mtu, wanted.gid_index, wanted.pkey_index, wanted.service_level));
  EXPECT_EQ(
      std::tie(verbs.traffic_class, verbs.timeout, verbs.retries, verbs.queue_depth, verbs.receives),
      std::tie(wanted.traffic_class, wanted.timeout, wanted.retries, wanted.queue_depth, wanted.receives));
  EXPECT_EQ(verbs.connections, 12U);
  EXPECT_FALSE(verbs.relaxed_ordering);
  EXPECT_EQ(verbs.gpu_memory, wanted.gpu_memory);
  EXPECT_EQ(verbs.path_bits, 3);
  EXPECT_EQ(verbs.near, "0000:17:00.0");
  EXPECT_EQ(got->log.level, LogLevel::debug);
  EXPECT_EQ(got->log.format, LogFormat::json);
  EXPECT_EQ(got->log.file, "/var/log/cenote");
  EXPECT_EQ(got->cage.user, 7U);
  EXPECT_EQ(got->cage.groups, sent.cage.groups);
  EXPECT_EQ(got->cage.cgroup, "/g");
  EXPECT_EQ(got->cage.threads, 9U);
  EXPECT_TRUE(got->cage.filtered);
  EXPECT_FALSE(got->cage.dumpable);
  EXPECT_EQ(got->collectives.algorithm, "ring");
  EXPECT_EQ(got->collectives.timeout, std::chrono::seconds(7));
  EXPECT_EQ(got->client_fabric_address, sent.client_fabric_address);
}

TEST(WorkerWire, AnErrorKeepsAllItsParts) {
  WorkerMessage message;
  message.kind = WorkerSays::failed;
  message.error = Error{ErrorCode::driver_error, "open", "out of memory", "gpu 1", "peer", "use less", 2};
  const auto got = decode_message(encode_message(message));
  ASSERT_TRUE(got);
  ASSERT_TRUE(got->error);
  EXPECT_EQ(got->error->message(), message.error->message());
  EXPECT_EQ(got->error->native, 2);
}

TEST(WorkerWire, EveryTruncationIsAnErrorAndNeverReadsPastTheEnd) {
  const auto setup = encode_setup(a_setup());
  for (std::size_t n = 0; n < setup.size(); ++n) {
    EXPECT_FALSE(decode_setup(std::span(setup).first(n))) << n;
  }
  WorkerMessage load;
  load.kind = WorkerSays::load;
  load.use = {{1, 2, 3}, {4, 5, 6}};
  const auto message = encode_message(load);
  for (std::size_t n = 0; n < message.size(); ++n) {
    EXPECT_FALSE(decode_message(std::span(message).first(n))) << n;
  }
}

}  // namespace
}  // namespace cenote::pool::agent
