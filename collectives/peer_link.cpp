#include "collectives/peer_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace cenote::collectives {
namespace {

constexpr std::uint64_t credit_tag = ~0ULL;
constexpr std::uint64_t sent_capacity = 64;
const transport::RemoteKey no_key{};

bool full(const Error& error) { return error.code == ErrorCode::resource_exhausted; }

}  // namespace

Result<std::unique_ptr<PeerLink>> PeerLink::open(transport::Fabric& fabric,
                                                 std::span<const std::byte> address, std::uint32_t rank,
                                                 const LinkOptions& options, Deadline deadline) {
  CENOTE_ASSIGN(auto link, fabric.connect(address, fmt::format("rank {}", rank), 0, deadline));
  auto limited = options;
  const auto most = link.transport->limits().max_message;
  if (most < sizeof(wire::Head) + sizeof(wire::Hello)) {
    return fail(Error{ErrorCode::not_supported, "open a link",
                      fmt::format("{} takes messages of at most {} bytes", link.transport->name(), most)}
                    .with(fmt::format("rank {}", rank)));
  }
  const auto room = most > wire::overhead ? most - wire::overhead : 0;
  limited.inline_bytes = std::min({options.inline_bytes, wire::max_data, room});
  return std::unique_ptr<PeerLink>(new PeerLink(std::move(link), rank, limited));
}

PeerLink::PeerLink(transport::Link link, std::uint32_t rank, const LinkOptions& options)
    : link_(std::move(link)), rank_(rank), options_(options), inbox_(std::make_unique<Inbox>()) {
  sent_.entries.resize(sent_capacity);
}

tl::unexpected<Error> PeerLink::nonsense(std::string_view what) const {
  return fail(Error{ErrorCode::protocol_error, "read a message", std::string(what)}.with(
      fmt::format("rank {}", rank_)));
}

Result<void> PeerLink::announce() {
  if (staging_ != nullptr) return {};
  CENOTE_ASSIGN(staging_, link_.transport->allocate(options_.chunk_bytes * options_.slots));
  hello_due_ = true;
  say_hello();
  return {};
}

void PeerLink::say_hello() {
  std::array<std::byte, sizeof(wire::Head) + sizeof(wire::Hello)> message{};
  const wire::Head head{wire::Kind::hello, 0, 0, 0};
  const wire::Hello hello{staging_->key()};
  std::memcpy(message.data(), &head, sizeof head);
  std::memcpy(message.data() + sizeof head, &hello, sizeof hello);
  const auto sent = link_.endpoint->send(message);
  // Not sent because the endpoint has failed: whoever needs it will say so.
  hello_due_ = !sent && full(sent.error());
}

Result<bool> PeerLink::send_data(std::span<const std::byte> bytes, std::uint32_t sequence,
                                 const wire::CallHeader* call, const SentChunk& owner) {
  if (sent_.tail - sent_.head == sent_capacity) return false;
  std::array<std::byte, wire::max_message> message;  // NOLINT: filled below, as far as it is sent
  const wire::Head head{wire::Kind::data, call != nullptr ? wire::with_call : std::uint8_t{0},
                        static_cast<std::uint16_t>(bytes.size()), sequence};
  std::memcpy(message.data(), &head, sizeof head);
  std::size_t size = sizeof head;
  if (call != nullptr) {
    std::memcpy(message.data() + size, call, sizeof *call);
    size += sizeof *call;
  }
  std::memcpy(message.data() + size, bytes.data(), bytes.size());
  auto sent = link_.endpoint->send({message.data(), size + bytes.size()});
  if (!sent) {
    if (full(sent.error())) return false;
    return fail(std::move(sent).error());
  }
  // While the connection is being made, messages wait on this side. They are done when they are on their way:
  // an empty put behind them tells. Otherwise a rank could finish and leave before it has said what others
  // wait for.
  bool done = established_;
  if (!established_)
    done = !link_.endpoint->put({}, {&no_key, 0}, transport::no_signal, sent_.tail).has_value();
  sent_.entries[sent_.tail % sent_capacity] = {owner, sent_.tail, done};
  ++sent_.tail;
  bytes_sent_ += bytes.size();
  return true;
}

