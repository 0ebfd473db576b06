#include "perf/tools/ends.h"

#include <poll.h>
#include <unistd.h>

#include <utility>

#include "perf/tools/plot.h"
#include "perf/tools/progress_line.h"

namespace cenote::perf {
namespace {

constexpr int look_ms = 50;  // how often a wait looks at the cancel flag

Hooks hooks_for(ProgressLine& progress) {
  Hooks hooks;
  hooks.progress = [&](const Plan& plan, std::uint64_t done, Clock::time_point now) {
    progress.show(plan, done, now);
  };
  return hooks;
}

/// One that a test for ever ends with: it was asked to.
bool asked_to_end(const Request& request, const Error& error) {
  return request.work.forever && error.code == ErrorCode::cancelled;
}

Result<void> write_files(const Request& request, const Joined& joined, const std::vector<Measurement>& all,
                         const Print& print) {
  const Tool& tool = *request.setup.tool;
  if (request.show.json || !request.show.json_file.empty()) {
    const auto text = json_text(tool, request.show, joined, all);
    if (request.show.json) CENOTE_TRY(print(text));
    if (!request.show.json_file.empty()) CENOTE_TRY(write_file(request.show.json_file, text));
  }
  if (!request.show.plot_file.empty())
    CENOTE_TRY(write_file(request.show.plot_file, plot(tool, request.show, joined, all)));
  return {};
}

Result<void> measure_all(const Request& request, Session& session, ProgressLine& progress, const Print& print,
                         std::vector<Measurement>& all) {
  const Tool& tool = *request.setup.tool;
  const bool ways = many_ways(request.setup.fabric) && session.joined().transport == "verbs";
  do {
    for (const std::uint64_t size : request.work.sizes) {
      const Plan plan = plan_of(tool, request.work, size, ways);
      if (all.empty() && !request.show.quiet)
        CENOTE_TRY(print(heading(tool, request.show, plan, session.joined())));
      progress.begin();
      auto figures = session.measure(plan);
      progress.end();
      if (!figures) return fail(std::move(figures).error());
      const Measurement measured{plan, *figures};
      if (!request.show.quiet) CENOTE_TRY(print(line(tool, request.show, measured)));
      if (request.work.forever) all.clear();
      all.push_back(measured);
    }
  } while (request.work.forever);
  return {};
}

}  // namespace

Result<void> run_client(const Request& request, UniqueFd socket, std::string peer, const CancelFlag& cancel,
                        const Print& print) {
  const Tool& tool = *request.setup.tool;
  ProgressLine progress(STDERR_FILENO);
  const auto memory = memory_of(tool, request.work, many_ways(request.setup.fabric));
  CENOTE_ASSIGN(auto session, Session::open(request.setup, std::move(socket), std::move(peer), true, memory,
                                            &cancel, hooks_for(progress)));
  Request fitted = request;
  if (&tool == &send_lat && fitted.work.sizes.size() > 1) {
    const auto most = session->joined().most_message;
    std::erase_if(fitted.work.sizes, [&](std::uint64_t size) { return size > most; });
  }
  std::vector<Measurement> all;
  auto measured = measure_all(fitted, *session, progress, print, all);
  if (!measured && !asked_to_end(request, measured.error())) return measured;
  if (measured) CENOTE_TRY(session->finish());
  if (!request.show.quiet) CENOTE_TRY(print(footing()));
  return write_files(request, session->joined(), all, print);
}

Result<void> run_server(const Request& request, UniqueFd socket, std::string peer, const CancelFlag& cancel,
                        const Print& print) {
  const Tool& tool = *request.setup.tool;
  ProgressLine progress(STDERR_FILENO);
  CENOTE_ASSIGN(auto session, Session::open(request.setup, std::move(socket), std::move(peer), false, 0,
                                            &cancel, hooks_for(progress)));
  std::vector<Measurement> all;
  while (true) {
    progress.begin();
    auto served = session->serve();
    progress.end();
    if (!served) return fail(std::move(served).error());
    if (!*served) break;
    const Measurement measured{(*served)->first, (*served)->second};
    if (!request.show.quiet) {
      if (all.empty()) CENOTE_TRY(print(heading(tool, request.show, measured.plan, session->joined())));
      CENOTE_TRY(print(line(tool, request.show, measured)));
    }
    all.push_back(measured);
  }
  if (!request.show.quiet) CENOTE_TRY(print(footing()));
  return write_files(request, session->joined(), all, print);
}

Result<UniqueFd> call(const SocketAddress& server, Deadline deadline, const CancelFlag& cancel) {
  while (true) {
    auto socket = start_connecting(server);
    Result<void> outcome;
    if (!socket) {
      outcome = fail(std::move(socket).error());
    } else {
      pollfd fd{socket->get(), POLLOUT, 0};
      int ready = 0;
      while (ready == 0 && !deadline.passed() && !cancel.raised())
        ready = ::poll(&fd, 1, deadline.poll_ms(look_ms));
      outcome = ready > 0 ? connect_outcome(socket->get(), server)
                          : fail(ErrorCode::deadline_exceeded, "connect to " + server.text(), "no answer");
      if (outcome) return std::move(*socket);
    }
    if (cancel.raised()) return fail(ErrorCode::cancelled, "connect to " + server.text(), "interrupted");
    if (deadline.passed()) {
      auto error = std::move(outcome).error();
      return fail(std::move(error)
                      .with(server.text())
                      .fix("start the same command without a host there first, and look at --port and at "
                           "what filters it"));
    }
    ::poll(nullptr, 0, deadline.poll_ms(look_ms));
  }
}

Result<Listener> Listener::open(const SocketAddress& address) {
  CENOTE_ASSIGN(auto socket, listen_on(address, 4));
  CENOTE_ASSIGN(auto here, local_address(socket.get()));
  return Listener(std::move(socket), std::move(here));
}

Result<UniqueFd> Listener::accept(std::string& peer, const CancelFlag& cancel) const {
  while (!cancel.raised()) {
    pollfd fd{socket_.get(), POLLIN, 0};
    if (::poll(&fd, 1, look_ms) <= 0) continue;
    CENOTE_ASSIGN(auto socket, accept_from(socket_.get()));
    if (!socket) continue;
    if (const auto from = peer_address(socket.get())) peer = from->text();
    return socket;
  }
  return fail(ErrorCode::cancelled, "wait for a client on " + address_.text(), "interrupted");
}

}  // namespace cenote::perf
