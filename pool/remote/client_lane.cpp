#include "pool/remote/client_lane.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace cenote::pool::remote {
namespace {

// A batch goes out when it is this full, or when the last one left this long ago: the first command after a
// pause leaves at once, a stream of them travels together.
constexpr std::size_t batch_target = ring_head_bytes / 2;
constexpr auto batch_age = std::chrono::microseconds(50);
constexpr std::size_t inline_upload = 1024;
// At one look: a worker that floods its client keeps it from no other worker.
constexpr int most_messages = 64;

RingPlace commands_of(std::uint32_t lane) { return {lane * ring_bytes, lane, lane}; }
RingPlace answers_of(std::uint32_t lane) { return {lane * ring_bytes, max_lanes + lane, max_lanes + lane}; }

}  // namespace

bool is_sticky(cuda::Status status) {
  using cuda::Status;
  switch (status) {
    case Status::ecc_uncorrectable:
    case Status::illegal_address:
    case Status::launch_timeout:
    case Status::assert_failed:
    case Status::illegal_instruction:
    case Status::misaligned_address:
    case Status::invalid_address_space:
    case Status::launch_failed:
      return true;
    default:
      return false;
  }
}

Lane::Lane(Session& session, WorkerLink& worker, std::uint32_t ordinal, std::uint32_t index_in_worker,
           std::string name, const transport::RemoteKey& commands, std::span<std::byte> answers)
    : session_(session),
      worker_(worker),
      ordinal_(ordinal),
      index_(index_in_worker),
      name_(std::move(name)),
      heads_(new std::byte[ring_slots * ring_head_bytes]),
      out_(*worker.link.endpoint, commands, commands_of(index_in_worker)),
      in_(*worker.link.endpoint, answers, {heads_.get(), ring_slots * ring_head_bytes}, commands,
          answers_of(index_in_worker)) {}

bool Lane::reserve(std::size_t head, std::size_t bulk) {
  for (;;) {
    if (lost() || head > batch_capacity) return false;
    if (!out_.room()) {
      session_.wait([this] { return lost() || out_.room(); }, "room for commands");
    } else if (head_used_ + head > batch_capacity || bulk_used_ + bulk > ring_bulk_bytes) {
      flush();
    } else {
      return true;
    }
  }
}

bool Lane::after_append() {
  if (head_used_ >= batch_target || bulk_used_ >= ring_bulk_bytes / 2) return flush();
  if (Clock::now() - last_flush_ >= batch_age) return flush();
  return true;
}

bool Lane::flush() {
  const auto before = out_.sent();
  while (!lost() && head_used_ != 0 && out_.sent() == before) {
    auto sent = out_.commit(head_used_, bulk_used_);
    if (sent) {
      counters_.bytes_out += sizeof(BatchHeader) + head_used_ + bulk_used_;
      ++counters_.batches;
      head_used_ = bulk_used_ = 0;
      last_flush_ = Clock::now();
    } else if (sent.error().code == ErrorCode::resource_exhausted) {
      session_.wait_holding([this, once = false]() mutable { return lost() || std::exchange(once, true); },
                            "the endpoint's queue");
    } else {
      session_.lose(worker_, sent.error());
    }
  }
  session_.progress();
  return !lost();
}

// Beside the ring: commands that wait there may themselves wait for the stream that this lets go on.
void Lane::host_function_done(std::uint64_t id) {
  std::array<std::byte, 64> message;
  const auto size = encode(HostFuncDone{id, index_}, message);
  while (!lost()) {
    auto sent = worker_.link.endpoint->send(std::span(message).first(size));
    if (sent) return;
    if (sent.error().code != ErrorCode::resource_exhausted) {
      session_.lose(worker_, sent.error());
      return;
    }
    session_.wait_holding([this, once = false]() mutable { return lost() || std::exchange(once, true); },
                          "the endpoint's queue");
  }
}

