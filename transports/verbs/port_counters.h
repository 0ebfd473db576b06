// What a port has counted of what goes wrong: link errors, drops, retransmissions. From sysfs; not every card
// has every counter.
#pragma once

#include <filesystem>
#include <string>

namespace cenote::transport::verbs {

/// The counters in `port` (a folder like /sys/class/infiniband/mlx5_0/ports/1) that count faults and are not
/// 0, by name: "link_downed 2, rnr_nak_retry_err 1". "no error is counted" where all are 0, and why where
/// none can be read.
std::string faults_counted(const std::filesystem::path& port);

/// The folder of port "mlx5_0:1".
std::filesystem::path folder_of_port(const std::string& port_name);

}  // namespace cenote::transport::verbs
