#include "pool/cli/gpu_ladder.h"

#include <fmt/format.h>

#include <utility>

#include "cuda/device_memory.h"
#include "pool/agent/local_driver.h"
#include "transports/fabric.h"
#include "transports/verbs/gpu_memory.h"

namespace cenote::pool::cli {
namespace {

constexpr auto ladder = "GPU memory to the network card";

/// What the GPUs of this machine say, or why there are none.
struct Gpus {
  std::string missing;
  std::vector<std::pair<std::string, cuda::GpuDirect>> all;
};

Gpus find_gpus() {
  Gpus gpus;
  const auto driver = agent::open_driver({});
  if (!driver) return {.missing = driver.error().cause, .all = {}};
  const auto devices = agent::list_devices(**driver, {});
  if (!devices) return {.missing = devices.error().cause, .all = {}};
  for (const auto& device : *devices) {
    gpus.all.emplace_back(fmt::format("cuda:{}", device.ordinal),
                          cuda::gpu_direct(**driver, static_cast<cuda::DeviceId>(device.ordinal)));
  }
  return gpus;
}

/// Those for which `says` does not hold.
std::string without(const Gpus& gpus, bool cuda::GpuDirect::*says) {
  std::string names;
  for (const auto& [name, direct] : gpus.all) {
    if (!(direct.*says)) names += (names.empty() ? "" : ", ") + name;
  }
  return names;
}

Rung with_gpus(const transport::GpuMemoryWay& way, const Gpus& gpus, bool cuda::GpuDirect::*says,
               const char* lacking) {
  Rung rung{ladder, way.name, way.usable, way.reason, way.usable ? std::string() : way.remedy};
  if (!gpus.missing.empty()) {
    rung.usable = false;
    rung.reason += "; no GPU: " + gpus.missing;
  } else if (const auto names = without(gpus, says); !names.empty()) {
    rung.usable = false;
    rung.reason += fmt::format("; {} {}", names, lacking);
  }
  return rung;
}

Rung visibility(const Gpus& gpus) {
  Rung rung{ladder, "visibility", gpus.missing.empty(), {}, {}};
  if (!rung.usable) rung.reason = "no GPU: " + gpus.missing;
  for (const auto& [name, direct] : gpus.all)
    rung.reason += fmt::format("{}{}: {}", rung.reason.empty() ? "" : "; ", name, direct.visibility);
  return rung;
}

}  // namespace

std::vector<Rung> gpu_memory_ladder(const Settings& settings) {
  const Gpus gpus = find_gpus();
  std::vector<Rung> rungs;
  for (const auto& way : transport::gpu_memory_ways(transport::fabric_options(settings).verbs)) {
    if (way.name == "dmabuf") {
      rungs.push_back(with_gpus(way, gpus, &cuda::GpuDirect::dmabuf, "exports no dma-bufs"));
    } else if (way.name == "peermem") {
      rungs.push_back(with_gpus(way, gpus, &cuda::GpuDirect::peer_direct, "lets no other card in"));
    } else {
      rungs.push_back({ladder, way.name, way.usable, way.reason, way.usable ? std::string() : way.remedy});
    }
  }
  rungs.push_back(visibility(gpus));
  return rungs;
}

}  // namespace cenote::pool::cli
