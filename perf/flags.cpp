#include "perf/flags.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <functional>

#include "pool/cli/checks.h"
#include "runtime/settings.h"

namespace cenote::perf {
namespace {

using pool::cli::is_setting;
using pool::cli::is_size;
using pool::cli::is_wait;

constexpr const char* both_ends = "For either end";
constexpr const char* client_says = "What is measured (the client says it for both)";
constexpr const char* shown = "What is shown";
constexpr const char* verbs = "For the verbs transport";

CLI::Validator is_memory() {
  return CLI::Validator(
      [](const std::string& text) -> std::string {
        const auto right = MemorySource::check(text);
        return right ? "" : right.error().cause + "; it takes " + right.error().remedy;
      },
      "KIND");
}

/// Flags that people type out of habit: what they ask for is so anyway, or does not change what is measured.
struct Habit {
  const char* names;
  bool takes_value;
  const char* why;
};
constexpr Habit habits[] = {
    {"-F,--CPU-freq", false, "the clock does not depend on the processor's frequency"},
    {"-Q,--cq-mod", true, "the transport moderates completions by itself"},
    {"-l,--post_list", true, "the transport posts lists by itself"},
    {"-I,--inline_size", true, "the transport sends inline what the device takes inline"},
    {"--perform_warm_up", false, "latencies have a warm-up of up to 100 rounds, and -D its margins"},
    {"--use_cuda_dmabuf", false, "the way to a card's memory is chosen by what card and kernel can"},
};

/// Flags that would measure something else than what runs here.
struct Refused {
  const char* names;
  bool takes_value;
  const char* why;
};
constexpr Refused refusals[] = {
    {"-R,--rdma_cm", false,
     "connections are made over TCP, not by the RDMA connection manager; leave it out"},
    {"-z,--comm_rdma_cm", false,
     "the two ends talk over TCP, not by the RDMA connection manager; leave it out"},
    {"--rate_limit", true, "a rate is limited by the device or by tc(8), not here"},
    {"--flow_label", true, "the transport chooses flow labels by itself; leave it out"},
    {"--use_cuda_bus_id", true, "cards are named by number here: --use_cuda N"},
};

std::string first_name(const char* names) {
  const std::string all(names);
  return all.substr(0, all.find(','));
}

/// An option whose value only `look` sees: it returns what is wrong with it, or nothing.
void add_seen(CLI::App& command, const char* names, Flags& flags,
              std::function<std::string(const std::string&)> look) {
  // Hidden options have no name of their own in errors.
  const auto seen = [look = std::move(look), name = first_name(names)](const std::string& value) {
    const auto wrong = look(value);
    return wrong.empty() ? wrong : name + ": " + wrong;
  };
  command.add_option(names, flags.foreign)->check(CLI::Validator(seen, ""))->group("");
}

void add_foreign(CLI::App& command, Flags& flags) {
  for (const Habit& habit : habits) {
    const auto note = [&flags, habit] {
      flags.without_effect.push_back(fmt::format("{} has no effect: {}", first_name(habit.names), habit.why));
    };
    if (habit.takes_value) {
      add_seen(command, habit.names, flags, [note](const std::string&) { return note(), std::string(); });
    } else {
      command.add_flag_callback(habit.names, note)->group("");
    }
  }
  for (const Refused& refused : refusals) {
    if (refused.takes_value) {
      add_seen(command, refused.names, flags, [refused](const std::string&) { return refused.why; });
    } else {
      const auto refuse = [refused] { throw CLI::ValidationError(first_name(refused.names), refused.why); };
      command.add_flag_callback(refused.names, refuse)->group("");
    }
  }
  add_seen(command, "-c,--connection", flags, [](const std::string& type) {
    return type == "RC" ? "" : "connections are reliable ones (RC), there is no " + type;
  });
  add_seen(command, "-q,--qp", flags, [](const std::string& count) {
    return count == "1" ? "" : "one connection is measured, over as many ports as --rails says";
  });
}

void add_work(CLI::App& command, const Tool& tool, Flags& flags) {
  if (tool.verb != Verb::atomic) {
    auto* size = command
                     .add_option("-s,--size", flags.size,
                                 fmt::format("bytes of a message, also as 64KiB [{}]", tool.size))
                     ->check(is_size())
                     ->group(client_says);
    command
        .add_flag("-a,--all", flags.all,
                  "all sizes: powers of two from 2 to 8 MiB (send_lat: as long as a message can be)")
        ->excludes(size)
        ->group(client_says);
  }
  auto* iterations =
      command
          .add_option("-n,--iters", flags.iterations, fmt::format("how many messages [{}]", tool.iterations))
          ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{1'000'000'000'000}))
          ->group(client_says);
  auto* duration =
      command.add_option("-D,--duration", flags.duration, "for so many seconds, not by messages")
          ->check(is_wait())
          ->excludes(iterations)
          ->group(client_says);
  command
      .add_option("-f,--margin", flags.margin,
                  "seconds at either end of --duration that do not count [2, or a fifth of a short one]")
      ->check(CLI::Range(0.0, 1e6))
      ->needs(duration)
      ->group(client_says);
  if (!tool.latency) {
    command.add_option("-t,--tx-depth", flags.depth, "operations in flight")
        ->capture_default_str()
        ->check(CLI::Range(1U, 65536U))
        ->group(client_says);
    command
        .add_flag("-b,--bidirectional", flags.bidirectional, "both directions at once; their sum is shown")
        ->group(client_says);
    command.add_flag("-N,--noPeak", flags.no_peak, "no peak: the clock is not read for each message")
        ->group(client_says);
  }
  command
      .add_flag("--validate,--data_validation", flags.validate,
                "check every byte (the checks are in the figures)")
      ->group(client_says);
  command
      .add_flag("--run_infinitely", flags.forever, "repeat the --duration, a line each time, until Ctrl-C")
      ->group(client_says);
}

