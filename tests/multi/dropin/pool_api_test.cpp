// The C interface of libcenote-pool from a C program, and what becomes of its leases and its helper process
// when either is killed.
#include "tests/multi/dropin/pool_api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <set>

#include "cenote/pool.h"
#include "runtime/process.h"

namespace cenote::pool::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A program of our own in place of the helper.
std::string script(const TemporaryFolder& folder, const std::string& body) {
  const auto path = folder.file("helper");
  std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
  EXPECT_EQ(::chmod(path.c_str(), 0700), 0);
  return path;
}

TEST_F(PoolApi, LeasedGpusComputeAndReduceAmongThemselves) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 4"), CENOTE_SUCCESS);
  ASSERT_EQ(program.say("open 0 0"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("work 0 " + kPtx).text, "0 wrong on 4 devices");
  EXPECT_EQ(program.say("memory 0 3").text, "1");
  EXPECT_EQ(program.say("state 0"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("close 0"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("release 0"), CENOTE_SUCCESS);
}

TEST_F(PoolApi, ALeaseTellsItsNameAndItsDevices) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  const auto leased = program.lease("0 0 4");
  ASSERT_EQ(leased, CENOTE_SUCCESS) << leased;
  const auto listed = cluster->client()->leases(patience());
  ASSERT_TRUE(listed) << listed.error().message();
  ASSERT_EQ(listed->size(), 1U);
  EXPECT_EQ(listed->front().id, leased.text);
  EXPECT_EQ(listed->front().note, "from C");
  std::set<std::string> uuids, told;
  for (const auto& device : listed->front().devices) uuids.insert(device.uuid);
  for (const auto* index : {"0", "1", "2", "3"}) {
    const auto info = program.say(std::string("info 0 ") + index);
    EXPECT_THAT(info.text, AllOf(StartsWith("4 "), HasSubstr(" 67108864 ")));
    told.insert(info.text.substr(info.text.rfind(' ') + 1));
  }
  EXPECT_EQ(told, uuids);
  EXPECT_EQ(program.say("release 0"), CENOTE_SUCCESS);
}

TEST_F(PoolApi, ASessionOpenedAgainEndsTheFirst) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 2"), CENOTE_SUCCESS);
  ASSERT_EQ(program.say("open 0 0"), CENOTE_SUCCESS);
  ASSERT_EQ(program.say("open 0 1"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("work 1 " + kPtx).text, "0 wrong on 2 devices");
  EXPECT_EQ(program.say("close 0"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("close 1"), CENOTE_SUCCESS);
}

TEST_F(PoolApi, AnImpossibleRequestSaysWhatThePoolHas) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  const auto refused = program.say("lease 0 0 9");
  EXPECT_EQ(refused, CENOTE_INVALID_ARGUMENT);
  EXPECT_THAT(refused.text, HasSubstr("asks 9 GPUs, the pool has 4"));
}

TEST_F(PoolApi, NoFreeGpuIsResourceExhausted) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 4"), CENOTE_SUCCESS);
  const auto refused = program.say("lease 0 1 1");
  EXPECT_EQ(refused, CENOTE_RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.text, HasSubstr("free"));
}

TEST_F(PoolApi, ABrokerThatIsNotThereIsNamed) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect("broker=127.0.0.1:1")), CENOTE_SUCCESS) << "nothing is asked yet";
  const auto refused = program.say("lease 0 0 1 0 500");
  EXPECT_TRUE(refused == CENOTE_PEER_FAILED || refused == CENOTE_DEADLINE_EXCEEDED) << refused;
  EXPECT_THAT(refused.text, HasSubstr("127.0.0.1:1"));
}

TEST_F(PoolApi, AFolderWithoutCertificatesIsNamedWithTheRemedy) {
  TemporaryFolder folder = std::move(*TemporaryFolder::create("cenote-test"));
  PoolProgram program;
  const auto refused = program.say(connect("tls=" + folder.path()));
  EXPECT_EQ(refused, CENOTE_NOT_FOUND);
  EXPECT_THAT(refused.text, AllOf(HasSubstr(folder.path()), HasSubstr("cenote broker --init-tls")));
  EXPECT_TRUE(eventually([&] { return program.helpers().empty(); })) << "its helper stays behind";
}

