// A fabric inside one thread, for tests of the executor alone: every rank is stepped by hand, bytes arrive
// late and in lumps chosen by a seed, queues are short, and a rank can be killed between any two steps.
#pragma once

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <utility>

#include "transports/fabric.h"

namespace cenote::collectives::loopback {

using transport::Completion;
using transport::RemoteSlice;

struct Event {
  Bytes bytes;
  bool message = false;
  std::uint64_t region = 0, offset = 0;
  std::uint32_t signal = transport::no_signal;
};

/// One direction between two ranks.
struct Wire {
  std::deque<Event> flying;
  std::deque<Bytes> messages;
  std::array<std::uint64_t, transport::signal_slots> signals{};
  std::string closed;  ///< the sender's farewell
  bool dead = false;   ///< the sender was killed
};

class Network {
 public:
  explicit Network(std::uint64_t seed) : random_(seed) {}
  /// True once in `n`; never on a calm network: everything is delivered at once, no queue is full.
  bool chance(std::uint32_t n) { return !calm && random_() % n == 0; }
  bool calm = false;
  Wire& wire(std::uint32_t from, std::uint32_t to) { return wires_[{from, to}]; }
  std::map<std::uint64_t, std::span<std::byte>>& regions(std::uint32_t rank) { return regions_[rank]; }
  std::uint64_t next_region() { return ++region_; }
  /// Its peers notice; what it sent before still arrives.
  void kill(std::uint32_t rank) {
    killed_[rank] = true;
    for (auto& [ends, wire] : wires_) wire.dead = wire.dead || ends.first == rank;
  }
  bool killed(std::uint32_t rank) { return killed_[rank]; }
  std::uint64_t events = 0;            ///< delivered so far
  std::uint32_t without_memory = ~0U;  ///< a rank that can allocate nothing

 private:
  std::mt19937_64 random_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, Wire> wires_;
  std::map<std::uint32_t, std::map<std::uint64_t, std::span<std::byte>>> regions_;
  std::map<std::uint32_t, bool> killed_;
  std::uint64_t region_ = 0;
};

class LoopbackEndpoint final : public transport::Endpoint {
 public:
  LoopbackEndpoint(Network& net, std::uint32_t self, std::uint32_t peer, std::string name)
      : net_(net), self_(self), peer_(peer), name_(std::move(name)) {}
  ~LoopbackEndpoint() override {
    if (closed_.empty()) LoopbackEndpoint::close("its endpoint was destroyed");
  }
  LoopbackEndpoint(const LoopbackEndpoint&) = delete;
  LoopbackEndpoint& operator=(const LoopbackEndpoint&) = delete;

  Result<void> put(std::span<const std::byte> src, RemoteSlice dst, std::uint32_t signal,
                   std::uint64_t tag) override {
    if (auto error = failure()) return fail(std::move(*error));
    if (unfinished_.size() >= 3 || net_.chance(7)) return fail(ErrorCode::resource_exhausted, "put", "full");
    Event event{{src.begin(), src.end()}, false, 0, dst.offset, signal};
    if (!src.empty()) std::memcpy(&event.region, dst.key->bytes.data(), sizeof event.region);
    net_.wire(self_, peer_).flying.push_back(std::move(event));
    unfinished_.push_back(tag);
    return {};
  }
  Result<void> get(std::span<std::byte>, RemoteSlice, std::uint64_t) override {
    return fail(ErrorCode::not_supported, "get", "not here");
  }
  Result<void> atomic_add(RemoteSlice, std::uint64_t, std::uint64_t*, std::uint64_t) override {
    return fail(ErrorCode::not_supported, "atomic_add", "not here");
  }
  Result<void> send(std::span<const std::byte> message) override {
    if (auto error = failure()) return fail(std::move(*error));
    auto& wire = net_.wire(self_, peer_);
    if (wire.flying.size() >= 4 || net_.chance(7)) return fail(ErrorCode::resource_exhausted, "send", "full");
    wire.flying.push_back({{message.begin(), message.end()}, true, 0, 0, transport::no_signal});
    return {};
  }
  Result<std::optional<std::size_t>> receive(std::span<std::byte> out) override {
    auto& messages = net_.wire(peer_, self_).messages;
    if (messages.empty()) {
      if (auto error = failure()) return fail(std::move(*error));
      return std::nullopt;
    }
    const auto size = messages.front().size();
    if (size > out.size()) return fail(ErrorCode::invalid_argument, "receive", "longer than the buffer");
    std::memcpy(out.data(), messages.front().data(), size);
    messages.pop_front();
    return size;
  }
  [[nodiscard]] std::uint64_t signal(std::uint32_t slot) const override {
    return net_.wire(peer_, self_).signals[slot];
  }
  std::size_t poll(std::span<Completion> out) override {
    // What is in flight when an endpoint fails completes with its error, whether it got there or not.
    const auto failed = failure();
    std::size_t n = 0;
    while (n < out.size() && !unfinished_.empty() && (failed || !net_.chance(3))) {
      out[n++] = {unfinished_.front(), failed};
      unfinished_.pop_front();
    }
    return n;
  }
  [[nodiscard]] bool drained() const override { return true; }
  [[nodiscard]] std::optional<Error> failure() const override {
    if (!closed_.empty())
      return Error{ErrorCode::cancelled, "use endpoint", "closed by this side: " + closed_};
    const auto& in = net_.wire(peer_, self_);
    if (!in.flying.empty()) return std::nullopt;  // what was sent before the end arrives first
    if (!in.closed.empty())
      return Error{ErrorCode::peer_failed, "use endpoint", "closed by the peer: " + in.closed};
    if (in.dead) return Error{ErrorCode::peer_failed, "use endpoint", "its process is gone"};
    return std::nullopt;
  }
  void close(std::string_view reason) override {
    closed_ = reason;
    net_.wire(self_, peer_).closed = reason;
  }
  [[nodiscard]] transport::EndpointStats stats() const override { return {}; }
  [[nodiscard]] std::string_view transport_name() const override { return "loopback"; }
  [[nodiscard]] const std::string& peer_name() const override { return name_; }

