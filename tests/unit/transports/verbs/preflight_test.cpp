// The preflight over recorded machines: what is in the way of RDMA is named with its remedy, and nothing
// else.
#include "transports/verbs/preflight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/transports/verbs/recorded_machine.h"
#include "tests/unit/transports/verbs/scripted_provider.h"

namespace cenote::transport::verbs {
namespace {

using test::RecordedMachine;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<Finding> findings_of(const std::string& name) {
  return preflight(read_machine(RecordedMachine(name).files()));
}

/// "mlx5_0:1 link: problem", each that is not ok.
std::vector<std::string> complaints(const std::vector<Finding>& findings) {
  std::vector<std::string> out;
  for (const Finding& finding : findings) {
    EXPECT_FALSE(finding.seen.empty()) << finding.subject;
    if (finding.verdict == Verdict::ok) {
      EXPECT_EQ(finding.remedy, "") << finding.subject;
      continue;
    }
    if (finding.verdict != Verdict::unknown) {
      EXPECT_NE(finding.remedy, "") << finding.subject;
    }
    out.push_back(finding.subject + ": " + std::string(to_string(finding.verdict)));
  }
  return out;
}

Finding of(const std::vector<Finding>& findings, const std::string& subject) {
  for (const Finding& finding : findings)
    if (finding.subject == subject) return finding;
  ADD_FAILURE() << "nothing is said of " << subject;
  return {};
}

void expect(const std::vector<Finding>& findings, const std::string& subject, const std::string& seen,
            const std::string& remedy = {}) {
  const Finding found = of(findings, subject);
  EXPECT_THAT(found.seen, HasSubstr(seen)) << subject;
  EXPECT_THAT(found.remedy, HasSubstr(remedy)) << subject;
}

TEST(Preflight, OfAHealthyMachineSaysWhatItLookedAt) {
  const auto found = findings_of("healthy_roce");
  EXPECT_THAT(complaints(found), IsEmpty());
  expect(found, "locked memory", "unlimited");
  expect(found, "module ib_uverbs", "loaded");
  expect(found, "mlx5_0:1 link", "RoCE ACTIVE, 400 Gb/s");
  expect(found, "mlx5_0:1 GIDs", "4, index 3 is RoCE v2 10.1.0.1");
  expect(found, "PCI ACS", "no port between GPU and card");
  expect(found, "IOMMU", "off");
  expect(found, "MTU of the ports", "9000 at all 2");
}

TEST(Preflight, OfAMachineWithoutADeviceSaysHowToHaveOne) {
  const auto found = findings_of("none");
  EXPECT_THAT(complaints(found), ElementsAre("locked memory: problem", "RDMA devices: warning"));
  expect(found, "locked memory", "RLIMIT_MEMLOCK is 8 MiB", "LimitMEMLOCK=infinity");
  expect(found, "RDMA devices", "none in /sys/class/infiniband", "shared memory and TCP");
  RecordedMachine machine("none");
  machine.add("/lib/modules/6.18.44/modules.dep = kernel/net/tipc.ko:");
  expect(preflight(read_machine(machine.files())), "RDMA devices", "none", "kernel 6.18.44 has no rdma_rxe");
  machine.add("/lib/modules/6.18.44/modules.dep = kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko:");
  expect(preflight(read_machine(machine.files())), "RDMA devices", "none", "rdma link add rxe0 type rxe");
}

TEST(Preflight, SoftRoceIsHealthyForWhoMayLockMemory) {
  const auto found = findings_of("soft_roce");
  EXPECT_THAT(complaints(found), IsEmpty());
  expect(found, "rxe0", "a software device");
  expect(found, "rxe0:1 GIDs", "index 1 is RoCE v2 10.77.0.1");
  expect(found, "rxe0:1 MTU", "eth0 has 4200: room for RDMA's 4096");
  expect(found, "locked memory", "8 MiB, which does not bind this process (CAP_IPC_LOCK)");
}

TEST(Preflight, AnInfiniBandPortThatIsDownAndOneThatWaitsForASubnetManager) {
  const auto found = findings_of("infiniband_down");
  EXPECT_THAT(complaints(found), ElementsAre("mlx5_0:1 link: problem", "mlx5_1:1 link: problem"));
  expect(found, "mlx5_0:1 link", "InfiniBand INIT, physically LinkUp", "opensm");
  expect(found, "mlx5_1:1 link", "InfiniBand DOWN, physically Polling", "cable");
}

TEST(Preflight, ARoceInterfaceThatIsDownIsNamed) {
  RecordedMachine machine("healthy_roce");
  machine.add("$Q/state = 1: DOWN");
  machine.add("$Q/phys_state = 3: Disabled");
  machine.add("/sys/class/net/eth1/operstate = down");
  expect(preflight(read_machine(machine.files())), "mlx5_1:1 link",
         "RoCE DOWN, physically Disabled; eth1 is down", "ip link set eth1 up");
}

TEST(Preflight, LittleLockedMemory) {
  const auto found = findings_of("memlock_64k");
  EXPECT_THAT(complaints(found), ElementsAre("locked memory: problem"));
  expect(found, "locked memory", "RLIMIT_MEMLOCK is 64 KiB: less than the 16 MiB", "ulimit -l unlimited");
}

TEST(Preflight, AnMtuThatDiffersBetweenPorts) {
  const auto found = findings_of("mtu_mismatch");
  EXPECT_THAT(complaints(found), ElementsAre("mlx5_1:1 MTU: warning", "MTU of the ports: warning"));
  expect(found, "mlx5_1:1 MTU", "eth1 has 1500: room for RDMA's 1024: RDMA could do 4096",
         "ip link set eth1 mtu 9000");
  expect(found, "MTU of the ports", "1500: mlx5_1:1; 9000: mlx5_0:1", "same MTU");
}

TEST(Preflight, AccessControlOfTheSwitchBetweenGpuAndCard) {
  const auto found = findings_of("acs_on");
  EXPECT_THAT(complaints(found), ElementsAre("PCI ACS: warning"));
  // Of the bridges with redirection, those that lie between the two: not the root port above both.
  EXPECT_THAT(of(found, "PCI ACS").seen, testing::EndsWith("processor: 0000:18:00.0, 0000:18:01.0"));
  expect(found, "PCI ACS", "", "setpci -s 0000:18:00.0 ECAP_ACS+6.w=0");
}

TEST(Preflight, AccessControlThatCannotBeReadIsUnknown) {
  RecordedMachine machine("acs_on");
  machine.add("$SWITCH/0000:18:00.0/config hex 64*00");  // what others than root are shown
  machine.add("$SWITCH/0000:18:01.0/config hex 64*00");
  const auto found = preflight(read_machine(machine.files()));
  EXPECT_THAT(complaints(found), ElementsAre("PCI ACS: unknown"));
  expect(found, "PCI ACS", "cannot be read: 0000:18:00.0, 0000:18:01.0", "as root");
}

TEST(Preflight, AnIommuThatTranslates) {
  const auto found = findings_of("iommu_on");
  EXPECT_THAT(complaints(found), ElementsAre("IOMMU: warning"));
  expect(found, "IOMMU", "0000:19:00.0 (DMA-FQ), 0000:1a:00.0 (DMA-FQ)", "iommu=pt");
  EXPECT_THAT(of(found, "IOMMU").seen, testing::Not(HasSubstr("0000:97:00.0")));
}

TEST(Preflight, AGpuWhoseNearestCardIsOnTheOtherSocket) {
  const auto found = findings_of("gpu_on_other_socket");
  EXPECT_THAT(complaints(found), ElementsAre("GPU 0000:1a:00.0: warning"));
  expect(found, "GPU 0000:1a:00.0", "nearest card mlx5_1: across NUMA nodes", "slot of the GPU's socket");
  expect(findings_of("healthy_roce"), "GPU 0000:1a:00.0", "nearest card mlx5_0: same switch");
}

TEST(Preflight, GidTablesOfLittleUse) {
  const auto found = findings_of("gid_tables");
  EXPECT_THAT(complaints(found), ElementsAre("mlx5_0:1 GIDs: warning", "mlx5_1:1 GIDs: warning"));
  expect(found, "mlx5_0:1 GIDs", "link-local only (fe80::ba3f:d2ff:fe00:1)",
         "ip address add 10.0.0.1/24 dev eth0");
  expect(found, "mlx5_1:1 GIDs", "RoCE v1 only", "RoCE v2");
  RecordedMachine machine("healthy_roce");
  machine.add("$P/gids absent");
  expect(preflight(read_machine(machine.files())), "mlx5_0:1 GIDs", "the table is empty", "bring eth0 up");
}

TEST(Preflight, ModulesThatAreMissing) {
  const auto found = findings_of("modules_missing");
  EXPECT_THAT(complaints(found), ElementsAre("module ib_uverbs: problem", "module rdma_cm: warning",
                                             "module nvidia_peermem: warning", "card 0000:19:00.0: problem",
                                             "card 0000:97:00.0: problem", "RDMA devices: problem"));
  expect(found, "module ib_uverbs", "not loaded: no program can open an RDMA device", "modprobe ib_uverbs");
  expect(found, "card 0000:19:00.0", "15b3:1021 with driver mlx5_core, and no RDMA device of it",
         "modprobe mlx5_ib");
}

TEST(Preflight, AModuleThatTheKernelDoesNotHaveIsNotToBeLoaded) {
  RecordedMachine machine("modules_missing");
  machine.add("/lib/modules/$K/modules.dep = kernel/drivers/infiniband/core/ib_uverbs.ko:");
  expect(preflight(read_machine(machine.files())), "module nvidia_peermem",
         "not loaded, and kernel 6.1.0-42-amd64 has none", "install the package");
}

TEST(Preflight, AContainerWithoutTheDevicesNodeAndWithRightsOfItsOwn) {
  const auto found = findings_of("container");
  EXPECT_THAT(complaints(found), ElementsAre("locked memory: problem", "mlx5_1: problem"));
  expect(found, "mlx5_1", "/dev/infiniband/uverbs1 is not there", "--device /dev/infiniband");
}

TEST(Preflight, AnEmptyMachineIsNoCrash) {
  const auto found = preflight(read_machine(MachineFiles("/nonexistent")));
  EXPECT_EQ(of(found, "locked memory").verdict, Verdict::unknown);
  EXPECT_EQ(of(found, "RDMA devices").verdict, Verdict::warning);
}

/// Devices as libibverbs tells of them, on the healthy machine.
std::vector<Finding> with_verbs(const std::vector<test::DeviceSpec>& specs,
                                const std::function<void(test::ScriptedProcess&)>& bend = {}) {
  test::ScriptedFabric fabric;
  std::vector<std::string> names;
  for (const auto& spec : specs) {
    fabric.add_device(spec);
    names.push_back(spec.name);
  }
  auto process = fabric.process("doctor", names);
  if (bend) bend(process);
  const RecordedMachine recorded("healthy_roce");
  auto machine = read_machine(recorded.files());
  ask_verbs(machine, *process.api(), recorded.files());
  EXPECT_EQ(process.alive(), test::Alive{}) << "nothing stays open";
  return preflight(machine);
}

TEST(Preflight, TheWordOfVerbsReplacesTheFiles) {
  auto near = test::roce_device("mlx5_0", "10.1.0.1"), far = test::roce_device("mlx5_1", "10.2.0.1");
  EXPECT_THAT(complaints(with_verbs({near, far})), IsEmpty());
  near.ports[0].active_mtu = IBV_MTU_1024;
  far.ports[0].up = false;
  const auto found = with_verbs({near, far});
  EXPECT_THAT(complaints(found), ElementsAre("mlx5_0:1 MTU: warning", "mlx5_1:1 link: problem"));
  expect(found, "mlx5_0:1 MTU", "active 1024, eth0 has 9000, which has room for 4096", "down and up again");
  expect(found, "mlx5_1:1 link", "RoCE DOWN");
  expect(found, "mlx5_0:1 link", "ACTIVE, 200 Gb/s");
}

TEST(Preflight, AnRdmaMtuThatItsNetworkCannotCarryIsAProblem) {
  const auto near = test::roce_device("mlx5_0", "10.1.0.1");
  test::ScriptedFabric fabric;
  fabric.add_device(near);
  auto process = fabric.process("doctor", {"mlx5_0"});
  RecordedMachine recorded("healthy_roce");
  recorded.add("/sys/class/net/eth0/mtu = 1500");
  auto machine = read_machine(recorded.files());
  ask_verbs(machine, *process.api(), recorded.files());
  const auto found = preflight(machine);
  EXPECT_EQ(of(found, "mlx5_0:1 MTU").verdict, Verdict::problem);
  expect(found, "mlx5_0:1 MTU",
         "active 4096, eth0 has 1500, which has room for 1024: large packets are dropped",
         "ip link set eth0 mtu 4200");
}

TEST(Preflight, ADeviceThatLibibverbsCannotOpenOrDoesNotList) {
  const auto found =
      with_verbs({test::roce_device("mlx5_0", "10.1.0.1")},
                 [](test::ScriptedProcess& process) { process.refuse(test::Call::open_device, EACCES); });
  EXPECT_THAT(complaints(found), ElementsAre("mlx5_0: problem", "mlx5_1: problem"));
  expect(found, "mlx5_0", "cannot use it: Permission denied", "/dev/infiniband");
  expect(found, "mlx5_1", "does not list it", "ibverbs-providers");
}

TEST(Preflight, NoLibraryIsAProblemOnlyWhereThereIsADevice) {
  auto machine = read_machine(RecordedMachine("healthy_roce").files());
  machine.asked_library = true;
  machine.library = "libibverbs.so.1: cannot open shared object file";
  EXPECT_EQ(of(preflight(machine), "libibverbs").verdict, Verdict::problem);
  machine = read_machine(RecordedMachine("none").files());
  machine.asked_library = true;
  machine.library = "libibverbs.so.1: cannot open shared object file";
  EXPECT_EQ(of(preflight(machine), "libibverbs").verdict, Verdict::warning);
}

}  // namespace
}  // namespace cenote::transport::verbs
