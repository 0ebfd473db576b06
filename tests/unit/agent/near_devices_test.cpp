// The emulated driver says bus 1, 2, 3 of its devices; the machine is one that has GPUs there.
#include "pool/agent/near_devices.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "pool/agent/local_driver.h"
#include "runtime/process.h"

namespace cenote::pool::agent {
namespace {

namespace fs = std::filesystem;

class NearDevices : public ::testing::Test {
 protected:
  NearDevices()
      : folder(TemporaryFolder::create("machine").value()),
        driver(open_driver(
                   {.machine = "test", .emulated = {{"H200", 1 << 20}, {"H200", 1 << 20}, {"H200", 1 << 20}}})
                   .value()) {
    write("/sys/devices/system/node/node0/cpulist", "0");
    write("/sys/devices/system/node/node1/cpulist", "1");
  }
  void write(const std::string& path, const std::string& text) const {
    const fs::path whole = folder.path() + path;
    fs::create_directories(whole.parent_path());
    std::ofstream(whole) << text << "\n";
  }
  void add_device(const std::string& bus_id, int numa, const std::string& device_class = "0x030200") const {
    const std::string real = "/sys/devices/pci0000:00/" + bus_id;
    write(real + "/class", device_class);
    write(real + "/numa_node", std::to_string(numa));
    fs::create_directories(folder.path() + "/sys/bus/pci/devices");
    fs::create_symlink("../../../devices/pci0000:00/" + bus_id,
                       folder.path() + "/sys/bus/pci/devices/" + bus_id);
  }
  std::string near(std::vector<cuda::DeviceId> devices) const {
    return near_devices(*driver, devices, MachineFiles(folder.path()));
  }
  TemporaryFolder folder;
  std::unique_ptr<cuda::Driver> driver;
};

TEST_F(NearDevices, OneIsItsBusId) {
  add_device("0000:01:00.0", 0);
  add_device("0000:02:00.0", 1);
  EXPECT_EQ(near({0}), "0000:01:00.0");
  EXPECT_EQ(near({1}), "0000:02:00.0");
}

TEST_F(NearDevices, SeveralAreTheNodeThatAllAreOf) {
  add_device("0000:01:00.0", 1);
  add_device("0000:02:00.0", 1);
  add_device("0000:03:00.0", 0);
  EXPECT_EQ(near({0, 1}), "numa:1");
  EXPECT_EQ(near({0, 1, 2}), "");
}

TEST_F(NearDevices, WhatTheMachineDoesNotKnowAsAGpuIsNowhere) {
  EXPECT_EQ(near({0}), "");
  add_device("0000:01:00.0", 0, "0x020000");
  EXPECT_EQ(near({0}), "");
  EXPECT_EQ(near({}), "");
}

}  // namespace
}  // namespace cenote::pool::agent
