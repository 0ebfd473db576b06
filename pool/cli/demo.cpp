#include "pool/cli/demo.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <utility>

#include "pool/cli/cli.h"
#include "pool/cli/demo_device.h"
#include "pool/cli/demo_train.h"
#include "pool/cli/output.h"
#include "pool/cli/process_set.h"
#include "pool/cli/progress_bar.h"

namespace cenote::pool::cli {

namespace {

using std::chrono::seconds;

constexpr std::uint32_t kGpus = 4;
constexpr std::size_t kBandwidthFloats = 1 << 20;
constexpr int kBandwidthRounds = 8;      ///< at most
constexpr double kBandwidthSeconds = 2;  ///< roughly

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
      : options_(options), interrupt_(interrupt), data_(std::move(data)), random_(options.seed) {
    plan_.layout.hidden = options.hidden;
    plan_.epochs = options.epochs;
    plan_.algorithm = options.algorithm;
  }

  Result<DemoFigures> all() {
    const auto done = run();
    if (pool_ != nullptr && options_.keep) {
      CENOTE_TRY(say("kept: {} (logs, store, certificates)\n", pool_->folder()));
    }
    return done ? Result<DemoFigures>(figures_) : fail(done.error());
  }

 private:
  Result<void> run() {
    const auto begun = Clock::now();
    CENOTE_TRY(options_.pool ? join_pool() : start_pool());
    if (options_.kill != Victim::none) {
      CENOTE_TRY(say("kills at moments drawn from seed {} (--seed draws them again)\n", options_.seed));
    }
    for (auto left = options_.kill == Victim::client ? options_.kills : 0; left > 0; --left)
      CENOTE_TRY(kill_client());
    if (lease_ == nullptr) CENOTE_TRY(take_lease());
    CENOTE_TRY(open_lease());
    const bool holder = options_.kill == Victim::worker || options_.kill == Victim::agent;
    for (auto left = holder ? options_.kills : 0; left > 0; --left) CENOTE_TRY(kill_holder());
    CENOTE_TRY(train_on_four());
    CENOTE_TRY(train_on_one());
    CENOTE_TRY(measure_bandwidth());
    figures_.seconds = span(begun);
    CENOTE_TRY(show());
    return end();
  }

  Result<void> start_pool() {
    ProcessSetOptions options;
    options.agents = machines();
    options.settings = options_.settings;
    options.settings.push_back("transports=" + options_.transports);
    options.keep_folder = options_.keep;
    CENOTE_ASSIGN(pool_, ProcessSet::create(std::move(options)));
    CENOTE_TRY(pool_->start(Deadline::in(seconds(30)), &interrupt_.flag()));
    CENOTE_TRY(say("pool: broker at {}, 3 agents with 4 emulated GPUs{}\n", pool_->broker_endpoint(),
                   options_.keep ? ", in " + pool_->folder() : ""));
    CENOTE_ASSIGN(client_, pool_->client());
    return {};
  }

  Result<void> join_pool() {
    CENOTE_ASSIGN(client_, make_client(*options_.pool));
    CENOTE_ASSIGN(const auto state, client_->top(Deadline::in(seconds(30)), &interrupt_.flag()));
    std::size_t gpus = 0;
    for (const auto& agent : state.agents) gpus += agent.devices.size();
    return say("pool: broker at {}, {} with {}\n", options_.pool->text("broker.address"),
               count_text(state.agents.size(), "agent"), count_text(gpus, "GPU"));
  }

  // In a pool of its own what was given back is free again in a moment; in another's, who has it may keep it.
  Result<void> take_lease() {
    if (options_.pool) {
      const auto asked_at = Clock::now();
      CENOTE_ASSIGN(lease_, client_->lease(spec(), Deadline::in(seconds(30)), &interrupt_.flag()));
      figures_.grant_ms = span(asked_at) * 1e3;
      return {};
    }
    CENOTE_ASSIGN(auto taken, lease_when_free(*client_, spec(), interrupt_.flag()));
    hold(std::move(taken));
    return {};
  }

  void hold(TakenLease taken) {
    lease_ = std::move(taken.lease);
    figures_.grant_ms = taken.grant_ms;
  }

  static client::LeaseSpec spec() { return {.gpus = kGpus, .note = "cenote demo"}; }

