// Connecting to workers, and what belongs to no theme of the driver's calls.
#include "pool/remote/client_driver.h"

#include <sys/mman.h>

#include <algorithm>

#include "pool/remote/client_impl.h"

namespace cenote::pool::remote {
namespace {

constexpr int range_rounds = 8;

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) & ~(to - 1); }

/// Address space that nothing else of this process uses, aligned to `granule`; MAP_FAILED when there is none.
void* reserve_anywhere(std::size_t bytes, std::size_t granule) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const wide = mmap(nullptr, bytes + granule, PROT_NONE, flags, -1, 0);
  if (wide == MAP_FAILED) return wide;
  const auto begin = reinterpret_cast<std::uint64_t>(wide);
  const auto at = round_up(begin, granule);
  if (at > begin) munmap(wide, at - begin);
  if (at + bytes < begin + bytes + granule)
    munmap(static_cast<char*>(wide) + (at - begin) + bytes, begin + granule - at);
  return static_cast<char*>(wide) + (at - begin);
}

/// A place that is likely free in any process: far from where programs, libraries and heaps lie.
std::uint64_t somewhere(std::uint64_t seed, std::size_t granule) {
  constexpr std::uint64_t from = 0x2000'0000'0000, span = 0x3000'0000'0000;
  seed += 0x9e3779b97f4a7c15;  // splitmix64
  seed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9;
  seed = (seed ^ (seed >> 27)) * 0x94d049bb133111eb;
  return round_up(from + (seed ^ (seed >> 31)) % span, granule);
}

void* reserve_at(std::uint64_t address, std::size_t bytes) {
  // A hint, not MAP_FIXED_NOREPLACE: the caller compares, and sanitizers move what they do not like.
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address that was chosen as a number
  return mmap(reinterpret_cast<void*>(address), bytes, PROT_NONE, flags, -1, 0);
}

}  // namespace

Result<std::unique_ptr<RemoteDriver>> RemoteDriver::connect(std::unique_ptr<transport::Fabric> fabric,
                                                            const std::vector<WorkerAddress>& workers,
                                                            Deadline deadline, const CancelFlag* cancel,
                                                            Clock::duration worker_timeout) {
  auto driver = std::make_unique<RemoteDriverImpl>(std::move(fabric), cancel, worker_timeout);
  CENOTE_TRY(driver->open(workers, deadline));
  return driver;
}

RemoteDriverImpl::RemoteDriverImpl(std::unique_ptr<transport::Fabric> fabric, const CancelFlag* cancel,
                                   Clock::duration worker_timeout)
    : session_(std::move(fabric), cancel, worker_timeout),
      born_(static_cast<std::uint64_t>(Clock::now().time_since_epoch().count())) {
  session_.on_loss([this] { spread_loss(); });
}

RemoteDriverImpl::~RemoteDriverImpl() {
  {
    const Session::Lock lock(session_);
    for (auto& device : devices_) {
      if (!device->lane.lost() && device->lane.issue(0, Goodbye{})) device->lane.flush();
    }
  }
  for (const auto pointer : pinned_ours_) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's interface has addresses as numbers
    munmap(reinterpret_cast<void*>(pointer), pinned_[pointer]);
  }
  for (const auto& range : reservations_) munmap(range.at, range.bytes);
}

