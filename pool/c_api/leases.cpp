// The pool and its leases.
#include <algorithm>

#include "pool/c_api/objects.h"
#include "pool/client/identity.h"
#include "pool/key_file.h"

using namespace cenote;               // NOLINT(google-build-using-namespace)
using namespace cenote::pool;         // NOLINT(google-build-using-namespace)
using namespace cenote::pool::c_api;  // NOLINT(google-build-using-namespace)

namespace {

constexpr auto kLeaseTimeout = std::chrono::seconds(10);

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
  return Settings::load(sources);
}

Result<std::unique_ptr<cenote_pool>> connect(const cenote_pool_options* given) {
  CENOTE_ASSIGN(const auto options, known_part(given, "connect to a pool"));
  CENOTE_ASSIGN(auto settings, read_settings(options, given == nullptr || options.read_environment != 0));
  client::ClientOptions client_options;
  client_options.broker = settings.text("broker.address");
  CENOTE_ASSIGN(client_options.credentials,
                client::load_credentials(settings, tls::Role::client, settings.text("client.name")));
  client_options.fabric.transports = settings.list("transports");
  client_options.fabric.tcp_host = settings.text("tcp.host");
  auto made = std::make_unique<cenote_pool>();
  made->settings = std::move(settings);
  made->client = client::PoolClient::connect(std::move(client_options));
  return made;
}

std::unique_ptr<cenote_lease> wrap(std::unique_ptr<client::Lease> lease) {
  auto made = std::make_unique<cenote_lease>();
  made->id = lease->info().id;
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

std::string& cenote::pool::c_api::last_error() {
  thread_local std::string text;
  return text;
}

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
    client::LeaseSpec spec;
    spec.gpus = std::max(options.gpus, 1U);
    spec.model = text(options.model);
    spec.memory_bytes = options.memory_bytes;
    spec.ttl = std::chrono::milliseconds(options.ttl_ms);
    spec.note = text(options.note);
    CENOTE_ASSIGN(auto granted, pool->client->lease(spec, within(options.timeout_ms, kLeaseTimeout)));
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
    CENOTE_ASSIGN(const auto contents, read_file(path));
    CENOTE_ASSIGN(const auto file, client::decode_lease_file(contents));
    CENOTE_ASSIGN(auto adopted, pool->client->adopt(file, false));
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

const char* cenote_lease_id(const cenote_lease* lease) { return lease == nullptr ? "" : lease->id.c_str(); }

uint32_t cenote_lease_gpus(const cenote_lease* lease) {
  return lease == nullptr ? 0 : static_cast<uint32_t>(lease->lease->info().devices.size());
}

cenote_status cenote_lease_gpu(const cenote_lease* lease, uint32_t index, cenote_gpu_info* info) {
  return guarded([&]() -> Result<void> {
    if (lease == nullptr || info == nullptr) return bad("look at a device", "`lease` or `info` is NULL");
    CENOTE_ASSIGN(auto out, known_part(info, "look at a device"));
    const auto devices = lease->lease->info().devices;
    if (index >= devices.size()) return bad("look at a device", "the lease has no device of that number");
    const auto& device = devices[index];
    out.memory_bytes = device.memory_bytes;
    copy_text(out.uuid, device.uuid);
    copy_text(out.model, device.model);
    copy_text(out.agent, device.agent);
    std::memcpy(info, &out, std::min(out.size, sizeof out));
    return {};
  });
}

}  // extern "C"
