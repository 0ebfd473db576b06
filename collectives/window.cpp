#include "collectives/window.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/executor.h"
#include "runtime/rank_name.h"

namespace cenote::collectives {
namespace {

constexpr std::size_t record_bytes = 1024;  ///< of what each rank says of its part
constexpr std::size_t most_text = 300;
constexpr std::uint64_t most_bytes = std::uint64_t{1} << 48;  ///< of an address space
constexpr std::uint32_t magic = 0x31574e43;                   // "CNW1"
constexpr std::size_t most_reads = 64;                        ///< at once, to see that parts are reached
constexpr const char* stage = "create a window";

using Regions = std::vector<std::pair<std::string, std::unique_ptr<transport::Region>>>;

/// This rank's part, reachable by each transport that reaches a peer.
struct Part {
  MemoryDescription memory{};
  Regions regions;
  Bytes own;  ///< where no transport was asked: a group of one
};

/// No memory is not a failure of the system's.
Error for_want_of_memory(Error error) {
  const auto lacks = {ENOMEM, ENOSPC, EFBIG, EMFILE, ENFILE};
  if (error.code == ErrorCode::system_error && std::ranges::find(lacks, error.native) != lacks.end())
    error.code = ErrorCode::resource_exhausted;
  return error;
}

Result<Part> make_part(const WindowOptions& options, std::vector<transport::Transport*> used) {
  if (options.refusal) return fail(*options.refusal);
  Part part;
  part.memory = options.memory;
  if (part.memory.size == 0) return part;
  if (part.memory.address == 0 && part.memory.size > most_bytes)
    return fail(ErrorCode::invalid_argument, stage, fmt::format("{} bytes", part.memory.size));
  if (part.memory.address == 0) {
    if (used.empty()) {
      try {
        part.own.resize(part.memory.size);
      } catch (const std::bad_alloc&) {
        return fail(ErrorCode::resource_exhausted, stage,
                    fmt::format("{} bytes: no memory", part.memory.size));
      }
      part.memory = MemoryDescription::of_host(part.own.data(), part.own.size());
      return part;
    }
    // The one that takes only its own memory makes it.
    const auto picky =
        std::ranges::find_if(used, [](const auto* t) { return !t->limits().registers_any_memory; });
    auto* maker = picky != used.end() ? *picky : used.front();
    CENOTE_ASSIGN(auto region, maker->allocate(part.memory.size).map_error(for_want_of_memory));
    part.memory = MemoryDescription::of_host(region->bytes().data(), part.memory.size);
    part.regions.emplace_back(maker->name(), std::move(region));
    std::erase(used, maker);
  }
  for (auto* transport : used) {
    auto region = transport->register_memory(part.memory);
    if (!region) {
      auto error = std::move(region).error();
      if (error.remedy.empty())
        error.remedy = "let the library allocate the window's memory, or leave that transport out";
      return fail(std::move(error));
    }
    part.regions.emplace_back(transport->name(), std::move(*region));
  }
  return part;
}

Bytes record_of(const Result<Part>& part) {
  Writer writer;
  writer.put(magic).put(part ? std::uint8_t{0} : std::uint8_t{1});
  if (part) {
    writer.put<std::uint64_t>(part->memory.size).put(static_cast<std::uint8_t>(part->regions.size()));
    for (const auto& [name, region] : part->regions) {
      writer.text(name).blob(std::span(region->key().bytes).first(region->key().size));
    }
  } else {
    writer.put(part.error().code).text(std::string_view(part.error().message()).substr(0, most_text));
  }
  auto bytes = writer.take();
  bytes.resize(record_bytes);
  return bytes;
}

/// What this rank has to know of another's part.
struct Theirs {
  std::uint64_t bytes = 0;
  transport::RemoteKey key{};
};

Result<Theirs> read_record(std::span<const std::byte> record, std::uint32_t rank,
                           std::string_view transport) {
  const auto bad = [&](const char* cause) {
    return fail(Error{ErrorCode::protocol_error, stage, cause}.with(rank_name(rank)));
  };
  Reader reader(record);
  if (reader.get<std::uint32_t>() != magic) return bad("what it said of its part makes no sense");
  if (reader.get<std::uint8_t>() != 0) {
    const auto code = reader.get<ErrorCode>();
    auto text = reader.text();
    if (reader.bad() || code > ErrorCode::internal) return bad("what it said of its failure makes no sense");
    return fail(Error{code, stage, "its part could not be made: " + std::move(text)}.with(rank_name(rank)));
  }
  Theirs theirs;
  theirs.bytes = reader.get<std::uint64_t>();
  bool found = theirs.bytes == 0 || transport.empty();
  for (auto left = reader.get<std::uint8_t>(); left > 0 && !reader.bad(); --left) {
    const auto name = reader.text();
    const auto key = reader.blob();
    if (name != transport) continue;
    if (key.size() > theirs.key.bytes.size()) return bad("a key that is too long");
    std::ranges::copy(key, theirs.key.bytes.begin());
    theirs.key.size = static_cast<std::uint8_t>(key.size());
    found = true;
  }
  if (reader.bad() || !found) return bad("it named no key for the transport between us");
  return theirs;
}

class WindowImpl final : public Window {
 public:
  WindowImpl(Executor& executor, std::uint32_t rank, Part part, std::vector<Theirs> theirs)
      : executor_(executor), rank_(rank), part_(std::move(part)), theirs_(std::move(theirs)) {}

