// A lease as JSON: in lease files and in the listings of the command.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "pool/client/lease_file.h"

namespace cenote::pool::client {

nlohmann::json to_json(const LeaseInfo& lease);

}  // namespace cenote::pool::client
