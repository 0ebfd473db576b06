#include "transports/verbs/verbs_endpoint.h"

#include <algorithm>
#include <cstring>

namespace cenote::transport::verbs {
namespace {

constexpr std::size_t reserved_blocks = 32;  // messages that wait leave as many to what is in front of them

Error error_of(ibv_wc_status status, const Rail& rail) {
  Error error{ErrorCode::system_error, "move bytes", explain(status)};
  if (status == IBV_WC_REM_ACCESS_ERR) error.code = ErrorCode::permission_denied;
  if (status == IBV_WC_RETRY_EXC_ERR) {
    error.code = ErrorCode::peer_failed;
    error.remedy = "look at the port's state and counters on both hosts: rdma link, rdma statistic";
  }
  error.device = rail.text();
  error.native = static_cast<int>(status);
  return error;
}

}  // namespace

VerbsEndpoint::VerbsEndpoint(std::shared_ptr<VerbsCore> core, VerbsAddress peer, std::string name,
                             std::uint32_t channel, Deadline deadline)
    : EndpointBase(std::move(name)),
      core_(std::move(core)),
      peer_(std::move(peer)),
      channel_(channel),
      deadline_(deadline) {}

Result<std::unique_ptr<VerbsEndpoint>> VerbsEndpoint::connect(std::shared_ptr<VerbsCore> core,
                                                              VerbsAddress peer, std::string peer_name,
                                                              std::uint32_t channel, Deadline deadline) {
  std::unique_ptr<VerbsEndpoint> made(
      new VerbsEndpoint(std::move(core), std::move(peer), std::move(peer_name), channel, deadline));
  made->core_->add(made.get());
  made->side_ = std::make_unique<SideChannel>(
      SideChannel::Parties{made->core_->self.header, made->peer_.header, channel});
  if (made->side_->dials()) {
    auto dialed = made->side_->dial(made->peer_.side);
    if (!dialed) return fail(std::move(dialed).error().with(made->peer_name_));
    made->serial_ = made->core_->reception.new_serial();
    CENOTE_TRY(made->core_->watch(made->side_->fd(), made->serial_));
  } else {
    SideGuest guest;
    std::uint64_t serial = 0;
    if (made->core_->take_guest(made->peer_.header.id, channel, serial, guest))
      made->adopt(serial, std::move(guest));
  }
  return made;
}

VerbsEndpoint::~VerbsEndpoint() {
  VerbsEndpoint::close("its endpoint was destroyed");
  core_->remove(this);
}

void VerbsEndpoint::adopt(std::uint64_t serial, SideGuest guest) {
  serial_ = serial;
  if (auto adopted = side_->adopt(std::move(guest.fd), guest); !adopted)
    return break_with(std::move(adopted).error(), false);
  say_ports();
  core_->happened = true;
}

void VerbsEndpoint::tick() {
  if (failure_ || stage_ == Stage::ready || !deadline_.passed()) return;
  const char* cause = "the peer has not answered";
  if (stage_ == Stage::meeting && side_->waiting()) cause = "the peer has not dialed";
  if (stage_ == Stage::proving) cause = "no write over the rails was acknowledged";
  break_with(Error{ErrorCode::deadline_exceeded, "connect over verbs", cause}, false);
}

Result<void> VerbsEndpoint::check(const RemoteSlice& slice, std::uint64_t length, const char* stage,
                                  Request& request) {
  if (length == 0) return done();
  VerbsKey key;
  std::memcpy(&key, slice.key->bytes.data(), sizeof key);
  if (slice.key->size != sizeof key || key.owner != peer_.header.id) [[unlikely]] {
    break_with(Error{ErrorCode::permission_denied, stage, "the key is not one of this peer's regions"});
    return failed();
  }
  if (slice.offset > key.size || length > key.size - slice.offset) [[unlikely]] {
    break_with(Error{ErrorCode::invalid_argument, stage,
                     "offset " + std::to_string(slice.offset) + " and length " + std::to_string(length) +
                         " do not fit a region of " + std::to_string(key.size) + " bytes"});
    return failed();
  }
  request.remote = key.base + slice.offset;
  request.rkeys = key.rkeys;
  return done();
}

Result<void> VerbsEndpoint::put(std::span<const std::byte> src, RemoteSlice dst, std::uint32_t signal,
                                std::uint64_t tag) {
  if (failure_) [[unlikely]]
    return failed();
  if (full()) [[unlikely]]
    return queue_full("put");
  if (signal >= signal_slots && signal != no_signal) [[unlikely]]
    return fail(ErrorCode::invalid_argument, "put", "no signal slot " + std::to_string(signal));
  Request request;
  CENOTE_TRY(check(dst, src.size(), "put", request));
  request.signal = signal;
  request.from = src.data();
  request.size = src.size();
  request.tag = tag;
  ++stats_.puts;
  stats_.bytes_put += src.size();
  ++operations_;
  submit(request);
  return done();
}

Result<void> VerbsEndpoint::get(std::span<std::byte> dst, RemoteSlice src, std::uint64_t tag) {
  if (failure_) return failed();
  if (full()) return queue_full("get");
  if (dst.empty()) {
    finish(tag);
    core_->happened = true;
    return {};
  }
  Request request;
  CENOTE_TRY(check(src, dst.size(), "get", request));
  request.kind = Kind::get;
  request.to = dst.data();
  request.size = dst.size();
  request.tag = tag;
  ++stats_.gets;
  ++operations_;
  submit(request);
  return {};
}

Result<void> VerbsEndpoint::atomic_add(RemoteSlice dst, std::uint64_t value, std::uint64_t* old,
                                       std::uint64_t tag) {
  if (failure_) return failed();
  if (full()) return queue_full("atomic add");
  Request request;
  CENOTE_TRY(check(dst, sizeof value, "atomic add", request));
  if (dst.offset % sizeof value != 0) {
    break_with(Error{ErrorCode::invalid_argument, "atomic add",
                     "offset " + std::to_string(dst.offset) + " is not a multiple of 8"});
    return failed();
  }
  request.kind = Kind::atomic;
  request.size = sizeof value;
  request.value = value;
  request.old = old;
  request.tag = tag;
  ++stats_.atomics;
  ++operations_;
  submit(request);
  return {};
}

Result<void> VerbsEndpoint::send(std::span<const std::byte> message) {
  if (failure_) [[unlikely]]
    return failed();
  if (message.size() > max_message)
    return fail(ErrorCode::invalid_argument, "send",
                std::to_string(message.size()) + " bytes are more than one message takes");
  const std::size_t charge = message.size() + message_charge;
  if (window_used_ + charge > message_window || core_->blocks.left() <= reserved_blocks)
    return queue_full("send");
  Request request;
  request.kind = Kind::message;
  request.block = core_->blocks.take();
  request.size = message.size();
  if (!message.empty())
    std::memcpy(core_->blocks.at(request.block) + sizeof(MessageHead), message.data(), message.size());
  window_used_ += charge;
  ++stats_.sends;
  stats_.bytes_sent += message.size();
  submit(request);
  return done();
}

void VerbsEndpoint::submit(Request& request) {
  if (stage_ == Stage::ready && waiting_.empty()) {
    auto posted = issue(request);
    if (posted && *posted) [[likely]]
      return;
    // What cannot be posted any more is told by flush(): not in the midst of the caller's call.
  }
  waiting_.push(request);
  core_->happened = true;
}

Result<bool> VerbsEndpoint::issue(Request& request) {
  switch (request.kind) {
    case Kind::put:
      return issue_put(request);
    case Kind::get:
      return issue_get(request);
    case Kind::atomic:
      return issue_atomic(request);
    default:
      return issue_message(request);
  }
}

std::uint32_t VerbsEndpoint::next_immediate(std::uint32_t slot) {
  return (slot << sequence_bits) | (++events_sent_ & sequence_mask);
}

/// Registers memory that lies in no region, for as long as the operation lasts.
Result<bool> VerbsEndpoint::lend(Request& request, unsigned access) {
  if (request.loan != 0) return true;
  auto* memory = request.to != nullptr ? request.to : const_cast<std::byte*>(request.from);
  CENOTE_ASSIGN(auto registered, core_->registrations->make(memory, request.size, access));
  request.loan = next_loan_++;
  loans_.emplace(request.loan, std::move(registered));
  return true;
}

Result<bool> VerbsEndpoint::issue_put(Request& request) {
  Rail& rail = lead();
  const std::size_t nic = rail.nic_index();
  do {
    if (!rail.has_room()) return false;
    const std::size_t left = request.size - request.posted;
    Work work;
    Sent sent;
    work.length = static_cast<std::uint32_t>(std::min<std::size_t>(left, rail.nic().max_chunk));
    work.local = request.from + request.posted;
    if (work.length <= rail.max_inline()) {
      work.inlined = true;
    } else if (const Registered* region = core_->registrations->find(work.local, work.length)) {
      work.lkey = region->regions[nic]->lkey;
      sent.borrows = true;
    } else if (request.size <= Blocks::size) {
      sent.block = core_->blocks.take();
      if (sent.block == Blocks::none) return false;
      std::memcpy(core_->blocks.at(sent.block), work.local, work.length);
      work.local = core_->blocks.at(sent.block);
      work.lkey = core_->blocks.lkey(nic);
    } else {
      CENOTE_TRY(lend(request, 0));
      work.lkey = loans_[request.loan]->regions[nic]->lkey;
      sent.borrows = true;
      sent.loan = request.loan;
    }
    work.remote = request.remote + request.posted;
    work.rkey = request.rkeys[lanes_.front().theirs];
    sent.purpose = Purpose::put;
    sent.last = work.length == left;
    sent.tag = request.tag;
    if (sent.last && request.signal != no_signal) {
      work.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      work.immediate = next_immediate(request.signal);
      sent.event = true;
    }
    if (sent.borrows) ++borrowed_;
    CENOTE_TRY(rail.post(work, sent));
    request.posted += work.length;
  } while (request.posted < request.size);
  return true;
}

Result<bool> VerbsEndpoint::issue_get(Request& request) {
  Rail& rail = lead();
  const std::size_t nic = rail.nic_index();
  while (request.posted < request.size) {
    if (!rail.has_room()) return false;
    const std::size_t left = request.size - request.posted;
    Work work;
    Sent sent;
    work.opcode = IBV_WR_RDMA_READ;
    work.length = static_cast<std::uint32_t>(std::min<std::size_t>(left, rail.nic().max_chunk));
    work.local = request.to + request.posted;
    if (const Registered* region = core_->registrations->find(work.local, work.length)) {
      work.lkey = region->regions[nic]->lkey;
      sent.borrows = true;
    } else if (request.size <= Blocks::size) {
      sent.block = core_->blocks.take();
      if (sent.block == Blocks::none) return false;
      sent.to = request.to;
      work.local = core_->blocks.at(sent.block);
      work.lkey = core_->blocks.lkey(nic);
    } else {
      CENOTE_TRY(lend(request, IBV_ACCESS_LOCAL_WRITE));
      work.lkey = loans_[request.loan]->regions[nic]->lkey;
      sent.borrows = true;
      sent.loan = request.loan;
    }
    work.remote = request.remote + request.posted;
    work.rkey = request.rkeys[lanes_.front().theirs];
    sent.purpose = Purpose::get;
    sent.length = work.length;
    sent.last = work.length == left;
    sent.tag = request.tag;
    if (sent.borrows) ++borrowed_;
    CENOTE_TRY(rail.post(work, sent));
    request.posted += work.length;
  }
  return true;
}

Result<bool> VerbsEndpoint::issue_atomic(Request& request) {
  Rail& rail = lead();
  if (!rail.nic().port.atomics || !their_ports_[lanes_.front().theirs].atomics)
    return fail(
        Error{ErrorCode::not_supported, "atomic add", "a card on the way has no atomics"}.on(rail.text()));
  Sent sent;
  if (!rail.has_room() || (sent.block = core_->blocks.take()) == Blocks::none) return false;
  Work work;
  work.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
  work.local = core_->blocks.at(sent.block);
  work.lkey = core_->blocks.lkey(rail.nic_index());
  work.length = sizeof request.value;
  work.remote = request.remote;
  work.rkey = request.rkeys[lanes_.front().theirs];
  work.add = request.value;
  sent.purpose = Purpose::atomic;
  sent.to = request.old;
  sent.tag = request.tag;
  CENOTE_TRY(rail.post(work, sent));
  return true;
}

Result<bool> VerbsEndpoint::issue_message(Request& request) {
  Rail& rail = lead();
  if (!rail.has_room()) return false;
  if (request.block == Blocks::none && (request.block = core_->blocks.take()) == Blocks::none) return false;
  std::byte* const bytes = core_->blocks.at(request.block);
  MessageHead head;
  head.sequence = ++events_sent_;
  head.type =
      static_cast<std::uint8_t>(request.kind == Kind::message ? MessageType::message : MessageType::credit);
  head.value = request.value;
  std::memcpy(bytes, &head, sizeof head);
  Work work;
  work.opcode = IBV_WR_SEND;
  work.local = bytes;
  work.lkey = core_->blocks.lkey(rail.nic_index());
  work.length = static_cast<std::uint32_t>(sizeof head + request.size);
  work.inlined = work.length <= rail.max_inline();
  Sent sent;
  sent.purpose = Purpose::message;
  sent.event = true;
  if (!work.inlined) sent.block = request.block;
  CENOTE_TRY(rail.post(work, sent));
  if (work.inlined) core_->blocks.give(request.block);
  return true;
}

bool VerbsEndpoint::flush() {
  if (failure_) return false;
  bool any = false;
  if (side_) {
    if (auto sent = side_->flush(); sent) any = *sent;
  }
  if (stage_ != Stage::ready) return any;
  while (!waiting_.empty()) {
    auto posted = issue(waiting_.front());
    if (!posted) {
      break_with(std::move(posted).error());
      return true;
    }
    if (!*posted) break;
    (void)waiting_.pop();
    any = true;
  }
  for (Lane& lane : lanes_) {
    if (auto poked = lane.rail->poke(); !poked) {
      break_with(std::move(poked).error());
      return true;
    }
  }
  return any;
}

void VerbsEndpoint::sent_until(Rail& rail, std::uint32_t number, ibv_wc_status status) {
  if (rail.idle() && status != IBV_WC_SUCCESS) return;
  // Those before it were done, whatever became of it.
  const std::uint32_t end = status == IBV_WC_SUCCESS ? number : number - 1;
  bool probed = false;
  while (rail.finished() != end && !rail.idle()) {
    const Sent sent = rail.take_oldest();
    probed = probed || sent.purpose == Purpose::probe;
    finish_sent(sent);
  }
  core_->happened = true;
  if (stage_ != Stage::ready && (probed || status != IBV_WC_SUCCESS)) return probe_done(rail, status);
  if (status == IBV_WC_SUCCESS || failure_) return;
  Error error = error_of(status, rail);
  (void)read();  // the peer may have said why it went
  if (failure_) return;
  break_with(ending_ ? Error(*ending_) : std::move(error), !ending_);
}

void VerbsEndpoint::finish_sent(const Sent& sent) {
  if (sent.event) ++events_acknowledged_;
  if (sent.borrows) --borrowed_;
  if (sent.block != Blocks::none) {
    const std::byte* bytes = core_->blocks.at(sent.block);
    if (sent.purpose == Purpose::get) std::memcpy(sent.to, bytes, sent.length);
    if (sent.purpose == Purpose::atomic && sent.to != nullptr)
      std::memcpy(sent.to, bytes, sizeof(std::uint64_t));
    core_->blocks.give(sent.block);
  }
  if (sent.purpose == Purpose::get) stats_.bytes_got += sent.length;
  if (sent.purpose > Purpose::atomic || !sent.last) return;
  if (sent.loan != 0) loans_.erase(sent.loan);
  --operations_;
  finish(sent.tag);
}

void VerbsEndpoint::give_up(const Sent& sent) {
  if (sent.purpose <= Purpose::atomic && sent.last) finish_failed(sent.tag);
}

bool VerbsEndpoint::drained() const {
  if (failure_) return true;
  return waiting_.empty() &&
         std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.rail->idle(); });
}

