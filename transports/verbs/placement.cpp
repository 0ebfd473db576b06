#include "transports/verbs/placement.h"

#include "runtime/pci.h"

namespace cenote::transport::verbs {
namespace {

/// "Cpus_allowed_list:\t0-15"
std::string allowed_processors(const MachineFiles& files) {
  const auto status = files.text("/proc/self/status").value_or("");
  constexpr std::string_view title = "Cpus_allowed_list:";
  const auto at = status.find(title);
  if (at == std::string::npos) return {};
  const auto begin = status.find_first_not_of(" \t", at + title.size());
  if (begin == std::string::npos) return {};
  return status.substr(begin, status.find('\n', begin) - begin);
}

}  // namespace

Result<RailHome> place_ports(std::vector<Port>& ports, const VerbsOptions& options) {
  const MachineFiles files(options.system_root);
  std::string near = options.near;
  if (near.empty()) {
    const auto node = node_of_processors(files, allowed_processors(files));
    if (!node) return RailHome{};
    near = "numa:" + std::to_string(*node);
  }
  auto side = rail_side({}, topology_of(files), rail_side_of(0, ports, {}).ports, near);
  if (!side) {
    side.error().stage = "set verbs.near";
    return fail(std::move(side).error());
  }
  for (std::size_t i = 0; i < ports.size(); ++i) ports[i].distance = side->ports[i].distance;
  return std::move(side->home);
}

}  // namespace cenote::transport::verbs
