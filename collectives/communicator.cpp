#include "collectives/communicator.h"

#include <fmt/format.h>

#include <utility>

#include "collectives/algorithms/catalogue.h"
#include "collectives/executor.h"
#include "collectives/window.h"
#include "runtime/ledger.h"
#include "runtime/process.h"

namespace cenote::collectives {
namespace {

Result<void> check_options(const CommunicatorOptions& options) {
  const auto bad = [](std::string cause) {
    return fail(ErrorCode::invalid_argument, "create a communicator", std::move(cause));
  };
  if (options.size == 0 || options.rank >= options.size) {
    return bad(fmt::format("rank {} of {}", options.rank, options.size));
  }
  if (options.chunk_bytes < 4096 || options.chunk_bytes % 64 != 0 ||
      options.chunk_bytes > (std::size_t{1} << 30)) {
    return bad(fmt::format("chunk_bytes {} (a multiple of 64 from 4096 to 2^30)", options.chunk_bytes));
  }
  if (options.chunks_ahead < 1 || options.chunks_ahead > 64) {
    return bad(fmt::format("chunks_ahead {} (1 to 64)", options.chunks_ahead));
  }
  bool known = options.algorithm == "auto";
  for (const auto& algorithm : catalogue()) known = known || algorithm.name == options.algorithm;
  if (!known) {
    auto chosen = choose(Operation::allreduce, options.algorithm, options.size, 0);
    if (chosen) return {};
    chosen.error().code = ErrorCode::invalid_argument;
    return fail(std::move(chosen).error());
  }
  return {};
}

/// What the ranks must agree on, as "name value" lines.
std::string agreement(const CommunicatorOptions& options) {
  return fmt::format("algorithm {}\ncheck {}\nchunk_bytes {}\nchunks_ahead {}\nround_cost_bytes {}\n",
                     options.algorithm, options.check, options.chunk_bytes, options.chunks_ahead,
                     round_cost_bytes);
}

std::string_view take_line(std::string_view& text) {
  const auto end = std::min(text.find('\n'), text.size());
  const auto line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

/// The first lines that differ.
std::pair<std::string, std::string> first_difference(std::string_view a, std::string_view b) {
  while (!a.empty() || !b.empty()) {
    const auto left = take_line(a);
    const auto right = take_line(b);
    if (left != right) return {std::string(left), std::string(right)};
  }
  return {};
}

Result<std::vector<Bytes>> agree(const CommunicatorOptions& options, Bootstrap* bootstrap,
                                 const Bytes& address, Deadline deadline) {
  if (bootstrap == nullptr) return std::vector<Bytes>{address};
  const auto mine = agreement(options);
  CENOTE_ASSIGN(auto all, bootstrap->allgather(Writer().blob(address).text(mine).bytes(), deadline));
  std::vector<Bytes> addresses;
  std::string rank_zeros;
  for (std::uint32_t r = 0; r < options.size; ++r) {
    Reader reader(all[r]);
    const auto theirs = reader.blob();
    addresses.emplace_back(theirs.begin(), theirs.end());
    const auto text = reader.text();
    if (!reader.finished()) {
      return fail(
          Error{ErrorCode::protocol_error, "create a communicator", "what it said of itself makes no sense"}
              .with(fmt::format("rank {}", r)));
    }
    if (r == 0) rank_zeros = text;
    if (text == rank_zeros) continue;
    const auto [zero, other] = first_difference(rank_zeros, text);
    return fail(Error{ErrorCode::invalid_argument, "create a communicator",
                      fmt::format("ranks disagree: rank 0 has {}, rank {} has {}", zero, r, other)}
                    .with(fmt::format("rank {}", r))
                    .fix("give every rank the same options"));
  }
  return addresses;
}

/// The same at all ranks; neither the id nor its secret can be had from it.
Result<std::uint64_t> group_number(const CommunicatorOptions& options) {
  std::uint64_t number = 0;
  if (options.size == 1) {
    CENOTE_TRY(random_bytes(std::as_writable_bytes(std::span(&number, 1))));
    return number;
  }
  number = 0xcbf29ce484222325ULL;
  for (const char c : options.id.text()) number = (number ^ static_cast<std::uint8_t>(c)) * 0x100000001b3ULL;
  return number;
}

struct Range {
  std::uint64_t begin, end;
  [[nodiscard]] bool overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
};

Range range_of(const MemoryDescription& memory, std::uint64_t bytes) {
  return {memory.address, memory.address + bytes};
}

class CommunicatorImpl final : public Communicator {
 public:
  CommunicatorImpl(const CommunicatorOptions& options, std::unique_ptr<Ledger> ledger,
                   std::unique_ptr<transport::Fabric> fabric, std::vector<Bytes> addresses)
      : rank_(options.rank),
        size_(options.size),
        operation_timeout_(options.operation_timeout),
        ledger_(std::move(ledger)),
        executor_(std::move(fabric), std::move(addresses),
                  {options.rank,
                   options.size,
                   options.algorithm,
                   {options.chunk_bytes, options.chunks_ahead, wire::max_data},
                   options.check,
                   options.operation_timeout,
                   options.cancel,
                   ledger_.get(),
                   std::chrono::milliseconds(50)}) {}

  /// A first barrier makes the links to r +- 1, 2, 4, ...: rings, trees and doublings run over these. From
  /// then on a death is seen on a standing connection; while connections are being made, on those of the
  /// bootstrap (null for a group of one).
  Result<void> meet(Bootstrap* bootstrap, Deadline deadline) {
    Call call{Operation::barrier, 1, CENOTE_INT32, CENOTE_MAX, 0, {}, {}, false};
    call.deadline = deadline;
    auto sequence = executor_.start(call);
    if (bootstrap == nullptr) return sequence.and_then([&](auto s) { return executor_.wait(s, deadline); });
    auto met = bootstrap->barrier_when(
        [&]() -> Result<bool> {
          if (!sequence) return fail(sequence.error());
          return executor_.test(*sequence);
        },
        deadline);
    if (!met) executor_.end(met.error());
    return met;
  }

  [[nodiscard]] std::uint32_t rank() const override { return rank_; }
  [[nodiscard]] std::uint32_t size() const override { return size_; }

  Result<Request> allreduce(const MemoryDescription& send, const MemoryDescription& recv, std::size_t count,
                            DataType type, ReduceOp op, Gate gate) override {
    if (reduce_kernel(type, op) == nullptr)
      return bad("allreduce",
                 fmt::format("type {}, reduction {}", static_cast<int>(type), static_cast<int>(op)));
    CENOTE_ASSIGN(const auto bytes, bytes_of("allreduce", count, type, 1));
    CENOTE_TRY(usable("allreduce", "send", send, bytes));
    CENOTE_TRY(usable("allreduce", "recv", recv, bytes));
    const bool in_place = same_space(send, recv) && send.address == recv.address;
    if (!in_place && same_space(send, recv) && range_of(send, bytes).overlaps(range_of(recv, bytes))) {
      return bad("allreduce", "send and recv overlap without being the same");
    }
    return start({Operation::allreduce, count, type, op, 0, send, recv, in_place, {}, std::move(gate)});
  }

  Result<Request> allgather(const MemoryDescription& send, const MemoryDescription& recv, std::size_t count,
                            DataType type, Gate gate) override {
    CENOTE_ASSIGN(const auto bytes, bytes_of("allgather", count, type, 1));
    CENOTE_ASSIGN(const auto all, bytes_of("allgather", count, type, size_));
    CENOTE_TRY(usable("allgather", "send", send, bytes));
    CENOTE_TRY(usable("allgather", "recv", recv, all));
    const bool in_place = same_space(send, recv) && send.address == recv.address + rank_ * bytes;
    if (!in_place && same_space(send, recv) && range_of(send, bytes).overlaps(range_of(recv, all))) {
      return bad("allgather", "send overlaps recv elsewhere than at this rank's own place");
    }
    return start(
        {Operation::allgather, count, type, CENOTE_SUM, 0, send, recv, in_place, {}, std::move(gate)});
  }

  Result<Request> broadcast(const MemoryDescription& buffer, std::size_t count, DataType type,
                            std::uint32_t root, Gate gate) override {
    if (root >= size_) return bad("broadcast", fmt::format("root {} of {} ranks", root, size_));
    CENOTE_ASSIGN(const auto bytes, bytes_of("broadcast", count, type, 1));
    CENOTE_TRY(usable("broadcast", "buffer", buffer, bytes));
    return start(
        {Operation::broadcast, count, type, CENOTE_SUM, root, buffer, buffer, true, {}, std::move(gate)});
  }

  Result<Request> barrier() override {
    return start({Operation::barrier, 1, CENOTE_INT32, CENOTE_MAX, 0, {}, {}, false});
  }

  Result<std::unique_ptr<Window>> create_window(const WindowOptions& options) override {
    return make_window(*this, executor_, options);
  }

  Result<Request> signal(std::uint32_t rank, std::uint32_t signal) override {
    CENOTE_TRY(signals("signal", rank, signal));
    if (rank == rank_) {
      executor_.signal_self(signal);
      return Request{};
    }
    CENOTE_ASSIGN(const auto id,
                  executor_.start(Executor::OneSided{
                      Outstanding::Kind::signal, rank, nullptr, 0, {}, wire::user_signal + signal}));
    return Request{id};
  }

  Result<std::uint64_t> signal_count(std::uint32_t rank, std::uint32_t signal) override {
    CENOTE_TRY(signals("count signals", rank, signal));
    CENOTE_TRY(executor_.nudge());
    return executor_.signalled(rank, signal);
  }

  [[nodiscard]] std::uint64_t signals_arrived(std::uint32_t rank, std::uint32_t signal) const override {
    return signals("count signals", rank, signal) ? executor_.signalled(rank, signal) : 0;
  }

  Result<void> wait_signal(std::uint32_t rank, std::uint32_t signal, std::uint64_t count,
                           Deadline deadline) override {
    CENOTE_TRY(signals("wait for a signal", rank, signal));
    const auto latest = Clock::now() + operation_timeout_;
    return executor_.wait_signal(rank, signal, count, Deadline::at(std::min(latest, deadline.when())));
  }

  Result<void> progress() override { return executor_.nudge(); }

  Result<bool> test(Request& request) override {
    if (request.sequence == 0) return executor_.well().map([] { return true; });
    auto done = executor_.test(request.sequence);
    if (!done || *done) request.sequence = 0;
    return done;
  }

  Result<void> wait(Request& request, Deadline deadline) override {
    if (request.sequence == 0) return executor_.well();
    return executor_.wait(std::exchange(request.sequence, 0), deadline);
  }

  void abort(std::string_view reason) override { executor_.abort(reason); }

  [[nodiscard]] std::vector<PeerStats> stats() const override {
    std::vector<PeerStats> out;
    for (std::uint32_t r = 0; r < size_; ++r) {
      if (r != rank_) out.push_back({r, {}, {}, 0, 0});
    }
    for (auto& link : executor_.stats()) {
      auto& peer = out[link.rank < rank_ ? link.rank : link.rank - 1];
      peer = {link.rank, std::move(link.transport), std::move(link.reason), link.bytes_sent,
              link.bytes_received};
    }
    return out;
  }

 private:
  static tl::unexpected<Error> bad(std::string_view operation, std::string cause) {
    return fail(ErrorCode::invalid_argument, std::string(operation), std::move(cause));
  }

  [[nodiscard]] Result<void> signals(std::string_view operation, std::uint32_t rank,
                                     std::uint32_t signal) const {
    if (rank >= size_) return bad(operation, fmt::format("rank {} of {} ranks", rank, size_));
    if (signal >= wire::user_signals)
      return bad(operation, fmt::format("signal {} (0 to {})", signal, wire::user_signals - 1));
    if (!executor_.greeted()) return bad(operation, "no window has been made, which connects the ranks");
    return {};
  }

  static Result<std::uint64_t> bytes_of(std::string_view operation, std::uint64_t count, DataType type,
                                        std::uint64_t vectors) {
    const auto element = size_of(type);
    if (element == 0) return bad(operation, fmt::format("type {}", static_cast<int>(type)));
    if (count > (std::uint64_t{1} << 48) / (element * vectors))
      return bad(operation, fmt::format("{} elements", count));
    return count * element * vectors;
  }

  static Result<void> usable(std::string_view operation, std::string_view name,
                             const MemoryDescription& memory, std::uint64_t bytes) {
    if (bytes == 0) return {};
    if (memory.kind == MemoryKind::remote) {
      return fail(
          Error{ErrorCode::not_supported, std::string(operation),
                fmt::format("{} lives in {}: the bytes are not pulled here", name, memory.home)}
              .fix("run the collective where the memory is, through the lease's remote communicator"));
    }
    if (memory.address == 0 && memory.kind == MemoryKind::host)
      return bad(operation, fmt::format("{} is NULL, {} bytes are needed", name, bytes));
    if (memory.address == 0 || memory.size < bytes) {
      return bad(operation, fmt::format("{} has {} bytes at {:#x}, {} are needed", name, memory.size,
                                        memory.address, bytes));
    }
    const bool accessible = memory.kind == MemoryKind::host
                                ? memory.cpu_readable
                                : memory.device != nullptr && memory.device->read && memory.device->write;
    if (!accessible)
      return bad(operation, fmt::format("{} in {} cannot be read from here", name, memory.home));
    return {};
  }

  static bool same_space(const MemoryDescription& a, const MemoryDescription& b) {
    return a.kind == b.kind && (a.kind == MemoryKind::host || a.home == b.home);
  }

  Result<Request> start(const Call& call) {
    CENOTE_ASSIGN(const auto sequence, executor_.start(call));
    return Request{sequence};
  }

  std::uint32_t rank_;
  std::uint32_t size_;
  Clock::duration operation_timeout_;
  std::unique_ptr<Ledger> ledger_;
  Executor executor_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::create(const CommunicatorOptions& options) {
  CENOTE_TRY(check_options(options));
  CENOTE_ASSIGN(const auto group, group_number(options));
  CENOTE_ASSIGN(auto ledger, Ledger::create({group, options.rank, options.size}));
  const auto joining = ledger->begin({"create", 0, 0, 0, 0, Clock::now()});
  CENOTE_ASSIGN(auto fabric, transport::Fabric::create(options.fabric));
  const auto deadline = Deadline::in(options.init_timeout);
  std::unique_ptr<Bootstrap> bootstrap;
  if (options.size > 1) {
    CENOTE_ASSIGN(bootstrap,
                  Bootstrap::join(options.id, options.rank, options.size, deadline, options.cancel));
  }
  CENOTE_ASSIGN(auto addresses, agree(options, bootstrap.get(), fabric->address(), deadline));
  ledger->end(joining);
  auto made =
      std::make_unique<CommunicatorImpl>(options, std::move(ledger), std::move(fabric), std::move(addresses));
  CENOTE_TRY(made->meet(bootstrap.get(), deadline));
  return made;
}

}  // namespace cenote::collectives
