#include "pool/cli/demo.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "pool/cli/cli.h"
#include "pool/cli/demo_device.h"
#include "pool/cli/output.h"
#include "pool/cli/process_set.h"
#include "pool/cli/progress_bar.h"

namespace cenote::pool::cli {

namespace {

using std::chrono::seconds;

constexpr std::uint32_t kGpus = 4;
constexpr std::size_t kBandwidthFloats = 1 << 20;
constexpr int kBandwidthRounds = 8;

double span(Clock::time_point from) { return std::chrono::duration<double>(Clock::now() - from).count(); }

std::vector<AgentPlan> machines() {
  return {{"node1", "emulated:H200:1GiB,emulated:A100:512MiB"},
          {"node2", "emulated:L40S:768MiB"},
          {"node3", "emulated:T4:256MiB"}};
}

template <class... Args>
Result<void> say(fmt::format_string<Args...> text, Args&&... args) {
  return print(fmt::format(text, std::forward<Args>(args)...));
}

// What the lease's holder does with it.
class Run {
 public:
  Run(const DemoOptions& options, Interrupt& interrupt, DigitsSplit data)
      : options_(options), interrupt_(interrupt), data_(std::move(data)) {
    plan_.layout.hidden = options.hidden;
    plan_.epochs = options.epochs;
  }

  Result<DemoFigures> all() {
    const auto begun = Clock::now();
    CENOTE_TRY(start_pool());
    CENOTE_TRY(take_lease());
    CENOTE_TRY(train_on_four());
    CENOTE_TRY(train_on_one());
    CENOTE_TRY(measure_bandwidth());
    figures_.seconds = span(begun);
    CENOTE_TRY(show());
    CENOTE_TRY(end());
    return figures_;
  }

 private:
  Result<void> start_pool() {
    ProcessSetOptions options;
    options.agents = machines();
    options.settings = {"transports=" + options_.transports};
    options.keep_folder = options_.keep;
    CENOTE_ASSIGN(pool_, ProcessSet::create(std::move(options)));
    CENOTE_TRY(pool_->start(Deadline::in(seconds(30)), &interrupt_.flag()));
    CENOTE_TRY(say("pool: broker at {}, 3 agents with 4 emulated GPUs{}\n", pool_->broker_endpoint(),
                   options_.keep ? ", in " + pool_->folder() : ""));
    CENOTE_ASSIGN(client_, pool_->client());
    return {};
  }

  Result<void> take_lease() {
    const auto begun = Clock::now();
    CENOTE_ASSIGN(lease_, client_->lease({.gpus = kGpus, .note = "cenote demo"}, Deadline::in(seconds(10)),
                                         &interrupt_.flag()));
    figures_.grant_ms = span(begun) * 1e3;
    CENOTE_TRY(say("lease {}: {} GPUs granted in {:.1f} ms\n{}", lease_->info().id, kGpus, figures_.grant_ms,
                   device_table(lease_->info())));
    CENOTE_ASSIGN(driver_, lease_->open(Deadline::in(seconds(30)), &interrupt_.flag()));
    if (driver_->init(0) != cuda::Status::success)
      return fail(ErrorCode::driver_error, "open lease", "init failed");
    return {};
  }

  Result<std::vector<cuda::DeviceId>> device_ids() {
    std::vector<cuda::DeviceId> ids(kGpus);
    for (std::uint32_t i = 0; i < kGpus; ++i) {
      if (driver_->device_get(&ids[i], static_cast<int>(i)) != cuda::Status::success) {
        return fail(ErrorCode::driver_error, "list the leased devices",
                    fmt::format("there is no device {}", i));
      }
    }
    return ids;
  }

  Result<void> train_on_four() {
    CENOTE_ASSIGN(const auto devices, device_ids());
    CENOTE_ASSIGN(group_, driver_->communicator(devices, Deadline::in(seconds(30))));
    CENOTE_ASSIGN(const auto trainer, Trainer::create(*driver_, plan_, data_.train, {0, 1, 2, 3},
                                                      group_.get(), interrupt_.flag()));
    const auto before = driver_->remote_stats();
    const auto begun = Clock::now();
    CENOTE_TRY(train(*trainer, "four GPUs "));
    figures_.training_seconds = span(begun);
    const auto after = driver_->remote_stats();
    figures_.launches_per_second =
        static_cast<double>(after.launches - before.launches) / figures_.training_seconds;
    figures_.client_setup_bytes = before.bytes_sent;
    figures_.client_bytes = after.bytes_sent - before.bytes_sent;
    figures_.client_transports = after.transports;
    figures_.gradient_bytes = plan_.layout.size() * sizeof(float);
    figures_.steps = trainer->steps();
    CENOTE_ASSIGN(figures_.pairs, group_->stats());
    for (const auto& pair : figures_.pairs) figures_.exchanged_bytes += pair.bytes_sent;
    CENOTE_ASSIGN(figures_.test_accuracy, trainer->accuracy(data_.test));
    CENOTE_ASSIGN(weights_, trainer->weights());
    return {};
  }

