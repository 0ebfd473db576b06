#include "runtime/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "runtime/process.h"

namespace cenote {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class SettingsFile : public testing::Test {
 protected:
  std::string write(std::string_view text) {
    const auto path = folder_->file("cenote.toml");
    std::ofstream(path) << text;
    return path;
  }
  Result<Settings> load(std::string_view text) { return Settings::load({write(text), Environment{}, {}}); }
  Result<TemporaryFolder> folder_ = TemporaryFolder::create("settings");
};

Result<Settings> from_environment(Environment environment) {
  return Settings::load({{}, std::move(environment), {}});
}
Result<Settings> from_command_line(std::vector<std::string> overrides) {
  return Settings::load({{}, Environment{}, std::move(overrides)});
}
std::string source_of(const Settings& settings, std::string_view name) {
  return settings.entry(name)->source;
}

TEST(SettingsTable, EveryLineIsWellFormed) {
  std::set<std::string> names;
  std::set<std::string> variables;
  for (const auto& line : settings_table) {
    SCOPED_TRACE(line.name);
    EXPECT_TRUE(names.emplace(line.name).second) << "listed twice";
    EXPECT_TRUE(variables.insert(Settings::environment_name(line.name)).second)
        << "its variable is another's too";
    EXPECT_EQ(line.name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789._"), std::string_view::npos);
    EXPECT_FALSE(line.help.empty());
    EXPECT_NE(line.help.back(), '.');
    EXPECT_TRUE(line.type != SettingType::choice || !line.allowed.empty());
    Settings settings;
    const auto again = settings.set(line.name, line.default_text, "test");
    EXPECT_TRUE(again) << again.error().message();
  }
}

TEST(SettingsTable, EveryRangeRefusesWhatLiesOutside) {
  int checked = 0;
  for (const auto& line : settings_table) {
    if (line.allowed.find("..") == std::string_view::npos) continue;
    Settings settings;
    const auto beyond = std::string("9") + std::string(line.allowed.substr(line.allowed.find("..") + 2));
    const auto refused = settings.set(line.name, beyond, "test");
    ASSERT_FALSE(refused) << line.name << " " << beyond;
    EXPECT_THAT(refused.error().message(), HasSubstr(line.allowed));
    ++checked;
  }
  EXPECT_GT(checked, 5);
}

TEST(Settings, DefaultsHoldWithoutAnySource) {
  const auto settings = Settings::load({{}, Environment{}, {}});
  ASSERT_TRUE(settings) << settings.error().message();
  EXPECT_EQ(settings->text("log.level"), "info");
  EXPECT_EQ(settings->duration("broker.lease_ttl"), 60s);
  EXPECT_EQ(settings->duration("wait.spin"), 20us);
  EXPECT_EQ(settings->uinteger("emulator.seed"), 0U);
  EXPECT_FALSE(settings->boolean("emulator.adversarial"));
  EXPECT_THAT(settings->list("transports"), ElementsAre("shm", "verbs", "tcp"));
  for (const auto& entry : settings->entries()) EXPECT_EQ(entry.source, "default");
  EXPECT_EQ(settings->entries().size(), std::size(settings_table));
}

TEST_F(SettingsFile, CommandLineBeatsEnvironmentBeatsFileBeatsDefault) {
  const auto path = write("[log]\nlevel = \"warn\"\nformat = \"json\"\n\n[broker]\nlease_ttl = \"5s\"\n");
  const auto settings = Settings::load(
      {path,
       Environment{{"CENOTE_LOG_LEVEL", "debug"}, {"CENOTE_LOG_FORMAT", "text"}, {"HOME", "x"}},
       {"log.level=error", "log.level=trace"}});
  ASSERT_TRUE(settings) << settings.error().message();
  EXPECT_EQ(settings->text("log.level"), "trace");
  EXPECT_EQ(source_of(*settings, "log.level"), "--set");
  EXPECT_EQ(settings->text("log.format"), "text");
  EXPECT_EQ(source_of(*settings, "log.format"), "CENOTE_LOG_FORMAT");
  EXPECT_EQ(settings->duration("broker.lease_ttl"), 5s);
  EXPECT_EQ(source_of(*settings, "broker.lease_ttl"), path + ":6");
  EXPECT_EQ(source_of(*settings, "broker.grace"), "default");
}

TEST_F(SettingsFile, MayBeNamedByTheEnvironmentOrTheCommandLine) {
  const auto path = write("[emulator]\nseed = 7\nadversarial = true\n");
  const auto named = from_environment({{"CENOTE_CONFIG_FILE", path}});
  ASSERT_TRUE(named) << named.error().message();
  EXPECT_EQ(named->uinteger("emulator.seed"), 7U);
  EXPECT_TRUE(named->boolean("emulator.adversarial"));
  EXPECT_EQ(from_command_line({"config.file=" + path})->uinteger("emulator.seed"), 7U);
}

TEST_F(SettingsFile, ListsMayBeArraysOrText) {
  EXPECT_THAT(load("transports = [\"tcp\", \"shm\"]")->list("transports"), ElementsAre("tcp", "shm"));
  EXPECT_THAT(load("transports = \"tcp\"")->list("transports"), ElementsAre("tcp"));
  EXPECT_THAT(load("[agent]\ndevices = [\"emulated:H200:1GiB\", \"cuda\"]")->list("agent.devices"),
              ElementsAre("emulated:H200:1GiB", "cuda"));
  EXPECT_THAT(load("[agent]\ndevices = []")->list("agent.devices"), IsEmpty());
}

TEST_F(SettingsFile, AWrongValueNamesSettingLineAndWhatIsAllowed) {
  const auto wrong = load("\n[log]\n\nlevel = \"loud\"\n");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code, ErrorCode::invalid_argument);
  EXPECT_THAT(wrong.error().message(), AllOf(HasSubstr("cenote.toml:4: log.level: 'loud'"),
                                             HasSubstr("error, warn, info, debug, trace")));
  EXPECT_THAT(load("[broker]\nlease_ttl = 60").error().message(),
              HasSubstr("'60' is not a number with ns, us, ms"));
}

TEST_F(SettingsFile, AnUnknownSettingNamesTheNearest) {
  const auto unknown = load("[log]\nlevle = \"info\"\n");
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message(), AllOf(HasSubstr("cenote.toml:2: 'log.levle' is not a setting"),
                                               HasSubstr("did you mean log.level?")));
}

