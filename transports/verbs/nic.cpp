#include "transports/verbs/nic.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "transports/endpoint_base.h"
#include "transports/verbs/machine.h"

namespace cenote::transport::verbs {
namespace {

constexpr std::uint32_t send_budget = 8192;  // completions of sends that the queue has room for
constexpr std::uint32_t chunk_limit = 1U << 20;

Error refused(const Nic& nic, std::string stage, int number) {
  return cenote::system_error(std::move(stage), number).on(nic.port.name);
}

std::string memory_limit() {
  rlimit limit{};
  (void)::getrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : std::to_string(limit.rlim_cur / 1024) + " KiB";
}

bool set_nonblocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0;
}

}  // namespace

const char* port_state_name(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return "DOWN";
    case IBV_PORT_INIT:
      return "INIT";
    case IBV_PORT_ARMED:
      return "ARMED";
    case IBV_PORT_ACTIVE:
      return "ACTIVE";
    default:
      return "of an unknown state";
  }
}

Result<std::unique_ptr<Nic>> Nic::open(const VerbsApi& api, ibv_device* device, std::uint8_t port,
                                       const VerbsOptions& options) {
  std::unique_ptr<Nic> nic(new Nic(api));
  nic->port_number = port;
  nic->port.name = std::string(api.get_device_name(device)) + ":" + std::to_string(port);
  nic->context = {api.open_device(device), api.close_device};
  if (!nic->context) return fail(refused(*nic, "open device", errno));
  ibv_device_attr attributes{};
  if (const int number = api.query_device(nic->context.get(), &attributes); number != 0)
    return fail(refused(*nic, "query device", number));
  CENOTE_TRY(nic->describe(attributes, options));
  CENOTE_TRY(nic->make_queues(attributes, options));
  return nic;
}

Result<void> Nic::describe(const ibv_device_attr& device, const VerbsOptions& options) {
  ibv_port_attr attributes{};
  if (const int number = api.query_port(context.get(), port_number, &attributes); number != 0)
    return fail(refused(*this, "query port", number));
  if (attributes.state != IBV_PORT_ACTIVE)
    return fail(
        Error{ErrorCode::not_supported, "use port", std::string("it is ") + port_state_name(attributes.state)}
            .on(port.name)
            .fix(attributes.state == IBV_PORT_DOWN
                     ? "check the cable, and that its network interface is up (ip link)"
                     : "an InfiniBand port becomes ACTIVE when a subnet manager runs"));
  port.link_layer =
      attributes.link_layer == IBV_LINK_LAYER_ETHERNET ? LinkLayer::ethernet : LinkLayer::infiniband;
  port.lid = attributes.lid;
  port.mtu = static_cast<std::uint8_t>(attributes.active_mtu);
  if (options.mtu != 0 && (!std::has_single_bit(options.mtu) || options.mtu < 256 || options.mtu > 4096))
    return fail(Error{ErrorCode::invalid_argument, "use port",
                      "setting verbs.mtu is " + std::to_string(options.mtu) +
                          ", a path MTU is 256, 512, 1024, 2048 or 4096 bytes"}
                    .fix("take one of these, or 0 for what both ports have"));
  port.reads_served = static_cast<std::uint8_t>(std::clamp(device.max_qp_rd_atom, 0, 16));
  port.reads_issued = static_cast<std::uint8_t>(std::clamp(device.max_qp_init_rd_atom, 0, 16));
  port.atomics = device.atomic_cap != IBV_ATOMIC_NONE;
  CENOTE_TRY(describe_paths(attributes, options));
  max_chunk = std::clamp(attributes.max_msg_sz, 4096U, chunk_limit);
  max_depth = std::min(options.queue_depth, static_cast<std::uint32_t>(device.max_qp_wr));
  return read_gids(options.gid_index);
}

