#include "pool/cli/demo_train.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "collectives/reduction_order.h"
#include "pool/cli/demo_device.h"

namespace cenote::pool::cli {

namespace {

using cuda::DevicePtr;
using cuda::kernels::blocks_for;
using cuda::kernels::mlp_block;
using cuda::kernels::mlp_tile;

DevicePtr at(DevicePtr base, std::size_t floats) { return base + floats * sizeof(float); }

DemoDevice::Shape tiles(std::size_t columns, std::size_t rows) {
  return {blocks_for(columns, mlp_tile), blocks_for(rows, mlp_tile), mlp_tile, mlp_tile};
}
DemoDevice::Shape line(std::size_t elements) { return {blocks_for(elements, mlp_block), 1, mlp_block, 1}; }

// He's initialisation, the same on every device and in every run.
std::vector<float> first_weights(const cuda::kernels::MlpLayout& layout, std::uint64_t seed) {
  std::vector<float> weights(layout.size(), 0.0F);
  std::mt19937_64 random(seed);
  const auto fill = [&](std::size_t first, std::size_t count, unsigned inputs) {
    const auto bound = std::sqrt(6.0F / static_cast<float>(inputs));
    for (std::size_t i = 0; i < count; ++i) {
      // 24 bits are a float exactly: no library's idea of a distribution comes in.
      const auto unit = static_cast<float>(random() >> 40U) / static_cast<float>(1U << 24U);
      weights[first + i] = bound * (2.0F * unit - 1.0F);
    }
  };
  fill(layout.weights1(), std::size_t{layout.inputs} * layout.hidden, layout.inputs);
  fill(layout.weights2(), std::size_t{layout.hidden} * layout.outputs, layout.hidden);
  return weights;
}

// A device with its copy of the network.
struct Replica {
  DemoDevice device;
  DevicePtr weights = 0, velocity = 0, gradient = 0;  ///< `gradient`: the sum over all shards
};

// A part of the data on one device, and what one step needs there.
struct Shard {
  Replica* replica = nullptr;
  std::size_t rows = 0;
  DevicePtr pixels = 0, labels = 0;
  DevicePtr hidden = 0, logits = 0, hidden_gradient = 0, logits_gradient = 0;
  DevicePtr gradient = 0, losses = 0, loss_sum = 0;
};

class MlpTrainer final : public Trainer {
 public:
  MlpTrainer(remote::RemoteDriver& driver, const TrainPlan& plan, remote::RemoteCommunicator* sum,
             const CancelFlag& cancel)
      : driver_(driver), plan_(plan), layout_(plan.layout), sum_(sum), cancel_(cancel) {}

  Result<void> prepare(const Digits& data, const std::vector<int>& device_of_shard) {
    const auto weights = first_weights(layout_, plan_.seed);
    for (const int ordinal : device_of_shard) {
      if (replicas_.contains(ordinal)) continue;
      CENOTE_ASSIGN(const auto device, DemoDevice::open(driver_, ordinal));
      auto& replica = *replicas_.emplace(ordinal, std::make_unique<Replica>(Replica{device})).first->second;
      CENOTE_ASSIGN(replica.weights, replica.device.upload(weights.data(), parameter_bytes()));
      CENOTE_ASSIGN(replica.velocity, replica.device.alloc(parameter_bytes()));
      CENOTE_ASSIGN(replica.gradient, replica.device.alloc(parameter_bytes()));
      CENOTE_TRY(replica.device.clear(replica.velocity, parameter_bytes()));
    }
    const auto shards = device_of_shard.size();
    for (std::size_t i = 0; i < shards; ++i) {
      CENOTE_TRY(add_shard(*replicas_.at(device_of_shard[i]), part(data, i, shards)));
    }
    if (sum_ == nullptr) {
      CENOTE_ASSIGN(order_, collectives::reduction_order(CENOTE_SUM, plan_.algorithm,
                                                         static_cast<std::uint32_t>(shards), layout_.size(),
                                                         CENOTE_FLOAT32));
    }
    for (auto& [ordinal, replica] : replicas_) {
      CENOTE_TRY(replica->device.use());
      CENOTE_TRY(replica->device.synchronize());
    }
    return {};
  }

  Result<void> train(const TrainHooks& hooks) override {
    std::size_t rows = 0;
    for (const auto& shard : shards_) rows += shard.rows;
    for (std::uint32_t epoch = 1; epoch <= plan_.epochs; ++epoch) {
      for (std::size_t first = 0; first < longest_shard(); first += plan_.batch) {
        if (cancel_.raised()) return fail(ErrorCode::cancelled, "train", "interrupted");
        if (hooks.before_step) CENOTE_TRY(hooks.before_step(steps_));
        CENOTE_TRY(step(first));
      }
      CENOTE_ASSIGN(const auto loss, total_loss());
      if (hooks.after_epoch) hooks.after_epoch(epoch, loss / static_cast<float>(rows));
    }
    return {};
  }

