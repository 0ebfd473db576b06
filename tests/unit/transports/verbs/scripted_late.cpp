// What arrives late: writes whose sender has gone, and relaxed-ordering writes on their way to memory.
#include <algorithm>

#include "tests/unit/transports/verbs/scripted_core.h"

namespace cenote::transport::verbs::test::detail {

namespace {

constexpr std::uint64_t kCarried = 4;     // requests of one queue pair that the network holds
constexpr std::size_t kLine = 64;         // relaxed writes split at cache lines
constexpr std::size_t kLingering = 4096;  // pieces; more, and some land

/// The target's end, if it is still the one that the ghost was sent to and expects it next.
Qp* awaiting(const Ghost& ghost) {
  const auto found = ghost.to->qps.find(ghost.target_qpn);
  if (ghost.to->removed || found == ghost.to->qps.end()) return nullptr;
  Qp& peer = *found->second;
  const bool ready = peer.state == IBV_QPS_RTR || peer.state == IBV_QPS_RTS;
  const bool up = ready && ghost.to->port(peer.attr.port_num)->spec.up;
  if (!up || peer.attr.dest_qp_num != ghost.source_qpn || peer.receive_psn != ghost.psn) return nullptr;
  return &peer;
}

void land(Core& core, const Ghost& ghost) {
  Qp* peer = awaiting(ghost);
  if (peer == nullptr) return;
  const bool immediate = ghost.request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  const auto* srq = static_cast<const Srq*>(peer->srq);
  if (immediate && (srq == nullptr || srq->count == 0)) return;
  if (ghost.request.length != 0) {
    std::byte* to = reach_locked(*ghost.to, peer->pd, ghost.request.rkey, true, ghost.request.remote,
                                 ghost.request.length, IBV_ACCESS_REMOTE_WRITE);
    if (to == nullptr) {
      async_locked(*static_cast<Context*>(peer->context), IBV_EVENT_QP_ACCESS_ERR, peer);
      fail_qp_locked(core, *peer);
      return;
    }
    dma(to + ghost.request.done, ghost.payload.data(), ghost.payload.size());
  }
  peer->receive_psn = (peer->receive_psn + ghost.packets) & 0xffffff;
  if (immediate) deliver_receive_locked(core, ghost.source_qpn, *peer, ghost.request);
}

bool overlap(const Lingering& a, const Lingering& b) {
  return a.to < b.to + b.bytes.size() && b.to < a.to + a.bytes.size();
}

void land(const Lingering& piece) { dma(piece.to, piece.bytes.data(), piece.bytes.size()); }

}  // namespace

void leave_ghosts_locked(Core& core, Qp& qp) {
  if (qp.state != IBV_QPS_RTS || qp.executed == qp.posted) return;
  const Route& route = route_locked(core, qp);
  if (route.peer == nullptr || route.there == Road::lost) return;
  if (route.there == Road::open && (!core.lagging || core.random() % 2 == 0)) return;
  std::uint32_t psn = qp.send_psn;
  const std::uint64_t end = std::min(qp.posted, qp.executed + kCarried);
  for (std::uint64_t slot = qp.executed; slot != end; ++slot) {
    const Request& request = qp.request(slot);
    if (!is_write(request) || request.fate != IBV_WC_SUCCESS ||
        local_status_locked(qp, slot) != IBV_WC_SUCCESS)
      return;
    Ghost ghost{qp.card, route.peer->card,        qp.qp_num, route.peer->qp_num,
                psn,     packets_of(qp, request), request,   {}};
    ghost.payload.resize(request.length - request.done);
    gather_locked(qp, slot, request.done, ghost.payload.data(), ghost.payload.size());
    psn = (psn + ghost.packets) & 0xffffff;
    core.ghosts.push_back(std::move(ghost));
  }
}

bool haunt_locked(Core& core) {
  const auto next = std::find_if(core.ghosts.begin(), core.ghosts.end(), [&](const Ghost& ghost) {
    return road_locked(core, ghost.from, ghost.to) != Road::held;
  });
  if (next == core.ghosts.end()) return false;
  const Ghost ghost = std::move(*next);
  core.ghosts.erase(next);
  if (road_locked(core, ghost.from, ghost.to) == Road::open) land(core, ghost);
  return true;
}

void write_locked(Core& core, const Device& device, const Mr& mr, std::byte* to, const std::byte* from,
                  std::size_t bytes) {
  if (!core.relaxed_linger || (mr.access & IBV_ACCESS_RELAXED_ORDERING) == 0) {
    flush_lingering_locked(core, device);
    dma(to, from, bytes);
    return;
  }
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, kLine - reinterpret_cast<std::uintptr_t>(to) % kLine);
    core.lingering.push_back({&device, &mr, to, {from, from + part}});
    to += part, from += part, bytes -= part;
  }
  while (core.lingering.size() > kLingering) land_lingering_locked(core);
}

void flush_lingering_locked(Core& core, const Device& device) {
  for (const Lingering& piece : core.lingering)
    if (piece.by == &device) land(piece);
  std::erase_if(core.lingering, [&](const Lingering& piece) { return piece.by == &device; });
}

bool land_lingering_locked(Core& core) {
  if (core.lingering.empty()) return false;
  auto chosen = core.lingering.begin() + static_cast<std::ptrdiff_t>(core.random() % core.lingering.size());
  // Of writes to the same bytes the earliest lands first: memory keeps the last.
  for (auto earlier = chosen; earlier != core.lingering.begin();)
    if (overlap(*--earlier, *chosen)) chosen = earlier;
  land(*chosen);
  core.lingering.erase(chosen);
  return true;
}

void forget_lingering_locked(Core& core, const Mr& mr) {
  for (const Lingering& piece : core.lingering)
    if (piece.mr == &mr) land(piece);
  std::erase_if(core.lingering, [&](const Lingering& piece) { return piece.mr == &mr; });
}

}  // namespace cenote::transport::verbs::test::detail
