// FaultEndpoint: operations taken apart into parts (bytes, signal, get, add, message), which are held back
// and let go in any order that the contract allows. What an operation's parts are, and how late each is, is
// drawn when it is posted.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transports/fault/fault_plan.h"
#include "transports/transport.h"

namespace cenote::transport::fault {

class FaultEndpoint;

struct FaultCore;

/// What the transports of one member share.
struct MemberState {
  FaultPlan plan;
  FaultTally* tally = nullptr;
  std::uint64_t operations = 0;  ///< posted, over all endpoints
  std::uint64_t spoilable = 0;   ///< of them that a sabotage could fall on
  bool frozen = false;
  std::vector<FaultCore*> cores{};

  void count(Fault fault) {
    if (tally != nullptr) ++tally->of[static_cast<std::size_t>(fault)];
  }
  /// Ends every endpoint as the end of the process would.
  void kill();
};

/// What a transport and its endpoints share; it lives as long as any of them.
struct FaultCore {
  FaultCore(std::shared_ptr<MemberState> of, std::unique_ptr<Transport> transport);
  ~FaultCore();
  FaultCore(const FaultCore&) = delete;
  FaultCore& operator=(const FaultCore&) = delete;
  void die(const Error& error);

  std::shared_ptr<MemberState> member;
  std::unique_ptr<Transport> inside;  ///< null: killed, or its transport was destroyed
  std::mutex inside_mutex;            ///< held where `inside` goes, and by interrupt()
  std::size_t max_message = 0;
  std::vector<FaultEndpoint*> endpoints{};
  std::optional<Error> killed{};
  bool happened = false;
};

class FaultEndpoint final : public Endpoint {
 public:
  FaultEndpoint(std::shared_ptr<FaultCore> core, std::unique_ptr<Endpoint> inside, std::uint32_t channel);
  ~FaultEndpoint() override;
  FaultEndpoint(const FaultEndpoint&) = delete;
  FaultEndpoint& operator=(const FaultEndpoint&) = delete;

  Result<void> put(std::span<const std::byte> src, RemoteSlice dst, std::uint32_t signal,
                   std::uint64_t tag) override;
  Result<void> get(std::span<std::byte> dst, RemoteSlice src, std::uint64_t tag) override;
  Result<void> atomic_add(RemoteSlice dst, std::uint64_t value, std::uint64_t* old,
                          std::uint64_t tag) override;
  Result<void> send(std::span<const std::byte> message) override;
  Result<std::optional<std::size_t>> receive(std::span<std::byte> out) override;
  [[nodiscard]] std::uint64_t signal(std::uint32_t slot) const override;
  std::size_t poll(std::span<Completion> out) override;
  [[nodiscard]] bool drained() const override;
  [[nodiscard]] std::optional<Error> failure() const override;
  void close(std::string_view reason) override;
  [[nodiscard]] EndpointStats stats() const override { return inside_ ? inside_->stats() : EndpointStats{}; }
  [[nodiscard]] std::string_view transport_name() const override { return name_; }
  [[nodiscard]] const std::string& peer_name() const override { return peer_; }

  /// One step. True when anything moved.
  bool advance();
  /// Whether more steps would move something.
  [[nodiscard]] bool restless() const;
  void die(const Error& error);

 private:
  struct Part {
    enum class Kind : std::uint8_t { bytes, signal, get, add, message, mark };
    Kind kind = Kind::bytes;
    bool never = false;  ///< it is lost
    std::uint32_t delay = 0;
    std::uint64_t operation = 0;
    RemoteKey key{};
    std::uint64_t offset = 0;
    std::span<const std::byte> src{};
    std::span<std::byte> dst{};
    std::uint32_t slot = no_signal;
    std::uint64_t value = 0;
    std::uint64_t* old = nullptr;
    Bytes message{};

    [[nodiscard]] std::size_t length() const {
      if (kind == Kind::add) return sizeof(std::uint64_t);
      return kind == Kind::get ? dst.size() : src.size();
    }
    [[nodiscard]] bool overlaps(const Part& other) const;
    [[nodiscard]] bool must_follow(const Part& earlier) const;
  };
  struct Open {
    std::uint64_t tag = 0;
    std::size_t parts = 0;  ///< held or under way
    std::optional<Error> error{};
    Bytes damaged{};
  };
  struct Told {
    Completion completion{};
    std::uint32_t hold = 0;
  };
  struct Ahead {
    Bytes bytes;
    std::uint32_t hold = 0;
  };

  [[nodiscard]] const FaultPlan& plan() const { return core_->member->plan; }
  [[nodiscard]] bool frozen() const { return core_->member->frozen; }
  [[nodiscard]] bool decide(Fault fault, std::uint64_t n, std::uint32_t one_in) const;
  [[nodiscard]] std::uint32_t late(Fault fault, std::uint64_t n, std::uint32_t one_in,
                                   std::uint32_t most) const;
  Result<std::uint64_t> admit(const char* stage);
  Open& open(std::uint64_t number, std::uint64_t tag);
  void hold(Part part, std::uint64_t number);
  void hold_pieces(const Part& whole, std::uint64_t number);
  void posted();
  [[nodiscard]] bool strikes(std::uint64_t number);
  [[nodiscard]] bool spoils(Sabotage what);
  bool spoil_put(Part& bytes, std::uint32_t signal, Open& operation, std::uint64_t number);
  [[nodiscard]] bool may_go(std::size_t index) const;
  Result<void> post(const Part& part);
  bool let_go(std::size_t index);
  bool release();
  void flush();
  void take_completions();
  void part_done(std::uint64_t operation, std::optional<Error> error);
  void finish(std::uint64_t operation, std::optional<Error> error);
  void end_all();
  void fall();
  [[nodiscard]] bool failed() const { return failure_ || (inside_ && inside_->failure()); }

  std::shared_ptr<FaultCore> core_;
  std::unique_ptr<Endpoint> inside_;
  std::string name_, peer_;
  std::uint64_t stream_ = 0;
  std::uint64_t next_ = 0, tries_ = 0, taken_ = 0;
  std::deque<Part> held_;
  std::map<std::uint64_t, Open> open_;
  std::deque<Told> told_;
  Bytes room_;
  std::optional<Ahead> ahead_;  ///< a message that has been taken and is not handed out yet
  mutable std::array<std::uint64_t, signal_slots> shown_{};
  mutable std::array<std::uint32_t, signal_slots> hidden_{};  ///< steps for which shown_ is not the latest
  std::uint32_t doom_ = 0;                                    ///< steps until a blow is told; 0: none
  std::optional<Error> failure_;
};

}  // namespace cenote::transport::fault
