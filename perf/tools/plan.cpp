#include "perf/tools/plan.h"

namespace cenote::perf {
namespace {

tl::unexpected<Error> malformed(const char* what) {
  return fail(ErrorCode::protocol_error, "talk to the other end", what);
}

}  // namespace

void encode(Writer& out, const Plan& plan) {
  out.put(plan.size).put(plan.iterations).put(plan.duration_ns).put(plan.margin_ns);
  out.put(plan.depth).put(plan.slots).put(plan.warm_up);
  out.put(plan.bidirectional).put(plan.validate).put(plan.peak).put(plan.poll_memory);
}

Result<Plan> decode_plan(Reader& in, std::uint64_t memory) {
  Plan plan;
  plan.size = in.get<std::uint64_t>();
  plan.iterations = in.get<std::uint64_t>();
  plan.duration_ns = in.get<std::int64_t>();
  plan.margin_ns = in.get<std::int64_t>();
  plan.depth = in.get<std::uint32_t>();
  plan.slots = in.get<std::uint32_t>();
  plan.warm_up = in.get<std::uint64_t>();
  plan.bidirectional = in.get<std::uint8_t>() != 0;
  plan.validate = in.get<std::uint8_t>() != 0;
  plan.peak = in.get<std::uint8_t>() != 0;
  plan.poll_memory = in.get<std::uint8_t>() != 0;
  if (!in.finished() || plan.size == 0 || plan.depth == 0 || plan.slots == 0)
    return malformed("its plan makes no sense");
  if ((plan.iterations == 0) == (plan.duration_ns <= 0)) return malformed("its plan has no end, or two");
  if (plan.size > memory || plan.stride() > memory / plan.slots)
    return malformed("its plan needs more memory than was agreed");
  return plan;
}

void BandwidthFigures::add(const BandwidthFigures& other) {
  average += other.average;
  message_rate += other.message_rate;
  if (peak && other.peak) {
    *peak += *other.peak;
  } else {
    peak.reset();
  }
}

void encode(Writer& out, const Figures& figures) {
  out.put(figures.bandwidth.has_value()).put(figures.latency.has_value()).put(figures.cpu_percent);
  if (const auto& b = figures.bandwidth)
    out.put(b->messages).put(b->average).put(b->message_rate).put(b->peak.value_or(-1));
  if (const auto& l = figures.latency) {
    out.put(l->samples).put(l->min).put(l->max).put(l->typical);
    out.put(l->average).put(l->deviation).put(l->p99).put(l->p999);
  }
}

Result<Figures> decode_figures(Reader& in) {
  Figures out;
  const bool bandwidth = in.get<std::uint8_t>() != 0, latency = in.get<std::uint8_t>() != 0;
  out.cpu_percent = in.get<double>();
  if (bandwidth) {
    auto& b = out.bandwidth.emplace();
    b.messages = in.get<std::uint64_t>();
    b.average = in.get<double>();
    b.message_rate = in.get<double>();
    if (const auto peak = in.get<double>(); peak >= 0) b.peak = peak;
  }
  if (latency) {
    auto& l = out.latency.emplace();
    l.samples = in.get<std::uint64_t>();
    for (double* value : {&l.min, &l.max, &l.typical, &l.average, &l.deviation, &l.p99, &l.p999})
      *value = in.get<double>();
  }
  if (!in.finished()) return malformed("its figures make no sense");
  return out;
}

}  // namespace cenote::perf