TEST_F(SettingsFile, BrokenTomlNamesItsLine) {
  const auto broken = load("[log]\nlevel = \n");
  ASSERT_FALSE(broken);
  EXPECT_THAT(broken.error().message(), HasSubstr("cenote.toml:2: "));
  EXPECT_FALSE(load("[log]\nlevel = \"info\"\nlevel = \"warn\"\n"));
  EXPECT_FALSE(load("log = 1979-05-27\n"));
  EXPECT_FALSE(load("[log]\nlevel = [[\"info\"]]\n"));
  EXPECT_FALSE(load("[[log]]\nlevel = \"info\"\n"));
  EXPECT_FALSE(load(std::string("\0\xff\xfe", 3)));
  EXPECT_FALSE(load("[config]\nfile = \"other\"\n"));
}

TEST_F(SettingsFile, ThatCannotBeReadIsAnError) {
  const auto missing = Settings::load({folder_->file("none.toml"), Environment{}, {}});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::not_found);
  EXPECT_THAT(missing.error().message(), AllOf(HasSubstr("none.toml"), HasSubstr("No such file")));
  EXPECT_FALSE(Settings::load({folder_->path(), Environment{}, {}}));
  EXPECT_FALSE(load(std::string(2U << 20U, '#')));
}

TEST(Settings, EnvironmentErrorsNameTheVariable) {
  const auto wrong = from_environment({{"CENOTE_EMULATOR_SEED", "-1"}});
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message(), HasSubstr("CENOTE_EMULATOR_SEED: emulator.seed: '-1'"));
  const auto unknown = from_environment({{"CENOTE_LOG_LEVLE", "info"}});
  ASSERT_FALSE(unknown);
  EXPECT_THAT(unknown.error().message(),
              AllOf(HasSubstr("'CENOTE_LOG_LEVLE' is not a setting"), HasSubstr("did you mean log.level?")));
}

