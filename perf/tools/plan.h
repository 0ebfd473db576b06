// Plan: one measurement, as the client tells the server; Figures: what comes of it. Both travel between the
// two ends.
#pragma once

#include <cstdint>
#include <optional>

#include "perf/tools/statistics.h"
#include "runtime/bytes.h"
#include "runtime/result.h"

namespace cenote::perf {

struct Plan {
  std::uint64_t size = 0;        ///< bytes of a message
  std::uint64_t iterations = 0;  ///< 0: as many as the duration takes
  std::int64_t duration_ns = 0;  ///< with margins; only without iterations
  std::int64_t margin_ns = 0;    ///< not counted at either end of the duration
  std::uint32_t depth = 1;       ///< operations in flight
  std::uint32_t slots = 1;       ///< places at the target that messages go to in turn
  bool bidirectional = false;
  bool validate = false;
  bool peak = true;
  bool poll_memory = false;   ///< a put is seen by its last byte, not by a signal
  std::uint64_t warm_up = 0;  ///< iterations of a latency that are not counted

  [[nodiscard]] std::uint64_t stride() const { return stride_of(size); }
  /// Bytes from one slot to the next.
  static std::uint64_t stride_of(std::uint64_t size) { return (size + 63) / 64 * 64; }
};

void encode(Writer& out, const Plan& plan);
/// Errors: protocol_error (values that no plan has, or that do not fit into `memory` bytes).
Result<Plan> decode_plan(Reader& in, std::uint64_t memory);

/// Of one end, or of both together.
struct BandwidthFigures {
  std::uint64_t messages = 0;
  double average = 0;                       ///< bytes a second
  std::optional<double> peak;               ///< bytes a second; where the method has one
  double message_rate = 0;                  ///< a second
  void add(const BandwidthFigures& other);  ///< both directions
};

struct Figures {
  std::optional<BandwidthFigures> bandwidth;
  std::optional<LatencyFigures> latency;
  double cpu_percent = 0;  ///< of one processor, while measuring; this end's
};

void encode(Writer& out, const Figures& figures);
Result<Figures> decode_figures(Reader& in);

}  // namespace cenote::perf