  Result<void> train_on_one() {
    CENOTE_ASSIGN(const auto trainer,
                  Trainer::create(*driver_, plan_, data_.train, {0, 0, 0, 0}, nullptr, interrupt_.flag()));
    CENOTE_TRY(train(*trainer, "single GPU"));
    CENOTE_ASSIGN(figures_.single_gpu_accuracy, trainer->accuracy(data_.test));
    CENOTE_ASSIGN(const auto weights, trainer->weights());
    figures_.weights_bit_equal =
        weights.size() == weights_.size() &&
        std::memcmp(weights.data(), weights_.data(), weights.size() * sizeof(float)) == 0;
    return say("test accuracy on {} held-out rows: {:.3f} on four GPUs, {:.3f} on a single one; weights {}\n",
               data_.test.rows(), figures_.test_accuracy, figures_.single_gpu_accuracy,
               figures_.weights_bit_equal ? "bit-equal" : "DIFFER");
  }

  Result<void> train(Trainer& trainer, const std::string& title) {
    ProgressBar bar("training on " + title, plan_.epochs);
    return trainer.train(
        [&](std::uint32_t epoch, float loss) { bar.show(epoch, fmt::format("loss {:.4f}", loss)); });
  }

  // nccl-tests' measure: bytes of one buffer over the time, times 2 (n - 1) / n.
  Result<void> measure_bandwidth() {
    std::vector<DemoDevice> devices;
    std::vector<cuda::DevicePtr> buffers;
    std::vector<cuda::Stream> streams;
    constexpr auto kBytes = kBandwidthFloats * sizeof(float);
    for (std::uint32_t i = 0; i < kGpus; ++i) {
      CENOTE_ASSIGN(auto device, DemoDevice::open(*driver_, static_cast<int>(i)));
      CENOTE_ASSIGN(const auto buffer, device.alloc(kBytes));
      CENOTE_TRY(device.clear(buffer, kBytes));
      buffers.push_back(buffer);
      streams.push_back(device.stream());
      devices.push_back(std::move(device));
    }
    auto begun = Clock::now();
    for (int round = -1; round < kBandwidthRounds; ++round) {
      CENOTE_TRY(group_->allreduce(buffers, buffers, kBandwidthFloats, CENOTE_FLOAT32, CENOTE_SUM, streams));
      if (round >= 0 && round + 1 < kBandwidthRounds) continue;
      for (auto& device : devices) {
        CENOTE_TRY(device.use());
        CENOTE_TRY(device.synchronize());
      }
      if (round < 0) begun = Clock::now();  // the first one makes connections and plans
    }
    const auto bytes = static_cast<double>(kBytes) * kBandwidthRounds;
    figures_.bus_bandwidth_gbps = bytes / span(begun) * 2 * (kGpus - 1) / kGpus / 1e9;
    return {};
  }

  Result<void> show() {
    CENOTE_TRY(say("\n{}\n", figures_text(figures_)));
    CENOTE_ASSIGN(const auto state, client_->top(Deadline::in(seconds(5)), &interrupt_.flag()));
    return say("cenote top, while the lease is held:\n{}\n", top_text(state));
  }

  Result<void> end() {
    group_.reset();
    driver_.reset();
    CENOTE_TRY(lease_->release(Deadline::in(seconds(10))));
    CENOTE_TRY(say("lease {} released; stopping agents and broker\n", lease_->info().id));
    pool_->stop();
    return {};
  }

  const DemoOptions& options_;
  Interrupt& interrupt_;
  const DigitsSplit data_;
  TrainPlan plan_;
  DemoFigures figures_;
  // In the order in which they depend on each other: destroyed from the last to the first.
  std::unique_ptr<ProcessSet> pool_;
  std::unique_ptr<PoolClient> client_;
  std::unique_ptr<Lease> lease_;
  std::unique_ptr<remote::RemoteDriver> driver_;
  std::unique_ptr<remote::RemoteCommunicator> group_;
  std::vector<float> weights_;
};

}  // namespace

Result<DemoFigures> run_demo(const DemoOptions& options, Interrupt& interrupt) {
  CENOTE_ASSIGN(const auto path, find_digits(options.data));
  CENOTE_ASSIGN(const auto digits, read_digits(path));
  auto data = split(digits);
  CENOTE_TRY(say("data: {}, {} rows to train on, {} held out\n", path, data.train.rows(), data.test.rows()));
  return Run(options, interrupt, std::move(data)).all();
}

}  // namespace cenote::pool::cli
