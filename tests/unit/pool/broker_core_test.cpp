#include "tests/unit/pool/broker_core.h"

#include <atomic>
#include <thread>

namespace cenote::pool {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(BrokerCoreTest, GrantsASignedLeaseForTheClientsKey) {
  enrol("a", 2);
  const auto granted = lease(2);
  const auto token = unseal(granted.token, core_->public_key());
  ASSERT_TRUE(token) << token.error().message();
  EXPECT_EQ(token->lease_id, granted.id);
  EXPECT_EQ(token->client, "alice");
  EXPECT_EQ(token->client_key, key_.public_key());
  EXPECT_EQ(token->expires_unix_ms, clock_.unix_ms() + policy_.default_ttl_ms);
  EXPECT_EQ(token->devices.front(), (TokenDevice{"a0", "a", 8 * kGiB, 1000, 1}));
  EXPECT_EQ(granted.devices.front().endpoint, "a:1");
  ASSERT_EQ(core_->list().size(), 1U);
  EXPECT_THAT(core_->list().front().token, IsEmpty());
}

TEST_F(BrokerCoreTest, GrantsTheSameRequestOnce) {
  enrol("a", 2);
  const auto first = lease(1, "job-1");
  const auto again = lease(1, "job-1");
  EXPECT_EQ(first.id, again.id);
  EXPECT_EQ(first.token, again.token);
  EXPECT_EQ(core_->list().size(), 1U);
  auto thief = ask(1, "job-1");
  thief.client_key = KeyPair::generate()->public_key();
  EXPECT_EQ(core_->request(thief).error().code, ErrorCode::already_exists);
  auto other = ask(1, "job-1");
  other.client = "bob";  // ids are each client's own
  EXPECT_TRUE(core_->request(other));
  ASSERT_TRUE(core_->release(first.id, proof("release", first.id)));
  EXPECT_EQ(core_->request(ask(1, "job-1")).error().code, ErrorCode::not_found);
}

TEST_F(BrokerCoreTest, ARestartFindsTheSameLeasesInANewTerm) {
  policy_.snapshot_every = 4;
  start();
  enrol("a", 4);
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) ids.push_back(lease(1, std::to_string(i)).id);
  const auto before = core_->state();
  start();
  EXPECT_EQ(core_->state().term, before.term + 1);
  expect_same_but_for_the_term(core_->state(), before);
  EXPECT_EQ(lease(1, "0").id, ids[0]) << "a request repeated over a restart";
}

