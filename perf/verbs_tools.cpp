#include "perf/verbs_tools.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "perf/peer_process.h"

namespace cenote::perf {
namespace {

constexpr std::size_t bandwidth_columns = 5, latency_columns = 9;
constexpr auto patience = std::chrono::seconds(120);

std::vector<std::string> joined(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

}  // namespace

Result<ToolRow> parse_row(std::string_view output, bool latency) {
  const std::string stage = "read what a measuring tool printed";
  const auto heading = output.find("#bytes");
  const auto end = output.find('\n', heading);
  if (heading == std::string_view::npos || end == std::string_view::npos)
    return fail(ErrorCode::protocol_error, stage, fmt::format("there is no table: {}", output));
  std::istringstream line(std::string(output.substr(end + 1, output.find('\n', end + 1) - end - 1)));
  ToolRow row;
  bool numbers = true;
  for (std::string cell; line >> cell;) {
    char* after = nullptr;
    row.values.push_back(cell == "-" ? std::nan("") : std::strtod(cell.c_str(), &after));
    numbers = numbers && (after == nullptr || *after == '\0');
  }
  const std::size_t wanted = latency ? latency_columns : bandwidth_columns;
  if (!numbers || row.values.size() != wanted)
    return fail(ErrorCode::protocol_error, stage,
                fmt::format("its row has not {} numbers: {}", wanted, line.str()));
  return row;
}

Result<ToolRow> run_tool(const ToolRun& run, const Processors& processors) {
  const std::string& path = run.program.front();
  if (::access(path.c_str(), X_OK) != 0)
    return fail(Error{ErrorCode::not_found, "measure with " + path, "it is not there"}.fix(
        "./dev bench verbs installs and builds what it needs"));
  CENOTE_ASSIGN(const auto port, free_port());
  const auto common = joined({"-p", std::to_string(port)}, run.both);
  const auto words = [&](const std::vector<std::string>& own) {
    return joined(joined(run.program, own), common);
  };
  const Deadline deadline = Deadline::in(patience);
  CENOTE_ASSIGN(auto server, PeerProcess::start({words(run.server), processors.second, run.environment}));
  if (!run.client_waits) CENOTE_TRY(await_listener(port, server, deadline));
  CENOTE_ASSIGN(auto client, PeerProcess::start({words(run.client), processors.first, run.environment}));
  CENOTE_ASSIGN(const auto output, client.finish(deadline));
  CENOTE_TRY(server.finish(deadline));
  return parse_row(output, run.latency);
}

Result<std::string> stage_program(const std::string& program, const std::string& folder) {
  namespace fs = std::filesystem;
  CENOTE_ASSIGN(auto trace, PeerProcess::start({{program}, -1, {"LD_TRACE_LOADED_OBJECTS=1"}}));
  CENOTE_ASSIGN(const auto libraries, trace.finish(Deadline::in(patience)));
  const auto copy = [&](const fs::path& from) -> Result<void> {
    std::error_code failed;
    fs::copy_file(from, folder / from.filename(), fs::copy_options::skip_existing, failed);
    if (failed) return fail(system_error("copy " + from.string() + " to " + folder, failed.value()));
    return {};
  };
  CENOTE_TRY(copy(program));
  std::istringstream lines(libraries);
  for (std::string line; std::getline(lines, line);) {  // "\tlibfoo.so.1 => /usr/lib/libfoo.so.1 (0x7f..)"
    const auto arrow = line.find("=> /"), end = line.rfind(" (");
    if (arrow != std::string::npos && end > arrow) CENOTE_TRY(copy(line.substr(arrow + 3, end - arrow - 3)));
  }
  return (fs::path(folder) / fs::path(program).filename()).string();
}

}  // namespace cenote::perf
