#include "collectives/plan.h"

#include <array>
#include <map>
#include <utility>

namespace cenote::collectives {
namespace {

constexpr std::uint32_t nobody = ~0U;

/// Who wrote a block last, and who has read it since.
struct BlockUse {
  std::uint32_t writer = nobody;
  std::vector<std::uint32_t> readers;
};

class Compiler {
 public:
  Compiler(const Schedule& schedule, std::uint64_t count, bool in_place) : schedule_(schedule) {
    plan_.operation = schedule.operation;
    plan_.algorithm = schedule.algorithm;
    plan_.count = count;
    plan_.in_place = in_place;
    for (auto buffer : {Buffer::input, Buffer::output, Buffer::scratch}) {
      uses_[static_cast<std::size_t>(buffer)].resize(std::size_t{schedule.vectors(buffer)} * schedule.parts);
    }
  }

  Plan run() {
    for (const auto& repeat : schedule_.program) {
      for (std::uint32_t i = 0; i < repeat.times; ++i) {
        for (const auto& step : repeat.steps) add(step, i);
      }
    }
    return std::move(plan_);
  }

 private:
  struct Range {
    Buffer buffer;
    std::uint32_t first, blocks;
  };

  [[nodiscard]] static Range range(const Slice& slice, std::uint32_t iteration) {
    return {slice.buffer, slice.first.at(iteration), slice.blocks};
  }
  [[nodiscard]] std::uint64_t offset(std::uint32_t block) const {
    const auto vector = block / schedule_.parts;
    return vector * plan_.count + block_offset(plan_.count, schedule_.parts, block % schedule_.parts);
  }
  /// Where a range lies in memory: in place, the input is a part of the output.
  [[nodiscard]] Range resolve(Range range) const {
    if (!plan_.in_place || range.buffer != Buffer::input) return range;
    const auto shift = schedule_.operation == Operation::allgather ? schedule_.rank * schedule_.parts : 0;
    return {Buffer::output, range.first + shift, range.blocks};
  }

  void add(const Step& step, std::uint32_t iteration) {
    const bool has_dst = step.kind != StepKind::send;
    const bool has_src = step.kind != StepKind::receive && step.kind != StepKind::finish;
    const auto dst = resolve(range(step.dst, iteration));
    const auto src = resolve(range(step.src, iteration));
    Instance instance;
    instance.kind = step.kind;
    instance.peer = step.peer.at(iteration);
    const auto& main = has_dst ? dst : src;
    instance.length = offset(main.first + main.blocks) - offset(main.first);
    if (has_dst) {
      instance.dst_buffer = dst.buffer;
      instance.dst = offset(dst.first);
    }
    if (has_src) {
      instance.src_buffer = src.buffer;
      instance.src = offset(src.first);
    }
    if (instance.length == 0) return;
    const bool onto_itself = dst.buffer == src.buffer && dst.first == src.first;
    if (step.kind == StepKind::copy && onto_itself) return;

    const auto self = static_cast<std::uint32_t>(plan_.instances.size());
    instance.first_dependency = static_cast<std::uint32_t>(plan_.dependencies.size());
    if (has_src) follow(src, instance.src, instance.first_dependency, false);
    if (has_dst) follow(dst, instance.dst, instance.first_dependency, true);
    instance.dependencies = static_cast<std::uint32_t>(plan_.dependencies.size()) - instance.first_dependency;
    plan_.uses_scratch = plan_.uses_scratch || (has_dst && dst.buffer == Buffer::scratch);
    plan_.instances.push_back(instance);
    if (has_src) mark(src, self, false);
    if (has_dst) mark(dst, self, true);
    flow(instance).instances.push_back(self);
  }

  void follow(const Range& range, std::uint64_t begin, std::uint32_t first, bool write) {
    for (auto block = range.first; block < range.first + range.blocks; ++block) {
      const auto& use = at(range.buffer, block);
      if (use.writer != nobody) depend(use.writer, begin, first, true);
      if (!write) continue;
      for (auto reader : use.readers) depend(reader, begin, first, false);
    }
  }

  void depend(std::uint32_t earlier, std::uint64_t begin, std::uint32_t first, bool its_dst) {
    const auto& other = plan_.instances[earlier];
    const auto its_begin = its_dst ? other.dst : other.src;
    const auto shift = static_cast<std::int64_t>(begin) - static_cast<std::int64_t>(its_begin);
    for (auto k = first; k < plan_.dependencies.size(); ++k) {
      if (plan_.dependencies[k].instance == earlier && plan_.dependencies[k].shift == shift) return;
    }
    plan_.dependencies.push_back({earlier, shift, other.length});
  }

  void mark(const Range& range, std::uint32_t self, bool write) {
    for (auto block = range.first; block < range.first + range.blocks; ++block) {
      auto& use = at(range.buffer, block);
      if (write) {
        use.writer = self;
        use.readers.clear();
      } else {
        use.readers.push_back(self);
      }
    }
  }

  BlockUse& at(Buffer buffer, std::uint32_t block) { return uses_[static_cast<std::size_t>(buffer)][block]; }

  Flow& flow(const Instance& instance) {
    auto kind = FlowKind::local;
    if (instance.kind == StepKind::send) kind = FlowKind::send;
    if (instance.kind == StepKind::receive || instance.kind == StepKind::reduce) kind = FlowKind::receive;
    const auto peer = kind == FlowKind::local ? 0 : instance.peer;
    const auto [found, fresh] = flow_of_.try_emplace({kind, peer}, plan_.flows.size());
    if (fresh) plan_.flows.push_back({kind, peer, {}});
    return plan_.flows[found->second];
  }

  const Schedule& schedule_;
  Plan plan_;
  std::array<std::vector<BlockUse>, 3> uses_;
  std::map<std::pair<FlowKind, std::uint32_t>, std::size_t> flow_of_;
};

}  // namespace

Result<Plan> compile(const Schedule& schedule, std::uint64_t count, bool in_place) {
  CENOTE_TRY(schedule.check());
  return Compiler(schedule, count, in_place).run();
}

}  // namespace cenote::collectives
