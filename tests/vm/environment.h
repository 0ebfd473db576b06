// Where a test runs: inside the test VM (tests/vm/cenote-vm), with which devices and addresses, and who is
// its peer.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace cenote::test::vm {

/// What guest/main set up. The k-th RDMA device is devices[k], on the network device rnet<k> with
/// addresses[k].
struct Environment {
  bool inside = false;
  int host = 0;                             ///< 1 in the second of two VMs
  std::vector<std::string> devices;         ///< "rxe0", "rxe1"
  std::vector<std::string> addresses;       ///< IPv4, one a device
  std::vector<std::string> peer_addresses;  ///< those of the other VM; none if there is no other
  std::string control_address;              ///< own and peer's address on the wire that no fault cuts
  std::string peer_control_address;
};

/// `timeout` of a queue pair, about a second, for tests in which nothing is lost: on a machine that is busy
/// with something else the emulated cards let each other wait longer than the usual 67 ms, and what Soft-RoCE
/// then repeats of a long write it may call invalid itself (REM_INV_REQ_ERR, also under perftest).
inline constexpr std::uint8_t patient_timeout = 18;

/// Read once.
const Environment& environment();

/// A test that needs the VM's devices; anywhere else it is skipped, with how to run it.
class VmTest : public ::testing::Test {
 protected:
  void SetUp() override;
};

}  // namespace cenote::test::vm