  [[nodiscard]] const MemoryDescription& memory() const override { return part_.memory; }
  [[nodiscard]] std::size_t bytes(std::uint32_t rank) const override {
    return rank < theirs_.size() ? theirs_[rank].bytes : 0;
  }

  Result<Request> put(std::uint32_t rank, std::uint64_t offset, std::span<const std::byte> src,
                      std::uint32_t signal) override {
    if (signal != transport::no_signal && signal >= wire::user_signals) {
      return fail(ErrorCode::invalid_argument, "put",
                  fmt::format("signal {} (0 to {}, or none)", signal, wire::user_signals - 1));
    }
    CENOTE_TRY(inside("put", rank, offset, src.data(), src.size()));
    if (rank == rank_) return here(offset, src, signal);
    const auto slot = signal == transport::no_signal ? signal : signal + wire::user_signal;
    // A put only reads it.
    const std::span local(const_cast<std::byte*>(src.data()),
                          src.size());  // NOLINT(cppcoreguidelines-pro-type-const-cast)
    CENOTE_ASSIGN(const auto id,
                  executor_.start({Outstanding::Kind::put, rank, &theirs_[rank].key, offset, local, slot}));
    return Request{id};
  }

  Result<Request> get(std::uint32_t rank, std::uint64_t offset, std::span<std::byte> dst) override {
    CENOTE_TRY(inside("get", rank, offset, dst.data(), dst.size()));
    if (rank != rank_) {
      CENOTE_ASSIGN(const auto id,
                    executor_.start({Outstanding::Kind::get, rank, &theirs_[rank].key, offset, dst}));
      return Request{id};
    }
    const auto& memory = part_.memory;
    if (memory.device != nullptr) {
      CENOTE_TRY(memory.device->read(dst.data(), memory.address + offset, dst.size()));
    } else if (!dst.empty()) {
      std::memmove(dst.data(), own(offset), dst.size());
    }
    return Request{};
  }

 private:
  [[nodiscard]] Result<void> inside(const char* what, std::uint32_t rank, std::uint64_t offset,
                                    const std::byte* local, std::size_t size) const {
    const auto bad = [&](std::string cause) {
      return fail(ErrorCode::invalid_argument, what, std::move(cause));
    };
    if (rank >= theirs_.size()) return bad(fmt::format("rank {} of {} ranks", rank, theirs_.size()));
    const auto most = theirs_[rank].bytes;
    if (offset > most || size > most - offset)
      return bad(fmt::format("{} bytes at {} of the {} bytes of rank {}", size, offset, most, rank));
    if (local == nullptr && size > 0) return bad("the buffer is NULL");
    return {};
  }

