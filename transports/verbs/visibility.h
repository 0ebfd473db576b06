// Visibility: what a card has written into GPU memory may be known to be there before the GPU shows it. While
// such memory is registered, whoever is to be told of an arrival (a signal, a message, a get that is done)
// is told after a round: all devices are flushed, by the call of their drivers or by a read of each card from
// its own memory there, which does not overtake the card's writes.
//
// One round serves everything that was polled before it; what arrives meanwhile waits for the next.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/memory.h"
#include "transports/verbs/registration.h"

namespace cenote::transport::verbs {

class VerbsCore;

class Visibility {
 public:
  explicit Visibility(VerbsCore& core) : core_(core) {}
  ~Visibility() = default;
  Visibility(const Visibility&) = delete;
  Visibility& operator=(const Visibility&) = delete;

  /// Of memory that the cards write into. Nothing to do where the GPU shows writes at once. Errors: those of
  /// making a queue pair, for reading back.
  Result<void> add(const Registered& region, const MemoryDescription& memory);
  void remove(const Registered& region);
  /// Whether arrivals have to wait.
  [[nodiscard]] bool watches() const { return !devices_.empty(); }

  /// Something has arrived: the round after which it may be told.
  [[nodiscard]] std::uint64_t want() {
    wanted_ = true;
    return begun_ + 1;
  }
  [[nodiscard]] std::uint64_t done() const { return done_; }
  /// Begins the next round, where one is wanted and none is under way. Errors: driver_error, system_error.
  Result<void> proceed();
  /// The round under way failed, and so did whoever waited for it or for the next.
  void abandon();
  /// A completion that is no rail's. Errors: system_error (the card could not read its own writes back).
  Result<void> returned(const ibv_wc& completion);

 private:
  /// A queue pair of a card that is connected to itself.
  struct Loop {
    Nic* nic = nullptr;
    std::uint32_t id = 0;
    std::uint32_t posted = 0, finished = 0;  ///< reads, counted; a completion tells of those before it
    Owned<ibv_qp> queue_pair;
  };
  struct Device {
    std::shared_ptr<const DeviceAccess> access;
    std::string home;
    std::vector<const Registered*> regions;
  };
  Result<void> make_loops();
  void drop_loops();
  Result<void> connect(const Loop& loop) const;
  Result<void> read_back(const Device& device);

  VerbsCore& core_;
  std::vector<Device> devices_;
  std::vector<Loop> loops_;  ///< by card; made at first need
  std::uint64_t word_ = 0;   ///< where what was read back lands
  std::unique_ptr<Registered> word_memory_;
  bool wanted_ = false;
  std::uint64_t begun_ = 0, done_ = 0;
  std::uint64_t lost_ = 0;  ///< the round in which a region went away, with what was reading it
  std::size_t reads_ = 0;   ///< of the round under way
};

}  // namespace cenote::transport::verbs
