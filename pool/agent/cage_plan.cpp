#include "pool/agent/cage_plan.h"

#include <fmt/format.h>
#include <linux/capability.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "pool/agent/system_calls.h"

namespace cenote::pool::agent {
namespace {

constexpr std::string_view kAsRoot =
    "run the agent as root (with CAP_SETUID, CAP_SETGID and CAP_KILL in a container)";
constexpr std::string_view kDelegate =
    "run the agent as a systemd service with Delegate=yes, or name a cgroup that it may write to in "
    "agent.cage.cgroup";

struct Range {
  std::uint32_t first = 0, last = 0;
};

Result<Range> parse_users(const std::string& text) {
  Range range;
  const auto* const end = text.data() + text.size();
  const auto [dash, bad_first] = std::from_chars(text.data(), end, range.first);
  const bool pair = bad_first == std::errc{} && dash != end && *dash == '-';
  const auto [rest, bad_last] = pair ? std::from_chars(dash + 1, end, range.last)
                                     : std::from_chars_result{end, std::errc::invalid_argument};
  if (!pair || bad_last != std::errc{} || rest != end || range.first == 0 || range.last < range.first ||
      range.last == UINT32_MAX) {
    return fail(Error{ErrorCode::invalid_argument, "read setting agent.cage.users",
                      fmt::format("'{}' is no range of user ids above 0", text)}
                    .fix("write FIRST-LAST, as in 1900000000-1900065535, or nothing for none"));
  }
  return range;
}

/// "CapEff:\t000001ffffffffff", "Uid:\t0\t0\t0\t0": the second word.
std::optional<std::uint64_t> status_field(const MachineFiles& files, std::string_view title, int base,
                                          int word) {
  std::istringstream in(files.text("/proc/self/status").value_or(""));
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(title)) continue;
    std::istringstream words(line.substr(title.size()));
    std::string text;
    for (int i = 0; i < word; ++i) words >> text;
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (error == std::errc{} && end != text.data()) return value;
  }
  return std::nullopt;
}

bool capable(const MachineFiles& files, int capability) {
  return (status_field(files, "CapEff:", 16, 1).value_or(0) >> static_cast<unsigned>(capability) & 1U) != 0;
}

/// Whether all of `range` exists in this user namespace, in one of the two maps.
bool mapped(const MachineFiles& files, const Range& range, const char* map) {
  std::istringstream in(files.text(std::string("/proc/self/") + map).value_or(""));
  std::uint64_t inside = 0, outside = 0, count = 0;
  while (in >> inside >> outside >> count)
    if (range.first >= inside && range.last < inside + count) return true;
  return false;
}

bool locked_memory_is_bound(const MachineFiles& files) {
  std::istringstream in(files.text("/proc/self/limits").value_or(""));
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("Max locked memory")) return line.find("unlimited") == std::string::npos;
  return true;
}

/// "nvidia0", "nvidiactl", "nvidia-uvm": what a CUDA program opens.
bool is_gpu_node(std::string_view name) {
  if (name == "nvidiactl" || name == "nvidia-uvm") return true;
  constexpr std::string_view prefix = "nvidia";
  return name.starts_with(prefix) && name.size() > prefix.size() &&
         name.find_first_not_of("0123456789", prefix.size()) == std::string_view::npos;
}

/// The nodes of GPUs and RDMA cards: which groups open them, and which of them root alone can.
struct Nodes {
  std::set<std::uint32_t> groups;
  std::string for_root_only;
};

Nodes device_nodes(const MachineFiles& files) {
  Nodes nodes;
  const auto look = [&](const std::string& path) {
    struct stat info {};
    if (::stat((files.root() + path).c_str(), &info) != 0 || S_ISDIR(info.st_mode)) return;
    if ((info.st_mode & 06U) == 06U) return;
    if ((info.st_mode & 060U) == 060U && info.st_gid != 0) {
      nodes.groups.insert(info.st_gid);
    } else if (nodes.for_root_only.empty()) {
      nodes.for_root_only = path;
    }
  };
  for (const auto& name : files.names("/dev"))
    if (is_gpu_node(name)) look("/dev/" + name);
  for (const auto& name : files.names("/dev/infiniband"))
    if (name.starts_with("uverbs") || name == "rdma_cm") look("/dev/infiniband/" + name);
  return nodes;
}

CageRung refused(std::string_view name, std::string reason, std::string_view remedy = {}) {
  return {name, false, std::move(reason), std::string(remedy)};
}

CageRung user_rung(CagePlan& plan, const CageOptions& options, const MachineFiles& files,
                   const Range& range) {
  constexpr std::string_view name = "user";
  if (options.users.empty()) return refused(name, "agent.cage.users is empty", "set agent.cage.users");
  const auto self = status_field(files, "Uid:", 10, 2);
  if (!self) return refused(name, "/proc/self/status says no user", "mount /proc");
  if (*self != 0) return refused(name, fmt::format("the agent is user {}, not root", *self), kAsRoot);
  if (!capable(files, CAP_SETUID) || !capable(files, CAP_SETGID) || !capable(files, CAP_KILL))
    return refused(name, "the agent may not change users (CAP_SETUID, CAP_SETGID) or end theirs (CAP_KILL)",
                   kAsRoot);
  if (!mapped(files, range, "uid_map") || !mapped(files, range, "gid_map")) {
    return refused(name,
                   fmt::format("users and groups {} do not exist in this user namespace", options.users),
                   "set agent.cage.users to a range that its uid_map and gid_map have and nobody else uses");
  }
  if (options.over_ucx)
    return refused(name, "transports has ucx, which shares memory between processes of one user only",
                   "leave ucx out of transports");
  if (files.exists("/tmp/nvidia-mps/control"))
    return refused(name, "an MPS server is here (/tmp/nvidia-mps/control), and it serves one user",
                   "end it, or leave workers without users of their own");
  if (files.exists("/dev/infiniband/uverbs0") && capable(files, CAP_IPC_LOCK) &&
      !capable(files, CAP_SYS_RESOURCE) && locked_memory_is_bound(files))
    return refused(name, "its locked memory would be bound by the agent's limit, which root's is not",
                   "raise it (ulimit -l unlimited)");
  const auto nodes = device_nodes(files);
  if (!nodes.for_root_only.empty())
    return refused(name, nodes.for_root_only + " is for root alone", "let a group read and write it");
  plan.first_user = range.first;
  plan.last_user = range.last;
  plan.groups.assign(nodes.groups.begin(), nodes.groups.end());
  auto reason = fmt::format("each worker has its own of {}", options.users);
  if (!plan.groups.empty())
    reason += fmt::format(", and the groups {} of the devices", fmt::join(plan.groups, ", "));
  return {name, true, std::move(reason)};
}