Result<void> Nic::describe_paths(const ibv_port_attr& attributes, const VerbsOptions& options) {
  port.mbps = port_speed(attributes.active_width, attributes.active_speed);
  if (port.link_layer == LinkLayer::infiniband) port.lmc = attributes.lmc & max_lmc;
  if (port.link_layer == LinkLayer::infiniband && options.path_bits > port.path_mask())
    return fail(Error{ErrorCode::invalid_argument, "use port",
                      "setting verbs.path_bits is " + std::to_string(options.path_bits) + ", its LMC of " +
                          std::to_string(port.lmc) + " has paths 0 to " + std::to_string(port.path_mask())}
                    .on(port.name)
                    .fix("take one of these, or -1 for one after the other"));
  const MachineFiles files(options.system_root);
  const auto device = port.name.substr(0, port.name.rfind(':'));
  const auto interface = network_interface(files, interface_of_port(files, device, port_number));
  port.interface = printable(as_bytes(interface.name));
  port.bond = printable(as_bytes(interface.bond));
  port.members = interface.members;
  return {};
}

Result<void> Nic::read_gids(int only) {
  std::vector<ibv_gid_entry> table(512);
  const ssize_t count = api.query_gid_table(context.get(), table.data(), table.size());
  if (count < 0) return fail(refused(*this, "read GID table", static_cast<int>(-count)));
  table.resize(static_cast<std::size_t>(count));
  for (const ibv_gid_entry& entry : table) {
    if (entry.port_num != port_number || entry.gid_index > 255) continue;
    if (only >= 0 && entry.gid_index != static_cast<std::uint32_t>(only)) continue;
    if (port.gids.size() == max_gids) break;
    Gid gid;
    gid.type = static_cast<GidType>(entry.gid_type);
    gid.index = static_cast<std::uint8_t>(entry.gid_index);
    std::memcpy(gid.raw.data(), entry.gid.raw, gid.raw.size());
    port.gids.push_back(gid);
  }
  if (!port.gids.empty()) return {};
  return fail(
      Error{ErrorCode::not_supported, "use port",
            only < 0 ? "its GID table is empty" : "its GID table has no entry " + std::to_string(only)}
          .on(port.name)
          .fix("`rdma link`, and `ip address` of its network interface, show what it has"));
}

Result<void> Nic::make_queues(const ibv_device_attr& device, const VerbsOptions& options) {
  pd = {api.alloc_pd(context.get()), api.dealloc_pd};
  if (!pd) return fail(refused(*this, "make protection domain", errno));
  channel = {api.create_comp_channel(context.get()), api.destroy_comp_channel};
  if (!channel) return fail(refused(*this, "make completion channel", errno));
  if (!set_nonblocking(channel->fd) || !set_nonblocking(context->async_fd))
    return fail(refused(*this, "make completion channel", errno));
  const auto receives = std::min(options.receives, static_cast<std::uint32_t>(device.max_srq_wr));
  const auto entries = std::min(receives + send_budget, static_cast<std::uint32_t>(device.max_cqe));
  if (receives == 0 || entries <= receives)
    return fail(Error{ErrorCode::not_supported, "use device",
                      "it has no room for " + std::to_string(receives) +
                          " receive buffers: its completion queues hold " + std::to_string(device.max_cqe) +
                          " entries, its shared receive queues " + std::to_string(device.max_srq_wr)}
                    .on(port.name)
                    .fix("set verbs.receives to " +
                         std::to_string(std::max(0, std::min(device.max_cqe - static_cast<int>(send_budget),
                                                             device.max_srq_wr))) +
                         " or less"));
  send_room = entries - receives;
  cq = {api.create_cq(context.get(), static_cast<int>(entries), nullptr, channel.get(), 0), api.destroy_cq};
  if (!cq) return fail(refused(*this, "make completion queue", errno));
  ibv_srq_init_attr init{};
  init.attr.max_wr = receives;
  init.attr.max_sge = 1;
  srq = {api.create_srq(pd.get(), &init), api.destroy_srq};
  if (!srq) return fail(refused(*this, "make shared receive queue", errno));
  slots_.resize(std::size_t{receives} * slot_size);
  CENOTE_ASSIGN(slots_mr_, register_memory(slots_.data(), slots_.size(), IBV_ACCESS_LOCAL_WRITE));
  free_.reserve(receives);
  receive_list_.resize(receives);
  receive_parts_.resize(receives);
  for (std::uint32_t i = 0; i < receives; ++i) free_.push_back(i);
  return give_back();
}

