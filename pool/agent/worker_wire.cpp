#include "pool/agent/worker_wire.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace cenote::pool::agent {

namespace {

void put_error(Writer& out, const Error& error) {
  out.put(error.code).put(error.native);
  out.text(error.stage).text(error.cause).text(error.device).text(error.peer).text(error.remedy);
}

Error get_error(Reader& in) {
  Error error;
  error.code = in.get<ErrorCode>();
  if (error.code > ErrorCode::internal) error.code = ErrorCode::internal;
  error.native = in.get<int>();
  error.stage = in.text();
  error.cause = in.text();
  error.device = in.text();
  error.peer = in.text();
  error.remedy = in.text();
  return error;
}

void put_driver(Writer& out, const DriverSpec& driver) {
  out.text(driver.machine).put(driver.seed).put(static_cast<std::uint8_t>(driver.adversarial));
  out.put(static_cast<std::uint32_t>(driver.emulated.size()));
  for (const auto& card : driver.emulated) out.text(card.model).put(card.memory_bytes);
}

DriverSpec get_driver(Reader& in) {
  DriverSpec driver;
  driver.machine = in.text();
  driver.seed = in.get<std::uint64_t>();
  driver.adversarial = in.get<std::uint8_t>() != 0;
  const auto cards = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < cards && !in.bad(); ++i) {
    EmulatedCard card;
    card.model = in.text();
    card.memory_bytes = in.get<std::uint64_t>();
    driver.emulated.push_back(std::move(card));
  }
  return driver;
}

tl::unexpected<Error> malformed(const char* what) {
  return fail(ErrorCode::protocol_error, what, "the message is cut short, or from another version of cenote");
}

void put_duration(Writer& out, Clock::duration span) {
  out.put(static_cast<std::int64_t>(std::chrono::nanoseconds(span).count()));
}

Clock::duration get_duration(Reader& in) { return std::chrono::nanoseconds(in.get<std::int64_t>()); }

void put_list(Writer& out, const std::vector<std::string>& list) {
  out.put(static_cast<std::uint32_t>(list.size()));
  for (const auto& entry : list) out.text(entry);
}

std::vector<std::string> get_list(Reader& in) {
  std::vector<std::string> list;
  const auto count = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < count && !in.bad(); ++i) list.push_back(in.text());
  return list;
}

/// But for its host, which a fabric sets, and what lives in this process only.
void put_verbs(Writer& out, const transport::VerbsOptions& verbs) {
  put_list(out, verbs.devices);
  out.put(verbs.rails).put(verbs.mtu).put(verbs.gid_index).put(verbs.pkey_index).put(verbs.service_level);
  out.put(verbs.traffic_class)
      .put(verbs.timeout)
      .put(verbs.retries)
      .put(verbs.queue_depth)
      .put(verbs.receives);
  out.put(verbs.connections);
  out.put(static_cast<std::uint8_t>(verbs.relaxed_ordering)).put(verbs.path_bits).text(verbs.near);
  put_list(out, verbs.gpu_memory);
}

transport::VerbsOptions get_verbs(Reader& in) {
  transport::VerbsOptions verbs;
  verbs.devices = get_list(in);
  verbs.rails = in.get<std::uint32_t>();
  verbs.mtu = in.get<std::uint32_t>();
  verbs.gid_index = in.get<int>();
  verbs.pkey_index = in.get<std::uint16_t>();
  verbs.service_level = in.get<std::uint8_t>();
  verbs.traffic_class = in.get<std::uint8_t>();
  verbs.timeout = in.get<std::uint8_t>();
  verbs.retries = in.get<std::uint8_t>();
  verbs.queue_depth = in.get<std::uint32_t>();
  verbs.receives = in.get<std::uint32_t>();
  verbs.connections = in.get<std::uint32_t>();
  verbs.relaxed_ordering = in.get<std::uint8_t>() != 0;
  verbs.path_bits = in.get<int>();
  verbs.near = in.text();
  verbs.gpu_memory = get_list(in);
  return verbs;
}

void put_fabric(Writer& out, const transport::FabricOptions& fabric) {
  put_list(out, fabric.transports);
  out.text(fabric.tcp_host);
  put_verbs(out, fabric.verbs);
  out.text(fabric.ucx.tls);
  put_duration(out, fabric.spin);
}

transport::FabricOptions get_fabric(Reader& in) {
  transport::FabricOptions fabric;
  fabric.transports = get_list(in);
  fabric.tcp_host = in.text();
  fabric.verbs = get_verbs(in);
  fabric.ucx.tls = in.text();
  fabric.spin = get_duration(in);
  return fabric;
}

void put_cage(Writer& out, const Cage& cage) {
  out.put(cage.user).put(static_cast<std::uint32_t>(cage.groups.size()));
  for (const auto group : cage.groups) out.put(group);
  out.text(cage.cgroup).put(cage.threads);
  out.put(static_cast<std::uint8_t>(cage.filtered)).put(static_cast<std::uint8_t>(cage.dumpable));
}

