#include "pool/agent/worker_groups.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <sstream>
#include <utility>
#include <vector>

#include "runtime/unique_fd.h"

namespace cenote::pool::agent {
namespace {

constexpr std::string_view kPrefix = "cenote-";

std::vector<std::string> words_of(const std::optional<std::string>& text) {
  std::istringstream in(text.value_or(""));
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

bool has(const std::vector<std::string>& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

Result<void> write_file(const std::string& path, std::string_view text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file || ::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return fail(system_error(fmt::format("write {} to {}", text, path), errno));
  return {};
}

// "0::/system.slice/cenote.service"
std::string own_cgroup(const MachineFiles& files) {
  std::istringstream in(files.text("/proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("0::")) return line.substr(3);
  return {};
}

// "35 24 0:30 /ROOT /MOUNT rw,... - cgroup2 cgroup2 rw"
std::string folder_of(const MachineFiles& files, std::string cgroup) {
  std::istringstream in(files.text("/proc/self/mountinfo").value_or(""));
  for (std::string line; std::getline(in, line);) {
    const auto fields = words_of(line);
    const auto dash = std::ranges::find(fields, "-");
    if (fields.size() < 5 || dash == fields.end() || dash + 1 == fields.end() || dash[1] != "cgroup2")
      continue;
    if (fields[3] != "/") {
      if (!cgroup.starts_with(fields[3])) continue;
      cgroup.erase(0, fields[3].size());
    }
    return fields[4] + (cgroup == "/" ? "" : cgroup);
  }
  return {};
}

GroupRoom without(std::string why) {
  return {.folder = {}, .enable = false, .no_memory = why, .no_threads = why};
}

bool writable(const MachineFiles& files, const std::string& path) {
  return ::faccessat(AT_FDCWD, (files.root() + path).c_str(), W_OK, AT_EACCESS) == 0;
}

// Not the root of all, and somebody beside this process is in it: then its controllers cannot be handed down.
std::string crowded(const MachineFiles& files, const std::string& folder) {
  if (!files.exists(folder + "/cgroup.type")) return {};
  const auto processes = words_of(files.text(folder + "/cgroup.procs"));
  const auto others = processes.size() - (has(processes, std::to_string(::getpid())) ? 1 : 0);
  if (others == 0) return {};
  return fmt::format("{} other process{} in {}, so that it cannot hand its controllers down", others,
                     others == 1 ? " is" : "es are", folder);
}

// "cenote-PID-NUMBER": the PID; 0 = not one of ours.
pid_t maker_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return 0;
  name.remove_prefix(kPrefix.size());
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  return error == std::errc{} && end != name.data() + name.size() && *end == '-' ? pid : 0;
}

// What a group's processes hold may outlive them by moments.
bool remove_group(const std::string& folder) {
  for (int tries = 0; tries < 50; ++tries) {
    if (::rmdir(folder.c_str()) == 0 || errno == ENOENT) return true;
    if (errno != EBUSY) return false;
    ::usleep(10'000);
  }
  return false;
}

void remove_stale(const std::string& folder) {
  for (const auto& name : MachineFiles().names(folder)) {
    const auto maker = maker_of(name);
    if (maker == 0 || maker == ::getpid() || ::kill(maker, 0) == 0 || errno != ESRCH) continue;
    // Its workers die with it; one that is still dying is helped. What cannot be removed keeps its limits and
    // its name, and the next start tries again.
    static_cast<void>(write_file(folder + "/" + name + "/cgroup.kill", "1"));
    static_cast<void>(remove_group(folder + "/" + name));
  }
}

}  // namespace

GroupRoom find_group_room(const MachineFiles& files, const std::string& named) {
  const auto folder = named.empty() ? folder_of(files, own_cgroup(files)) : named;
  if (folder.empty()) return without("no cgroup v2 is mounted here");
  if (!files.exists(folder + "/cgroup.procs")) return without(folder + " is no cgroup v2 folder");
  const auto there = words_of(files.text(folder + "/cgroup.controllers"));
  GroupRoom room{.folder = folder};
  const auto lacking = [&](const char* controller) {
    return has(there, controller) ? std::string()
                                  : fmt::format("{} has no controller {} (it lists {})", folder, controller,
                                                there.empty() ? "none: version 1 may hold them"
                                                              : fmt::format("{}", fmt::join(there, ", ")));
  };
  room.no_memory = lacking("memory");
  room.no_threads = lacking("pids");
  if (!room.no_memory.empty() && !room.no_threads.empty()) return room;
  if (!writable(files, folder) || !writable(files, folder + "/cgroup.procs"))
    return without(fmt::format("{} cannot be written to: {}", folder, std::strerror(errno)));
  const auto down = words_of(files.text(folder + "/cgroup.subtree_control"));
  room.enable =
      (room.no_memory.empty() && !has(down, "memory")) || (room.no_threads.empty() && !has(down, "pids"));
  if (room.enable)
    if (auto why = crowded(files, folder); !why.empty()) return without(std::move(why));
  return room;
}

Result<void> prepare_groups(const GroupRoom& room) {
  remove_stale(room.folder);
  if (!room.enable) return {};
  const auto control = room.folder + "/cgroup.subtree_control";
  std::string words;
  if (room.no_memory.empty()) words = "+memory";
  if (room.no_threads.empty()) words += words.empty() ? "+pids" : " +pids";
  auto done = write_file(control, words);
  if (done || done.error().native != EBUSY) return done;
  const auto own = room.folder + "/agent";
  if (::mkdir(own.c_str(), 0755) != 0 && errno != EEXIST)
    return fail(system_error("make cgroup " + own, errno));
  CENOTE_TRY(write_file(own + "/cgroup.procs", "0"));
  return write_file(control, words);
}

Result<WorkerGroup> WorkerGroup::create(const std::string& folder, std::uint64_t number,
                                        const Limits& limits) {
  auto path = fmt::format("{}/{}{}-{}", folder, kPrefix, ::getpid(), number);
  if (::mkdir(path.c_str(), 0755) != 0) return fail(system_error("make cgroup " + path, errno));
  WorkerGroup group(std::move(path));
  if (limits.memory != 0) {
    CENOTE_TRY(write_file(group.folder_ + "/memory.max", std::to_string(limits.memory)));
    // Else a worker at its limit pushes the machine into its swap instead.
    if (const auto swap = group.folder_ + "/memory.swap.max"; ::access(swap.c_str(), F_OK) == 0)
      CENOTE_TRY(write_file(swap, "0"));
  }
  if (limits.threads != 0)
    CENOTE_TRY(write_file(group.folder_ + "/pids.max", std::to_string(limits.threads)));
  return group;
}

WorkerGroup::WorkerGroup(WorkerGroup&& other) noexcept : folder_(std::exchange(other.folder_, {})) {}

WorkerGroup& WorkerGroup::operator=(WorkerGroup&& other) noexcept {
  std::swap(folder_, other.folder_);
  return *this;
}

WorkerGroup::~WorkerGroup() {
  if (!folder_.empty()) static_cast<void>(remove_group(folder_));
}

}  // namespace cenote::pool::agent
