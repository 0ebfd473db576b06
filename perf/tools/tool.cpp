#include "perf/tools/tool.h"

namespace cenote::perf {

std::span<const Tool* const> all_tools() {
  static constexpr const Tool* tools[] = {&write_bw, &write_lat, &read_bw,   &read_lat,
                                          &send_bw,  &send_lat,  &atomic_lat};
  return tools;
}

const Tool* find_tool(std::string_view name) {
  for (const Tool* tool : all_tools()) {
    if (tool->name == name) return tool;
  }
  return nullptr;
}

bool prepare_nothing(Run& /*run*/) { return true; }

bool prepare_pattern(Run& run) {
  if (!run.plan.validate) return true;
  for (std::uint64_t slot = 0; slot < run.plan.slots; ++slot) {
    if (!run.fill(run.shared_buffer(), run.place(slot), slot)) return false;
  }
  return true;
}

std::function<bool()> only_answer(Run& run) {
  return [&run] { return run.answer_done(); };
}

}  // namespace cenote::perf
