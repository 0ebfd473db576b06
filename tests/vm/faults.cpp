#include "tests/vm/faults.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <stdexcept>

#include "tests/vm/environment.h"

namespace cenote::test::vm {
namespace {

void must_be_inside() {
  if (!environment().inside)
    throw std::runtime_error("faults are injected in the test VM only, not into this machine");
}

/// Gives the calling thread CAP_IPC_LOCK or takes it from its effective set.
void hold_ipc_lock(bool held) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> data{};
  if (::syscall(SYS_capget, &header, data.data()) != 0) throw std::runtime_error("capget failed");
  const std::uint32_t bit = 1U << CAP_IPC_LOCK;
  data[0].effective = held ? data[0].effective | bit : data[0].effective & ~bit;
  if (::syscall(SYS_capset, &header, data.data()) != 0) throw std::runtime_error("capset failed");
}

void undo(const std::string& command_line) {
  try {
    run_tool(command_line);
  } catch (const std::exception& failed) {
    ADD_FAILURE() << "a fault could not be undone: " << failed.what();
  }
}

}  // namespace

std::string run_tool(const std::string& command_line) {
  must_be_inside();
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen((command_line + " 2>&1").c_str(), "re"), ::pclose);
  if (!pipe) throw std::runtime_error(command_line + ": cannot be started");
  std::string output;
  std::array<char, 4096> piece{};
  for (std::size_t n = 0; (n = std::fread(piece.data(), 1, piece.size(), pipe.get())) > 0;)
    output.append(piece.data(), n);
  const int status = ::pclose(pipe.release());
  if (status != 0) throw std::runtime_error(command_line + ": " + output);
  return output;
}

LinkDown::LinkDown(std::string device) : device_(std::move(device)) {
  run_tool("ip link set " + device_ + " down");
}

LinkDown::~LinkDown() {
  // The kernel forgets the routes of a device that goes down, and its IPv6 addresses.
  undo("ip link set " + device_ + " up && for f in /run/cenote-vm.net/" + device_ +
       ".[46]; do [ ! -e $f ] || ip -${f##*.} -batch $f || exit 1; done");
}

QueueFault::QueueFault(std::string device, const std::string& queue) : device_(std::move(device)) {
  run_tool("tc qdisc add dev " + device_ + " root " + queue);
}

QueueFault::~QueueFault() { undo("tc qdisc del dev " + device_ + " root"); }

PacketLoss::PacketLoss(std::string device, double percent)
    : QueueFault(std::move(device), "netem limit 10000 loss " + std::to_string(percent) + "%") {}

Delay::Delay(std::string device, int milliseconds)
    : QueueFault(std::move(device), "netem limit 10000 delay " + std::to_string(milliseconds) + "ms") {}

Shaped::Shaped(std::string device, std::uint64_t bits_per_second)
    : QueueFault(std::move(device),
                 "tbf rate " + std::to_string(bits_per_second) + "bit burst " +
                     // a token bucket smaller than what a timer tick lets through never fills the wire
                     std::to_string(std::max<std::uint64_t>(32'768, bits_per_second / 8 / 100)) +
                     " limit 16777216") {}

MemlockLimit::MemlockLimit(std::uint64_t bytes) {
  must_be_inside();
  ::getrlimit(RLIMIT_MEMLOCK, &before_);
  const rlimit fewer{bytes, before_.rlim_max};
  if (::setrlimit(RLIMIT_MEMLOCK, &fewer) != 0) throw std::runtime_error("setrlimit(RLIMIT_MEMLOCK) failed");
  hold_ipc_lock(false);
}

MemlockLimit::~MemlockLimit() {
  ::setrlimit(RLIMIT_MEMLOCK, &before_);
  try {
    hold_ipc_lock(true);
  } catch (const std::exception& failed) {
    ADD_FAILURE() << "the memlock limit could not be lifted: " << failed.what();
  }
}

}  // namespace cenote::test::vm
