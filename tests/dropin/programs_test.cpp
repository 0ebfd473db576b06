// Unchanged CUDA programs under `cenote lease -- PROGRAM`: they find the leased GPUs behind libcuda.so.1 and
// libcudart.so.13.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "pool/cli/child_process.h"
#include "tests/multi/agent/cluster.h"
#include "tests/test_paths.h"

namespace cenote::pool::testing {
namespace {

using ::testing::HasSubstr;

const std::string programs = CENOTE_BINARY_DIR "/tests/";

ProgramResult under_lease(const Cluster& cluster, const std::string& gpus, std::vector<std::string> command) {
  std::vector<std::string> arguments{"lease", "--gpus", gpus, "--"};
  arguments.insert(arguments.end(), command.begin(), command.end());
  return cluster.run(std::move(arguments));
}

TEST(DropIn, ARuntimeProgramFindsEveryLeasedGpuAndItsModel) {
  const auto cluster = Cluster::start();
  ASSERT_NE(cluster, nullptr);
  const auto ran = under_lease(*cluster, "4", {programs + "dropin_runtime_program"});
  EXPECT_EQ(ran.exit_code, 0) << ran.output << ran.error;
  EXPECT_THAT(ran.output, HasSubstr("saxpy is right on 4 devices"));
  EXPECT_THAT(ran.output, HasSubstr("H200"));
  EXPECT_THAT(ran.error, HasSubstr("cudaGraphCreate is not served"));
}

TEST(DropIn, ADriverProgramFindsTheSameThroughGetProcAddress) {
  const auto cluster = Cluster::start();
  ASSERT_NE(cluster, nullptr);
  const auto ran = under_lease(*cluster, "2", {programs + "dropin_driver_program"});
  EXPECT_EQ(ran.exit_code, 0) << ran.output << ran.error;
  EXPECT_THAT(ran.output, HasSubstr("copies are right on 2 devices"));
}

TEST(DropIn, TheLeaseEndsWithTheProgram) {
  const auto cluster = Cluster::start();
  ASSERT_NE(cluster, nullptr);
  ASSERT_EQ(under_lease(*cluster, "4", {programs + "dropin_driver_program"}).exit_code, 0);
  EXPECT_TRUE(eventually([&] { return cluster->idle(); }));
}

TEST(DropIn, AProgramWithoutALeaseIsToldHowToGetOne) {
  const UniqueFd error(::memfd_create("error", MFD_CLOEXEC));
  cli::ChildOptions options;
  options.command = {programs + "dropin_driver_program"};
  options.environment["LD_LIBRARY_PATH"] = CENOTE_BINARY_DIR "/lib/dropin";
  options.error = error.get();
  auto child = cli::ChildProcess::start(options);
  ASSERT_TRUE(child) << child.error().message();
  const auto status = child->wait(patience());
  ASSERT_TRUE(status);
  EXPECT_NE(cli::ChildProcess::exit_code(*status), 0);
  std::string said(4096, '\0');
  said.resize(
      static_cast<std::size_t>(std::max<ssize_t>(0, ::pread(error.get(), said.data(), said.size(), 0))));
  EXPECT_THAT(said, HasSubstr("cenote lease --gpus N -- PROGRAM"));
}

#ifdef CENOTE_HAS_NVCC
TEST(DropIn, AProgramThatNvccCompiledWithTheSharedRuntimeRunsUnchanged) {
  const auto cluster = Cluster::start();
  ASSERT_NE(cluster, nullptr);
  const auto ran = under_lease(*cluster, "2", {programs + "dropin_nvcc_program"});
  EXPECT_EQ(ran.exit_code, 0) << ran.output << ran.error;
  EXPECT_THAT(ran.output, HasSubstr("right"));
}
#endif

}  // namespace
}  // namespace cenote::pool::testing
