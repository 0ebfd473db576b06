#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <map>
#include <random>

#include "pool/cli/checks.h"
#include "pool/cli/cli.h"
#include "pool/cli/demo.h"
#include "pool/cli/interrupt.h"
#include "runtime/unique_fd.h"

namespace cenote::pool::cli {

namespace {

// The file of --json: opened before anything is done, so that a path that cannot be written costs nobody a
// training; without figures it is not left behind.
class FiguresFile {
 public:
  static Result<FiguresFile> open(std::string path) {
    FiguresFile file;
    file.path_ = std::move(path);
    if (file.path_.empty()) return file;
    constexpr int kFlags = O_WRONLY | O_CREAT | O_CLOEXEC;
    file.fd_.reset(::open(file.path_.c_str(), kFlags | O_EXCL, 0666));
    file.fresh_ = static_cast<bool>(file.fd_);
    if (!file.fd_ && errno == EEXIST) file.fd_.reset(::open(file.path_.c_str(), kFlags, 0666));
    if (!file.fd_) return fail(system_error("write " + file.path_, errno).fix("give --json another file"));
    return file;
  }
  FiguresFile(FiguresFile&&) noexcept = default;
  FiguresFile& operator=(FiguresFile&&) = delete;
  ~FiguresFile() {
    if (fd_ && fresh_) ::unlink(path_.c_str());
  }

  Result<void> write(const std::string& text) {
    if (!fd_) return {};
    // A device or a pipe has no length to cut.
    const bool cut = ::ftruncate(fd_.get(), 0) == 0 || errno == EINVAL;
    if (!cut || ::write(fd_.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
      return fail(system_error("write " + path_, errno));
    fresh_ = false;
    return {};
  }

 private:
  FiguresFile() = default;
  std::string path_;
  UniqueFd fd_;
  bool fresh_ = false;
};

Result<void> check(const DemoFigures& figures) {
  if (!figures.weights_bit_equal) {
    return fail(ErrorCode::internal, "demo", "the weights of the two runs differ");
  }
  if (figures.test_accuracy < demo_least_accuracy) {
    return fail(Error{
        ErrorCode::internal, "demo",
        fmt::format("the test accuracy is {:.4f}, less than {}", figures.test_accuracy, demo_least_accuracy)}
                    .fix("with few --epochs or a small --hidden this is expected; the defaults reach it"));
  }
  return {};
}

// What a pool that is made for the demo sets itself. "" = none of it is in `overrides`.
std::string set_by_the_pool(const std::vector<std::string>& overrides) {
  for (const auto& line : overrides) {
    const auto name = line.substr(0, line.find('='));
    for (const auto* own : {"broker.address", "broker.listen", "broker.state_dir", "tls.dir", "agent.listen",
                            "agent.advertise", "agent.devices", "agent.name", "client.name"}) {
      if (name == own) return name;
    }
  }
  return {};
}

Result<int> demo(const Cli& cli, DemoOptions options, bool pool) {
  SettingSources sources;
  sources.environment = Environment{};
  sources.overrides = options.settings = cli.globals.overrides;
  CENOTE_ASSIGN(const auto settings, pool ? cli.settings() : Settings::load(sources));
  options.algorithm = settings.text("collective.algorithm");
  if (pool) {
    options.pool = settings;
  } else if (const auto own = set_by_the_pool(options.settings); !own.empty()) {
    print_error("demo", Error{ErrorCode::invalid_argument, "read command line",
                              own + " is set by the pool that the demo makes"}
                            .fix("to train on a pool that stands: add --pool"));
    return exit_usage;
  }
  CENOTE_ASSIGN(const auto interrupt, Interrupt::create());
  CENOTE_ASSIGN(auto file, FiguresFile::open(options.json));
  const auto figures = run_demo(options, *interrupt);
  if (!figures && interrupt->signal() != 0) return interrupted("demo", *interrupt);
  if (!figures) return fail(figures.error());
  CENOTE_TRY(file.write(figures_json(*figures)));
  CENOTE_TRY(check(*figures));
  return exit_ok;
}

}  // namespace

void add_demo(CLI::App& app, Cli& cli) {
  auto* command = app.add_subcommand(
      "demo", "Run a whole pool on this machine, or use one, and train a network on four of its GPUs");
  auto options = std::make_shared<DemoOptions>();
  options->seed = std::random_device{}();
  command->add_option("--epochs", options->epochs, "how often the data is gone through")
      ->capture_default_str()
      ->check(CLI::Range(1U, 10'000U));
  command->add_option("--hidden", options->hidden, "width of the hidden layer: gradients grow with it")
      ->capture_default_str()
      ->check(CLI::Range(8U, 4096U));
  auto pool = std::make_shared<bool>();
  auto* joins = command->add_flag(
      "--pool", *pool,
      "train on the pool of the settings broker.address and tls.dir, instead of on one made for it");
  command
      ->add_option("--transports", options->transports,
                   "how workers and client may talk, in order of preference")
      ->capture_default_str()
      ->check(is_setting("transports"))
      ->excludes(joins);
  command->add_option("--data", options->data, "another digits.csv");
  command->add_option("--json", options->json, "write the figures to this file");
  command->add_flag("--keep", options->keep, "keep the temporary folder with logs and store")
      ->excludes(joins);
  const std::map<std::string, Victim> victims{{"broker", Victim::broker},
                                              {"agent", Victim::agent},
                                              {"worker", Victim::worker},
                                              {"client", Victim::client}};
  command
      ->add_option(
          "--kill", options->kill,
          "end this one with SIGKILL in the middle of it (broker, agent, worker or client), and show "
          "what becomes of the work and the lease")
      ->transform(CLI::CheckedTransformer(victims).description(""))
      ->type_name("WHO")
      ->excludes(joins);
  command->add_option("--kills", options->kills, "how often, with --kill")
      ->capture_default_str()
      ->check(CLI::Range(1U, 100U));
  command->add_option("--seed", options->seed,
                      "draw the moments of --kill from it (default: another one each time, which is shown)");
  command->footer(fmt::format(
      "Ends with 0 when the test accuracy is at least {} (fewer than about 8 epochs do not reach it) and "
      "the\n"
      "weights of the four GPUs equal the single one's to the bit; with 1 otherwise, and with 130 on "
      "Ctrl-C.\n"
      "Examples:\n"
      "  cenote demo\n"
      "  cenote demo --hidden 128 --json wide.json     # gradients twice as large, client bytes the same\n"
      "  cenote demo --transports tcp\n"
      "  cenote demo --set emulator.adversarial=true   # for all its processes; files and CENOTE_* are not\n"
      "  cenote demo --kill broker --kills 3           # training goes on, nothing is granted twice\n"
      "  cenote demo --kill worker                     # its device is named, the lease freed, and training "
      "again\n"
      "  cenote demo --kill client                     # its lease is reclaimed once its time to live is "
      "over\n"
      "  cenote --set broker.address=head:4700 --set tls.dir=/etc/cenote/tls demo --pool",
      demo_least_accuracy));
  command->callback([&cli, options, pool] {
    cli.command = "demo";
    cli.run = [&cli, options, pool] { return demo(cli, *options, *pool); };
  });
}

}  // namespace cenote::pool::cli
