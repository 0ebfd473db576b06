#include "pool/state/state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <random>

namespace cenote::pool {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kGiB = 1ULL << 30U;
constexpr std::int64_t kGrace = 30'000;
constexpr std::int64_t kDrift = 1'000;

DeviceSpec gpu(const std::string& uuid, std::uint32_t ordinal = 0) {
  return {uuid, "H200", 8 * kGiB, ordinal};
}

Share whole(const std::string& device, const std::string& agent, std::uint64_t epoch) {
  return {.device = device, .agent = agent, .memory_bytes = 8 * kGiB, .epoch = epoch};
}

command::Grant grant(const std::string& id, std::vector<Share> shares, std::int64_t expires = 60'000) {
  return {.lease_id = id,
          .request_id = "r-" + id,
          .client = "alice",
          .client_key = {1},
          .expires_ms = expires,
          .note = {},
          .reason = "because",
          .shares = std::move(shares)};
}

class StateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    must(command::StartTerm{1, kGrace, kDrift}, 0);
    must(command::RegisterAgent{"a", "host:1", "a1", {gpu("g0", 0), gpu("g1", 1)}}, 0);
    must(command::RegisterAgent{"b", "host:2", "b1", {gpu("g2", 0)}}, 0);
  }
  std::vector<Event> must(const Command& command, std::int64_t now) {
    auto events = apply(state, command, now);
    EXPECT_TRUE(events) << events.error().message();
    return events.value_or(std::vector<Event>());
  }
  Error refused(const Command& command, std::int64_t now) {
    const auto before = encode(state);
    auto events = apply(state, command, now);
    EXPECT_FALSE(events) << "command " << command.index() << " should be refused";
    EXPECT_EQ(encode(state), before) << "a refused command changes nothing";
    return events ? Error{} : events.error();
  }
  State state;
};

TEST_F(StateTest, GrantsADeviceOnce) {
  must(grant("l1", {whole("g0", "a", 1)}), 0);
  const auto error = refused(grant("l2", {whole("g0", "a", 2)}), 0);
  EXPECT_EQ(error.code, ErrorCode::resource_exhausted);
}

TEST_F(StateTest, SharesADeviceUpToItsMemoryAndCompute) {
  const auto share = [](std::uint64_t gib, std::uint32_t millis, std::uint64_t epoch) {
    return Share{
        .device = "g0", .agent = "a", .memory_bytes = gib * kGiB, .compute_millis = millis, .epoch = epoch};
  };
  must(grant("l1", {share(4, 400, 1)}), 0);
  EXPECT_EQ(refused(grant("l2", {share(5, 100, 2)}), 0).code, ErrorCode::resource_exhausted);
  EXPECT_EQ(refused(grant("l2", {share(1, 601, 2)}), 0).code, ErrorCode::resource_exhausted);
  must(grant("l2", {share(4, 600, 2)}), 0);
}

TEST_F(StateTest, AGrantCarriesTheNextEpoch) {
  EXPECT_EQ(refused(grant("l1", {whole("g0", "a", 0)}), 0).code, ErrorCode::invalid_argument);
  EXPECT_EQ(refused(grant("l1", {whole("g0", "a", 2)}), 0).code, ErrorCode::invalid_argument);
  must(grant("l1", {whole("g0", "a", 1)}), 0);
}

TEST_F(StateTest, AGrantIsAllOrNothing) {
  must(grant("l1", {whole("g1", "a", 1)}), 0);
  refused(grant("l2", {whole("g0", "a", 1), whole("g1", "a", 2)}), 0);
  must(grant("l3", {whole("g0", "a", 1)}), 0);
}

