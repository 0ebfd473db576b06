// What a machine's cards and kernel say of the ways to GPU memory, for who wants to know before there is any.
#include <algorithm>
#include <cerrno>
#include <span>

#include "runtime/process.h"
#include "transports/verbs/gpu_memory.h"
#include "transports/verbs/nic.h"

namespace cenote::transport {
namespace {

using verbs::VerbsApi;

/// Of one device, for as long as it takes to ask.
Result<void> ask(const VerbsApi& api, ibv_device* device) {
  const verbs::Owned<ibv_context> context(api.open_device(device), api.close_device);
  if (!context) return fail(cenote::system_error("open device", errno));
  const verbs::Owned<ibv_pd> domain(api.alloc_pd(context.get()), api.dealloc_pd);
  if (!domain) return fail(cenote::system_error("make protection domain", errno));
  return verbs::takes_dmabufs(api, domain.get());
}

void ask_all(const VerbsApi& api, const VerbsOptions& options, GpuMemoryWay& way) {
  int count = 0;
  ibv_device** const list = api.get_device_list(&count);
  bool any = false, all = true;
  for (ibv_device* device : std::span(list, list == nullptr ? 0 : static_cast<std::size_t>(count))) {
    const std::string name = api.get_device_name(device);
    const auto wanted = [&](const std::string& entry) { return entry.substr(0, entry.rfind(':')) == name; };
    if (!options.devices.empty() && std::none_of(options.devices.begin(), options.devices.end(), wanted))
      continue;
    const auto taken = ask(api, device);
    any = true;
    all = all && taken;
    way.reason +=
        (way.reason.empty() ? "" : "; ") + name + ": " + (taken ? "takes dma-bufs" : taken.error().cause);
  }
  if (list != nullptr) api.free_device_list(list);
  way.usable = any && all;
  if (!any) way.reason = "this machine has no RDMA device";
}

GpuMemoryWay by_dmabuf(const VerbsOptions& options) {
  GpuMemoryWay way{"dmabuf", false, {}, {}};
  std::shared_ptr<const VerbsApi> loaded;
  if (options.api == nullptr) {
    auto api = verbs::load_verbs_api();
    if (!api) return {way.name, false, api.error().cause, api.error().remedy};
    loaded = std::move(*api);
  }
  ask_all(options.api != nullptr ? *options.api : *loaded, options, way);
  if (!way.usable)
    way.remedy = "it takes Linux 5.12, rdma-core 34 and a card whose driver opens dma-bufs (mlx5)";
  return way;
}

GpuMemoryWay by_peer_memory(const VerbsOptions& options) {
  const std::string module = verbs::peer_memory_module(options.sysfs);
  if (!module.empty()) return {"peermem", true, "module " + module + " is loaded", {}};
  return {"peermem", false, "module nvidia_peermem is not loaded",
          "modprobe nvidia_peermem, a module of the NVIDIA driver"};
}

}  // namespace

std::vector<GpuMemoryWay> gpu_memory_ways(const VerbsOptions& options) {
  std::vector<GpuMemoryWay> ways{by_dmabuf(options),
                                 by_peer_memory(options),
                                 {"staged", true, "through pinned memory of the host: always there", {}}};
  for (GpuMemoryWay& way : ways) {
    const auto& allowed = options.gpu_memory;
    if (std::find(allowed.begin(), allowed.end(), way.name) != allowed.end()) continue;
    way.usable = false;
    way.reason = "the setting verbs.gpu_memory leaves it out";
    way.remedy.clear();
  }
  return ways;
}

}  // namespace cenote::transport
