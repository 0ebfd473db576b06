// One operation in flight: what was asked, the kept plan it follows, and how far each of its instances is.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/gate.h"
#include "collectives/plan.h"
#include "collectives/reduce/reduce.h"
#include "collectives/wire.h"
#include "runtime/deadline.h"
#include "runtime/ledger.h"
#include "runtime/memory.h"

namespace cenote::collectives {

/// What was asked for. For a barrier, memory and types are the executor's own.
struct Call {
  Operation operation = Operation::allreduce;
  std::uint64_t count = 0;
  DataType type = CENOTE_INT32;
  ReduceOp op = CENOTE_MAX;
  std::uint32_t root = 0;
  MemoryDescription input{};
  MemoryDescription output{};
  bool in_place = false;
  std::optional<Deadline> deadline{};  ///< its own, in place of the executor's timeout
  Gate gate{};                         ///< empty: open
};

/// Where one named buffer lies. `host` is null for device memory.
struct Place {
  std::byte* host = nullptr;
  std::uint64_t address = 0;
  std::shared_ptr<const DeviceAccess> device{};
};

/// A plan and what it was made for.
struct KeptPlan {
  Operation operation;
  std::uint64_t count;
  std::size_t element_bytes;
  std::uint32_t root;
  bool in_place;
  std::uint64_t algorithm_hash;
  Plan plan;
};

struct ActiveOperation {
  std::uint64_t sequence = 0;
  std::shared_ptr<const KeptPlan> kept{};
  wire::CallHeader header{};
  std::size_t element_bytes = 0;
  std::uint64_t chunk = 0;  ///< elements of a full chunk
  ReduceKernel reduce = nullptr;
  DivideKernel divide = nullptr;         ///< null: nothing to do at the end
  std::array<Place, 3> places{};         ///< by Buffer
  std::vector<std::uint64_t> posted;     ///< by instance: elements under way or done
  std::vector<std::uint64_t> done;       ///< by instance: elements done
  std::vector<std::uint32_t> cursor;     ///< by flow
  std::vector<std::uint8_t> introduced;  ///< by flow: the call header has gone, or come
  std::uint32_t local_flow = ~0U;
  Gate gate{};                ///< empty once it is open
  std::size_t remaining = 0;  ///< instances that are not done
  Deadline deadline = Deadline::never();
  Clock::time_point started{};
  Bytes scratch;
  Ledger::Ticket ticket{};
  std::int32_t token[2] = {0, 0};  ///< a barrier's input and output

  [[nodiscard]] const Plan& plan() const { return kept->plan; }
  [[nodiscard]] Place& place(Buffer buffer) { return places[static_cast<std::size_t>(buffer)]; }
  [[nodiscard]] bool held() const { return static_cast<bool>(gate); }
  [[nodiscard]] bool finished() const { return remaining == 0; }

  void advance(std::uint32_t instance, std::uint64_t elements) {
    done[instance] += elements;
    if (done[instance] == plan().instances[instance].length) --remaining;
  }
};

/// "allreduce of 12 float32 by sum, operation 5 by ring"
std::string describe(const ActiveOperation& operation);

}  // namespace cenote::collectives
