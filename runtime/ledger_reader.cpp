#include "runtime/ledger_reader.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <utility>

#include "runtime/machine_files.h"

namespace cenote {
namespace {

using ledger_page::Copied;
using Row = ledger_page::Row<std::uint64_t>;

constexpr const char* read_stage = "read a ledger";

Result<void> copy(int descriptor, std::uint64_t at, void* to, std::size_t bytes) {
  const auto got = ::pread(descriptor, to, bytes, static_cast<off_t>(at));
  if (got < 0) return fail(system_error(read_stage, errno));
  if (static_cast<std::size_t>(got) != bytes)
    return fail(ErrorCode::protocol_error, read_stage, "it is shorter than a ledger");
  return {};
}

/// Words as text, up to the first 0; what is no printable ASCII becomes '?'.
template <std::size_t words>
std::string text_of(const std::uint64_t (&from)[words]) {
  std::array<char, 8 * words> bytes{};
  std::memcpy(bytes.data(), from, sizeof bytes);
  std::string text(bytes.begin(), std::ranges::find(bytes, '\0'));
  for (auto& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  return text;
}

Clock::time_point time_of(std::uint64_t ticks) {
  return Clock::time_point(Clock::duration(std::bit_cast<std::int64_t>(ticks)));
}

LedgerRow row_of(const Row& row) {
  return {text_of(row.operation),
          text_of(row.stage),
          row.sequence,
          row.bytes,
          row.count,
          row.detail,
          {static_cast<std::uint32_t>(row.waits_for), static_cast<std::uint32_t>(row.waits_for >> 32)},
          time_of(row.began),
          time_of(row.in_stage_since)};
}

// Each row is copied until no writer was at it between two copies.
Result<std::vector<LedgerRow>> rows_of(int descriptor) {
  constexpr int most_tries = 1000;  // a row that changes this often is not stuck
  std::vector<LedgerRow> rows;
  std::array<Row, ledger_page::rows> all{};
  CENOTE_TRY(copy(descriptor, offsetof(Copied, row), all.data(), sizeof all));
  for (std::size_t i = 0; i < all.size(); ++i) {
    auto& row = all[i];
    if (row.version == 0) continue;  // never used
    for (int tries = 0; tries < most_tries; ++tries) {
      Row again{};
      CENOTE_TRY(copy(descriptor, offsetof(Copied, row) + i * sizeof(Row), &again, sizeof again));
      if (row.version == again.version && row.version % 2 == 0) {
        if (row.operation[0] != 0) rows.push_back(row_of(row));
        break;
      }
      row = again;
    }
  }
  std::ranges::stable_sort(rows, {}, &LedgerRow::began);
  return rows;
}

struct CloseFolder {
  void operator()(DIR* folder) const { ::closedir(folder); }
};
using Folder = std::unique_ptr<DIR, CloseFolder>;

std::optional<pid_t> number_of(std::string_view name) {
  pid_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc{} || end != name.data() + name.size()) return std::nullopt;
  return number;
}

/// The process's name and state, "T" where it is stopped, from /proc/PID/stat.
std::pair<std::string, char> program_of(pid_t pid) {
  const auto stat = MachineFiles().text(fmt::format("/proc/{}/stat", pid)).value_or("");
  const auto open = stat.find('(');
  const auto close = stat.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open || close + 2 >= stat.size())
    return {"", '?'};
  return {stat.substr(open + 1, close - open - 1), stat[close + 2]};
}

/// What the process itself takes for its number: the last one of its line NSpid.
std::uint64_t own_number_of(pid_t pid) {
  const auto status = MachineFiles().text(fmt::format("/proc/{}/status", pid)).value_or("");
  const auto at = status.find("\nNSpid:");
  if (at == std::string::npos) return static_cast<std::uint64_t>(pid);
  const auto line = std::string_view(status).substr(at + 1, status.find('\n', at + 1) - at - 1);
  return static_cast<std::uint64_t>(number_of(line.substr(line.find_last_of("\t ") + 1)).value_or(pid));
}

void look_at(pid_t pid, const std::string& descriptor, LedgerSearch& search) {
  std::array<char, 64> target{};
  const auto length = ::readlink(descriptor.c_str(), target.data(), target.size());
  const auto wanted = fmt::format("/memfd:{} ", ledger_page::memory_name);
  if (length < 0 || !std::string_view(target.data(), static_cast<std::size_t>(length)).starts_with(wanted))
    return;
  const UniqueFd memory(::open(descriptor.c_str(), O_RDONLY | O_CLOEXEC));
  if (!memory) return;  // its process has just closed it, or ended
  auto ledger = read_ledger(memory.get());
  if (!ledger) {
    search.unreadable.push_back(std::move(ledger).error().with(fmt::format("process {}", pid)));
    return;
  }
  // A child of fork() holds its parent's too.
  if (ledger->pid != own_number_of(pid)) return;
  auto [program, state] = program_of(pid);
  search.found.push_back({pid, state, std::move(program), std::move(*ledger)});
}

}  // namespace

Result<LedgerCopy> read_ledger(int descriptor) {
  ledger_page::Head<std::uint64_t> head{};
  CENOTE_TRY(copy(descriptor, 0, &head, sizeof head));
  if (head.magic != ledger_page::magic)
    return fail(ErrorCode::protocol_error, read_stage, "it is none, or of another version of Cenote");
  LedgerCopy out;
  out.pid = head.pid;
  out.group = head.group;
  out.rank = static_cast<std::uint32_t>(head.rank);
  out.size = static_cast<std::uint32_t>(head.size);
  out.not_shown = head.not_shown;
  if (head.failed == 1) {
    out.failure = LedgerCopy::Failure{static_cast<std::uint32_t>(head.culprit), text_of(head.failure),
                                      time_of(head.failed_at)};
  }
  // The rows before the number of the last one that began: none that began is taken for one that did not.
  CENOTE_ASSIGN(out.rows, rows_of(descriptor));
  CENOTE_TRY(copy(descriptor, 0, &head, sizeof head));
  out.begun = head.begun;
  out.begun_at = time_of(head.begun_at);
  out.seen = time_of(head.seen);
  return out;
}

Result<LedgerSearch> find_ledgers() {
  constexpr const char* stage = "look for ledgers in /proc";
  const Folder processes(::opendir("/proc"));
  if (processes == nullptr) return fail(system_error(stage, errno));
  LedgerSearch search;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this function's own
  while (const auto* entry = ::readdir(processes.get())) {
    const auto pid = number_of(static_cast<const char*>(entry->d_name));
    if (!pid) continue;
    const auto folder = fmt::format("/proc/{}/fd", *pid);
    const Folder descriptors(::opendir(folder.c_str()));
    if (descriptors == nullptr) {
      if (errno == EACCES || errno == EPERM) ++search.not_looked_into;
      continue;
    }
    // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this function's own
    while (const auto* fd = ::readdir(descriptors.get()))
      look_at(*pid, fmt::format("{}/{}", folder, static_cast<const char*>(fd->d_name)), search);
  }
  std::ranges::stable_sort(search.found, {}, &FoundLedger::pid);
  return search;
}

}  // namespace cenote
