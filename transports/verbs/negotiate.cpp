// How two sides agree on rails. Each tells its ports; both make the same plan from them. Then, in attempts,
// each offers a queue pair for every rail that is not proved yet, connects it to the other's, and proves it
// by a write that the other's card acknowledges. A rail that failed is tried again between the next pair of
// GIDs; both sides know of both results, so they go on alike.
#include <algorithm>
#include <limits>

#include "transports/verbs/choices.h"
#include "transports/verbs/machine.h"
#include "transports/verbs/verbs_endpoint.h"

namespace cenote::transport::verbs {
namespace {

tl::unexpected<Error> nonsense(const char* what) {
  return fail(ErrorCode::protocol_error, "agree on rails", what);
}

std::string list_of(const std::vector<Port>& ports) {
  std::string out;
  for (const Port& port : ports) {
    out += (out.empty() ? "" : ", ") + port.name +
           (port.link_layer == LinkLayer::ethernet ? " (RoCE" : " (InfiniBand");
    for (const Gid& gid : port.gids) out += " " + gid.text();
    out += ")";
  }
  return out.empty() ? "none" : out;
}

}  // namespace

void VerbsEndpoint::say_ports() {
  Writer note;
  pack(core_->home(), note);
  note.put(core_->options.rails);
  note.put(static_cast<std::uint8_t>(core_->ports().size()));
  for (Port port : core_->ports()) {
    port.mtu = static_cast<std::uint8_t>(path_mtu(port, port, core_->options));
    port.pack(note);
  }
  say(Note::ports, note);
  stage_ = Stage::exchanging;
}

bool VerbsEndpoint::read() {
  if (failure_ || !side_ || side_->waiting()) return false;
  const bool was_ready = side_->ready();
  auto got = side_->read(
      [this](std::uint8_t type, std::span<const std::byte> body) { return take_note(type, body); });
  if (failure_) return true;
  if (!was_ready && side_->ready() && stage_ == Stage::meeting) {
    say_ports();
    (void)side_->flush();
  }
  if (got) return *got;
  if (got.error().code != ErrorCode::peer_failed || stage_ == Stage::meeting) {
    break_with(std::move(got).error());
    return true;
  }
  // It is gone. What it had sent is still taken first.
  if (!ending_) {
    ending_ = std::make_unique<Error>(std::move(got).error());
    ending_round_ = core_->round();
  }
  ending_events_ = 0;
  core_->happened = true;
  return true;
}

Result<void> VerbsEndpoint::take_note(std::uint8_t type, std::span<const std::byte> body) {
  if (stage_ == Stage::meeting) say_ports();  // it has been let in and speaks already
  Reader in(body);
  switch (static_cast<Note>(type)) {
    case Note::ports:
      return take_ports(in);
    case Note::offer:
      return take_offer(in);
    case Note::primed:
      return take_primed(in);
    case Note::proved:
      return take_proved(in);
    case Note::farewell:
      take_farewell(in);
      return {};
    case Note::gone:
      return take_gone(in);
    case Note::revive:
      return take_revive(in);
    case Note::revived:
      return take_revived(in);
    case Note::up:
      return take_up(in);
    case Note::not_up:
      return take_not_up(in);
    case Note::park:
      return take_park(in);
    case Note::stay:
      return take_stay(in);
    case Note::wake:
      return take_wake(in);
  }
  return nonsense("a note that no transport sends");
}

Result<void> VerbsEndpoint::take_ports(Reader& in) {
  if (stage_ != Stage::exchanging) return nonsense("ports out of turn");
  const RailHome their_home = unpack_home(in);
  their_rails_ = in.get<std::uint32_t>();
  if (their_rails_ == 0) return nonsense("no rails at all");
  const auto count = in.get<std::uint8_t>();
  if (count > max_ports) return nonsense("more ports than a transport has");
  for (std::size_t i = 0; i < count; ++i) their_ports_.push_back(Port::unpack(in));
  if (!in.finished()) return nonsense("a list of ports that ends too early or too late");
  const RailPlan plan = plan_lanes(their_home);
  double fastest = 1;
  for (const RailPlan::Rail& rail : plan.rails) fastest = std::max<double>(fastest, rail.mbps);
  for (const RailPlan::Rail& rail : plan.rails) {
    Lane lane;
    lane.mine = rail.mine;
    lane.theirs = rail.theirs;
    lane.spare = rail.spare;
    if (rail.mbps != 0) lane.rate *= rail.mbps / fastest;
    lane.candidates = gid_candidates(core_->ports()[lane.mine], their_ports_[lane.theirs]);
    lanes_.push_back(std::move(lane));
  }
  if (!lanes_.empty()) return begin_attempt();
  return fail(Error{ErrorCode::not_supported, "connect over verbs",
                    "no port of this side can reach one of the peer's: here " + list_of(core_->ports()) +
                        "; there " + list_of(their_ports_)}
                  .fix("both need a port of one link layer with GIDs of one type and family (rdma link, ip "
                       "address); the settings verbs.devices and verbs.gid_index restrict them"));
}

RailPlan VerbsEndpoint::plan_lanes(const RailHome& their_home) {
  auto mine = rail_side_of(core_->self.header.id, core_->ports(), core_->home());
  auto theirs = rail_side_of(peer_.header.id, their_ports_, their_home);
  mine.label = "here";
  theirs.label = peer_name_;
  RailPlan plan = plan_rails(mine, theirs, std::min(core_->options.rails, their_rails_));
  if (core_->log == nullptr || !core_->log->enabled(LogLevel::debug)) return plan;
  const auto text = text_of(plan, mine, theirs);
  for (std::size_t at = 0; at < text.size();) {
    const auto end = text.find('\n', at);
    core_->log_debug("plan: " + text.substr(at, end - at));
    at = end + 1;
  }
  return plan;
}

Result<void> VerbsEndpoint::begin_attempt() {
  stage_ = Stage::connecting;
  offer_taken_ = primed_taken_ = said_proved_ = false;
  theirs_proved_.reset();
  Writer note;
  note.put(attempt_).put(static_cast<std::uint8_t>(lanes_.size()));
  for (Lane& lane : lanes_) {
    RailOffer offer;
    lane.mine_done = lane.proved || attempt_ >= lane.candidates.size();
    lane.mine_ok = lane.proved;
    if (!lane.mine_done) {
      lane.candidate = attempt_;
      CENOTE_ASSIGN(offer, make_offer(lane));
    }
    offer.pack(note);
  }
  say(Note::offer, note);
  return {};
}

Result<RailOffer> VerbsEndpoint::make_offer(Lane& lane) {
  CENOTE_ASSIGN(lane.rail, core_->make_rail(*this, lane.mine));
  lane.rail->lane = static_cast<std::size_t>(&lane - lanes_.data());
  RailOffer offer;
  offer.queue_pair = lane.rail->queue_pair();
  offer.packet_sequence = lane.rail->packet_sequence();
  offer.probe = reinterpret_cast<std::uintptr_t>(core_->probe_memory->data);
  offer.probe_key = core_->probe_memory->regions[lane.mine]->rkey;
  const Port& port = core_->ports()[lane.mine];
  const int wanted = core_->options.path_bits;
  const std::uint32_t path =
      wanted >= 0 ? static_cast<std::uint32_t>(wanted) : core_->nics[lane.mine]->next_path++;
  offer.path_bits = lane.rail->path_bits = static_cast<std::uint8_t>(path & port.path_mask());
  return offer;
}

Result<void> VerbsEndpoint::take_offer(Reader& in) {
  if (stage_ != Stage::connecting || offer_taken_ || in.get<std::uint8_t>() != attempt_ ||
      in.get<std::uint8_t>() != lanes_.size())
    return nonsense("an offer out of turn");
  for (Lane& lane : lanes_) {
    lane.offer = RailOffer::unpack(in);
    if (lane.mine_done) continue;
    if (in.bad() || lane.offer.queue_pair == 0) return nonsense("an offer without a rail of the plan");
    auto connected =
        lane.rail->connect(lane.offer, their_ports_[lane.theirs], lane.candidates[attempt_], core_->options);
    if (connected) continue;
    lane.mine_done = true;
    lane.why = connected.error().message();
  }
  if (!in.finished()) return nonsense("an offer that ends too early or too late");
  offer_taken_ = true;
  stage_ = Stage::proving;
  Writer note;
  note.put(attempt_);
  say(Note::primed, note);
  return {};
}

Result<void> VerbsEndpoint::take_primed(Reader& in) {
  if (stage_ != Stage::proving || primed_taken_ || in.get<std::uint8_t>() != attempt_ || !in.finished())
    return nonsense("a note out of turn: primed");
  primed_taken_ = true;
  for (Lane& lane : lanes_) {
    if (lane.mine_done) continue;
    if (auto posted = probe(lane); !posted) {
      lane.mine_done = true;
      lane.why = posted.error().message();
    }
  }
  say_proved();
  return {};
}

Result<void> VerbsEndpoint::probe(Lane& lane) {
  Work work;
  work.local = &core_->probe_word;
  work.length = sizeof core_->probe_word;
  work.lkey = core_->probe_memory->regions[lane.mine]->lkey;
  work.remote = lane.offer.probe;
  work.rkey = lane.offer.probe_key;
  Piece piece;
  piece.purpose = Purpose::probe;
  return lane.rail->post(work, piece);
}

void VerbsEndpoint::probe_done(Lane& lane, ibv_wc_status status) {
  const bool acknowledged = status == IBV_WC_SUCCESS;
  const std::string what = lane.rail->text() + ": " + explain(status);
  if (lane.state == Lane::State::reviving) {
    Writer note;
    note.put(static_cast<std::uint8_t>(&lane - lanes_.data()));
    if (acknowledged) {
      lane_is_up(lane);
    } else {
      revival_failed(lane, what);
    }
    say(acknowledged ? Note::up : Note::not_up, note);
  } else if (!lane.mine_done) {
    lane.mine_done = true;
    lane.mine_ok = acknowledged;
    if (!acknowledged) lane.why = what;
    say_proved();
  }
  if (side_) (void)side_->flush();
}

void VerbsEndpoint::say_proved() {
  if (said_proved_ || !primed_taken_ ||
      !std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.mine_done; }))
    return;
  said_proved_ = true;
  Writer note;
  note.put(attempt_).put(static_cast<std::uint8_t>(lanes_.size()));
  for (const Lane& lane : lanes_) note.put(static_cast<std::uint8_t>(lane.mine_ok ? 1 : 0));
  say(Note::proved, note);
  if (!theirs_proved_) return;
  if (auto settled = settle(*theirs_proved_); !settled) break_with(std::move(settled).error());
}

