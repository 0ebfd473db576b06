// CommRank: one rank of a pooled communicator, in the worker that holds its device. It has a thread of its
// own, with its own fabric and communicator, so that a collective that waits for others holds up nothing else
// here.
//
// A collective is ordered in its stream by two words: the stream announces (by a fence) that its inputs are
// ready, and then waits for a word of device memory; the thread reduces and writes the word, whatever the
// outcome.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "cuda/driver.h"
#include "pool/remote/fence.h"
#include "pool/remote/worker.h"

namespace cenote::pool::remote {

class CommRank {
 public:
  struct Options {
    std::uint32_t rank = 0, size = 1;
    std::string id;
    std::string device;  ///< "cuda:0", for memory descriptions
    transport::FabricOptions fabric;
    Clock::duration init_timeout{};
    CollectiveOptions collectives{};
  };
  struct Operation {
    enum class Kind : std::uint8_t { allreduce, broadcast } kind = Kind::allreduce;
    std::uint64_t send = 0, recv = 0, count = 0;
    DataType type{};
    ReduceOp op{};
    std::uint32_t root = 0;
    std::uint64_t word = 0;  ///< device address to be written when done
    std::uint32_t value = 0;
    bool ready = false;  ///< false: the stream was lost before its inputs were there
  };

  /// `context` is a context of the device (the driver's); `release_stream` a non-blocking stream of it for
  /// the words.
  CommRank(cuda::Driver& driver, cuda::Context context, cuda::Stream release_stream, Waker& waker,
           Options options);
  /// Ends what is in flight and joins; does not wait for peers.
  ~CommRank();
  CommRank(const CommRank&) = delete;
  CommRank& operator=(const CommRank&) = delete;

  /// In the order of the ranks' collectives.
  void enqueue(const Operation& operation);
  void abort(const std::string& reason);

  /// Thread-safe. nullopt while it is being made; then whether that worked.
  [[nodiscard]] std::optional<bool> created() const;
  [[nodiscard]] std::optional<Error> failure() const;
  /// The failure, the first time it is asked for.
  std::optional<Error> fresh_failure();
  [[nodiscard]] std::vector<collectives::PeerStats> stats() const;

 private:
  void run();
  Result<std::unique_ptr<collectives::Communicator>> make();
  Result<void> perform(collectives::Communicator& communicator, const Operation& operation);
  void fail_with(Error error);
  void publish(const collectives::Communicator& communicator);
  [[nodiscard]] MemoryDescription describe(std::uint64_t address, std::size_t bytes) const;

  cuda::Driver& driver_;
  cuda::Context context_;
  cuda::Stream release_stream_;
  Waker& waker_;
  Options options_;
  CancelFlag cancel_;
  cuda::Stream copy_stream_ = nullptr;
  std::shared_ptr<const DeviceAccess> access_;

  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<Operation> queue_;
  std::optional<bool> created_;
  std::optional<Error> failure_;
  bool reported_ = false;
  bool ending_ = false;
  std::string abort_reason_;
  collectives::Communicator* live_ = nullptr;  ///< for abort(); guarded
  std::vector<collectives::PeerStats> stats_;
  std::thread thread_;
};

}  // namespace cenote::pool::remote
