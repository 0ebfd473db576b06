#include "pool/agent/local_driver.h"

#include <fmt/format.h>

#include <array>
#include <span>
#include <string_view>
#include <utility>

#include "cuda/emulator/emulated_driver.h"
#include "cuda/real_driver.h"
#include "runtime/process.h"
#include "runtime/settings.h"

namespace cenote::pool::agent {

namespace {

constexpr std::string_view kEmulated = "emulated:";

tl::unexpected<Error> wrong(const std::string& entry, std::string_view why) {
  return fail(
      Error{ErrorCode::invalid_argument, "read setting agent.devices", fmt::format("'{}' {}", entry, why)}
          .fix("write cuda, or emulated:MODEL:SIZE for each emulated card, as in "
               "emulated:H200:1GiB,emulated:A100:512MiB"));
}

Result<EmulatedCard> parse_card(const std::string& entry) {
  EmulatedCard card;
  const auto rest = entry.substr(kEmulated.size());
  const auto colon = rest.find(':');
  card.model = rest.substr(0, colon);
  if (card.model.empty()) return wrong(entry, "names no model");
  if (colon != std::string::npos) {
    auto bytes = parse_size(rest.substr(colon + 1));
    if (!bytes) return wrong(entry, "has a wrong size: " + bytes.error().cause);
    if (*bytes == 0) return wrong(entry, "has no memory");
    card.memory_bytes = *bytes;
  }
  return card;
}

// "NVIDIA H200" is an H200 to whoever asks for one.
std::string short_model(std::string name) {
  constexpr std::string_view kVendor = "NVIDIA ";
  if (name.starts_with(kVendor)) name.erase(0, kVendor.size());
  return name;
}

}  // namespace

Error driver_error(cuda::Driver& driver, std::string stage, cuda::Status status) {
  auto cause = fmt::format("{} ({})", cuda::status_text(status), cuda::status_name(status));
  if (auto detail = driver.last_error_detail(); !detail.empty()) cause += ": " + detail;
  Error error{ErrorCode::driver_error, std::move(stage), std::move(cause)};
  error.native = static_cast<int>(status);
  return error;
}

Result<DriverSpec> parse_devices(const std::vector<std::string>& entries, std::string machine) {
  DriverSpec spec;
  spec.machine = std::move(machine);
  bool cuda = false;
  for (const auto& entry : entries) {
    if (entry == "cuda") {
      cuda = true;
    } else if (entry.starts_with(kEmulated)) {
      CENOTE_ASSIGN(auto card, parse_card(entry));
      spec.emulated.push_back(std::move(card));
    } else {
      return wrong(entry, "is no device");
    }
  }
  if (cuda && !spec.emulated.empty())
    return wrong("cuda", "and emulated cards do not go together on one agent");
  if (!cuda && spec.emulated.empty()) return wrong("", "lists no device");
  return spec;
}

Result<std::unique_ptr<cuda::Driver>> open_driver(const DriverSpec& spec) {
  std::unique_ptr<cuda::Driver> driver;
  if (spec.emulated.empty()) {
    CENOTE_ASSIGN(driver, cuda::load_real_driver());
  } else {
    cuda::EmulatorOptions options;
    options.devices.clear();
    for (const auto& card : spec.emulated) {
      options.devices.push_back(
          {.model = card.model, .memory_bytes = static_cast<std::size_t>(card.memory_bytes)});
    }
    options.machine = spec.machine;
    options.seed = spec.seed;
    options.adversarial_streams = spec.adversarial;
    driver = cuda::make_emulated_driver(std::move(options));
  }
  if (const auto status = driver->init(0); status != cuda::Status::success) {
    return fail(driver_error(*driver, "initialise the driver", status));
  }
  return driver;
}

Result<std::vector<LocalDevice>> list_devices(cuda::Driver& driver, const DriverSpec& spec) {
  const auto check = [&](cuda::Status status) -> Result<void> {
    if (status == cuda::Status::success) return {};
    return fail(driver_error(driver, "list the devices of this machine", status));
  };
  int count = 0;
  CENOTE_TRY(check(driver.device_get_count(&count)));
  if (count == 0)
    return fail(ErrorCode::not_found, "list the devices of this machine", driver.name() + " has none");
  std::vector<LocalDevice> devices;
  for (int i = 0; i < count; ++i) {
    cuda::DeviceId id = 0;
    cuda::DeviceUuid uuid{};
    std::array<char, 256> name{};
    std::size_t bytes = 0;
    CENOTE_TRY(check(driver.device_get(&id, i)));
    CENOTE_TRY(check(driver.device_get_uuid(&uuid, id)));
    CENOTE_TRY(check(driver.device_get_name(name.data(), static_cast<int>(name.size()), id)));
    CENOTE_TRY(check(driver.device_total_mem(&bytes, id)));
    const auto ordinal = static_cast<std::size_t>(i);
    devices.push_back(
        {.uuid = to_hex(std::span<const std::uint8_t>(uuid.bytes)),
         .model = spec.emulated.empty() ? short_model(name.data()) : spec.emulated[ordinal].model,
         .memory_bytes = bytes,
         .ordinal = static_cast<std::uint32_t>(i)});
  }
  return devices;
}

}  // namespace cenote::pool::agent
