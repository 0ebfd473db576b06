// The stand-in's one function that no libcuda has: puts a fresh emulated driver behind the exports (nullptr:
// none).
#pragma once

#include "cuda/emulator/emulated_driver.h"

extern "C" void cenote_standin_reset(const cenote::cuda::EmulatorOptions* options);
using StandinReset = decltype(&cenote_standin_reset);
