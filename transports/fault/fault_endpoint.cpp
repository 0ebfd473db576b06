#include "transports/fault/fault_endpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transports/endpoint_base.h"
#include "transports/region_key.h"

namespace cenote::transport::fault {
namespace {

constexpr std::size_t most_held = 2048;
constexpr std::size_t looked_at = 64;  // of the parts that are held, in one step
constexpr std::uint32_t longest_doom = 12;

std::uint64_t stream_of(std::string_view peer, std::uint32_t channel) {
  std::uint64_t hash = 0xcbf29ce484222325ULL ^ channel;
  for (const char c : peer) hash = (hash ^ static_cast<std::uint8_t>(c)) * 0x100000001b3ULL;
  return hash;
}

}  // namespace

void MemberState::kill() {
  const Error error{ErrorCode::cancelled, "use endpoint",
                    "this side was killed by its fault plan, seed " + std::to_string(plan.seed)};
  count(Fault::kill);
  for (FaultCore* core : cores) core->die(error);
}

FaultCore::FaultCore(std::shared_ptr<MemberState> of, std::unique_ptr<Transport> transport)
    : member(std::move(of)), inside(std::move(transport)), max_message(inside->limits().max_message) {
  member->cores.push_back(this);
}

FaultCore::~FaultCore() { std::erase(member->cores, this); }

void FaultCore::die(const Error& error) {
  killed = error;
  for (FaultEndpoint* endpoint : endpoints) endpoint->die(error);
  const std::lock_guard lock(inside_mutex);
  inside.reset();
}

FaultEndpoint::FaultEndpoint(std::shared_ptr<FaultCore> core, std::unique_ptr<Endpoint> inside,
                             std::uint32_t channel)
    : core_(std::move(core)),
      inside_(std::move(inside)),
      name_(inside_->transport_name()),
      peer_(inside_->peer_name()),
      stream_(stream_of(peer_, channel)) {
  core_->endpoints.push_back(this);
}

FaultEndpoint::~FaultEndpoint() {
  if (!frozen() && !failed()) flush();
  std::erase(core_->endpoints, this);
}

bool FaultEndpoint::Part::overlaps(const Part& other) const {
  return key.size == other.key.size && std::memcmp(key.bytes.data(), other.key.bytes.data(), key.size) == 0 &&
         offset < other.offset + other.length() && other.offset < offset + length();
}

/// What the contract orders, and one thing that it does not: atomics and what touches their bytes.
bool FaultEndpoint::Part::must_follow(const Part& earlier) const {
  switch (kind) {
    case Kind::mark:
      return true;
    case Kind::signal:
      return earlier.kind == Kind::bytes;
    case Kind::message:
      return earlier.kind == Kind::bytes || earlier.kind == Kind::message;
    case Kind::bytes:
    case Kind::get:
    case Kind::add:
      if (kind != Kind::add && earlier.kind == Kind::get) return false;
      return earlier.kind != Kind::signal && earlier.kind != Kind::message && overlaps(earlier);
  }
  return true;
}

bool FaultEndpoint::decide(Fault fault, std::uint64_t n, std::uint32_t one_in) const {
  return plan().has(fault) && plan().number(fault, stream_, n) % one_in == 0;
}

std::uint32_t FaultEndpoint::late(Fault fault, std::uint64_t n, std::uint32_t one_in,
                                  std::uint32_t most) const {
  if (!decide(fault, n, one_in)) return 0;
  core_->member->count(fault);
  return 1 + static_cast<std::uint32_t>((plan().number(fault, stream_, n) >> 20) % most);
}

/// The number of the operation that may be posted now.
Result<std::uint64_t> FaultEndpoint::admit(const char* stage) {
  if (failed()) end_all();
  if (failure_) return fail(*failure_);
  const bool refused = !open_.empty() && decide(Fault::refuse, tries_++, 8);
  if (refused) core_->member->count(Fault::refuse);
  if (refused || open_.size() + told_.size() >= queue_depth || held_.size() >= most_held) {
    return fail(Error{ErrorCode::resource_exhausted, stage, "queue full"}.with(peer_).fix(
        "progress, poll, then try again"));
  }
  return next_;
}

FaultEndpoint::Open& FaultEndpoint::open(std::uint64_t number, std::uint64_t tag) {
  ++next_;
  auto& operation = open_[number];
  operation.tag = tag;
  return operation;
}

void FaultEndpoint::hold(Part part, std::uint64_t number) {
  part.operation = number;
  const std::size_t which = part.kind == Part::Kind::message ? 0 : ++open_[number].parts;
  const std::uint64_t n = number * 16 + which;
  part.delay = std::max(part.delay, late(Fault::delay, n, 4, 12));
  part.delay = std::max(part.delay, late(Fault::reorder, n, 3, 4));
  held_.push_back(std::move(part));
}

void FaultEndpoint::hold_pieces(const Part& whole, std::uint64_t number) {
  const std::size_t length = whole.length();
  std::size_t pieces = 1;
  // Pieces of one that does not fit would touch memory before the whole is refused.
  const auto key = RegionKey::unpack(whole.key);
  const bool fits = key && whole.offset <= key->size && length <= key->size - whole.offset;
  if (length > 1 && fits && decide(Fault::split, number, 2)) {
    pieces = 2 + plan().number(Fault::split, stream_, ~number) % std::min<std::size_t>(3, length - 1);
    core_->member->count(Fault::split);
  }
  const bool twice = decide(Fault::duplicate, number, 4);
  if (twice) core_->member->count(Fault::duplicate);
  for (std::size_t i = 0; i < pieces; ++i) {
    Part piece = whole;
    const std::size_t from = length / pieces * i;
    const std::size_t size = i + 1 == pieces ? length - from : length / pieces;
    piece.offset += from;
    if (whole.kind == Part::Kind::bytes) piece.src = whole.src.subspan(from, size);
    if (whole.kind == Part::Kind::get) piece.dst = whole.dst.subspan(from, size);
    if (twice) hold(piece, number);
    hold(std::move(piece), number);
  }
}

/// What has no need to wait goes at once.
void FaultEndpoint::posted() {
  core_->happened = true;
  (void)release();
}

/// Whether this operation is the one that the plan's blow falls on; what that means for the whole endpoint.
bool FaultEndpoint::strikes(std::uint64_t number) {
  const auto& blow = plan().blow;
  if (core_->member->operations++ != (blow ? blow->at : 0) || !plan().falls_here()) return false;
  if (blow->fault == Fault::kill) {
    core_->member->kill();
    return true;
  }
  core_->member->count(blow->fault);
  core_->member->frozen = blow->fault == Fault::freeze;
  if (frozen()) return false;
  doom_ = 1 + static_cast<std::uint32_t>(plan().number(blow->fault, stream_, number) % longest_doom);
  return true;
}

bool FaultEndpoint::spoils(Sabotage what) {
  return plan().sabotage == what && plan().saboteur == plan().member &&
         core_->member->spoilable++ == plan().sabotage_at;
}

bool FaultEndpoint::spoil_put(Part& bytes, std::uint32_t signal, Open& operation, std::uint64_t number) {
  if (bytes.src.empty() || signal == no_signal) return false;
  if (spoils(Sabotage::damage)) {
    operation.damaged.assign(bytes.src.begin(), bytes.src.end());
    operation.damaged[bytes.src.size() / 2] ^= std::byte{0x55};
    bytes.src = operation.damaged;
    return false;
  }
  if (spoils(Sabotage::vanish)) {
    finish(number, std::nullopt);
    return true;
  }
  Part told;
  told.kind = Part::Kind::signal;
  told.slot = signal;
  if (spoils(Sabotage::repeat)) hold(told, number);
  if (!spoils(Sabotage::early_signal)) return false;
  hold(told, number);
  bytes.delay = 2000;
  hold(bytes, number);
  return true;
}

Result<void> FaultEndpoint::put(std::span<const std::byte> src, RemoteSlice dst, std::uint32_t signal,
                                std::uint64_t tag) {
  CENOTE_ASSIGN(const auto number, admit("put"));
  if (signal >= signal_slots && signal != no_signal)
    return fail(ErrorCode::invalid_argument, "put", "no signal slot " + std::to_string(signal));
  const bool struck = strikes(number);
  if (failure_) return fail(*failure_);
  auto& operation = open(number, tag);
  Part bytes;
  bytes.src = src;
  bytes.offset = dst.offset;
  if (!src.empty()) bytes.key = *dst.key;
  if (struck) {
    if (plan().blow->fault == Fault::corrupt && !src.empty()) {
      operation.damaged.assign(src.begin(), src.end());
      for (auto& byte : operation.damaged) byte ^= std::byte{0xff};
      bytes.src = operation.damaged;
      hold(bytes, number);
    }
    bytes.never = true;
    bytes.src = src;
    hold(bytes, number);
  } else if (!spoil_put(bytes, signal, operation, number)) {
    if (!src.empty()) hold_pieces(bytes, number);
    Part last;
    last.kind = signal == no_signal ? Part::Kind::mark : Part::Kind::signal;
    last.slot = signal;
    if (signal != no_signal || src.empty()) hold(last, number);
  }
  posted();
  return {};
}

Result<void> FaultEndpoint::get(std::span<std::byte> dst, RemoteSlice src, std::uint64_t tag) {
  CENOTE_ASSIGN(const auto number, admit("get"));
  Part part;
  part.kind = Part::Kind::get;
  part.never = strikes(number);
  if (failure_) return fail(*failure_);
  open(number, tag);
  part.dst = dst;
  part.offset = src.offset;
  part.key = *src.key;
  hold_pieces(part, number);
  posted();
  return {};
}

Result<void> FaultEndpoint::atomic_add(RemoteSlice dst, std::uint64_t value, std::uint64_t* old,
                                       std::uint64_t tag) {
  CENOTE_ASSIGN(const auto number, admit("atomic add"));
  Part part;
  part.kind = Part::Kind::add;
  part.never = strikes(number);
  if (failure_) return fail(*failure_);
  open(number, tag);
  part.offset = dst.offset;
  part.key = *dst.key;
  part.value = value;
  part.old = old;
  hold(std::move(part), number);
  posted();
  return {};
}

Result<void> FaultEndpoint::send(std::span<const std::byte> message) {
  CENOTE_ASSIGN(const auto number, admit("send"));
  if (message.size() > core_->max_message)
    return fail(ErrorCode::invalid_argument, "send",
                std::to_string(message.size()) + " bytes are more than one message takes");
  const auto waiting = std::ranges::count_if(
      held_, [](const Part& part) { return part.kind == Part::Kind::message && part.delay == 0; });
  if (waiting > 32) return fail(Error{ErrorCode::resource_exhausted, "send", "queue full"}.with(peer_));
  ++next_;
  Part part;
  part.kind = Part::Kind::message;
  part.never = strikes(number);
  if (failure_) return fail(*failure_);
  part.message.assign(message.begin(), message.end());
  if (!part.never && spoils(Sabotage::repeat)) hold(part, number);
  hold(std::move(part), number);
  posted();
  return {};
}

Result<std::optional<std::size_t>> FaultEndpoint::receive(std::span<std::byte> out) {
  if (frozen() && !failure_) return std::nullopt;
  if (!ahead_ && inside_) {
    room_.resize(core_->max_message);
    auto got = inside_->receive(room_);
    if (got && *got) {
      ahead_ = Ahead{Bytes(room_.begin(), room_.begin() + static_cast<std::ptrdiff_t>(**got)),
                     late(Fault::late_message, taken_++, 4, 6)};
    }
  }
  const bool over = failed();
  if (ahead_ && (over || ahead_->hold == 0)) {
    const std::size_t size = ahead_->bytes.size();
    if (size > out.size())
      return fail(
          ErrorCode::invalid_argument, "receive",
          "the message has " + std::to_string(size) + " bytes, the buffer " + std::to_string(out.size()));
    if (size != 0) std::memcpy(out.data(), ahead_->bytes.data(), size);
    ahead_.reset();
    return size;
  }
  if (ahead_ && --ahead_->hold == 0) core_->happened = true;  // or its owner would sleep over it
  if (over && !ahead_) return fail(*failure());
  return std::nullopt;
}

std::uint64_t FaultEndpoint::signal(std::uint32_t slot) const {
  if (slot >= signal_slots) return 0;
  if (!inside_ || (frozen() && !failure_)) return shown_.at(slot);
  const std::uint64_t now = inside_->signal(slot);
  auto& shown = shown_.at(slot);
  auto& hidden = hidden_.at(slot);
  if (now == shown || failed()) {
    hidden = 0;
    return shown = now;
  }
  if (hidden == 0) hidden = late(Fault::late_signal, now * signal_slots + slot, 4, 6) + 1;
  if (--hidden == 0) shown = now;
  return shown;
}

std::size_t FaultEndpoint::poll(std::span<Completion> out) {
  if (failed()) end_all();
  if (frozen() && !failure_) return 0;
  take_completions();
  std::size_t count = 0;
  for (auto it = told_.begin(); it != told_.end() && count < out.size();) {
    if (it->hold > 0 && !failure_) {
      if (--it->hold == 0) core_->happened = true;
      ++it;
      continue;
    }
    out[count++] = std::move(it->completion);
    it = told_.erase(it);
  }
  return count;
}

bool FaultEndpoint::drained() const {
  if (failed() || !inside_) return true;
  return held_.empty() && inside_->drained();
}

std::optional<Error> FaultEndpoint::failure() const {
  if (failure_) return failure_;
  return inside_ && !frozen() ? inside_->failure() : std::nullopt;
}

void FaultEndpoint::close(std::string_view reason) {
  if (failed()) return;
  if (frozen()) {
    failure_ = Error{ErrorCode::cancelled, "use endpoint", "closed by this side: " + std::string(reason)};
    failure_->peer = peer_;
  } else {
    flush();
    inside_->close(reason);
  }
  end_all();
}

/// Everything that is held, in order, as far as it is taken.
void FaultEndpoint::flush() {
  while (!held_.empty() && !held_.front().never && let_go(0)) {
  }
}

bool FaultEndpoint::restless() const {
  const auto counts = [](auto hold) { return hold > 0; };
  return doom_ > 0 || (ahead_ && ahead_->hold > 0) || std::ranges::any_of(hidden_, counts) ||
         std::ranges::any_of(told_, counts, &Told::hold) ||
         std::ranges::any_of(held_, [](const Part& part) { return !part.never; });
}

bool FaultEndpoint::advance() {
  if (frozen() || failure_) return false;
  if (failed()) {
    end_all();
    return true;
  }
  if (doom_ > 0 && --doom_ == 0) {
    fall();
    return true;
  }
  const std::size_t told_before = told_.size();
  take_completions();
  bool any = told_.size() != told_before;
  const auto passes = [&any](auto& hold) {
    if (hold > 0 && --hold == 0) any = true;
  };
  for (auto& part : held_) {
    if (part.delay > 0) --part.delay;
  }
  for (auto& told : told_) passes(told.hold);
  if (ahead_) passes(ahead_->hold);
  for (std::uint32_t slot = 0; slot < signal_slots; ++slot) {
    if (hidden_.at(slot) == 0 || --hidden_.at(slot) > 0) continue;
    shown_.at(slot) = inside_->signal(slot);
    any = true;
  }
  return release() || any;
}

bool FaultEndpoint::may_go(std::size_t index) const {
  const Part& part = held_[index];
  if (part.never || part.delay > 0) return false;
  if (index > 0 && !plan().has(Fault::reorder)) return false;
  for (std::size_t i = 0; i < index; ++i) {
    if (part.must_follow(held_[i])) return false;
  }
  return true;
}

bool FaultEndpoint::release() {
  if (frozen() || !inside_) return false;
  bool any = false;
  for (std::size_t i = 0; i < std::min(held_.size(), looked_at);) {
    if (!may_go(i)) {
      if (!plan().has(Fault::reorder)) break;
      ++i;
    } else if (let_go(i)) {
      any = true;
    } else {
      break;
    }
  }
  return any;
}

Result<void> FaultEndpoint::post(const Part& part) {
  const RemoteSlice slice{&part.key, part.offset};
  switch (part.kind) {
    case Part::Kind::bytes:
    case Part::Kind::mark:
    case Part::Kind::signal:
      return inside_->put(part.src, slice, part.slot, part.operation);
    case Part::Kind::get:
      return inside_->get(part.dst, slice, part.operation);
    case Part::Kind::add:
      return inside_->atomic_add(slice, part.value, part.old, part.operation);
    case Part::Kind::message:
      return inside_->send(part.message);
  }
  return {};
}

/// False: it stays, because the transport inside is full, or everything has ended.
bool FaultEndpoint::let_go(std::size_t index) {
  auto gone = post(held_[index]);
  if (!gone && gone.error().code == ErrorCode::resource_exhausted) return false;
  if (failed()) {
    end_all();
    return false;
  }
  const Part part = std::move(held_[index]);
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
  if (!gone && part.kind != Part::Kind::message) part_done(part.operation, std::move(gone).error());
  return true;
}

void FaultEndpoint::take_completions() {
  if (!inside_) return;
  std::array<Completion, 32> done;
  for (std::size_t count = done.size(); count == done.size();) {
    count = inside_->poll(done);
    for (auto& one : std::span(done).first(count)) part_done(one.tag, std::move(one.error));
  }
}

void FaultEndpoint::part_done(std::uint64_t operation, std::optional<Error> error) {
  const auto found = open_.find(operation);
  if (found == open_.end()) return;
  auto& open = found->second;
  if (error && !open.error) open.error = std::move(error);
  if (--open.parts == 0) finish(operation, std::move(open.error));
}

void FaultEndpoint::finish(std::uint64_t operation, std::optional<Error> error) {
  const auto found = open_.find(operation);
  told_.push_back({{found->second.tag, std::move(error)}, late(Fault::late_completion, operation, 3, 8)});
  open_.erase(found);
}

/// It has failed: what is not over ends with the reason.
void FaultEndpoint::end_all() {
  if (failure_ && open_.empty() && held_.empty()) return;  // or nobody who polls it would ever sleep
  take_completions();
  if (!failure_) failure_ = inside_->failure();
  held_.clear();
  doom_ = 0;
  while (!open_.empty()) finish(open_.begin()->first, failure_);
  core_->happened = true;
}

void FaultEndpoint::fall() {
  Error error{ErrorCode::peer_failed, "talk to peer", "injected fault: lost, and no try was acknowledged"};
  if (plan().blow->fault == Fault::corrupt)
    error = {ErrorCode::protocol_error, "talk to peer", "injected fault: its checksum says it came damaged"};
  error.cause +=
      " (seed " + std::to_string(plan().seed) + ", operation " + std::to_string(plan().blow->at) + ")";
  error.peer = peer_;
  error.device = name_;
  take_completions();
  inside_->close("its endpoint failed: " + error.stage + ": " + error.cause);
  failure_ = std::move(error);
  end_all();
}

void FaultEndpoint::die(const Error& error) {
  if (failure_) return;
  take_completions();
  for (std::uint32_t slot = 0; slot < signal_slots; ++slot) shown_.at(slot) = inside_->signal(slot);
  inside_.reset();
  failure_ = error;
  failure_->peer = peer_;
  failure_->device = name_;
  end_all();
}

}  // namespace cenote::transport::fault
