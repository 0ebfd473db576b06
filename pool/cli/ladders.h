// The ladders of `cenote doctor`: for each thing that Cenote can do in several ways, the rungs from best to
// last, which one this machine takes, and why not the others.
#pragma once

#include <string>
#include <vector>

#include "runtime/settings.h"

namespace cenote::pool::cli {

struct Rung {
  std::string ladder;  ///< "GPU driver"
  std::string name;    ///< "libcuda"
  bool usable = false;
  std::string reason;  ///< what was found, or the exact cause why not
  std::string remedy;  ///< what to do about it; "" = nothing needs to be done
};

/// GPU driver; GPU memory to the network card; same-host and other-host transports; what the process may do;
/// what holds workers.
std::vector<Rung> machine_ladders(const Settings& settings);
/// tls.dir, the broker.
std::vector<Rung> pool_ladders(const Settings& settings);

}  // namespace cenote::pool::cli
