#include "collectives/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace cenote::collectives {
namespace {

class Fnv {
 public:
  void add(std::uint64_t value) {
    for (int i = 0; i < 8; ++i) byte(static_cast<std::uint8_t>(value >> (8 * i)));
  }
  void add(std::string_view text) {
    add(std::uint64_t{text.size()});
    for (char c : text) byte(static_cast<std::uint8_t>(c));
  }
  void add(const Index& index) {
    add(index.base);
    add(index.stride);
    add(index.modulus);
  }
  void add(const Slice& slice) {
    add(static_cast<std::uint64_t>(slice.buffer));
    add(slice.first);
    add(slice.blocks);
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  void byte(std::uint8_t b) { value_ = (value_ ^ b) * 0x100000001b3ULL; }
  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

std::string index_text(const Index& index) {
  if (index.modulus == 0) return fmt::format("{}", index.base);
  if (index.stride == 0) return fmt::format("{}", index.base % index.modulus);
  return fmt::format("({} + {} i) mod {}", index.base, index.stride, index.modulus);
}

std::string slice_text(const Slice& slice) {
  const auto first = index_text(slice.first);
  if (slice.blocks == 1) return fmt::format("{}[{}]", to_string(slice.buffer), first);
  return fmt::format("{}[{} .. +{}]", to_string(slice.buffer), first, slice.blocks);
}

std::string step_text(const Step& step) {
  switch (step.kind) {
    case StepKind::send:
      return fmt::format("send {} to {}", slice_text(step.src), index_text(step.peer));
    case StepKind::receive:
      return fmt::format("receive {} from {}", slice_text(step.dst), index_text(step.peer));
    case StepKind::reduce:
      return fmt::format("reduce {} = op({}, from {})", slice_text(step.dst), slice_text(step.src),
                         index_text(step.peer));
    case StepKind::copy:
      return fmt::format("copy {} = {}", slice_text(step.dst), slice_text(step.src));
    case StepKind::finish:
      return fmt::format("finish {}", slice_text(step.dst));
  }
  return "unknown step";
}

bool talks(StepKind kind) {
  return kind == StepKind::send || kind == StepKind::receive || kind == StepKind::reduce;
}
bool reads(StepKind kind) {
  return kind == StepKind::send || kind == StepKind::reduce || kind == StepKind::copy;
}
bool writes(StepKind kind) { return kind != StepKind::send; }

/// The largest value that the index takes over `times` iterations.
std::uint32_t largest(const Index& index, std::uint32_t times) {
  std::uint32_t most = 0;
  if (index.modulus != 0 && index.stride != 0 && times >= index.modulus) {
    // It may visit every residue of its coset; the bound is exact enough for a check and cheap.
    return index.modulus - 1;
  }
  for (std::uint32_t i = 0; i < times; ++i) most = std::max(most, index.at(i));
  return most;
}

}  // namespace

std::string_view to_string(Operation operation) {
  switch (operation) {
    case Operation::allreduce:
      return "allreduce";
    case Operation::allgather:
      return "allgather";
    case Operation::broadcast:
      return "broadcast";
    case Operation::barrier:
      return "barrier";
  }
  return "unknown operation";
}

std::string_view to_string(Buffer buffer) {
  switch (buffer) {
    case Buffer::input:
      return "input";
    case Buffer::output:
      return "output";
    case Buffer::scratch:
      return "scratch";
  }
  return "unknown buffer";
}

std::string_view to_string(StepKind kind) {
  switch (kind) {
    case StepKind::send:
      return "send";
    case StepKind::receive:
      return "receive";
    case StepKind::reduce:
      return "reduce";
    case StepKind::copy:
      return "copy";
    case StepKind::finish:
      return "finish";
  }
  return "unknown step";
}

std::uint32_t Schedule::vectors(Buffer buffer) const {
  if (buffer == Buffer::output && operation == Operation::allgather) return ranks;
  return 1;
}

std::string Schedule::text() const {
  auto out = fmt::format("{} by {}, rank {} of {}, {} block{}\n", to_string(operation), algorithm, rank,
                         ranks, parts, parts == 1 ? "" : "s");
  for (const auto& repeat : program) {
    if (repeat.times == 1) {
      for (const auto& step : repeat.steps) out += fmt::format("  {}\n", step_text(step));
      continue;
    }
    out += fmt::format("  for i in 0 .. {}\n", repeat.times - 1);
    for (const auto& step : repeat.steps) out += fmt::format("    {}\n", step_text(step));
  }
  return out;
}

std::uint64_t Schedule::hash() const {
  Fnv fnv;
  fnv.add(static_cast<std::uint64_t>(operation));
  fnv.add(algorithm);
  for (std::uint64_t value : {rank, ranks, root, parts}) fnv.add(value);
  for (const auto& repeat : program) {
    fnv.add(repeat.times);
    fnv.add(std::uint64_t{repeat.steps.size()});
    for (const auto& step : repeat.steps) {
      fnv.add(static_cast<std::uint64_t>(step.kind));
      fnv.add(step.peer);
      fnv.add(step.dst);
      fnv.add(step.src);
    }
  }
  return fnv.value();
}

Result<void> Schedule::check() const {
  const auto bad = [&](const Step& step, std::string_view why) {
    return fail(ErrorCode::invalid_argument, fmt::format("check schedule {} of rank {}", algorithm, rank),
                fmt::format("{}: {}", step_text(step), why));
  };
  if (ranks == 0 || rank >= ranks || root >= ranks || parts == 0) {
    return fail(ErrorCode::invalid_argument, "check schedule",
                fmt::format("rank {} of {}, root {}, {} blocks", rank, ranks, root, parts));
  }
  const auto fits = [&](const Slice& slice, std::uint32_t times) {
    const auto blocks = std::uint64_t{vectors(slice.buffer)} * parts;
    return slice.blocks > 0 && std::uint64_t{largest(slice.first, times)} + slice.blocks <= blocks;
  };
  for (const auto& repeat : program) {
    for (const auto& step : repeat.steps) {
      if (talks(step.kind)) {
        for (std::uint32_t i = 0; i < std::min(repeat.times, ranks); ++i) {
          if (step.peer.at(i) >= ranks) return bad(step, "no such rank");
          if (step.peer.at(i) == rank) return bad(step, "a rank does not talk to itself");
        }
      }
      if (reads(step.kind) && !fits(step.src, repeat.times)) return bad(step, "source outside its buffer");
      if (writes(step.kind) && !fits(step.dst, repeat.times))
        return bad(step, "destination outside its buffer");
      if (writes(step.kind) && step.dst.buffer == Buffer::input) return bad(step, "the input is not written");
      if ((step.kind == StepKind::reduce || step.kind == StepKind::copy) &&
          step.src.blocks != step.dst.blocks) {
        return bad(step, "source and destination have different lengths");
      }
    }
  }
  return {};
}

std::uint64_t block_offset(std::uint64_t count, std::uint32_t parts, std::uint32_t block) {
  return block * (count / parts) + std::min<std::uint64_t>(block, count % parts);
}

}  // namespace cenote::collectives
