#include "runtime/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <vector>

#include "runtime/process.h"

namespace cenote {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;
using testing::SizeIs;

struct Captured {
  std::vector<std::string> lines;
  std::unique_ptr<Logger> log;
};

std::unique_ptr<Captured> capture(LogLevel level, LogFormat format, std::string component = "agent a") {
  auto captured = std::make_unique<Captured>();
  LogOptions options{level, format, {}, std::move(component), {}};
  options.sink = [out = captured.get()](std::string_view line) { out->lines.emplace_back(line); };
  captured->log = std::move(*Logger::create(options));
  return captured;
}

TEST(Log, TextLinesCarryTimeLevelComponentAndFields) {
  const auto to = capture(LogLevel::info, LogFormat::text);
  to->log->write(LogLevel::info, "lease granted", {{"lease", "7f3a"}, {"gpus", "4"}});
  ASSERT_THAT(to->lines, SizeIs(1));
  EXPECT_THAT(to->lines[0],
              MatchesRegex("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z info  \\[agent a\\] "
                           "lease granted lease 7f3a gpus 4"));
}

TEST(Log, JsonLinesEscapeWhatTheyMust) {
  const auto to = capture(LogLevel::info, LogFormat::json);
  to->log->write(LogLevel::warn, "a \"b\" \\ c\n\x01", {{"peer", "rank\t3"}});
  ASSERT_THAT(to->lines, SizeIs(1));
  EXPECT_THAT(to->lines[0],
              HasSubstr(R"("level":"warn","component":"agent a","message":"a \"b\" \\ c\n\u0001")"));
  EXPECT_THAT(to->lines[0], EndsWith(R"("peer":"rank\t3"})"));
}

TEST(Log, LevelsAreOrderedByVolume) {
  const auto to = capture(LogLevel::warn, LogFormat::text, "");
  to->log->error("one {}", 1);
  to->log->warn("two {}", 2);
  to->log->info("three {}", 3);
  EXPECT_THAT(to->lines, SizeIs(2));
  EXPECT_FALSE(to->log->enabled(LogLevel::info));
  to->log->set_level(LogLevel::trace);
  to->log->trace("four");
  ASSERT_THAT(to->lines, SizeIs(3));
  EXPECT_THAT(to->lines[2], EndsWith("trace four"));
}

TEST(Log, AMessageCannotForgeAnotherLine) {
  const auto to = capture(LogLevel::info, LogFormat::text);
  to->log->info("{}", "name\n2026-01-01T00:00:00.000Z error [broker] forged\x1b[31m");
  EXPECT_THAT(to->lines[0], HasSubstr("name\n    2026-01-01"));
  EXPECT_THAT(to->lines[0], HasSubstr("forged\\x1b[31m"));
}

TEST(Log, ErrorsKeepTheirParts) {
  const Error error = Error{ErrorCode::peer_failed, "put", "reset"}.with("rank 3").fix("see doctor");
  const auto text = capture(LogLevel::info, LogFormat::text);
  text->log->write(LogLevel::error, error);
  EXPECT_THAT(text->lines[0], HasSubstr("put with rank 3 failed: reset\n      see doctor"));
  const auto json = capture(LogLevel::info, LogFormat::json);
  json->log->write(LogLevel::error, error);
  EXPECT_THAT(json->lines[0], HasSubstr(R"("code":"peer failed","stage":"put","cause":"reset")"));
  EXPECT_THAT(json->lines[0], HasSubstr(R"("peer":"rank 3")"));
}

TEST(Log, ThreadsDoNotMixTheirLines) {
  const auto to = capture(LogLevel::info, LogFormat::text, "");
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&to, t] {
        for (int i = 0; i < 200; ++i)
          to->log->info("{} writes {}", t, std::string(50, static_cast<char>('a' + t)));
      });
  }
  EXPECT_THAT(to->lines, SizeIs(800));
  for (const auto& line : to->lines) EXPECT_THAT(line, MatchesRegex(".* info  [0-3] writes (a+|b+|c+|d+)"));
}

TEST(Log, AppendsToAFileAndReportsOneThatCannotBeOpened) {
  const auto folder = TemporaryFolder::create("log");
  const auto path = folder->file("cenote.log");
  for (int i = 0; i < 2; ++i)
    (*Logger::create({LogLevel::info, LogFormat::text, path, "", {}}))->info("round {}", i);
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, HasSubstr("round 0\n"));
  EXPECT_THAT(text, EndsWith("round 1\n"));
  const auto refused = Logger::create({LogLevel::info, LogFormat::text, folder->path(), "", {}});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr(folder->path()));
}

TEST(Log, SilentLoggersDropEverything) {
  const auto log = Logger::silent();
  EXPECT_FALSE(log->enabled(LogLevel::error));
  log->error("nobody hears {}", "this");
}

TEST(Log, LevelsSurviveTheirText) {
  for (const auto level : {LogLevel::error, LogLevel::warn, LogLevel::info, LogLevel::debug, LogLevel::trace})
    EXPECT_EQ(*parse_log_level(to_string(level)), level);
  EXPECT_FALSE(parse_log_level("INFO"));
}

TEST(Log, EveryJsonLineParsesWhateverBytesAreInIt) {
  const auto to = capture(LogLevel::info, LogFormat::json, "agent \xff");
  std::mt19937 random(11);
  std::vector<std::string> texts{"\xc3\xa9t\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80",  // as it is
                                 "\xc0\xaf",                                         // overlong
                                 "\xed\xa0\x80",                                     // a surrogate
                                 "\xf4\x90\x80\x80",  // beyond the last character
                                 "cut \xe2\x82",
                                 std::string("a\0b\x7f\n\t\"\\\x1b[31m", 14)};
  for (int i = 0; i < 2000; ++i) {
    std::string text(random() % 12, ' ');
    // Mostly such bytes as sequences are made of.
    for (auto& c : text) c = static_cast<char>(random() % 3 == 0 ? random() % 256 : 0x80 + random() % 128);
    texts.push_back(std::move(text));
  }
  for (const auto& text : texts) to->log->write(LogLevel::info, text, {{"field", text}});
  ASSERT_THAT(to->lines, SizeIs(texts.size()));
  for (std::size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(to->lines[i].find('\n'), std::string::npos);
    const auto line = nlohmann::json::parse(to->lines[i], nullptr, false);
    ASSERT_TRUE(line.is_object()) << to->lines[i];
    EXPECT_EQ(line["message"], line["field"]);
    EXPECT_EQ(line["component"], "agent \xef\xbf\xbd");
  }
  EXPECT_EQ(nlohmann::json::parse(to->lines[0])["message"], texts[0]);
  EXPECT_EQ(nlohmann::json::parse(to->lines[5])["message"], texts[5]);
  EXPECT_EQ(nlohmann::json::parse(to->lines[4])["message"], "cut \xef\xbf\xbd\xef\xbf\xbd");
}

}  // namespace
}  // namespace cenote
