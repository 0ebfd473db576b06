// The loader of a real libcuda.so.1: a cuda::Driver over the vendor's library, opened at run time and never
// linked. The library stays loaded until the process ends, as its maker wants it.
#pragma once

#include <memory>
#include <string>

#include "cuda/driver.h"
#include "runtime/result.h"

namespace cenote::cuda {

/// `library`: a path, or a name for the system's search. Functions are asked of cuGetProcAddress, by name and
/// version, and of the symbol table where the library has none. What an old library lacks answers
/// not_supported. Errors: not_found (no such library), not_supported (a library too old, or none of CUDA at
/// all).
Result<std::unique_ptr<Driver>> load_real_driver(const std::string& library = "libcuda.so.1");

}  // namespace cenote::cuda
