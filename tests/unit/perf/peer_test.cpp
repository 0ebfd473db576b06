// Other programs as peers of a bench: how they are run, and what is read of what they print.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <cmath>
#include <fstream>

#include "perf/harness.h"
#include "perf/peer_process.h"
#include "perf/verbs_tools.h"
#include "runtime/process.h"
#include "runtime/tcp_socket.h"

namespace cenote::perf::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Deadline patience() { return Deadline::in(std::chrono::seconds(60)); }

PeerProcess shell(const std::string& script, std::vector<std::string> environment = {}) {
  auto started = PeerProcess::start({{"/bin/sh", "-c", script}, -1, std::move(environment)});
  EXPECT_TRUE(started) << started.error().message();
  return std::move(*started);
}

TEST(PeerProcess, GivesWhatItPrintedWhenItEndsWell) {
  auto process = shell("echo one; echo aside >&2; echo \"$TWO\"", {"TWO=two"});
  const auto output = process.finish(patience());
  ASSERT_TRUE(output) << output.error().message();
  EXPECT_EQ(*output, "one\ntwo\n");
}

TEST(PeerProcess, ABadEndIsAnErrorWithItsLastWords) {
  const auto failed = shell("echo table; echo no such device >&2; exit 3").finish(patience());
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, ErrorCode::peer_failed);
  EXPECT_THAT(failed.error().message(), AllOf(HasSubstr("exit code 3"), HasSubstr("no such device")));
  const auto killed = shell("kill -SEGV $$").finish(patience());
  ASSERT_FALSE(killed);
  EXPECT_THAT(killed.error().message(), HasSubstr("SIGSEGV"));
}

TEST(PeerProcess, IsNotAwaitedBeyondTheDeadlineAndGoesWithItsObject) {
  const auto folder = TemporaryFolder::create("peer");
  ASSERT_TRUE(folder);
  const auto file = folder->file("pid");
  {
    auto process = shell("echo $$ > " + file + "; exec sleep 600");
    const auto late = process.finish(Deadline::in(std::chrono::milliseconds(50)));
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code, ErrorCode::deadline_exceeded);
    EXPECT_FALSE(process.ended());
    pid_t pid = 0;
    const auto deadline = patience();
    while (!(std::ifstream(file) >> pid) && !deadline.passed()) ::usleep(1000);
    ASSERT_GT(pid, 0);
    EXPECT_EQ(::kill(pid, 0), 0);
  }
  pid_t pid = 0;
  std::ifstream(file) >> pid;
  EXPECT_EQ(::kill(pid, 0), -1);
}

TEST(PeerProcess, AServerIsAwaitedWithoutConnectingToIt) {
  auto server = shell("exec sleep 600");
  const auto listener = listen_on({"127.0.0.1", 0}, 4);
  ASSERT_TRUE(listener);
  const auto at = local_address(listener->get());
  ASSERT_TRUE(at);
  EXPECT_TRUE(await_listener(at->port, server, patience()));
  const auto nobody = accept_from(listener->get());
  ASSERT_TRUE(nobody);
  EXPECT_FALSE(*nobody) << "somebody called";
}

TEST(PeerProcess, AServerThatEndsIsNotAwaited) {
  const auto port = free_port();
  ASSERT_TRUE(port);
  const auto waited = await_listener(*port, shell("exit 1"), patience());
  ASSERT_FALSE(waited);
  EXPECT_EQ(waited.error().code, ErrorCode::peer_failed);
  const auto late =
      await_listener(*port, shell("exec sleep 600"), Deadline::in(std::chrono::milliseconds(20)));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, ErrorCode::deadline_exceeded);
}

