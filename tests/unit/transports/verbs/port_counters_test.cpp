// What a port has counted, from folders as the kernel writes them.
#include "transports/verbs/port_counters.h"

#include <gtest/gtest.h>

#include <fstream>

#include "runtime/process.h"

namespace cenote::transport::verbs {
namespace {

class PortCounters : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& value) const {
    std::filesystem::create_directories((port_ / name).parent_path());
    std::ofstream(port_ / name) << value << "\n";
  }

  TemporaryFolder folder_ = TemporaryFolder::create("counters").value();
  std::filesystem::path port_ = folder_.path();
};

TEST_F(PortCounters, ThatCountFaultsAndAreNotZeroAreNamed) {
  write("counters/link_downed", "2");
  write("counters/port_xmit_data", "123456");
  write("counters/symbol_error", "0");
  write("hw_counters/retry_exceeded_err", "1");
  write("hw_counters/rcvd_pkts", "77");
  EXPECT_EQ(faults_counted(port_), "link_downed 2, retry_exceeded_err 1");
}

TEST_F(PortCounters, AllZeroIsSaid) {
  write("hw_counters/out_of_sequence", "0");
  write("hw_counters/sent_pkts", "5");
  EXPECT_EQ(faults_counted(port_), "no error is counted");
}

TEST_F(PortCounters, ThatCannotBeReadAreSaidToBe) {
  EXPECT_EQ(faults_counted(port_ / "none"), "its counters cannot be read");
  write("hw_counters/out_of_sequence", "many");
  EXPECT_EQ(faults_counted(port_), "its counters cannot be read");
}

TEST(PortFolder, IsThatOfTheKernel) {
  EXPECT_EQ(folder_of_port("mlx5_0:1"), "/sys/class/infiniband/mlx5_0/ports/1");
}

}  // namespace
}  // namespace cenote::transport::verbs
