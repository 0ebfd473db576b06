// Training of a small network on GPUs behind any cuda::Driver: data-parallel over shards, every kernel
// launched from here. The shards may lie on as many devices, whose gradients a RemoteCommunicator sums, or
// all on one device, which then sums them in the same order: both ways give the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "cuda/kernels/mlp_layout.h"
#include "pool/cli/demo_data.h"
#include "pool/remote/client_driver.h"
#include "runtime/deadline.h"
#include "runtime/result.h"

namespace cenote::pool::cli {

struct TrainPlan {
  cuda::kernels::MlpLayout layout;
  std::uint32_t epochs = 30;
  std::uint32_t batch = 40;  ///< rows of one shard in one step
  float rate = 0.1F, momentum = 0.9F;
  std::uint64_t seed = 1;          ///< of the first weights
  std::string algorithm = "auto";  ///< whose order of additions a single device repeats
};

/// Not thread-safe: it makes its devices' contexts current on the calling thread.
/// What hears of a training, from inside train(). Each may be empty.
struct TrainHooks {
  std::function<Result<void>(std::uint64_t step)> before_step;  ///< is issued; an error ends the training
  std::function<void(std::uint32_t epoch, float loss)> after_epoch;  ///< has ended, with its mean loss
};

class Trainer {
 public:
  virtual ~Trainer() = default;
  /// `device_of_shard`: ordinals; either all alike, with `sum` null, or each another with `sum` over the same
  /// ones in the same order. Loads the kernels and uploads the data. `driver`, `sum` and `cancel` outlive the
  /// trainer.
  static Result<std::unique_ptr<Trainer>> create(remote::RemoteDriver& driver, const TrainPlan& plan,
                                                 const Digits& data, const std::vector<int>& device_of_shard,
                                                 remote::RemoteCommunicator* sum, const CancelFlag& cancel);
  /// All epochs.
  virtual Result<void> train(const TrainHooks& hooks) = 0;
  /// Share of `data` that the first device's weights get right.
  virtual Result<double> accuracy(const Digits& data) = 0;
  /// The first device's weights.
  virtual Result<std::vector<float>> weights() = 0;
  /// Issued so far, and in the whole training.
  [[nodiscard]] virtual std::uint64_t steps() const = 0;
  [[nodiscard]] virtual std::uint64_t steps_planned() const = 0;
};

}  // namespace cenote::pool::cli
