#include "perf/tools/session.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <utility>

#include "runtime/tcp_socket.h"

namespace cenote::perf {
namespace {

constexpr std::uint32_t magic = 0x46504e43;  // "CNPF"
constexpr std::uint16_t version = 2;
constexpr std::uint64_t most_memory = 8ULL << 30U;
constexpr auto connecting = std::chrono::seconds(20);

struct Hello {
  std::string tool;
  std::uint64_t memory = 0;
};

Bytes pack(const Hello& hello) {
  return Writer().put(magic).put(version).text(hello.tool).put(hello.memory).take();
}

Result<Hello> unpack_hello(std::span<const std::byte> bytes) {
  Reader in(bytes);
  const auto word = in.get<std::uint32_t>();
  const auto its_version = in.get<std::uint16_t>();
  if (in.bad() || word != magic)
    return fail(ErrorCode::protocol_error, greeting_stage, "it is no cenote perf");
  if (its_version != version)
    return fail(
        Error{ErrorCode::not_supported, greeting_stage,
              fmt::format("it speaks version {} of the protocol, this side version {}", its_version, version)}
            .fix("use the same version of cenote on both hosts"));
  Hello hello{in.text(), in.get<std::uint64_t>()};
  if (!in.finished() || hello.memory > most_memory)
    return fail(ErrorCode::protocol_error, greeting_stage, "its greeting makes no sense");
  return hello;
}

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

/// Processor time of this process, user and system.
double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

bool is_network(int fd) {
  int domain = 0;
  socklen_t size = sizeof domain;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain != AF_UNIX;
}

/// Both ends measured: in both directions at once.
Figures together(Figures mine, const Figures& theirs) {
  if (mine.bandwidth && theirs.bandwidth) {
    mine.bandwidth->add(*theirs.bandwidth);
  } else if (theirs.bandwidth) {
    mine.bandwidth = theirs.bandwidth;
  }
  if (!mine.latency) mine.latency = theirs.latency;
  return mine;
}

}  // namespace

Session::Session(const Setup& setup, UniqueFd socket, std::string peer, bool client, const CancelFlag* cancel,
                 Hooks hooks)
    : setup_(setup),
      client_(client),
      hooks_(std::move(hooks)),
      control_(std::move(socket), std::move(peer), setup.silence, cancel) {
  joined_.peer = control_.peer();
}

Session::~Session() { ends_.reset(); }

Result<std::unique_ptr<Session>> Session::open(const Setup& setup, UniqueFd socket, std::string peer,
                                               bool client, std::uint64_t memory, const CancelFlag* cancel,
                                               Hooks hooks) {
  auto session = std::unique_ptr<Session>(
      new Session(setup, std::move(socket), std::move(peer), client, cancel, std::move(hooks)));
  CENOTE_TRY(session->ended(session->greet(memory)));
  CENOTE_TRY(session->ended(session->join(memory)));
  CENOTE_TRY(session->ended(session->stand()));
  return session;
}

// An endpoint takes what is posted before it stands, and setting it up is not what is measured.
Result<void> Session::stand() {
  const Plan none;
  Run run(*ends_, none);
  if (!run.signal(slot_confirm) || !run.await(slot_confirm) || !run.drain()) return fail(run.error());
  return {};
}

Result<void> Session::greet(std::uint64_t& memory) {
  CENOTE_TRY(control_.tell(Topic::hello, pack({std::string(setup_.tool->name), memory})));
  auto said = control_.hear(Topic::hello);
  if (!said) {
    auto error = std::move(said).error();
    error.stage = greeting_stage;
    if (error.code == ErrorCode::deadline_exceeded)
      error.remedy =
          "it serves another client, of which there is one at a time, or hangs; --timeout says how long to "
          "wait";
    if (error.code == ErrorCode::protocol_error)
      error.remedy = "is it cenote perf that listens there? look at --port";
    return fail(std::move(error));
  }
  auto hello = unpack_hello(*said);
  if (!hello) return fail(std::move(hello).error().with(control_.peer()));
  if (hello->tool != setup_.tool->name)
    return fail(Error{ErrorCode::invalid_argument, greeting_stage,
                      fmt::format("it runs {}, this side {}", hello->tool, setup_.tool->name)}
                    .with(control_.peer())
                    .fix("start the same tool on both hosts"));
  if (!client_) memory = hello->memory;
  return {};
}

Result<void> Session::join(std::uint64_t memory) {
  auto options = setup_.fabric;
  if (!setup_.host_given) {
    // Where the other end was reached it is reached again. A socket pair is on this host: the loopback
    // address does.
    if (const auto here = local_address(control_.fd()); here && is_network(control_.fd()))
      options.tcp_host = here->host;
  }
  CENOTE_ASSIGN(source_, MemorySource::open(setup_.memory));
  CENOTE_ASSIGN(fabric_, transport::Fabric::create(options));
  CENOTE_TRY(control_.tell(Topic::address, fabric_->address()));
  CENOTE_ASSIGN(const Bytes address, control_.hear(Topic::address));
  CENOTE_ASSIGN(link_, fabric_->connect(address, control_.peer(), 0, Deadline::in(connecting)));
  joined_.transport = link_.endpoint->transport_name();
  joined_.reason = link_.reason;
  joined_.memory = source_->name();
  joined_.most_message = link_.transport->limits().max_message;
  CENOTE_ASSIGN(shared_, Buffer::create(*link_.transport, *source_, memory));
  CENOTE_ASSIGN(own_, Buffer::create(*link_.transport, *source_, memory));
  const auto& key = shared_->key();
  const auto bytes = std::span(key.bytes).first(key.size);
  CENOTE_TRY(control_.tell(Topic::memory, Writer().blob(bytes).text(source_->name()).take()));
  CENOTE_ASSIGN(const Bytes said, control_.hear(Topic::memory, progressing()));
  Reader in(said);
  const auto theirs = in.blob();
  joined_.peer_memory = in.text();
  transport::RemoteKey peer_key;
  if (!in.finished() || theirs.size() > peer_key.bytes.size())
    return fail(Error{ErrorCode::protocol_error, "learn the other end's memory", "that is no key"}.with(
        control_.peer()));
  std::copy(theirs.begin(), theirs.end(), peer_key.bytes.begin());
  peer_key.size = static_cast<std::uint8_t>(theirs.size());
  ends_.emplace(Ends{*link_.transport, *link_.endpoint, control_, *shared_, *own_, peer_key});
  ends_->before_check = hooks_.before_check;
  if (hooks_.memory && source_->is_host()) hooks_.memory(shared_->at(0, memory));
  return {};
}

std::function<void()> Session::progressing() {
  return [this] { link_.transport->progress(); };
}

Result<void> Session::check_plan(const Plan& plan) const {
  const Tool& tool = *setup_.tool;
  if (plan.poll_memory && (&tool != &write_lat || !source_->is_host()))
    return fail(Error{ErrorCode::not_supported, "measure",
                      "--poll-memory looks at bytes that a put left in host memory"}
                    .fix("leave it out: puts are then seen by their signals"));
  if (plan.poll_memory && client_ && joined_.transport == "verbs" && setup_.fabric.verbs.rails != 1)
    return fail(Error{ErrorCode::invalid_argument, "measure",
                      "over several rails the last byte of a put says nothing of the others"}
                    .fix("give --rails 1 with --poll-memory"));
  if (tool.verb != Verb::send) return {};
  const bool longer = plan.size > joined_.most_message;
  if (longer && tool.latency)
    return fail(Error{ErrorCode::invalid_argument, "measure",
                      fmt::format("a message over {} has at most {} bytes, --size says {}", joined_.transport,
                                  joined_.most_message, plan.size)}
                    .fix("for larger ones: write_lat"));
  if (!longer && !source_->is_host())
    return fail(
        Error{ErrorCode::not_supported, "measure", "messages are copied by the CPU, from host memory"}.fix(
            "use write_bw or write_lat with --memory " + setup_.memory));
  return {};
}

Result<Figures> Session::run(const Plan& plan) {
  const Tool& tool = *setup_.tool;
  CENOTE_TRY(check_plan(plan));
  Run run(*ends_, plan);
  run.placed = tool.verb == Verb::send && plan.size > joined_.most_message;
  if (hooks_.progress)
    ends_->progress = [&](std::uint64_t done, Clock::time_point now) { hooks_.progress(plan, done, now); };
  const bool measures = client_ || plan.bidirectional;
  samples_.bandwidth.reset();
  if (measures && !tool.latency) samples_.bandwidth.emplace(plan);
  if (!tool.prepare(run)) return fail(run.error());
  if (client_) {
    Writer out;
    encode(out, plan);
    CENOTE_TRY(control_.tell(Topic::plan, out.bytes()));
    CENOTE_TRY(control_.hear(Topic::ready, progressing()));
  } else {
    CENOTE_TRY(control_.tell(Topic::ready));
  }
  if (!client_ || plan.bidirectional) run.step = tool.part(run);
  const double busy = processor_seconds();
  const auto began = Clock::now();
  if (measures && !tool.measure(run, samples_)) return fail(run.error());
  const double took = std::chrono::duration<double>(Clock::now() - began).count();
  Figures figures;
  figures.cpu_percent = took > 0 ? (processor_seconds() - busy) / took * 100 : 0;
  if ((run.step && !run.serve()) || !run.drain()) return fail(run.error());
  if (samples_.bandwidth) figures.bandwidth = samples_.bandwidth->figures();
  if (measures && tool.latency) figures.latency = samples_.latency.figures(tool.halves());
  const bool nothing = (figures.bandwidth && figures.bandwidth->messages == 0) ||
                       (figures.latency && figures.latency->samples == 0);
  if (nothing)
    return fail(Error{ErrorCode::invalid_argument, "measure", "nothing was complete between the margins"}.fix(
        "give --duration more seconds, --margin fewer, or --tx-depth fewer operations"));
  return exchange(figures);
}

Result<Figures> Session::exchange(const Figures& mine) {
  Writer out;
  encode(out, mine);
  CENOTE_TRY(control_.tell(Topic::figures, out.bytes()));
  CENOTE_ASSIGN(const Bytes said, control_.hear(Topic::figures, progressing()));
  Reader in(said);
  auto theirs = decode_figures(in);
  if (!theirs) return fail(std::move(theirs).error().with(control_.peer()));
  return together(mine, *theirs);
}

Result<Figures> Session::measure(const Plan& plan) { return ended(run(plan)); }

Result<std::optional<std::pair<Plan, Figures>>> Session::serve() {
  using Served = std::optional<std::pair<Plan, Figures>>;
  return ended([&]() -> Result<Served> {
    CENOTE_ASSIGN(const auto said, control_.hear_any(progressing()));
    if (said.first == Topic::finish) return Served();
    Reader in(said.second);
    auto plan = decode_plan(in, shared_->size());
    if (said.first != Topic::plan || !plan)
      return fail(
          Error{ErrorCode::protocol_error, "hear the plan", "it said something else"}.with(control_.peer()));
    CENOTE_ASSIGN(const Figures figures, run(*plan));
    return Served(std::pair(*plan, figures));
  }());
}

Result<void> Session::finish() { return ended(control_.tell(Topic::finish)); }

/// A peer that gave up says why beside the connection, and its end of the connection breaks too: its word is
/// worth waiting for a moment.
Error Session::last_words(Error error) {
  if (error.code == ErrorCode::cancelled || control_.cancelled()) return error;
  if (auto reason = control_.why_gave_up(Deadline::in(std::chrono::milliseconds(300))))
    return std::move(*reason);
  return error;
}

template <class T>
Result<T> Session::ended(Result<T> result) {
  if (result) return result;
  auto error = std::move(result).error();
  if (error.code == ErrorCode::peer_failed) error = last_words(std::move(error));
  control_.give_up(error);
  return fail(std::move(error));
}

}  // namespace cenote::perf