bool Lane::upload(std::uint32_t context, std::uint32_t stream, std::uint64_t dst,
                  std::span<const std::byte> bytes) {
  if (bytes.size() <= inline_upload) return issue(context, Upload{dst, stream, bytes});
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), ring_bulk_bytes));
    // A command that asks for this slot's bulk area must leave in this slot: nothing below lets go of the
    // lock between the two.
    if (!reserve(sizeof(UploadBulk) + 48, piece.size())) return false;
    const auto at = bulk_used_;
    Result<void> put = out_.put_bulk(piece, at);
    while (!put && put.error().code == ErrorCode::resource_exhausted && !lost()) {
      session_.wait_holding([this, once = false]() mutable { return lost() || std::exchange(once, true); },
                            "the endpoint's queue");
      put = out_.put_bulk(piece, at);
    }
    if (!put) {
      session_.lose(worker_, put.error());
      return false;
    }
    ++worker_.bulk_in_flight;
    bulk_used_ = std::min(ring_bulk_bytes, (at + piece.size() + 63) & ~std::size_t{63});
    if (!issue(context, UploadBulk{dst, stream, static_cast<std::uint32_t>(at),
                                   static_cast<std::uint32_t>(piece.size())}))
      return false;
    dst += piece.size();
    bytes = bytes.subspan(piece.size());
  }
  session_.wait([this] { return lost() || worker_.bulk_in_flight == 0; }, "the caller's memory to be read");
  return !lost();
}

std::uint64_t Lane::expect(Reply& reply) {
  const auto request = next_request_++;
  waiting_.emplace(request, &reply);
  return request;
}

cuda::Status Lane::finish(Reply& reply) {
  session_.wait([&] { return reply.done || lost(); }, "an answer of the worker");
  if (!reply.done) lost_worker();
  return reply.status;
}

void Lane::settle(const std::byte* from, std::size_t bytes) {
  const auto overlaps = [&] {
    return std::any_of(owned_.begin(), owned_.end(), [&](const auto& entry) {
      const Reply& reply = *entry.second;
      return reply.into < from + bytes && from < reply.into + reply.room;
    });
  };
  if (!overlaps()) return;
  flush();
  session_.wait([&] { return lost() || !overlaps(); }, "data on its way into the source");
}

void Lane::settle_all() {
  if (owned_.empty()) return;
  flush();
  session_.wait([&] { return lost() || owned_.empty(); }, "data on its way");
}

void Lane::remember(std::uint32_t context, cuda::Status status, std::string_view detail) {
  Fault& known = faults_[context];
  if (known.sticky || (known.status != cuda::Status::success && !is_sticky(status))) return;
  known = {status, std::string(detail), is_sticky(status)};
}

Result<void> Lane::accept(const Answered& result) {
  const auto found = waiting_.find(result.request);
  if (found == waiting_.end())
    return fail(ErrorCode::protocol_error, "receive answer", "nobody asked for it");
  Reply& reply = *found->second;
  if (result.status == 0 && reply.into != nullptr && reply.got != reply.room)
    return fail(ErrorCode::protocol_error, "receive data", "ended before the last byte");
  waiting_.erase(found);
  reply.status = static_cast<cuda::Status>(result.status);
  reply.a = result.a;
  reply.b = result.b;
  reply.detail = result.detail;
  if (is_sticky(reply.status)) remember(reply.context, reply.status, reply.detail);
  reply.done = true;
  const auto own = owned_.find(result.request);
  if (own == owned_.end()) return {};
  if (reply.status != cuda::Status::success) remember(reply.context, reply.status, reply.detail);
  owned_.erase(own);
  return {};
}

Result<void> Lane::accept(std::uint64_t request, std::span<const std::byte> bytes) {
  const auto found = waiting_.find(request);
  if (found == waiting_.end()) return fail(ErrorCode::protocol_error, "receive data", "nobody asked for it");
  Reply& reply = *found->second;
  if (reply.into == nullptr) {
    if (reply.blob.size() + bytes.size() > (std::size_t{1} << 20))
      return fail(ErrorCode::protocol_error, "receive data", "more than 1 MiB");
    reply.blob.insert(reply.blob.end(), bytes.begin(), bytes.end());
    return {};
  }
  if (bytes.size() > reply.room - reply.got)
    return fail(ErrorCode::protocol_error, "receive data", "more than asked for");
  if (!bytes.empty()) std::memcpy(reply.into + reply.got, bytes.data(), bytes.size());
  reply.got += bytes.size();
  return {};
}