Result<bool> PeerLink::send_call(const wire::CallHeader& call, std::uint32_t sequence) {
  std::array<std::byte, wire::overhead> message{};
  const wire::Head head{wire::Kind::call, wire::with_call, 0, sequence};
  std::memcpy(message.data(), &head, sizeof head);
  std::memcpy(message.data() + sizeof head, &call, sizeof call);
  auto sent = link_.endpoint->send(message);
  if (sent) return true;
  if (full(sent.error())) return false;
  return fail(std::move(sent).error());
}

void PeerLink::send_stalled(const wire::Stalled& note, std::uint32_t sequence) {
  std::array<std::byte, sizeof(wire::Head) + sizeof(wire::Stalled)> message{};
  const wire::Head head{wire::Kind::stalled, 0, 0, sequence};
  std::memcpy(message.data(), &head, sizeof head);
  std::memcpy(message.data() + sizeof head, &note, sizeof note);
  (void)link_.endpoint->send(message);
}

bool PeerLink::can_put() const {
  if (!peer_staging_ || sent_.tail - sent_.head >= std::min<std::uint64_t>(options_.slots, sent_capacity))
    return false;
  return puts_ - link_.endpoint->signal(wire::credit_signal) < options_.slots;
}

std::span<std::byte> PeerLink::bounce() {
  // At most `slots` chunks are in flight, so the slot of the next one is free again.
  bounce_.resize(options_.chunk_bytes * options_.slots);
  return std::span(bounce_).subspan((puts_ % options_.slots) * options_.chunk_bytes, options_.chunk_bytes);
}

Result<bool> PeerLink::put(std::span<const std::byte> bytes, const SentChunk& owner) {
  if (!can_put()) {
    if (auto error = failure()) return fail(std::move(*error));
    return false;
  }
  const auto offset = (puts_ % options_.slots) * options_.chunk_bytes;
  auto posted = link_.endpoint->put(bytes, {&*peer_staging_, offset}, wire::chunk_signal, sent_.tail);
  if (!posted) {
    if (full(posted.error())) return false;
    return fail(std::move(posted).error());
  }
  sent_.entries[sent_.tail % sent_capacity] = {owner, sent_.tail, false};
  ++sent_.tail;
  ++puts_;
  bytes_sent_ += bytes.size();
  return true;
}

Result<bool> PeerLink::put_into(std::span<const std::byte> bytes, transport::RemoteSlice at,
                                std::uint32_t signal, std::uint64_t id) {
  auto posted = link_.endpoint->put(bytes, at, signal, id);
  if (!posted && full(posted.error())) return false;
  if (!posted) return fail(std::move(posted).error());
  ++one_sided_;
  bytes_sent_ += bytes.size();
  return true;
}

Result<bool> PeerLink::get_from(std::span<std::byte> bytes, transport::RemoteSlice from, std::uint64_t id) {
  auto posted = link_.endpoint->get(bytes, from, id);
  if (!posted && full(posted.error())) return false;
  if (!posted) return fail(std::move(posted).error());
  ++one_sided_;
  bytes_received_ += bytes.size();
  return true;
}

Result<bool> PeerLink::greet() {
  auto posted = link_.endpoint->put({}, {&no_key, 0}, wire::greeting_signal, credit_tag);
  if (!posted && full(posted.error())) return false;
  if (!posted) return fail(std::move(posted).error());
  greeted_ = true;
  return true;
}

std::optional<SentChunk> PeerLink::take_sent() {
  if (!sending()) return std::nullopt;
  auto& entry = sent_.entries[sent_.head % sent_capacity];
  if (!entry.done) return std::nullopt;
  ++sent_.head;
  return entry.owner;
}

bool PeerLink::poll_completions() {
  bool moved = false;
  std::array<transport::Completion, 16> done;
  for (;;) {
    const auto count = link_.endpoint->poll(done);
    for (std::size_t i = 0; i < count; ++i) {
      if (done[i].tag == credit_tag) continue;  // a peer that is gone needs none
      if (Outstanding::marked(done[i].tag)) {
        --one_sided_;
        lost_one_sided_ = lost_one_sided_ || done[i].error;
        auto* operation = done[i].error ? nullptr : options_.outstanding->find(done[i].tag);
        if (operation != nullptr) operation->done = true;
        moved = true;
        continue;
      }
      if (done[i].error) {
        lost_chunk_ = true;
        continue;
      }
      sent_.entries[done[i].tag % sent_capacity].done = true;
      established_ = true;
      moved = true;
    }
    if (count < done.size()) return moved;
  }
}

