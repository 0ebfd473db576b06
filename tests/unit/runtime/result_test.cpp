#include "runtime/result.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <memory>

#include "runtime/bytes.h"
#include "runtime/deadline.h"

namespace cenote {
namespace {

Result<int> odd(int value) {
  if (value % 2 == 0)
    return fail(ErrorCode::invalid_argument, "take an odd number", std::to_string(value) + " is even");
  return value;
}
Result<int> sum_of_odds(int a, int b) {
  CENOTE_ASSIGN(const int first, odd(a));
  CENOTE_ASSIGN(const int second, odd(b));
  return first + second;
}
Result<void> check(int value) {
  CENOTE_TRY(odd(value));
  return {};
}

TEST(Result, ErrorsTravelUpUnchanged) {
  EXPECT_EQ(*sum_of_odds(1, 3), 4);
  EXPECT_EQ(sum_of_odds(1, 2).error().message(), "take an odd number failed: 2 is even");
  EXPECT_TRUE(check(1));
  EXPECT_EQ(check(2).error().code, ErrorCode::invalid_argument);
}

TEST(Error, SaysWhatWithWhomWhyAndWhatToDo) {
  const Error error =
      Error{ErrorCode::peer_failed, "put", "retry exceeded"}.on("mlx5_1").with("rank 3").fix("see doctor");
  EXPECT_EQ(error.message(), "put on mlx5_1 with rank 3 failed: retry exceeded\n  see doctor");
  const auto refused = system_error("bind", EACCES);
  EXPECT_EQ(refused.message(), "bind failed: Permission denied");
  EXPECT_EQ(refused.native, EACCES);
}

TEST(Error, EveryCodeHasAText) {
  for (int code = 0; code <= static_cast<int>(ErrorCode::internal); ++code)
    EXPECT_NE(to_string(static_cast<ErrorCode>(code)), "unknown error") << code;
}

TEST(Bytes, AReaderNeverLeavesItsInput) {
  Writer writer;
  writer.put(std::uint32_t{7}).text("abc").put(1.5);
  const auto& whole = writer.bytes();
  Reader reader(whole);
  EXPECT_EQ(reader.get<std::uint32_t>(), 7U);
  EXPECT_EQ(reader.text(), "abc");
  EXPECT_EQ(reader.get<double>(), 1.5);
  EXPECT_TRUE(reader.finished());
  EXPECT_EQ(reader.get<int>(), 0);
  EXPECT_TRUE(reader.bad());
  for (std::size_t cut = 0; cut < whole.size(); ++cut) {
    const auto head = std::span<const std::byte>(whole).first(cut);
    Reader broken(head);
    (void)broken.get<std::uint32_t>();
    (void)broken.text();
    (void)broken.get<double>();
    EXPECT_TRUE(broken.bad()) << cut;
  }
}

TEST(Deadline, NeverPassesWhenItIsNever) {
  EXPECT_FALSE(Deadline::never().passed());
  EXPECT_EQ(Deadline::never().poll_ms(), 1'000'000);
  const auto past = Deadline::in(std::chrono::seconds(-1));
  EXPECT_TRUE(past.passed());
  EXPECT_EQ(past.left(), Clock::duration::zero());
  EXPECT_EQ(past.poll_ms(), 0);
}

}  // namespace
}  // namespace cenote