void add_write_lat(CLI::App& command, Flags& flags) {
  command
      .add_flag("--poll-memory", flags.poll_memory,
                "see a put by its last byte in memory, as ib_write_lat does, not by a signal; with --rails 1")
      ->group(client_says);
}

void add_ends(CLI::App& command, Flags& flags) {
  command.add_option("host", flags.host, "where the server is; without it, this is the server")
      ->group(both_ends);
  command.add_flag("--local", flags.local, "start both ends on this host")->group(both_ends);
  command
      .add_option("-p,--port", flags.port,
                  "TCP port where the two ends meet (server: 0 takes a free one, which is shown)")
      ->capture_default_str()
      ->check(CLI::Range(0, 65535))
      ->group(both_ends);
  command.add_option("--bind", flags.bind, "address that the server listens on")
      ->capture_default_str()
      ->group(both_ends);
  command
      .add_option("--transport", flags.transport,
                  "transports that may be used, in order of preference (-t is the depth)")
      ->check(is_setting("transports"))
      ->group(both_ends);
  auto* memory = command
                     .add_option("--memory", flags.memory,
                                 "what is measured from and to: host, cuda[:N], emulated[:MODEL]")
                     ->capture_default_str()
                     ->check(is_memory())
                     ->group(both_ends);
  command.add_option("--use_cuda", flags.use_cuda, "the same as --memory cuda:N")
      ->check(CLI::Range(0, 1023))
      ->excludes(memory)
      ->group(both_ends);
  command.add_option("--timeout", flags.timeout, "seconds after which a silent peer counts as lost")
      ->capture_default_str()
      ->check(is_wait())
      ->group(both_ends);
  command.add_option("--control-fd", flags.control_fd)->group("");
}

void add_verbs(CLI::App& command, Flags& flags) {
  const auto setting = [&](const char* names, std::string& value, const char* name, const char* about) {
    command.add_option(names, value, about)
        ->check(is_setting(name).description(""))
        ->type_name("VALUE")
        ->group(verbs);
  };
  setting("-d,--ib-dev", flags.devices, "verbs.devices", "devices, as mlx5_0 or mlx5_0,mlx5_1:2");
  command.add_option("-i,--ib-port", flags.device_port, "port of each device of -d that names none")
      ->check(CLI::Range(1, 255))
      ->group(verbs);
  setting("--rails", flags.rails, "verbs.rails", "most ports that are used at once");
  setting("-x,--gid-index", flags.gid_index, "verbs.gid_index", "entry of the GID table");
  setting("-m,--mtu", flags.mtu, "verbs.mtu", "path MTU");
  setting("-S,--sl", flags.service_level, "verbs.service_level", "service level");
  setting("-T,--tos,--tclass", flags.traffic_class, "verbs.traffic_class", "traffic class: DSCP and ECN");
  setting("-u,--qp-timeout", flags.qp_timeout, "verbs.timeout", "acknowledgements: 4.096 us * 2^this");
  command.add_option("-r,--rx-depth", flags.receives, "buffers that wait for messages, of each port")
      ->check(CLI::Range(1U, 32768U))
      ->group(verbs);
}