TEST_F(PoolApi, TheEnvironmentCountsOnlyWhereTheProgramWantsIt) {
  PoolProgram program({{"CENOTE_TLS_DIR", "/nonexistent"}, {"CENOTE_NO_SUCH_SETTING", "1"}});
  EXPECT_EQ(program.say("connect 1 env"), CENOTE_INVALID_ARGUMENT);
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS) << "neither the library nor its helper reads it";
  EXPECT_EQ(program.lease("0 0 1"), CENOTE_SUCCESS);
}

TEST_F(PoolApi, AHelperThatIsNotThereIsNamedWithTheRemedy) {
  PoolProgram program;
  const auto refused = program.say(connect("helper=/nonexistent/cenote"));
  EXPECT_EQ(refused, CENOTE_NOT_FOUND);
  EXPECT_THAT(refused.text, AllOf(HasSubstr("/nonexistent/cenote"), HasSubstr("session.helper")));
}

TEST_F(PoolApi, AHelperThatDoesNotStartIsQuotedWithItsLastWords) {
  TemporaryFolder folder = std::move(*TemporaryFolder::create("cenote-test"));
  PoolProgram program;
  const auto refused =
      program.say(connect("helper=" + script(folder, "echo 'no libgrpc here' >&2; exit 127")));
  EXPECT_EQ(refused, CENOTE_PEER_FAILED);
  EXPECT_THAT(refused.text, AllOf(HasSubstr("code 127"), HasSubstr("no libgrpc here")));
  EXPECT_EQ(program.say("children").text, "none");
}

TEST_F(PoolApi, AProgramThatIsNoHelperIsRefused) {
  TemporaryFolder folder = std::move(*TemporaryFolder::create("cenote-test"));
  PoolProgram program;
  EXPECT_EQ(program.say(connect("helper=" + script(folder, "exit 0"))), CENOTE_PEER_FAILED);
  // It reads on until the library has had enough of it.
  const auto nonsense = script(folder, "(echo 'hello, world' >&3; exec cat <&3 >/dev/null) & exit 0");
  const auto speaks = program.say(connect("helper=" + nonsense));
  EXPECT_EQ(speaks, CENOTE_PROTOCOL_ERROR) << speaks;
  EXPECT_EQ(program.say(connect()), CENOTE_SUCCESS) << "and after all that the right one works";
}

TEST_F(PoolApi, AReleasedLeaseIsOverAndCannotBeReleasedAgain) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 1"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("release 0"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("state 0"), CENOTE_NOT_FOUND);
  EXPECT_EQ(program.say("release 0"), CENOTE_NOT_FOUND);
  const auto opened = program.say("open 0 0");
  EXPECT_EQ(opened, CENOTE_NOT_FOUND);
  EXPECT_THAT(opened.text, HasSubstr("released"));
  EXPECT_EQ(program.say("destroy 0"), CENOTE_SUCCESS);
}

TEST_F(PoolApi, NoHandleNoPointerAndNoSuchDeviceAreInvalidArguments) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 1"), CENOTE_SUCCESS);
  ASSERT_EQ(program.say("open 0 0"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("bad 0").text, "20 of 20 refused, told 1, addresses 12 12, module 12");
  EXPECT_EQ(program.say("work 0 " + kPtx).text, "0 wrong on 1 devices") << "and the session goes on";
  EXPECT_EQ(program.say("close 0"), CENOTE_SUCCESS);
}

TEST_F(PoolApi, TheWorkersDeathNamesTheDeviceAndEndsTheLease) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  const auto leased = program.lease("0 0 1 6000");
  ASSERT_EQ(leased, CENOTE_SUCCESS);
  ASSERT_EQ(program.say("open 0 0"), CENOTE_SUCCESS);
  ASSERT_EQ(program.say("work 0 " + kPtx), CENOTE_SUCCESS);
  const auto workers = cluster->workers();
  ASSERT_EQ(workers.size(), 1U);
  ASSERT_EQ(::kill(workers.front(), SIGKILL), 0);
  const auto lost = program.say("work 0 " + kPtx);
  EXPECT_EQ(lost, CENOTE_DRIVER_ERROR);
  EXPECT_THAT(lost.text, HasSubstr("lease " + leased.text + " gpu 0"));
  EXPECT_TRUE(eventually([&] { return program.say("state 0") == CENOTE_NOT_FOUND; }))
      << program.say("state 0");
  EXPECT_EQ(program.say("close 0"), CENOTE_SUCCESS);
}