TEST_F(BrokerCoreTest, AnOutageLongerThanTheTtlLosesNoLease) {
  policy_.grace_ms = 600'000;
  start();
  enrol("a", 1);
  const auto granted = lease(1);
  clock_.turn(policy_.default_ttl_ms + 300'000);  // its agent keeps it: the grace is not over
  start();
  core_->tick();
  ASSERT_EQ(core_->list().size(), 1U) << "nobody could have renewed it";
  enrol("a", 1);
  EXPECT_THAT(pulse("a", {{granted.id, 1}}).end_leases, IsEmpty());
  clock_.turn(policy_.default_ttl_ms - 10'000);
  pulse("a", {{granted.id, 1}});
  core_->tick();
  const auto renewed = core_->renew(granted.id, 0, proof("renew", granted.id));
  ASSERT_TRUE(renewed) << renewed.error().message();
  EXPECT_EQ(renewed->expires_ms, clock_.unix_ms() + policy_.default_ttl_ms);
  const auto told = pulse("a", {{granted.id, 1}});
  ASSERT_EQ(told.renewed.size(), 1U);
  EXPECT_EQ(told.renewed.front().expires_ms, renewed->expires_ms);

  // From here on it is a lease like any other, also after the next restart.
  start();
  EXPECT_EQ(core_->list().size(), 1U);
  enrol("a", 1);
  EXPECT_TRUE(core_->renew(granted.id, 0, proof("renew", granted.id)));
  clock_.turn(policy_.default_ttl_ms);
  pulse("a", {{granted.id, 1}});
  core_->tick();
  EXPECT_THAT(core_->list(), IsEmpty());
}

TEST_F(BrokerCoreTest, ALeaseThatNobodyRenewsAfterTheOutageStillEnds) {
  policy_.grace_ms = 600'000;
  start();
  enrol("a", 1);
  const auto granted = lease(1);
  clock_.turn(policy_.default_ttl_ms + 300'000);
  start();
  enrol("a", 1);
  clock_.turn(policy_.default_ttl_ms - 1);
  pulse("a", {{granted.id, 1}});
  core_->tick();
  EXPECT_EQ(core_->list().size(), 1U);
  clock_.turn(1);
  EXPECT_THAT(pulse("a", {{granted.id, 1}}).end_leases, IsEmpty());
  core_->tick();
  EXPECT_THAT(core_->list(), IsEmpty());
  EXPECT_THAT(pulse("a", {{granted.id, 1}}).end_leases, ElementsAre(granted.id));
  const auto late = core_->renew(granted.id, 0, proof("renew", granted.id));
  ASSERT_FALSE(late);
  EXPECT_THAT(late.error().message(), HasSubstr("it expired"));
  EXPECT_FALSE(core_->request(ask(1))) << "its agent has not confirmed yet";
  pulse("a", {}, {{granted.id, "told to"}});
  EXPECT_TRUE(core_->request(ask(1)));
}

TEST_F(BrokerCoreTest, AnOutageLongerThanTheGraceEndsTheLeaseAndKeepsTheFence) {
  enrol("a", 1);
  const auto granted = lease(1);
  const auto over = granted.expires_ms + policy_.grace_ms;  // no agent runs it beyond this
  clock_.turn(over - 1 - clock_.unix_ms());
  start();
  core_->tick();
  EXPECT_EQ(core_->list().size(), 1U) << "the wait for renewals ends with the grace...";
  clock_.turn(1);
  EXPECT_FALSE(core_->renew(granted.id, 0, *make_proof(key_, "renew", granted.id, "broker", over)));
  core_->tick();
  EXPECT_THAT(core_->list(), IsEmpty()) << "...which is over";
  clock_.turn(policy_.drift_ms - 1);
  core_->tick();
  EXPECT_EQ(core_->state().leases.size(), 1U) << "unconfirmed, it is held until the fence";
  clock_.turn(1);
  core_->tick();
  EXPECT_TRUE(core_->state().leases.empty());
}

TEST_F(BrokerCoreTest, AShortLeaseGetsTenSecondsAfterARestart) {
  enrol("a", 1);
  auto brief = ask(1);
  brief.ttl_ms = 1'000;
  ASSERT_TRUE(core_->request(brief));
  start();
  clock_.turn(kLeastHoldMs - 1);
  core_->tick();
  EXPECT_EQ(core_->list().size(), 1U);
  clock_.turn(1);
  core_->tick();
  EXPECT_THAT(core_->list(), IsEmpty());
}

TEST_F(BrokerCoreTest, ARestartedBrokerPlacesNothingOnAgentsItHasNotHeard) {
  enrol("a", 1);
  start();
  EXPECT_THAT(core_->request(ask(1)).error().cause, HasSubstr("1 on agents that are silent"));
  EXPECT_TRUE(pulse("a").register_again);
  const auto appends = disk_.appends;
  EXPECT_EQ(enrol("a", 1).term, core_->state().term);
  EXPECT_EQ(disk_.appends, appends) << "an agent that is known is not logged again";
  EXPECT_TRUE(core_->request(ask(1)));
}

TEST_F(BrokerCoreTest, ExpiresWhatNobodyRenewsAndTellsTheAgent) {
  enrol("a", 1);
  const auto granted = lease(1);
  clock_.turn(policy_.default_ttl_ms - 1'000);
  pulse("a", {{granted.id, 1}});
  core_->tick();
  EXPECT_EQ(core_->list().size(), 1U);
  clock_.turn(1'000);
  core_->tick();
  EXPECT_TRUE(core_->list().empty());
  const auto late = core_->renew(granted.id, 0, proof("renew", granted.id));
  ASSERT_FALSE(late);
  EXPECT_THAT(late.error().message(), HasSubstr("it expired"));
  const auto told = pulse("a", {{granted.id, 1}});
  EXPECT_THAT(told.end_leases, ElementsAre(granted.id));
  EXPECT_EQ(told.floors.front().epoch, 2U);
  EXPECT_FALSE(core_->request(ask(1)));
  pulse("a", {}, {{granted.id, "expired"}});
  EXPECT_TRUE(core_->request(ask(1)));
}

TEST_F(BrokerCoreTest, ARenewalReachesTheAgent) {
  enrol("a", 1);
  const auto granted = lease(1);
  clock_.turn(30'000);
  const auto renewed = core_->renew(granted.id, 90'000, proof("renew", granted.id));
  ASSERT_TRUE(renewed) << renewed.error().message();
  EXPECT_EQ(renewed->expires_ms, clock_.unix_ms() + 90'000);
  const auto told = pulse("a", {{granted.id, 1}});
  ASSERT_EQ(told.renewed.size(), 1U);
  EXPECT_EQ(told.renewed.front().expires_ms, renewed->expires_ms);
  EXPECT_EQ(core_->renew(granted.id, policy_.max_ttl_ms + 1, proof("renew", granted.id)).error().code,
            ErrorCode::invalid_argument);
}

TEST_F(BrokerCoreTest, TakesEachProofOnceAlsoAfterARestart) {
  enrol("a", 1);
  const auto granted = lease(1);
  const auto once = proof("renew", granted.id);
  ASSERT_TRUE(core_->renew(granted.id, 0, once));
  EXPECT_EQ(core_->renew(granted.id, 0, once).error().code, ErrorCode::permission_denied);
  start();
  EXPECT_EQ(core_->renew(granted.id, 0, once).error().code, ErrorCode::permission_denied);
  EXPECT_EQ(core_->release(granted.id, once).error().code, ErrorCode::permission_denied)
      << "made for another purpose";
  EXPECT_TRUE(core_->release(granted.id, proof("release", granted.id)));
}

TEST_F(BrokerCoreTest, ReleasingTwiceIsASuccessForItsOwnerOnly) {
  enrol("a", 1);
  const auto granted = lease(1);
  ASSERT_TRUE(core_->release(granted.id, proof("release", granted.id)));
  EXPECT_TRUE(core_->release(granted.id, proof("release", granted.id)));
  pulse("a", {}, {{granted.id, "released"}});
  EXPECT_TRUE(core_->release(granted.id, proof("release", granted.id)));
  const auto forged = *make_proof(*KeyPair::generate(), "release", granted.id, "broker", clock_.unix_ms());
  EXPECT_EQ(core_->release(granted.id, forged).error().code, ErrorCode::permission_denied);
  EXPECT_EQ(core_->release("nothing", proof("release", "nothing")).error().code, ErrorCode::not_found);
}

TEST_F(BrokerCoreTest, ADeadWorkerEndsItsLeaseOnEveryAgent) {
  enrol("a", 1);
  enrol("b", 1);
  const auto granted = lease(2);
  pulse("a", {}, {{granted.id, "worker killed by signal 9"}});
  EXPECT_TRUE(core_->list().empty());
  EXPECT_THAT(pulse("b", {{granted.id, 1}}).end_leases, ElementsAre(granted.id));
  EXPECT_THAT(core_->state().leases.at(granted.id).end_text, HasSubstr("agent a: worker killed by signal 9"));
}

TEST_F(BrokerCoreTest, ASilentAgentGetsNothingNewAndThenLosesItsLeases) {
  enrol("a", 2);
  enrol("b", 2);
  const auto granted = lease(3);
  clock_.turn(policy_.agent_timeout_ms + 1);
  pulse("b", {{granted.id, 1}});
  core_->tick();
  EXPECT_FALSE(core_->state().agents.at("a").alive);
  EXPECT_EQ(core_->list().size(), 1U) << "a short silence costs no lease";
  clock_.turn(policy_.agent_dead_ms);
  EXPECT_THAT(pulse("b", {{granted.id, 1}}).end_leases, IsEmpty());
  core_->tick();
  EXPECT_TRUE(core_->list().empty());
  EXPECT_THAT(pulse("b", {{granted.id, 1}}).end_leases, ElementsAre(granted.id));
  pulse("b", {}, {{granted.id, "told to"}});
  EXPECT_TRUE(core_->request(ask(2))) << "what lived is free again";

  // The silent agent's own devices stay fenced until nothing can run there.
  pulse("a", {{granted.id, 1}});
  EXPECT_TRUE(core_->state().agents.at("a").alive);
  EXPECT_FALSE(core_->request(ask(2)));
}

TEST_F(BrokerCoreTest, AnAgentThatNeverComesBackIsReclaimedAfterTheFence) {
  enrol("a", 1);
  const auto granted = lease(1);
  clock_.turn(policy_.agent_dead_ms + 1);
  core_->tick();
  core_->tick();
  ASSERT_TRUE(core_->list().empty());
  const auto fence = granted.expires_ms + policy_.grace_ms + policy_.drift_ms;
  clock_.turn(fence - 1 - clock_.unix_ms());
  core_->tick();
  EXPECT_EQ(core_->state().leases.size(), 1U);
  clock_.turn(1);
  core_->tick();
  EXPECT_TRUE(core_->state().leases.empty());
}

TEST_F(BrokerCoreTest, ARestartedAgentIsToldWhatHasEnded) {
  enrol("a", 1);
  const auto granted = lease(1);
  const auto welcome = enrol("a", 1, "2");
  EXPECT_TRUE(core_->list().empty());
  ASSERT_EQ(welcome.floors.size(), 1U);
  EXPECT_GT(welcome.floors.front().epoch, granted.devices.front().share.epoch)
      << "the token is still signed and in time: its epoch gives it away";
  EXPECT_EQ(lease(1).devices.front().share.epoch, 2U);
  EXPECT_TRUE(pulse("a").register_again) << "the old instance is a stranger";
}

TEST_F(BrokerCoreTest, AnAgentIsToldToEndWhatWasNeverGrantedThere) {
  enrol("a", 1);
  enrol("b", 1);
  const auto granted = lease(1);
  EXPECT_THAT(pulse("b", {{granted.id, 1}}).end_leases, ElementsAre(granted.id));
  EXPECT_THAT(pulse("a", {{granted.id, 7}}).end_leases, ElementsAre(granted.id)) << "another epoch";
  EXPECT_THAT(pulse("a", {{granted.id, 1}, {"unknown", 1}}).end_leases, ElementsAre("unknown"));
}

TEST_F(BrokerCoreTest, ShowsSharedDevicesOncePerLease) {
  enrol("a", 2);
  auto half = ask(1);
  half.memory_bytes = 4 * kGiB;
  const auto one = core_->request(half);
  const auto two = core_->request(half);
  ASSERT_TRUE(one && two);
  ASSERT_TRUE(core_->heartbeat({"a", "1", {}, {}, {{"a0", two->id, kGiB, 0.25, 7}, {"b0", "x", 1, 1, 1}}}));
  const auto top = core_->top();
  ASSERT_EQ(top.agents.size(), 1U);
  ASSERT_EQ(top.agents.front().devices.size(), 3U);
  EXPECT_EQ(top.agents.front().devices[0].lease_id, one->id);
  EXPECT_EQ(top.agents.front().devices[0].load.launches, 0U);
  EXPECT_EQ(top.agents.front().devices[1].load.launches, 7U);
  EXPECT_EQ(top.agents.front().devices[2].lease_id, "");
}

TEST_F(BrokerCoreTest, RefusesRequestsOutOfBounds) {
  enrol("a", 1);
  auto no_key = ask(1);
  no_key.client_key = {};
  EXPECT_EQ(core_->request(no_key).error().code, ErrorCode::invalid_argument);
  auto long_note = ask(1);
  long_note.note.assign(513, 'x');
  EXPECT_EQ(core_->request(long_note).error().code, ErrorCode::invalid_argument);
  auto long_lease = ask(1);
  long_lease.ttl_ms = policy_.max_ttl_ms + 1;
  EXPECT_EQ(core_->request(long_lease).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(core_->request(ask(1'000'000)).error().code, ErrorCode::invalid_argument);
}

TEST_F(BrokerCoreTest, RefusesALogThatDoesNotReplay) {
  enrol("a", 1);
  lease(1);
  core_.reset();
  disk_.kept.records.erase(disk_.kept.records.begin() + 1);  // the registration
  const auto refused =
      BrokerCore::open(std::make_unique<DiskStore>(disk_), *KeyPair::generate(), clock_, *log_, policy_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::protocol_error);
  EXPECT_THAT(refused.error().message(), HasSubstr("record 3: grant lease"));
}

TEST_F(BrokerCoreTest, ServesManyThreadsWithoutGrantingADeviceTwice) {
  constexpr int kClients = 4;
  constexpr int kRounds = 60;
  enrol("a", 2);
  std::atomic<bool> done{false};
  std::atomic<int> granted_total{0};
  std::mutex holding_mutex;
  std::set<std::string> holding;
  std::atomic<bool> twice{false};
  std::thread agent([&] {
    std::vector<EndedLease> ended;
    while (!done) {
      const auto answer = core_->heartbeat({"a", "1", {}, ended, {{"a0", "", 1, 0.5, 1}}});
      ended.clear();
      if (answer) {
        for (const auto& id : answer->end_leases) ended.push_back({id, "told to"});
      }
      core_->tick();
      std::this_thread::yield();
    }
  });
  std::thread watcher([&] {
    while (!done) {
      for (const auto& shown : core_->top().agents) EXPECT_LE(shown.devices.size(), 2U);
      std::this_thread::yield();
    }
  });
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&, client] {
      const auto key = *KeyPair::generate();
      std::int64_t proof_ms = clock_.unix_ms();
      for (int round = 0; round < kRounds;) {
        const auto granted = core_->request({.client = "c" + std::to_string(client),
                                             .gpus = 1,
                                             .model = {},
                                             .client_key = key.public_key(),
                                             .note = {},
                                             .request_id = {}});
        if (!granted) {
          std::this_thread::yield();
          continue;
        }
        ++round;
        ++granted_total;
        const auto& device = granted->devices.front().spec.uuid;
        {
          const std::lock_guard lock(holding_mutex);
          if (!holding.insert(device).second) twice = true;
        }
        EXPECT_TRUE(
            core_->renew(granted->id, 0, *make_proof(key, "renew", granted->id, "broker", ++proof_ms)));
        {
          const std::lock_guard lock(holding_mutex);
          holding.erase(device);
        }
        EXPECT_TRUE(
            core_->release(granted->id, *make_proof(key, "release", granted->id, "broker", ++proof_ms)));
      }
    });
  }
  for (auto& client : clients) client.join();
  done = true;
  agent.join();
  watcher.join();
  EXPECT_FALSE(twice);
  EXPECT_EQ(granted_total, kClients * kRounds);
  const auto before = core_->state();
  start();
  expect_same_but_for_the_term(core_->state(), before);
}

}  // namespace
}  // namespace cenote::pool