Result<void> RemoteDriverImpl::open(const std::vector<WorkerAddress>& workers, Deadline deadline) {
  const Session::Lock lock(session_);
  for (const auto& address : workers) {
    if (address.device_names.empty() || address.device_names.size() > max_lanes)
      return fail(ErrorCode::invalid_argument, "connect to worker",
                  address.peer + " serves " + std::to_string(address.device_names.size()) +
                      " devices; 1 to " + std::to_string(max_lanes) + " are possible");
    auto& worker = session_.add_worker();
    worker.peer = address.peer;
    CENOTE_ASSIGN(worker.link,
                  session_.fabric().connect(address.fabric_address, address.peer, address.channel, deadline));
    CENOTE_ASSIGN(worker.region, worker.link.transport->allocate(address.device_names.size() * ring_bytes));
    std::vector<std::byte> message(256);
    const auto& key = worker.region->key();
    message.resize(encode(Hello{protocol_version, static_cast<std::uint32_t>(address.device_names.size()),
                                ring_slots, std::span(key.bytes).first(key.size)},
                          message));
    CENOTE_TRY(worker.link.endpoint->send(message));
  }
  // All workers set up at the same time; only then is each waited for.
  for (std::size_t i = 0; i < workers.size(); ++i)
    CENOTE_TRY(greet(*session_.workers()[i], workers[i], deadline));
  session_.set_limit(deadline);
  for (auto& device : devices_) {
    CENOTE_TRY(describe(*device, deadline));
    CENOTE_TRY(agree_on_range(*device, deadline));
  }
  session_.set_limit(Deadline::never());
  return {};
}

Result<void> RemoteDriverImpl::greet(WorkerLink& worker, const WorkerAddress& address, Deadline deadline) {
  std::vector<std::byte> message(512);
  std::size_t size = 0;
  while (size == 0) {
    CENOTE_ASSIGN(const auto got, worker.link.endpoint->receive(message));
    size = got.value_or(0);
    if (size != 0) break;
    if (auto failure = worker.link.endpoint->failure()) return fail(*failure);
    auto waited = session_.fabric().wait(deadline, nullptr, "the worker's welcome");
    if (!waited) return fail(std::move(waited).error().with(worker.peer));
  }
  transport::RemoteKey key;
  CENOTE_TRY(dispatch(std::span(message).first(size), [&](const auto& command) -> Result<void> {
    if constexpr (std::is_same_v<std::decay_t<decltype(command)>, Welcome>) {
      if (command.version != protocol_version || command.slots != ring_slots ||
          command.lanes != address.device_names.size() || command.key.size() > key.bytes.size())
        return fail(ErrorCode::protocol_error, "connect to worker",
                    "it speaks version " + std::to_string(command.version) + " for " +
                        std::to_string(command.lanes) + " devices, this client version " +
                        std::to_string(protocol_version) + " for " +
                        std::to_string(address.device_names.size()));
      std::copy(command.key.begin(), command.key.end(), key.bytes.begin());
      key.size = static_cast<std::uint8_t>(command.key.size());
      return {};
    } else {
      return fail(ErrorCode::protocol_error, "connect to worker", "its first message is no welcome");
    }
  }));
  for (std::uint32_t i = 0; i < address.device_names.size(); ++i) {
    const auto ordinal = static_cast<std::uint32_t>(devices_.size());
    session_.lanes().push_back(
        std::make_unique<Lane>(session_, worker, ordinal, i, address.device_names[i], key,
                               worker.region->bytes().subspan(i * ring_bytes, ring_bytes)));
    worker.lanes.push_back(session_.lanes().back().get());
    devices_.push_back(std::make_unique<RemoteDevice>(*session_.lanes().back(), ordinal));
    devices_.back()->primary = devices_.back()->contexts.add({true, 0, 0});
  }
  return {};
}

Result<void> RemoteDriverImpl::describe(RemoteDevice& device, Deadline deadline) {
  if (deadline.passed()) return fail(ErrorCode::deadline_exceeded, "connect to worker", "no time left");
  Reply reply;
  const auto status = device.lane.ask(reply, DeviceInfo{});
  if (status != cuda::Status::success) {
    return fail(Error{ErrorCode::driver_error, "describe device", reply.detail, device.lane.name(),
                      device.lane.worker().peer, "", static_cast<int>(status)});
  }
  CENOTE_ASSIGN(device.info, unpack_device(reply.blob));
  device.known_free = device.info.total_memory;
  const auto value = [&](cuda::DeviceAttribute attribute) {
    const auto found =
        std::find_if(device.info.attributes.begin(), device.info.attributes.end(),
                     [&](const auto& entry) { return entry.first == static_cast<int>(attribute); });
    return found == device.info.attributes.end() ? 0U : static_cast<unsigned>(found->second);
  };
  for (int i = 0; i < 3; ++i) {
    device.max_block[i] = value(
        static_cast<cuda::DeviceAttribute>(static_cast<int>(cuda::DeviceAttribute::max_block_dim_x) + i));
    device.max_grid[i] = value(
        static_cast<cuda::DeviceAttribute>(static_cast<int>(cuda::DeviceAttribute::max_grid_dim_x) + i));
  }
  device.max_threads = value(cuda::DeviceAttribute::max_threads_per_block);
  return {};
}