TEST_F(PoolApi, ADeadHelperIsTheReasonOfEveryLossAndNothingHangs) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 2 6000"), CENOTE_SUCCESS);
  ASSERT_EQ(program.say("open 0 0"), CENOTE_SUCCESS);
  ASSERT_EQ(program.helpers().size(), 1U);
  ASSERT_EQ(::kill(program.helpers().front(), SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return program.say("state 0") == CENOTE_PEER_FAILED; }));
  EXPECT_THAT(program.say("state 0").text, AllOf(HasSubstr("helper process"), HasSubstr("gone")));
  EXPECT_EQ(program.say("release 0"), CENOTE_PEER_FAILED);
  EXPECT_EQ(program.say("open 0 1"), CENOTE_PEER_FAILED);
  EXPECT_EQ(program.say("lease 0 1 1"), CENOTE_PEER_FAILED);
  EXPECT_TRUE(eventually([&] { return cluster->idle(); })) << "nobody renews it: it ends with its ttl";
  EXPECT_TRUE(eventually([&] { return program.say("memory 0 0") == CENOTE_DRIVER_ERROR; }));
  for (const auto* command : {"close 0", "destroy 0", "disconnect 0"})
    EXPECT_EQ(program.say(command), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("children").text, "none");
  EXPECT_EQ(program.say(connect()), CENOTE_SUCCESS);
  EXPECT_EQ(program.lease("0 0 4"), CENOTE_SUCCESS) << "a new helper, a new lease";
}

TEST_F(PoolApi, AKilledProgramsLeasesAreGivenBackAtOnce) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 2 3600000"), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 1 1 3600000"), CENOTE_SUCCESS);
  ASSERT_EQ(program.say("open 0 0"), CENOTE_SUCCESS);
  const auto pid = program.pid();
  ASSERT_EQ(program.helpers().size(), 1U);
  program.kill();
  EXPECT_TRUE(eventually([&] { return cluster->idle(); })) << "an hour before their time to live is over";
  EXPECT_TRUE(eventually([&] { return PoolProgram::helpers_of(pid).empty(); }));
}

TEST_F(PoolApi, AChildThatLivesOnDoesNotKeepAKilledProgramsLeases) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 4 3600000"), CENOTE_SUCCESS);
  const auto child = std::stoi(program.say("linger").text);
  program.kill();
  EXPECT_TRUE(alive(child)) << "it has the socket to the helper still";
  EXPECT_TRUE(eventually([&] { return cluster->idle(); }));
  ::kill(child, SIGKILL);
}

TEST_F(PoolApi, AProgramThatEndsWithoutAWordGivesItsLeasesBack) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 4 3600000"), CENOTE_SUCCESS);
  EXPECT_EQ(program.finish(), 0);
  EXPECT_TRUE(eventually([&] { return cluster->idle(); }));
}

TEST_F(PoolApi, ADestroyedLeaseIsNeitherRenewedNorGivenBack) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 1 3000"), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 1 1 3600000"), CENOTE_SUCCESS);
  const auto pid = program.pid();
  EXPECT_EQ(program.say("destroy 0"), CENOTE_SUCCESS);
  EXPECT_TRUE(eventually([&] { return cluster->leases() == 1; })) << "it ends with its ttl";
  EXPECT_EQ(program.say("destroy 1"), CENOTE_SUCCESS);
  EXPECT_EQ(program.finish(), 0);
  ASSERT_TRUE(eventually([&] { return PoolProgram::helpers_of(pid).empty(); }));
  const auto left = cluster->client()->leases(patience());
  ASSERT_TRUE(left) << left.error().message();
  EXPECT_EQ(left->size(), 1U) << "destroying does not give back";
  // Only a new pool has these devices free again: the other tests get one.
  TearDownTestSuite();
  SetUpTestSuite();
}

