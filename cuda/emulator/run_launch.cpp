// run(): checks of the launch, the constants of a launch and of a block, and the host threads.
#include <algorithm>
#include <cstring>
#include <new>
#include <thread>

#include "cuda/emulator/run_machine.h"

namespace cenote::cuda::emulator {

using ptx::Constant;
using ptx::Special;

namespace {

constexpr std::size_t max_machine_bytes = std::size_t{2} << 30;

bool differs_between_blocks(Special s) {
  return s == Special::ctaid_x || s == Special::ctaid_y || s == Special::ctaid_z;
}

template <class T>
void fill(std::byte* to, std::uint64_t value, unsigned lanes) {
  std::fill_n(reinterpret_cast<T*>(to), lanes, static_cast<T>(value));
}
void broadcast(std::byte* to, std::uint64_t value, unsigned bytes, unsigned lanes) {
  if (bytes == 8)
    fill<std::uint64_t>(to, value, lanes);
  else if (bytes == 4)
    fill<std::uint32_t>(to, value, lanes);
  else if (bytes == 2)
    fill<std::uint16_t>(to, value, lanes);
  else
    fill<std::uint8_t>(to, value, lanes);
}

std::string text_of(const Dim3& d) {
  return "(" + std::to_string(d.x) + "," + std::to_string(d.y) + "," + std::to_string(d.z) + ")";
}

}  // namespace

void FreeAligned::operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
AlignedBytes allocate_aligned(std::size_t bytes) {
  auto* p = static_cast<std::byte*>(::operator new[](std::max<std::size_t>(bytes, 64), std::align_val_t{64}));
  std::memset(p, 0, std::max<std::size_t>(bytes, 64));
  return AlignedBytes(p);
}

Dim3 Machine::thread_at(unsigned linear) const {
  const Dim3& b = shared_.launch.block;
  return {linear % b.x, linear / b.x % b.y, linear / b.x / b.y};
}

std::uint64_t Machine::special_value(Special s, unsigned thread, std::uint64_t) const {
  const auto& launch = shared_.launch;
  const Dim3 t = thread_at(thread);
  const unsigned lane = thread % warp_lanes;
  switch (s) {
    case Special::tid_x:
      return t.x;
    case Special::tid_y:
      return t.y;
    case Special::tid_z:
      return t.z;
    case Special::ntid_x:
      return launch.block.x;
    case Special::ntid_y:
      return launch.block.y;
    case Special::ntid_z:
      return launch.block.z;
    case Special::ctaid_x:
      return block_.x;
    case Special::ctaid_y:
      return block_.y;
    case Special::ctaid_z:
      return block_.z;
    case Special::nctaid_x:
      return launch.grid.x;
    case Special::nctaid_y:
      return launch.grid.y;
    case Special::nctaid_z:
      return launch.grid.z;
    case Special::laneid:
      return lane;
    case Special::warpid:
      return thread / warp_lanes;
    case Special::nwarpid:
      return (shared_.block_threads + warp_lanes - 1) / warp_lanes;
    case Special::nsmid:
      return 1;
    case Special::lanemask_eq:
      return std::uint64_t{1} << lane;
    case Special::lanemask_le:
      return (std::uint64_t{2} << lane) - 1;
    case Special::lanemask_lt:
      return (std::uint64_t{1} << lane) - 1;
    case Special::lanemask_ge:
      return 0xFFFF'FFFFu & ~((std::uint64_t{1} << lane) - 1);
    case Special::lanemask_gt:
      return 0xFFFF'FFFFu & ~((std::uint64_t{2} << lane) - 1);
    case Special::dynamic_smem_size:
      return launch.shared_bytes;
    case Special::total_smem_size:
      return shared_.layout.static_bytes + launch.shared_bytes;
    default:
      return 0;  // %smid, %gridid, %envreg
  }
}

void Machine::fill_constants(Group& g, const ptx::Function& f) {
  for (const Constant& c : f.constants) {
    std::uint64_t value = c.value;
    std::byte* to = g.constants.get() + std::size_t{c.slot} * g.width;
    if (c.kind == Constant::Kind::special) {
      for (unsigned lane = 0; lane < g.width; ++lane) {
        value = special_value(c.special, g.first + lane, 0);
        std::memcpy(to + std::size_t{lane} * c.bytes, &value, c.bytes);
      }
      continue;
    }
    if (c.kind == Constant::Kind::variable)
      value += c.variable < shared_.launch.variables.size() ? shared_.launch.variables[c.variable] : 0;
    if (c.kind == Constant::Kind::shared) value += shared_.layout.offsets[c.variable];
    if (c.kind == Constant::Kind::param) std::memcpy(&value, shared_.launch.params.data() + c.value, c.bytes);
    broadcast(to, value, c.bytes, g.width);
  }
}

void Machine::fill_block_constants(Group& g) {
  for (const Constant& c : block_constants_)
    broadcast(g.constants.get() + std::size_t{c.slot} * g.width, special_value(c.special, 0, 0), c.bytes,
              g.width);
}

Machine::Machine(Shared& shared)
    : shared_(shared), code_(*shared.launch.program->code), lanes_(best_lanes()) {
  const auto& function = shared.function;
  shared_bytes_ = shared.layout.static_bytes + shared.launch.shared_bytes;
  shared_memory_ = allocate_aligned(shared_bytes_);
  const auto each_function = [&](auto visit) {
    visit(function);
    for (const auto callee : function.callees) visit(code_.functions[callee]);
  };
  each_function([&](const ptx::Function& f) {
    for (const Constant& c : f.constants)
      if (c.kind == Constant::Kind::special && differs_between_blocks(c.special))
        block_constants_.push_back(c);
  });
  for (unsigned first = 0; first < shared.block_threads; first += group_lanes) {
    auto g = std::make_unique<Group>();
    g->first = first;
    g->threads = std::min(group_lanes, shared.block_threads - first);
    g->width = (g->threads + warp_lanes - 1) / warp_lanes * warp_lanes;
    g->registers = allocate_aligned(std::size_t{function.register_bytes} * g->width);
    g->constants = allocate_aligned(std::size_t{function.constant_bytes} * g->width);
    g->local = allocate_aligned(std::size_t{function.local_bytes} * g->threads);
    each_function([&](const ptx::Function& f) { fill_constants(*g, f); });
    groups_.push_back(std::move(g));
  }
}

void Machine::start_block(std::uint64_t index) {
  const Dim3& grid = shared_.launch.grid;
  block_ = {static_cast<unsigned>(index % grid.x), static_cast<unsigned>(index / grid.x % grid.y),
            static_cast<unsigned>(index / grid.x / grid.y)};
  std::memset(shared_memory_.get(), 0, shared_bytes_);
  std::fill(std::begin(barriers_), std::end(barriers_), Barrier{});
  for (const auto& g : groups_) {
    fill_block_constants(*g);
    std::memset(g->local.get(), 0, std::size_t{shared_.function.local_bytes} * g->threads);
    while (!g->fragments.empty()) {
      g->spare.push_back(std::move(g->fragments.back()));
      g->fragments.pop_back();
    }
    std::memset(g->live_mask, 0, sizeof g->live_mask);
    std::memset(g->live_mask, 1, g->threads);
    g->live = g->threads;
    Fragment& f = add_fragment(*g);
    std::memcpy(f.mask, g->live_mask, sizeof f.mask);
    f.pc = shared_.function.first;
    measure(f);
  }
}

void Machine::fail(Group& g, unsigned lane, const ptx::Inst& i, Status status, const std::string& what) {
  fault.status = status;
  fault.kernel = shared_.entry.name;
  fault.block = block_;
  fault.thread = thread_at(g.first + lane);
  fault.line = i.line;
  fault.text = "kernel " + fault.kernel + ", block " + text_of(fault.block) + ", thread " +
               text_of(fault.thread) + ": " + what + " (PTX line " + std::to_string(i.line) + ")";
}

namespace {

Outcome refuse(const Launch& launch, Status status, const std::string& what) {
  Fault fault;
  fault.status = status;
  if (launch.program != nullptr && launch.entry < launch.program->entries.size())
    fault.kernel = launch.program->entries[launch.entry].name;
  fault.text = "launch of kernel " + fault.kernel + " refused: " + what;
  return {status, fault, 0};
}

std::optional<Outcome> check(const Launch& launch, const ptx::Entry& entry, const ptx::Function& function,
                             std::size_t static_shared) {
  const Dim3 &g = launch.grid, &b = launch.block;
  const std::uint64_t threads = std::uint64_t{b.x} * b.y * b.z;
  if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7FFF'FFFFu || g.y > 65535 || g.z > 65535)
    return refuse(launch, Status::invalid_value, "grid " + text_of(g) + " is out of range");
  if (b.x == 0 || b.y == 0 || b.z == 0 || b.x > 1024 || b.y > 1024 || b.z > 64 || threads > 1024)
    return refuse(launch, Status::invalid_value, "block " + text_of(b) + " is out of range");
  if (entry.max_threads != 0 && threads > entry.max_threads)
    return refuse(launch, Status::invalid_value,
                  std::to_string(threads) + " threads in a block of a kernel compiled for at most " +
                      std::to_string(entry.max_threads));
  if (launch.params.size() < entry.param_bytes)
    return refuse(launch, Status::invalid_value,
                  std::to_string(launch.params.size()) + " bytes of parameters of " +
                      std::to_string(entry.param_bytes));
  if (launch.shared_bytes > max_shared_bytes || static_shared + launch.shared_bytes > max_shared_bytes)
    return refuse(launch, Status::invalid_value,
                  std::to_string(static_shared + launch.shared_bytes) +
                      " bytes of shared memory, more than " + std::to_string(max_shared_bytes));
  if (function.local_bytes > max_local_bytes)
    return refuse(launch, Status::launch_out_of_resources,
                  "more than 512 KiB of local memory in each thread");
  const std::uint64_t need =
      threads * (std::uint64_t{function.register_bytes} + function.constant_bytes + function.local_bytes);
  if (need > max_machine_bytes)
    return refuse(launch, Status::launch_out_of_resources,
                  "a block needs " + std::to_string(need >> 20) + " MiB of registers and local memory");
  return std::nullopt;
}

struct Part {
  std::uint64_t lane_instructions = 0;
  std::optional<Fault> fault;
  std::uint64_t faulting_block = 0;
  bool cancelled = false;
};

void work(Shared& shared, Part& part) {
  try {
    const auto machine = std::make_unique<Machine>(shared);
    while (!shared.stop.load(std::memory_order_relaxed)) {
      if (shared.launch.cancel != nullptr && shared.launch.cancel->raised()) {
        part.cancelled = true;
        break;
      }
      const auto block = shared.next_block.fetch_add(1, std::memory_order_relaxed);
      if (block >= shared.blocks) break;
      if (machine->run_block(block)) continue;
      shared.stop.store(true, std::memory_order_relaxed);
      if (machine->cancelled)
        part.cancelled = true;
      else
        part.fault = machine->fault, part.faulting_block = block;
    }
    part.lane_instructions = machine->lane_instructions;
  } catch (const std::bad_alloc&) {
    shared.stop.store(true, std::memory_order_relaxed);
    part.fault =
        refuse(shared.launch, Status::launch_out_of_resources, "no host memory for its registers").fault;
  }
}

}  // namespace

Outcome run(const Launch& launch) {
  if (launch.program == nullptr || launch.program->code == nullptr ||
      launch.entry >= launch.program->entries.size())
    return refuse(launch, Status::invalid_value, "no such kernel");
  const auto& code = *launch.program->code;
  const auto& function = code.functions[code.entry_functions[launch.entry]];
  Shared shared{launch, launch.program->entries[launch.entry], function, ptx::shared_layout(code, function)};
  if (auto refused = check(launch, shared.entry, function, shared.layout.static_bytes)) return *refused;
  shared.blocks = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  shared.block_threads = launch.block.x * launch.block.y * launch.block.z;

  const auto wanted =
      std::clamp<std::uint64_t>(launch.threads, 1, std::min<std::uint64_t>(shared.blocks, 256));
  std::vector<Part> parts(wanted);
  std::vector<std::thread> threads;
  for (std::size_t t = 1; t < wanted; ++t) {
    try {
      threads.emplace_back(work, std::ref(shared), std::ref(parts[t]));
    } catch (const std::system_error&) {
      break;  // fewer threads do the same
    }
  }
  work(shared, parts[0]);
  for (auto& t : threads) t.join();

  Outcome outcome;
  bool cancelled = false;
  const Part* first = nullptr;
  for (const auto& part : parts) {
    outcome.lane_instructions += part.lane_instructions;
    cancelled |= part.cancelled;
    if (part.fault && (first == nullptr || part.faulting_block < first->faulting_block)) first = &part;
  }
  if (first != nullptr) {
    outcome.fault = first->fault;
    outcome.status = first->fault->status;
  } else if (cancelled) {
    outcome.status = Status::launch_timeout;
  }
  return outcome;
}

}  // namespace cenote::cuda::emulator
