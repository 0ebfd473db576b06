// Link: one way from this transport to a peer's, shared by all endpoints between the two. It lives as long as
// either transport: two sides that opened and closed it each in their own time would confuse UCX's pairing of
// connections.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "transports/ucx/frame.h"
#include "transports/ucx/worker.h"

namespace cenote::transport::ucx {

/// Where a frame's payload lies while UCX has not sent it.
enum class Payload : bool { copied, referred };

class Link {
 public:
  static constexpr std::size_t short_limit = 40;  ///< payloads that UCX is asked to take at once

  /// Errors: peer_failed, system_error.
  static Result<std::shared_ptr<Link>> open(Worker& worker, std::span<const std::byte> peer_address);
  ~Link() { abandon(); }
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Hands a frame to UCX. Its number, counted from 1; 0: no room now.
  std::uint64_t post(const Frame& frame, std::span<const std::byte> data, Payload payload);
  /// All frames up to this one have left: the kernel, the network card or the peer's memory has them.
  [[nodiscard]] std::uint64_t left() const;
  /// UCX needs nothing more of this frame.
  [[nodiscard]] bool accepted(std::uint64_t number) const { return number <= accepted(); }
  /// Whether the last frame may have left, and only a further one would tell.
  [[nodiscard]] bool in_doubt() const;
  /// The peer has had all frames up to this one.
  void confirm(std::uint64_t number);
  /// Takes copies of the payloads that frames of this session still refer to: their memory is the caller's
  /// again.
  void take_back(std::uint64_t session);
  /// Gives it back to UCX. Only where it is at fault, or its peer has gone long ago: UCX 1.13 aborts the
  /// process when a TCP connection is lost while it is being closed. Only outside of UCX's callbacks.
  void close();
  /// Leaves it to the end of the worker.
  void abandon();
  [[nodiscard]] ucp_ep_h get() const { return ep_; }
  /// Why it is of no use any more.
  [[nodiscard]] std::optional<ucs_status_t> fault() const { return fault_; }

 private:
  static constexpr std::size_t slot_count = 32;
  /// A frame that UCX has and may still read.
  struct Slot {
    Frame frame;
    Bytes copy;
    Source source;
    std::uint64_t number = 0;
    bool busy = false;
    bool referring = false;
    Link* link = nullptr;  ///< null once the link is gone
    const UcpApi* api = nullptr;
  };
  using Slots = std::array<Slot, slot_count>;

  explicit Link(Worker& worker);
  static void sent(void* request, ucs_status_t status, void* slot);
  static void failed(void* self, ucp_ep_h ep, ucs_status_t status);
  std::uint64_t post_short(const Frame& frame, std::span<const std::byte> data);
  void release();
  [[nodiscard]] Slot& slot(std::uint64_t index) const { return (*slots_)[index % slot_count]; }
  /// The last frame before the first that UCX still has.
  [[nodiscard]] std::uint64_t accepted() const { return head_ == tail_ ? posted_ : slot(head_).number - 1; }

  Worker& worker_;
  ucp_ep_h ep_ = nullptr;
  std::shared_ptr<Slots> slots_;
  std::uint64_t head_ = 0, tail_ = 0;         ///< of the slots in use
  std::uint64_t posted_ = 0, confirmed_ = 0;  ///< frames
  std::uint64_t unconfirmed_ = 0;             ///< bytes posted since the peer had all
  std::optional<ucs_status_t> fault_;
};

}  // namespace cenote::transport::ucx