Result<void> Lane::handle(const Batch& batch) {
  auto rest = batch.commands;
  while (!rest.empty()) {
    CENOTE_ASSIGN(const std::size_t size, command_size(rest));
    CENOTE_TRY(dispatch(rest.first(size), [&](const auto& command) -> Result<void> {
      using C = std::decay_t<decltype(command)>;
      if constexpr (std::is_same_v<C, Answered>) {
        return accept(command);
      } else if constexpr (std::is_same_v<C, Data>) {
        return accept(command.request, command.bytes);
      } else if constexpr (std::is_same_v<C, DataBulk>) {
        if (command.offset > batch.bulk.size() || command.count > batch.bulk.size() - command.offset)
          return fail(ErrorCode::protocol_error, "receive data", "beyond the batch");
        return accept(command.request, batch.bulk.subspan(command.offset, command.count));
      } else if constexpr (std::is_same_v<C, AsyncError>) {
        remember(command.context, static_cast<cuda::Status>(command.status), command.detail);
        return {};
      } else if constexpr (std::is_same_v<C, HostCall>) {
        if (!host_functions.contains(command.id))
          return fail(ErrorCode::protocol_error, "receive host call", "no such function");
        session_.add_host_call(*this, command.id);
        return {};
      } else {
        return fail(ErrorCode::protocol_error, "receive answer",
                    std::string(C::label) + " is not for clients");
      }
    }));
    rest = rest.subspan(size);
  }
  return {};
}

bool Lane::progress() {
  bool moved = false;
  while (!lost()) {
    auto batch = in_.next();
    if (batch && !*batch) break;
    Result<void> handled;
    if (batch) {
      counters_.bytes_in += sizeof(BatchHeader) + (*batch)->commands.size() + (*batch)->bulk.size();
      handled = handle(**batch);
      in_.release((*batch)->number);
    } else {
      handled = fail(batch.error());
    }
    if (handled) handled = in_.pay();
    if (!handled) session_.lose(worker_, handled.error());
    moved = true;
  }
  if (!lost() && in_.owing()) {
    if (auto paid = in_.pay(); !paid) session_.lose(worker_, paid.error());
  }
  return moved;
}

bool Lane::lost_before(const Lane& other) const {
  const auto order = [](const Lane& lane) {
    return std::pair(lane.loss().cause.ends_with(ended_by_its_agent), lane.worker_.lost_as);
  };
  return order(*this) < order(other);
}

void Lane::lost_worker() {
  const auto detail = loss().message();
  for (auto& [request, reply] : waiting_) {
    reply->done = true;
    reply->status = cuda::Status::launch_failed;
    reply->detail = detail;
  }
  waiting_.clear();
  owned_.clear();
}

void Session::enter() {
  if (mutex_.try_lock()) return;
  newcomers_.fetch_add(1);
  if (asleep_.load()) fabric_->interrupt();
  mutex_.lock();
  newcomers_.fetch_sub(1);
}

void Session::stir() {
  if (followers_.load() == 0) return;
  {
    const std::lock_guard guard(follow_mutex_);
    ++generation_;
  }
  moved_.notify_all();
}

Session::~Session() {
  for (auto& worker : workers_) {
    if (worker->link.endpoint && !worker->lost) worker->link.endpoint->close(closed_by_client);
  }
}

void Session::lose(WorkerLink& worker, const Error& error) {
  if (worker.lost) return;
  worker.lost = error;
  worker.lost_as = ++losses_;
  loss_news_ = true;
  for (auto* lane : worker.lanes) lane->lost_worker();
  worker.link.endpoint->close("given up: " + error.cause);
}

bool Session::progress_worker(WorkerLink& worker) {
  if (worker.lost) return false;
  bool moved = false;
  std::array<transport::Completion, 32> done;
  while (const auto count = worker.link.endpoint->poll(done)) {
    for (std::size_t i = 0; i < count; ++i) worker.bulk_in_flight -= done[i].tag == tag_bulk ? 1 : 0;
    moved = true;
  }
  bool answered = false;
  for (auto* lane : worker.lanes) answered = lane->progress() || answered;
  if (answered) worker.silence.heard();
  moved = moved || answered;
  if (auto failure = worker.link.endpoint->failure(); failure && !worker.lost) {
    lose(worker, *failure);
    moved = true;
  }
  return moved;
}

