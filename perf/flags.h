// The flags of `cenote perf TOOL`: perftest's letters where they mean the same, settings for what the
// transports are told, and a plain word for those that have no meaning here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "perf/tools/options.h"

namespace CLI {
class App;
}

namespace cenote::perf {

/// As they were typed. What a setting says ends in `overrides`.
struct Flags {
  std::string host;
  bool local = false;
  std::uint16_t port = default_port;
  std::string bind = "0.0.0.0";
  int control_fd = -1;  ///< the other end of --local finds its client here

  std::string size;
  bool all = false, bidirectional = false, no_peak = false, forever = false, validate = false,
       poll_memory = false;
  std::uint64_t iterations = 0;
  double duration = 0, margin = -1, timeout = 10;
  std::uint32_t depth = 128;
  std::string memory = "host";
  int use_cuda = -1;

  std::string transport, devices, gid_index, mtu, service_level, traffic_class, qp_timeout, rails, receives;
  int device_port = 0;

  bool gbits = false, cpu = false, json = false, out_json = false;
  std::string json_file, plot_file;

  std::string foreign;                      ///< the value of one that nothing is done with
  std::vector<std::string> without_effect;  ///< "-Q: completions are moderated ...", to be told
};

void add_flags(CLI::App& command, const Tool& tool, Flags& flags);

/// NAME=VALUE for each flag that is a setting. Errors: invalid_argument (-i without -d).
Result<std::vector<std::string>> overrides_of(const Flags& flags);
Result<Work> work_of(const Tool& tool, const Flags& flags);
Show show_of(const Flags& flags);

}  // namespace cenote::perf
