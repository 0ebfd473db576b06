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
  table.add({"bus bandwidth of a large allreduce", fmt::format("{:.2f} GB/s", figures.bus_bandwidth_gbps)});
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

nlohmann::json to_json(const std::vector<KillFigures>& kills) {
  auto list = nlohmann::json::array();
  for (const auto& kill : kills) {
    list.push_back({{"victim", kill.victim},
                    {"step", kill.step},
                    {"away_ms", kill.away_ms},
                    {"steps_away", kill.steps_away},
                    {"epochs_away", kill.epochs_away},
                    {"refusal", kill.refusal},
                    {"heard_ms", kill.heard_ms},
                    {"error", kill.error},
                    {"freed_ms", kill.freed_ms},
                    {"workers_gone", kill.workers_gone}});
  }
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