TEST_F(PoolApi, AStoppedProgramKeepsItsLease) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 1 4000"), CENOTE_SUCCESS);
  const auto expires = [] {
    const auto leases = cluster->client()->leases(patience());
    return leases && !leases->empty() ? leases->front().expires_unix_ms : 0;
  };
  program.signal(SIGSTOP);
  const auto before = expires();
  EXPECT_TRUE(eventually([&] { return expires() > before + 4000; })) << "renewed past its length";
  program.signal(SIGCONT);
  EXPECT_EQ(program.say("state 0"), CENOTE_SUCCESS);
}

TEST_F(PoolApi, AStoppedHelperIsADeadlineAndItsLateGrantIsGivenBack) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.helpers().size(), 1U);
  const auto helper = program.helpers().front();
  ASSERT_EQ(::kill(helper, SIGSTOP), 0);
  EXPECT_EQ(program.say("lease 0 0 2 3000 300"), CENOTE_DEADLINE_EXCEEDED);
  ASSERT_EQ(::kill(helper, SIGCONT), 0);
  // The request is still there for the helper, and may be granted now: nobody waits for it any more.
  EXPECT_EQ(program.lease("0 1 4"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("state 1"), CENOTE_SUCCESS);
}

TEST_F(PoolApi, TwoPoolsInOneProgramKnowNothingOfEachOther) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  const auto first = program.helpers();
  ASSERT_EQ(first.size(), 1U);
  ASSERT_EQ(program.say("connect 1 " + config()), CENOTE_SUCCESS);
  ASSERT_EQ(program.helpers().size(), 2U);
  ASSERT_EQ(program.lease("0 0 2 6000"), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("1 1 2"), CENOTE_SUCCESS);
  ASSERT_EQ(program.say("open 0 0"), CENOTE_SUCCESS);
  ASSERT_EQ(program.say("open 1 1"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("work 0 " + kPtx).text, "0 wrong on 2 devices");
  EXPECT_EQ(program.say("work 1 " + kPtx).text, "0 wrong on 2 devices");
  ASSERT_EQ(::kill(first.front(), SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return program.say("state 0") == CENOTE_PEER_FAILED; }));
  EXPECT_EQ(program.say("state 1"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("work 1 " + kPtx).text, "0 wrong on 2 devices");
  for (const auto* command : {"close 0", "close 1"}) EXPECT_EQ(program.say(command), CENOTE_SUCCESS);
}

TEST_F(PoolApi, LeasesOutliveTheirPool) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 2"), CENOTE_SUCCESS);
  ASSERT_EQ(program.say("disconnect 0"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("open 0 0"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("work 0 " + kPtx).text, "0 wrong on 2 devices");
  EXPECT_EQ(program.say("release 0"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("destroy 0"), CENOTE_SUCCESS);
  EXPECT_TRUE(eventually([&] { return program.helpers().empty(); }))
      << "the last of them takes the helper along";
  EXPECT_EQ(program.say("close 0"), CENOTE_SUCCESS);
}

TEST_F(PoolApi, ThreadsLeaseAndWorkAtTheSameTime) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("threads 0 4").text, "0 of 4 failed");
}

TEST_F(PoolApi, AChildOfForkIsRefusedAndItsParentGoesOn) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 2"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("fork 0 0").text, "child 0");
  EXPECT_EQ(program.say("state 0"), CENOTE_SUCCESS);
  ASSERT_EQ(program.say("open 0 0"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("work 0 " + kPtx).text, "0 wrong on 2 devices");
  EXPECT_EQ(program.say("close 0"), CENOTE_SUCCESS);
}

TEST_F(PoolApi, AChildOfForkIsRefusedItsParentsDevicesAndMayCloseThem) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 2"), CENOTE_SUCCESS);
  ASSERT_EQ(program.say("open 0 0"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("forkgpus 0 " + kPtx).text, "child 0, then the parent's");
  EXPECT_EQ(program.say("work 0 " + kPtx).text, "0 wrong on 2 devices");
  EXPECT_EQ(program.say("forkgpus 0 " + kPtx).text, "child 0, then the parent's") << "with a communicator";
  EXPECT_EQ(program.say("work 0 " + kPtx).text, "0 wrong on 2 devices");
  EXPECT_EQ(program.say("close 0"), CENOTE_SUCCESS);
}