  Result<double> accuracy(const Digits& data) override {
    auto& replica = first();
    auto& device = replica.device;
    CENOTE_TRY(device.use());
    const auto rows = static_cast<unsigned>(data.rows());
    CENOTE_ASSIGN(const auto pixels, device.upload(data.pixels.data(), data.pixels.size() * sizeof(float)));
    CENOTE_ASSIGN(const auto labels,
                  device.upload(data.labels.data(), data.labels.size() * sizeof(std::int32_t)));
    CENOTE_ASSIGN(const auto hidden, device.alloc(std::size_t{rows} * layout_.hidden * sizeof(float)));
    CENOTE_ASSIGN(const auto logits, device.alloc(std::size_t{rows} * layout_.outputs * sizeof(float)));
    std::uint32_t correct = 0;
    CENOTE_ASSIGN(const auto counter, device.upload(&correct, sizeof correct));
    CENOTE_TRY(forward(replica, pixels, hidden, logits, rows));
    CENOTE_TRY(device.launch(device.kernels().count_correct, line(rows), logits, labels, counter, rows,
                             layout_.outputs));
    CENOTE_TRY(device.download(&correct, counter, sizeof correct));
    return static_cast<double>(correct) / rows;
  }

  Result<std::vector<float>> weights() override {
    auto& replica = first();
    CENOTE_TRY(replica.device.use());
    std::vector<float> weights(layout_.size());
    CENOTE_TRY(replica.device.download(weights.data(), replica.weights, parameter_bytes()));
    return weights;
  }

  [[nodiscard]] std::uint64_t steps() const override { return steps_; }
  [[nodiscard]] std::uint64_t steps_planned() const override {
    return plan_.epochs * ((longest_shard() + plan_.batch - 1) / plan_.batch);
  }

 private:
  [[nodiscard]] std::size_t parameter_bytes() const { return layout_.size() * sizeof(float); }
  Replica& first() { return *shards_.front().replica; }
  [[nodiscard]] std::size_t longest_shard() const {
    std::size_t longest = 0;
    for (const auto& shard : shards_) longest = std::max(longest, shard.rows);
    return longest;
  }

  // Row i goes to shard i mod shards: each sees every writer.
  static Digits part(const Digits& data, std::size_t shard, std::size_t shards) {
    Digits out;
    for (std::size_t row = shard; row < data.rows(); row += shards) {
      const auto from = data.pixels.begin() + static_cast<std::ptrdiff_t>(row * digit_pixels);
      out.pixels.insert(out.pixels.end(), from, from + digit_pixels);
      out.labels.push_back(data.labels[row]);
    }
    return out;
  }

  Result<void> add_shard(Replica& replica, const Digits& data) {
    auto& device = replica.device;
    CENOTE_TRY(device.use());
    const auto floats = [&](std::size_t count) { return device.alloc(count * sizeof(float)); };
    Shard shard;
    shard.replica = &replica;
    shard.rows = data.rows();
    CENOTE_ASSIGN(shard.pixels, device.upload(data.pixels.data(), data.pixels.size() * sizeof(float)));
    CENOTE_ASSIGN(shard.labels, device.upload(data.labels.data(), data.labels.size() * sizeof(std::int32_t)));
    CENOTE_ASSIGN(shard.hidden, floats(std::size_t{plan_.batch} * layout_.hidden));
    CENOTE_ASSIGN(shard.hidden_gradient, floats(std::size_t{plan_.batch} * layout_.hidden));
    CENOTE_ASSIGN(shard.logits, floats(std::size_t{plan_.batch} * layout_.outputs));
    CENOTE_ASSIGN(shard.logits_gradient, floats(std::size_t{plan_.batch} * layout_.outputs));
    CENOTE_ASSIGN(shard.gradient, floats(layout_.size()));
    CENOTE_ASSIGN(shard.losses, floats(data.rows()));
    CENOTE_ASSIGN(shard.loss_sum, floats(1));
    shards_.push_back(shard);
    return {};
  }

  [[nodiscard]] unsigned rows_in_step(const Shard& shard, std::size_t first) const {
    return static_cast<unsigned>(
        first >= shard.rows ? 0 : std::min<std::size_t>(plan_.batch, shard.rows - first));
  }

  Result<void> step(std::size_t first) {
    unsigned rows = 0;
    for (auto& shard : shards_) {
      CENOTE_TRY(shard.replica->device.use());
      CENOTE_TRY(gradients(shard, first, rows_in_step(shard, first)));
      rows += rows_in_step(shard, first);
    }
    CENOTE_TRY(sum_ != nullptr ? sum_over_devices() : sum_on_one_device());
    const float scale = 1.0F / static_cast<float>(rows);
    for (auto& [ordinal, replica] : replicas_) {
      auto& device = replica->device;
      CENOTE_TRY(device.use());
      CENOTE_TRY(device.launch(device.kernels().update, line(layout_.size()), replica->weights,
                               replica->velocity, replica->gradient, static_cast<unsigned>(layout_.size()),
                               plan_.rate, plan_.momentum, scale));
    }
    ++steps_;
    return {};
  }

