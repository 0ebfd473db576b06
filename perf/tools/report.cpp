#include "perf/tools/report.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/unique_fd.h"

namespace cenote::perf {
namespace {

using nlohmann::json;

constexpr double mebibyte = 1 << 20;

/// Of bytes a second: MiB/sec, or 10^9 bits.
double in_unit(const Show& show, double rate) { return show.gbits ? rate * 8 / 1e9 : rate / mebibyte; }
const char* unit(const Show& show) { return show.gbits ? "Gb/sec" : "MiB/sec"; }

std::string rule() { return std::string(120, '-') + "\n"; }

std::string cpu_heading(const Show& show) { return show.cpu ? "   CPU_Util[%]" : ""; }
std::string cpu_cell(const Show& show, const Figures& figures) {
  return show.cpu ? fmt::format("   {:<11.2f}", figures.cpu_percent) : "";
}

std::string trimmed(std::string text) {
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

std::string terms(const Plan& plan) {
  std::string out = fmt::format("{} in flight", plan.depth);
  if (plan.iterations == 0)
    out += fmt::format(", {:g} s less {:g} s at either end", static_cast<double>(plan.duration_ns) / 1e9,
                       static_cast<double>(plan.margin_ns) / 1e9);
  if (plan.bidirectional) out += ", both directions at once, added up";
  if (plan.validate) out += ", every byte checked (the checks are in the figures)";
  return out;
}

/// "" and missing keys do not tell "not measured" from "forgotten"; null does.
json or_null(const std::optional<double>& value) { return value ? json(*value) : json(); }

json result_of(const Tool& tool, const Show& show, const Measurement& measured) {
  json out{{"MsgSize", measured.plan.size}};
  if (const auto& b = measured.figures.bandwidth) {
    out["n_iterations"] = b->messages;
    out["BW_peak"] = b->peak ? json(in_unit(show, *b->peak)) : or_null(b->peak);
    out["BW_average"] = in_unit(show, b->average);
    out["MsgRate"] = b->message_rate / 1e6;
  }
  if (const auto& l = measured.figures.latency; l && tool.latency) {
    out["n_iterations"] = l->samples;
    out["t_min"] = l->min;
    out["t_max"] = l->max;
    out["t_typical"] = l->typical;
    out["t_avg"] = l->average;
    out["t_stdev"] = l->deviation;
    out["t_99"] = l->p99;
    out["t_99.9"] = l->p999;
  }
  if (show.cpu) out["CPU_util"] = measured.figures.cpu_percent;
  return out;
}

}  // namespace

std::string heading(const Tool& tool, const Show& show, const Plan& plan, const Joined& joined) {
  std::string out = rule();
  out += fmt::format("  cenote perf {}: {}\n", tool.name, tool.about);
  out += fmt::format("  peer        {}\n", joined.peer);
  out += fmt::format("  transport   {}\n", joined.reason);
  out += fmt::format("  memory      {} here, {} there\n", joined.memory, joined.peer_memory);
  out += fmt::format("  terms       {}\n", terms(plan)) + rule();
  if (tool.latency) {
    return out +
           " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    "
           "t_stdev[usec] "
           "  99% percentile[usec]   99.9% percentile[usec]" +
           cpu_heading(show) + "\n";
  }
  return out + fmt::format(" #bytes     #iterations    BW peak[{0}]    BW average[{0}]   MsgRate[Mpps]{1}\n",
                           unit(show), cpu_heading(show));
}

std::string line(const Tool& tool, const Show& show, const Measurement& measured) {
  const Figures& figures = measured.figures;
  if (tool.latency) {
    const LatencyFigures l = figures.latency.value_or(LatencyFigures());
    return trimmed(
        fmt::format(" {:<7}{:<15}{:<15.2f}{:<13.2f}{:<19.2f}{:<15.2f}{:<16.2f}{:<23.2f}{:<22.2f}{}",
                    fmt::format("{} ", measured.plan.size), l.samples, l.min, l.max, l.typical, l.average,
                    l.deviation, l.p99, l.p999, cpu_cell(show, figures)));
  }
  const BandwidthFigures b = figures.bandwidth.value_or(BandwidthFigures());
  const std::string peak = b.peak ? fmt::format("{:.2f}", in_unit(show, *b.peak)) : "-";
  const auto wide = std::string_view(unit(show)).size();
  return trimmed(fmt::format(" {:<11}{:<15}{:<{}}{:<{}.2f}{:<13.6f}{}", measured.plan.size, b.messages, peak,
                             wide + 13, in_unit(show, b.average), wide + 15, b.message_rate / 1e6,
                             cpu_cell(show, figures)));
}

std::string footing() { return rule(); }

std::string json_text(const Tool& tool, const Show& show, const Joined& joined,
                      const std::vector<Measurement>& measured) {
  nlohmann::json info{{"test", tool.name},
                      {"peer", joined.peer},
                      {"transport", joined.transport},
                      {"transport_reason", joined.reason},
                      {"memory", joined.memory},
                      {"peer_memory", joined.peer_memory},
                      {"BW_unit", show.gbits ? "Gb/sec" : "MiB/sec"},
                      {"latency_unit", "usec"}};
  if (!measured.empty()) {
    const Plan& plan = measured.front().plan;
    info["tx_depth"] = plan.depth;
    info["duration"] = static_cast<double>(plan.duration_ns) / 1e9;
    info["margin"] = static_cast<double>(plan.margin_ns) / 1e9;
    info["bidirectional"] = plan.bidirectional;
    info["validated"] = plan.validate;
  }
  auto runs = nlohmann::json::array();
  for (const auto& one : measured) runs.push_back(result_of(tool, show, one));
  nlohmann::json out{{"test_info", std::move(info)}};
  out["results"] = runs.size() == 1 ? runs.front() : runs;
  out["runs"] = std::move(runs);
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<void> can_write(const std::string& path) {
  const bool there = ::access(path.c_str(), F_OK) == 0;
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!file) return fail(system_error("write " + path, errno).fix("name another file"));
  if (!there) ::unlink(path.c_str());
  return {};
}

Result<void> write_file(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::trunc);
  file << text;
  file.close();
  if (!file) return fail(system_error("write " + path, errno == 0 ? EIO : errno).fix("name another file"));
  return {};
}

}  // namespace cenote::perf