TEST_F(PoolApi, AReductionOfNoKnownTypeOrOperationIsRefusedAndTheSessionGoesOn) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 2"), CENOTE_SUCCESS);
  ASSERT_EQ(program.say("open 0 0"), CENOTE_SUCCESS);
  const auto refused = program.say("reduce 0 0 9");
  EXPECT_EQ(refused, CENOTE_INVALID_ARGUMENT);
  EXPECT_THAT(refused.text, HasSubstr("operation"));
  EXPECT_EQ(program.say("reduce 0 99 0"), CENOTE_INVALID_ARGUMENT);
  EXPECT_EQ(program.say("reduce 0 0 0"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("close 0"), CENOTE_SUCCESS);
}

TEST_F(PoolApi, AnErrorSaysNothingOfAnEarlierOne) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 1"), CENOTE_SUCCESS);
  ASSERT_EQ(program.say("open 0 0"), CENOTE_SUCCESS);
  const auto refused = program.say("detail 0 " + kPtx);
  EXPECT_EQ(refused, CENOTE_DRIVER_ERROR);
  EXPECT_THAT(refused.text, AllOf(HasSubstr("out of memory"), Not(HasSubstr("nope"))));
  EXPECT_EQ(program.say("close 0"), CENOTE_SUCCESS);
}

TEST_F(PoolApi, AKernelsArgumentThatIsNotThereIsNamed) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.lease("0 0 1"), CENOTE_SUCCESS);
  ASSERT_EQ(program.say("open 0 0"), CENOTE_SUCCESS);
  const auto refused = program.say("arguments 0 " + kPtx);
  EXPECT_EQ(refused, CENOTE_INVALID_ARGUMENT);
  EXPECT_THAT(refused.text, HasSubstr("`arguments[2]` is NULL"));
  EXPECT_EQ(program.say("close 0"), CENOTE_SUCCESS);
}

TEST_F(PoolApi, TheHelperIsNoChildOfTheProgramAndHasNothingOfIt) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("children").text, "none") << "nothing to reap, now or later";
  ASSERT_EQ(program.helpers().size(), 1U);
  const auto folder = std::filesystem::path("/proc") / std::to_string(program.helpers().front());
  EXPECT_EQ(std::filesystem::read_symlink(folder / "fd/0"), "/dev/null");
  EXPECT_EQ(std::filesystem::read_symlink(folder / "fd/1"), "/dev/null");
  EXPECT_EQ(std::filesystem::read_symlink(folder / "cwd"), "/") << "its folder can be unmounted";
  const auto theirs = std::filesystem::path("/proc") / std::to_string(program.pid()) / "fd/3";
  for (const auto& fd : std::filesystem::directory_iterator(folder / "fd")) {
    std::error_code gone;
    EXPECT_NE(std::filesystem::read_symlink(fd, gone), std::filesystem::read_symlink(theirs)) << fd;
  }
  EXPECT_EQ(program.say("disconnect 0"), CENOTE_SUCCESS);
  EXPECT_TRUE(eventually([&] { return program.helpers().empty(); }));
  EXPECT_EQ(program.say("children").text, "none");
}

TEST_F(PoolApi, ADaemonWithoutStandardDescriptorsThatIgnoresItsChildrenIsServedAlike) {
  PoolProgram program;
  ASSERT_EQ(program.say("odd").text, "odd");
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  const auto folder = std::filesystem::path("/proc") / std::to_string(program.pid()) / "fd";
  for (const auto* standard : {"0", "1", "2"})
    EXPECT_FALSE(std::filesystem::is_symlink(folder / standard)) << "what it prints would go to the helper";
  ASSERT_EQ(program.lease("0 0 2"), CENOTE_SUCCESS);
  ASSERT_EQ(program.say("open 0 0"), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("work 0 " + kPtx).text, "0 wrong on 2 devices");
}

