// Pinned: memory of the host through which the cards come to one device's memory where they cannot by
// themselves, and the copies between the two, which go on while others are sent or received.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/deadline.h"
#include "runtime/memory.h"
#include "transports/verbs/registration.h"

namespace cenote::transport::verbs {

class Pinned {
 public:
  static constexpr std::size_t size = std::size_t{64} * 1024;  ///< of a slot
  static constexpr std::uint32_t slots = 16;                   ///< to send from; as many to land in

  /// Errors: driver_error (nothing can be pinned), those of Registrations::make.
  static Result<std::shared_ptr<Pinned>> open(const Registrations& registrations,
                                              std::shared_ptr<const DeviceAccess> access,
                                              Clock::duration patience);
  ~Pinned();
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

  // Slots to send from, or to be written by a card.
  [[nodiscard]] std::uint32_t take();  ///< Blocks::none: all are in use
  void give(std::uint32_t slot) { free_.push_back(slot); }
  [[nodiscard]] std::byte* at(std::uint32_t slot) const { return copies_->pinned().data() + slot * size; }
  [[nodiscard]] std::uint32_t lkey(std::size_t nic) const { return registered_->regions[nic]->lkey; }

  // Copies, done in the order in which they were begun: their number. Errors: driver_error;
  // deadline_exceeded, also of every later call: the device has finished none for `patience`, and may still
  // touch the slots.
  Result<std::uint64_t> fetch(std::byte* slot, std::uint64_t device, std::size_t bytes) {
    if (stuck_) return fail(*stuck_);
    return noted(copies_->from_device(slot, device, bytes));
  }
  Result<std::uint64_t> store(std::uint64_t device, const std::byte* slot, std::size_t bytes) {
    if (stuck_) return fail(*stuck_);
    return noted(copies_->to_device(device, slot, bytes));
  }
  /// The same of bytes that may go away at once: at most `size` of them. Waits for the device, when all slots
  /// to land in are on their way.
  Result<std::uint64_t> land(std::uint64_t device, std::span<const std::byte> bytes);
  /// Whether that copy is done.
  Result<bool> is_done(std::uint64_t copy);
  /// Waits for the device.
  Result<void> finish_all();

  /// Which of the transport's it is.
  std::uint32_t number = 0;

 private:
  Pinned(std::shared_ptr<const DeviceAccess> access, Clock::duration patience)
      : access_(std::move(access)), patience_(patience) {}
  Result<std::uint64_t> noted(Result<std::uint64_t> copy);

  std::shared_ptr<const DeviceAccess> access_;
  std::unique_ptr<DeviceCopies> copies_;
  std::unique_ptr<Registered> registered_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint64_t> landing_;  ///< by slot to land in: its latest copy
  std::uint32_t next_landing_ = 0;
  std::uint64_t latest_ = 0;
  std::uint64_t finished_ = 0;        ///< as last seen
  Clock::time_point finished_since_;  ///< when that was, or the first under way was begun
  Clock::duration patience_;
  std::optional<Error> stuck_;
};

}  // namespace cenote::transport::verbs
