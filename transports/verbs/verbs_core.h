// VerbsCore: what the verbs transport, its endpoints and its regions share. It lives as long as any of them,
// so they may be destroyed in any order.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "transports/side_channel.h"
#include "transports/verbs/pinned.h"
#include "transports/verbs/rail.h"
#include "transports/verbs/registration.h"
#include "transports/verbs/visibility.h"

namespace cenote::transport::verbs {

class VerbsEndpoint;

struct VerbsAddress {
  AddressHeader header;
  MeetingPlace side;
  std::uint8_t infiniband = 0, ethernet = 0;  ///< ports of either kind
  static Result<VerbsAddress> parse(std::span<const std::byte> bytes);
  [[nodiscard]] Bytes bytes() const;
};

/// What the sides say to each other beside the data path.
enum class Note : std::uint8_t {
  ports = 1,  ///< where the data is (RailHome), u8 count, ports
  offer,      ///< u8 attempt, u8 count, RailOffers
  primed,     ///< u8 attempt: the queue pairs of the offers are connected
  proved,     ///< u8 attempt, u8 count, u8 each: whether a write over it was acknowledged
  farewell,   ///< u64 events that still arrive or have arrived (0: what has arrived), the reason
  gone,       ///< u8 lane, u32 parts of events that came over it: its rail is down, nothing can land any more
  revive,     ///< u8 lane, RailOffer: a new rail for it
  revived,    ///< u8 lane, RailOffer: the answer, connected
  up,         ///< u8 lane: a write over it was acknowledged
  not_up,     ///< u8 lane: it could not be revived
  park,       ///< u64 events sent so far: may all rails be taken down? Or the answer: yes
  stay,       ///< the answer: no, it is used
  wake,       ///< of who did not dial: parked rails are wanted back
};

/// A connection whose endpoint has ended, while its last words leave.
struct Parting {
  std::vector<std::unique_ptr<Rail>> rails;
  std::unique_ptr<SideChannel> side;
  std::uint64_t serial = 0;
  Clock::time_point until;
};

class VerbsCore final : public SideCore<VerbsEndpoint, VerbsAddress> {
 public:
  static Result<std::shared_ptr<VerbsCore>> create(const VerbsOptions& options);
  ~VerbsCore() override;
  VerbsCore(const VerbsCore&) = delete;
  VerbsCore& operator=(const VerbsCore&) = delete;

  [[nodiscard]] Result<void> reachable(const VerbsAddress& peer) const;
  bool progress();
  bool arm();
  void disarm();
  void shut();

  void remove(VerbsEndpoint* endpoint) { std::erase(endpoints, endpoint); }
  Result<std::unique_ptr<Rail>> make_rail(VerbsEndpoint& owner, std::size_t nic);
  /// A number that no rail has, for the wr_id of what is posted beside them.
  Result<std::uint32_t> take_rail_id();
  void give_rail_id(std::uint32_t id);
  /// Its completions find nobody from then on.
  void forget(const Rail& rail);
  void part(Parting parting);
  /// What arrived can not be made visible: whoever waits for it has failed.
  void break_waiting(const Error& error);
  /// Counts the calls of progress(): what was polled dry in a later one than a note came in, came before it.
  [[nodiscard]] std::uint64_t round() const { return round_; }
  /// Whether there is nothing to do but to take completions and to look at the sockets now and then. Whoever
  /// changes how an endpoint stands, or finishes what told of later work, clears it (or sets `happened`).
  bool settled = false;
  [[nodiscard]] const std::vector<Port>& ports() const { return ports_; }
  [[nodiscard]] const RailHome& home() const { return home_; }

  VerbsOptions options;
  std::vector<std::unique_ptr<Nic>> nics;
  std::unique_ptr<Registrations> registrations;
  Blocks blocks;
  std::uint64_t probe_word = 0;  ///< where peers' probes land
  std::unique_ptr<Registered> probe_memory;
  Visibility visibility{*this};
  /// Arrivals are told only when they can be seen: some memory asks for it, or some wait for it still.
  bool gated = false;
  /// GPU memory of this side that peers reach by messages, by the number in its key.
  struct StagedRegion {
    const Registered* memory = nullptr;
    std::array<std::uint32_t, 4> token{};
  };
  std::unordered_map<std::uint64_t, StagedRegion> staged;
  /// The way of bytes to a device, shared by all its regions.
  Result<std::shared_ptr<Pinned>> pinned_for(const std::shared_ptr<const DeviceAccess>& device);
  std::size_t device_regions = 0;

 private:
  VerbsCore() = default;
  Result<void> open(const VerbsOptions& options);
  /// Makes visible what has arrived, and tells of it. True: somebody was told.
  bool settle();
  /// True: completions came. `dry`: none is left.
  bool poll(bool& dry);
  bool poll(Nic& nic, bool& dry);
  bool proceed(bool any, bool dry, bool due);
  /// Its free buffers go back to its receive queue, if there are that many.
  void give_back(Nic& nic, std::size_t least);
  void sent(const ibv_wc& completion);
  void received(Nic& nic, const ibv_wc& completion);
  void fail_all(const Nic& nic, const std::string& cause);
  bool look();
  /// parking.cpp: asks those that are idle to park, while more have queue pairs than the options say.
  void keep_bound();
  void end_parting(Parting& parting);
  bool proceed_parting(Parting& parting, bool hung_up);
  bool proceed_partings();
  void take_async_events(Nic& nic);
  [[nodiscard]] Rail* rail_of(std::uint64_t work);

  std::shared_ptr<const VerbsApi> api_;
  std::vector<Port> ports_;
  RailHome home_;
  std::vector<std::uint64_t> nic_serials_, async_serials_;
  std::vector<Rail*> rails_;  ///< by the low half of their id
  std::vector<std::uint32_t> free_ids_;
  std::vector<Parting> partings_;
  std::uint64_t round_ = 0;
  std::vector<std::pair<std::weak_ptr<const DeviceAccess>, std::weak_ptr<Pinned>>> pinned_;
};

}  // namespace cenote::transport::verbs
