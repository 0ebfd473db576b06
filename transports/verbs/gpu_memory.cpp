#include "transports/verbs/gpu_memory.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "transports/verbs/verbs_core.h"

namespace cenote::transport::verbs {
namespace {

using Made = Result<std::unique_ptr<Registered>>;

tl::unexpected<Error> refused(std::string why) {
  return fail(ErrorCode::not_supported, "register GPU memory", std::move(why));
}

std::unique_ptr<Registered> empty_registration(const MemoryDescription& memory) {
  auto made = std::make_unique<Registered>();
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the device, which nobody here looks behind.
  made->data = reinterpret_cast<std::byte*>(memory.address);
  made->size = memory.size;
  made->device = memory.device;
  return made;
}

Made by_dmabuf(VerbsCore& core, const MemoryDescription& memory, unsigned access) {
  for (const auto& nic : core.nics) {
    if (auto taken = takes_dmabufs(nic->api, nic->pd.get()); !taken)
      return fail(std::move(taken).error().on(nic->port.name));
  }
  if (!memory.dmabuf || !memory.device->export_dmabuf)
    return refused("the driver of " + memory.home + " exports no dma-bufs");
  CENOTE_ASSIGN(const DmaBuf exported, memory.device->export_dmabuf(memory.address, memory.size));
  auto made = empty_registration(memory);
  for (const auto& nic : core.nics) {
    CENOTE_ASSIGN(Mr mr, nic->register_dmabuf(exported, memory.address, memory.size, access));
    made->regions.push_back(std::move(mr));
  }
  return made;
}

Made by_peer_memory(VerbsCore& core, const MemoryDescription& memory, unsigned access) {
  const std::string module = peer_memory_module(core.options.sysfs);
  if (module.empty())
    return refused("no module of this kernel knows device addresses (nvidia_peermem is not loaded)");
  if (!memory.peer_direct) return refused(memory.home + " does not let other cards reach its memory");
  auto made = empty_registration(memory);
  CENOTE_ASSIGN(made->regions, core.registrations->with_every_card(made->data, made->size, access));
  return made;
}

Made by_staging(VerbsCore& core, const MemoryDescription& memory, unsigned /*access*/) {
  if (!memory.device->open_copies)
    return refused("nobody gave a way to copy from " + memory.home + " and to it");
  auto made = empty_registration(memory);
  CENOTE_ASSIGN(made->pinned, core.pinned_for(memory.device));
  return made;
}

struct Rung {
  std::string_view name;
  Made (*take)(VerbsCore& core, const MemoryDescription& memory, unsigned access);
};
constexpr std::array rungs{Rung{"dmabuf", by_dmabuf}, Rung{"peermem", by_peer_memory},
                           Rung{"staged", by_staging}};

Result<const Rung*> rung_of(const std::string& name) {
  const auto* const found =
      std::find_if(rungs.begin(), rungs.end(), [&](const Rung& rung) { return rung.name == name; });
  if (found != rungs.end()) return found;
  return fail(
      Error{ErrorCode::invalid_argument, "register GPU memory", "no way is called '" + name + "'"}.fix(
          "verbs.gpu_memory lists those that may be used: dmabuf, peermem, staged"));
}

std::string reason_of(const Error& error) {
  return (error.device.empty() ? "" : error.device + ": ") +
         (error.code == ErrorCode::not_supported ? "" : error.stage + ": ") + error.cause;
}

}  // namespace

std::string peer_memory_module(const std::string& sysfs) {
  std::error_code ignored;
  if (std::filesystem::exists(sysfs + "/module/nvidia_peermem", ignored)) return "nvidia_peermem";
  for (const char* module : {"nv_mem", "nv_mem_nc"}) {
    if (std::filesystem::exists(sysfs + "/kernel/mm/memory_peers/" + module + "/version", ignored))
      return module;
  }
  return {};
}

Result<std::unique_ptr<Registered>> register_gpu_memory(VerbsCore& core, const MemoryDescription& memory,
                                                        unsigned access) {
  if (!memory.device)
    return fail(ErrorCode::invalid_argument, "register GPU memory", "nobody gave a way to " + memory.home);
  std::string reasons;
  for (const std::string& name : core.options.gpu_memory) {
    CENOTE_ASSIGN(const Rung* rung, rung_of(name));
    auto made = rung->take(core, memory, access);
    if (made) {
      core.log_debug("GPU memory of " + memory.home + ", " + std::to_string(memory.size) + " bytes: " + name +
                     (reasons.empty() ? "" : "; " + reasons) +
                     ((*made)->staged() ? "" : "; " + memory.visibility));
      return made;
    }
    reasons += (reasons.empty() ? "" : "; ") + name + " refused: " + reason_of(made.error());
  }
  core.log_debug("GPU memory of " + memory.home + ": " + reasons);
  return fail(Error{ErrorCode::not_supported, "register GPU memory",
                    reasons.empty() ? "the setting verbs.gpu_memory names no way to it" : reasons}
                  .on(memory.home)
                  .fix("`cenote doctor` shows each way and what it lacks"));
}

}  // namespace cenote::transport::verbs