Result<Mr> Nic::register_memory(void* address, std::size_t bytes, unsigned access) const {
  Mr mr{api.reg_mr(pd.get(), address, bytes, access), api.dereg_mr};
  if (mr) return mr;
  return fail(not_registered(bytes, errno));
}

// Nobody has a dma-buf of number -1: EBADF says that it was looked for, so that there is somebody who would
// take one. Whether he is asked first by the kernel or by the card's library, he says the others.
Result<void> takes_dmabufs(const VerbsApi& api, ibv_pd* domain) {
  const auto refusal = [](const std::string& why) {
    return fail(ErrorCode::not_supported, "ask for dma-bufs", why);
  };
  if (api.reg_dmabuf_mr == nullptr) return refusal("this libibverbs knows no dma-bufs");
  constexpr std::size_t page = 4096;
  const Mr impossible{api.reg_dmabuf_mr(domain, 0, page, 0, -1, IBV_ACCESS_LOCAL_WRITE), api.dereg_mr};
  const int number = errno;
  if (impossible || (number != EOPNOTSUPP && number != EPROTONOSUPPORT)) return {};
  return refusal(std::string("card or kernel take no dma-bufs (") +
                 (number == EOPNOTSUPP ? "EOPNOTSUPP" : "EPROTONOSUPPORT") + ")");
}

Result<Mr> Nic::register_dmabuf(const DmaBuf& memory, std::uint64_t address, std::size_t bytes,
                                unsigned access) const {
  Mr mr{api.reg_dmabuf_mr(pd.get(), memory.offset, bytes, address, memory.fd.get(),
                          static_cast<int>(rights(access))),
        api.dereg_mr};
  if (mr) return mr;
  return fail(not_registered(bytes, errno));
}

Error Nic::not_registered(std::size_t bytes, int number) const {
  Error error = refused(*this, "register " + std::to_string(bytes) + " bytes", number);
  if (number == ENOMEM || number == EAGAIN || number == EPERM) {
    error.code = ErrorCode::resource_exhausted;
    error.remedy = "the limit of locked memory is " + memory_limit() +
                   ": raise it (ulimit -l, LimitMEMLOCK= of the service, limits.conf)";
  } else if (number == EFAULT) {
    error.code = ErrorCode::invalid_argument;
  }
  return error;
}

Result<void> Nic::give_back() {
  if (free_.empty()) return {};
  std::size_t count = 0;
  for (const std::uint32_t index : free_) {
    const auto bytes = slot(index);
    receive_parts_[count] = {reinterpret_cast<std::uintptr_t>(bytes.data()),
                             static_cast<std::uint32_t>(bytes.size()), slots_mr_->lkey};
    ibv_recv_wr& receive = receive_list_[count];
    receive.wr_id = receive_mark | index;
    receive.sg_list = &receive_parts_[count];
    receive.num_sge = 1;
    receive.next = nullptr;
    if (count != 0) receive_list_[count - 1].next = &receive;
    ++count;
  }
  ibv_recv_wr* bad = nullptr;
  const int number = api.post_srq_recv(srq.get(), receive_list_.data(), &bad);
  free_.clear();
  if (number != 0) return fail(refused(*this, "give buffers to the receive queue", number));
  return {};
}

Result<void> Nic::request_wakeup() {
  if (const int number = api.req_notify_cq(cq.get(), 0); number != 0)
    return fail(refused(*this, "ask for a wake-up", number));
  return {};
}