 private:
  Network& net_;
  std::uint32_t self_, peer_;
  std::string name_, closed_;
  std::deque<std::uint64_t> unfinished_;
};

class LoopbackRegion final : public transport::Region {
 public:
  LoopbackRegion(Network& net, std::uint32_t rank, std::size_t bytes)
      : net_(net), rank_(rank), id_(net.next_region()), memory_(bytes) {
    std::memcpy(key_.bytes.data(), &id_, sizeof id_);
    key_.size = sizeof id_;
    net_.regions(rank_)[id_] = memory_;
  }
  ~LoopbackRegion() override { net_.regions(rank_).erase(id_); }
  [[nodiscard]] std::span<std::byte> bytes() const override { return memory_; }
  [[nodiscard]] const transport::RemoteKey& key() const override { return key_; }

 private:
  Network& net_;
  std::uint32_t rank_;
  std::uint64_t id_;
  mutable Bytes memory_;
  transport::RemoteKey key_;
};

class LoopbackTransport final : public transport::Transport {
 public:
  LoopbackTransport(Network& net, std::uint32_t rank) : net_(net), rank_(rank) {}
  [[nodiscard]] std::string_view name() const override { return "loopback"; }
  [[nodiscard]] transport::Limits limits() const override { return {4096, false}; }
  [[nodiscard]] const Bytes& address() const override { return address_; }
  [[nodiscard]] Result<void> reachable(std::span<const std::byte>) const override { return {}; }
  Result<std::unique_ptr<transport::Endpoint>> connect(std::span<const std::byte> peer, std::string name,
                                                       std::uint32_t, Deadline) override {
    std::uint32_t other = 0;
    std::memcpy(&other, peer.data(), sizeof other);
    net_.wire(rank_, other);
    net_.wire(other, rank_).dead = net_.killed(other);
    return std::make_unique<LoopbackEndpoint>(net_, rank_, other, std::move(name));
  }
  Result<std::unique_ptr<transport::Region>> allocate(std::size_t bytes) override {
    if (net_.without_memory == rank_) return fail(ErrorCode::resource_exhausted, "allocate", "no memory");
    return std::make_unique<LoopbackRegion>(net_, rank_, bytes);
  }
  Result<std::unique_ptr<transport::Region>> register_memory(const MemoryDescription&) override {
    return fail(ErrorCode::not_supported, "register", "not here");
  }
  bool progress() override { return false; }
  [[nodiscard]] std::span<const int> wait_fds() const override { return {}; }
  bool arm() override { return false; }
  void disarm() override {}
  void interrupt() override {}

 private:
  Network& net_;
  std::uint32_t rank_;
  Bytes address_;
};

class LoopbackFabric final : public transport::Fabric {
 public:
  LoopbackFabric(Network& net, std::uint32_t rank, std::uint32_t ranks)
      : net_(net), rank_(rank), ranks_(ranks), transport_(net, rank), address_(address_of(rank)) {}
  static Bytes address_of(std::uint32_t rank) { return Writer().put(rank).take(); }
  [[nodiscard]] const Bytes& address() const override { return address_; }
  [[nodiscard]] Result<std::string> choice(std::span<const std::byte>) const override { return "loopback"; }
  Result<transport::Link> connect(std::span<const std::byte> peer, std::string name, std::uint32_t channel,
                                  Deadline deadline) override {
    CENOTE_ASSIGN(auto endpoint, transport_.connect(peer, std::move(name), channel, deadline));
    return transport::Link{std::move(endpoint), &transport_, "loopback: the only one"};
  }
  [[nodiscard]] std::span<transport::Transport* const> transports() const override { return {}; }
  /// Delivers a few events to this rank.
  bool progress() override {
    bool any = false;
    for (std::uint32_t from = 0; from < ranks_; ++from) {
      auto& wire = net_.wire(from, rank_);
      while (!wire.flying.empty() && !net_.chance(3)) {
        deliver(wire);
        any = true;
      }
    }
    return any;
  }
  Result<void> wait(Deadline, const CancelFlag*, std::string_view) override { return {}; }
  void interrupt() override {}

 private:
  void deliver(Wire& wire) {
    auto event = std::move(wire.flying.front());
    wire.flying.pop_front();
    ++net_.events;
    if (event.message) {
      wire.messages.push_back(std::move(event.bytes));
      return;
    }
    if (!event.bytes.empty()) {
      const auto region = net_.regions(rank_).at(event.region);
      std::memcpy(region.subspan(event.offset, event.bytes.size()).data(), event.bytes.data(),
                  event.bytes.size());
    }
    if (event.signal != transport::no_signal) ++wire.signals[event.signal];
  }

  Network& net_;
  std::uint32_t rank_, ranks_;
  LoopbackTransport transport_;
  Bytes address_;
};

}  // namespace cenote::collectives::loopback