  Result<Request> here(std::uint64_t offset, std::span<const std::byte> src, std::uint32_t signal) {
    const auto& memory = part_.memory;
    if (memory.device != nullptr) {
      CENOTE_TRY(memory.device->write(memory.address + offset, src.data(), src.size()));
    } else if (!src.empty()) {
      std::memmove(own(offset), src.data(), src.size());
    }
    if (signal != transport::no_signal) executor_.signal_self(signal);
    return Request{};
  }

  [[nodiscard]] std::byte* own(std::uint64_t offset) const {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): a memory description carries its address as a number
    return reinterpret_cast<std::byte*>(part_.memory.address + offset);
  }

  Executor& executor_;
  std::uint32_t rank_;
  Part part_;
  std::vector<Theirs> theirs_;
};

/// A byte of each part is read. So shared memory, which a peer hands out when it is first asked, is mapped
/// while that peer is in this call too.
Result<void> reach_everybody(Executor& executor, const std::vector<Theirs>& theirs, std::uint32_t self,
                             Deadline deadline) {
  std::vector<std::byte> bytes(theirs.size());
  std::vector<std::uint64_t> flying;
  const auto land = [&]() -> Result<void> {
    for (const auto id : std::exchange(flying, {})) CENOTE_TRY(executor.wait(id, deadline));
    return {};
  };
  for (std::uint32_t rank = 0; rank < theirs.size(); ++rank) {
    if (rank == self || theirs[rank].bytes == 0 || executor.reaches_at_once(rank)) continue;
    if (flying.size() == most_reads) CENOTE_TRY(land());
    const std::span local(&bytes[rank], 1);
    auto id = executor.start({Outstanding::Kind::get, rank, &theirs[rank].key, 0, local});
    // What the program has in flight leaves no room: the first put asks for that mapping.
    if (!id && id.error().code == ErrorCode::resource_exhausted) continue;
    if (!id) return fail(std::move(id).error());
    flying.push_back(*id);
  }
  return land();
}

}  // namespace

Result<std::unique_ptr<Window>> make_window(Communicator& communicator, Executor& executor,
                                            const WindowOptions& options) {
  const auto deadline = Deadline::in(options.timeout);
  CENOTE_ASSIGN(const auto used, executor.link_everybody(deadline));
  auto part = make_part(options, used);
  auto mine = record_of(part);
  Bytes all(record_bytes * communicator.size());
  CENOTE_ASSIGN(auto request, communicator.allgather(MemoryDescription::of_host(mine.data(), mine.size()),
                                                     MemoryDescription::of_host(all.data(), all.size()),
                                                     record_bytes / sizeof(std::int32_t), CENOTE_INT32));
  CENOTE_TRY(communicator.wait(request, deadline));
  std::vector<Theirs> theirs;
  std::optional<Error> refused;
  for (std::uint32_t rank = 0; rank < communicator.size() && !refused; ++rank) {
    const auto transport = rank == communicator.rank() ? std::string_view{} : executor.transport_to(rank);
    auto record = read_record(std::span(all).subspan(rank * record_bytes, record_bytes), rank, transport);
    if (record) {
      theirs.push_back(*record);
    } else {
      refused = std::move(record).error();
    }
  }
  if (!refused) CENOTE_TRY(reach_everybody(executor, theirs, communicator.rank(), deadline));
  // All links stand, and all parts are reached, before anybody says so: who only reads its memory from here
  // on is written to.
  CENOTE_TRY(executor.greet_everybody(deadline));
  if (refused) return fail(std::move(*refused));
  return std::make_unique<WindowImpl>(executor, communicator.rank(), std::move(*part), std::move(theirs));
}

}  // namespace cenote::collectives