Result<void> VerbsEndpoint::take_proved(Reader& in) {
  if (stage_ != Stage::proving || theirs_proved_ || in.get<std::uint8_t>() != attempt_ ||
      in.get<std::uint8_t>() != lanes_.size())
    return nonsense("a note out of turn: proved");
  std::vector<bool> theirs;
  for (std::size_t i = 0; i < lanes_.size(); ++i) theirs.push_back(in.get<std::uint8_t>() != 0);
  if (!in.finished()) return nonsense("a note that ends too early or too late: proved");
  if (said_proved_) return settle(theirs);
  theirs_proved_ = std::move(theirs);
  return {};
}

Result<void> VerbsEndpoint::settle(const std::vector<bool>& theirs) {
  bool another = false;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    if (lane.proved) continue;
    lane.proved = lane.mine_ok && theirs[i];
    if (lane.proved) continue;
    if (lane.mine_ok) lane.why = lane.rail->text() + ": the peer's write was not acknowledged";
    core_->log_debug("rail to " + peer_name_ + " not proved: " + lane.why);
    if (lane.rail) core_->forget(*lane.rail);
    lane.rail.reset();
    another = another || std::size_t{attempt_} + 1 < lane.candidates.size();
  }
  if (another && attempt_ < std::numeric_limits<std::uint8_t>::max()) {
    ++attempt_;
    return begin_attempt();
  }
  const bool any = std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.proved; });
  if (any) {
    become_ready();
    return {};
  }
  std::string why;
  for (const Lane& lane : lanes_) why += (why.empty() ? "" : "; ") + lane.why;
  return fail(Error{ErrorCode::peer_failed, "connect over verbs", "no rail carries a write: " + why}.fix(
      "look at the ports, their GIDs and the network between them: rdma link, ip address, ping"));
}

