#include "tests/unit/transports/verbs/scripted_provider.h"

#include <arpa/inet.h>

#include <array>
#include <cstring>
#include <ostream>
#include <stdexcept>

#include "tests/unit/transports/verbs/scripted_core.h"

namespace cenote::transport::verbs::test {

using detail::Core;
using detail::Device;
using detail::Process;
using detail::Road;

namespace {

constexpr std::array<const char*, kCalls> kNames = {"get_device_list",
                                                    "free_device_list",
                                                    "get_device_name",
                                                    "open_device",
                                                    "close_device",
                                                    "query_device",
                                                    "query_port",
                                                    "query_gid_table",
                                                    "query_pkey",
                                                    "get_async_event",
                                                    "ack_async_event",
                                                    "alloc_pd",
                                                    "dealloc_pd",
                                                    "reg_mr",
                                                    "reg_dmabuf_mr",
                                                    "dereg_mr",
                                                    "create_comp_channel",
                                                    "destroy_comp_channel",
                                                    "create_cq",
                                                    "destroy_cq",
                                                    "poll_cq",
                                                    "req_notify_cq",
                                                    "get_cq_event",
                                                    "ack_cq_events",
                                                    "create_srq",
                                                    "destroy_srq",
                                                    "post_srq_recv",
                                                    "create_qp",
                                                    "modify_qp",
                                                    "destroy_qp",
                                                    "post_send"};

Call call_named(const std::string& name) {
  for (int i = 0; i < kCalls; ++i)
    if (name == kNames.at(static_cast<std::size_t>(i))) return static_cast<Call>(i);
  throw std::logic_error("no call of VerbsApi is named " + name);
}

Alive& operator+=(Alive& sum, const Alive& more) {
  sum.lists += more.lists, sum.contexts += more.contexts, sum.pds += more.pds, sum.mrs += more.mrs;
  sum.channels += more.channels, sum.cqs += more.cqs, sum.srqs += more.srqs, sum.qps += more.qps;
  return sum;
}

detail::Port& port_of(Core& core, const std::string& device, int port) {
  if (auto* found = core.device(device).port(port)) return *found;
  throw std::logic_error(device + " has no port " + std::to_string(port));
}

}  // namespace

const char* name_of(Call call) { return kNames.at(static_cast<std::size_t>(call)); }

ibv_gid gid_of_ipv4(const std::string& dotted) {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xff;
  if (inet_pton(AF_INET, dotted.c_str(), gid.raw + 12) != 1)
    throw std::logic_error("not an IPv4 address: " + dotted);
  return gid;
}

ibv_gid link_local_gid(std::uint64_t interface) {
  ibv_gid gid{};
  gid.raw[0] = 0xfe;
  gid.raw[1] = 0x80;
  for (int i = 0; i < 8; ++i) gid.raw[15 - i] = static_cast<std::uint8_t>(interface >> (8 * i));
  return gid;
}

DeviceSpec roce_device(std::string name, const std::string& ipv4) {
  const ibv_gid address = gid_of_ipv4(ipv4);
  std::uint64_t interface = 0xfe'00'00'00;
  for (int i = 12; i < 16; ++i) interface = (interface << 8) | address.raw[i];
  PortSpec port;
  port.gids = {{link_local_gid(interface), IBV_GID_TYPE_ROCE_V1},
               {link_local_gid(interface), IBV_GID_TYPE_ROCE_V2},
               {address, IBV_GID_TYPE_ROCE_V1},
               {address, IBV_GID_TYPE_ROCE_V2}};
  DeviceSpec spec;
  spec.name = std::move(name);
  spec.ports = {port};
  return spec;
}

DeviceSpec infiniband_device(std::string name, std::uint16_t lid) {
  PortSpec port;
  port.link_layer = IBV_LINK_LAYER_INFINIBAND;
  port.lid = lid;
  port.gids = {{link_local_gid(0x0002c90300000000 + lid), IBV_GID_TYPE_IB}};
  DeviceSpec spec;
  spec.name = std::move(name);
  spec.ports = {port};
  return spec;
}

std::ostream& operator<<(std::ostream& out, const Alive& alive) {
  return out << alive.lists << " lists, " << alive.contexts << " contexts, " << alive.pds << " pds, "
             << alive.mrs << " mrs, " << alive.channels << " channels, " << alive.cqs << " cqs, "
             << alive.srqs << " srqs, " << alive.qps << " qps";
}

// ScriptedProcess

ScriptedProcess::ScriptedProcess(std::shared_ptr<Core> core, Process* process)
    : core_(std::move(core)), process_(process) {}

std::shared_ptr<const VerbsApi> ScriptedProcess::api() const { return {core_, &process_->table}; }
std::shared_ptr<const VerbsApi> ScriptedProcess::api_without_dmabuf() const {
  return {core_, &process_->table_without_dmabuf};
}

void ScriptedProcess::refuse(Call call, int error, int nth, int times) {
  if (call == Call::free_device_list || call == Call::ack_async_event || call == Call::ack_cq_events)
    throw std::logic_error(std::string(name_of(call)) + " returns nothing and cannot be refused");
  const std::scoped_lock lock(core_->mutex);
  process_->refusals.push_back({call, nth - 1, times, error});
}

void ScriptedProcess::refuse(const std::string& call, int error, int nth, int times) {
  refuse(call_named(call), error, nth, times);
}

void ScriptedProcess::before(Call call, std::function<void()> hook, int nth) {
  const std::scoped_lock lock(process_->hooks_mutex);
  process_->hooks.push_back({call, nth, std::move(hook)});
  process_->hooks_set.fetch_add(1);
}

void ScriptedProcess::kill() {
  const std::scoped_lock lock(core_->mutex);
  process_->killed = true;
  detail::vanish_locked(*core_, process_, nullptr);
}

void ScriptedProcess::on_dmabuf(std::function<void*(int, std::uint64_t, std::size_t)> hook) {
  const std::scoped_lock lock(core_->mutex);
  process_->dmabuf = std::move(hook);
}

void ScriptedProcess::on_peer_memory(std::function<void*(void*, std::size_t)> hook) {
  const std::scoped_lock lock(core_->mutex);
  process_->peer_memory = std::move(hook);
}

Alive ScriptedProcess::alive() const {
  const std::scoped_lock lock(core_->mutex);
  return process_->alive;
}

Counters ScriptedProcess::counters() const {
  const std::scoped_lock lock(core_->mutex);
  return process_->counters;
}

std::uint64_t ScriptedProcess::calls(Call call) const {
  const std::scoped_lock lock(core_->mutex);
  return process_->calls.at(static_cast<std::size_t>(call));
}

// ScriptedFabric

ScriptedFabric::ScriptedFabric() : core_(std::make_shared<Core>()) {}
ScriptedFabric::~ScriptedFabric() = default;

void ScriptedFabric::add_device(DeviceSpec spec) {
  const std::scoped_lock lock(core_->mutex);
  Device& device = core_->devices.emplace_back();
  device.number = static_cast<int>(core_->devices.size());
  for (const PortSpec& port : spec.ports) device.ports.push_back({port, {}});
  device.next_qpn = static_cast<std::uint32_t>(device.number) * 0x1000 + 0x11;
  device.spec = std::move(spec);
}

void ScriptedFabric::at_once() {
  const std::scoped_lock lock(core_->mutex);
  core_->lagging = false;
}

void ScriptedFabric::lagging(std::uint64_t seed) {
  const std::scoped_lock lock(core_->mutex);
  core_->lagging = true;
  core_->random.seed(seed);
}

int ScriptedFabric::step(int count) {
  int moved = 0;
  for (int i = 0; i < count; ++i) {
    const std::scoped_lock lock(core_->mutex);
    if (detail::step_locked(*core_)) ++moved;
  }
  return moved;
}

void ScriptedFabric::settle(int limit) {
  // A step looks at one queue pair: idle is when as many looks as there are queue pairs, several times over,
  // found nothing.
  int idle = 0;
  for (int i = 0; i < limit; ++i) {
    const std::scoped_lock lock(core_->mutex);
    if (core_->active.empty() && core_->ghosts.empty() && core_->lingering.empty()) return;
    idle = detail::step_locked(*core_) ? 0 : idle + 1;
    if (idle > 64 * static_cast<int>(core_->active.size() + 1)) return;
  }
}

void ScriptedFabric::relaxed_writes_linger(bool linger) {
  const std::scoped_lock lock(core_->mutex);
  core_->relaxed_linger = linger;
  while (!linger && detail::land_lingering_locked(*core_)) {
  }
}

void ScriptedFabric::steps_per_try(int steps) {
  const std::scoped_lock lock(core_->mutex);
  core_->steps_per_try = steps;
}

void ScriptedFabric::link_down(const std::string& device, int port) {
  const std::scoped_lock lock(core_->mutex);
  auto& found = port_of(*core_, device, port);
  if (!std::exchange(found.spec.up, false)) return;
  ++core_->epoch;
  detail::device_event_locked(*core_, core_->device(device), IBV_EVENT_PORT_ERR, port);
  if (!core_->lagging) detail::tick_active_locked(*core_);
}

void ScriptedFabric::link_up(const std::string& device, int port) {
  const std::scoped_lock lock(core_->mutex);
  auto& found = port_of(*core_, device, port);
  if (std::exchange(found.spec.up, true)) return;
  ++core_->epoch;
  detail::device_event_locked(*core_, core_->device(device), IBV_EVENT_PORT_ACTIVE, port);
}

void ScriptedFabric::drop(const std::string& from, const std::string& to) {
  const std::scoped_lock lock(core_->mutex);
  core_->roads[{&core_->device(from), &core_->device(to)}] = Road::lost;
  ++core_->epoch;
}

void ScriptedFabric::hold(const std::string& from, const std::string& to) {
  const std::scoped_lock lock(core_->mutex);
  core_->roads[{&core_->device(from), &core_->device(to)}] = Road::held;
  ++core_->epoch;
}

void ScriptedFabric::deliver(const std::string& from, const std::string& to) {
  const std::scoped_lock lock(core_->mutex);
  core_->roads.erase({&core_->device(from), &core_->device(to)});
  ++core_->epoch;
  if (!core_->lagging) detail::tick_active_locked(*core_);
}

void ScriptedFabric::break_gid(const std::string& device, int port, int index) {
  const std::scoped_lock lock(core_->mutex);
  port_of(*core_, device, port).broken_gids.insert(index);
  ++core_->epoch;
}

void ScriptedFabric::set_gid(const std::string& device, int port, int index, GidSpec gid) {
  const std::scoped_lock lock(core_->mutex);
  auto& gids = port_of(*core_, device, port).spec.gids;
  if (gids.size() <= static_cast<std::size_t>(index))
    gids.resize(static_cast<std::size_t>(index) + 1, GidSpec{.gid = {}, .valid = false});
  gids[static_cast<std::size_t>(index)] = gid;
  ++core_->epoch;
  detail::device_event_locked(*core_, core_->device(device), IBV_EVENT_GID_CHANGE, port);
}

void ScriptedFabric::fail_next(const Target& target, ibv_wc_status status, int nth, bool executed) {
  const std::scoped_lock lock(core_->mutex);
  core_->faults.push_back(
      {&core_->device(target.device), target.qp_num, target.opcode, status, nth, executed});
}

void ScriptedFabric::remove(const std::string& device) {
  const std::scoped_lock lock(core_->mutex);
  Device& gone = core_->device(device);
  if (std::exchange(gone.removed, true)) return;
  detail::device_event_locked(*core_, gone, IBV_EVENT_DEVICE_FATAL, 0);
  detail::vanish_locked(*core_, nullptr, &gone);
}

void ScriptedFabric::raise(const std::string& device, ibv_event_type type, int port) {
  const std::scoped_lock lock(core_->mutex);
  detail::device_event_locked(*core_, core_->device(device), type, port);
}

Alive ScriptedFabric::alive() const {
  const std::scoped_lock lock(core_->mutex);
  Alive sum;
  for (const Process& process : core_->processes) sum += process.alive;
  return sum;
}

Counters ScriptedFabric::counters() const {
  const std::scoped_lock lock(core_->mutex);
  Counters sum;
  for (const Process& process : core_->processes) {
    sum.doorbells += process.counters.doorbells, sum.work_requests += process.counters.work_requests;
    sum.receives += process.counters.receives, sum.completions += process.counters.completions;
    sum.empty_polls += process.counters.empty_polls, sum.events += process.counters.events;
  }
  return sum;
}

std::uint64_t ScriptedFabric::calls(Call call) const {
  const std::scoped_lock lock(core_->mutex);
  std::uint64_t sum = 0;
  for (const Process& process : core_->processes) sum += process.calls.at(static_cast<std::size_t>(call));
  return sum;
}

std::vector<QueuePairView> ScriptedFabric::queue_pairs() const {
  const std::scoped_lock lock(core_->mutex);
  std::vector<QueuePairView> views;
  for (const Device& device : core_->devices)
    for (const auto& [number, qp] : device.qps)
      views.push_back({qp->process->name, device.spec.name, number, qp->state, qp->attr, qp->cap,
                       qp->posted - qp->acked});
  return views;
}

std::vector<std::string> ScriptedFabric::violations() const {
  const std::scoped_lock lock(core_->mutex);
  return core_->violations;
}

Clockwork::Clockwork(ScriptedFabric& fabric, std::chrono::microseconds tick) : core_(fabric.core_) {
  thread_ = std::thread([this, tick] {
    while (!stop_.load(std::memory_order_relaxed)) {
      bool moved = false;
      {
        const std::scoped_lock lock(core_->mutex);
        moved = detail::step_locked(*core_);
      }
      if (!moved) std::this_thread::sleep_for(tick);
    }
  });
}

Clockwork::~Clockwork() {
  stop_.store(true, std::memory_order_relaxed);
  thread_.join();
}

}  // namespace cenote::transport::verbs::test