bool VerbsEndpoint::uses(const Nic& nic) const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [&nic](const Lane& lane) { return lane.rail && &lane.rail->nic() == &nic; });
}

void VerbsEndpoint::say_farewell(std::string_view reason, std::uint32_t events) {
  if (!side_ || !side_->ready()) return;
  Writer note;
  note.put(events).raw(as_bytes(reason.substr(0, max_reason)));
  side_->post(static_cast<std::uint8_t>(Note::farewell), note.bytes());
  (void)side_->flush();
}

// A queue pair that is destroyed takes along what the peer's card has not acknowledged. Where that is copies
// of ours, it may still go; where it lies in the caller's memory, which is his again now, it must not.
void VerbsEndpoint::close(std::string_view reason) {
  if (failure_) return;
  (void)flush();
  if (failure_) return;
  if (stage_ == Stage::ready && waiting_.empty() && borrowed_ == 0 && !drained()) {
    say_farewell(reason, events_sent_);
    Parting parting;
    parting.serial = serial_;
    for (Lane& lane : lanes_) {
      lane.rail->each_under_way([this](Sent& sent) {
        give_up(sent);
        sent.purpose = Purpose::quiet;
      });
      lane.rail->disown();
      parting.rails.push_back(std::move(lane.rail));
    }
    lanes_.clear();
    parting.side = std::move(side_);
    core_->part(std::move(parting));
  } else {
    say_farewell(reason, events_acknowledged_);
  }
  break_with(Error{ErrorCode::cancelled, "use endpoint", "closed by this side: " + std::string(reason)},
             false);
}