TEST_F(StateTest, AReleasedDeviceIsGrantedAgainOnlyAfterItsAgentConfirms) {
  must(grant("l1", {whole("g0", "a", 1), whole("g2", "b", 1)}), 0);
  must(command::End{"l1", EndCause::released, "done", 5}, 1'000);
  EXPECT_EQ(refused(grant("l2", {whole("g0", "a", 2)}), 1'000).code, ErrorCode::resource_exhausted);
  must(command::Confirm{"l1", "a"}, 1'100);
  must(grant("l2", {whole("g0", "a", 2)}), 1'200);
  EXPECT_EQ(refused(grant("l3", {whole("g2", "b", 2)}), 1'200).code, ErrorCode::resource_exhausted);
  const auto events = must(command::Confirm{"l1", "b"}, 1'300);
  EXPECT_EQ(events.back().kind, Event::Kind::lease_gone);
  must(grant("l3", {whole("g2", "b", 2)}), 1'400);
}

TEST_F(StateTest, WithoutConfirmationLeaseGraceAndDriftMustHavePassed) {
  must(grant("l1", {whole("g0", "a", 1)}, 10'000), 0);
  must(command::LoseAgent{"a"}, 2'000);
  must(command::End{"l1", EndCause::failed, "agent a is silent", 0}, 3'000);
  EXPECT_EQ(refused(command::Reclaim{"l1"}, 10'000 + kGrace + kDrift - 1).code, ErrorCode::invalid_argument);
  must(command::Reclaim{"l1"}, 10'000 + kGrace + kDrift);
  EXPECT_TRUE(state.leases.empty());
}

TEST_F(StateTest, ALaterBrokerWithAShorterGraceStillWaitsTheLonger) {
  must(grant("l1", {whole("g0", "a", 1)}, 10'000), 0);
  must(command::StartTerm{2, 1'000, 0}, 1'000);
  must(command::End{"l1", EndCause::expired, "", 0}, 10'000);
  refused(command::Reclaim{"l1"}, 10'000 + kGrace + kDrift - 1);
  must(command::Reclaim{"l1"}, 10'000 + kGrace + kDrift);
}

TEST_F(StateTest, ALaterBrokerWithALongerGraceWaitsForIt) {
  must(grant("l1", {whole("g0", "a", 1)}, 10'000), 0);
  must(command::StartTerm{2, 2 * kGrace, kDrift}, 1'000);
  must(command::End{"l1", EndCause::expired, "", 0}, 10'000);
  refused(command::Reclaim{"l1"}, 10'000 + 2 * kGrace + kDrift - 1);
}

TEST_F(StateTest, TermsHaveNoGaps) {
  EXPECT_EQ(refused(command::StartTerm{1, 0, 0}, 0).code, ErrorCode::invalid_argument);
  EXPECT_EQ(refused(command::StartTerm{3, 0, 0}, 0).code, ErrorCode::invalid_argument);
  must(command::StartTerm{2, 0, 0}, 0);
}

TEST_F(StateTest, ARestartedAgentEndsItsLeasesAndFreesWhatTheyHeldThere) {
  must(grant("l1", {whole("g0", "a", 1), whole("g2", "b", 1)}), 0);
  const auto events = must(command::RegisterAgent{"a", "host:1", "a2", {gpu("g0", 0), gpu("g1", 1)}}, 1'000);
  EXPECT_THAT(events, ::testing::Contains(::testing::Field(&Event::kind, Event::Kind::lease_ended)));
  EXPECT_TRUE(state.leases.at("l1").ended);
  EXPECT_THAT(state.leases.at("l1").end_text, HasSubstr("agent a was restarted"));
  must(grant("l2", {whole("g0", "a", 2)}), 1'000);
  EXPECT_EQ(refused(grant("l3", {whole("g2", "b", 2)}), 1'000).code, ErrorCode::resource_exhausted);
}

TEST_F(StateTest, AnAgentThatOnlyComesBackKeepsItsLeases) {
  must(grant("l1", {whole("g0", "a", 1)}), 0);
  must(command::RegisterAgent{"a", "elsewhere:1", "a1", {gpu("g0", 0), gpu("g1", 1)}}, 1'000);
  EXPECT_FALSE(state.leases.at("l1").ended);
  EXPECT_EQ(state.agents.at("a").endpoint, "elsewhere:1");
  EXPECT_EQ(refused(command::RegisterAgent{"a", "host:1", "a1", {gpu("g0", 0)}}, 1'000).code,
            ErrorCode::invalid_argument);
}

TEST_F(StateTest, ADeviceBelongsToOneAgent) {
  const auto error = refused(command::RegisterAgent{"c", "host:3", "c1", {gpu("g0")}}, 0);
  EXPECT_EQ(error.code, ErrorCode::already_exists);
  EXPECT_THAT(error.message(), HasSubstr("belongs to agent a"));
  must(command::LoseAgent{"a"}, 1'000);
  must(command::RegisterAgent{"c", "host:3", "c1", {gpu("g0")}}, 2'000);  // the card was moved
  EXPECT_EQ(state.devices.at("g0").agent, "c");
  EXPECT_THAT(state.agents.at("a").devices, ::testing::ElementsAre("g1"));
}

TEST_F(StateTest, ADeviceThatVanishesKeepsItsEpoch) {
  must(grant("l1", {whole("g2", "b", 1)}), 0);
  must(command::RegisterAgent{"b", "host:2", "b2", {}}, 1'000);
  EXPECT_EQ(refused(grant("l2", {whole("g2", "b", 2)}), 1'000).code, ErrorCode::not_found);
  must(command::RegisterAgent{"b", "host:2", "b3", {gpu("g2")}}, 2'000);
  EXPECT_EQ(refused(grant("l2", {whole("g2", "b", 1)}), 2'000).code, ErrorCode::invalid_argument);
  must(grant("l2", {whole("g2", "b", 2)}), 2'000);
}

TEST_F(StateTest, NothingIsPlacedOnALostAgent) {
  must(command::LoseAgent{"b"}, 0);
  EXPECT_EQ(refused(grant("l1", {whole("g2", "b", 1)}), 0).code, ErrorCode::peer_failed);
  must(command::RecoverAgent{"b"}, 0);
  must(grant("l1", {whole("g2", "b", 1)}), 0);
}

TEST_F(StateTest, RenewalsOnlyLengthen) {
  must(grant("l1", {whole("g0", "a", 1)}, 10'000), 0);
  EXPECT_EQ(refused(command::Renew{"l1", 9'999, 1}, 5'000).code, ErrorCode::invalid_argument);
  must(command::Renew{"l1", 20'000, 1}, 5'000);
  EXPECT_EQ(refused(command::End{"l1", EndCause::expired, "", 0}, 19'999).code, ErrorCode::invalid_argument);
  EXPECT_EQ(refused(command::Renew{"l1", 30'000, 2}, 20'000).code, ErrorCode::permission_denied);
  must(command::End{"l1", EndCause::expired, "it expired", 0}, 20'000);
  EXPECT_THAT(refused(command::Renew{"l1", 30'000, 2}, 20'000).message(), HasSubstr("it expired"));
}

TEST_F(StateTest, ANewTermLeavesTimeForRenewalsUntilTheGrace) {
  must(grant("l1", {whole("g0", "a", 1)}, 12'000), 0);
  must(grant("l2", {whole("g1", "a", 1)}, 60'000), 0);
  must(command::StartTerm{2, kGrace, kDrift}, 20'000);
  EXPECT_EQ(last_renewal_ms(state.leases.at("l1")), 20'000 + 12'000) << "its ttl from the term's beginning";
  EXPECT_EQ(last_renewal_ms(state.leases.at("l2")), 20'000 + 60'000);
  state = *decode_state(encode(state));
  EXPECT_EQ(refused(command::Renew{"l1", 40'000, 1}, 32'000).code, ErrorCode::permission_denied);
  must(command::Renew{"l1", 40'000, 1}, 31'999);
  EXPECT_EQ(last_renewal_ms(state.leases.at("l1")), 40'000) << "only until it is renewed";
  must(grant("l3", {whole("g2", "b", 1)}, 50'000), 40'000);
  EXPECT_EQ(last_renewal_ms(state.leases.at("l3")), 50'000) << "only what was granted before the term";
  must(command::StartTerm{3, kGrace, kDrift}, 70'000 - 1);
  EXPECT_EQ(last_renewal_ms(state.leases.at("l1")), 40'000 + kGrace) << "never past the grace";
}

TEST_F(StateTest, ALeaseRenewedLateIsFencedFromItsNewExpiry) {
  must(grant("l1", {whole("g0", "a", 1)}, 10'000), 0);
  must(command::StartTerm{2, kGrace, kDrift}, 15'000);
  must(command::Renew{"l1", 30'000, 1}, 20'000);
  EXPECT_EQ(refused(grant("l2", {whole("g0", "a", 2)}), 20'000).code, ErrorCode::resource_exhausted);
  must(command::End{"l1", EndCause::expired, "", 0}, 30'000);
  refused(command::Reclaim{"l1"}, 30'000 + kGrace + kDrift - 1);
  must(command::Reclaim{"l1"}, 30'000 + kGrace + kDrift);
}

TEST_F(StateTest, AProofIsUsedOnceAlsoAcrossPurposesAndRestarts) {
  must(grant("l1", {whole("g0", "a", 1)}, 10'000), 0);
  must(command::Renew{"l1", 20'000, 7}, 5'000);
  state = *decode_state(encode(state));
  EXPECT_EQ(refused(command::Renew{"l1", 30'000, 7}, 5'000).code, ErrorCode::permission_denied);
  EXPECT_EQ(refused(command::End{"l1", EndCause::released, "", 7}, 5'000).code, ErrorCode::permission_denied);
}

TEST_F(StateTest, ARequestIsGrantedOnceAndRememberedForAWhile) {
  must(grant("l1", {whole("g0", "a", 1)}), 0);
  auto again = grant("l2", {whole("g1", "a", 1)});
  again.request_id = "r-l1";
  EXPECT_EQ(refused(again, 0).code, ErrorCode::already_exists);
  must(command::End{"l1", EndCause::released, "", 1}, 1'000);
  must(command::Confirm{"l1", "a"}, 1'000);
  again.expires_ms = kRememberRequestsMs * 3;
  EXPECT_EQ(refused(again, 1'000).code, ErrorCode::already_exists);
  must(grant("l3", {whole("g2", "b", 1)}, kRememberRequestsMs * 3),
       kRememberRequestsMs + 1'001);  // forgets on the way
  must(again, kRememberRequestsMs + 1'001);
}

TEST_F(StateTest, TheFloorOfADeviceRisesWhenItsLeasesEnd) {
  const auto share = [](std::uint64_t epoch) {
    return Share{.device = "g0", .agent = "a", .memory_bytes = kGiB, .compute_millis = 100, .epoch = epoch};
  };
  EXPECT_EQ(floor_of(state, "g0"), 1U);
  must(grant("l1", {share(1)}), 0);
  must(grant("l2", {share(2)}), 0);
  EXPECT_EQ(floor_of(state, "g0"), 1U);
  must(command::End{"l1", EndCause::released, "", 1}, 0);
  EXPECT_EQ(floor_of(state, "g0"), 2U) << "from the end on, not from its confirmation";
  must(command::End{"l2", EndCause::released, "", 1}, 0);
  EXPECT_EQ(floor_of(state, "g0"), 3U);
}

TEST_F(StateTest, CommandsKeepWithinTheirBounds) {
  EXPECT_EQ(refused(grant("", {whole("g0", "a", 1)}), 0).code, ErrorCode::invalid_argument);
  EXPECT_EQ(refused(grant(std::string(513, 'x'), {whole("g0", "a", 1)}), 0).code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(refused(grant("l", {}), 0).code, ErrorCode::invalid_argument);
  EXPECT_EQ(refused(grant("l", {whole("g0", "a", 1), whole("g0", "a", 1)}), 0).code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(refused(grant("l", {whole("g0", "a", 1)}, std::numeric_limits<std::int64_t>::max()), 0).code,
            ErrorCode::invalid_argument);
  EXPECT_EQ(refused(command::StartTerm{2, 0, 0}, -1).code, ErrorCode::invalid_argument);
  std::vector<DeviceSpec> many;
  for (std::uint32_t i = 0; i <= kMaxDevicesPerAgent; ++i) many.push_back(gpu("m" + std::to_string(i), i));
  EXPECT_EQ(refused(command::RegisterAgent{"c", "h", "c1", many}, 0).code, ErrorCode::invalid_argument);
  EXPECT_EQ(refused(command::RegisterAgent{"c", "h", "c1", {gpu("x"), gpu("x")}}, 0).code,
            ErrorCode::invalid_argument);
}

// ---- properties, under commands that make sense only now and then ----

class Nonsense {
 public:
  explicit Nonsense(std::uint64_t seed) : random_(seed) {}

  std::int64_t time() { return now_ += static_cast<std::int64_t>(pick(30) == 0 ? pick(40'000) : pick(50)); }
  std::int64_t odd_time() { return pick(20) == 0 ? now_ - static_cast<std::int64_t>(pick(5'000)) : time(); }

  /// Most of it is nearly sensible: pure noise would be refused before it reaches anything.
  Command command(const State& state) {
    const auto what = pick(100);
    if (what < 2) {
      return command::StartTerm{state.term + pick(2), static_cast<std::int64_t>(pick(20'000)),
                                static_cast<std::int64_t>(pick(2'000))};
    }
    if (what < 10) return registration();
    if (what < 13) return command::LoseAgent{agent()};
    if (what < 18) return command::RecoverAgent{agent()};
    if (what < 45) return grant(state);
    if (what < 55) {
      return command::Renew{lease(), now_ + static_cast<std::int64_t>(pick(30'000)),
                            static_cast<std::int64_t>(pick(1'000))};
    }
    if (what < 70) {
      return command::End{lease(), static_cast<EndCause>(pick(3)), "x",
                          static_cast<std::int64_t>(pick(1'000))};
    }
    if (what < 85) return command::Confirm{lease(), agent()};
    return command::Reclaim{lease()};
  }

 private:
  std::uint64_t pick(std::uint64_t bound) { return random_() % bound; }
  std::string agent() { return std::string(1, static_cast<char>('a' + pick(4))); }
  std::string lease() { return "l" + std::to_string(pick(12)); }
  std::string device() { return "g" + std::to_string(pick(8)); }

  Command registration() {
    command::RegisterAgent c{agent(), "host", std::to_string(pick(3)), {}};
    for (auto count = pick(4); count > 0; --count) c.devices.push_back({device(), "m", 100, 0});
    return c;
  }
  Command grant(const State& state) {
    command::Grant c{.lease_id = lease(),
                     .request_id = std::to_string(pick(100'000)),
                     .client = "c",
                     .client_key = {},
                     .expires_ms = now_ + static_cast<std::int64_t>(pick(50'000)),
                     .note = {},
                     .reason = {},
                     .shares = {}};
    for (auto count = 1 + pick(3); count > 0; --count) {
      Share share{.device = device(),
                  .agent = agent(),
                  .memory_bytes = pick(3) == 0 ? 100 : pick(120),
                  .compute_millis = static_cast<std::uint32_t>(pick(3) == 0 ? 1000 : pick(700)),
                  .epoch = pick(3)};
      if (const auto known = state.devices.find(share.device);
          known != state.devices.end() && pick(10) != 0) {
        share.agent = known->second.agent;
        share.epoch = known->second.epoch + 1;
      }
      c.shares.push_back(std::move(share));
    }
    return c;
  }

  std::mt19937_64 random_;
  std::int64_t now_ = 0;
};

void expect_sound(const State& state) {
  std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> held;
  std::map<std::string, std::size_t> holders;
  for (const auto& [id, lease] : state.leases) {
    bool any = false;
    for (const auto& share : lease.shares) {
      if (!share.held) continue;
      any = true;
      held[share.device].first += share.memory_bytes;
      held[share.device].second += share.compute_millis;
      ++holders[share.device];
      EXPECT_LE(share.epoch, state.devices.at(share.device).epoch);
    }
    EXPECT_TRUE(any) << "lease " << id << " holds nothing and is still there";
    EXPECT_TRUE(state.requests.contains({lease.client, lease.request_id}));
    EXPECT_GE(lease.fence_ms, lease.expires_ms);
    EXPECT_GE(lease.fence_ms, last_renewal_ms(lease)) << "no renewal of what may be granted again";
  }
  for (const auto& [uuid, device] : state.devices) {
    EXPECT_EQ(device.memory_held, held[uuid].first);
    EXPECT_EQ(device.compute_held, held[uuid].second);
    EXPECT_EQ(device.holders.size(), holders[uuid]);
    EXPECT_LE(device.memory_held, device.spec.memory_bytes);
    EXPECT_LE(device.compute_held, kWholeDevice);
  }
}

class StateProperty : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(StateProperty, NonsenseNeverGrantsADeviceTwiceAndReplaysToTheByte) {
  Nonsense nonsense(GetParam());
  State state;
  std::vector<std::pair<Bytes, std::int64_t>> log;
  std::map<std::string, std::uint64_t> epochs;
  std::map<std::string, std::uint64_t> floors;
  std::map<std::size_t, int> accepted;
  for (int i = 0; i < 10'000; ++i) {
    const auto command = nonsense.command(state);
    const auto now = nonsense.odd_time();
    const auto before = i % 16 == 0 ? encode(state) : Bytes();
    if (!apply(state, command, now)) {
      if (i % 16 == 0) {
        ASSERT_EQ(encode(state), before) << "a refused command changes nothing";
      }
      continue;
    }
    ++accepted[command.index()];
    log.emplace_back(encode(command), now);
    expect_sound(state);
    for (const auto& [uuid, device] : state.devices) {
      ASSERT_GE(device.epoch, epochs[uuid]) << "epochs only grow";
      epochs[uuid] = device.epoch;
      ASSERT_GE(floor_of(state, uuid), floors[uuid]) << "floors only grow";
      floors[uuid] = floor_of(state, uuid);
    }
    if (HasFatalFailure() || HasFailure()) return;
  }
  EXPECT_EQ(accepted.size(), std::variant_size_v<Command>) << "the nonsense should reach every command";

  EXPECT_GT(accepted[Command(command::Grant{}).index()], 100);

  State replayed;
  for (std::size_t i = 0; i < log.size(); ++i) {
    const auto command = decode_command(log[i].first);
    ASSERT_TRUE(command);
    EXPECT_EQ(encode(*command), log[i].first);
    ASSERT_TRUE(apply(replayed, *command, log[i].second));
    if (i % 100 == 0) replayed = *decode_state(encode(replayed));  // a restart from a snapshot
  }
  EXPECT_EQ(encode(replayed), encode(state));
}

INSTANTIATE_TEST_SUITE_P(Seeds, StateProperty, ::testing::Range<std::uint64_t>(1, 13));

TEST_F(StateTest, DecodingSurvivesEveryCutAndChange) {
  must(grant("l1", {whole("g0", "a", 1)}), 0);
  const auto good = encode(state);
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(decode_state(std::span(good).first(size)));
  }
  const auto command = encode(Command(grant("l2", {whole("g1", "a", 1)})));
  for (std::size_t size = 0; size < command.size(); ++size) {
    EXPECT_FALSE(decode_command(std::span(command).first(size)));
  }
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const auto change : {std::byte{0xff}, std::byte{0x01}}) {
      auto bad = good;
      bad[at] ^= change;
      const auto decoded = decode_state(bad);  // may be another state; may not crash or hang
      if (decoded) {
        EXPECT_EQ(encode(*decoded), bad) << "one state has one encoding";
      }
    }
  }
}

}  // namespace
}  // namespace cenote::pool
