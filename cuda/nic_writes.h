// When a GPU sees what a network card has written into its memory, and what has to be done first. The writes
// and the word that they are complete (a completion in host memory) go different ways; a GPU that promises
// nothing about their order may still hold back the bytes when the CPU reads the word.
#pragma once

#include <string>
#include <string_view>

namespace cenote::cuda {

enum class WritesSeen {
  at_once,          ///< nothing is to be done
  after_flush,      ///< cuFlushGPUDirectRDMAWrites
  after_read_back,  ///< the card that wrote reads a byte of it: its read does not overtake its writes
};

/// What a device says of itself. -1: its driver does not know the question.
struct WritesFacts {
  int major = 0, minor = 0;    ///< compute capability: 6.0 Pascal ... 9.0 Hopper, 10.0 and 12.0 Blackwell
  int ordering = -1;           ///< CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING
  int flush_options = -1;      ///< CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS
  bool coherent_link = false;  ///< the CPU is at NVLink-C2C and not at PCIe
};

struct WritesRule {
  WritesSeen seen;
  std::string_view why;     ///< one sentence
  std::string_view source;  ///< where that is written
};

/// The first row of the table that holds for the device.
const WritesRule& writes_rule(const WritesFacts& facts);
/// "flush call: <why> (<source>)"
std::string in_words(const WritesRule& rule);

}  // namespace cenote::cuda