CageRung filter_rung(CagePlan& plan, const CageOptions& options, const MachineFiles& files) {
  constexpr std::string_view name = "system-calls";
  if (!options.filter) return refused(name, "agent.cage.filter is false", "set agent.cage.filter=true");
  if (kSanitized) return refused(name, "built with a sanitizer, whose leak check traces the process");
  if (!status_field(files, "Seccomp:", 10, 1))
    return refused(name, "the kernel has no filters (CONFIG_SECCOMP_FILTER)", "use a kernel that has");
  plan.filtered = true;
  return {name, true, fmt::format("{} are allowed, all others are refused", allowed_system_calls())};
}

CageRung memory_rung(CagePlan& plan, const CageOptions& options) {
  constexpr std::string_view name = "memory";
  if (!plan.room.no_memory.empty()) return refused(name, plan.room.no_memory, kDelegate);
  plan.limit_memory = true;
  plan.memory = options.memory;
  return {name, true,
          fmt::format("memory.max {}, and what its emulated cards have, in {}",
                      options.memory == 0
                          ? std::string("4 GiB for each GPU")
                          : fmt::format("{:.1f} GiB", static_cast<double>(options.memory) / (1U << 30U)),
                      plan.room.folder)};
}

CageRung threads_rung(CagePlan& plan, const CageOptions& options) {
  constexpr std::string_view name = "threads";
  plan.threads = options.threads;
  if (plan.room.no_threads.empty()) {
    plan.limit_threads = true;
    return {name, true, fmt::format("pids.max {} in {}", options.threads, plan.room.folder)};
  }
  // It counts all that a user has, so it takes a user with one worker.
  if (plan.first_user == 0)
    return refused(name, plan.room.no_threads + "; RLIMIT_NPROC takes a user of its own", kDelegate);
  plan.threads_by_user = true;
  return {name, true,
          fmt::format("RLIMIT_NPROC {}; not pids.max: {}", options.threads, plan.room.no_threads)};
}

CageRung dump_rung(CagePlan& plan) {
  constexpr std::string_view name = "core-dumps";
  if (kSanitized) return refused(name, "RLIMIT_CORE is 0, but a sanitizer's leak check has to trace it");
  plan.dumpable = false;
  return {name, true, "none, and no other process of its user may read its memory"};
}

CageRung credentials_rung(const CagePlan& plan) {
  constexpr std::string_view name = "credentials";
  if (plan.first_user == 0)
    return refused(
        name, "none is open in a worker or in its environment, but its user, the agent's, can read tls.dir",
        kAsRoot);
  return {name, true,
          "none is open in a worker or in its environment, and its user cannot read the keys in tls.dir"};
}

}  // namespace

CageOptions cage_options(const Settings& settings) {
  CageOptions options;
  options.users = settings.text("agent.cage.users");
  options.filter = settings.boolean("agent.cage.filter");
  options.cgroup = settings.text("agent.cage.cgroup");
  options.memory = settings.size("agent.cage.memory");
  options.threads = settings.uinteger("agent.cage.threads");
  options.require = settings.list("agent.cage.require");
  const auto& transports = settings.list("transports");
  options.over_ucx = std::ranges::find(transports, "ucx") != transports.end();
  return options;
}

Result<CagePlan> plan_cage(const CageOptions& options, const MachineFiles& files) {
  Range range;
  if (!options.users.empty()) {
    CENOTE_ASSIGN(range, parse_users(options.users));
  }
  CagePlan plan;
  plan.room = find_group_room(files, options.cgroup);
  plan.rungs.push_back(user_rung(plan, options, files, range));
  plan.rungs.push_back(filter_rung(plan, options, files));
  plan.rungs.push_back(memory_rung(plan, options));
  plan.rungs.push_back(threads_rung(plan, options));
  plan.rungs.push_back(dump_rung(plan));
  plan.rungs.push_back(credentials_rung(plan));
  return plan;
}

Result<void> check_required(const std::vector<CageRung>& rungs, const std::vector<std::string>& required) {
  for (const auto& rung : rungs) {
    if (rung.taken || std::ranges::find(required, rung.name) == required.end()) continue;
    return fail(Error{ErrorCode::permission_denied, "start agent",
                      fmt::format("agent.cage.require names {}, which workers cannot have here: {}",
                                  rung.name, rung.reason)}
                    .fix(rung.remedy.empty() ? "leave it out of agent.cage.require" : rung.remedy));
  }
  return {};
}

}  // namespace cenote::pool::agent
