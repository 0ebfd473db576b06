#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>

#include "pool/cli/cli.h"
#include "pool/cli/demo.h"
#include "pool/cli/interrupt.h"

namespace cenote::pool::cli {

namespace {

constexpr double kLeastAccuracy = 0.95;

Result<void> write_figures(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::trunc);
  file << text << std::flush;
  if (!file) return fail(system_error("write " + path, errno));
  return {};
}

Result<int> demo(const DemoOptions& options) {
  CENOTE_ASSIGN(const auto interrupt, Interrupt::create());
  CENOTE_ASSIGN(const auto figures, run_demo(options, *interrupt));
  if (!options.json.empty()) {
    CENOTE_TRY(write_figures(options.json, figures_json(figures)));
  }
  if (!figures.weights_bit_equal) {
    return fail(ErrorCode::internal, "demo", "the weights of the two runs differ");
  }
  if (figures.test_accuracy < kLeastAccuracy) {
    return fail(
        Error{ErrorCode::internal, "demo",
              fmt::format("the test accuracy is {:.3f}, less than {}", figures.test_accuracy, kLeastAccuracy)}
            .fix("with few --epochs or a small --hidden this is expected"));
  }
  return exit_ok;
}

}  // namespace

void add_demo(CLI::App& app, Cli& cli) {
  auto* command =
      app.add_subcommand("demo", "Run a whole pool on this machine and train a network on four of its GPUs");
  auto options = std::make_shared<DemoOptions>();
  command->add_option("--epochs", options->epochs, "how often the data is gone through")
      ->capture_default_str()
      ->check(CLI::Range(1U, 10'000U));
  command->add_option("--hidden", options->hidden, "width of the hidden layer: gradients grow with it")
      ->capture_default_str()
      ->check(CLI::Range(8U, 4096U));
  command
      ->add_option("--transports", options->transports,
                   "how workers and client may talk, in order of preference")
      ->capture_default_str();
  command->add_option("--data", options->data, "another digits.csv");
  command->add_option("--json", options->json, "write the figures to this file");
  command->add_flag("--keep", options->keep, "keep the temporary folder with logs and store");
  command->footer(
      "Examples:\n"
      "  cenote demo\n"
      "  cenote demo --hidden 128 --json wide.json     # gradients twice as large, client bytes the same\n"
      "  cenote demo --transports tcp");
  command->callback([&cli, options] {
    cli.command = "demo";
    cli.run = [options] { return demo(*options); };
  });
}

}  // namespace cenote::pool::cli