Result<void> Session::take_messages(WorkerLink& worker) {
  std::array<std::byte, 64> message;
  for (int left = most_messages; left > 0; --left) {
    CENOTE_ASSIGN(const auto size, worker.link.endpoint->receive(message));
    if (!size) break;
    CENOTE_TRY(dispatch(std::span(message).first(*size), [&](const auto& command) -> Result<void> {
      using C = std::decay_t<decltype(command)>;
      if constexpr (std::is_same_v<C, Pong>) {
        worker.asked = worker.busy = false;
        worker.silence.heard();
        ++worker.signs_of_life;
        return {};
      } else if constexpr (std::is_same_v<C, Busy>) {
        worker.busy = true;
        return {};
      } else {
        return fail(ErrorCode::protocol_error, "receive message",
                    std::string(C::label) + " is not for clients");
      }
    }));
  }
  return {};
}

// A worker that works answers while its device does not: its serving thread waits for nothing. So silence is
// ended by a question, and only one that stays unanswered counts against the worker.
void Session::watch(WorkerLink& worker, Clock::time_point now) {
  if (worker.lost || worker.lanes.empty()) return;
  if (auto taken = take_messages(worker); !taken) {
    lose(worker, taken.error());
    return;
  }
  worker.silence.look(now);
  if (!worker.asked && worker.silence.so_far() >= worker_timeout_ / 4) {
    std::array<std::byte, 16> message;
    const auto size = encode(Ping{}, message);
    // Refused while the peer has not taken earlier messages: asked again at the next look.
    worker.asked = worker.link.endpoint->send(std::span(message).first(size)).has_value();
  }
  if (!worker.silence.over() || worker.busy) return;
  lose(worker,
       Error{ErrorCode::peer_failed, "wait for the worker", "it " + worker.silence.text(), "", worker.peer}
           .fix("it, its agent or its machine is stopped, overloaded or cut off; setting worker.timeout says "
                "how long to wait"));
}

bool Session::progress() {
  bool moved = fabric_->progress();
  if (cancel_ != nullptr && cancel_->raised()) {
    for (auto& worker : workers_) {
      if (!worker->lost)
        lose(*worker, Error{ErrorCode::cancelled, "remote session", "the caller cancelled it"});
    }
  }
  if (limit_.passed()) {
    for (auto& worker : workers_) {
      const bool waits =
          std::any_of(worker->lanes.begin(), worker->lanes.end(), [](Lane* l) { return l->waits(); });
      if (waits && !worker->lost) {
        lose(*worker,
             Error{ErrorCode::deadline_exceeded, "connect to worker", "no answer in time", "", worker->peer});
      }
    }
  }
  for (auto& worker : workers_) moved = progress_worker(*worker) || moved;
  if (const auto now = Clock::now(); now >= next_watch_) {
    next_watch_ = now + std::min<Clock::duration>(worker_timeout_ / 32, std::chrono::milliseconds(50));
    for (auto& worker : workers_) watch(*worker, now);
  }
  if (moved) stir();
  return moved;
}

void Session::sleep(std::string_view what) {
  asleep_.store(true);
  if (newcomers_.load() == 0) {
    // The wait ends early by interrupt(), and at the latest after 50 ms to look at the cancel flag; its own
    // result says nothing that progress() does not see.
    (void)fabric_->wait(Deadline::in(std::chrono::milliseconds(50)), cancel_, what);
  }
  asleep_.store(false);
}

void Session::wait_once(std::string_view what) {
  if (pumping_) {
    followers_.fetch_add(1);
    {
      std::unique_lock follow(follow_mutex_);
      const auto seen = generation_;
      mutex_.unlock();
      moved_.wait_for(follow, std::chrono::milliseconds(50), [&] { return generation_ != seen; });
    }
    followers_.fetch_sub(1);
    enter();
  } else {
    pumping_ = true;
    if (!progress()) sleep(what);
    if (newcomers_.load() != 0) {
      // Still the one that pumps: a newcomer that has to wait follows, instead of waking this thread in turn.
      mutex_.unlock();
      std::this_thread::yield();
      enter();
    }
    pumping_ = false;
  }
  run_host_calls();
}

void Session::run_host_calls() {
  if (std::exchange(loss_news_, false) && loss_hook_) loss_hook_();
  while (!host_calls_.empty()) {
    const HostCall call = host_calls_.front();
    host_calls_.pop_front();
    const auto found = call.lane->host_functions.find(call.id);
    if (found == call.lane->host_functions.end()) continue;
    const auto [function, user] = found->second;
    stir();  // somebody else has to pump meanwhile
    mutex_.unlock();
    function(user);
    mutex_.lock();
    call.lane->host_functions.erase(call.id);
    stir();
    call.lane->host_function_done(call.id);
  }
}

}  // namespace cenote::pool::remote
