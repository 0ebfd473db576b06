// A reliable connection between two RDMA devices in plain libibverbs: what the tests of the VM itself use,
// and a second opinion beside the product's own verbs code. Whatever fails throws, which fails the test.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/deadline.h"

namespace cenote::test::vm {

template <auto destroy>
struct Destroyer {
  template <typename T>
  void operator()(T* object) const {
    destroy(object);
  }
};
using Device = std::unique_ptr<ibv_context, Destroyer<ibv_close_device>>;
using Domain = std::unique_ptr<ibv_pd, Destroyer<ibv_dealloc_pd>>;
using Completions = std::unique_ptr<ibv_cq, Destroyer<ibv_destroy_cq>>;
using Region = std::unique_ptr<ibv_mr, Destroyer<ibv_dereg_mr>>;
using Connection = std::unique_ptr<ibv_qp, Destroyer<ibv_destroy_qp>>;

/// What the other side must know to connect and to write here.
struct Card {
  std::uint32_t queue_pair = 0;
  std::uint32_t key = 0;
  std::uint64_t address = 0;
  ibv_gid gid{};
};

/// How patient a connection is: the local ack timeout is 4.096 us * 2^timeout. Soft-RoCE takes 7 retries for
/// no end.
struct Patience {
  std::uint8_t timeout = 18;
  std::uint8_t retries = 7;
};

Device open_device(const std::string& name);

/// One end: a device, one queue pair, `size` bytes registered for everything.
class End {
 public:
  End(const std::string& device, std::size_t size);

  [[nodiscard]] Card card() const;
  /// To ready-to-send, with one receive posted for an immediate.
  void connect(const Card& peer, Patience patience = {});
  void post(ibv_wr_opcode opcode, const Card& peer, std::size_t length, std::uint32_t key);
  void post(ibv_wr_opcode opcode, const Card& peer, std::size_t length) {
    post(opcode, peer, length, peer.key);
  }
  /// The next completion; throws when the deadline passes first.
  ibv_wc completion(Deadline deadline);
  /// The next asynchronous event of the device, acknowledged; throws when the deadline passes first.
  ibv_event_type event(Deadline deadline);
  [[nodiscard]] ibv_port_state port_state() const;
  [[nodiscard]] ibv_qp_state state() const;
  /// The sum of the hw_counters of that name.
  [[nodiscard]] std::uint64_t counter(const std::string& name) const;

  std::vector<std::uint8_t> memory;

 private:
  Device device_;
  Domain domain_;
  Completions completions_;
  Region region_;
  Connection connection_;
};

/// Two ends in one VM, connected.
struct Pair {
  Pair(const std::string& left_device, const std::string& right_device, std::size_t size,
       Patience patience = {});
  End left, right;
};

}  // namespace cenote::test::vm
