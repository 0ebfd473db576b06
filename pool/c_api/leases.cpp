// The pool and its leases.
#include <algorithm>
#include <filesystem>

#include "pool/c_api/objects.h"
#include "pool/dropin/helper_process.h"
#include "runtime/process.h"

using namespace cenote;               // NOLINT(google-build-using-namespace)
using namespace cenote::pool;         // NOLINT(google-build-using-namespace)
using namespace cenote::pool::c_api;  // NOLINT(google-build-using-namespace)
using std::chrono::milliseconds;

namespace {

constexpr auto kLeaseTimeout = std::chrono::seconds(10);
constexpr std::uint32_t kLongestWait = 86'400'000;        // ms, a day
constexpr auto kStartTimeout = std::chrono::seconds(30);  // of the helper: a program that loads gRPC
constexpr std::size_t kMostFileBytes = 1'000'000;

Result<Settings> read_settings(const cenote_pool_options& options, bool environment) {
  SettingSources sources;
  sources.file = text(options.config_file);
  if (!environment) sources.environment.emplace();
  const auto override_with = [&](const char* name, const char* value) {
    if (value != nullptr) sources.overrides.push_back(std::string(name) + "=" + value);
  };
  override_with("broker.address", options.broker);
  override_with("tls.dir", options.tls_dir);
  override_with("client.name", options.client_name);
  override_with("session.helper", options.helper);
  return Settings::load(sources);
}

// What the helper has to know. It works in another folder, so paths are made whole here.
Result<std::vector<std::string>> helper_settings(const Settings& settings) {
  std::error_code error;
  auto folder = settings.text("tls.dir");
  if (!folder.empty()) folder = std::filesystem::absolute(folder, error).string();
  if (error) return fail(system_error("find the folder tls.dir", error.value()));
  return std::vector<std::string>{"broker.address=" + settings.text("broker.address"), "tls.dir=" + folder,
                                  "client.name=" + settings.text("client.name")};
}

Result<std::unique_ptr<cenote_pool>> connect(const cenote_pool_options* given) {
  CENOTE_ASSIGN(const auto options, known_part(given, "connect to a pool"));
  CENOTE_ASSIGN(auto settings, read_settings(options, given == nullptr || options.read_environment != 0));
  CENOTE_ASSIGN(const auto program, dropin::find_helper(settings.text("session.helper")));
  CENOTE_ASSIGN(auto for_helper, helper_settings(settings));
  dropin::WorkOptions work;
  work.fabric = transport::fabric_options(settings);
  work.worker_timeout = settings.duration("worker.timeout");
  auto made = std::make_unique<cenote_pool>();
  CENOTE_ASSIGN(made->helper, dropin::HelperPool::connect(program, std::move(for_helper), std::move(work),
                                                          Deadline::in(kStartTimeout)));
  made->settings = std::move(settings);
  return made;
}

std::unique_ptr<cenote_lease> wrap(std::unique_ptr<dropin::HelperLease> lease) {
  auto made = std::make_unique<cenote_lease>();
  made->lease = std::move(lease);
  return made;
}

template <std::size_t N>
void copy_text(char (&out)[N], const std::string& in) {
  const auto length = std::min(in.size(), N - 1);
  std::memcpy(out, in.data(), length);
  out[length] = '\0';
}

}  // namespace

extern "C" {

uint32_t cenote_version(void) { return CENOTE_VERSION_NUMBER; }

const char* cenote_pool_last_error(void) { return last_error().c_str(); }

cenote_status cenote_pool_connect(const cenote_pool_options* options, cenote_pool** pool) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr) return bad("connect to a pool", "`pool` is NULL");
    CENOTE_ASSIGN(auto made, connect(options));
    *pool = made.release();
    return {};
  });
}

void cenote_pool_destroy(cenote_pool* pool) { delete pool; }

cenote_status cenote_pool_lease(cenote_pool* pool, const cenote_lease_options* given, cenote_lease** lease) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || lease == nullptr) return bad("lease", "`pool` or `lease` is NULL");
    CENOTE_ASSIGN(const auto options, known_part(given, "lease"));
    dropin::LeaseAsk ask;
    ask.gpus = std::max(options.gpus, 1U);
    ask.model = text(options.model);
    ask.memory_bytes = options.memory_bytes;
    ask.ttl_ms = options.ttl_ms;
    ask.note = text(options.note);
    ask.wait_ms = std::min(options.wait_ms, kLongestWait);
    const auto deadline = within(options.timeout_ms, kLeaseTimeout).when() + milliseconds(ask.wait_ms);
    CENOTE_ASSIGN(auto granted, pool->helper->lease(std::move(ask), Deadline::at(deadline)));
    *lease = wrap(std::move(granted)).release();
    return {};
  });
}

cenote_status cenote_pool_adopt(cenote_pool* pool, const char* lease_file, cenote_lease** lease) {
  return guarded([&]() -> Result<void> {
    if (pool == nullptr || lease == nullptr) return bad("adopt a lease", "`pool` or `lease` is NULL");
    const auto path =
        lease_file == nullptr ? pool->settings.text("client.lease_file") : std::string(lease_file);
    if (path.empty())
      return bad("adopt a lease", "no lease file is given and setting client.lease_file is empty");
    CENOTE_ASSIGN(auto contents, cenote::read_file(path, kMostFileBytes));
    CENOTE_ASSIGN(auto adopted, pool->helper->adopt(std::move(contents), Deadline::in(kLeaseTimeout)));
    *lease = wrap(std::move(adopted)).release();
    return {};
  });
}

cenote_status cenote_lease_release(cenote_lease* lease, uint32_t timeout_ms) {
  return guarded([&]() -> Result<void> {
    if (lease == nullptr) return bad("release a lease", "`lease` is NULL");
    return lease->lease->release(within(timeout_ms, kLeaseTimeout));
  });
}

void cenote_lease_destroy(cenote_lease* lease) { delete lease; }

cenote_status cenote_lease_state(const cenote_lease* lease) {
  return guarded([&]() -> Result<void> {
    if (lease == nullptr) return bad("look at a lease", "`lease` is NULL");
    if (auto lost = lease->lease->lost()) return fail(std::move(*lost));
    return {};
  });
}

const char* cenote_lease_id(const cenote_lease* lease) {
  return lease == nullptr ? "" : lease->lease->id().c_str();
}

uint32_t cenote_lease_gpus(const cenote_lease* lease) {
  return lease == nullptr ? 0 : static_cast<uint32_t>(lease->lease->gpus().size());
}

cenote_status cenote_lease_gpu(const cenote_lease* lease, uint32_t index, cenote_gpu_info* info) {
  return guarded([&]() -> Result<void> {
    if (lease == nullptr || info == nullptr) return bad("look at a device", "`lease` or `info` is NULL");
    CENOTE_ASSIGN(auto out, known_part(info, "look at a device"));
    const auto& gpus = lease->lease->gpus();
    if (index >= gpus.size()) return bad("look at a device", "the lease has no device of that number");
    const auto& device = gpus[index];
    out.memory_bytes = device.memory_bytes;
    copy_text(out.uuid, device.uuid);
    copy_text(out.model, device.model);
    copy_text(out.agent, device.agent);
    std::memcpy(info, &out, std::min(out.size, sizeof out));
    return {};
  });
}

}  // extern "C"
