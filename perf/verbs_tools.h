// Runs one measurement of `cenote perf`, or of Debian's perftest, between two RDMA devices: a server on the
// one, a client on the other, each pinned to a processor. Their tables have the same columns, so one reader
// does for both.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "perf/two_processes.h"
#include "runtime/result.h"

namespace cenote::perf {

/// The row below "#bytes" of what such a tool prints.
struct ToolRow {
  /// Bandwidth: bytes, iterations, peak, average, message rate. Latency: bytes, iterations, least, most,
  /// typical, average, deviation, 99 %, 99.9 %. NaN where it says "-".
  std::vector<double> values;
  [[nodiscard]] double bandwidth() const { return values[3]; }  ///< MiB a second
  [[nodiscard]] double typical() const { return values[4]; }    ///< microseconds
};
/// Errors: protocol_error (no such row, or one of another length).
Result<ToolRow> parse_row(std::string_view output, bool latency);

struct ToolRun {
  std::vector<std::string> program;  ///< path, and words that come first: "/usr/bin/ib_write_bw", or cenote's
  std::vector<std::string> server, client;  ///< words of either end alone
  std::vector<std::string> both;
  std::vector<std::string> environment = {};  ///< NAME=VALUE
  bool client_waits = false;                  ///< for its server, however long that takes to start
  bool latency = false;
};
/// Errors: not_found (no such program), deadline_exceeded, peer_failed, protocol_error.
Result<ToolRow> run_tool(const ToolRun& run, const Processors& processors);

/// Copies a program and the libraries that it is linked with into `folder`; its path there. With
/// LD_LIBRARY_PATH of that folder it starts without reading where it came from. Errors: system_error,
/// peer_failed.
Result<std::string> stage_program(const std::string& program, const std::string& folder);

}  // namespace cenote::perf
