// The settings of Cenote: one line each, and the only list of them. A program, its file, its environment and
// its command line all read this table.
//
// To add a setting, add one line:
//
//   {"room.name", SettingType::duration, "30s", "1ms..1h", "", "one sentence, lower case, that says what it
//   does"},
//
//   name     dotted, lower case; CENOTE_ROOM_NAME in the environment, [room] name = ... in the file,
//            --set room.name=... on the command line
//   type     boolean          true or false
//            integer          signed, with an optional unit for people ("hops")
//            unsigned_integer the same, not negative
//            duration         a number with ns, us, ms, s, m, h or d
//            size             bytes, plain or with KiB, MiB, GiB, TiB (powers of 1024)
//            text             any characters
//            list             comma-separated words; an array in the file
//            choice           one of the words in `allowed`
//   default  in the same form as a user would write it
//   allowed  "low..high" for numbers, durations and sizes ("" = whatever the type holds), "a|b|c" for a
//   choice and
//            for the words of a list ("" = any)
//   unit     of an integer, for people; durations and sizes carry theirs
//   help     shown by `cenote config`
//
// Read it with the getter of its type, settings.duration("room.name"): a misspelt name or the wrong getter
// does not compile.
#pragma once

#include <cstdint>
#include <string_view>

namespace cenote {

enum class SettingType : std::uint8_t {
  boolean,
  integer,
  unsigned_integer,
  duration,
  size,
  text,
  list,
  choice
};

struct SettingDescription {
  std::string_view name;
  SettingType type;
  std::string_view default_text;
  std::string_view allowed;
  std::string_view unit;
  std::string_view help;
};

// clang-format off
inline constexpr SettingDescription settings_table[] = {
    // every program
    {"config.file", SettingType::text, "", "", "", "settings file (TOML) to read; empty = none; not settable inside the file"},
    {"log.level", SettingType::choice, "info", "error|warn|info|debug|trace", "", "least important kind of message to log"},
    {"log.format", SettingType::choice, "text", "text|json", "", "log lines for people, or one JSON object a line"},
    {"log.file", SettingType::text, "", "", "", "file that log lines are appended to; empty = standard error"},
    // programs that a launcher starts
    {"launcher", SettingType::choice, "auto", "auto|pmix|slurm|torchrun|none", "", "who says which rank of how many a program is; auto = whoever started it; none = it is alone, a group of one"},
    {"launcher_port", SettingType::unsigned_integer, "0", "0..65535", "", "port that rank 0 meets the others at under Slurm and torchrun; 0 = the first free one of 16 that follow from the job"},
    // transports
    {"transports", SettingType::list, "shm,verbs,tcp", "shm|verbs|tcp|ucx", "", "transports that may be used, in order of preference; one that this machine cannot have is left out"},
    {"tcp.host", SettingType::text, "127.0.0.1", "", "", "address that the TCP transport listens on and publishes, and where verbs meet their peers"},
    {"verbs.devices", SettingType::list, "", "", "", "RDMA devices to use (mlx5_0, or mlx5_0:1 for one port); empty = every active port"},
    {"verbs.rails", SettingType::unsigned_integer, "8", "1..8", "", "most ports that one peer is reached over"},
    {"verbs.mtu", SettingType::unsigned_integer, "0", "0..4096", "bytes", "path MTU of queue pairs; 0 = the lesser of the two ports' active ones"},
    {"verbs.gid_index", SettingType::integer, "-1", "-1..255", "", "entry of the GID table to use; -1 = the likeliest pair that a real write proves"},
    {"verbs.pkey_index", SettingType::unsigned_integer, "0", "0..65535", "", "entry of the partition key table"},
    {"verbs.near", SettingType::text, "", "", "", "where the data is that ports should be near: a GPU's PCI bus id, or numa:1; empty = a worker's own GPUs, or the NUMA node that this process is bound to, if any"},
    {"verbs.path_bits", SettingType::integer, "-1", "-1..127", "", "path of an InfiniBand port with LMC above 0 that connections leave by; -1 = each in turn"},
    {"verbs.service_level", SettingType::unsigned_integer, "0", "0..15", "", "InfiniBand service level"},
    {"verbs.traffic_class", SettingType::unsigned_integer, "0", "0..255", "", "RoCE traffic class: DSCP and ECN bits"},
    {"verbs.timeout", SettingType::unsigned_integer, "14", "1..31", "", "how long a card waits for an acknowledgement: 4.096 us * 2^this; 14 = 67 ms"},
    {"verbs.retries", SettingType::unsigned_integer, "6", "0..7", "", "how often a card repeats what was not acknowledged, before the rail counts as dead (Soft-RoCE takes 7 as for ever)"},
    {"verbs.connections", SettingType::unsigned_integer, "1024", "0..65536", "", "connections of a transport that keep their queue pairs; with more, the one unused for longest goes without until it is used; 0 = all keep them"},
    {"verbs.relaxed_ordering", SettingType::boolean, "true", "", "", "let cards write into regions in any order, where they and the processor know how"},
    {"verbs.gpu_memory", SettingType::list, "dmabuf,peermem,staged", "dmabuf|peermem|staged", "", "ways that a card may take to GPU memory, in order of preference; one that GPU, kernel or card refuse is left out, with its reason in the log"},
    {"ucx.tls", SettingType::text, "all", "", "", "transports of UCX that ucx may use, as in its UCX_TLS: all, or tcp, or rc,self"},
    {"wait.spin", SettingType::duration, "20us", "0us..1s", "", "how long a waiter polls before it sleeps in the kernel"},
    // collectives
    {"collective.timeout", SettingType::duration, "30s", "1ms..1d", "", "how long a collective of the agent's workers may take before it ends with an error"},
    {"collective.algorithm", SettingType::choice, "auto", "auto|ring|recursive_doubling", "", "algorithm of allreduce among workers, the same at all agents; auto = the cheapest by the planner's model"},
    // broker
    {"broker.listen", SettingType::text, "127.0.0.1:4700", "", "", "address that the broker listens on"},
    {"broker.address", SettingType::text, "127.0.0.1:4700", "", "", "broker that agents and clients connect to"},
    {"broker.state_dir", SettingType::text, "", "", "", "folder of the broker's log and database"},
    {"broker.lease_ttl", SettingType::duration, "60s", "100ms..30d", "", "how long a lease lasts when the client asks for no length"},
    {"broker.max_ttl", SettingType::duration, "7d", "100ms..365d", "", "longest lease the broker grants or renews"},
    {"broker.heartbeat", SettingType::duration, "200ms", "10ms..1m", "", "how often an agent reports to the broker"},
    {"broker.agent_timeout", SettingType::duration, "1500ms", "20ms..10m", "", "silence after which nothing more is placed on an agent"},
    {"broker.agent_dead", SettingType::duration, "15s", "20ms..1d", "", "silence after which the leases that touch an agent end"},
    {"broker.grace", SettingType::duration, "10m", "0s..1d", "", "how long agents keep leases alive while the broker is unreachable"},
    {"broker.clock_drift", SettingType::duration, "2s", "0s..10m", "", "largest difference of clocks between machines that leases allow for"},
    {"broker.metrics", SettingType::text, "", "", "", "host:port where the broker answers Prometheus (plain HTTP, whoever asks); empty = nowhere"},
    // agent
    {"agent.listen", SettingType::text, "127.0.0.1:0", "", "", "address that the agent listens on; port 0 = any free one"},
    {"agent.advertise", SettingType::text, "", "", "", "address that the agent tells clients; empty = the one it listens on"},
    {"agent.name", SettingType::text, "", "", "", "name of the agent in leases and tables; empty = the host's name"},
    {"agent.devices", SettingType::list, "cuda", "", "", "devices to serve: cuda, or emulated:MODEL:SIZE for each emulated one"},
    {"agent.cage.users", SettingType::text, "1900000000-1900065535", "", "", "user ids for workers, FIRST-LAST, where the agent is root: each worker has its own; nobody else may use them; empty = none"},
    {"agent.cage.filter", SettingType::boolean, "true", "", "", "refuse workers the system calls that they do not need"},
    {"agent.cage.cgroup", SettingType::text, "", "", "", "cgroup v2 folder in which the agent makes one for each worker; empty = the agent's own, where it was delegated"},
    {"agent.cage.memory", SettingType::size, "0", "", "", "most memory of a worker, beside what its emulated cards have, where there is such a cgroup; 0 = 4 GiB for each of its GPUs"},
    {"agent.cage.threads", SettingType::unsigned_integer, "4096", "16..4194304", "", "most threads of a worker, where it has such a cgroup or a user of its own"},
    {"agent.cage.require", SettingType::list, "", "user|system-calls|memory|threads|core-dumps|credentials", "", "parts of the cage without which the agent does not start"},
    {"agent.metrics", SettingType::text, "", "", "", "host:port where the agent answers Prometheus (plain HTTP, whoever asks); empty = nowhere"},
    // pool
    {"client.name", SettingType::text, "", "", "", "client whose certificate in tls.dir is used; empty = the only one there"},
    {"client.lease_file", SettingType::text, "", "", "", "lease that this program uses, from `cenote lease --detach`; `cenote lease -- CMD` sets it for CMD"},
    {"tls.dir", SettingType::text, "", "", "", "folder with ca.pem, and cert.pem and key.pem of this program"},
    {"session.socket", SettingType::text, "", "", "", "socket of the lease that this program runs under; `cenote lease -- PROGRAM` sets it"},
    {"worker.timeout", SettingType::duration, "10s", "200ms..1h", "", "silence after which a worker that was asked for a sign of life counts as lost; its agent kills it after twice that"},
    {"session.helper", SettingType::text, "", "", "", "cenote program that libcenote-pool starts; empty = the one installed with the library"},
    {"session.timeout", SettingType::duration, "10s", "100ms..10m", "", "how long a program may take to reach its leased GPUs"},
    // emulated GPU
    {"emulator.seed", SettingType::unsigned_integer, "0", "", "", "seed of the emulated driver's refusals and delays"},
    {"emulator.adversarial", SettingType::boolean, "false", "", "", "emulated streams lag and grants are refused as the seed says"},
};
// clang-format on

/// What launchers tell the programs that they start: variables of theirs, and the only ones that are read
/// besides CENOTE_*. Nobody reads them but for a group that is made from its launcher.
struct LauncherVariable {
  std::string_view launcher;
  std::string_view name;
  std::string_view meaning;
};

inline constexpr LauncherVariable launcher_variables[] = {
    {"pmix", "PMIX_NAMESPACE", "name of the job"},
    {"pmix", "PMIX_RANK", "this process's rank"},
    {"slurm", "SLURM_CLUSTER_NAME", "name of the cluster"},
    {"slurm", "SLURM_JOB_ID", "number of the job"},
    {"slurm", "SLURM_RESTART_COUNT", "how often the job was started anew"},
    {"slurm", "SLURM_HET_SIZE", "jobs of a heterogeneous one"},
    {"slurm", "SLURM_STEP_ID", "number of the step; absent in a batch script, which no srun started"},
    {"slurm", "SLURM_STEP_NUM_TASKS", "tasks of the step: the ranks"},
    {"slurm", "SLURM_STEP_NUM_NODES", "nodes of the step"},
    {"slurm", "SLURM_STEP_NODELIST", "their names: gpu[1-3,7]"},
    {"slurm", "SLURM_STEP_TASKS_PER_NODE", "tasks of each: 2(x3),1"},
    {"slurm", "SLURM_DISTRIBUTION", "how ranks were dealt to nodes"},
    {"slurm", "SLURM_PROCID", "this task's rank"},
    {"slurm", "SLURM_LOCALID", "its rank on its node"},
    {"slurm", "SLURM_NODEID", "its node's place in the list"},
    {"torchrun", "RANK", "this process's rank"},
    {"torchrun", "WORLD_SIZE", "the ranks"},
    {"torchrun", "LOCAL_RANK", "its rank on its machine"},
    {"torchrun", "LOCAL_WORLD_SIZE", "the ranks of its machine"},
    {"torchrun", "MASTER_ADDR", "name or address of rank 0's machine"},
    {"torchrun", "MASTER_PORT", "port of PyTorch's own store; it tells jobs apart, and is not used"},
    {"torchrun", "TORCHELASTIC_RUN_ID", "name of the job"},
    {"torchrun", "TORCHELASTIC_RESTART_COUNT", "how often its ranks were started anew"},
};

}  // namespace cenote