  Result<void> open_lease() {
    CENOTE_TRY(say("lease {}: {} GPUs granted in {:.1f} ms\n{}", lease_->info().id, kGpus, figures_.grant_ms,
                   device_table(lease_->info())));
    CENOTE_ASSIGN(driver_, lease_->open(Deadline::in(seconds(30)), &interrupt_.flag()));
    if (driver_->init(0) != cuda::Status::success)
      return fail(ErrorCode::driver_error, "open lease", "init failed");
    CENOTE_ASSIGN(const auto devices, device_ids());
    CENOTE_ASSIGN(group_, driver_->communicator(devices, Deadline::in(seconds(30))));
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

  Result<std::unique_ptr<Trainer>> trainer_on_four() {
    return Trainer::create(*driver_, plan_, data_.train, {0, 1, 2, 3}, group_.get(), interrupt_.flag());
  }

  // The client's part is over with SIGKILL: there is no hook for it, only another process.
  Result<void> kill_client() {
    CENOTE_TRY(say("killing (SIGKILL) a client that trains on all {} GPUs\n", kGpus));
    if (lease_ != nullptr) CENOTE_TRY(lease_->release(Deadline::in(seconds(10))));
    CENOTE_ASSIGN(auto reclaimed,
                  kill_a_client(*pool_, *client_, spec(), options_.data, random_, interrupt_.flag()));
    hold(std::move(reclaimed.taken));
    figures_.kills.push_back(std::move(reclaimed.figures));
    return say("{}\n", kill_text(figures_.kills.back()));
  }

  // A training that loses a device ends. What was lost is named, the rest is free again, and so is the next
  // try.
  Result<void> kill_holder() {
    CENOTE_ASSIGN(auto trainer, trainer_on_four());
    HolderKill kill(*pool_, options_.kill, lease_->info(), trainer->steps_planned(), random_,
                    interrupt_.flag());
    ProgressBar bar("training on four GPUs ", plan_.epochs);
    const auto trained =
        trainer->train({.before_step = [&](std::uint64_t step) { return kill.before_step(step); },
                        .after_epoch = epoch_of(bar)});
    if (trained)
      return fail(ErrorCode::internal, "kill " + kill.figures().victim, "the training did not end");
    if (!kill.done() || interrupt_.flag().raised()) return fail(trained.error());
    const auto error = with_rank(trained.error());
    kill.heard(error);
    bar.tell(fmt::format("{} killed (SIGKILL) at step {}; the training ended after {:.0f} ms:",
                         kill.figures().victim, kill.figures().step, kill.figures().heard_ms));
    bar.tell("  " + kill.figures().error);
    trainer.reset();
    group_.reset();
    driver_.reset();
    lease_.reset();
    CENOTE_TRY(kill.repair());
    CENOTE_TRY(take_lease());
    CENOTE_TRY(kill.freed());
    figures_.kills.push_back(kill.figures());
    CENOTE_TRY(
        say("  its lease was freed, its GPUs leased again after {:.0f} ms, {} gone: training begins again\n",
            kill.figures().freed_ms, count_text(kill.figures().workers_gone, "worker")));
    return open_lease();
  }

  Result<void> train_on_four() {
    CENOTE_ASSIGN(const auto trainer, trainer_on_four());
    const auto before = driver_->remote_stats();
    const auto begun = Clock::now();
    CENOTE_TRY(options_.kill == Victim::broker ? train_without_broker(*trainer)
                                               : train(*trainer, "four GPUs "));
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

  static std::function<void(std::uint32_t, float)> epoch_of(ProgressBar& bar) {
    return [&bar](std::uint32_t epoch, float loss) { bar.show(epoch, fmt::format("loss {:.4f}", loss)); };
  }

  Result<void> train(Trainer& trainer, const std::string& title) {
    ProgressBar bar("training on " + title, plan_.epochs);
    const auto trained = trainer.train({.before_step = {}, .after_epoch = epoch_of(bar)});
    return trained ? trained : fail(with_rank(trained.error()));
  }

  Result<void> train_without_broker(Trainer& trainer) {
    ProgressBar bar("training on four GPUs ", plan_.epochs);
    BrokerKills kills(*pool_, *lease_, options_.kills, trainer.steps_planned(), random_, interrupt_.flag(),
                      [&](const std::string& line) { bar.tell(line); });
    const auto show = epoch_of(bar);
    CENOTE_TRY(trainer.train({.before_step = [&](std::uint64_t step) { return kills.before_step(step); },
                              .after_epoch =
                                  [&](std::uint32_t epoch, float loss) {
                                    kills.epoch_ended();
                                    show(epoch, loss);
                                  }}));
    CENOTE_TRY(kills.settle());
    figures_.kills = kills.figures();
    return say(
        "broker killed {}, back each time: lease {} stands, each GPU has one holder, one more is refused\n",
        count_text(figures_.kills.size(), "time"), lease_->info().id);
  }

  // Which rank is lost: the communicator knows, and a driver's call only its device.
  Error with_rank(const Error& error) {
    if (error.code == ErrorCode::cancelled || interrupt_.flag().raised() || group_ == nullptr) return error;
    return group_->failure().value_or(error);
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
      devices.push_back(device);
    }
    const auto reduce = [&](int rounds) -> Result<double> {
      const auto begun = Clock::now();
      for (int round = 0; round < rounds; ++round)
        CENOTE_TRY(
            group_->allreduce(buffers, buffers, kBandwidthFloats, CENOTE_FLOAT32, CENOTE_SUM, streams));
      for (auto& device : devices) {
        CENOTE_TRY(device.use());
        CENOTE_TRY(device.synchronize());
      }
      return span(begun);
    };
    // The first one makes connections and plans, and shows how many this machine has the time for.
    CENOTE_ASSIGN(const auto first, reduce(1));
    const auto rounds =
        static_cast<int>(std::clamp(kBandwidthSeconds / first, 1.0, double{kBandwidthRounds}));
    CENOTE_ASSIGN(const auto took, reduce(rounds));
    const auto bytes = static_cast<double>(kBytes) * rounds;
    figures_.bus_bandwidth_gbps = bytes / took * 2 * (kGpus - 1) / kGpus / 1e9;
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
    if (pool_ == nullptr) return say("lease {} released\n", lease_->info().id);
    CENOTE_TRY(say("lease {} released; stopping agents and broker\n", lease_->info().id));
    pool_->stop();
    return {};
  }

  const DemoOptions& options_;
  Interrupt& interrupt_;
  const DigitsSplit data_;
  std::mt19937 random_;  ///< for the moments of the kills
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
  auto found = options;
  found.data = path;  // for a client in another process
  CENOTE_TRY(say("data: {}, {} to train on, {} held out\n", path, count_text(data.train.rows(), "row"),
                 data.test.rows()));
  return Run(found, interrupt, std::move(data)).all();
}

}  // namespace cenote::pool::cli
