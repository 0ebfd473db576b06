// What this build is.
#pragma once

namespace cenote::pool::cli {

inline constexpr const char* kVersion = CENOTE_VERSION;  // of the CMake project
#ifdef __clang__
inline constexpr const char* kCompiler = "clang " __clang_version__;
#else
inline constexpr const char* kCompiler = "g++ " __VERSION__;
#endif

}  // namespace cenote::pool::cli
