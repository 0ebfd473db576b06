// Nic: one port of one device, opened: protection domain, completion queue, shared receive queue with its
// buffers. Everything that a transport makes on this port hangs on it, so it ends last. Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/memory.h"
#include "transports/verbs/port.h"
#include "transports/verbs/verbs.h"
#include "transports/verbs/verbs_api.h"

namespace cenote::transport::verbs {

class Rail;

inline constexpr std::size_t max_message = 8192;
/// Begins every message on the wire.
struct MessageHead {
  std::uint32_t number = 0;  ///< of the endpoint's events
  std::uint8_t type = 0;
  std::uint8_t parts = 1;
  std::uint8_t zero[2]{};
  std::uint64_t value = 0;
};
inline constexpr std::size_t slot_size = max_message + sizeof(MessageHead);

/// A resource of libibverbs; `end` destroys it.
template <class T>
class Owned {
 public:
  Owned() = default;
  Owned(T* object, int (*end)(T*)) : object_(object), end_(end) {}
  Owned(Owned&& other) noexcept : object_(std::exchange(other.object_, nullptr)), end_(other.end_) {}
  Owned& operator=(Owned&& other) noexcept {
    if (this != &other) {
      reset();
      object_ = std::exchange(other.object_, nullptr);
      end_ = other.end_;
    }
    return *this;
  }
  ~Owned() { reset(); }
  void reset() {
    if (T* old = std::exchange(object_, nullptr); old != nullptr) (void)end_(old);
  }
  [[nodiscard]] T* get() const { return object_; }
  T* operator->() const { return object_; }
  [[nodiscard]] explicit operator bool() const { return object_ != nullptr; }

 private:
  T* object_ = nullptr;
  int (*end_)(T*) = nullptr;
};
using Mr = Owned<ibv_mr>;

/// What libibverbs lists.
struct DeviceList {
  const VerbsApi& api;
  int count = 0;
  ibv_device** list = nullptr;
  explicit DeviceList(const VerbsApi& table) : api(table) { list = api.get_device_list(&count); }
  ~DeviceList() {
    if (list != nullptr) api.free_device_list(list);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;
};

/// "ACTIVE", "DOWN" ...
const char* port_state_name(ibv_port_state state);

class Nic {
 public:
  static Result<std::unique_ptr<Nic>> open(const VerbsApi& api, ibv_device* device, std::uint8_t port,
                                           const VerbsOptions& options);
  Nic(const Nic&) = delete;
  Nic& operator=(const Nic&) = delete;

  /// Errors: resource_exhausted (locked memory: the remedy says how much there is), invalid_argument (not
  /// memory that a card can reach), system_error.
  Result<Mr> register_memory(void* address, std::size_t bytes, unsigned access) const;
  /// Device memory that is named by `address` from then on. Errors as register_memory.
  Result<Mr> register_dmabuf(const DmaBuf& memory, std::uint64_t address, std::size_t bytes,
                             unsigned access) const;
  /// Without the rights that this card does not have: they would make it refuse the memory.
  [[nodiscard]] unsigned rights(unsigned access) const {
    return port.atomics ? access : access & ~static_cast<unsigned>(IBV_ACCESS_REMOTE_ATOMIC);
  }
  [[nodiscard]] std::span<std::byte> slot(std::uint32_t index) {
    return std::span(slots_).subspan(std::size_t{index} * slot_size, slot_size);
  }
  /// The buffer goes back to the receive queue, at the next give_back() at the latest.
  void free_slot(std::uint32_t index) { free_.push_back(index); }
  Result<void> give_back();
  [[nodiscard]] std::size_t free_slots() const { return free_.size(); }
  /// As many of them wait for a moment without anything else to do.
  [[nodiscard]] std::size_t slots_kept() const { return receive_list_.size() / 8 + 1; }
  std::uint32_t idle_polls = 0;  ///< since the last completion

  /// Wakes the sleeper at the next completion.
  Result<void> request_wakeup();
  /// "ACTIVE", "DOWN" ..., asked now.
  [[nodiscard]] std::string state_in_words() const;
  /// Takes the wake-ups that have come.
  void take_wakeups();

  const VerbsApi& api;
  Port port;
  std::uint8_t port_number = 1;
  std::uint32_t max_chunk = 0;  ///< bytes of one work request
  std::uint32_t max_depth = 0;  ///< work requests of a queue pair
  std::uint32_t next_path = 0;  ///< counts queue pairs that were given path bits
  std::uint32_t send_room = 0;  ///< of the completion queue, for what is sent
  /// Null: it is none, or no more.
  [[nodiscard]] Rail* rail_of(std::uint32_t queue_pair) {
    if (queue_pair != latest_.first) {
      const auto found = rails_.find(queue_pair);
      if (found == rails_.end()) return nullptr;
      latest_ = *found;
    }
    return latest_.second;
  }
  void add(std::uint32_t queue_pair, Rail* rail) { rails_[queue_pair] = rail; }
  void remove(std::uint32_t queue_pair) {
    rails_.erase(queue_pair);
    latest_ = {};
  }
  Owned<ibv_context> context;
  Owned<ibv_pd> pd;
  Owned<ibv_comp_channel> channel;
  Owned<ibv_cq> cq;
  Owned<ibv_srq> srq;

 private:
  explicit Nic(const VerbsApi& table) : api(table) {}
  Result<void> describe(const ibv_device_attr& device, const VerbsOptions& options);
  Result<void> describe_paths(const ibv_port_attr& attributes, const VerbsOptions& options);
  Result<void> read_gids(int only);
  [[nodiscard]] Error not_registered(std::size_t bytes, int number) const;
  Result<void> make_queues(const ibv_device_attr& device, const VerbsOptions& options);

  std::unordered_map<std::uint32_t, Rail*> rails_;  ///< by queue pair number
  std::pair<std::uint32_t, Rail*> latest_{};        ///< that was asked for
  std::vector<std::byte> slots_;
  Mr slots_mr_;
  std::vector<std::uint32_t> free_;
  std::vector<ibv_recv_wr> receive_list_;
  std::vector<ibv_sge> receive_parts_;
};

/// Whether card and kernel open dma-bufs, asked without registering anything. Errors: not_supported.
Result<void> takes_dmabufs(const VerbsApi& api, ibv_pd* domain);
/// Every port that the options allow and that is up. Errors as make_verbs_transport.
Result<std::vector<std::unique_ptr<Nic>>> open_nics(const VerbsApi& api, const VerbsOptions& options);

/// wr_id of a receive: this bit and the slot.
inline constexpr std::uint64_t receive_mark = std::uint64_t{1} << 63;

}  // namespace cenote::transport::verbs
