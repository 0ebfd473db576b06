#include "transports/verbs/verbs_endpoint.h"

#include <algorithm>
#include <cstring>

namespace cenote::transport::verbs {
namespace {

constexpr std::size_t most_keys = 4096;

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

/// Whether another rail may succeed where this one failed. A card that has lost packets may take what follows
/// for an invalid request (Soft-RoCE, its port going down): what is posted here is never one.
bool is_of_the_rail(ibv_wc_status status) {
  return status != IBV_WC_REM_ACCESS_ERR && status != IBV_WC_LOC_PROT_ERR && status != IBV_WC_LOC_LEN_ERR;
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
  made->core_->settled = false;
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
  if (failure_) return;
  if (auto lives = side_->look_at_process(); !lives) return break_with(std::move(lives).error(), false);
  if (stage_ == Stage::ready) {
    if (unwell_) revive_lanes();
    return;
  }
  if (!deadline_.passed()) return;
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
  if ((key.region & staged_mark) != 0) [[unlikely]] {
    request.staged_there = true;
    request.staged_key = key;
    request.remote = slice.offset;
    return done();
  }
  request.remote = key.base + slice.offset;
  request.key = key_index(key);
  return done();
}

// A piece may have to be posted anew, over a rail with another key: keys are kept, each once.
std::uint32_t VerbsEndpoint::key_index(const VerbsKey& key) {
  if (latest_ == key) [[likely]]
    return latest_key_;
  if (keys_.size() >= most_keys && operations_ == 0) {
    keys_.clear();
    key_of_region_.clear();
  }
  latest_ = key;
  const auto found = key_of_region_.find(key.region);
  if (found != key_of_region_.end() && keys_[found->second] == key) return latest_key_ = found->second;
  latest_key_ = static_cast<std::uint32_t>(keys_.size());
  keys_.push_back(key);
  key_of_region_[key.region] = latest_key_;
  return latest_key_;
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
  if (request.staged_there)
    return fail(Error{ErrorCode::not_supported, "atomic add",
                      "the peer's GPU memory is reached through staging, which knows no atomics"}
                    .with(peer_name_));
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

void VerbsEndpoint::submit(Request& request) {
  core_->settled = false;
  if (core_->device_regions != 0) [[unlikely]]
    note_memory(request);
  if (stage_ == Stage::ready && waiting_.empty()) {
    auto posted = issue(request);
    if (posted && *posted) [[likely]]
      return;
    // What cannot be posted any more is told by flush(): not in the midst of the caller's call.
  }
  waiting_.push(request);
  open_ = nullptr;
  core_->happened = true;
}

bool VerbsEndpoint::flush(bool last) {
  if (is_calm()) [[likely]] {
    poke_rails(last);
    return false;
  }
  if (failure_) return false;
  bool any = false;
  if (side_) {
    if (auto sent = side_->flush(); sent) any = *sent;
  }
  if (stage_ != Stage::ready) return any;
  if (parking_ != Parking::none) [[unlikely]] {
    if (parking_ != Parking::parked || waiting_.empty()) return any;
    wake(!side_->dials());
    return true;
  }
  any = replay() || any;
  if (staging_) [[unlikely]] {
    auto served = serve_staged();
    if (!served) {
      break_with(std::move(served).error());
      return true;
    }
    any = *served || any;
  }
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
  if (open_ == nullptr) open_ = open_lane();
  poke_rails(last);
  return any;
}

bool VerbsEndpoint::is_settled() const {
  return is_calm() && std::none_of(lanes_.begin(), lanes_.end(),
                                   [](const Lane& lane) { return lane.alive() && lane.rail->needs_poke(); });
}

void VerbsEndpoint::poke_rails(bool last) {
  for (Lane& lane : lanes_) {
    if (!lane.alive() || !lane.rail->needs_poke() || (lane.rail->is_busy() && !last)) continue;
    if (auto poked = lane.rail->poke(); !poked)
      lane_failed(lane, lane.rail->text() + ": " + poked.error().message());
  }
}

inline void VerbsEndpoint::finish_get(Rail& rail) {
  const Piece& piece = rail.oldest();
  stats_.bytes_got += piece.length;
  borrowed_ -= piece.borrows ? 1 : 0;
  --operations_;
  finish(piece.tag);
  rail.finish(1);
}

void VerbsEndpoint::sent_until(Rail& rail, std::uint32_t number, ibv_wc_status status) {
  Lane& lane = lanes_[rail.lane];
  // What follows the first that failed is flushed: it says nothing of those before it any more.
  if (lane.state == Lane::State::failing) return;
  // Those before it were done, whatever became of it.
  const std::uint32_t end = status == IBV_WC_SUCCESS ? number : number - 1;
  bool probed = false;
  while (rail.finished() != end && !rail.idle()) {
    if (lane.alone && rail.oldest().plain) [[likely]] {
      finish_plain(rail, end - rail.finished());
      continue;
    }
    if (lane.alone && rail.oldest().is_whole_get()) {
      finish_get(rail);
      continue;
    }
    if (lane.alone && rail.oldest().is_message()) {
      core_->blocks.give(rail.oldest().block);
      rail.finish(1);
      continue;
    }
    const Piece piece = rail.take_oldest();
    lane.finished(piece);
    probed = probed || piece.purpose == Purpose::probe;
    finish_piece(piece);
  }
  if (!is_calm() || rail.needs_poke()) core_->happened = true;
  if (lane.state == Lane::State::proving || lane.state == Lane::State::reviving) {
    if (probed || status != IBV_WC_SUCCESS) probe_done(lane, status);
  } else if (status != IBV_WC_SUCCESS) {
    post_failed(rail, status);
  }
}

void VerbsEndpoint::post_failed(Rail& rail, ibv_wc_status status) {
  Lane& lane = lanes_[rail.lane];
  if (failure_ || !lane.alive()) return;
  const Error error = error_of(status, rail);
  (void)read();  // the peer may have said why it went
  if (failure_) return;
  if (ending_) return break_with(Error(*ending_), false);
  if (is_of_the_rail(status)) return lane_failed(lane, rail.text() + ": " + explain(status));
  break_with(error);
}

bool VerbsEndpoint::drained() const {
  if (failure_) return true;
  const bool settled = recovering_ == 0 || parking_ == Parking::agreed;  // what is parked has left
  return waiting_.empty() && replay_.empty() && settled && !(staging_ && staging_->answers()) &&
         std::all_of(lanes_.begin(), lanes_.end(),
                     [](const Lane& lane) { return !lane.alive() || lane.rail->idle(); });
}

void VerbsEndpoint::say_farewell(std::string_view reason, std::uint64_t events) {
  if (!side_ || !side_->ready()) return;
  Writer note;
  note.put(events).raw(as_bytes(reason.substr(0, max_reason)));
  say(Note::farewell, note);
  (void)side_->flush();
}

// A queue pair that is destroyed takes along what the peer's card has not acknowledged. Where that is copies
// of ours, it may still go; where it lies in the caller's memory, which is his again now, it must not.
void VerbsEndpoint::close(std::string_view reason) {
  if (failure_) return;
  (void)flush();
  if (failure_) return;
  if (stage_ == Stage::ready && waiting_.empty() && replay_.empty() && recovering_ == 0 && borrowed_ == 0 &&
      !drained()) {
    say_farewell(reason, events_sent_);
    Parting parting;
    parting.serial = serial_;
    for (Lane& lane : lanes_) {
      if (!lane.alive()) continue;
      lane.rail->each_under_way([this](Piece& piece) {
        if (piece.purpose <= Purpose::atomic && piece.operation == no_operation) finish_failed(piece.tag);
        piece.purpose = Purpose::quiet;
      });
      lane.rail->disown();
      parting.rails.push_back(std::move(lane.rail));
    }
    parting.side = std::move(side_);
    core_->part(std::move(parting));
  } else {
    say_farewell(reason, 0);
  }
  break_with(Error{ErrorCode::cancelled, "use endpoint", "closed by this side: " + std::string(reason)},
             false);
}

void VerbsEndpoint::drop_rails() {
  for (Lane& lane : lanes_) {
    for (const Piece& piece : lane.orphans) give_up(piece);
    for (const Piece& piece : lane.refused) give_up(piece);
    if (!lane.rail) continue;
    while (!lane.rail->idle()) give_up(lane.rail->take_oldest());
    core_->forget(*lane.rail);
  }
  lanes_.clear();
  open_ = nullptr;
}

void VerbsEndpoint::break_with(Error error, bool tell_peer) {
  if (failure_) return;
  if (error.peer.empty()) error.peer = peer_name_;
  if (error.device.empty()) error.device = "verbs";
  if (tell_peer) say_farewell("its endpoint failed: " + error.stage + ": " + error.cause, 0);
  core_->log_debug("endpoint failed: " + error.message());
  if (!held_.empty()) tell_last();
  if (staging_) drop_staged();
  failure_ = std::make_unique<const Error>(std::move(error));
  drop_rails();
  for (const Piece& piece : replay_) give_up(piece);
  replay_.clear();
  while (!waiting_.empty()) {
    const Request request = waiting_.pop();
    if (request.block != Blocks::none) core_->blocks.give(request.block);
    if (request.kind <= Kind::atomic && request.operation == no_operation) finish_failed(request.tag);
  }
  for (std::uint32_t i = 0; i < cut_.size(); ++i) {
    if (cut_[i].used) finish_operation(i, true);
  }
  operations_ = borrowed_ = recovering_ = 0;
  if (side_) side_->hang_up();
  core_->happened = true;
}

}  // namespace cenote::transport::verbs
