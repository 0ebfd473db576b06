// A stand-in for a device's memory, and a short way to run PTX on it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/emulator/launch.h"
#include "cuda/ptx/program.h"

namespace cenote::cuda::testing {

inline constexpr std::string_view ptx_header = ".version 8.0\n.target sm_75\n.address_size 64\n";

/// Buffers at made-up addresses, far apart, with nothing between them.
class Device {
 public:
  template <class T>
  std::uint64_t upload(const std::vector<T>& values) {
    const auto address = allocate(values.size() * sizeof(T));
    std::memcpy(buffers_.back().data(), values.data(), values.size() * sizeof(T));
    return address;
  }
  std::uint64_t allocate(std::size_t bytes, bool writable = true) {
    buffers_.emplace_back(bytes);
    const std::uint64_t address = 0x7000'0000'0000 + 0x1'0000'0000 * ranges_.size();
    ranges_.push_back({address, bytes, buffers_.back().data(), writable});
    return address;
  }
  template <class T>
  std::vector<T> download(std::uint64_t address, std::size_t count) const {
    std::vector<T> values(count);
    for (const auto& r : ranges_)
      if (r.address == address) std::memcpy(values.data(), r.host, count * sizeof(T));
    return values;
  }
  [[nodiscard]] const std::vector<emulator::MemoryRange>& ranges() const { return ranges_; }

 private:
  std::list<std::vector<std::byte>> buffers_;
  std::vector<emulator::MemoryRange> ranges_;
};

/// Packs arguments as a kernel takes them: each at the next multiple of its size.
class Args {
 public:
  template <class... T>
  explicit Args(T... values) {
    (add(values), ...);
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  template <class T>
  void add(T value) {
    const auto at = (bytes_.size() + sizeof(T) - 1) / sizeof(T) * sizeof(T);
    bytes_.resize(at + sizeof(T));
    std::memcpy(bytes_.data() + at, &value, sizeof(T));
  }
  std::vector<std::byte> bytes_;
};

inline std::shared_ptr<const ptx::Program> parsed(std::string_view text) {
  auto program = ptx::parse(text);
  EXPECT_TRUE(program) << program.error().message() << "\n" << text;
  return program ? *program : nullptr;
}

/// Runs entry `name` (or the only one). Module variables get memory of the device, initialised.
inline emulator::Outcome run(const ptx::Program& program, std::string_view name, Device& device,
                             emulator::Dim3 grid, emulator::Dim3 block, const Args& args,
                             std::size_t shared = 0, unsigned threads = 1,
                             const CancelFlag* cancel = nullptr) {
  std::vector<std::uint64_t> variables;
  for (const auto& v : program.variables) {
    auto bytes = v.initial;
    bytes.resize(v.size);
    variables.push_back(device.upload(bytes));
  }
  for (std::size_t k = 0; k < program.variables.size(); ++k)
    for (const auto& r : program.variables[k].relocations) {
      const std::uint64_t value = variables[r.target] + static_cast<std::uint64_t>(r.addend);
      for (const auto& range : device.ranges())
        if (range.address == variables[k]) std::memcpy(range.host + r.offset, &value, r.bytes);
    }
  emulator::Launch launch;
  launch.program = &program;
  launch.entry = name.empty() ? 0 : program.find_entry(name).value_or(~std::size_t{0});
  launch.grid = grid;
  launch.block = block;
  launch.shared_bytes = shared;
  launch.params = args.bytes();
  launch.variables = variables;
  launch.memory = device.ranges();
  launch.threads = threads;
  launch.cancel = cancel;
  return emulator::run(launch);
}

inline void expect_success(const emulator::Outcome& outcome) {
  EXPECT_EQ(outcome.status, Status::success)
      << (outcome.fault ? outcome.fault->text : std::string("no fault"));
}

}  // namespace cenote::cuda::testing