void VerbsEndpoint::drop_rails() {
  for (Lane& lane : lanes_) {
    if (!lane.rail) continue;
    while (!lane.rail->idle()) {
      const Sent sent = lane.rail->take_oldest();
      give_up(sent);
      if (sent.block != Blocks::none) core_->blocks.give(sent.block);
    }
    core_->forget(*lane.rail);
  }
  lanes_.clear();
  loans_.clear();
}

void VerbsEndpoint::break_with(Error error, bool tell_peer) {
  if (failure_) return;
  if (error.peer.empty()) error.peer = peer_name_;
  if (error.device.empty()) error.device = "verbs";
  if (tell_peer)
    say_farewell("its endpoint failed: " + error.stage + ": " + error.cause, events_acknowledged_);
  core_->log_debug("endpoint failed: " + error.message());
  failure_ = std::make_unique<const Error>(std::move(error));
  drop_rails();
  while (!waiting_.empty()) {
    const Request request = waiting_.pop();
    if (request.block != Blocks::none) core_->blocks.give(request.block);
    if (request.kind <= Kind::atomic) finish_failed(request.tag);
  }
  operations_ = 0;
  borrowed_ = 0;
  if (side_) side_->hang_up();
  core_->happened = true;
}

}  // namespace cenote::transport::verbs
