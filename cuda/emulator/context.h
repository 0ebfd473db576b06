// ContextState: one context: its streams, its fault, what of the address space it may touch.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cuda/emulator/address_space.h"
#include "cuda/emulator/fault_state.h"
#include "cuda/emulator/stream.h"

namespace cenote::cuda::emulator {

struct ContextOptions {
  std::uint64_t id = 0;
  int device = 0;
  bool primary = false;
  std::size_t charged = 0;  ///< bytes taken from the card
  bool adversarial = false;
  std::uint64_t seed = 0;
};

/// Thread-safe. shutdown() comes before the last reference goes.
class ContextState {
 public:
  explicit ContextState(ContextOptions options);
  ~ContextState();

  [[nodiscard]] std::uint64_t id() const { return options_.id; }
  [[nodiscard]] int device() const { return options_.device; }
  [[nodiscard]] bool primary() const { return options_.primary; }
  [[nodiscard]] std::size_t charged() const { return options_.charged; }
  [[nodiscard]] bool alive() const { return alive_.load(std::memory_order_acquire); }
  [[nodiscard]] FaultState& faults() { return *faults_; }

  [[nodiscard]] const std::shared_ptr<StreamQueue>& legacy() const { return legacy_; }
  std::shared_ptr<StreamQueue> create_stream(bool blocking);

  /// Queues `task` in `stream` after what CUDA says it follows: the legacy default stream and the blocking
  /// streams wait for each other. nullopt: no thread could be started, or the stream is closed.
  std::optional<Mark> enqueue(const std::shared_ptr<StreamQueue>& stream, Task task,
                              std::vector<Mark> after = {});
  /// Waits for `stream`, and for the blocking ones too where it is the legacy one.
  void synchronize(const std::shared_ptr<StreamQueue>& stream);
  /// Waits for everything queued in this context before the call.
  void synchronize();
  bool wait(const Mark& mark) { return mark.stream->wait(mark.sequence, faults_->cancel); }

  /// False when the peer was enabled before.
  bool enable_peer(int device);
  /// What kernels may touch now.
  std::shared_ptr<const View> view(const AddressSpace& space);
  /// The next view() is a fresh one.
  void drop_view();

  /// Ends what is in flight, drops what is queued, joins the threads. Once; later calls return at once.
  void shutdown();

 private:
  std::vector<Mark> busy_streams(bool blocking_only);

  const ContextOptions options_;
  const std::shared_ptr<FaultState> faults_;
  std::atomic<bool> alive_{true};
  std::atomic<std::uint64_t> peers_;
  std::atomic<unsigned> blocking_streams_{0};
  std::shared_ptr<StreamQueue> legacy_;

  std::mutex streams_mutex_;
  std::vector<std::shared_ptr<StreamQueue>> streams_;  // all but the legacy one, closed ones until they end
  std::uint64_t stream_count_ = 0;

  std::mutex view_mutex_;
  std::shared_ptr<const View> view_;
};

}  // namespace cenote::cuda::emulator
