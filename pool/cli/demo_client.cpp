#include <CLI/CLI.hpp>
#include <limits>

#include "pool/cli/cli.h"
#include "pool/cli/demo_train.h"
#include "pool/cli/interrupt.h"
#include "pool/cli/ready.h"
#include "pool/client/pool_client.h"

namespace cenote::pool::cli {

namespace {

struct Options {
  std::uint32_t gpus = 1;
  std::string ttl, data;
  int ready_fd = -1;
};

Result<int> demo_client(const Cli& cli, const Options& options) {
  CENOTE_ASSIGN(const auto interrupt, Interrupt::create());
  CENOTE_ASSIGN(const auto settings, cli.settings());
  CENOTE_ASSIGN(const auto digits, read_digits(options.data));
  CENOTE_ASSIGN(const auto ttl, parse_duration(options.ttl));
  CENOTE_ASSIGN(const auto client, make_client(settings));
  const auto deadline = Deadline::in(std::chrono::seconds(30));
  CENOTE_ASSIGN(
      const auto lease,
      client->lease({.gpus = options.gpus, .ttl = ttl, .note = "to be killed", .wait = deadline.left()},
                    deadline, &interrupt->flag()));
  CENOTE_ASSIGN(const auto driver, lease->open(deadline, &interrupt->flag()));
  if (driver->init(0) != cuda::Status::success)
    return fail(ErrorCode::driver_error, "open lease", "init failed");
  std::vector<int> ordinals;
  std::vector<cuda::DeviceId> devices(options.gpus);
  for (auto& device : devices) {
    ordinals.push_back(static_cast<int>(ordinals.size()));
    if (driver->device_get(&device, ordinals.back()) != cuda::Status::success)
      return fail(ErrorCode::driver_error, "open lease", "a leased device is missing");
  }
  CENOTE_ASSIGN(const auto group, driver->communicator(devices, deadline));
  TrainPlan plan;
  plan.epochs = std::numeric_limits<std::uint32_t>::max();
  CENOTE_ASSIGN(const auto trainer, Trainer::create(*driver, plan, split(digits).train, ordinals, group.get(),
                                                    interrupt->flag()));
  int ready = options.ready_fd;
  CENOTE_TRY(trainer->train(
      {.before_step = [&](std::uint64_t) { return tell_ready(std::exchange(ready, -1), "training"); },
       .after_epoch = {}}));
  return exit_ok;
}

}  // namespace

// Not for people: the client that `cenote demo --kill client` kills. It trains until then.
void add_demo_client(CLI::App& app, Cli& cli) {
  auto* command = app.add_subcommand("demo-client", "Train on leased GPUs until killed")->group("");
  auto options = std::make_shared<Options>();
  command->add_option("--gpus", options->gpus)->required();
  command->add_option("--ttl", options->ttl)->required();
  command->add_option("--data", options->data)->required();
  command->add_option("--ready-fd", options->ready_fd);
  command->callback([&cli, options] {
    cli.command = "demo-client";
    cli.run = [&cli, options] { return demo_client(cli, *options); };
  });
}

}  // namespace cenote::pool::cli
