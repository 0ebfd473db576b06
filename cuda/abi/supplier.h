// What the exported cu* functions (exports*.cpp) need from the library that is made of them.
#pragma once

#include "cuda/driver.h"

namespace cenote::cuda::abi {

/// The driver behind the exports; the same one until the process ends. Called by every export: cheap,
/// thread-safe. nullptr: there is none (the export answers not_initialized).
Driver* driver();

}  // namespace cenote::cuda::abi