void add_show(CLI::App& command, Flags& flags) {
  command.add_flag("--report_gbits", flags.gbits, "bandwidth in 10^9 bits a second, not in MiB")
      ->group(shown);
  command.add_flag("--cpu_util", flags.cpu, "how much of a processor this end took")->group(shown);
  command.add_flag("--json", flags.json, "JSON on standard output, in place of the table")->group(shown);
  command.add_flag("--out_json", flags.out_json, "the same into perftest_out.json, beside the table")
      ->group(shown);
  command.add_option("--out_json_file", flags.json_file, "the same into this file")->group(shown);
  command.add_option("--plot", flags.plot_file, "draw the curve of --all into this SVG file")->group(shown);
}

}  // namespace

void add_flags(CLI::App& command, const Tool& tool, Flags& flags) {
  add_ends(command, flags);
  add_work(command, tool, flags);
  if (&tool == &write_lat) add_write_lat(command, flags);
  add_show(command, flags);
  add_verbs(command, flags);
  add_foreign(command, flags);
}

Result<std::vector<std::string>> overrides_of(const Flags& flags) {
  std::vector<std::string> out;
  const auto set = [&](const char* name, const std::string& value) {
    if (!value.empty()) out.push_back(std::string(name) + "=" + value);
  };
  if (flags.device_port != 0 && flags.devices.empty())
    return fail(
        Error{ErrorCode::invalid_argument, "read command line", "-i: it is the port of -d, and there is none"}
            .fix("name the device too, as in -d mlx5_0 -i 2"));
  std::string devices = flags.devices;
  if (flags.device_port != 0) {
    devices.clear();
    for (std::size_t at = 0; at <= flags.devices.size();) {
      const auto comma = std::min(flags.devices.find(',', at), flags.devices.size());
      auto device = flags.devices.substr(at, comma - at);
      if (device.find(':') == std::string::npos) device += ":" + std::to_string(flags.device_port);
      devices += (devices.empty() ? "" : ",") + device;
      at = comma + 1;
    }
  }
  set("transports", flags.transport);
  set("verbs.devices", devices);
  set("verbs.rails", flags.rails);
  set("verbs.gid_index", flags.gid_index);
  set("verbs.mtu", flags.mtu);
  set("verbs.service_level", flags.service_level);
  set("verbs.traffic_class", flags.traffic_class);
  set("verbs.timeout", flags.qp_timeout);
  return out;
}

Result<Work> work_of(const Tool& tool, const Flags& flags) {
  Work work;
  work.sizes = {tool.size};
  if (!flags.size.empty()) {
    CENOTE_ASSIGN(work.sizes.front(), parse_size(flags.size));
  }
  if (flags.all) work.sizes = all_sizes(8ULL << 20U);
  work.iterations = flags.iterations != 0 ? flags.iterations : tool.iterations;
  const auto seconds = [](double s) { return Clock::duration(std::llround(s * 1e9)); };
  work.duration = seconds(flags.duration);
  work.margin = seconds(flags.margin >= 0 ? flags.margin : std::min(2.0, flags.duration / 5));
  work.depth = flags.depth;
  work.bidirectional = flags.bidirectional;
  work.validate = flags.validate;
  work.peak = !flags.no_peak;
  work.poll_memory = flags.poll_memory;
  work.forever = flags.forever;
  return work;
}

Show show_of(const Flags& flags) {
  Show show;
  show.gbits = flags.gbits;
  show.cpu = flags.cpu;
  show.json = show.quiet = flags.json;
  show.json_file = !flags.json_file.empty() ? flags.json_file : flags.out_json ? "perftest_out.json" : "";
  show.plot_file = flags.plot_file;
  return show;
}

}  // namespace cenote::perf
