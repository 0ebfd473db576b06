#include "runtime/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/process.h"

namespace cenote {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

std::unique_ptr<Context> make(const std::string& component, std::vector<std::string> overrides) {
  auto settings = Settings::load({{}, Environment{}, std::move(overrides)});
  EXPECT_TRUE(settings) << settings.error().message();
  auto context = Context::create(std::move(*settings), component);
  EXPECT_TRUE(context) << context.error().message();
  return std::move(*context);
}

TEST(Context, TwoInOneProcessDoNotSeeEachOther) {
  const auto folder = std::move(*TemporaryFolder::create("contexts"));
  const auto one = make("one", {"log.file=" + folder.file("one.log"), "log.level=debug"});
  const auto two = make("two", {"log.file=" + folder.file("two.log"), "log.format=json"});

  one->log().debug("from one");
  two->log().debug("too quiet for two");
  two->log().info("from two");
  (*one->metrics().counter("puts_total", "puts"))->add(5);
  const auto ticket = one->ledger().begin(0, 0, "put", 1, 8, "posted");

  EXPECT_EQ(one->settings().text("log.level"), "debug");
  EXPECT_EQ(two->settings().text("log.level"), "info");
  EXPECT_THAT(one->ledger().snapshot(), SizeIs(1));
  EXPECT_THAT(two->ledger().snapshot(), IsEmpty());
  EXPECT_THAT(two->metrics().snapshot(), IsEmpty());
  EXPECT_THAT(*read_file(folder.file("one.log"), 1000), HasSubstr("debug [one] from one"));
  const auto second = *read_file(folder.file("two.log"), 1000);
  EXPECT_THAT(second, HasSubstr(R"("component":"two","message":"from two")"));
  EXPECT_THAT(second, Not(HasSubstr("quiet")));
  one->ledger().end(ticket);
}

TEST(Context, ALogThatCannotBeOpenedIsAnError) {
  auto settings = Settings::load({{}, Environment{}, {"log.file=/dev/null/x"}});
  const auto context = Context::create(std::move(*settings), "x");
  ASSERT_FALSE(context);
  EXPECT_THAT(context.error().message(), HasSubstr("/dev/null/x"));
}

}  // namespace
}  // namespace cenote
