#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "pool/cli/demo.h"
#include "pool/cli/output.h"

namespace cenote::pool::cli {

std::string figures_text(const DemoFigures& figures) {
  Table table({"WHAT", "FIGURE", ""});
  table.add({"time to grant four GPUs", fmt::format("{:.1f} ms", figures.grant_ms)});
  table.add({"kernel launches from the client", fmt::format("{:.0f} /s", figures.launches_per_second)});
  table.add({"gradients of one step, each GPU", bytes_text(figures.gradient_bytes)});
  table.add({"exchanged between the workers", bytes_text(figures.exchanged_bytes),
             fmt::format("in {} steps", figures.steps)});
  table.add(
      {"sent by the client while training", bytes_text(figures.client_bytes), "commands only, no gradients"});
  table.add(
      {"sent by the client before", bytes_text(figures.client_setup_bytes), "kernels, data, first weights"});
  table.add({"bus bandwidth of a large allreduce", fmt::format("{:.3g} GB/s", figures.bus_bandwidth_gbps)});
  auto out = table.text("  ") + "\n";
  for (const auto& kill : figures.kills) out += "  " + kill_text(kill) + "\n";
  if (!figures.kills.empty()) out += "\n";
  Table pairs({"RANKS", "TRANSPORT", "SENT"}, {2});
  for (const auto& pair : figures.pairs) {
    pairs.add({fmt::format("{} -> {}", pair.from, pair.to), pair.transport.empty() ? "-" : pair.transport,
               bytes_text(pair.bytes_sent)});
  }
  return out + pairs.text("  ");
}

namespace {

// Only what was seen of this victim: a 0 would look like a measurement.
nlohmann::json to_json(const KillFigures& kill) {
  nlohmann::json out{{"victim", kill.victim}};
  const bool broker = kill.victim == "broker", client = kill.victim == "client";
  if (!client) out["step"] = kill.step;
  if (broker) {
    out["away_ms"] = kill.away_ms;
    out["steps_away"] = kill.steps_away;
    out["epochs_away"] = kill.epochs_away;
    out["refusal"] = kill.refusal;
    return out;
  }
  if (!client) {
    out["heard_ms"] = kill.heard_ms;
    out["error"] = kill.error;
  }
  out["freed_ms"] = kill.freed_ms;
  out["workers_gone"] = kill.workers_gone;
  return out;
}

nlohmann::json to_json(const std::vector<KillFigures>& kills) {
  auto list = nlohmann::json::array();
  for (const auto& kill : kills) list.push_back(to_json(kill));
  return list;
}

}  // namespace

std::string figures_json(const DemoFigures& figures) {
  auto pairs = nlohmann::json::array();
  for (const auto& pair : figures.pairs) {
    pairs.push_back(
        {{"from", pair.from}, {"to", pair.to}, {"transport", pair.transport}, {"bytes", pair.bytes_sent}});
  }
  const nlohmann::json out = {{"test_accuracy", figures.test_accuracy},
                              {"single_gpu_accuracy", figures.single_gpu_accuracy},
                              {"weights_bit_equal", figures.weights_bit_equal},
                              {"grant_ms", figures.grant_ms},
                              {"launches_per_second", figures.launches_per_second},
                              {"exchanged_bytes", figures.exchanged_bytes},
                              {"client_bytes", figures.client_bytes},
                              {"client_setup_bytes", figures.client_setup_bytes},
                              {"gradient_bytes", figures.gradient_bytes},
                              {"steps", figures.steps},
                              {"bus_bandwidth_gbps", figures.bus_bandwidth_gbps},
                              {"training_seconds", figures.training_seconds},
                              {"seconds", figures.seconds},
                              {"client_transports", figures.client_transports},
                              {"pairs", std::move(pairs)},
                              {"kills", to_json(figures.kills)}};
  return out.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace cenote::pool::cli
