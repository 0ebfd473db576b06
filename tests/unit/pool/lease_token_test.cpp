#include "pool/lease_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <limits>

#include "pool/key_file.h"
#include "tests/unit/pool/temp_dir.h"

namespace cenote::pool {
namespace {

using ::testing::HasSubstr;
using testing::TempDir;

KeyPair key_of(std::uint8_t seed) {
  std::array<std::uint8_t, 32> secret{};
  secret.fill(seed);
  return *KeyPair::from_private(secret);
}

LeaseToken token() {
  LeaseToken token;
  token.lease_id = "7f3a";
  token.client = "alice";
  token.client_key = key_of(9).public_key();
  token.isolation = Isolation::mps;
  token.not_before_unix_ms = 1'000;
  token.expires_unix_ms = 61'000;
  token.devices = {{"0123", "agent-a", 8ULL << 30, 1000, 4}, {"4567", "agent-b", 1ULL << 30, 250, 7}};
  return token;
}

TEST(KeyPair, AgreesWithRfc8032) {  // section 7.1, test 2
  const std::array<std::uint8_t, 32> secret = {
      0x4c, 0xcd, 0x08, 0x9b, 0x28, 0xff, 0x96, 0xda, 0x9d, 0xb6, 0xc3, 0x46, 0xec, 0x11, 0x4e, 0x0f,
      0x5b, 0x8a, 0x31, 0x9f, 0x35, 0xab, 0xa6, 0x24, 0xda, 0x8c, 0xf6, 0xed, 0x4f, 0xb8, 0xa6, 0xfb};
  const auto pair = KeyPair::from_private(secret);
  ASSERT_TRUE(pair);
  EXPECT_EQ(pair->public_key()[0], 0x3d);
  EXPECT_EQ(pair->public_key()[31], 0x0c);
  const std::byte message[] = {std::byte{0x72}};
  const auto signature = pair->sign(message);
  ASSERT_TRUE(signature);
  EXPECT_EQ((*signature)[0], std::byte{0x92});
  EXPECT_EQ((*signature)[63], std::byte{0x00});
  EXPECT_TRUE(verify(pair->public_key(), message, *signature));
}

TEST(KeyPair, GivesItsPrivateHalfAwayWhenMoved) {
  auto first = key_of(3);
  const auto secret = first.private_key();
  const auto second = std::move(first);
  EXPECT_EQ(second.private_key(), secret);
  EXPECT_EQ(first.private_key(), (std::array<std::uint8_t, 32>{}));  // NOLINT(bugprone-use-after-move)
}

TEST(KeyPair, RefusesKeysOfAnotherSize) {
  EXPECT_EQ(KeyPair::from_private(std::vector<std::uint8_t>(31)).error().code, ErrorCode::invalid_argument);
}

TEST(LeaseToken, SurvivesTheJourney) {
  const auto broker = key_of(1);
  const auto sealed = seal(token(), broker);
  ASSERT_TRUE(sealed);
  const auto back = unseal(*sealed, broker.public_key());
  ASSERT_TRUE(back) << back.error().message();
  EXPECT_EQ(*back, token());
}

TEST(LeaseToken, IsRefusedWithAnyBitOfAnyByteChanged) {
  const auto broker = key_of(1);
  auto sealed = *seal(token(), broker);
  for (std::size_t at = 0; at < sealed.size(); ++at) {
    const auto bit = std::byte{1} << (at % 8);
    sealed[at] ^= bit;
    const auto back = unseal(sealed, broker.public_key());
    ASSERT_FALSE(back) << "byte " << at;
    ASSERT_EQ(back.error().code, ErrorCode::permission_denied) << "byte " << at;
    sealed[at] ^= bit;
  }
}

TEST(LeaseToken, IsRefusedAtEveryShorterLengthAndWithMoreBytes) {
  const auto broker = key_of(1);
  auto sealed = *seal(token(), broker);
  for (std::size_t size = 0; size < sealed.size(); ++size) {
    EXPECT_EQ(unseal(std::span(sealed).first(size), broker.public_key()).error().code,
              ErrorCode::permission_denied);
  }
  sealed.push_back(std::byte{0});
  EXPECT_FALSE(unseal(sealed, broker.public_key()));
}

TEST(LeaseToken, IsRefusedFromAnotherBroker) {
  const auto back = unseal(*seal(token(), key_of(2)), key_of(1).public_key());
  ASSERT_FALSE(back);
  EXPECT_EQ(back.error().code, ErrorCode::permission_denied);
  EXPECT_THAT(back.error().message(), HasSubstr("another broker"));
}

TEST(LeaseToken, AProofIsNoToken) {  // the two kinds of message are signed in contexts of their own
  const auto key = key_of(1);
  auto bytes = proof_message("open", "7f3a", "agent-a", 5);
  const auto signature = *key.sign(bytes);
  bytes.insert(bytes.end(), signature.begin(), signature.end());
  EXPECT_EQ(unseal(bytes, key.public_key()).error().code, ErrorCode::permission_denied);
}

TEST(LeaseToken, IsInForceBetweenItsTimesAndMayBeginADriftEarly) {
  const auto lease = token();
  EXPECT_TRUE(check_in_force(lease, lease.expires_unix_ms, 1'000, 0));
  EXPECT_TRUE(check_in_force(lease, lease.expires_unix_ms, 60'999, 0));
  EXPECT_TRUE(check_in_force(lease, lease.expires_unix_ms, 500, 500));
  EXPECT_TRUE(check_in_force(lease, lease.expires_unix_ms + 60'000, 100'000, 0)) << "renewed";
  EXPECT_FALSE(check_in_force(lease, lease.expires_unix_ms, 499, 500));
  EXPECT_FALSE(check_in_force(lease, lease.expires_unix_ms, 61'000, 500)) << "the end is strict";
  const auto late = check_in_force(lease, lease.expires_unix_ms, 63'500, 500);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::permission_denied);
  EXPECT_THAT(late.error().message(), HasSubstr("lease 7f3a failed: it expired 2.5 s ago"));
}

TEST(Proof, IsGoodForOnePurposeLeaseAndAudienceOnly) {
  const auto client = key_of(9);
  const auto proof = *make_proof(client, "open", "7f3a", "agent-a", 1'000);
  EXPECT_TRUE(check_proof(client.public_key(), "open", "7f3a", "agent-a", proof, 1'500));
  EXPECT_FALSE(check_proof(client.public_key(), "close", "7f3a", "agent-a", proof, 1'500));
  EXPECT_FALSE(check_proof(client.public_key(), "open", "7f3b", "agent-a", proof, 1'500));
  EXPECT_FALSE(check_proof(client.public_key(), "open", "7f3a", "agent-b", proof, 1'500));
  auto later = proof;
  later.unix_ms += 1;
  EXPECT_FALSE(check_proof(client.public_key(), "open", "7f3a", "agent-a", later, 1'500));
}

TEST(Proof, OfAnotherKeyIsRefused) {
  const auto thief = *make_proof(key_of(8), "open", "7f3a", "agent-a", 1'000);
  const auto refused = check_proof(key_of(9).public_key(), "open", "7f3a", "agent-a", thief, 1'000);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::permission_denied);
  EXPECT_THAT(refused.error().message(), HasSubstr("not signed by the key that the lease was granted to"));
}

TEST(Proof, OutsideTheWindowIsRefusedEvenAtTheEndsOfTime) {
  const auto client = key_of(9);
  constexpr std::int64_t now = 1'000'000;
  for (const std::int64_t when :
       {now - kProofWindowMs - 1, now + kProofWindowMs + 1, std::int64_t{0},
        std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()}) {
    const auto proof = *make_proof(client, "open", "7f3a", "a", when);
    EXPECT_EQ(check_proof(client.public_key(), "open", "7f3a", "a", proof, now).error().code,
              ErrorCode::permission_denied);
  }
}

TEST(ProofGuard, AdmitsNoProofTwice) {
  const auto client = key_of(9);
  ProofGuard guard("agent-a");
  const auto first = *make_proof(client, "open", "7f3a", "agent-a", 1'000);
  EXPECT_TRUE(guard.admit(client.public_key(), "open", "7f3a", first, 1'000));
  const auto again = guard.admit(client.public_key(), "open", "7f3a", first, 1'001);
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code, ErrorCode::permission_denied);
  EXPECT_THAT(again.error().message(), HasSubstr("used before"));
  EXPECT_TRUE(guard.admit(client.public_key(), "open", "7f3a",
                          *make_proof(client, "open", "7f3a", "agent-a", 1'001), 1'002));
}

TEST(ProofGuard, ForgetsWhatTheWindowRefusesAnyway) {
  const auto client = key_of(9);
  ProofGuard guard("agent-a");
  for (std::int64_t i = 0; i < 100; ++i) {
    const auto lease = std::to_string(i);
    const auto now = i * kProofWindowMs / 4;
    ASSERT_TRUE(guard.admit(client.public_key(), "open", lease,
                            *make_proof(client, "open", lease, "agent-a", now), now));
    EXPECT_LE(guard.remembered(), 6U);
  }
}

TEST(ProofGuard, RemembersNothingOfRefusedProofs) {
  ProofGuard guard("agent-a");
  const auto forged = *make_proof(key_of(8), "open", "7f3a", "agent-a", 1'000);
  EXPECT_FALSE(guard.admit(key_of(9).public_key(), "open", "7f3a", forged, 1'000));
  EXPECT_EQ(guard.remembered(), 0U);
}

TEST(KeyFile, KeepsTheKeyBetweenStartsForItsOwnerOnly) {
  const TempDir dir;
  const auto path = dir / "broker.key";
  const auto first = load_or_create_key(path);
  ASSERT_TRUE(first) << first.error().message();
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777U, 0600U);
  const auto second = load_or_create_key(path);
  ASSERT_TRUE(second) << second.error().message();
  EXPECT_EQ(first->public_key(), second->public_key());
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1)
      << "no temporary file stays";
}

TEST(KeyFile, RefusesAKeyThatOthersMayRead) {
  const TempDir dir;
  ASSERT_TRUE(load_or_create_key(dir / "broker.key"));
  ASSERT_EQ(::chmod((dir / "broker.key").c_str(), 0640), 0);
  const auto refused = load_or_create_key(dir / "broker.key");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::permission_denied);
  EXPECT_THAT(refused.error().message(), HasSubstr("chmod 600"));
}

TEST(KeyFile, RefusesAForeignFileAndLeavesItAlone) {
  const TempDir dir;
  const auto path = dir / "broker.key";
  ASSERT_TRUE(write_private_file(path, "my diary"));
  EXPECT_EQ(load_or_create_key(path).error().code, ErrorCode::protocol_error);
  EXPECT_EQ(*read_file(path), "my diary");
}

TEST(KeyFile, SaysWhyItCannotBeWritten) {
  const TempDir dir;
  const auto refused = load_or_create_key(dir / "missing" / "broker.key");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::system_error);
  EXPECT_THAT(refused.error().message(), HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace cenote::pool