TEST(Tables, OfPerftestAndOfOursAreReadAlike) {
  const auto theirs = parse_row(
      " local address: LID 0000 QPN 0x0011 PSN 0x5d1c0e\n"
      "---------------------------------------------------------------------------------------\n"
      " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
      " 65536      500              70.31              35.24  \t\t   0.000564\n"
      "---------------------------------------------------------------------------------------\n",
      false);
  ASSERT_TRUE(theirs) << theirs.error().message();
  EXPECT_THAT(theirs->values, ElementsAre(65536, 500, 70.31, 35.24, 0.000564));
  EXPECT_DOUBLE_EQ(theirs->bandwidth(), 35.24);
  const auto ours = parse_row(
      " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]\n"
      " 65536      500            -                   22.05                 0.000353\n",
      false);
  ASSERT_TRUE(ours) << ours.error().message();
  EXPECT_TRUE(std::isnan(ours->values[2]));
  EXPECT_DOUBLE_EQ(ours->bandwidth(), 22.05);
  const auto latency = parse_row(
      " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
      "99% percentile[usec]   99.9% percentile[usec] \n"
      " 8       2000          16.42          38000.23      16.92    \t       183.33      "
      "\t1304.74\t\t9092.71 "
      "\t\t18595.57\n",
      true);
  ASSERT_TRUE(latency) << latency.error().message();
  EXPECT_DOUBLE_EQ(latency->typical(), 16.92);
}

TEST(Tables, ThatAreNoneAreErrorsThatShowWhatWasThere) {
  const auto nothing = parse_row("Couldn't connect to 127.0.0.1:19000\n", false);
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().code, ErrorCode::protocol_error);
  EXPECT_THAT(nothing.error().cause, HasSubstr("Couldn't connect"));
  const std::string heading = " #bytes #iterations BW peak[MB/sec] BW average[MB/sec] MsgRate[Mpps]\n";
  for (const std::string row : {"", " 65536 500 70.31 35.24\n", " 65536 500 a lot 0.000564\n",
                                " 65536 500 70.31 35.24 0.000564 1\n", "-----------------\n"}) {
    const auto wrong = parse_row(heading + row, false);
    ASSERT_FALSE(wrong) << row;
    EXPECT_EQ(wrong.error().code, ErrorCode::protocol_error);
  }
}

TEST(Stage, AProgramStartsFromItsCopyAndItsLibraries) {
  const auto folder = TemporaryFolder::create("stage");
  ASSERT_TRUE(folder);
  const auto copy = stage_program("/bin/sh", folder->path());
  ASSERT_TRUE(copy) << copy.error().message();
  EXPECT_EQ(*copy, folder->file("sh"));
  struct stat library {};
  EXPECT_EQ(::stat(folder->file("libc.so.6").c_str(), &library), 0);
  auto started =
      PeerProcess::start({{*copy, "-c", "cat /proc/$$/maps"}, -1, {"LD_LIBRARY_PATH=" + folder->path()}});
  ASSERT_TRUE(started);
  const auto maps = started->finish(patience());
  ASSERT_TRUE(maps) << maps.error().message();
  EXPECT_THAT(*maps, HasSubstr(folder->file("libc.so.6")));
}

TEST(Row, IsTheMeanOfTheRatiosWithItsInterval) {
  const Comparison lower{"a latency", "us", "a peer", Better::lower, 1.0};
  const Row row = summarise(lower, {{10, 20}, {10, 20}, {10, 20}});
  EXPECT_DOUBLE_EQ(row.ratio, 2);
  EXPECT_DOUBLE_EQ(row.spread[0], 2);
  EXPECT_DOUBLE_EQ(row.spread[1], 2);
  EXPECT_TRUE(row.met);
  // Half and twice as good are as good as equal; their interval is as wide as three pairs make it.
  const Comparison higher{"a bandwidth", "MiB/s", "a peer", Better::higher, 1.01};
  const Row even = summarise(higher, {{10, 20}, {20, 20}, {40, 20}});
  EXPECT_NEAR(even.ratio, 1, 1e-12);
  EXPECT_NEAR(even.spread[1], std::exp(std::log(2.0) / std::sqrt(3.0) * 4.303), 1e-9);
  EXPECT_NEAR(even.spread[0] * even.spread[1], 1, 1e-9);
  EXPECT_DOUBLE_EQ(even.value, 20);
  EXPECT_FALSE(even.met);
}

}  // namespace
}  // namespace cenote::perf::test