TEST_F(PoolApi, ACtrlCOfTheProgramDoesNotReachTheHelper) {
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  ASSERT_EQ(program.helpers().size(), 1U);
  const auto helper = program.helpers().front();
  EXPECT_NE(::getpgid(helper), ::getpgid(program.pid()));
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ASSERT_EQ(::kill(helper, number), 0);
  EXPECT_EQ(program.lease("0 0 1"), CENOTE_SUCCESS) << "it is there for as long as the program is";
}

TEST_F(PoolApi, AHelperStartedByHandSaysWhatToDoInstead) {
  const auto ran = cluster->run({"session", "--for", "1"});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.error, AllOf(StartsWith("cenote session: "), HasSubstr("cenote lease --gpus N")));
}

TEST_F(PoolApi, ADetachedLeaseIsAdoptedAndNotGivenBackByItsUser) {
  TemporaryFolder folder = std::move(*TemporaryFolder::create("cenote-test"));
  const auto detached =
      cluster->run({"lease", "--gpus", "2", "--ttl", "1h", "--wait", "--timeout", "60", "--detach"});
  ASSERT_EQ(detached.exit_code, 0) << detached.error;
  std::ofstream(folder.file("lease.json")) << detached.output;
  {
    PoolProgram program;
    ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
    ASSERT_EQ(program.say("adopt 0 0 " + folder.file("lease.json")), CENOTE_SUCCESS);
    ASSERT_EQ(program.say("open 0 0"), CENOTE_SUCCESS);
    EXPECT_EQ(program.say("work 0 " + kPtx).text, "0 wrong on 2 devices");
    const auto pid = program.pid();
    EXPECT_EQ(program.finish(), 0);
    ASSERT_TRUE(eventually([&] { return PoolProgram::helpers_of(pid).empty(); }));
    EXPECT_EQ(cluster->leases(), 1U);
  }
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("adopt 0 1 " + folder.file("missing.json")), CENOTE_NOT_FOUND);
  EXPECT_EQ(program.say("adopt 0 1 " + config()), CENOTE_PROTOCOL_ERROR);
  ASSERT_EQ(program.say("adopt 0 0 " + folder.file("lease.json")), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("release 0"), CENOTE_SUCCESS);
}

TEST_F(PoolApi, AnAdoptedLeaseThatOthersReleaseIsOver) {
  TemporaryFolder folder = std::move(*TemporaryFolder::create("cenote-test"));
  const auto detached =
      cluster->run({"lease", "--gpus", "1", "--ttl", "10s", "--wait", "--timeout", "60", "--detach"});
  ASSERT_EQ(detached.exit_code, 0) << detached.error;
  std::ofstream(folder.file("lease.json")) << detached.output;
  PoolProgram program;
  ASSERT_EQ(program.say(connect()), CENOTE_SUCCESS);
  for (const auto* lease : {"0", "1"})
    ASSERT_EQ(program.say("adopt 0 " + std::string(lease) + " " + folder.file("lease.json")), CENOTE_SUCCESS);
  EXPECT_EQ(program.say("state 0"), CENOTE_SUCCESS);
  const auto released = cluster->run({"release", folder.file("lease.json")});
  ASSERT_EQ(released.exit_code, 0) << released.error;
  EXPECT_EQ(program.say("release 1"), CENOTE_NOT_FOUND) << "at once: it asks";
  EXPECT_TRUE(eventually([&] { return program.say("state 0") == CENOTE_NOT_FOUND; }))
      << program.say("state 0");
  EXPECT_EQ(program.say("open 0 0"), CENOTE_NOT_FOUND);
}

TEST_F(PoolApi, AProgramUnderCenoteLeaseAdoptsItsLeaseByTheSettings) {
  const auto ran = cluster->run({"lease", "--gpus", "2", "--wait", "--timeout", "60", "--", "env",
                                 "CENOTE_CONFIG_FILE=" + config(), kPoolProgram, "connect 0 env", "adopt 0 0",
                                 "open 0 0", "work 0 " + kPtx});
  EXPECT_EQ(ran.exit_code, 0) << ran.error;
  EXPECT_THAT(ran.output, HasSubstr("0 wrong on 2 devices")) << ran.error;
}

}  // namespace
}  // namespace cenote::pool::testing
