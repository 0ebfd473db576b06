// How commands show things: tables for people, JSON for programs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "pool/cli/cli.h"
#include "pool/client/pool_client.h"

namespace cenote::pool::cli {

/// Rows of cells, columns as wide as they must be. The first row is the heading.
class Table {
 public:
  /// `right`: the columns (from 0) that hold numbers.
  explicit Table(std::vector<std::string> heading, std::vector<std::size_t> right = {});
  void add(std::vector<std::string> row);
  [[nodiscard]] std::string text(const std::string& indent = "") const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> right_;
};

/// "1 lease", "0 leases".
std::string count_text(std::uint64_t count, std::string_view thing);
/// "1.5 GiB", "512 B".
std::string bytes_text(std::uint64_t bytes);
/// "in 58 s", "412 ms ago", "now", relative to `now`.
std::string when_text(std::int64_t unix_ms, std::int64_t now_unix_ms);

std::string lease_table(const std::vector<LeaseInfo>& leases, std::int64_t now_unix_ms);
std::string leases_json(const std::vector<LeaseInfo>& leases);
std::string device_table(const LeaseInfo& lease);
std::string top_text(const PoolState& state);
std::string top_json(const PoolState& state);
std::string lease_json(const LeaseInfo& lease);

}  // namespace cenote::pool::cli
