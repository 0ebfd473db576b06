// Remote CUDA over shared memory: what a launch costs, and how fast data goes up and down. The worker is a
// process of its own, over the emulated driver.
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <vector>

#include "cuda/emulator/emulated_driver.h"
#include "perf/harness.h"
#include "pool/remote/client_driver.h"
#include "pool/remote/worker.h"

namespace cenote::perf {
namespace {

using cuda::Status;
using namespace pool::remote;

constexpr std::size_t MiB = std::size_t{1} << 20;
constexpr const char* null_ptx =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing()\n{\n  ret;\n}\n";

cuda::EmulatorOptions one_card() {
  cuda::EmulatorOptions options;
  options.devices.front().memory_bytes = 1024 * MiB;
  return options;
}

Result<void> check(cuda::Driver& driver, Status status, const char* stage) {
  if (status == Status::success) return {};
  return fail(ErrorCode::driver_error, stage,
              std::string(cuda::status_name(status)) + " " + driver.last_error_detail());
}

/// A worker in a child process, killed with this object.
class WorkerProcess {
 public:
  static Result<std::unique_ptr<WorkerProcess>> start(const Bytes& client) {
    int ends[2];
    if (pipe(ends) != 0) return fail(system_error("start worker", errno));
    auto made = std::unique_ptr<WorkerProcess>(new WorkerProcess);
    made->pid_ = fork();
    if (made->pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      _exit(serve(client, ends[1]));
    }
    close(ends[1]);
    std::uint8_t size[2] = {};
    const bool got = read(ends[0], size, 2) == 2;
    made->address_.resize(got ? size[0] + 256U * size[1] : 0);
    const auto rest = got ? read(ends[0], made->address_.data(), made->address_.size()) : 0;
    close(ends[0]);
    if (rest <= 0) return fail(ErrorCode::peer_failed, "start worker", "it ended before it listened");
    return made;
  }
  ~WorkerProcess() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;
  [[nodiscard]] const Bytes& address() const { return address_; }

