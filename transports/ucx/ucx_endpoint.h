// UcxEndpoint: one connected pair over UCX. How it comes to be and ends is in ucx_connect.cpp, what goes out
// in ucx_endpoint.cpp, what comes in in ucx_receive.cpp.
#pragma once

#include <array>
#include <memory>

#include "transports/endpoint_base.h"
#include "transports/ucx/frame.h"
#include "transports/ucx/ucx_core.h"

namespace cenote::transport::ucx {

class UcxEndpoint final : public EndpointBase {
 public:
  static Result<std::unique_ptr<UcxEndpoint>> connect(std::shared_ptr<UcxCore> core, UcxAddress peer,
                                                      std::string peer_name, std::uint32_t channel,
                                                      Deadline deadline);
  ~UcxEndpoint() override;
  UcxEndpoint(const UcxEndpoint&) = delete;
  UcxEndpoint& operator=(const UcxEndpoint&) = delete;

  Result<void> put(std::span<const std::byte> src, RemoteSlice dst, std::uint32_t signal,
                   std::uint64_t tag) override;
  Result<void> get(std::span<std::byte> dst, RemoteSlice src, std::uint64_t tag) override;
  Result<void> atomic_add(RemoteSlice dst, std::uint64_t value, std::uint64_t* old,
                          std::uint64_t tag) override;
  Result<void> send(std::span<const std::byte> message) override;
  Result<std::optional<std::size_t>> receive(std::span<std::byte> out) override;
  [[nodiscard]] std::uint64_t signal(std::uint32_t slot) const override {
    return slot < signal_slots ? signals_[slot] : 0;
  }
  [[nodiscard]] bool drained() const override;
  void close(std::string_view reason) override;
  [[nodiscard]] std::string_view transport_name() const override { return "ucx"; }

  // For the core.
  [[nodiscard]] std::uint64_t serial() const { return serial_; }
  [[nodiscard]] bool is(std::uint64_t peer, std::uint32_t channel) const {
    return peer_.header.id == peer && channel_ == channel && !failure_;
  }
  [[nodiscard]] bool waits_for_guest() const { return stage_ == Stage::waiting && !failure_; }
  [[nodiscard]] bool is_unsettled() const { return stage_ != Stage::ready && !failure_; }
  void adopt(std::uint64_t serial, SideGuest guest);
  /// A frame has come, within the worker's progress: nothing is sent and nothing fails here.
  void take(const Frame& frame, std::span<const std::byte> data);
  /// Acts on what has come: faults, the peer's end. True: something happened.
  bool settle();
  /// Sends what waits, finishes what has left. True: something did.
  bool flush();
  /// Reads the socket.
  void read();
  void tick();

 private:
  enum class Stage : std::uint8_t { greeting, proving, waiting, introducing, wiring, ready };
  enum class PacketType : std::uint8_t { introduction = 1, farewell };
  /// Posted, not yet whole with UCX.
  struct Operation {
    Frame frame;                        ///< as it would be with all bytes in one
    const std::byte* source = nullptr;  ///< of a put or message; null: `own`, or the region of a get_reply
    std::uint64_t sent = 0;             ///< bytes
    bool tagged = false;
    std::uint64_t tag = 0;
    Bytes own{};
  };
  /// With UCX, and not known to have left.
  struct Sent {
    std::uint64_t number = 0;  ///< of the link
    std::uint32_t frames = 0;  ///< of this endpoint, it included
    bool tagged = false;
    std::uint64_t tag = 0;
  };
  /// Sent to the peer, not answered; answers come in this order.
  struct Awaited {
    FrameType type{};
    std::span<std::byte> dst{};
    std::size_t taken = 0;
    std::uint64_t* old = nullptr;
    std::uint64_t tag = 0;
  };
  struct Farewell {
    std::uint32_t frames = 0;  ///< that had left when it was said
    bool transport_ends = false;
    Bytes reason;
    Clock::time_point until;
  };

  UcxEndpoint(std::shared_ptr<UcxCore> core, UcxAddress peer, std::string name, std::uint32_t channel,
              Deadline deadline);
  [[nodiscard]] bool dials() const { return core_->self.header.id > peer_.header.id; }
  Result<void> dial();
  Result<void> shake_hands();
  Result<void> introduce();
  Result<void> read_packets();
  Result<void> take_packet(std::span<const std::byte> packet);
  /// Whether UCX's own connection stands.
  bool wire();
  Result<void> tell(PacketType type, std::span<const std::byte> body);
  void break_with(Error error, bool tell_peer = true);
  void say_goodbye(std::string_view reason);
  [[nodiscard]] std::optional<Error> end_of_peer();
  [[nodiscard]] Error link_error() const;
  /// Nothing of the caller's memory is with UCX any more.
  void take_back();

  [[nodiscard]] bool full() const { return done_.size() + awaited_.size() + tagged_ >= queue_depth; }
  /// Puts key and bounds into a frame; false: they do not fit, and the endpoint has failed.
  bool aim(Frame& frame, const RemoteSlice& slice, std::uint64_t length, const char* stage);
  bool put_at_once(Frame& frame, std::span<const std::byte> src, std::uint64_t tag);
  void post(Operation&& operation);
  void answer(const Frame& frame, std::span<const std::byte> data);
  /// Hands UCX what it takes now. False: something is left.
  bool advance(Operation& operation);
  std::uint64_t post_frame(Frame& frame, std::span<const std::byte> data, Payload payload);
  bool finish_left();

  Result<void> act_on(const Frame& frame, std::span<const std::byte> data);
  Result<void> take_put(const Frame& frame, std::span<const std::byte> data);
  Result<void> take_get_reply(const Frame& frame, std::span<const std::byte> data);
  Result<void> serve_get(const Frame& frame);
  Result<void> serve_add(const Frame& frame);
  Result<void> take_add_reply(const Frame& frame);
  Result<void> take_message(std::span<const std::byte> body);

  Stage stage_ = Stage::waiting;
  std::uint32_t posted_frames_ = 0, taken_frames_ = 0, left_frames_ = 0;
  std::uint64_t last_number_ = 0;  ///< the link's, of the frame posted last
  std::uint64_t probe_ = 0;        ///< the link's number of the first frame of all
  std::uint64_t session_ = 0, peer_session_ = 0;
  std::shared_ptr<Link> link_;
  RingQueue<Operation> out_;
  RingQueue<Sent> sent_;
  std::size_t tagged_ = 0;   ///< operations with a tag in out_ or sent_
  std::size_t answers_ = 0;  ///< in out_
  RingQueue<Awaited> awaited_;
  std::size_t window_used_ = 0;  ///< of messages to the peer
  Inbox inbox_;
  std::array<std::uint64_t, signal_slots> signals_{};
  std::optional<Error> fault_;  ///< found within the worker's progress

  std::shared_ptr<UcxCore> core_;
  UcxAddress peer_;
  std::uint32_t channel_;
  Deadline deadline_;
  PeerProcess process_;
  std::uint64_t serial_ = 0;
  UniqueFd fd_;
  Bytes got_;  ///< from the socket, not yet acted on
  Nonce acceptor_nonce_{};
  Hello hello_;
  std::optional<Error> ended_;  ///< how the socket ended
  std::optional<Farewell> farewell_;
};

}  // namespace cenote::transport::ucx