std::string Nic::state_in_words() const {
  ibv_port_attr attributes{};
  if (api.query_port(context.get(), port_number, &attributes) != 0) return "not to be asked any more";
  return port_state_name(attributes.state);
}

void Nic::take_wakeups() {
  ibv_cq* which = nullptr;
  void* user = nullptr;
  unsigned count = 0;
  while (api.get_cq_event(channel.get(), &which, &user) == 0) ++count;
  if (count != 0) api.ack_cq_events(cq.get(), count);
}

namespace {

/// "mlx5_0:1" and "mlx5_0" both name port 1 of mlx5_0.
bool allowed(const VerbsOptions& options, const std::string& device, std::uint8_t port) {
  if (options.devices.empty()) return true;
  const std::string whole = device + ":" + std::to_string(port);
  return std::any_of(options.devices.begin(), options.devices.end(),
                     [&](const std::string& name) { return name == device || name == whole; });
}

Result<void> each_is_there(const VerbsOptions& options, const std::vector<std::string>& names) {
  for (const std::string& wanted : options.devices) {
    const std::string device = wanted.substr(0, wanted.rfind(':'));
    if (std::find(names.begin(), names.end(), device) != names.end()) continue;
    std::string there;
    for (const std::string& name : names) there += (there.empty() ? "" : ", ") + name;
    return fail(Error{ErrorCode::not_found, "open RDMA device", "there is no device '" + device + "'"}.fix(
        there.empty() ? "this machine has no RDMA device" : "devices of this machine: " + there));
  }
  return {};
}

std::uint8_t ports_of(const VerbsApi& api, ibv_device* device) {
  const Owned<ibv_context> context(api.open_device(device), api.close_device);
  ibv_device_attr attributes{};
  if (!context || api.query_device(context.get(), &attributes) != 0) return 1;
  return attributes.phys_port_cnt;
}

}  // namespace

Result<std::vector<std::unique_ptr<Nic>>> open_nics(const VerbsApi& api, const VerbsOptions& options) {
  const DeviceList devices(api);
  std::vector<std::string> names;
  names.reserve(static_cast<std::size_t>(devices.count));
  for (int i = 0; i < devices.count; ++i) names.emplace_back(api.get_device_name(devices.list[i]));
  CENOTE_TRY(each_is_there(options, names));
  std::vector<std::unique_ptr<Nic>> out;
  std::string refusals, remedy;
  for (int i = 0; i < devices.count; ++i) {
    const std::uint8_t ports = ports_of(api, devices.list[i]);
    for (std::uint8_t port = 1; port <= ports && out.size() < max_ports; ++port) {
      if (!allowed(options, names[static_cast<std::size_t>(i)], port)) continue;
      auto nic = Nic::open(api, devices.list[i], port, options);
      if (nic) {
        out.push_back(std::move(*nic));
        continue;
      }
      if (nic.error().code != ErrorCode::not_supported) return fail(std::move(nic).error());
      refusals += (refusals.empty() ? "" : "; ") + nic.error().device + ": " + nic.error().cause;
      remedy = nic.error().remedy;
    }
  }
  if (!out.empty()) return out;
  if (refusals.empty() && devices.count != 0) {
    for (int i = 0; i < devices.count; ++i)
      refusals += (i == 0 ? "there is no port of that number: " : ", ") + names[static_cast<std::size_t>(i)] +
                  " has " + std::to_string(ports_of(api, devices.list[i]));
    remedy = "name a port that is there, as mlx5_0:1";
  }
  if (refusals.empty()) {
    refusals = "this machine has no RDMA device";
    remedy = "load its driver (lsmod), or make a software one: rdma link add rxe0 type rxe netdev eth0";
  }
  return fail(
      Error{ErrorCode::not_supported, "open RDMA devices", std::move(refusals)}.fix(std::move(remedy)));
}

}  // namespace cenote::transport::verbs
