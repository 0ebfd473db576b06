// The stand-in's one function that no libcuda has: puts a fresh emulated driver behind the exports (nullptr:
// none).
#pragma once

#include "cuda/emulator/emulated_driver.h"

extern "C" void cenote_standin_reset(const cenote::cuda::EmulatorOptions* options);
using StandinReset = decltype(&cenote_standin_reset);

// The same for programs in C: H200s with so many bytes each (none: no driver). A seed other than 0: their
// streams run late and in odd interleavings.
extern "C" void cenote_standin_cards(unsigned cards, std::size_t bytes, unsigned long long seed);