Cage get_cage(Reader& in) {
  Cage cage;
  cage.user = in.get<std::uint32_t>();
  const auto groups = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < groups && !in.bad(); ++i) cage.groups.push_back(in.get<std::uint32_t>());
  cage.cgroup = in.text();
  cage.threads = in.get<std::uint64_t>();
  cage.filtered = in.get<std::uint8_t>() != 0;
  cage.dumpable = in.get<std::uint8_t>() != 0;
  return cage;
}

}  // namespace

Bytes encode_setup(const WorkerSetup& setup) {
  Writer out;
  out.text(setup.lease_id).text(setup.client).put(setup.generation).put(setup.channel);
  out.put(static_cast<std::uint32_t>(setup.devices.size()));
  for (std::size_t i = 0; i < setup.devices.size(); ++i) {
    const auto& device = setup.devices[i];
    out.text(device.uuid).text(device.model).put(device.memory_bytes).put(device.ordinal);
    out.put(setup.memory_limits[i]);
  }
  put_driver(out, setup.driver);
  put_fabric(out, setup.fabric);
  out.text(setup.collectives.algorithm);
  put_duration(out, setup.collectives.timeout);
  out.put(static_cast<std::uint8_t>(setup.log.level)).put(static_cast<std::uint8_t>(setup.log.format));
  out.text(setup.log.file);
  put_cage(out, setup.cage);
  out.blob(setup.client_fabric_address);
  return out.take();
}

Result<WorkerSetup> decode_setup(std::span<const std::byte> message) {
  Reader in(message);
  WorkerSetup setup;
  setup.lease_id = in.text();
  setup.client = in.text();
  setup.generation = in.get<std::uint64_t>();
  setup.channel = in.get<std::uint32_t>();
  const auto devices = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < devices && !in.bad(); ++i) {
    LocalDevice device;
    device.uuid = in.text();
    device.model = in.text();
    device.memory_bytes = in.get<std::uint64_t>();
    device.ordinal = in.get<std::uint32_t>();
    setup.memory_limits.push_back(in.get<std::uint64_t>());
    setup.devices.push_back(std::move(device));
  }
  setup.driver = get_driver(in);
  setup.fabric = get_fabric(in);
  setup.collectives.algorithm = in.text();
  setup.collectives.timeout = get_duration(in);
  setup.log.level = static_cast<LogLevel>(in.get<std::uint8_t>());
  setup.log.format = static_cast<LogFormat>(in.get<std::uint8_t>());
  setup.log.file = in.text();
  setup.cage = get_cage(in);
  const auto address = in.blob();
  setup.client_fabric_address.assign(address.begin(), address.end());
  if (!in.finished()) return malformed("read worker setup");
  return setup;
}

Bytes encode_message(const WorkerMessage& message) {
  Writer out;
  out.put(message.kind).blob(message.address).put(static_cast<std::uint8_t>(message.error.has_value()));
  if (message.error) put_error(out, *message.error);
  out.put(static_cast<std::uint32_t>(message.use.size()));
  for (const auto& use : message.use) out.put(use.memory_used).put(use.launches).put(use.busy_ns);
  return out.take();
}

Result<WorkerMessage> decode_message(std::span<const std::byte> bytes) {
  Reader in(bytes);
  WorkerMessage message;
  message.kind = in.get<WorkerSays>();
  const auto address = in.blob();
  message.address.assign(address.begin(), address.end());
  if (in.get<std::uint8_t>() != 0) message.error = get_error(in);
  const auto devices = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < devices && !in.bad(); ++i) {
    DeviceUse use;
    use.memory_used = in.get<std::uint64_t>();
    use.launches = in.get<std::uint64_t>();
    use.busy_ns = in.get<std::uint64_t>();
    message.use.push_back(use);
  }
  if (!in.finished()) return malformed("read worker message");
  return message;
}

Result<void> send_packet(int fd, std::span<const std::byte> packet) {
  while (::send(fd, packet.data(), packet.size(), MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return fail(system_error("send to the other end of the worker's socket", errno));
  }
  return {};
}

Result<Bytes> receive_packet(int fd) {
  Bytes packet(kMaxWorkerMessage);
  for (;;) {
    const auto got = ::recv(fd, packet.data(), packet.size(), 0);
    if (got >= 0) {
      packet.resize(static_cast<std::size_t>(got));
      return packet;
    }
    // Said once, and before the packets that still lie there, when the other side ended without reading all:
    // its last words come with the next try.
    if (errno == ECONNRESET) continue;
    if (errno != EINTR) return fail(system_error("receive from the other end of the worker's socket", errno));
  }
}

}  // namespace cenote::pool::agent
