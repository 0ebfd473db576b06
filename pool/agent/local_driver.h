// The GPUs of this machine: from the setting agent.devices to an open driver, for the agent (which lists
// them) and for its workers (which use them).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/driver.h"
#include "pool/agent/worker_host.h"
#include "runtime/result.h"

namespace cenote::pool::agent {

/// "cuda", or "emulated:MODEL:SIZE" for each emulated card (SIZE may be left out: the model's own).
/// Errors: invalid_argument, with the entry that is wrong.
Result<DriverSpec> parse_devices(const std::vector<std::string>& entries, std::string machine);

/// Opened and initialised. Errors: not_found (no CUDA driver here), driver_error.
Result<std::unique_ptr<cuda::Driver>> open_driver(const DriverSpec& spec);

/// What that driver has, by ordinal. Errors: driver_error, not_found (it has no device).
Result<std::vector<LocalDevice>> list_devices(cuda::Driver& driver, const DriverSpec& spec);

/// A driver's refusal as an Error.
Error driver_error(cuda::Driver& driver, std::string stage, cuda::Status status);

}  // namespace cenote::pool::agent
