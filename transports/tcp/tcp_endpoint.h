// TcpEndpoint: one connected pair over a socket. What goes out is in tcp_endpoint.cpp, what comes in in
// tcp_receive.cpp.
#pragma once

#include <array>
#include <memory>

#include "transports/endpoint_base.h"
#include "transports/tcp/frame.h"
#include "transports/tcp/note.h"
#include "transports/tcp/send_queue.h"
#include "transports/tcp/tcp_core.h"

namespace cenote::transport::tcp {

class TcpEndpoint final : public EndpointBase {
 public:
  static Result<std::unique_ptr<TcpEndpoint>> connect(std::shared_ptr<TcpCore> core, TcpAddress peer,
                                                      std::string peer_name, std::uint32_t channel,
                                                      Deadline deadline);
  ~TcpEndpoint() override;
  TcpEndpoint(const TcpEndpoint&) = delete;
  TcpEndpoint& operator=(const TcpEndpoint&) = delete;

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
  [[nodiscard]] bool drained() const override { return failure_ != nullptr || out_.empty(); }
  void close(std::string_view reason) override;
  [[nodiscard]] std::string_view transport_name() const override { return "tcp"; }

  // For the core.
  [[nodiscard]] std::uint64_t serial() const { return serial_; }
  [[nodiscard]] bool is(std::uint64_t peer, std::uint32_t channel) const {
    return peer_.header.id == peer && channel_ == channel && !failure_;
  }
  [[nodiscard]] bool waits_for_guest() const { return stage_ == Stage::waiting && !failure_; }
  [[nodiscard]] bool is_unsettled() const { return stage_ != Stage::ready && !failure_; }
  [[nodiscard]] bool has_unsent() const { return !failure_ && stage_ == Stage::ready && !out_.empty(); }
  void adopt(std::uint64_t serial, Guest guest);
  /// Sends what waits. True: something left.
  bool flush();
  /// Reads what is there and acts on it. True: something came.
  bool read();
  void tick();
  /// Somebody brought the peer's farewell, or says so.
  void hear(const Note& note);
  /// Wakes the transport also when there is room to send.
  void watch_room(bool on);
  void break_with(Error error, bool tell_peer = true);

 private:
  enum class Stage : std::uint8_t { greeting, proving, waiting, ready };
  /// Sent to the peer, not answered; answers come in this order.
  struct Awaited {
    FrameType type{};
    std::span<std::byte> dst{};
    std::uint64_t* old = nullptr;
    std::uint64_t tag = 0;
  };
  /// The payload that is arriving.
  struct Arriving {
    FrameType type{};
    Frame frame;
    std::uint64_t taken = 0;
  };

  TcpEndpoint(std::shared_ptr<TcpCore> core, TcpAddress peer, std::string name, std::uint32_t channel,
              Deadline deadline);
  void say_goodbye(std::string_view reason);
  /// `end`: how many bytes the kernel has been given for the peer; none will follow.
  void leave_note(std::span<const std::byte> reason, std::uint64_t end);
  [[nodiscard]] bool dials() const { return core_->self.header.id > peer_.header.id; }
  Result<void> dial();
  Result<void> shake_hands();
  Result<bool> read_exactly(std::size_t count);

  /// The frame of an operation on the peer's memory; checks the key and the bounds that it carries.
  Result<Frame> frame_for(FrameType type, const RemoteSlice& slice, std::uint64_t length, const char* stage);
  [[nodiscard]] bool full() const { return done_.size() + awaited_.size() + out_.tagged() >= queue_depth; }
  void post(const Frame& frame, std::span<const std::byte> body, std::optional<std::uint64_t> tag,
            std::uint64_t region = 0);

  /// Parses whole frames; returns how many bytes were used.
  Result<std::size_t> parse(std::span<const std::byte> bytes);
  Result<std::size_t> begin(const Frame& frame, std::span<const std::byte> rest);
  Result<std::span<std::byte>> arriving_target();
  void arrived();
  Result<void> serve_get(const Frame& frame);
  Result<void> serve_add(const Frame& frame);
  Result<void> take_add_reply(const Frame& frame);
  Result<void> take_message(std::span<const std::byte> body);

  Stage stage_ = Stage::waiting;
  bool sent_since_progress_ = false;
  bool watching_room_ = false;
  bool reading_ = false;
  std::size_t window_used_ = 0;  ///< of messages to the peer
  UniqueFd fd_;
  SendQueue out_;
  std::uint64_t sent_past_queue_ = 0;  ///< bytes that never were in out_
  std::uint64_t received_ = 0;         ///< bytes since the handshake
  RingQueue<Awaited> awaited_;
  std::optional<Arriving> arriving_;
  Bytes rest_;  ///< the beginning of a frame
  Inbox inbox_;
  std::array<std::uint64_t, signal_slots> signals_{};

  std::shared_ptr<TcpCore> core_;
  TcpAddress peer_;
  std::uint32_t channel_;
  Deadline deadline_;
  PeerProcess process_;
  std::uint64_t serial_ = 0;
  Nonce acceptor_nonce_{};
  Hello hello_;
  Bytes handshake_;
  std::optional<Bytes> note_;
  std::uint64_t note_end_ = 0;  ///< the connection ends when as many bytes have been received
};

}  // namespace cenote::transport::tcp