bool RemoteDriverImpl::is_disjoint(const RemoteDevice& device, std::uint64_t base,
                                   std::uint64_t bytes) const {
  return std::none_of(devices_.begin(), devices_.end(), [&](const auto& other) {
    return other.get() != &device && other->space.size() != 0 &&
           base < other->space.base() + other->space.size() && other->space.base() < base + bytes;
  });
}

// The client proposes a range that is free in its own process; the worker reserves what it can get, there if
// possible. What both have and no other device uses is agreed. Where client and worker share a process, only
// one of them can hold it: in the last round the worker's word is enough.
Result<void> RemoteDriverImpl::agree_on_range(RemoteDevice& device, Deadline deadline) {
  const auto granule = std::max<std::uint64_t>(device.info.granularity, 4096);
  // Twice the memory, so that fragments do not run out of addresses before they run out of memory.
  const auto bytes = round_up(2 * device.info.total_memory, granule) + 64 * granule;
  for (int round = 0; round < range_rounds && !deadline.passed(); ++round) {
    const auto turn = std::uint64_t{device.lane.ordinal()} * range_rounds + static_cast<unsigned>(round);
    const auto wish = somewhere(born_ + turn, granule);
    void* mine = reserve_at(wish, bytes);
    if (mine == MAP_FAILED || reinterpret_cast<std::uint64_t>(mine) != wish) {
      if (mine != MAP_FAILED) munmap(mine, bytes);
      mine = reserve_anywhere(bytes, granule);
    }
    const auto hint = mine == MAP_FAILED ? 0 : reinterpret_cast<std::uint64_t>(mine);
    // In a shared process the worker can only have the hint once this side has let go of it.
    const bool yield = round >= range_rounds / 2;
    if (yield && mine != MAP_FAILED) {
      munmap(mine, bytes);
      mine = MAP_FAILED;
    }
    Reply reply;
    const auto status = device.lane.ask(reply, RangeReserve{0, hint, bytes});
    const auto got = reply.a;
    const bool same = status == cuda::Status::success && got == hint;
    if (!same && mine != MAP_FAILED) {
      munmap(mine, bytes);
      mine = MAP_FAILED;
    }
    if (status != cuda::Status::success) {
      if (device.lane.lost() || round + 1 == range_rounds)
        return fail(Error{ErrorCode::driver_error, "reserve addresses", reply.detail, device.lane.name(),
                          device.lane.worker().peer, "", static_cast<int>(status)});
      continue;
    }
    if (mine == MAP_FAILED) mine = reserve_at(got, bytes);
    if (mine != MAP_FAILED && reinterpret_cast<std::uint64_t>(mine) != got) {
      munmap(mine, bytes);
      mine = MAP_FAILED;
    }
    if (!is_disjoint(device, got, bytes) || (mine == MAP_FAILED && !yield)) {
      if (mine != MAP_FAILED) munmap(mine, bytes);
      continue;
    }
    if (mine != MAP_FAILED) reservations_.push_back({mine, bytes});
    device.space = AddressSpace(got, bytes, device.info.granularity);
    return {};
  }
  return fail(Error{ErrorCode::resource_exhausted, "reserve addresses",
                    "no range of " + std::to_string(bytes) + " bytes that is free on both sides",
                    device.lane.name(), device.lane.worker().peer});
}