void PeerLink::pay_credits() {
  const auto needed = expected_ > options_.slots ? expected_ - options_.slots : 0;
  const auto due = std::min(consumed_, needed);
  while (paid_ < due) {
    const auto& key = peer_staging_ ? *peer_staging_ : no_key;
    if (!link_.endpoint->put({}, {&key, 0}, wire::credit_signal, credit_tag)) return;
    ++paid_;
  }
}

bool PeerLink::pump() {
  if (hello_due_) say_hello();
  pay_credits();
  bool moved = false;
  if (sending() || paid_ > 0 || one_sided_ > 0 || greeted_) moved = poll_completions();
  return take_messages() || moved;
}

bool PeerLink::take_messages() {
  bool moved = false;
  auto& inbox = *inbox_;
  while (!nonsense_ && inbox.tail - inbox.head < Inbox::capacity) {
    auto& slot = inbox.messages[inbox.tail % Inbox::capacity];
    auto received = link_.endpoint->receive(slot);
    // An endpoint that failed has no more messages; a message that does not fit is the peer's nonsense.
    if (!received && received.error().code == ErrorCode::invalid_argument) nonsense_ = received.error();
    if (!received || !*received) break;
    if (auto accepted = accept(**received); !accepted) {
      nonsense_ = std::move(accepted).error();
      break;
    }
    moved = true;
  }
  return moved;
}

Result<void> PeerLink::accept(std::size_t size) {
  auto& inbox = *inbox_;
  const auto& message = inbox.messages[inbox.tail % Inbox::capacity];
  wire::Head head;
  if (size < sizeof head) return nonsense("it is shorter than its head");
  std::memcpy(&head, message.data(), sizeof head);
  switch (head.kind) {
    case wire::Kind::hello: {
      wire::Hello hello;
      if (size != sizeof head + sizeof hello) return nonsense("a hello of the wrong length");
      std::memcpy(&hello, message.data() + sizeof head, sizeof hello);
      if (peer_staging_ || hello.key.size > hello.key.bytes.size())
        return nonsense("a second or a broken hello");
      peer_staging_ = hello.key;
      return {};
    }
    case wire::Kind::stalled: {
      Note note;
      if (size != sizeof head + sizeof note.stalled) return nonsense("a note of the wrong length");
      std::memcpy(&note.stalled, message.data() + sizeof head, sizeof note.stalled);
      note.sequence = head.sequence;
      note.when = Clock::now();
      note_ = note;
      return {};
    }
    case wire::Kind::data:
    case wire::Kind::call: {
      const auto call = (head.flags & wire::with_call) != 0 ? sizeof(wire::CallHeader) : 0;
      if (size != sizeof head + call + head.size) return nonsense("data of the wrong length");
      ++inbox.tail;
      return {};
    }
  }
  return nonsense(fmt::format("message kind {}", static_cast<int>(head.kind)));
}

const std::byte* PeerLink::front_message() const {
  const auto& inbox = *inbox_;
  if (inbox.head == inbox.tail) return nullptr;
  return inbox.messages[inbox.head % Inbox::capacity].data();
}

void PeerLink::pop_message() {
  auto& inbox = *inbox_;
  wire::Head head;
  std::memcpy(&head, inbox.messages[inbox.head % Inbox::capacity].data(), sizeof head);
  bytes_received_ += head.size;
  ++inbox.head;
}

std::span<const std::byte> PeerLink::front_staged(std::size_t bytes) const {
  if (staging_ == nullptr || link_.endpoint->signal(wire::chunk_signal) <= consumed_) return {};
  return staging_->bytes().subspan((consumed_ % options_.slots) * options_.chunk_bytes, bytes);
}

void PeerLink::pop_staged(std::size_t bytes) {
  ++consumed_;
  bytes_received_ += bytes;
  pay_credits();
}

}  // namespace cenote::collectives
