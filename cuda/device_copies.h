// DeviceCopies over the driver table: a stream of its own, pinned memory, an event behind each copy.
#pragma once

#include <memory>
#include <string>

#include "cuda/driver.h"
#include "runtime/memory.h"
#include "runtime/result.h"

namespace cenote::cuda {

/// In `context`, of the device that errors call `home`. `keep` lives as long as the copies. Errors:
/// driver_error (no memory that can be pinned, no stream).
Result<std::unique_ptr<DeviceCopies>> open_copies(Driver& driver, Context context, const std::string& home,
                                                  std::size_t pinned_bytes, std::shared_ptr<void> keep);

}  // namespace cenote::cuda
