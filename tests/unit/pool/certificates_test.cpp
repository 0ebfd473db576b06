#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "pool/key_file.h"
#include "pool/tls/credentials.h"
#include "tests/unit/pool/temp_dir.h"

namespace cenote::pool::tls {
namespace {

using pool::testing::TempDir;
using ::testing::HasSubstr;

TEST(Certificates, SayWhoTheirHolderIs) {
  const TempDir dir;
  ASSERT_TRUE(create_authority(dir.path()));
  for (const auto role : {Role::broker, Role::agent, Role::client}) {
    const auto files =
        issue(dir.path(), "node-7", role, {.hosts = {"node-7.example.org", "10.0.0.7", "fd00::7"}});
    ASSERT_TRUE(files) << files.error().message();
    const auto loaded = load(*files);
    ASSERT_TRUE(loaded) << loaded.error().message();
    EXPECT_EQ(loaded->identity, (Identity{role, "node-7"}));
    EXPECT_TRUE(load_as(*files, role));
  }
}

TEST(Certificates, ProveTheirHolderByADnsNameOfItsRole) {
  EXPECT_EQ((Identity{Role::agent, "b"}.dns_name()), "b.agent.cenote");
  EXPECT_EQ((Identity{Role::client, "b"}.dns_name()), "b.client.cenote");
  EXPECT_EQ((Identity{Role::broker, "any"}.dns_name()), "broker.cenote");
}

TEST(Certificates, AreReadableByTheirOwnerOnly) {
  const TempDir dir;
  ASSERT_TRUE(create_authority(dir.path()));
  ASSERT_TRUE(issue(dir.path(), "alice", Role::client));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
    struct stat status {};
    ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0600U) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 4);
}

TEST(Certificates, AnAuthorityIsNeverReplaced) {
  const TempDir dir;
  ASSERT_TRUE(create_authority(dir.path()));
  const auto before = *read_file(dir / "ca.pem");
  EXPECT_EQ(create_authority(dir.path()).error().code, ErrorCode::already_exists);
  EXPECT_EQ(*read_file(dir / "ca.pem"), before);
}

TEST(Certificates, NeedAnAuthority) {
  const TempDir dir;
  EXPECT_EQ(issue(dir.path(), "alice", Role::client).error().code, ErrorCode::not_found);
}

TEST(Certificates, RefuseNamesThatCouldSayMore) {
  const TempDir dir;
  ASSERT_TRUE(create_authority(dir.path()));
  for (const auto* name : {"", "a b", "x,DNS:broker.cenote", "../ca", "a/b", "ü"}) {
    EXPECT_EQ(issue(dir.path(), name, Role::client).error().code, ErrorCode::invalid_argument) << name;
  }
  EXPECT_EQ(issue(dir.path(), std::string(64, 'a'), Role::client).error().code, ErrorCode::invalid_argument);
  EXPECT_EQ(issue(dir.path(), "a", Role::client, {.hosts = {"x,DNS:broker.cenote"}}).error().code,
            ErrorCode::invalid_argument);
}

TEST(Credentials, NameTheFileThatIsMissing) {
  const TempDir dir;
  ASSERT_TRUE(create_authority(dir.path()));
  const auto missing = load(files_of(dir.path(), "bob", Role::client));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::not_found);
  EXPECT_THAT(missing.error().message(), HasSubstr("client-bob.pem"));
}

TEST(Credentials, SayWhenACertificateExpired) {
  const TempDir dir;
  ASSERT_TRUE(create_authority(dir.path()));
  const auto files =
      issue(dir.path(), "bob", Role::client, {.hosts = {}, .valid_for = std::chrono::seconds(-5)});
  ASSERT_TRUE(files) << files.error().message();
  const auto expired = load(*files);
  ASSERT_FALSE(expired);
  EXPECT_EQ(expired.error().code, ErrorCode::permission_denied);
  EXPECT_THAT(expired.error().message(), HasSubstr("it expired on"));
}

TEST(Credentials, RefuseAKeyOfAnotherCertificate) {
  const TempDir dir;
  ASSERT_TRUE(create_authority(dir.path()));
  auto alice = *issue(dir.path(), "alice", Role::client);
  const auto bob = *issue(dir.path(), "bob", Role::client);
  alice.key = bob.key;
  const auto refused = load(alice);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::permission_denied);
  EXPECT_THAT(refused.error().message(), HasSubstr("client-bob.key is not its key"));
}

TEST(Credentials, RefuseACertificateOfAnotherPool) {
  const TempDir ours;
  const TempDir theirs;
  ASSERT_TRUE(create_authority(ours.path()));
  ASSERT_TRUE(create_authority(theirs.path()));
  auto files = *issue(theirs.path(), "bob", Role::client);
  files.authority = ours / "ca.pem";
  const auto refused = load(files);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::permission_denied);
  EXPECT_THAT(refused.error().message(), HasSubstr("did not sign it"));
}

TEST(Credentials, RefuseAnotherRoleAndAKeyThatOthersMayUse) {
  const TempDir dir;
  ASSERT_TRUE(create_authority(dir.path()));
  const auto files = *issue(dir.path(), "bob", Role::client);
  EXPECT_THAT(load_as(files, Role::agent).error().message(),
              HasSubstr("it is of client bob, not of the role agent"));
  ASSERT_EQ(::chmod(files.key.c_str(), 0644), 0);
  EXPECT_THAT(load(files).error().message(), HasSubstr("chmod 600"));
}

TEST(Credentials, RefuseWhatIsNoPem) {
  const TempDir dir;
  ASSERT_TRUE(create_authority(dir.path()));
  const auto files = *issue(dir.path(), "bob", Role::client);
  ASSERT_TRUE(write_private_file(files.certificate, "hello"));
  EXPECT_EQ(load(files).error().code, ErrorCode::protocol_error);
}

}  // namespace
}  // namespace cenote::pool::tls
