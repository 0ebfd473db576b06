// MachineRecord: what a machine is like where RDMA is concerned, as its files tell: limits, modules, devices
// with their ports and GIDs, network interfaces, PCI bridges, IOMMU. A value, so that whoever judges it
// (preflight.h) can be shown any machine. Where libibverbs opens a device, its word replaces the files'.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/machine_files.h"
#include "runtime/pci.h"
#include "transports/verbs/port.h"

namespace cenote::transport::verbs {

struct VerbsApi;

/// A network interface, as far as a port over it is concerned.
struct NetworkInterface {
  std::string name;  ///< empty: none
  std::uint32_t mtu = 0;
  std::string state;         ///< "up", "down", "lowerlayerdown"; empty: not known
  std::string bond;          ///< that it is a member of
  std::uint8_t members = 1;  ///< of the bond that it is
};
NetworkInterface network_interface(const MachineFiles& files, const std::string& name);
/// Of the network interface that a port's GIDs are made from; empty: none.
std::string interface_of_port(const MachineFiles& files, const std::string& device, std::uint8_t port);

struct PortRecord {
  std::string name;            ///< "mlx5_0:1"
  std::string state;           ///< "ACTIVE"
  std::string physical_state;  ///< "LinkUp", "Polling", "Disabled"
  LinkLayer link_layer{};
  std::uint32_t mbps = 0;
  std::uint32_t mtu = 0, max_mtu = 0;  ///< of RDMA, bytes; 0: not known (the files do not say)
  std::vector<Gid> gids;
  NetworkInterface interface;
};

struct DeviceRecord {
  std::string name;
  std::optional<PciDevice> pci;
  std::string node;         ///< "uverbs0"; empty: the kernel made none
  bool node_there = false;  ///< in /dev/infiniband
  std::string refused;      ///< why libibverbs cannot use it; empty: it can, or was not asked
  std::vector<PortRecord> ports;
};

/// A network card on PCI that is no RDMA device yet could be one.
struct IdleCard {
  PciDevice pci;
  std::string driver;  ///< "mlx5_core"; empty: none
  std::string module;  ///< that would make it one
};

struct AcsState {
  bool readable = false;  ///< the configuration space, that far
  bool present = false;
  std::uint16_t control = 0;
};

struct MachineRecord {
  std::string kernel;                        ///< "6.1.0-42-amd64"
  std::optional<std::uint64_t> memory_lock;  ///< bytes, ~0: unlimited; none: not known
  bool may_lock = false;                     ///< holds CAP_IPC_LOCK where it counts
  std::string library;  ///< why there is no libibverbs; empty: it was found, or not asked
  bool asked_library = false;
  std::set<std::string> modules;   ///< loaded
  std::set<std::string> loadable;  ///< that this kernel has
  bool module_list = false;        ///< whether `loadable` is known
  std::vector<DeviceRecord> devices;
  std::vector<IdleCard> idle;
  std::vector<PciDevice> gpus;
  std::map<std::string, AcsState> bridges;  ///< above GPUs and cards
  bool iommu = false;
  std::map<std::string, std::string> translation;  ///< by bus id of cards and GPUs: "identity", "DMA-FQ"
  Topology topology;
};

/// The modules that are looked for.
inline constexpr const char* rdma_modules[] = {
    "ib_uverbs", "rdma_cm", "rdma_rxe", "siw",      "mlx5_core", "mlx5_ib",       "mlx4_ib",
    "irdma",     "bnxt_re", "qedr",     "iw_cxgb4", "nvidia",    "nvidia_peermem"};

MachineRecord read_machine(const MachineFiles& files);
/// Asks the devices that libibverbs lists. `files` for what verbs does not know.
void ask_verbs(MachineRecord& machine, const VerbsApi& api, const MachineFiles& files);
/// This machine, as files and libibverbs tell.
MachineRecord read_this_machine();

/// Megabits a second of a width and a speed as query_port counts them; 0: none that is known.
std::uint32_t port_speed(std::uint8_t width, std::uint8_t speed);
std::uint32_t mtu_bytes(int code);

}  // namespace cenote::transport::verbs
