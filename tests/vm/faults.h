// Faults of the network and of the machine, inside the test VM. Each lasts as long as its object; the
// destructor undoes it, whatever the test did. They refuse to work outside the VM (std::runtime_error, which
// fails the test).
//
// Which network device to break, and what a program with a reliable connection in mid-stream then sees:
//
//   rnet1p   the cable of the peer, device rxe1: RETRY_EXC_ERR here, PORT_ERR event there
//   rnet0    the own cable, of device rxe0: an error at once (LOC_QP_OP_ERR, or flushed), PORT_ERR event here
//   eth0     the wire to the other VM: RETRY_EXC_ERR on both sides, no event
#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <string>

namespace cenote::test::vm {

/// `ip link set DEVICE down`, and up again. When it comes up, addresses and routes are as they were.
class LinkDown {
 public:
  explicit LinkDown(std::string device);
  ~LinkDown();
  LinkDown(const LinkDown&) = delete;
  LinkDown& operator=(const LinkDown&) = delete;

 private:
  std::string device_;
};

/// What leaves through one network device goes through a queue of `tc`. One at a time for each device.
class QueueFault {
 public:
  ~QueueFault();
  QueueFault(const QueueFault&) = delete;
  QueueFault& operator=(const QueueFault&) = delete;

 protected:
  /// `queue`: what follows `tc qdisc add dev DEVICE root`.
  QueueFault(std::string device, const std::string& queue);

 private:
  std::string device_;
};

/// Each packet is lost with this probability, in percent; 100 is a wire that carries nothing and says
/// nothing.
class PacketLoss : public QueueFault {
 public:
  PacketLoss(std::string device, double percent);
};

/// Each packet is late by this much.
class Delay : public QueueFault {
 public:
  Delay(std::string device, int milliseconds);
};

/// A slower wire, which loses nothing: what is too much waits.
class Shaped : public QueueFault {
 public:
  Shaped(std::string device, std::uint64_t bits_per_second);
};

/// `ulimit -l` for this process, and no right of the calling thread to ignore it (CAP_IPC_LOCK). Destroy it
/// in the thread that made it; threads that ran before keep their right.
class MemlockLimit {
 public:
  explicit MemlockLimit(std::uint64_t bytes);
  ~MemlockLimit();
  MemlockLimit(const MemlockLimit&) = delete;
  MemlockLimit& operator=(const MemlockLimit&) = delete;

 private:
  rlimit before_{};
};

/// Runs a program to its end and gives what it printed. std::runtime_error with that if it fails.
std::string run_tool(const std::string& command_line);

}  // namespace cenote::test::vm