std::string VerbsEndpoint::path_text(const Lane& lane) const {
  const Port &mine = core_->ports()[lane.mine], &theirs = their_ports_[lane.theirs];
  PathChoice choice;
  choice.mtu = mtu_bytes(path_mtu(mine, theirs, core_->options));
  choice.gids = lane.candidates[lane.candidate];
  choice.attempt = lane.candidate;
  choice.pairs = lane.candidates.size();
  choice.my_path = lane.rail->path_bits;
  choice.their_path = lane.offer.path_bits & theirs.path_mask();
  return text_of(choice, mine, theirs, core_->options);
}

// A rail that could not be proved is one that was lost: it may be revived.
void VerbsEndpoint::become_ready() {
  stage_ = Stage::ready;
  for (Lane& lane : lanes_) {
    lane.alone = lanes_.size() == 1;
    if (lane.proved) {
      lane.state = Lane::State::alive;
      core_->log_debug("rail to " + peer_name_ + ": " + lane.rail->text() + ": " + path_text(lane));
    } else {
      lane.candidate = 0;
      lane.state = Lane::State::gone;
      lane.retry_at = Clock::now() + lane.pause;
      unwell_ = true;
    }
  }
  core_->happened = true;
}

void VerbsEndpoint::take_farewell(Reader& in) {
  const auto events = in.get<std::uint64_t>();
  const auto reason = in.raw(in.left());
  if (ending_ || in.bad()) return;
  ending_ = std::make_unique<Error>(farewell_error(reason));
  ending_round_ = core_->round();
  ending_events_ = events;
  core_->happened = true;
}

// A farewell comes another way than what was put and sent before it, and may overtake that.
bool VerbsEndpoint::finish_ending(bool dry) {
  if (!ending_ || failure_ || !dry || core_->round() <= ending_round_) return false;
  if (order_.delivered() < ending_events_ || !held_.empty()) return false;
  break_with(Error(*ending_), false);
  return true;
}

}  // namespace cenote::transport::verbs
