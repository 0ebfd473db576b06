// Processes, the start of every call, and the calls on devices.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <stdexcept>

#include "tests/unit/transports/verbs/scripted_core.h"

namespace cenote::transport::verbs::test {

namespace detail {

namespace {

// get_device_list is asked of nobody in particular: each process has an entry of its own for it, and a slot
// here.
constexpr int kSlots = 512;
std::mutex slots_mutex;
std::array<Process*, kSlots> slots{};

ibv_device** list_devices(Process* process, int* count);

template <int Slot>
ibv_device** get_device_list(int* count) {
  Process* process = nullptr;
  {
    const std::scoped_lock lock(slots_mutex);
    process = slots[Slot];
  }
  return list_devices(process, count);
}

template <int... Slot>
constexpr auto list_entries(std::integer_sequence<int, Slot...>) {
  return std::array<ibv_device** (*)(int*), sizeof...(Slot)>{&get_device_list<Slot>...};
}
constexpr auto kListEntries = list_entries(std::make_integer_sequence<int, kSlots>{});

void take_slot(Process& process) {
  const std::scoped_lock lock(slots_mutex);
  const auto free = std::find(slots.begin(), slots.end(), nullptr);
  if (free == slots.end()) throw std::logic_error("more than 512 simulated processes at a time");
  *free = &process;
  process.slot = static_cast<int>(free - slots.begin());
  process.table.get_device_list = kListEntries.at(static_cast<std::size_t>(process.slot));
}

// The place before a list says whose it is.
ibv_device** new_list(Process& process, std::size_t room) {
  auto** whole = new void*[room + 2];
  whole[0] = &process;
  return reinterpret_cast<ibv_device**>(whole + 1);
}
Process& owner_of(ibv_device** list) { return *static_cast<Process*>(reinterpret_cast<void**>(list)[-1]); }
void delete_list(ibv_device** list) {
  void** const whole = reinterpret_cast<void**>(list) - 1;
  delete[] whole;
}

ibv_device** list_devices(Process* process, int* count) {
  Entry entry(Call::get_device_list, *process);
  if (count != nullptr) *count = 0;
  if (entry.error != 0) return entry.fail<ibv_device*>();
  auto** list = new_list(*process, process->listed.size());
  int found = 0;
  for (Listed* device : process->listed)
    if (!device->card->removed) list[found++] = device;
  list[found] = nullptr;
  if (count != nullptr) *count = found;
  process->lists.insert(list);
  ++process->alive.lists;
  return list;
}

void free_device_list(ibv_device** list) {
  Process& process = owner_of(list);
  const Entry entry(Call::free_device_list, process);
  if (process.lists.erase(list) == 0) return;
  if (!process.killed) --process.alive.lists;
  delete_list(list);
}

const char* get_device_name(ibv_device* device) {
  auto* listed = static_cast<Listed*>(device);
  const Entry entry(Call::get_device_name, listed);
  return entry.error != 0 ? entry.fail<const char>() : listed->name;
}

ibv_context* open_device(ibv_device* device) {
  auto* listed = static_cast<Listed*>(device);
  const Entry entry(Call::open_device, listed);
  if (entry.error != 0) return entry.fail<ibv_context>();
  auto* context = listed->process->core->make<Context>(*listed->process, *listed->card);
  context->device = listed;
  context->async_fd = context->tokens.fd();
  context->cmd_fd = -1;
  context->num_comp_vectors = 4;
  listed->process->contexts.push_back(context);
  ++listed->process->alive.contexts;
  return context;
}

int close_device(ibv_context* opaque) {
  auto* context = static_cast<Context*>(opaque);
  const Entry entry(Call::close_device, context);
  // The file of a removed device can still be closed.
  if (entry.error != 0 && !(entry.error == EIO && context->card->removed && context->alive))
    return entry.error;
  Core& core = *context->process->core;
  int left = 0;
  for (const auto& node : core.nodes) {
    if (!node->alive || node->process != context->process) continue;
    const auto* pd = dynamic_cast<const Pd*>(node.get());
    const auto* cq = dynamic_cast<const Cq*>(node.get());
    const auto* channel = dynamic_cast<const Channel*>(node.get());
    if ((pd != nullptr && pd->context == context) || (cq != nullptr && cq->context == context) ||
        (channel != nullptr && channel->context == context))
      ++left;
  }
  if (left != 0)
    violation_locked(core, *context->process,
                     "close_device with " + std::to_string(left) + " objects of it alive");
  close_context_locked(*context);
  return 0;
}

int query_device(ibv_context* opaque, ibv_device_attr* out) {
  auto* context = static_cast<Context*>(opaque);
  const Entry entry(Call::query_device, context);
  if (entry.error != 0) return entry.error;
  const DeviceSpec& spec = context->card->spec;
  *out = {};
  std::snprintf(out->fw_ver, sizeof out->fw_ver, "1.0");
  out->node_guid = out->sys_image_guid = static_cast<__be64>(context->card->number);
  out->max_mr_size = ~0ull;
  out->page_size_cap = 0xfffffffffffff000;
  out->max_qp = 65536;
  out->max_qp_wr = spec.max_qp_wr;
  out->device_cap_flags =
      IBV_DEVICE_SYS_IMAGE_GUID | IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_PORT_ACTIVE_EVENT;
  out->max_sge = out->max_sge_rd = spec.max_sge;
  out->max_cq = 65536;
  out->max_cqe = spec.max_cqe;
  out->max_mr = 1 << 20;
  out->max_pd = 65536;
  out->max_qp_rd_atom = spec.max_qp_rd_atom;
  out->max_qp_init_rd_atom = spec.max_qp_init_rd_atom;
  out->max_res_rd_atom = spec.max_qp_rd_atom * 1024;
  out->atomic_cap = spec.atomics;
  out->max_srq = 65536;
  out->max_srq_wr = spec.max_srq_wr;
  out->max_srq_sge = spec.max_sge;
  out->max_pkeys = 128;
  out->phys_port_cnt = static_cast<std::uint8_t>(spec.ports.size());
  return 0;
}

int query_port(ibv_context* opaque, std::uint8_t number, ibv_port_attr* out) {
  auto* context = static_cast<Context*>(opaque);
  const Entry entry(Call::query_port, context);
  if (entry.error != 0) return entry.error;
  const Port* port = context->card->port(number);
  if (port == nullptr) return EINVAL;
  const PortSpec& spec = port->spec;
  *out = {};
  out->state = spec.up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  out->max_mtu = spec.max_mtu;
  out->active_mtu = spec.active_mtu;
  out->gid_tbl_len = static_cast<int>(std::max<std::size_t>(spec.gids.size(), 16));
  out->max_msg_sz = context->card->spec.max_msg_sz;
  out->pkey_tbl_len = static_cast<std::uint16_t>(spec.pkeys.size());
  out->lid = spec.lid;
  out->sm_lid = spec.link_layer == IBV_LINK_LAYER_INFINIBAND ? 1 : 0;
  out->lmc = spec.lmc;
  out->max_vl_num = 1;
  out->active_width = spec.active_width;
  out->active_speed = spec.active_speed;
  out->phys_state = spec.up ? 5 : 3;  // LinkUp, Disabled
  out->link_layer = static_cast<std::uint8_t>(spec.link_layer);
  return 0;
}

ssize_t query_gid_table(ibv_context* opaque, ibv_gid_entry* out, std::size_t room) {
  auto* context = static_cast<Context*>(opaque);
  const Entry entry(Call::query_gid_table, context);
  if (entry.error != 0) return -entry.error;
  std::size_t found = 0;
  for (std::size_t p = 0; p < context->card->ports.size(); ++p) {
    const auto& gids = context->card->ports[p].spec.gids;
    for (std::size_t i = 0; i < gids.size(); ++i) {
      if (!gids[i].valid) continue;
      if (found == room) return -EINVAL;  // as the kernel: all or nothing
      out[found++] = {gids[i].gid, static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(p + 1),
                      static_cast<std::uint32_t>(gids[i].type),
                      static_cast<std::uint32_t>(context->card->number)};
    }
  }
  return static_cast<ssize_t>(found);
}

int query_pkey(ibv_context* opaque, std::uint8_t number, int index, __be16* out) {
  auto* context = static_cast<Context*>(opaque);
  const Entry entry(Call::query_pkey, context);
  if (entry.error != 0) return errno = entry.error, -1;
  const Port* port = context->card->port(number);
  if (port == nullptr || index < 0 || static_cast<std::size_t>(index) >= port->spec.pkeys.size())
    return errno = EINVAL, -1;
  *out = __builtin_bswap16(port->spec.pkeys[static_cast<std::size_t>(index)]);
  return 0;
}

}  // namespace

Port* Device::port(int number_from_1) {
  if (number_from_1 < 1 || static_cast<std::size_t>(number_from_1) > ports.size()) return nullptr;
  return &ports[static_cast<std::size_t>(number_from_1) - 1];
}

Core::~Core() {
  const std::scoped_lock lock(slots_mutex);
  for (Process& process : processes) {
    if (process.slot >= 0) slots[static_cast<std::size_t>(process.slot)] = nullptr;
    for (auto* list : process.lists) delete_list(list);
  }
}

Device& Core::device(const std::string& name) {
  for (Device& device : devices)
    if (device.spec.name == name) return device;
  throw std::logic_error("the fabric has no device " + name);
}

void violation_locked(Core& core, const Process& process, const std::string& what) {
  core.violations.push_back(process.name + ": " + what);
}

int refused_locked(Process& process, Call call) {
  for (auto refusal = process.refusals.begin(); refusal != process.refusals.end(); ++refusal) {
    if (refusal->call != call) continue;
    if (refusal->pass > 0) {
      --refusal->pass;
      continue;
    }
    const int error = refusal->error;
    if (refusal->times > 0 && --refusal->times == 0) process.refusals.erase(refusal);
    return error;
  }
  return 0;
}

void run_hooks(Process& process, Call call) {
  if (process.hooks_set.load(std::memory_order_relaxed) == 0) return;
  std::vector<std::function<void()>> due;
  {
    const std::scoped_lock lock(process.hooks_mutex);
    std::erase_if(process.hooks, [&](Hook& hook) {
      if (hook.call != call || --hook.countdown > 0) return false;
      due.push_back(std::move(hook.run));
      process.hooks_set.fetch_sub(1);
      return true;
    });
  }
  for (const auto& run : due) run();
}

Entry::Entry(Call call, Process& process) {
  run_hooks(process, call);
  lock = std::unique_lock(process.core->mutex);
  ++process.calls[static_cast<std::size_t>(call)];
  if (process.killed)
    error = EIO;
  else if (!process.refusals.empty())
    error = refused_locked(process, call);
}

Entry::Entry(Call call, Node* node, bool counts_requests) {
  Process& process = *node->process;
  run_hooks(process, call);
  lock = std::unique_lock(process.core->mutex);
  ++process.calls[static_cast<std::size_t>(call)];
  if (process.killed || node->card->removed) {
    error = EIO;
  } else if (!node->alive) {
    violation_locked(*process.core, process, std::string(name_of(call)) + " on an object that was destroyed");
    error = EINVAL;
  } else if (!process.refusals.empty() && !counts_requests) {
    error = refused_locked(process, call);
  }
}

void fill_device_calls(VerbsApi& table) {
  table.free_device_list = free_device_list;
  table.get_device_name = get_device_name;
  table.open_device = open_device;
  table.close_device = close_device;
  table.query_device = query_device;
  table.query_port = query_port;
  table.query_gid_table = query_gid_table;
  table.query_pkey = query_pkey;
}

}  // namespace detail

ScriptedProcess ScriptedFabric::process(const std::string& name, const std::vector<std::string>& devices) {
  const std::scoped_lock lock(core_->mutex);
  detail::Process& process = core_->processes.emplace_back();
  process.core = core_.get();
  process.name = name;
  for (const std::string& wanted : devices) {
    detail::Device& device = core_->device(wanted);
    auto* listed = core_->make<detail::Listed>(process, device);
    listed->node_type = IBV_NODE_CA;
    listed->transport_type = IBV_TRANSPORT_IB;
    std::snprintf(listed->name, sizeof listed->name, "%s", wanted.c_str());
    std::snprintf(listed->dev_name, sizeof listed->dev_name, "uverbs%d", device.number);
    std::snprintf(listed->dev_path, sizeof listed->dev_path, "/nonexistent/uverbs%d", device.number);
    std::snprintf(listed->ibdev_path, sizeof listed->ibdev_path, "/nonexistent/%s", wanted.c_str());
    process.listed.push_back(listed);
  }
  detail::fill_device_calls(process.table);
  detail::fill_memory_calls(process.table);
  detail::fill_completion_calls(process.table);
  detail::fill_queue_calls(process.table);
  detail::take_slot(process);
  process.table_without_dmabuf = process.table;
  process.table_without_dmabuf.reg_dmabuf_mr = nullptr;
  return {core_, &process};
}

}  // namespace cenote::transport::verbs::test
