#include "pool/cli/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

namespace cenote::pool::cli {

namespace {

using nlohmann::json;

std::string dump(const json& value) {
  return value.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

json to_json(const LeaseInfo& lease) {
  auto devices = json::array();
  for (const auto& device : lease.devices) {
    devices.push_back({{"uuid", device.uuid},
                       {"model", device.model},
                       {"memory_bytes", device.memory_bytes},
                       {"agent", device.agent},
                       {"agent_endpoint", device.agent_endpoint},
                       {"epoch", device.epoch}});
  }
  return {{"id", lease.id},
          {"client", lease.client},
          {"note", lease.note},
          {"granted_unix_ms", lease.granted_unix_ms},
          {"expires_unix_ms", lease.expires_unix_ms},
          {"devices", std::move(devices)}};
}

json to_json(const std::vector<LeaseInfo>& leases) {
  auto list = json::array();
  for (const auto& lease : leases) list.push_back(to_json(lease));
  return list;
}

json to_json(const AgentState& agent) {
  auto devices = json::array();
  for (const auto& device : agent.devices) {
    devices.push_back({{"uuid", device.uuid},
                       {"model", device.model},
                       {"ordinal", device.ordinal},
                       {"memory_bytes", device.memory_bytes},
                       {"memory_used_bytes", device.memory_used_bytes},
                       {"launches", device.launches},
                       {"utilisation", device.utilisation},
                       {"lease", device.lease_id}});
  }
  return {{"name", agent.name},
          {"endpoint", agent.endpoint},
          {"alive", agent.alive},
          {"last_heartbeat_unix_ms", agent.last_heartbeat_unix_ms},
          {"devices", std::move(devices)}};
}

std::string devices_text(const LeaseInfo& lease) {
  std::vector<std::string> texts;
  texts.reserve(lease.devices.size());
  for (const auto& device : lease.devices) texts.push_back(device.model + "@" + device.agent);
  return fmt::format("{}", fmt::join(texts, " "));
}

std::string span_text(std::int64_t ms) {
  const auto seconds = ms / 1000;
  if (seconds < 1) return fmt::format("{} ms", ms);
  if (seconds < 120) return fmt::format("{} s", seconds);
  if (seconds < 7200) return fmt::format("{} min", seconds / 60);
  return fmt::format("{} h", seconds / 3600);
}

std::string life_text(const AgentState& agent, std::int64_t now_unix_ms) {
  if (agent.alive) return "up";
  // The time of its last heartbeat is not in the broker's log.
  if (agent.last_heartbeat_unix_ms == 0) return "not heard since the broker started";
  return "silent for " + span_text(std::max<std::int64_t>(now_unix_ms - agent.last_heartbeat_unix_ms, 0));
}

}  // namespace

Table::Table(std::vector<std::string> heading, std::vector<std::size_t> right) : right_(std::move(right)) {
  rows_.push_back(std::move(heading));
}

void Table::add(std::vector<std::string> row) {
  row.resize(rows_.front().size());
  // What others wrote (a lease's note) must not move this terminal's cursor or forge a row.
  for (auto& cell : row) {
    for (char& c : cell) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
  }
  rows_.push_back(std::move(row));
}

std::string Table::text(const std::string& indent) const {
  std::vector<std::size_t> widths(rows_.front().size());
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line = indent;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool right = std::ranges::find(right_, i) != right_.end();
      line += right ? fmt::format("{:>{}}  ", row[i], widths[i]) : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return value == static_cast<double>(static_cast<std::uint64_t>(value))
             ? fmt::format("{:.0f} {}", value, kUnits[unit])
             : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string count_text(std::uint64_t count, std::string_view thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

std::string when_text(std::int64_t unix_ms, std::int64_t now_unix_ms) {
  const auto ms = unix_ms - now_unix_ms;
  if (ms == 0) return "now";
  return ms > 0 ? "in " + span_text(ms) : span_text(-ms) + " ago";
}

std::string lease_table(const std::vector<LeaseInfo>& leases, std::int64_t now_unix_ms) {
  if (leases.empty()) return "no lease in force\n";
  Table table({"LEASE", "CLIENT", "GPUS", "DEVICES", "GRANTED", "EXPIRES", "NOTE"}, {2});
  for (const auto& lease : leases) {
    table.add({lease.id, lease.client, std::to_string(lease.devices.size()), devices_text(lease),
               when_text(lease.granted_unix_ms, now_unix_ms), when_text(lease.expires_unix_ms, now_unix_ms),
               lease.note});
  }
  return table.text();
}

std::string leases_json(const std::vector<LeaseInfo>& leases) { return dump({{"leases", to_json(leases)}}); }
std::string lease_json(const LeaseInfo& lease) { return dump(to_json(lease)); }

std::string device_table(const LeaseInfo& lease) {
  Table table({"GPU", "MODEL", "MEMORY", "AGENT", "UUID"}, {0, 2});
  for (std::size_t i = 0; i < lease.devices.size(); ++i) {
    const auto& device = lease.devices[i];
    table.add({std::to_string(i), device.model, bytes_text(device.memory_bytes), device.agent, device.uuid});
  }
  return table.text("  ");
}

std::string top_text(const PoolState& state) {
  std::size_t gpus = 0, leased = 0;
  for (const auto& agent : state.agents) {
    gpus += agent.devices.size();
    for (const auto& device : agent.devices) leased += device.lease_id.empty() ? 0 : 1;
  }
  auto out = fmt::format("{}, {}, {} leased; {}; broker term {}\n", count_text(state.agents.size(), "agent"),
                         count_text(gpus, "GPU"), leased, count_text(state.leases.size(), "lease"),
                         state.broker_term);
  Table table({"AGENT", "STATE", "GPU", "MODEL", "MEMORY", "USED", "BUSY", "LAUNCHES", "LEASE"},
              {2, 4, 5, 6, 7});
  for (const auto& agent : state.agents) {
    const auto life = life_text(agent, state.now_unix_ms);
    for (const auto& device : agent.devices) {
      table.add({agent.name, life, std::to_string(device.ordinal), device.model,
                 bytes_text(device.memory_bytes), bytes_text(device.memory_used_bytes),
                 fmt::format("{:.0f} %", device.utilisation * 100), std::to_string(device.launches),
                 device.lease_id.empty() ? "-" : device.lease_id});
    }
  }
  return out + table.text();
}

std::string top_json(const PoolState& state) {
  auto agents = json::array();
  for (const auto& agent : state.agents) agents.push_back(to_json(agent));
  return dump({{"agents", std::move(agents)},
               {"leases", to_json(state.leases)},
               {"now_unix_ms", state.now_unix_ms},
               {"broker_term", state.broker_term}});
}

}  // namespace cenote::pool::cli
