// What launchers say, read from variables: those of a recorded srun and of torchrun, whole, halved, hostile.
#include "runtime/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "runtime/launcher_lists.h"

namespace cenote::launcher {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// Rank 4 of `srun -N3 -n5 --distribution=block`, Slurm 22.05.
Environment srun() {
  return {{"SLURM_CLUSTER_NAME", "here"},
          {"SLURM_DISTRIBUTION", "block"},
          {"SLURM_JOB_ID", "1"},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", "2"},
          {"SLURM_PROCID", "4"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_STEP_NODELIST", "gpu[1-3]"},
          {"SLURM_STEP_NUM_NODES", "3"},
          {"SLURM_STEP_NUM_TASKS", "5"},
          {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"}};
}

/// Rank 5 of `torchrun --nnodes 2 --nproc-per-node 4`.
Environment torchrun() {
  return {{"RANK", "5"},
          {"WORLD_SIZE", "8"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "4"},
          {"MASTER_ADDR", "node-a"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_RUN_ID", "none"},
          {"TORCHELASTIC_RESTART_COUNT", "0"}};
}

Environment with(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}
Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

/// The text of the refusal.
std::string refusal(std::string_view wanted, const Environment& environment,
                    ErrorCode code = ErrorCode::invalid_argument) {
  const auto place = find_place(wanted, environment);
  if (place) return "it was taken";
  EXPECT_EQ(place.error().code, code);
  return place.error().message();
}

TEST(NodeLists, AreWrittenOut) {
  const auto names = [](std::string_view list) { return expand_nodes(list).value(); };
  EXPECT_THAT(names("login"), ElementsAre("login"));
  EXPECT_THAT(names("gpu[1-3,07],login"), ElementsAre("gpu1", "gpu2", "gpu3", "gpu07", "login"));
  EXPECT_THAT(names("n[008-011]"), ElementsAre("n008", "n009", "n010", "n011"));
  EXPECT_THAT(names("n[98-101]-ib"), ElementsAre("n98-ib", "n99-ib", "n100-ib", "n101-ib"));
  EXPECT_THAT(names("r[0-1]n[2,4]"), ElementsAre("r0n2", "r0n4", "r1n2", "r1n4"));
  EXPECT_THAT(names("a.b-c_d"), ElementsAre("a.b-c_d"));
  EXPECT_EQ(names("n[1-65536]").size(), most_nodes);
  EXPECT_THAT(names("n[4294967295-4294967295]"), ElementsAre("n4294967295"));
}

TEST(NodeLists, ThatMakeNoSenseAreRefusedWhereTheyDoNot) {
  for (const auto* list : {"",
                           ",",
                           "a,",
                           ",a",
                           "a[",
                           "a[]",
                           "a[1",
                           "a[1-",
                           "a[1-]",
                           "a[-1]",
                           "a[1,]",
                           "a[3-1]",
                           "a]",
                           "a[[1]]",
                           "a[1]b[",
                           "a b",
                           "a\n",
                           "a;rm",
                           "a[x]",
                           "a[1-2-3]",
                           "a[4294967296]",
                           "a[99999999999999999999]"}) {
    const auto names = expand_nodes(list);
    ASSERT_FALSE(names) << list;
    EXPECT_EQ(names.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(names.error().message(), HasSubstr("character ")) << list;
  }
  EXPECT_THAT(expand_nodes("a[1-").error().message(), HasSubstr("'a[1-', character 5"));
}

TEST(NodeLists, LargerThanAnyJobCostNothing) {
  for (const auto* list : {"n[0-65536]", "n[0-4294967295]", "a[0-999]b[0-999]",
                           "a[0-9]b[0-9]c[0-9]d[0-9]e[0-9]", "x,n[1-65536]", "n[1-65536],x"}) {
    const auto names = expand_nodes(list);
    ASSERT_FALSE(names) << list;
    EXPECT_THAT(names.error().message(), HasSubstr("more nodes than one job has")) << list;
  }
  const std::string half(200, 'a');
  EXPECT_THAT(expand_nodes(half + "[1]" + half).error().message(), HasSubstr("longer than 253"));
  EXPECT_LT(expand_nodes(std::string(100000, '[')).error().message().size(), 400U);
}

TEST(TaskCounts, AreWrittenOut) {
  EXPECT_THAT(expand_counts("2(x3),1").value(), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(expand_counts("8").value(), ElementsAre(8));
  for (const auto* list :
       {"", "x", "2(x", "2(x3", "2(x0)", "2()", "2,", "2(x99999999)", "2(x65536),1", "-1", "1 2"})
    EXPECT_FALSE(expand_counts(list)) << list;
}

TEST(Launcher, SrunSaysWhoThisIs) {
  const auto place = find_place("auto", srun()).value();
  EXPECT_EQ(place.kind, Kind::slurm);
  EXPECT_EQ(place.rank, 4U);
  EXPECT_EQ(place.ranks, 5U);
  EXPECT_EQ(place.local_rank, 0U);
  EXPECT_EQ(place.local_ranks, 1U);
  EXPECT_EQ(place.root_host, "gpu1");
  EXPECT_FALSE(place.one_machine());
}

TEST(Launcher, TorchrunSaysWhoThisIs) {
  const auto place = find_place("auto", torchrun()).value();
  EXPECT_EQ(place.kind, Kind::torchrun);
  EXPECT_EQ(place.rank, 5U);
  EXPECT_EQ(place.ranks, 8U);
  EXPECT_EQ(place.local_rank, 1U);
  EXPECT_EQ(place.local_ranks, 4U);
  EXPECT_EQ(place.root_host, "node-a");
}

TEST(Launcher, PmixNamesTheRankAndItsServerTheRest) {
  const Environment mpirun{{"PMIX_NAMESPACE", "1316683777"}, {"PMIX_RANK", "2"}};
  auto place = find_place("auto", mpirun).value();
  EXPECT_EQ(place.kind, Kind::pmix);
  EXPECT_EQ(place.rank, 2U);
  EXPECT_EQ(place.ranks, 0U);
  place.ranks = 4;
  ASSERT_TRUE(place_among("0,2", place));
  EXPECT_EQ(place.local_rank, 1U);
  EXPECT_EQ(place.local_ranks, 2U);
  for (const auto* peers : {"", "0,1", "2,x", "0,1,2,3,4"})
    EXPECT_EQ(place_among(peers, place).error().code, ErrorCode::protocol_error) << peers;
}

TEST(Launcher, WithoutOneItSaysWhatWasLookedForAndWhatToDo) {
  EXPECT_THAT(refusal("auto", {}, ErrorCode::not_found),
              AllOf(HasSubstr("PMIX_NAMESPACE"), HasSubstr("SLURM_STEP_ID"), HasSubstr("RANK"),
                    HasSubstr("mpirun"), HasSubstr("CENOTE_LAUNCHER=none")));
  const auto alone = find_place("none", srun()).value();
  EXPECT_EQ(alone.ranks, 1U);
}

TEST(Launcher, ABatchScriptIsNoTaskOfSrun) {
  const auto script = without(srun(), "SLURM_STEP_ID");
  EXPECT_THAT(refusal("auto", script, ErrorCode::not_found), HasSubstr("SLURM_STEP_ID"));
}

TEST(Launcher, TheInnermostIsMeant) {
  const auto inner = with(srun(), torchrun());  // srun starts torchrun, which starts the ranks
  EXPECT_EQ(find_place("auto", inner).value().kind, Kind::torchrun);
  const auto mpirun = with(srun(), {{"PMIX_NAMESPACE", "7"}, {"PMIX_RANK", "0"}});
  EXPECT_EQ(find_place("auto", mpirun).value().kind, Kind::pmix);
  EXPECT_EQ(find_place("slurm", inner).value().kind, Kind::slurm);
}

TEST(Launcher, VariablesThatContradictEachOtherAreNamed) {
  EXPECT_THAT(refusal("auto", with(torchrun(), {{"RANK", "8"}})),
              HasSubstr("RANK is 8, and WORLD_SIZE only 8"));
  EXPECT_THAT(refusal("auto", with(torchrun(), {{"LOCAL_RANK", "4"}})),
              HasSubstr("LOCAL_RANK is 4, and LOCAL_WORLD_SIZE only 4"));
  EXPECT_THAT(refusal("auto", with(torchrun(), {{"LOCAL_WORLD_SIZE", "9"}})),
              HasSubstr("LOCAL_WORLD_SIZE is 9, and WORLD_SIZE only 8"));
  EXPECT_THAT(refusal("auto", with(torchrun(), {{"RANK", "0"}})),
              HasSubstr("LOCAL_RANK is 1, and RANK only 0"));
  EXPECT_THAT(refusal("auto", with(srun(), {{"SLURM_PROCID", "5"}})),
              HasSubstr("SLURM_PROCID is 5, and SLURM_STEP_NUM_TASKS only 5"));
  EXPECT_THAT(refusal("auto", with(srun(), {{"SLURM_LOCALID", "1"}})), HasSubstr("SLURM_LOCALID is 1"));
  EXPECT_THAT(refusal("auto", with(srun(), {{"SLURM_NODEID", "3"}})), HasSubstr("SLURM_NODEID is 3"));
  EXPECT_THAT(refusal("auto", with(srun(), {{"SLURM_STEP_NODELIST", "gpu[1-2]"}})),
              HasSubstr("SLURM_STEP_NODELIST names 2 nodes, SLURM_STEP_TASKS_PER_NODE 3"));
  EXPECT_THAT(refusal("auto", with(srun(), {{"SLURM_STEP_TASKS_PER_NODE", "2(x3)"}})),
              HasSubstr("SLURM_STEP_TASKS_PER_NODE makes 6 tasks, SLURM_STEP_NUM_TASKS 5"));
  const auto by_hand = with(srun(), {{"RANK", "3"}, {"WORLD_SIZE", "5"}});
  EXPECT_THAT(refusal("auto", by_hand),
              AllOf(HasSubstr("RANK is '3', and SLURM_PROCID is '4'"), HasSubstr("launcher")));
  EXPECT_EQ(find_place("auto", with(by_hand, {{"RANK", "4"}})).value().kind, Kind::slurm);
}

TEST(Launcher, EachVariableThatIsMissingOrNoNumberIsNamed) {
  for (const auto* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_THAT(refusal("auto", without(torchrun(), name)), HasSubstr(std::string(name) + " is not set"));
    EXPECT_THAT(refusal("auto", with(torchrun(), {{name, ""}})), HasSubstr(std::string(name) + " is empty"));
    if (std::string_view(name) == "MASTER_ADDR") continue;
    for (const auto* value : {"-1", "x", "1x", " 1", "99999999999", "0x1"})
      EXPECT_THAT(refusal("auto", with(torchrun(), {{name, value}})),
                  HasSubstr(std::string(name) + " is '" + value + "'"));
  }
  for (const auto* name : {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE",
                           "SLURM_NODEID", "SLURM_LOCALID", "SLURM_JOB_ID"})
    EXPECT_THAT(refusal("auto", without(srun(), name)), HasSubstr(std::string(name) + " is not set"));
  EXPECT_THAT(refusal("auto", {{"PMIX_NAMESPACE", "a"}}), HasSubstr("PMIX_RANK is not set"));
  EXPECT_THAT(refusal("auto", {{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not set"));
  EXPECT_THAT(refusal("auto", with(srun(), {{"SLURM_STEP_NODELIST", "gpu[1-"}})),
              HasSubstr("read the list of nodes failed"));
}

TEST(Launcher, RanksSetByHandOnOneMachineNeedNoLocalOnes) {
  const Environment by_hand{
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  const auto place = find_place("auto", by_hand).value();
  EXPECT_EQ(place.local_rank, 1U);
  EXPECT_TRUE(place.one_machine());
}

TEST(Launcher, AStepWhoseRankZeroIsAnywhereIsRefused) {
  EXPECT_THAT(refusal("auto", with(srun(), {{"SLURM_DISTRIBUTION", "arbitrary"}}), ErrorCode::not_supported),
              HasSubstr("srun --mpi=pmix"));
  EXPECT_THAT(refusal("auto", with(srun(), {{"SLURM_HET_SIZE", "2"}}), ErrorCode::not_supported),
              HasSubstr("heterogeneous"));
}

TEST(Launcher, JobsAndTheirAttemptsAreToldApart) {
  const auto job = [](const Environment& environment) { return find_place("auto", environment).value().job; };
  EXPECT_EQ(job(srun()), job(with(srun(), {{"SLURM_PROCID", "0"}, {"SLURM_NODEID", "0"}})));
  for (const auto* name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "SLURM_CLUSTER_NAME"})
    EXPECT_NE(job(srun()), job(with(srun(), {{name, "7"}}))) << name;
  for (const auto* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"})
    EXPECT_NE(job(torchrun()), job(with(torchrun(), {{name, "7"}}))) << name;
}

TEST(Launcher, OnlyItsVariablesAreReadFromTheEnvironment) {
  ASSERT_EQ(::setenv("WORLD_SIZE", "8", 1), 0);
  ASSERT_EQ(::setenv("WORLD_SIZES", "9", 1), 0);
  const auto environment = launcher_environment();
  ::unsetenv("WORLD_SIZE");
  ::unsetenv("WORLD_SIZES");
  EXPECT_EQ(environment.at("WORLD_SIZE"), "8");
  EXPECT_FALSE(environment.contains("WORLD_SIZES"));
  EXPECT_FALSE(environment.contains("PATH"));
}

}  // namespace
}  // namespace cenote::launcher