  Result<void> forward(Replica& replica, DevicePtr pixels, DevicePtr hidden, DevicePtr logits,
                       unsigned rows) {
    auto& device = replica.device;
    const auto w = replica.weights;
    CENOTE_TRY(device.launch(device.kernels().forward, tiles(layout_.hidden, rows), pixels,
                             at(w, layout_.weights1()), at(w, layout_.bias1()), hidden, rows, layout_.inputs,
                             layout_.hidden, 1U));
    return device.launch(device.kernels().forward, tiles(layout_.outputs, rows), hidden,
                         at(w, layout_.weights2()), at(w, layout_.bias2()), logits, rows, layout_.hidden,
                         layout_.outputs, 0U);
  }

  // Forward and backward over `rows` rows from `first` on: shard.gradient is the sum over them.
  Result<void> gradients(Shard& shard, std::size_t first, unsigned rows) {
    auto& replica = *shard.replica;
    auto& device = replica.device;
    const auto& kernels = device.kernels();
    if (rows == 0) return device.clear(shard.gradient, parameter_bytes());
    const auto pixels = at(shard.pixels, first * digit_pixels);
    const auto g = shard.gradient;
    const auto [inputs, hidden, outputs] = std::tuple(layout_.inputs, layout_.hidden, layout_.outputs);
    CENOTE_TRY(forward(replica, pixels, shard.hidden, shard.logits, rows));
    CENOTE_TRY(device.launch(kernels.softmax_loss, line(rows), shard.logits, at(shard.labels, first),
                             shard.logits_gradient, at(shard.losses, first), rows, outputs));
    CENOTE_TRY(device.launch(kernels.weight_gradient, tiles(outputs, hidden), shard.hidden,
                             shard.logits_gradient, at(g, layout_.weights2()), rows, hidden, outputs));
    CENOTE_TRY(device.launch(kernels.bias_gradient, line(outputs), shard.logits_gradient,
                             at(g, layout_.bias2()), rows, outputs));
    CENOTE_TRY(device.launch(kernels.input_gradient, tiles(hidden, rows), shard.logits_gradient,
                             at(replica.weights, layout_.weights2()), shard.hidden, shard.hidden_gradient,
                             rows, hidden, outputs));
    CENOTE_TRY(device.launch(kernels.weight_gradient, tiles(hidden, inputs), pixels, shard.hidden_gradient,
                             at(g, layout_.weights1()), rows, inputs, hidden));
    return device.launch(kernels.bias_gradient, line(hidden), shard.hidden_gradient, at(g, layout_.bias1()),
                         rows, hidden);
  }

  Result<void> sum_over_devices() {
    std::vector<DevicePtr> from, to;
    std::vector<cuda::Stream> streams;
    for (const auto& shard : shards_) {
      from.push_back(shard.gradient);
      to.push_back(shard.replica->gradient);
      streams.push_back(shard.replica->device.stream());
    }
    return sum_->allreduce(from, to, layout_.size(), CENOTE_FLOAT32, CENOTE_SUM, streams);
  }

  // The same additions in the same order as the allreduce, one kernel for each pair.
  Result<void> sum_on_one_device() {
    auto& replica = first();
    auto& device = replica.device;
    for (const auto& range : order_) {
      for (const auto& pair : range.steps) {
        CENOTE_TRY(device.launch(device.kernels().reduce_sum, line(range.count),
                                 at(shards_[pair.dst].gradient, range.first),
                                 at(shards_[pair.src].gradient, range.first), std::uint64_t{range.count}));
      }
      CENOTE_TRY(device.copy(at(replica.gradient, range.first),
                             at(shards_[range.result].gradient, range.first), range.count * sizeof(float)));
    }
    return {};
  }

  Result<float> total_loss() {
    for (auto& shard : shards_) {
      auto& device = shard.replica->device;
      CENOTE_TRY(device.use());
      CENOTE_TRY(device.launch(device.kernels().sum, {1, 1, mlp_block, 1}, shard.losses, shard.loss_sum,
                               static_cast<unsigned>(shard.rows)));
    }
    float total = 0;
    for (auto& shard : shards_) {
      CENOTE_TRY(shard.replica->device.use());
      float part = 0;
      CENOTE_TRY(shard.replica->device.download(&part, shard.loss_sum, sizeof part));
      total += part;
    }
    return total;
  }

  remote::RemoteDriver& driver_;
  const TrainPlan plan_;
  const cuda::kernels::MlpLayout layout_;
  remote::RemoteCommunicator* sum_;
  const CancelFlag& cancel_;
  std::map<int, std::unique_ptr<Replica>> replicas_;  ///< by ordinal
  std::vector<Shard> shards_;
  std::vector<collectives::OrderedRange> order_;  ///< of the sums on one device
  std::uint64_t steps_ = 0;
};

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::create(remote::RemoteDriver& driver, const TrainPlan& plan,
                                                 const Digits& data, const std::vector<int>& device_of_shard,
                                                 remote::RemoteCommunicator* sum, const CancelFlag& cancel) {
  auto trainer = std::make_unique<MlpTrainer>(driver, plan, sum, cancel);
  CENOTE_TRY(trainer->prepare(data, device_of_shard));
  return trainer;
}

}  // namespace cenote::pool::cli
