// Lease files: written, read, and refused with the field that is wrong.
#include "pool/client/lease_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace cenote::pool::client {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

LeaseFile example() {
  LeaseFile file;
  file.broker = "head:4700";
  file.lease = {
      .id = "7f3a", .client = "alice", .note = "n", .granted_unix_ms = 5, .expires_unix_ms = 65'000};
  file.lease.devices.push_back({.uuid = "00ff",
                                .model = "H200",
                                .memory_bytes = 1ULL << 40,
                                .agent = "a",
                                .agent_endpoint = "a:1",
                                .epoch = 3});
  file.token = {std::byte{1}, std::byte{2}};
  file.private_key.fill(7);
  return file;
}

std::string refusal(std::string_view text) {
  const auto read = decode_lease_file(text);
  EXPECT_FALSE(read);
  return read ? "" : read.error().message();
}

TEST(LeaseFile, IsReadAsItWasWritten) {
  const auto file = example();
  const auto text = encode_lease_file(file);
  const auto read = decode_lease_file(text);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(encode_lease_file(*read), text);
  EXPECT_EQ(read->lease.devices.at(0).memory_bytes, 1ULL << 40);
  EXPECT_EQ(read->token, file.token);
  EXPECT_EQ(read->private_key, file.private_key);
}

TEST(LeaseFile, AnythingElseIsRefusedWithoutTheParsersOwnWords) {
  for (const std::string_view text : {"", "{", "[]", "3", "{\"a\": 1}", "hello"}) {
    EXPECT_THAT(refusal(text), AllOf(HasSubstr("read lease file"), HasSubstr("cenote lease"),
                                     Not(HasSubstr("json.exception"))))
        << text;
  }
}

TEST(LeaseFile, OfAnotherVersionIsRefusedWithBoth) {
  auto json = nlohmann::json::parse(encode_lease_file(example()));
  json["cenote_lease"] = 9;
  EXPECT_THAT(refusal(json.dump()), HasSubstr("it is of version 9, this cenote reads version 1"));
}

TEST(LeaseFile, EveryFieldThatIsMissingOrOfAnotherKindIsNamed) {
  const auto good = nlohmann::json::parse(encode_lease_file(example()));
  for (const std::string pointer :
       {"/broker", "/token", "/private_key", "/lease", "/lease/id", "/lease/client", "/lease/note",
        "/lease/granted_unix_ms", "/lease/expires_unix_ms", "/lease/devices", "/lease/devices/0/uuid",
        "/lease/devices/0/model", "/lease/devices/0/memory_bytes", "/lease/devices/0/agent",
        "/lease/devices/0/agent_endpoint", "/lease/devices/0/epoch"}) {
    const nlohmann::json::json_pointer field(pointer);
    const auto name = field.back();
    auto missing = good, wrong = good;
    missing[field.parent_pointer()].erase(name);
    wrong[field] = -0.5;
    EXPECT_THAT(refusal(missing.dump()), HasSubstr(name)) << pointer;
    EXPECT_THAT(refusal(wrong.dump()), HasSubstr(name)) << pointer;
  }
}

TEST(LeaseFile, ADamagedTokenOrKeyIsRefused) {
  auto json = nlohmann::json::parse(encode_lease_file(example()));
  json["token"] = "xyz";
  EXPECT_THAT(refusal(json.dump()), HasSubstr("its token is damaged"));
  json["token"] = "01";
  json["private_key"] = "01";
  EXPECT_THAT(refusal(json.dump()), HasSubstr("its private key is damaged"));
}

}  // namespace
}  // namespace cenote::pool::client
