// GPU memory and the cards: the ladder by which a transport's cards come to it, rung by rung, each taken or
// refused with its reason.
//
//   dmabuf    the GPU's driver exports the memory, the cards' drivers open it: ibv_reg_dmabuf_mr
//   peermem   a module of the kernel (nvidia_peermem) knows device addresses: plain ibv_reg_mr
//   staged    through pinned memory of the host (staging.h)
//
// A rung is taken when every card of the transport can stand on it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/memory.h"
#include "transports/verbs/registration.h"

namespace cenote::transport::verbs {

class VerbsCore;

/// Errors: not_supported (no rung holds; the cause lists each with its reason), invalid_argument (an unknown
/// rung in the options, memory that nobody gave a way to).
Result<std::unique_ptr<Registered>> register_gpu_memory(VerbsCore& core, const MemoryDescription& memory,
                                                        unsigned access);

/// The name of the peer-memory module that this kernel has loaded; "" for none. `sysfs`: "/sys".
std::string peer_memory_module(const std::string& sysfs);

}  // namespace cenote::transport::verbs
