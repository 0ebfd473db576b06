// Program: a PTX module, parsed and decoded once, ready to be run by emulator/launch.h any number of times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/result.h"

namespace cenote::cuda::ptx {

struct Code;  // decoded instructions: code.h, for the emulator only

/// One kernel parameter and where it lies in the packed buffer.
struct Param {
  std::string name;
  std::size_t offset = 0;
  std::size_t size = 0;
  std::size_t align = 1;
};

/// One `.entry`.
struct Entry {
  std::string name;
  std::vector<Param> params;
  std::size_t param_bytes = 0;  ///< end of the last parameter
  std::size_t shared_bytes =
      0;                        ///< static shared memory, that of called functions and of the module included
  std::size_t local_bytes = 0;  ///< local memory of one thread
  unsigned registers = 0;       ///< 32-bit registers of one thread (an estimate, as real drivers report one)
  unsigned max_threads = 0;     ///< .maxntid as a product; 0 = not stated
  unsigned line = 0;
};

/// An initialiser that holds the address of another variable: at load, `bytes` bytes at `offset` become the
/// address of variable `target` plus `addend`.
struct Relocation {
  std::size_t offset = 0;
  unsigned bytes = 8;
  std::size_t target = 0;  ///< index into Program::variables
  std::int64_t addend = 0;
};

enum class VariableSpace : std::uint8_t { global, constant };

/// One module-scope `.global` or `.const` variable. The driver gives each its device memory, writes `initial`
/// (padded with zeroes to `size`), applies `relocations`, and passes the addresses with every launch.
struct Variable {
  std::string name;
  VariableSpace space = VariableSpace::global;
  std::size_t size = 0;
  std::size_t align = 1;
  std::vector<std::byte> initial;
  std::vector<Relocation> relocations;
  bool external = false;  ///< `.extern`: defined by another module
  unsigned line = 0;
};

/// Immutable, so usable from any thread.
class Program {
 public:
  std::vector<Entry> entries;
  std::vector<Variable> variables;
  std::string version;  ///< "9.0"
  std::string target;   ///< "sm_75"
  std::shared_ptr<const Code> code;

  [[nodiscard]] std::optional<std::size_t> find_entry(std::string_view name) const;
  [[nodiscard]] std::optional<std::size_t> find_variable(std::string_view name) const;
};

/// Parses and decodes a whole module. A trailing NUL is allowed. Whatever the text is, this ends in time and
/// memory proportional to its length. Errors: invalid_argument ("line 41: ..."), not_supported, naming the
/// first instruction outside of what the emulator runs ("line 41: unsupported instruction
/// 'tex.2d.v4.f32.s32'").
Result<std::shared_ptr<const Program>> parse(std::string_view text);

}  // namespace cenote::cuda::ptx