 private:
  WorkerProcess() = default;
  static int serve(const Bytes& client, int out) {
    const auto driver = cuda::make_emulated_driver(one_card());
    auto fabric = transport::Fabric::create({});
    if (driver->init(0) != Status::success || !fabric) return 1;
    WorkerOptions options;
    options.lease_id = "bench";
    options.devices = {0};
    options.memory_limits = {0};
    options.client_fabric_address = client;
    options.channel = 1;
    auto worker = Worker::create(*driver, **fabric, options);
    if (!worker) return 1;
    const auto& mine = (*fabric)->address();
    Bytes message = {static_cast<std::byte>(mine.size() % 256), static_cast<std::byte>(mine.size() / 256)};
    message.insert(message.end(), mine.begin(), mine.end());
    if (write(out, message.data(), message.size()) != static_cast<ssize_t>(message.size())) return 1;
    const CancelFlag never;
    return (*worker)->serve(never) ? 0 : 1;
  }
  pid_t pid_ = -1;
  Bytes address_;
};

/// One driver, ready to launch and copy.
struct Subject {
  Result<void> open() {
    cuda::Context context = nullptr;
    cuda::Module module = nullptr;
    CENOTE_TRY(check(*driver, driver->init(0), "init"));
    CENOTE_TRY(check(*driver, driver->primary_ctx_retain(&context, 0), "retain context"));
    CENOTE_TRY(check(*driver, driver->ctx_set_current(context), "enter context"));
    CENOTE_TRY(check(*driver, driver->module_load_data(&module, null_ptx, 0), "load module"));
    CENOTE_TRY(check(*driver, driver->module_get_function(&nothing, module, "nothing"), "find kernel"));
    return check(*driver, driver->mem_alloc(&memory, 256 * MiB), "allocate");
  }
  /// Microseconds for each of `count` launches, drained.
  Result<double> launches(int count) const {
    const auto start = Clock::now();
    for (int i = 0; i < count; ++i)
      CENOTE_TRY(check(*driver, driver->launch_kernel(nothing, {}, nullptr, nullptr), "launch"));
    CENOTE_TRY(check(*driver, driver->ctx_synchronize(), "synchronise"));
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / count;
  }
  /// GB/s of one copy of `bytes`, arrived on the device.
  Result<double> upload(std::vector<std::byte>& bytes) const {
    const auto start = Clock::now();
    CENOTE_TRY(check(*driver, driver->memcpy_htod(memory, bytes.data(), bytes.size()), "upload"));
    CENOTE_TRY(check(*driver, driver->ctx_synchronize(), "synchronise"));
    return static_cast<double>(bytes.size()) /
           std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  }
  Result<double> download(std::vector<std::byte>& bytes) const {
    const auto start = Clock::now();
    CENOTE_TRY(check(*driver, driver->memcpy_dtoh(bytes.data(), memory, bytes.size()), "download"));
    return static_cast<double>(bytes.size()) /
           std::chrono::duration<double, std::nano>(Clock::now() - start).count();
  }
  cuda::Driver* driver = nullptr;
  cuda::Function nothing = nullptr;
  cuda::DevicePtr memory = 0;
};

double copy_rate(const std::vector<std::byte>& from, std::vector<std::byte>& to) {
  const auto start = Clock::now();
  std::memcpy(to.data(), from.data(), from.size());
  return static_cast<double>(from.size()) /
         std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

constexpr std::string_view null_launch = "null launch", upload = "upload 256 MiB",
                           download = "download 256 MiB";

/// `only`: the rows whose name contains it.
Result<std::vector<Row>> measure(int pairs, int launches, const std::string& only) {
  const auto wanted = [&](std::string_view name) { return name.find(only) != std::string_view::npos; };
  if (!wanted(null_launch) && !wanted(upload) && !wanted(download)) return std::vector<Row>{};
  CENOTE_ASSIGN(auto fabric, transport::Fabric::create({}));
  CENOTE_ASSIGN(const auto worker, WorkerProcess::start(fabric->address()));
  WorkerAddress address;
  address.fabric_address = worker->address();
  address.channel = 1;
  address.peer = "worker";
  address.device_names = {"bench gpu 0"};
  CENOTE_ASSIGN(const auto remote,
                RemoteDriver::connect(std::move(fabric), {address}, Deadline::in(std::chrono::seconds(30))));
  const auto local = cuda::make_emulated_driver(one_card());
  Subject far{remote.get()}, near{local.get()};
  CENOTE_TRY(far.open());
  CENOTE_TRY(near.open());
  const auto over = remote->remote_stats().transports.front();
  std::vector<Row> rows;
  const auto add = [&rows](Result<Row> row) -> Result<void> {
    if (!row) return fail(std::move(row).error());
    rows.push_back(std::move(*row));
    return {};
  };
  const auto named = [&](std::string_view name) { return fmt::format("{}, {}", name, over); };
  if (wanted(null_launch)) {
    const auto remote_launch = [&] { return far.launches(launches); };
    CENOTE_TRY(add(compare({named(null_launch), "us", "the limit of 2 us", Better::lower, 1.0}, pairs,
                           remote_launch, [] { return Result<double>(2.0); })));
    CENOTE_TRY(add(compare({named(null_launch), "us", "the same driver, in process", Better::lower}, pairs,
                           remote_launch, [&] { return near.launches(launches); })));
  }
  std::vector<std::byte> bytes(256 * MiB, std::byte{1}), other(256 * MiB, std::byte{2});
  const auto plain = [&] { return Result<double>(copy_rate(bytes, other)); };
  if (wanted(upload))
    CENOTE_TRY(add(compare(
        {named(upload), "GB/s", "memcpy", Better::higher}, pairs, [&] { return far.upload(bytes); }, plain)));
  if (wanted(download))
    CENOTE_TRY(add(compare(
        {named(download), "GB/s", "memcpy", Better::higher}, pairs, [&] { return far.download(bytes); },
        plain)));
  return rows;
}

int main_of(int argc, char** argv) {
  CLI::App app("launches and copies on a remote GPU, over shared memory");
  std::string json, only;
  int pairs = 5, launches = 1'000'000;
  app.add_option("--json", json, "also write the rows to this file");
  app.add_option("--pairs", pairs, "measurements of each side")->check(CLI::Range(2, 1000));
  app.add_option("--launches", launches, "of one measurement")->check(CLI::Range(1, 100'000'000));
  app.add_option("--only", only, "only the rows whose name contains this; of several, the last counts")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  CLI11_PARSE(app, argc, argv);
  const auto rows = measure(pairs, launches, only);
  if (!rows) {
    fmt::print(stderr, "{}\n", rows.error().message());
    return 2;
  }
  fmt::print("{}", table(*rows));
  if (!json.empty()) {
    if (const auto written = write_json(*rows, json); !written) {
      fmt::print(stderr, "{}\n", written.error().message());
      return 2;
    }
  }
  for (const Row& row : *rows) {
    if (!row.met) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace cenote::perf

int main(int argc, char** argv) { return cenote::perf::main_of(argc, argv); }