RemoteDriverImpl::ThreadState& RemoteDriverImpl::thread_state() const {
  // A thread's current context belongs to it and to this driver; `born_` tells a driver from an earlier one
  // at the same address.
  thread_local std::vector<ThreadState> states;
  for (auto& state : states) {
    if (state.instance == this && state.born == born_) return state;
  }
  std::erase_if(states, [this](const auto& state) { return state.instance == this; });
  return states.emplace_back(ThreadState{this, born_});
}

std::string RemoteDriverImpl::name() const {
  const Session::Lock lock(session_);
  std::string text = "remote (";
  for (const auto& device : devices_) text += (device == devices_.front() ? "" : ", ") + device->lane.name();
  return text + ")";
}

std::string RemoteDriverImpl::last_error_detail() const { return thread_state().detail; }

cuda::Status RemoteDriverImpl::explain(cuda::Status status, std::string detail) const {
  thread_state().detail = std::move(detail);
  return status;
}

cuda::Status RemoteDriverImpl::report(const RemoteDevice& device, cuda::Status status,
                                      const std::string& detail) const {
  if (device.lane.lost()) {
    return explain(cuda::Status::launch_failed,
                   device.lane.name() + ": worker lost: " + device.lane.loss().message());
  }
  return explain(status, detail.empty() ? device.lane.name() : device.lane.name() + ": " + detail);
}

cuda::Status RemoteDriverImpl::well(RemoteDevice& device, std::uint32_t context) {
  if (device.lane.lost()) return report(device, cuda::Status::launch_failed, "");
  const auto& fault = device.lane.fault(context);
  return fault.sticky ? report(device, fault.status, fault.detail) : cuda::Status::success;
}

cuda::Status RemoteDriverImpl::settled(RemoteDevice& device, std::uint32_t context, cuda::Status status,
                                       const std::string& detail) {
  if (device.lane.lost()) return report(device, cuda::Status::launch_failed, "");
  auto& fault = device.lane.fault(context);
  if (fault.status == cuda::Status::success) {
    return status == cuda::Status::success ? status : report(device, status, detail);
  }
  const auto known = fault;
  if (!known.sticky) fault = {};
  return report(device, known.status, known.detail);
}

cuda::Status RemoteDriverImpl::synchronized(const Target& target, Reply& reply, cuda::Status status) {
  return settled(*target.device, target.context, status, reply.detail);
}

RemoteStats RemoteDriverImpl::remote_stats() const {
  const Session::Lock lock(session_);
  RemoteStats stats;
  for (const auto& device : devices_) {
    const auto& counters = device->lane.counters();
    stats.launches += counters.launches;
    stats.commands += counters.commands;
    stats.batches += counters.batches;
    stats.bytes_received += counters.bytes_in;
  }
  for (const auto& worker : session_.workers()) {
    const auto moved = worker->link.endpoint->stats();
    stats.bytes_sent += moved.bytes_put + moved.bytes_sent;
    stats.bytes_received += moved.received_bytes;
    stats.signs_of_life += worker->signs_of_life;
    stats.transports.emplace_back(worker->link.endpoint->transport_name());
  }
  return stats;
}

Result<void> RemoteDriverImpl::flush() {
  const Session::Lock lock(session_);
  std::optional<Error> lost;
  for (auto& device : devices_) {
    if (!device->lane.flush() && !lost) lost = Error(device->lane.loss()).on(device->lane.name());
  }
  session_.run_host_calls();
  if (lost) return fail(std::move(*lost));
  return {};
}

std::optional<Error> RemoteDriverImpl::failure() {
  const Session::Lock lock(session_);
  session_.progress();
  session_.run_host_calls();
  Lane* first = nullptr;
  for (const auto& device : devices_) {
    if (device->lane.lost() && (first == nullptr || device->lane.lost_before(*first))) first = &device->lane;
  }
  if (first == nullptr) return std::nullopt;
  Error error = first->loss();
  error.device = first->name();
  if (error.peer.empty()) error.peer = first->worker().peer;
  return error;
}

}  // namespace cenote::pool::remote
