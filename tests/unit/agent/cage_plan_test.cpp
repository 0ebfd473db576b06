// Which cage a machine allows, on machines as files say they are.
#include "pool/agent/cage_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "pool/agent/cages.h"
#include "runtime/process.h"

namespace cenote::pool::agent {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CagePlanTest : public ::testing::Test {
 protected:
  CagePlanTest() {
    root();
    put("/proc/self/uid_map", "0 0 4294967295\n");
    put("/proc/self/gid_map", "0 0 4294967295\n");
    put("/proc/self/limits", "Max locked memory         8388608              8388608              bytes\n");
    put("/proc/self/cgroup", "1:name=systemd:/x\n0::/cenote.service\n");
    put("/proc/self/mountinfo", "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n");
    put(group + "/cgroup.controllers", "cpu memory pids\n");
    put(group + "/cgroup.subtree_control", "\n");
    put(group + "/cgroup.type", "domain\n");
    put(group + "/cgroup.procs", std::to_string(::getpid()) + "\n");
  }
  void root(const std::string& capabilities = "000001ffffffffff") { user("0", capabilities); }
  void user(const std::string& id, const std::string& capabilities = "0000000000000000") {
    put("/proc/self/status", "Name:\tcenote\nUid:\t" + id + "\t" + id + "\t" + id + "\t" + id +
                                 "\nCapEff:\t" + capabilities + "\nSeccomp:\t0\n");
  }
  void put(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(folder.path() + path).parent_path());
    std::ofstream(folder.path() + path) << text;
  }
  void node(const std::string& path, mode_t mode, gid_t group_id = 0) {
    put(path, "");
    ASSERT_EQ(::chmod((folder.path() + path).c_str(), mode), 0);
    if (group_id != 0) {
      ASSERT_EQ(::chown((folder.path() + path).c_str(), 0, group_id), 0);
    }
  }
  CagePlan plan() {
    auto made = plan_cage(options, MachineFiles(folder.path()));
    EXPECT_TRUE(made) << made.error().message();
    return made ? std::move(*made) : CagePlan{};
  }
  static const CageRung& rung(const CagePlan& plan, std::string_view name) {
    for (const auto& rung : plan.rungs)
      if (rung.name == name) return rung;
    ADD_FAILURE() << name;
    return plan.rungs.front();
  }
  void expect_refused(std::string_view name, const std::string& why) {
    const auto made = plan();
    EXPECT_FALSE(rung(made, name).taken);
    EXPECT_THAT(rung(made, name).reason, HasSubstr(why));
  }

  TemporaryFolder folder = TemporaryFolder::create("cage-plan").value();
  const std::string group = "/sys/fs/cgroup/cenote.service";
  CageOptions options;
};

TEST_F(CagePlanTest, RootWithItsOwnCgroupHasAllOfIt) {
  const auto made = plan();
  for (const auto& one : made.rungs) {
    if (kSanitized && (one.name == "system-calls" || one.name == "core-dumps")) continue;
    EXPECT_TRUE(one.taken) << one.name << ": " << one.reason;
  }
  EXPECT_EQ(made.first_user, 1900000000U);
  EXPECT_EQ(made.room.folder, group);
  EXPECT_TRUE(made.room.enable);
  EXPECT_TRUE(check_required(made.rungs, {"user", "memory"}));
}

TEST_F(CagePlanTest, AnOrdinaryUserHasNoOtherAndSaysSo) {
  user("1000");
  const auto made = plan();
  EXPECT_FALSE(rung(made, "user").taken);
  EXPECT_EQ(rung(made, "user").reason, "the agent is user 1000, not root");
  EXPECT_THAT(rung(made, "user").remedy, HasSubstr("as root"));
  EXPECT_FALSE(rung(made, "credentials").taken);
  EXPECT_EQ(rung(made, "system-calls").taken, !kSanitized);
  const auto refused = check_required(made.rungs, {"user"});
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("the agent is user 1000, not root"));
}

TEST_F(CagePlanTest, WhoMayNotChangeUsersHasNone) {
  root("00000000a80405fb" /* a container's, without CAP_SETUID */);
  put("/proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000000000000003b\nSeccomp:\t2\n");
  expect_refused("user", "CAP_SETUID");
}

TEST_F(CagePlanTest, UsersThatTheNamespaceDoesNotHaveAreNotUsed) {
  put("/proc/self/uid_map", "0 100000 65536\n");
  expect_refused("user", "do not exist in this user namespace");
  options.users = "60000-60999";
  put("/proc/self/gid_map", "0 100000 65536\n");
  EXPECT_TRUE(rung(plan(), "user").taken);
}

TEST_F(CagePlanTest, SettingsTakeItAway) {
  options.users = "";
  options.filter = false;
  expect_refused("user", "agent.cage.users is empty");
  if (!kSanitized) expect_refused("system-calls", "agent.cage.filter is false");
}

