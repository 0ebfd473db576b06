#include "transports/verbs/preflight.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "transports/verbs/preflight_parts.h"

namespace cenote::transport::verbs {
namespace {

constexpr std::uint64_t unlimited = ~std::uint64_t{0};
// The receive buffers of one port (1024 of 8 KiB), and as much again for blocks and small regions.
constexpr std::uint64_t least_locked = std::uint64_t{16} << 20U;
constexpr std::uint64_t good_locked = std::uint64_t{1} << 30U;

std::string size_text(std::uint64_t bytes) {
  if (bytes >= 1U << 30U) return fmt::format("{:.4g} GiB", static_cast<double>(bytes) / (1U << 30U));
  if (bytes >= 1U << 20U) return fmt::format("{:.4g} MiB", static_cast<double>(bytes) / (1U << 20U));
  return fmt::format("{:.4g} KiB", static_cast<double>(bytes) / 1024);
}

bool on_pci(const MachineRecord& machine) {
  return std::ranges::any_of(machine.devices,
                             [](const DeviceRecord& device) { return device.pci.has_value(); });
}

std::string soft_device_remedy(const MachineRecord& machine) {
  if (machine.modules.contains("rdma_rxe") || machine.loadable.contains("rdma_rxe"))
    return "where there is no card, a software device over a network interface does for tests: modprobe "
           "rdma_rxe; "
           "rdma link add rxe0 type rxe netdev eth0";
  if (machine.module_list)
    return fmt::format(
        "kernel {} has no rdma_rxe either, which makes software devices: another kernel, or TCP",
        machine.kernel);
  return "nothing, where shared memory and TCP do; else load the card's driver";
}

void add_module(const MachineRecord& machine, const std::string& name, Verdict without,
                const std::string& what_for, Findings& out) {
  if (machine.modules.contains(name)) {
    out.push_back({"module " + name, Verdict::ok, "loaded", {}});
    return;
  }
  const bool absent = machine.module_list && !machine.loadable.contains(name);
  out.push_back(
      {"module " + name, without,
       fmt::format("not loaded{}: {}", absent ? fmt::format(", and kernel {} has none", machine.kernel) : "",
                   what_for),
       absent ? fmt::format("install the package that brings {} for this kernel", name)
              : "modprobe " + name + ", and its name in a file of /etc/modules-load.d for the next boot"});
}

}  // namespace

void check_locked_memory(const MachineRecord& machine, Findings& out) {
  const std::string subject = "locked memory";
  if (!machine.memory_lock) {
    out.push_back({subject, Verdict::unknown, "no limit in /proc/self/limits", "mount /proc"});
    return;
  }
  const auto limit = *machine.memory_lock;
  if (limit == unlimited) {
    out.push_back({subject, Verdict::ok, "RLIMIT_MEMLOCK is unlimited", {}});
    return;
  }
  auto seen = fmt::format("RLIMIT_MEMLOCK is {}", size_text(limit));
  if (machine.may_lock) {
    out.push_back({subject, Verdict::ok, seen + ", which does not bind this process (CAP_IPC_LOCK)", {}});
    return;
  }
  const auto verdict = limit < least_locked  ? Verdict::problem
                       : limit < good_locked ? Verdict::warning
                                             : Verdict::ok;
  if (verdict == Verdict::problem)
    seen += fmt::format(": less than the {} that the receive buffers of a port and its blocks take",
                        size_text(least_locked));
  if (verdict == Verdict::warning) seen += ": registered memory, all regions together, is bounded by it";
  out.push_back(
      {subject, verdict, seen,
       verdict == Verdict::ok
           ? ""
           : "ulimit -l unlimited; for a service LimitMEMLOCK=infinity; for a container --ulimit memlock=-1; "
             "for logins a line in /etc/security/limits.d"});
}

void check_library(const MachineRecord& machine, Findings& out) {
  if (!machine.asked_library) return;
  if (machine.library.empty()) {
    out.push_back({"libibverbs", Verdict::ok, "found", {}});
    return;
  }
  out.push_back({"libibverbs",
                 machine.devices.empty() && machine.idle.empty() ? Verdict::warning : Verdict::problem,
                 machine.library, "install the packages libibverbs1 and ibverbs-providers"});
}

void check_devices(const MachineRecord& machine, Findings& out) {
  for (const IdleCard& card : machine.idle) {
    const auto driver = card.driver.empty() ? "no driver" : "driver " + card.driver;
    out.push_back(
        {"card " + card.pci.bus_id, Verdict::problem,
         fmt::format("{:04x}:{:04x} with {}, and no RDMA device of it", card.pci.vendor, card.pci.device,
                     driver),
         machine.modules.contains(card.module)
             ? fmt::format("module {} is loaded: dmesg says why it refused the card; in a container, look at "
                           "`rdma system` (its devices may be the host's alone)",
                           card.module)
             : "modprobe " + card.module});
  }
  if (machine.devices.empty()) {
    out.push_back({"RDMA devices", machine.idle.empty() ? Verdict::warning : Verdict::problem,
                   "none in /sys/class/infiniband: peers on other hosts are reached over TCP",
                   machine.idle.empty() ? soft_device_remedy(machine) : "see the card above"});
    return;
  }
  for (const DeviceRecord& device : machine.devices) {
    if (!device.refused.empty()) {
      out.push_back({device.name, Verdict::problem, "libibverbs cannot use it: " + device.refused,
                     "check the rights of /dev/infiniband, and that ibverbs-providers has its provider"});
    } else if (!device.node_there) {
      out.push_back({device.name, Verdict::problem,
                     device.node.empty() ? "the kernel made no node for it in /sys/class/infiniband_verbs"
                                         : fmt::format("/dev/infiniband/{} is not there", device.node),
                     device.node.empty()
                         ? "modprobe ib_uverbs"
                         : "in a container, hand it in: --device /dev/infiniband; elsewhere udev makes "
                           "it"});
    } else {
      out.push_back({device.name,
                     Verdict::ok,
                     device.pci
                         ? fmt::format("at PCI {}, NUMA node {}", device.pci->bus_id,
                                       device.pci->numa < 0 ? "not known" : std::to_string(device.pci->numa))
                         : "a software device",
                     {}});
    }
  }
}

void check_modules(const MachineRecord& machine, Findings& out) {
  const bool wanted = !machine.devices.empty() || !machine.idle.empty();
  if (!wanted) return;
  add_module(machine, "ib_uverbs", Verdict::problem, "no program can open an RDMA device", out);
  add_module(machine, "rdma_cm", Verdict::warning,
             "Cenote does not need it; perftest -R, rping, NFS and some MPIs do", out);
  const bool nvidia =
      std::ranges::any_of(machine.gpus, [](const PciDevice& gpu) { return gpu.vendor == 0x10de; });
  if (nvidia && (on_pci(machine) || !machine.idle.empty()))
    add_module(machine, "nvidia_peermem", Verdict::warning,
               "cards reach GPU memory by dma-buf only, or through host memory", out);
}

std::vector<Finding> preflight(const MachineRecord& machine) {
  Findings out;
  for (auto* const check : {check_locked_memory, check_library, check_modules, check_devices, check_ports,
                            check_mtu_between_ports, check_iommu, check_acs, check_distances})
    check(machine, out);
  return out;
}

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok:
      return "ok";
    case Verdict::warning:
      return "warning";
    case Verdict::problem:
      return "problem";
    case Verdict::unknown:
      return "unknown";
  }
  return "unknown";
}

}  // namespace cenote::transport::verbs