TEST(Settings, CommandLineErrorsSayWhatIsWrong) {
  EXPECT_THAT(from_command_line({"log.level"}).error().message(), HasSubstr("not of the form name=value"));
  EXPECT_THAT(from_command_line({"=x"}).error().message(), HasSubstr("is not a setting"));
  EXPECT_THAT(from_command_line({"wait.spin=10s"}).error().message(),
              HasSubstr("--set: wait.spin: '10s' is outside 0us..1s"));
  EXPECT_THAT(from_command_line({"emulator.adversarial=yes"}).error().message(),
              HasSubstr("not true or false"));
  EXPECT_THAT(from_command_line({"transports=shm,,tcp"}).error().message(), HasSubstr("an empty word"));
  EXPECT_THAT(from_command_line({"transports=shm,ipx"}).error().message(),
              HasSubstr("'ipx' is not one of shm, verbs, tcp"));
  EXPECT_THAT(from_command_line({"zzzzzzzzzzzzzzzz=1"}).error().message(), HasSubstr("see: cenote config"));
}

TEST(Settings, ThisProcessesEnvironmentIsReadByDefault) {
  ASSERT_EQ(::setenv("CENOTE_EMULATOR_SEED", "41", 1), 0);
  const auto settings = Settings::load();
  ::unsetenv("CENOTE_EMULATOR_SEED");
  ASSERT_TRUE(settings) << settings.error().message();
  EXPECT_EQ(settings->uinteger("emulator.seed"), 41U);
}

TEST(Settings, TwoValuesDoNotShareAnything) {
  const auto one = from_command_line({"log.level=error"});
  const auto other = from_command_line({"log.level=trace"});
  EXPECT_EQ(one->text("log.level"), "error");
  EXPECT_EQ(other->text("log.level"), "trace");
}

TEST(SettingValues, DurationsTakeEveryUnitAndFractions) {
  EXPECT_EQ(*parse_duration("250ns"), 250ns);
  EXPECT_EQ(*parse_duration("1.5ms"), 1500us);
  EXPECT_EQ(*parse_duration("0.25s"), 250ms);
  EXPECT_EQ(*parse_duration("2m"), 120s);
  EXPECT_EQ(*parse_duration("3h"), 3h);
  EXPECT_EQ(*parse_duration("1d"), 24h);
  for (const auto* bad :
       {"", "5", "s", "-1s", "1 s", "1S", "1s ", "1.2.3s", "1e3s", ".s", "9999999999999999999s", "1000000d",
        "99999999999999999999999999.5s", "nans", "1sec"})
    EXPECT_FALSE(parse_duration(bad)) << bad;
}

TEST(SettingValues, SizesCountInPowersOf1024) {
  EXPECT_EQ(*parse_size("512"), 512U);
  EXPECT_EQ(*parse_size("512B"), 512U);
  EXPECT_EQ(*parse_size("1.5MiB"), 1572864U);
  EXPECT_EQ(*parse_size("40GiB"), 40ULL << 30U);
  EXPECT_EQ(*parse_size("2TiB"), 2ULL << 40U);
  for (const auto* bad : {"", "GiB", "-1", "1GB", "1gib", "0x10", "8388608TiB", "1 KiB"})
    EXPECT_FALSE(parse_size(bad)) << bad;
}

}  // namespace
}  // namespace cenote
