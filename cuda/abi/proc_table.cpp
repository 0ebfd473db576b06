// The exports by name and version.
#include <cstdint>
#include <string_view>

#include "cuda/abi/exports.h"

// Only their addresses are wanted here; each has its own arguments in exports_*.cpp.
namespace declared {
#define CENOTE_PROC(symbol, name, version, per_thread) extern "C" void symbol();
#include "cuda/abi/procs.def"
#undef CENOTE_PROC
}  // namespace declared

namespace cenote::cuda::abi {
namespace {

struct Proc {
  std::string_view name;
  int version;
  bool per_thread;
  void (*function)();
};

// NOLINTBEGIN(bugprone-macro-parentheses): the symbol is a name
constexpr Proc kProcs[] = {
#define CENOTE_PROC(symbol, name, version, per_thread) {name, version, per_thread != 0, &declared::symbol},
#include "cuda/abi/procs.def"
#undef CENOTE_PROC
};
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace

void (*find_proc(std::string_view name, int version, bool per_thread, int& how))() {
  const Proc* best = nullptr;
  const Proc* plain = nullptr;
  how = proc_not_found;
  for (const auto& proc : kProcs) {
    if (proc.name != name) continue;
    if (how == proc_not_found) how = proc_version_not_sufficient;
    if (proc.version > version) continue;
    auto& slot = proc.per_thread ? best : plain;
    if (proc.per_thread && !per_thread) continue;
    if (slot == nullptr || proc.version > slot->version) slot = &proc;
  }
  // Functions without a stream have no variant of their own.
  if (best == nullptr) best = plain;
  if (best == nullptr) return nullptr;
  how = proc_found;
  return best->function;
}

}  // namespace cenote::cuda::abi
