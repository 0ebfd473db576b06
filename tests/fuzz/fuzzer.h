// What the fuzzers share: where their first inputs come from, and how they say that something is wrong. Each
// fuzzer is one file with `seeds()` and `LLVMFuzzerTestOneInput`; libFuzzer has the main function.
#pragma once

#include <cstdio>
#include <vector>

#include "runtime/bytes.h"

namespace cenote::fuzz {

/// Well-formed inputs, from which the fuzzer goes on. Defined by each fuzzer.
std::vector<Bytes> seeds();

/// Ends the run with the input kept and shown: `what` should have held.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", what);
  __builtin_trap();
}

}  // namespace cenote::fuzz
