// What an agent accepts of a client, and the exact reason when it does not.
#include "pool/agent/lease_gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/agent/leases.h"

namespace cenote::pool::agent {
namespace {

using ::testing::HasSubstr;
using testing::kNow;
using testing::Parties;

class LeaseGateTest : public ::testing::Test {
 protected:
  LeaseGateTest() { gate.trust(parties.broker.public_key()); }

  void expect_refused(const Result<LeaseToken>& result, const std::string& reason) {
    ASSERT_FALSE(result) << "was admitted, though: " << reason;
    EXPECT_EQ(result.error().code, ErrorCode::permission_denied);
    EXPECT_THAT(result.error().message(), HasSubstr(reason));
  }

  Parties parties;
  LeaseGate gate{GateOptions{.agent = "a", .devices = {{"gpu-0", 1024}, {"gpu-1", 1024}}}};
  GateClock now{.now_unix_ms = kNow};
};

TEST_F(LeaseGateTest, AdmitsASignedLeaseWithAFreshProof) {
  const auto admitted = gate.open(parties.sign(parties.token()).claim(), now);
  ASSERT_TRUE(admitted) << admitted.error().message();
  EXPECT_EQ(admitted->lease_id, "L1");
}

TEST_F(LeaseGateTest, RefusesEverythingUntilTheBrokersKeyIsKnown) {
  LeaseGate fresh(GateOptions{.agent = "a", .devices = {{"gpu-0", 1024}}});
  expect_refused(fresh.open(parties.sign(parties.token()).claim(), now),
                 "not registered with its broker yet");
}

TEST_F(LeaseGateTest, RefusesAForgedSignature) {
  Parties forger;
  forger.client = std::move(*KeyPair::from_private(parties.client.private_key()));
  expect_refused(gate.open(forger.sign(parties.token()).claim(), now), "signature");
}

TEST_F(LeaseGateTest, RefusesATokenWithAnyBitChanged) {
  const auto good = parties.sign(parties.token());
  for (std::size_t i = 0; i < good.token.size(); ++i) {
    auto bad = good;
    bad.token[i] ^= std::byte{1};
    EXPECT_FALSE(gate.open(bad.claim(), now)) << "byte " << i;
  }
}

TEST_F(LeaseGateTest, RefusesACopiedLeaseWithoutItsKey) {
  auto stolen = parties.sign(parties.token());
  const auto thief = testing::new_key();
  stolen.proof = make_proof(thief, "open", "L1", "a", kNow)->signature;
  expect_refused(gate.open(stolen.claim(), now), "not signed by the key that the lease was granted to");
}

TEST_F(LeaseGateTest, RefusesAProofMadeForAnotherAgentOrPurpose) {
  EXPECT_FALSE(gate.open(parties.sign(parties.token(), kNow, "open", "b").claim(), now));
  EXPECT_FALSE(gate.open(parties.sign(parties.token(), kNow, "close", "a").claim(), now));
}

TEST_F(LeaseGateTest, RefusesAProofUsedBefore) {
  const auto once = parties.sign(parties.token());
  ASSERT_TRUE(gate.open(once.claim(), now));
  expect_refused(gate.open(once.claim(), now), "used before");
}

TEST_F(LeaseGateTest, RefusesAProofFromAnotherTime) {
  expect_refused(gate.open(parties.sign(parties.token(), kNow - 10 * kProofWindowMs).claim(), now),
                 "signed at");
  EXPECT_FALSE(gate.open(parties.sign(parties.token(), INT64_MAX).claim(), now));
  EXPECT_FALSE(gate.open(parties.sign(parties.token(), INT64_MIN).claim(), now));
}

TEST_F(LeaseGateTest, RefusesAnExpiredLease) {
  now.now_unix_ms = kNow + 61'000;
  expect_refused(gate.open(parties.sign(parties.token(), now.now_unix_ms).claim(), now), "expired");
}

TEST_F(LeaseGateTest, AdmitsAnOldTokenThatTheBrokerHasRenewed) {
  gate.renewed("L1", kNow + 120'000);
  now.now_unix_ms = kNow + 61'000;
  EXPECT_TRUE(gate.open(parties.sign(parties.token(), now.now_unix_ms).claim(), now));
}

TEST_F(LeaseGateTest, GrantsTheGraceWhileTheBrokerCannotBeReached) {
  now.now_unix_ms = kNow + 61'000;
  now.outage_grace_ms = 30'000;
  EXPECT_TRUE(gate.open(parties.sign(parties.token(), now.now_unix_ms).claim(), now));
  now.now_unix_ms = kNow + 91'000;
  expect_refused(gate.open(parties.sign(parties.token(), now.now_unix_ms).claim(), now), "expired");
}

TEST_F(LeaseGateTest, RefusesAnOlderFencingEpoch) {
  ASSERT_TRUE(gate.open(parties.sign(parties.token("L2", 5)).claim(), now));
  expect_refused(gate.open(parties.sign(parties.token("L1", 4)).claim(), now), "fenced: its epoch 4");
  EXPECT_TRUE(gate.open(parties.sign(parties.token("L3", 1, "gpu-1")).claim(), now))
      << "epochs are per device";
}

TEST_F(LeaseGateTest, RefusesEpochsBelowTheFloorThatTheBrokerTold) {
  gate.raise_floor("gpu-0", 9);
  expect_refused(gate.open(parties.sign(parties.token("L1", 8)).claim(), now), "fenced");
}

TEST_F(LeaseGateTest, RefusesALeaseOfOtherDevices) {
  expect_refused(gate.open(parties.sign(parties.token("L1", 1, "gpu-7")).claim(), now),
                 "has no device gpu-7");
  auto elsewhere = parties.token();
  elsewhere.devices[0].agent = "b";
  expect_refused(gate.open(parties.sign(elsewhere).claim(), now), "names no device of agent a");
}

TEST_F(LeaseGateTest, RefusesALeaseThatEndedAndSaysWhy) {
  gate.ended("L1", "the broker ended it", kNow + 1000);
  expect_refused(gate.open(parties.sign(parties.token()).claim(), now), "the broker ended it");
}

TEST_F(LeaseGateTest, ARefusedClaimRaisesNoFence) {
  auto expired = parties.token("L2", 50);
  expired.expires_unix_ms = kNow - 1;
  ASSERT_FALSE(gate.open(parties.sign(expired).claim(), now));
  EXPECT_TRUE(gate.open(parties.sign(parties.token("L1", 4)).claim(), now));
}

TEST_F(LeaseGateTest, LeasesThatFitTogetherOnADeviceDoNotFenceEachOther) {
  auto half = parties.token("L2", 5), other_half = parties.token("L1", 4);
  for (auto* token : {&half, &other_half}) {
    token->devices[0].memory_bytes = 512;
    token->devices[0].compute_share_millis = 500;
  }
  ASSERT_TRUE(gate.open(parties.sign(half).claim(), now));
  EXPECT_TRUE(gate.open(parties.sign(other_half).claim(), now));
  auto more = parties.token("L0", 3);
  more.devices[0].memory_bytes = 513;
  more.devices[0].compute_share_millis = 500;
  expect_refused(gate.open(parties.sign(more).claim(), now), "granted again since");
}

}  // namespace
}  // namespace cenote::pool::agent
