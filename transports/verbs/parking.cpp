// Parking: an idle connection gives its queue pairs up, so that a process has no more of them than the bound
// says, and has them again when either side uses it. Who wants to park asks, and posts nothing until he has
// the answer. The other side agrees by asking the same, if it is idle too and all has arrived that the first
// has sent; so two who ask at once have agreed. Then each takes its rails down as when they fail
// (recovery.cpp), with nothing under way, and they are revived as such: by the side that dialed, which the
// other may wake. Numbers of events, signals and credits stay as they are.
#include <algorithm>

#include "transports/verbs/verbs_endpoint.h"

namespace cenote::transport::verbs {
namespace {

constexpr auto shortest_peace = std::chrono::milliseconds(1);
constexpr auto longest_peace = std::chrono::seconds(1);
constexpr auto answer_time = std::chrono::milliseconds(100);  // then others are asked, too
constexpr auto arrival_time = std::chrono::seconds(5);
constexpr std::size_t asked_at_once = 8;

tl::unexpected<Error> nonsense(const char* what) {
  return fail(ErrorCode::protocol_error, "park a connection", what);
}

}  // namespace

void VerbsCore::keep_bound() {
  if (options.connections == 0 || endpoints.size() <= options.connections) return;
  const auto now = Clock::now();
  std::size_t live = 0;
  for (VerbsEndpoint* endpoint : endpoints) {
    endpoint->note_use(now);
    if (endpoint->keeps_queue_pairs(now)) ++live;
  }
  for (std::size_t asked = 0; asked < asked_at_once && live > options.connections; ++asked, --live) {
    VerbsEndpoint* oldest = nullptr;
    for (VerbsEndpoint* endpoint : endpoints) {
      const bool older = oldest == nullptr || endpoint->last_used() < oldest->last_used();
      if (older && endpoint->may_ask_to_park(now)) oldest = endpoint;
    }
    if (oldest == nullptr) return;
    oldest->ask_to_park(now);
  }
}

bool VerbsEndpoint::keeps_queue_pairs(Clock::time_point now) const {
  if (failure_ || parking_ == Parking::agreed) return false;
  if (parking_ == Parking::asked && now < asked_at_ + answer_time) return false;
  return std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.rail != nullptr; });
}

// What a peer gets and puts without a signal is not seen here: it says so when it is asked.
void VerbsEndpoint::note_use(Clock::time_point now) {
  const std::uint64_t uses = stats_.puts + stats_.gets + stats_.sends + stats_.atomics + order_.delivered();
  if (uses == uses_ && stage_ == Stage::ready) return;
  uses_ = uses;
  last_used_ = now;
  peace_ = shortest_peace;
}

bool VerbsEndpoint::may_ask_to_park(Clock::time_point now) const {
  return now >= last_used_ + core_->options.rest && now >= next_asking_ && is_idle();
}

bool VerbsEndpoint::is_idle() const {
  if (failure_ || ending_ || doomed_ || stage_ != Stage::ready || parking_ != Parking::none) return false;
  if (operations_ != 0 || borrowed_ != 0 || !drained() || !held_.empty()) return false;
  if (staging_ && (!staging_->chunks.empty() || !staging_->asked.empty())) return false;
  const bool settled = std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) {
    return lane.alive() || lane.state == Lane::State::gone;
  });
  return settled && std::any_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.alive(); });
}

void VerbsEndpoint::ask_to_park(Clock::time_point now) {
  parking_ = Parking::asked;
  asked_at_ = now;
  open_ = nullptr;
  say_park();
  (void)side_->flush();
}

void VerbsEndpoint::say_park() {
  Writer note;
  note.put(events_sent_);
  say(Note::park, note);
}

Result<void> VerbsEndpoint::take_park(Reader& in) {
  const auto events = in.get<std::uint64_t>();
  const bool expected = parking_ == Parking::none || parking_ == Parking::asked;
  if (!in.finished() || stage_ != Stage::ready || !expected) return nonsense("a question out of turn");
  if (parking_ == Parking::none && (!is_idle() || order_.delivered() != events)) {
    say(Note::stay, {});
    return {};
  }
  if (parking_ == Parking::none) say_park();
  begin_parking(events);
  return {};
}

Result<void> VerbsEndpoint::take_stay(Reader& in) {
  if (!in.finished() || parking_ != Parking::asked) return nonsense("an answer that nobody asked for");
  parking_ = Parking::none;
  const auto now = Clock::now();
  next_asking_ = now + peace_;
  peace_ = std::min<Clock::duration>(peace_ * 2, longest_peace);
  last_used_ = now;
  core_->happened = true;
  return {};
}

void VerbsEndpoint::begin_parking(std::uint64_t their_events) {
  parking_ = Parking::agreed;
  parted_at_ = their_events;
  agreed_until_ = Clock::now() + arrival_time;
  open_ = nullptr;
  for (Lane& lane : lanes_) {
    if (!lane.alive()) continue;
    lane.why = lane.rail->text() + ": parked";
    lane.state = Lane::State::failing;
    lane.parked = true;
    ++recovering_;
  }
  unwell_ = true;
  core_->happened = true;
}

// All that the peer has sent is in this side's card; until it has been polled, the rails stay.
bool VerbsEndpoint::has_all_before_parking() {
  if (parking_ != Parking::agreed || order_.delivered() == parted_at_) return true;
  if (Clock::now() > agreed_until_)
    break_with(Error{ErrorCode::protocol_error, "park a connection",
                     "what the peer says it has sent did not arrive: " + std::to_string(parted_at_) +
                         " signals and messages, " + std::to_string(order_.delivered()) + " are here"});
  return false;
}

void VerbsEndpoint::finish_parking() {
  const bool gone = std::all_of(lanes_.begin(), lanes_.end(),
                                [](const Lane& lane) { return lane.state == Lane::State::gone; });
  if (parking_ != Parking::agreed || !gone) return;
  parking_ = Parking::parked;
  unwell_ = false;
  peace_ = shortest_peace;
  ++stats_.parked;
  core_->log_debug("connection to " + peer_name_ + " parked: " + std::to_string(lanes_.size()) +
                   " rails given up until it is used");
  core_->happened = true;
}

void VerbsEndpoint::wake(bool tell_peer) {
  if (parking_ == Parking::parked) ++stats_.revived;
  parking_ = Parking::waking;
  last_used_ = Clock::now();
  wake_until_ = last_used_ + wake_patience;
  for (Lane& lane : lanes_) lane.retry_at = last_used_;
  unwell_ = true;
  if (tell_peer) say(Note::wake, {});
  core_->happened = true;
}

Result<void> VerbsEndpoint::take_wake(Reader& in) {
  const bool expected = parking_ == Parking::parked || parking_ == Parking::waking;
  if (!in.finished() || !side_->dials() || !expected) return nonsense("a call out of turn");
  if (parking_ == Parking::parked) wake(false);
  return {};
}

void VerbsEndpoint::is_awake() {
  if (parking_ != Parking::waking) return;
  parking_ = Parking::none;
  core_->log_debug("connection to " + peer_name_ + " is used again");
}

// The first that was revived has died before the others were: they are not lost.
bool VerbsEndpoint::waits_for_parked() {
  if (ending_ || std::none_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.parked; }))
    return false;
  wake(false);
  return true;
}

}  // namespace cenote::transport::verbs
