// Options: everything that one end is asked for, after the command line and before any work.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "perf/tools/plan.h"
#include "perf/tools/tool.h"
#include "runtime/deadline.h"
#include "transports/fabric.h"

namespace cenote::perf {

inline constexpr std::uint16_t default_port = 18515;  // perftest's
inline constexpr std::uint64_t most_size = std::uint64_t{1} << 30U;

/// What both ends are told for themselves.
struct Setup {
  const Tool* tool = nullptr;
  transport::FabricOptions fabric;
  bool host_given =
      false;  ///< fabric.tcp_host is a person's; otherwise that of the control connection is taken
  std::string memory = "host";
  Clock::duration silence = std::chrono::seconds(10);  ///< how long the peer may say nothing
};

/// What the client decides, for both.
struct Work {
  std::vector<std::uint64_t> sizes;
  std::uint64_t iterations = 0;
  Clock::duration duration{};  ///< 0: by iterations
  Clock::duration margin{};
  std::uint32_t depth = 128;
  bool bidirectional = false;
  bool validate = false;
  bool peak = true;
  bool poll_memory = false;  ///< of write_lat
  bool forever = false;      ///< until it is cancelled
};

/// How it is shown.
struct Show {
  bool gbits = false;
  bool cpu = false;
  bool json = false;      ///< on standard output
  bool quiet = false;     ///< no table
  std::string json_file;  ///< "" = none
  std::string plot_file;
};

/// All sizes of -a: powers of two from 2 up to 8 MiB, or up to `most`.
std::vector<std::uint64_t> all_sizes(std::uint64_t most);

/// Errors: invalid_argument, with the flag that is wrong and why.
Result<void> check(const Tool& tool, const Work& work, const Show& show);

/// The plan of one size. `ways`: messages may travel over several rails, so that neighbours should not
/// go to the same place.
Plan plan_of(const Tool& tool, const Work& work, std::uint64_t size, bool ways);
/// Bytes that either end keeps for the peer: enough for every size.
std::uint64_t memory_of(const Tool& tool, const Work& work, bool ways);
/// Whether they may: verbs with more than one rail are among the transports.
bool many_ways(const transport::FabricOptions& fabric);

}  // namespace cenote::perf
