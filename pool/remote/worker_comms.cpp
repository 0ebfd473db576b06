// A lane's ranks of pooled communicators.
#include <algorithm>

#include "pool/remote/device_info.h"
#include "pool/remote/worker_lane_inl.h"

namespace cenote::pool::remote {

using cuda::Status;

namespace {
constexpr std::size_t most_comms = 256;
constexpr std::uint32_t most_ranks = 1U << 20;
}  // namespace

Result<void> WorkerLane::on(const CommId& c) {
  if (comms_.size() >= most_comms)
    return answer_text(c.request, Status::out_of_memory, 0, 0, "too many communicators");
  auto root = BootstrapRoot::create(shared_.options.rank_fabric.tcp_host);
  if (!root) return answer_text(c.request, Status::operating_system, 0, 0, root.error().message());
  auto& slot = comms_[c.comm];
  slot.root = std::move(*root);
  const auto text = slot.root->id().text();
  return answer_blob(c.request, as_bytes(text));
}

Result<void> WorkerLane::on(const CommCreate& c) {
  if (comms_.size() >= most_comms || c.rank >= c.size || c.size > most_ranks)
    return answer_text(c.request, Status::invalid_value, 0, 0, "too many communicators, or no such rank");
  if (comms_[c.comm].rank != nullptr)
    return answer_text(c.request, Status::invalid_value, 0, 0, "communicator number in use");
  if (const auto status = enter(context_); status != Status::success) return answer(c.request, status);
  auto& slot = comms_[c.comm];
  CommRank::Options options;
  options.rank = c.rank;
  options.size = c.size;
  options.id = std::string(c.id);
  options.device = "cuda:" + std::to_string(device_);
  options.fabric = shared_.options.rank_fabric;
  options.init_timeout = std::chrono::milliseconds(c.timeout_ms);
  options.collectives = shared_.options.collectives;
  slot.create_request = c.request;
  slot.context = context_;
  slot.rank = std::make_unique<CommRank>(shared_.driver, contexts_[context_], control_, *shared_.waker,
                                         std::move(options));
  return {};  // answered when the rank has found the others, see poll_comms
}

Result<bool> WorkerLane::poll_comms() {
  bool moved = false;
  for (auto waiting = collectives_.begin(); waiting != collectives_.end() && waiting->fence->done();) {
    waiting->operation.ready = !waiting->fence->failed;
    const auto comm = comms_.find(waiting->comm);
    if (comm != comms_.end() && comm->second.rank != nullptr) {
      comm->second.rank->enqueue(waiting->operation);
    } else if (enter(0) == Status::success) {  // its communicator went with its context
      shared_.driver.stream_write_value32(control_, waiting->operation.word, waiting->operation.value, 0);
    }
    retire(waiting->fence);
    waiting = collectives_.erase(waiting);
    moved = true;
  }
  for (auto& [number, comm] : comms_) {
    if (comm.rank == nullptr || !can_answer()) continue;
    if (comm.create_request != 0) {
      const auto created = comm.rank->created();
      if (!created) continue;
      const auto request = std::exchange(comm.create_request, 0);
      if (*created) {
        CENOTE_TRY(answer(request, Status::success));
      } else {
        const auto why = comm.rank->fresh_failure();
        CENOTE_TRY(answer_blob(request, why ? pack(*why) : Bytes{}, Status::unknown));
      }
      moved = true;
    } else if (const auto failure = comm.rank->fresh_failure()) {
      CENOTE_TRY(tell_error(comm.context, Status::unknown, failure->message()));
      moved = true;
    }
  }
  return moved;
}

Result<void> WorkerLane::enqueue_collective(CommSlot& comm, std::uint32_t number, std::uint32_t wire,
                                            CommRank::Operation operation) {
  cuda::Stream stream = nullptr;
  std::uint32_t context = 0;
  if (!find_stream(wire, stream, context))
    return tell_error(context_, Status::invalid_handle, "collective: no such stream");
  comm.context = context;
  if (const auto failure = comm.rank->failure())
    return tell_error(context, Status::unknown, failure->message());
  auto status = enter(context);
  if (status != Status::success) return tell_error(context, status, detail_of());
  const auto word = take_word();
  if (!word) return tell_error(context, Status::out_of_memory, "too many collectives in flight");
  operation.word = words_ + 4 * *word;
  operation.value = word_values_[*word];
  Fence* const fence = place_fence(stream, wire, context);
  if (fence == nullptr) {
    free_words_.push_back(*word);
    comm.rank->abort("its stream's context is lost");
    return {};
  }
  collectives_.push_back({fence, number, operation});
  status = shared_.driver.stream_wait_value32(stream, operation.word, operation.value, cuda::wait_geq);
  worked(stream, wire, context);
  // The word is taken again only after the stream has passed it.
  if (status == Status::success) {
    if (auto* passed = place_fence(stream, wire, context)) words_in_use_.push_back({passed, *word});
  }
  return check(status);
}

void WorkerLane::release_words() {
  std::erase_if(words_in_use_, [this](const auto& use) {
    if (!use.first->done()) return false;
    retire(use.first);
    free_words_.push_back(use.second);
    return true;
  });
}

Result<void> WorkerLane::on(const CommAllreduce& c) {
  const auto found = comms_.find(c.comm);
  if (found == comms_.end() || found->second.rank == nullptr)
    return tell_error(context_, Status::invalid_handle, "allreduce: no such communicator");
  CommRank::Operation operation;
  operation.kind = CommRank::Operation::Kind::allreduce;
  operation.type = static_cast<DataType>(c.type);
  operation.op = static_cast<ReduceOp>(c.op);
  operation.send = c.send;
  operation.recv = c.recv;
  operation.count = c.count;
  const auto size = size_of(operation.type);
  if (size == 0 || c.op > CENOTE_AVG) {
    found->second.rank->abort("it was asked for no such type or operation");
    return tell_error(context_, Status::invalid_value, "allreduce: no such type or operation");
  }
  if (c.count > SIZE_MAX / size || !covers(c.send, c.count * size) || !covers(c.recv, c.count * size)) {
    found->second.rank->abort("its buffer is no memory of the device");
    return tell_error(context_, Status::invalid_value, "allreduce: its buffer is no memory of the device");
  }
  return enqueue_collective(found->second, c.comm, c.stream, operation);
}

Result<void> WorkerLane::on(const CommBroadcast& c) {
  const auto found = comms_.find(c.comm);
  if (found == comms_.end() || found->second.rank == nullptr)
    return tell_error(context_, Status::invalid_handle, "broadcast: no such communicator");
  CommRank::Operation operation;
  operation.kind = CommRank::Operation::Kind::broadcast;
  operation.type = static_cast<DataType>(c.type);
  operation.recv = c.buffer;
  operation.count = c.count;
  operation.root = c.root;
  const auto size = size_of(operation.type);
  if (size == 0) {
    found->second.rank->abort("it was asked for no such type");
    return tell_error(context_, Status::invalid_value, "broadcast: no such type");
  }
  if (c.count > SIZE_MAX / size || !covers(c.buffer, c.count * size)) {
    found->second.rank->abort("its buffer is no memory of the device");
    return tell_error(context_, Status::invalid_value, "broadcast: its buffer is no memory of the device");
  }
  return enqueue_collective(found->second, c.comm, c.stream, operation);
}

Result<void> WorkerLane::on(const CommStats& c) {
  const auto found = comms_.find(c.comm);
  if (found == comms_.end() || found->second.rank == nullptr)
    return answer_text(c.request, Status::invalid_handle, 0, 0, "no such communicator");
  const auto stats = found->second.rank->stats();
  Writer out;
  out.put(static_cast<std::uint32_t>(stats.size()));
  for (const auto& peer : stats) out.put(peer.rank).text(peer.transport).put(peer.bytes_sent);
  return answer_blob(c.request, out.bytes());
}

Result<void> WorkerLane::on(const CommFailure& c) {
  const auto found = comms_.find(c.comm);
  if (found == comms_.end() || found->second.rank == nullptr)
    return answer_text(c.request, Status::invalid_handle, 0, 0, "no such communicator");
  const auto failure = found->second.rank->failure();
  return answer_blob(c.request, failure ? pack(*failure) : Bytes{});
}

Result<void> WorkerLane::on(const CommAbort& c) {
  const auto found = comms_.find(c.comm);
  if (found != comms_.end() && found->second.rank != nullptr)
    found->second.rank->abort(std::string(c.reason));
  return {};
}

// What is in flight is ended first; streams that wait for it are released by the rank's thread.
Result<void> WorkerLane::on(const CommDestroy& c) {
  const auto found = comms_.find(c.comm);
  if (found == comms_.end()) return {};
  const auto in_flight = [this, number = c.comm] {
    return std::any_of(collectives_.begin(), collectives_.end(),
                       [&](const auto& w) { return w.comm == number; });
  };
  if (found->second.create_request != 0) {
    found->second.rank->abort("destroyed while being created");
    CENOTE_TRY(
        answer_text(std::exchange(found->second.create_request, 0), Status::not_ready, 0, 0, "destroyed"));
  }
  blocked_ = [in_flight] { return !in_flight(); };
  after_block_ = [this, number = c.comm]() -> Result<void> {
    comms_.erase(number);
    return {};
  };
  return {};
}

}  // namespace cenote::pool::remote
