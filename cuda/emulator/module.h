// ModuleState and FunctionState: a loaded PTX program with its variables in device memory, and one kernel of
// it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/driver.h"
#include "cuda/ptx/program.h"

namespace cenote::cuda::emulator {

/// `variables[i]` is the device address of program->variables[i]. Immutable once loaded.
struct ModuleState {
  std::uint64_t context = 0;
  std::shared_ptr<const ptx::Program> program;
  std::vector<std::uint64_t> variables;
};

struct FunctionState {
  std::shared_ptr<const ModuleState> module;
  std::size_t entry = 0;
  std::atomic<int> dynamic_shared{48 << 10};  ///< max_dynamic_shared_size_bytes
  [[nodiscard]] const ptx::Entry& code() const { return module->program->entries[entry]; }
};

/// 75 of "sm_75", 90 of "sm_90a".
int architecture_of(std::string_view target);

/// A refusal: the code CUDA has for it, and the reason in words.
struct Refusal {
  Status status = Status::success;
  std::string detail;
};

/// Finds the PTX in a module image (text, fat binary container or its wrapper) for a card of that compute
/// capability, and parses it. `size` as in Driver::module_load_data: a wrapper, whose pointers have to be
/// trusted, is followed only when it is 0.
Refusal load_program(const void* image, std::size_t size, int major, int minor,
                     std::shared_ptr<const ptx::Program>& program);

}  // namespace cenote::cuda::emulator
