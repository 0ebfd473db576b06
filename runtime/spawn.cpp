#include "runtime/spawn.h"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <csignal>

extern char** environ;

namespace cenote {
namespace {

// The two lists that posix_spawn wants, freed together.
struct Plan {
  posix_spawn_file_actions_t files{};
  posix_spawnattr_t attributes{};

  explicit Plan(const SpawnOptions& options) {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    move(options.output, STDOUT_FILENO);
    move(options.error, STDERR_FILENO);
    move(options.pass, spawn_passed_fd);
    if (options.own_group) posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addclosefrom_np(&files,
                                             options.pass >= 0 ? spawn_passed_fd + 1 : spawn_passed_fd);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    const int in_session = options.own_session ? POSIX_SPAWN_SETSID : POSIX_SPAWN_SETPGROUP;
    const int group = options.own_group ? in_session : 0;
    posix_spawnattr_setflags(&attributes,
                             static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | group));
  }
  ~Plan() {
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  void move(int from, int to) {
    if (from >= 0) posix_spawn_file_actions_adddup2(&files, from, to);
    if (from == spawn_null) posix_spawn_file_actions_addopen(&files, to, "/dev/null", O_WRONLY, 0);
  }
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  list.reserve(texts.size() + 1);
  for (auto& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

}  // namespace

Result<pid_t> spawn(const SpawnOptions& options) {
  auto words = options.words;
  const auto argv = pointers(words);
  auto variables = options.environment.value_or(std::vector<std::string>{});
  const auto named = pointers(variables);
  char* const* envp = options.environment ? named.data() : environ;
  const Plan plan(options);
  const auto start = options.in_path ? ::posix_spawnp : ::posix_spawn;
  pid_t pid = -1;
  const int error = start(&pid, options.program.c_str(), &plan.files, &plan.attributes, argv.data(), envp);
  if (error != 0) return fail(system_error("start " + options.program, error));
  return pid;
}

std::vector<std::string> own_environment() {
  std::vector<std::string> variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) variables.emplace_back(*entry);
  return variables;
}

}  // namespace cenote
