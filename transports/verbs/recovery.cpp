// What happens when a rail dies. Each side takes its end down, after it has taken what had arrived, and tells
// the other how many parts of events came over it: from then on nothing can land late. The rail keeps the
// order, so what was posted before the last part that arrived is done; the rest is posted anew, over the
// first rail that lives, and only then anything new. Writing the same bytes twice is harmless, for nobody was
// told of them yet. An atomic may have been done or not: it ends as "outcome unknown". The side that dialed
// tries to revive the rail, at growing intervals.
#include <algorithm>
#include <utility>

#include "transports/verbs/port_counters.h"
#include "transports/verbs/verbs_endpoint.h"

namespace cenote::transport::verbs {
namespace {

constexpr auto first_pause = std::chrono::seconds(1), longest_pause = std::chrono::seconds(10);

tl::unexpected<Error> nonsense(const char* what) {
  return fail(ErrorCode::protocol_error, "recover a rail", what);
}

std::string milliseconds_since(Clock::time_point when) {
  if (when == Clock::time_point{}) return "no large transfer was acknowledged over it";
  const auto span = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - when);
  return "last good " + std::to_string(span.count()) + " ms ago";
}

}  // namespace

void VerbsEndpoint::lane_failed(Lane& lane, std::string why) {
  if (!lane.alive()) return;
  lane.state = Lane::State::failing;
  const std::string text = "rail to " + peer_name_ + " failed: " + why;
  const auto others =
      std::count_if(lanes_.begin(), lanes_.end(), [](const Lane& one) { return one.alive(); });
  if (others != 0) {
    core_->log_warning(text + "; others that carry on: " + std::to_string(others));
  } else {
    core_->log_debug(text);
  }
  lane.why = std::move(why);
  open_ = nullptr;
  unwell_ = true;
  ++recovering_;
  core_->happened = true;
}

bool VerbsEndpoint::retire_rails(bool dry) {
  if (failure_ || !unwell_ || !dry || !has_all_before_parking()) return false;
  bool any = false;
  for (Lane& lane : lanes_) {
    if (lane.state != Lane::State::failing) continue;
    retire(lane);
    any = true;
  }
  if (any && first_alive() == nullptr && parking_ != Parking::agreed) {
    (void)read();  // the peer may have said why it went
    if (!failure_ && !waits_for_parked()) all_lanes_gone();
    return true;
  }
  for (Lane& lane : lanes_) {
    if (lane.state == Lane::State::down && lane.peer_down) recover(lane);
  }
  return any;
}

void VerbsEndpoint::retire(Lane& lane) {
  while (!lane.rail->idle()) {
    Piece piece = lane.rail->take_oldest();
    if (piece.borrows) --borrowed_;
    piece.borrows = false;
    lane.orphans.push_back(piece);
  }
  for (Piece& piece : lane.refused) {
    if (piece.borrows) --borrowed_;
    piece.borrows = false;
    lane.orphans.push_back(piece);
  }
  lane.refused.clear();
  core_->forget(*lane.rail);
  lane.rail.reset();
  lane.state = Lane::State::down;
  Writer note;
  note.put(static_cast<std::uint8_t>(&lane - lanes_.data())).put(lane.parts_received);
  say(Note::gone, note);
  (void)side_->flush();
}

void VerbsEndpoint::all_lanes_gone() {
  if (ending_) return break_with(Error(*ending_), false);
  std::string cause;
  for (const Lane& lane : lanes_) {
    const Nic& nic = *core_->nics[lane.mine];
    cause += (cause.empty() ? "" : "; ") + lane.why + " (this side's port is " + nic.state_in_words() + ", " +
             faults_counted(folder_of_port(nic.port.name)) + ", " + milliseconds_since(lane.latest_good) +
             ")";
  }
  break_with(Error{ErrorCode::peer_failed, "reach peer over verbs", "every rail is gone: " + cause}.fix(
      "look at ports, cables and counters on both hosts: rdma link, rdma statistic"));
}