TEST_F(CagePlanTest, WhatIsNoRangeIsNamed) {
  for (const auto* text : {"5", "0-10", "9-3", "1-2-3", "a-b", "1-4294967295"}) {
    options.users = text;
    const auto made = plan_cage(options, MachineFiles(folder.path()));
    ASSERT_FALSE(made) << text;
    EXPECT_THAT(made.error().message(), HasSubstr("agent.cage.users"));
  }
}

TEST_F(CagePlanTest, UcxAndMpsWantOneUser) {
  options.over_ucx = true;
  expect_refused("user", "transports has ucx");
  options.over_ucx = false;
  put("/tmp/nvidia-mps/control", "");
  expect_refused("user", "MPS");
}

TEST_F(CagePlanTest, DevicesOfAGroupBringTheGroupAndThoseOfRootAloneRefuse) {
  if (::geteuid() != 0) GTEST_SKIP() << "not root: files of another group cannot be made";
  node("/dev/nvidia0", 0660, 44);
  node("/dev/nvidiactl", 0666);
  EXPECT_THAT(plan().groups, ElementsAre(44));
  node("/dev/nvidia-uvm", 0600);
  expect_refused("user", "/dev/nvidia-uvm is for root alone");
}

TEST_F(CagePlanTest, LockedMemoryThatRootMayRaiseOrNobodyNeedsRefusesNothing) {
  root("000001fffeffffff");  // without CAP_SYS_RESOURCE
  EXPECT_TRUE(rung(plan(), "user").taken);
  node("/dev/infiniband/uverbs0", 0666);
  expect_refused("user", "locked memory");
  put("/proc/self/limits", "Max locked memory         unlimited            unlimited            bytes\n");
  EXPECT_TRUE(rung(plan(), "user").taken);
}

TEST_F(CagePlanTest, ACrowdedCgroupCannotHandItsControllersDown) {
  put(group + "/cgroup.procs", "1\n2\n");
  expect_refused("memory", "2 other processes are in " + group);
  put(group + "/cgroup.subtree_control", "memory pids\n");
  EXPECT_TRUE(rung(plan(), "memory").taken) << "it has done so already";
}

TEST_F(CagePlanTest, WithoutControllersThreadsAreCountedByUser) {
  put(group + "/cgroup.controllers", "hugetlb\n");
  expect_refused("memory", "has no controller memory (it lists hugetlb)");
  auto made = plan();
  EXPECT_TRUE(rung(made, "threads").taken);
  EXPECT_TRUE(made.threads_by_user);
  user("1000");
  expect_refused("threads", "RLIMIT_NPROC takes a user of its own");
}

TEST_F(CagePlanTest, NoCgroupAtAllIsSaid) {
  put("/proc/self/mountinfo", "22 1 0:2 / / rw - ext4 /dev/sda rw\n");
  expect_refused("memory", "no cgroup v2 is mounted here");
  options.cgroup = "/sys/fs/cgroup/absent";
  expect_refused("memory", "/sys/fs/cgroup/absent is no cgroup v2 folder");
}

class CagesTest : public ::testing::Test {
 protected:
  static CagePlan two_users() {
    CagePlan plan;
    plan.first_user = 1900080000;
    plan.last_user = 1900080001;
    return plan;
  }
};

TEST_F(CagesTest, NoTwoWorkersHaveOneUserWhicheverAgentsTheyAreOf) {
  auto ours = Cages::create(two_users()), theirs = Cages::create(two_users());
  auto first = ours.make({});
  auto second = theirs.make({});
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->cage.user, second->cage.user);
  const auto third = ours.make({});
  ASSERT_FALSE(third);
  EXPECT_EQ(third.error().code, ErrorCode::resource_exhausted);
  const auto freed = first->cage.user;
  *first = HeldCage{};
  const auto again = theirs.make({});
  ASSERT_TRUE(again);
  EXPECT_EQ(again->cage.user, freed);
}

// Files of a usual folder stand for a cgroup's: what is written, and that what others left goes.
TEST_F(CagesTest, EachWorkerHasAGroupWithItsLimitsAndStaleOnesGo) {
  const auto folder = TemporaryFolder::create("cage-groups").value();
  const auto stale = folder.file("cenote-999999999-4");
  fs::create_directories(stale);
  fs::create_directories(folder.file("somebody-else"));
  ASSERT_TRUE(prepare_groups({.folder = folder.path()}));
  EXPECT_FALSE(fs::exists(stale));
  EXPECT_TRUE(fs::exists(folder.file("somebody-else")));
  std::string made;
  {
    const auto group = WorkerGroup::create(folder.path(), 1, {}).value();
    made = group.folder();
    EXPECT_TRUE(fs::exists(made));
  }
  EXPECT_FALSE(fs::exists(made));
  const auto without = WorkerGroup::create(folder.path(), 2, {.memory = 1 << 20});
  ASSERT_FALSE(without) << "there is no memory.max";
  EXPECT_THAT(without.error().message(), HasSubstr("memory.max"));
}

}  // namespace
}  // namespace cenote::pool::agent
