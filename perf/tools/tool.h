// Tool: one of write_bw, read_lat, ... Each is one file: what it posts, and what its peer does meanwhile.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "perf/tools/record.h"
#include "perf/tools/run.h"

namespace cenote::perf {

enum class Verb : std::uint8_t { write, read, send, atomic };

struct Tool {
  std::string_view name;
  std::string_view about;
  Verb verb;
  bool latency;
  std::uint64_t size;        ///< by default, bytes
  std::uint64_t iterations;  ///< by default

  /// What this end does before either begins: memory that the peer will look at.
  bool (*prepare)(Run& run);
  /// Of the end that measures. With -b both do.
  bool (*measure)(Run& run, Samples& samples);
  /// Of the end that is measured (with -b, both): one step, called between any two turns, that never waits.
  /// It ends with answer_done().
  std::function<bool()> (*part)(Run& run);

  /// A round trip is what one latency is.
  [[nodiscard]] double halves() const { return verb == Verb::write || verb == Verb::send ? 2 : 1; }
};

extern const Tool write_bw, write_lat, read_bw, read_lat, send_bw, send_lat, atomic_lat;
std::span<const Tool* const> all_tools();
/// Null: there is none.
const Tool* find_tool(std::string_view name);

/// Parts that several tools have.
bool prepare_nothing(Run& run);
bool prepare_pattern(Run& run);  ///< with --validate, each slot of the shared memory
std::function<bool()> only_answer(Run& run);

}  // namespace cenote::perf