Result<void> VerbsEndpoint::take_gone(Reader& in) {
  const std::size_t index = in.get<std::uint8_t>();
  const auto received = in.get<std::uint32_t>();
  if (!in.finished() || stage_ != Stage::ready || index >= lanes_.size())
    return nonsense("a rail that is none");
  Lane& lane = lanes_[index];
  if (lane.peer_down ||
      (!lane.alive() && lane.state != Lane::State::failing && lane.state != Lane::State::down))
    return nonsense("a rail that was down already");
  lane.peer_down = true;
  lane.peer_received = received;
  if (lane.alive()) lane_failed(lane, lane.rail->text() + ": the peer took it down");
  if (lane.state == Lane::State::down) recover(lane);
  return {};
}

void VerbsEndpoint::recover(Lane& lane) {
  std::size_t done_count = 0;
  for (std::size_t i = 0; i < lane.orphans.size(); ++i) {
    const Piece& piece = lane.orphans[i];
    if (piece.parts != 0 && static_cast<std::int32_t>(lane.peer_received - piece.part_number) >= 0)
      done_count = i + 1;
  }
  std::vector<Piece> again;
  for (std::size_t i = 0; i < lane.orphans.size(); ++i) {
    Piece& piece = lane.orphans[i];
    if (piece.purpose == Purpose::atomic) {
      core_->blocks.give(piece.block);
      --operations_;
      finish_unknown(piece.tag);
    } else if (i < done_count && piece.purpose != Purpose::get) {
      finish_piece(piece);
    } else if (piece.purpose < Purpose::probe) {
      piece.again = true;
      again.push_back(piece);
    }
  }
  lane.orphans.clear();
  replay_.insert(replay_.begin(), again.begin(), again.end());
  lane.forget_traffic();
  lane.state = Lane::State::gone;
  lane.pause = first_pause;
  lane.retry_at = Clock::now() + lane.pause;
  --recovering_;
  core_->happened = true;
  finish_parking();
}

bool VerbsEndpoint::replay() {
  bool any = false;
  while (recovering_ == 0 && !replay_.empty()) {
    Lane* lane = first_alive();
    if (lane == nullptr || !lane->rail->has_room()) break;
    Piece piece = replay_.front();
    replay_.pop_front();
    piece.borrows = piece.block == Blocks::none && piece.length != 0;
    piece.plain = false;
    post(*lane, piece);
    any = true;
  }
  ring();
  return any;
}

void VerbsEndpoint::revive_lanes() {
  if (parking_ == Parking::asked || parking_ == Parking::agreed) return;
  const auto now = Clock::now();
  bool unwell = false, trying = false;
  for (Lane& lane : lanes_) {
    unwell = unwell || !lane.alive();
    trying = trying || lane.state == Lane::State::reviving;
    if (failure_ || !side_->dials() || lane.state != Lane::State::gone || now < lane.retry_at) continue;
    if (auto begun = revive(lane); !begun) revival_failed(lane, begun.error().message());
  }
  unwell_ = unwell;
  (void)side_->flush();
  if (parking_ == Parking::waking && side_->dials() && !trying && now > wake_until_) all_lanes_gone();
}

Result<void> VerbsEndpoint::revive(Lane& lane) {
  CENOTE_ASSIGN(const RailOffer offer, make_offer(lane));
  lane.state = Lane::State::reviving;
  Writer note;
  note.put(static_cast<std::uint8_t>(&lane - lanes_.data()));
  offer.pack(note);
  say(Note::revive, note);
  return {};
}

void VerbsEndpoint::revival_failed(Lane& lane, std::string why) {
  lane.why = std::move(why);
  lane.parked = false;
  if (lane.rail) core_->forget(*lane.rail);
  lane.rail.reset();
  lane.forget_traffic();
  lane.state = Lane::State::gone;
  lane.retry_at = Clock::now() + lane.pause;
  lane.pause = std::min<Clock::duration>(lane.pause * 2, longest_pause);
}

