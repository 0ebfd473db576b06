#include "runtime/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>

#include "tests/test_paths.h"

// hwloc 2.9 leaks the objects it had made when it refuses an XML. Read by the leak sanitizer where there is
// one.
extern "C" const char* __lsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier): its name
extern "C" const char* __lsan_default_suppressions() {
  return "leak:hwloc_alloc_setup_object\nleak:libhwloc.so";
}

namespace cenote {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string path_of(const std::string& name) {
  return std::string(CENOTE_SOURCE_DIR) + "/tests/data/topology/" + name;
}

std::string read(const std::string& name) {
  std::ifstream file(path_of(name));
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

Topology load(const std::string& name) {
  auto topology = Topology::from_xml_file(path_of(name));
  EXPECT_TRUE(topology) << topology.error().message();
  return topology ? std::move(*topology) : Topology{};
}

Distance between(const Topology& topology, std::string_view a, std::string_view b) {
  const auto* one = topology.find(a);
  const auto* other = topology.find(b);
  EXPECT_NE(one, nullptr) << a;
  EXPECT_NE(other, nullptr) << b;
  const auto there = distance(*one, *other);
  EXPECT_EQ(there, distance(*other, *one));
  return there;
}

TEST(Topology, FindsGpusAndCardsOfARecordedServer) {
  const auto server = load("two_socket_gpu_server.xml");
  EXPECT_EQ(server.packages, 2U);
  EXPECT_EQ(server.processors, 2U);
  ASSERT_EQ(server.numa_nodes.size(), 2U);
  EXPECT_EQ(server.numa_nodes[1].memory, 1ULL << 38U);
  EXPECT_EQ(server.numa_nodes[1].package, 1U);
  std::vector<std::string> names;
  for (const auto& device : server.devices)
    names.push_back(std::string(to_string(device.kind)) + " " + device.name);
  EXPECT_THAT(names, ElementsAre("gpu cuda0", "gpu nvml1", "gpu cuda2", "gpu cuda3", "gpu 0000:86:00.0",
                                 "network ib0", "network eno1", "network 0000:41:00.1", "network ib1",
                                 "rdma mlx5_0", "rdma mlx5_1"));
  const auto* gpu = server.find("0000:03:00.0");
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(gpu->name, "cuda0");
  EXPECT_EQ(gpu->vendor, 0x10de);
  EXPECT_EQ(gpu->numa, 0);
  EXPECT_EQ(gpu->model, "NVIDIA Corporation GH100 [H200 SXM]");
  EXPECT_EQ(server.find("eno1")->model, "8086:1572");
  EXPECT_EQ(server.find("mlx5_1")->numa, 1);
  EXPECT_EQ(server.find("sda"), nullptr);
}

TEST(Topology, EveryRungOfTheDistanceLadder) {
  const auto server = load("two_socket_gpu_server.xml");
  EXPECT_EQ(between(server, "ib0", "mlx5_0"), Distance::same_device);
  EXPECT_EQ(between(server, "cuda0", "mlx5_0"), Distance::same_switch);
  EXPECT_EQ(between(server, "eno1", "0000:41:00.1"), Distance::same_switch);
  EXPECT_EQ(between(server, "nvml1", "mlx5_0"), Distance::several_switches);
  EXPECT_EQ(between(server, "cuda2", "mlx5_0"), Distance::same_host_bridge);
  EXPECT_EQ(between(server, "cuda0", "eno1"), Distance::same_numa);
  EXPECT_EQ(between(server, "cuda3", "mlx5_0"), Distance::cross_numa);
  EXPECT_EQ(between(server, "cuda3", "mlx5_1"), Distance::same_switch);
  EXPECT_LT(Distance::same_switch, Distance::cross_numa);
}

TEST(Topology, PrintsTheMachineAndItsMatrix) {
  const auto text = load("two_socket_gpu_server.xml").text();
  EXPECT_THAT(text, HasSubstr("2 packages, 2 cores, 2 processors, 2 NUMA nodes"));
  EXPECT_THAT(text, HasSubstr("rdma     mlx5_0         0000:04:00.0  numa 0"));
  for (const auto* word : {" PIX", " PXB", " PHB", " NODE", " SYS"}) EXPECT_THAT(text, HasSubstr(word));
  EXPECT_THAT(load("laptop.xml").text(), HasSubstr("no GPU and no network card"));
}

TEST(Topology, DevicesThatAreNotOnPciHaveNoBusId) {
  const auto machine = load("virtual_machine.xml");
  ASSERT_NE(machine.find("rxe0"), nullptr);
  EXPECT_EQ(machine.find("rxe0")->kind, DeviceKind::rdma);
  EXPECT_EQ(machine.find("rxe0")->bus_id, "");
  EXPECT_EQ(machine.find("rxe0")->numa, 0);
  EXPECT_EQ(between(machine, "rxe0", "eth0"), Distance::same_numa);
}

TEST(Topology, ReadsThisMachine) {
  const auto here = Topology::of_this_machine();
  ASSERT_TRUE(here) << here.error().message();
  EXPECT_GE(here->processors, 1U);
  EXPECT_FALSE(here->numa_nodes.empty());
  EXPECT_FALSE(here->text().empty());
}

TEST(Topology, WhatIsNoTopologyIsAnErrorThatSaysSo) {
  for (const auto* text : {"", "x", "<", "<topology/>", "<topology version=\"2.0\"></topology>",
                           "<?xml version=\"1.0\"?><html></html>",
                           "<topology version=\"9.0\"><object type=\"Machine\"/></topology>"}) {
    const auto topology = Topology::from_xml(text);
    ASSERT_FALSE(topology) << text;
    EXPECT_EQ(topology.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(topology.error().message(), HasSubstr("recorded topology"));
  }
  const auto missing = Topology::from_xml_file(path_of("no such file.xml"));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::not_found);
  EXPECT_THAT(missing.error().message(), HasSubstr("No such file"));
}

TEST(Topology, ATruncatedRecordingIsAnErrorNeverACrash) {
  const auto whole = read("two_socket_gpu_server.xml");
  const auto end = whole.rfind("</topology>");
  for (std::size_t cut = 0; cut < end; cut += 97)
    EXPECT_FALSE(Topology::from_xml(whole.substr(0, cut))) << cut;
}

TEST(Topology, AWrongElementIsAnErrorNeverACrash) {
  const auto whole = read("two_socket_gpu_server.xml");
  auto with = [&whole](std::string_view good, std::string_view bad) {
    auto text = whole;
    const auto at = text.find(good);
    EXPECT_NE(at, std::string::npos) << good;
    return text.replace(at, good.size(), bad);
  };
  EXPECT_FALSE(Topology::from_xml(with("type=\"Machine\"", "type=\"Toaster\"")));
  EXPECT_FALSE(Topology::from_xml(with("</object>", "</objekt>")));
  EXPECT_FALSE(Topology::from_xml(with("</object>", "")));
}

}  // namespace
}  // namespace cenote
