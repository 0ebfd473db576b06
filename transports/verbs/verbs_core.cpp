#include "transports/verbs/verbs_core.h"

#include <algorithm>
#include <array>
#include <cerrno>

#include "transports/verbs/placement.h"
#include "transports/verbs/verbs_endpoint.h"

namespace cenote::transport::verbs {
namespace {

constexpr std::size_t completions_at_once = 32;
constexpr int turns_at_once =
    16;  // of polling one card; then the other endpoints and sockets have their turn
constexpr std::uint32_t idle_polls_at_least = 16;  // before there is time for anything else
constexpr std::uint32_t block_count = 512;
constexpr auto parting_time = std::chrono::seconds(5);
constexpr std::uint32_t index_bits = 16;

/// Whether all that `earlier` says follows from `later`, the next: both are of one rail, which keeps the
/// order.
bool tells_of(const ibv_wc& later, const ibv_wc& earlier) {
  return (later.wr_id >> 32) == (earlier.wr_id >> 32) && earlier.status == IBV_WC_SUCCESS;
}

}  // namespace

Result<VerbsAddress> VerbsAddress::parse(std::span<const std::byte> bytes) {
  Reader in(bytes);
  VerbsAddress out;
  CENOTE_ASSIGN(out.header, AddressHeader::unpack(in, "verbs"));
  out.side.host = in.text();
  out.side.port = in.get<std::uint16_t>();
  out.infiniband = in.get<std::uint8_t>();
  out.ethernet = in.get<std::uint8_t>();
  if (!in.finished())
    return fail(ErrorCode::invalid_argument, "read peer address", "not a whole verbs address");
  return out;
}

Bytes VerbsAddress::bytes() const {
  Writer out;
  header.pack(out);
  out.text(side.host).put(side.port).put(infiniband).put(ethernet);
  return out.take();
}

Result<std::shared_ptr<VerbsCore>> VerbsCore::create(const VerbsOptions& options) {
  std::shared_ptr<VerbsCore> core(new VerbsCore);
  CENOTE_TRY(core->open(options));
  return core;
}

VerbsCore::~VerbsCore() { partings_.clear(); }

Result<void> VerbsCore::open(const VerbsOptions& wanted) {
  options = wanted;
  log = wanted.log;
  if (options.api == nullptr) {
    CENOTE_ASSIGN(api_, load_verbs_api());
    options.api = api_.get();
  }
  CENOTE_ASSIGN(nics, open_nics(*options.api, options));
  registrations = std::make_unique<Registrations>(nics);
  CENOTE_TRY(blocks.open(*registrations, block_count));
  CENOTE_ASSIGN(probe_memory, registrations->make(&probe_word, sizeof probe_word,
                                                  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
  CENOTE_ASSIGN(self.header, AddressHeader::make("verbs"));
  for (const auto& nic : nics) {
    ports_.push_back(nic->port);
    ++(nic->port.link_layer == LinkLayer::ethernet ? self.ethernet : self.infiniband);
  }
  CENOTE_ASSIGN(home_, place_ports(ports_, options));
  self.side.host = options.host;
  CENOTE_ASSIGN(UniqueFd listener, listen_on(options.host, self.side.port));
  address = self.bytes();
  CENOTE_TRY(reception.open(std::move(listener), "listen for peers on " + options.host));
  for (const auto& nic : nics) {
    nic_serials_.push_back(reception.new_serial());
    async_serials_.push_back(reception.new_serial());
    CENOTE_TRY(watch(nic->channel->fd, nic_serials_.back()));
    CENOTE_TRY(watch(nic->context->async_fd, async_serials_.back()));
  }
  return {};
}

Result<void> VerbsCore::reachable(const VerbsAddress& peer) const {
  CENOTE_TRY(can_meet(self.header.host, self.side, peer.header.host, peer.side, "verbs"));
  if ((self.ethernet != 0 && peer.ethernet != 0) || (self.infiniband != 0 && peer.infiniband != 0)) return {};
  return fail(ErrorCode::not_supported, "reach peer over verbs",
              self.ethernet != 0 ? "this side has RoCE ports only, the peer InfiniBand ports only"
                                 : "this side has InfiniBand ports only, the peer RoCE ports only");
}

Result<std::uint32_t> VerbsCore::take_rail_id() {
  if (free_ids_.empty()) {
    if (rails_.size() >> index_bits != 0)
      return fail(ErrorCode::resource_exhausted, "make a queue pair", "there are 65,536 already");
    free_ids_.push_back(static_cast<std::uint32_t>(rails_.size()));
    rails_.push_back(nullptr);
  }
  const std::uint32_t id = free_ids_.back();
  free_ids_.pop_back();
  return id;
}

Result<std::unique_ptr<Rail>> VerbsCore::make_rail(VerbsEndpoint& owner, std::size_t nic) {
  CENOTE_ASSIGN(const std::uint32_t id, take_rail_id());
  auto rail = Rail::create(owner, *nics[nic], nic, id, options);
  if (rail) {
    rails_[id & ((1U << index_bits) - 1)] = rail->get();
  } else {
    give_rail_id(id);
  }
  return rail;
}

// The upper half of an id counts how often its place was used, so that what an old queue pair left in the
// completion queue finds nobody.
void VerbsCore::give_rail_id(std::uint32_t id) {
  free_ids_.push_back((id + (1U << index_bits)) & ~(1U << 31));
}

void VerbsCore::forget(const Rail& rail) {
  rails_[rail.id() & ((1U << index_bits) - 1)] = nullptr;
  give_rail_id(rail.id());
}

Rail* VerbsCore::rail_of(std::uint64_t work) {
  const auto id = static_cast<std::uint32_t>(work >> 32);
  Rail* rail = rails_[id & ((1U << index_bits) - 1)];
  return rail != nullptr && rail->id() == id ? rail : nullptr;
}

bool VerbsCore::poll(bool& dry) {
  bool any = false;
  dry = true;
  for (const auto& nic : nics) any = poll(*nic, dry) || any;
  return any;
}

bool VerbsCore::poll(Nic& nic, bool& dry) {
  std::array<ibv_wc, completions_at_once> completions;
  bool any = false;
  for (int turn = 0; turn < turns_at_once; ++turn) {
    const int count = nic.api.poll_cq(nic.cq.get(), completions_at_once, completions.data());
    if (count <= 0) {
      if (count < 0) fail_all(nic, "poll of its completion queue failed: " + std::to_string(count));
      if (++nic.idle_polls >= idle_polls_at_least) give_back(nic, 1);
      return any;
    }
    any = true;
    nic.idle_polls = 0;
    for (int i = 0; i < count; ++i) {
      const ibv_wc& completion = completions[static_cast<std::size_t>(i)];
      if ((completion.wr_id & receive_mark) != 0) {
        received(nic, completion);
      } else if (i + 1 == count || !tells_of(completions[static_cast<std::size_t>(i) + 1], completion)) {
        sent(completion);
      }
    }
    give_back(nic, nic.slots_kept());
    if (count < static_cast<int>(completions_at_once)) return any;
  }
  dry = false;
  return any;
}

void VerbsCore::give_back(Nic& nic, std::size_t least) {
  if (nic.free_slots() < least) return;
  if (auto given = nic.give_back(); !given) fail_all(nic, given.error().message());
}

void VerbsCore::sent(const ibv_wc& completion) {
  Rail* rail = rail_of(completion.wr_id);
  if (rail == nullptr) {
    if (auto seen = visibility.returned(completion); !seen) break_waiting(seen.error());
    return;
  }
  const auto number = static_cast<std::uint32_t>(completion.wr_id);
  if (VerbsEndpoint* endpoint = rail->owner(); endpoint != nullptr)
    return endpoint->sent_until(*rail, number, completion.status);
  // Last words. One that failed takes the others with it.
  while (!rail->idle() && (completion.status != IBV_WC_SUCCESS || rail->finished() != number)) {
    if (const Piece gone = rail->take_oldest(); gone.block != Blocks::none) blocks.give(gone.block);
  }
}

void VerbsCore::received(Nic& nic, const ibv_wc& completion) {
  const auto slot = static_cast<std::uint32_t>(completion.wr_id);
  if (completion.status == IBV_WC_SUCCESS) {
    const Rail* const rail = nic.rail_of(completion.qp_num);
    if (rail != nullptr && rail->owner() != nullptr)
      rail->owner()->arrived(*rail, completion, nic.slot(slot));
  }
  nic.free_slot(slot);
}

void VerbsCore::fail_all(const Nic& nic, const std::string& cause) {
  for (VerbsEndpoint* endpoint : endpoints) endpoint->nic_failed(nic, cause);
}

bool VerbsCore::progress() {
  ++round_;
  bool dry = false;
  if (reception.interrupted()) [[unlikely]] {
    reception.forget_interrupt();
    look_soon = happened = true;
  }
  const bool came = poll(dry), due = reception.due();
  const bool any = std::exchange(happened, false);
  if (!any && settled && !due && !gated) [[likely]]
    return came;
  return proceed(any, dry, due) || came;
}

bool VerbsCore::proceed(bool any, bool dry, bool due) {
  if (gated) [[unlikely]]
    any = settle() || any;
  bool ending = false;
  for (VerbsEndpoint* endpoint : endpoints) {
    any = endpoint->flush() || any;
    if (endpoint->is_unsettled()) look_soon = true;
    ending = ending || endpoint->is_ending();
  }
  if (look_soon || ending || due) any = look() || any;
  for (VerbsEndpoint* endpoint : endpoints) {
    if (!endpoint->is_calm()) any = endpoint->retire_rails(dry) || any;
    if (ending) any = endpoint->finish_ending(dry) || any;
  }
  if (!partings_.empty()) any = proceed_partings() || any;
  any = std::exchange(happened, false) || any;
  settled = !any && !ending && !gated && !look_soon && partings_.empty() &&
            std::all_of(endpoints.begin(), endpoints.end(),
                        [](const VerbsEndpoint* endpoint) { return endpoint->is_settled(); });
  return any;
}

Result<std::shared_ptr<Pinned>> VerbsCore::pinned_for(const std::shared_ptr<const DeviceAccess>& device) {
  std::erase_if(pinned_, [](const auto& entry) { return entry.second.expired(); });
  for (const auto& [known, pinned] : pinned_) {
    if (known.lock() == device) return pinned.lock();
  }
  CENOTE_ASSIGN(auto made, Pinned::open(*registrations, device, options.device_patience));
  blocks.add(made);
  pinned_.emplace_back(device, made);
  return made;
}

bool VerbsCore::settle() {
  if (auto begun = visibility.proceed(); !begun) break_waiting(begun.error());
  bool any = false, more = false;
  for (VerbsEndpoint* endpoint : endpoints) {
    any = endpoint->tell_seen() || any;
    more = more || endpoint->holds();
  }
  gated = more || visibility.watches();
  return any;
}

void VerbsCore::break_waiting(const Error& error) {
  for (VerbsEndpoint* endpoint : endpoints) {
    if (endpoint->holds()) endpoint->break_unseen(error);
  }
  visibility.abandon();
}

bool VerbsCore::look() {
  bool any = false;
  (void)look_around([&](std::uint64_t serial) {
    if (VerbsEndpoint* endpoint = endpoint_of(serial)) {
      any = endpoint->read() || any;
      return;
    }
    for (std::size_t i = 0; i < nics.size(); ++i) {
      if (serial == async_serials_[i]) take_async_events(*nics[i]);
      if (serial == nic_serials_[i]) nics[i]->take_wakeups();
    }
    std::erase_if(partings_, [&](Parting& parting) {
      return parting.serial == serial && !proceed_parting(parting, true);
    });
  });
  for (VerbsEndpoint* endpoint : endpoints) endpoint->tick();
  keep_bound();
  return any;
}

void VerbsCore::take_async_events(Nic& nic) {
  ibv_async_event event{};
  while (nic.api.get_async_event(nic.context.get(), &event) == 0) {
    const int type = event.event_type;
    std::uint32_t queue_pair = 0;
    if (type == IBV_EVENT_QP_FATAL || type == IBV_EVENT_QP_REQ_ERR || type == IBV_EVENT_QP_ACCESS_ERR)
      queue_pair = event.element.qp->qp_num;
    nic.api.ack_async_event(&event);
    switch (type) {
      case IBV_EVENT_DEVICE_FATAL:
        fail_all(nic, "the device failed or was removed (DEVICE_FATAL)");
        break;
      case IBV_EVENT_CQ_ERR:
        fail_all(nic, "its completion queue overran (CQ_ERR)");
        break;
      case IBV_EVENT_QP_FATAL:
      case IBV_EVENT_QP_REQ_ERR:
      case IBV_EVENT_QP_ACCESS_ERR:
        for (VerbsEndpoint* endpoint : endpoints)
          endpoint->queue_pair_failed(queue_pair,
                                      type == IBV_EVENT_QP_ACCESS_ERR
                                          ? "it touched memory that no key of this side opens (QP_ACCESS_ERR)"
                                          : "the queue pair failed (event " + std::to_string(type) + ")");
        break;
      case IBV_EVENT_PORT_ERR:
        log_debug(nic.port.name + " is down (PORT_ERR)");
        fail_all(nic, "this side's port went down (PORT_ERR)");
        break;
      case IBV_EVENT_PORT_ACTIVE:
        log_debug(nic.port.name + " is up again (PORT_ACTIVE)");
        for (VerbsEndpoint* endpoint : endpoints) endpoint->nic_is_up(nic);
        break;
      default:
        log_debug(nic.port.name + ": event " + std::to_string(type));
    }
  }
}

bool VerbsCore::arm() {
  for (const auto& nic : nics) {
    if (auto asked = nic->request_wakeup(); !asked) fail_all(*nic, asked.error().message());
  }
  bool dry = true;
  if (poll(dry)) happened = true;
  for (const auto& nic : nics) give_back(*nic, 1);
  for (VerbsEndpoint* endpoint : endpoints) {
    if (endpoint->flush(true) || endpoint->is_ending() || endpoint->copies()) happened = true;
  }
  if (!happened && !reception.interrupted()) return true;
  disarm();
  return false;
}

void VerbsCore::disarm() {
  for (const auto& nic : nics) nic->take_wakeups();
  look_soon = true;
  settled = false;
}

void VerbsCore::part(Parting parting) {
  parting.until = Clock::now() + parting_time;
  partings_.push_back(std::move(parting));
  happened = true;
}

/// False: nothing is left to do.
bool VerbsCore::proceed_parting(Parting& parting, bool hung_up) {
  const bool finished = std::all_of(parting.rails.begin(), parting.rails.end(), [](const auto& rail) {
    (void)rail->poke();
    return rail->idle();
  });
  if (!finished && !hung_up && Clock::now() < parting.until) return true;
  end_parting(parting);
  return false;
}

void VerbsCore::end_parting(Parting& parting) {
  for (const auto& rail : parting.rails) {
    while (!rail->idle()) {
      if (const Piece gone = rail->take_oldest(); gone.block != Blocks::none) blocks.give(gone.block);
    }
    forget(*rail);
  }
  parting.rails.clear();
  parting.side->hang_up();
}

bool VerbsCore::proceed_partings() {
  return std::erase_if(partings_, [this](Parting& parting) { return !proceed_parting(parting, false); }) != 0;
}

void VerbsCore::shut() {
  ListeningCore::shut();
  bool dry = true;
  (void)poll(dry);
  for (Parting& parting : partings_) end_parting(parting);
  partings_.clear();
}

}  // namespace cenote::transport::verbs