void VerbsEndpoint::lane_is_up(Lane& lane) {
  lane.state = Lane::State::alive;
  open_ = nullptr;
  lane.pause = first_pause;
  const std::string text = "rail to " + peer_name_ + " is back: " + lane.rail->text();
  std::exchange(lane.parked, false) ? core_->log_debug(text) : core_->log_warning(text);
  core_->happened = true;
  is_awake();
}

Result<Lane*> VerbsEndpoint::lane_of(Reader& in, Lane::State expected) {
  const std::size_t index = in.get<std::uint8_t>();
  if (stage_ != Stage::ready || index >= lanes_.size() || lanes_[index].state != expected)
    return nonsense("a rail that is not in that state");
  return &lanes_[index];
}

Result<void> VerbsEndpoint::take_revive(Reader& in) {
  CENOTE_ASSIGN(Lane * lane, lane_of(in, Lane::State::gone));
  lane->offer = RailOffer::unpack(in);
  if (!in.finished() || side_->dials()) return nonsense("an offer out of turn");
  if (parking_ == Parking::parked) wake(false);
  Writer note;
  note.put(static_cast<std::uint8_t>(lane - lanes_.data()));
  auto offer = make_offer(*lane);
  Result<void> connected;
  if (offer)
    connected = lane->rail->connect(lane->offer, their_ports_[lane->theirs],
                                    lane->candidates[lane->candidate], core_->options);
  if (!offer || !connected) {
    revival_failed(*lane, (offer ? connected.error() : offer.error()).message());
    say(Note::not_up, note);
    return {};
  }
  lane->state = Lane::State::reviving;
  offer->pack(note);
  say(Note::revived, note);
  return {};
}

Result<void> VerbsEndpoint::take_revived(Reader& in) {
  CENOTE_ASSIGN(Lane * lane, lane_of(in, Lane::State::reviving));
  lane->offer = RailOffer::unpack(in);
  if (!in.finished() || !side_->dials()) return nonsense("an answer out of turn");
  auto connected = lane->rail->connect(lane->offer, their_ports_[lane->theirs],
                                       lane->candidates[lane->candidate], core_->options);
  if (connected) connected = probe(*lane);
  if (connected) return {};
  revival_failed(*lane, connected.error().message());
  Writer note;
  note.put(static_cast<std::uint8_t>(lane - lanes_.data()));
  say(Note::not_up, note);
  return {};
}

Result<void> VerbsEndpoint::take_up(Reader& in) {
  CENOTE_ASSIGN(Lane * lane, lane_of(in, Lane::State::reviving));
  if (!in.finished() || side_->dials()) return nonsense("a rail that is up out of turn");
  lane_is_up(*lane);
  return {};
}

Result<void> VerbsEndpoint::take_not_up(Reader& in) {
  CENOTE_ASSIGN(Lane * lane, lane_of(in, Lane::State::reviving));
  if (!in.finished()) return nonsense("a note that ends too late: not up");
  revival_failed(*lane, "the peer could not revive it");
  return {};
}

void VerbsEndpoint::nic_failed(const Nic& nic, const std::string& cause) {
  for (Lane& lane : lanes_) {
    if (lane.rail && &lane.rail->nic() == &nic) lane_failed(lane, lane.rail->text() + ": " + cause);
  }
}

void VerbsEndpoint::nic_is_up(const Nic& nic) {
  for (Lane& lane : lanes_) {
    if (core_->nics[lane.mine].get() == &nic) lane.retry_at = Clock::now();
  }
}

void VerbsEndpoint::queue_pair_failed(std::uint32_t queue_pair, const std::string& what) {
  if (failure_ || ending_) return;
  const bool ours = std::any_of(lanes_.begin(), lanes_.end(), [queue_pair](const Lane& lane) {
    return lane.rail && lane.rail->queue_pair() == queue_pair;
  });
  if (!ours) return;
  (void)read();
  if (failure_ || ending_) return;
  break_with(Error{ErrorCode::protocol_error, "serve the peer's writes", what});
}

}  // namespace cenote::transport::verbs
