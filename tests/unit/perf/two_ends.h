// Both ends of a test in this process, a thread each, over a socket pair.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "perf/tools/session.h"

namespace cenote::perf::test {

inline std::pair<UniqueFd, UniqueFd> socket_pair() {
  int pair[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
  return {UniqueFd(pair[0]), UniqueFd(pair[1])};
}

inline Setup setup(const Tool& tool, const std::string& transport) {
  Setup setup;
  setup.tool = &tool;
  setup.fabric.transports = {transport};
  setup.silence = std::chrono::seconds(60);  // a noisy machine is no failure
  return setup;
}

struct Outcome {
  std::vector<Figures> client, server;
  std::optional<Error> client_error, server_error;
};

/// What the client's work comes to, at either end.
inline Outcome run_both(const Setup& client, const Setup& server, const Work& work, Hooks client_hooks = {},
                        Hooks server_hooks = {}) {
  Outcome out;
  auto [here, there] = socket_pair();
  std::thread other([&, fd = std::move(there)]() mutable {
    auto session =
        Session::open(server, std::move(fd), "the client", false, 0, nullptr, std::move(server_hooks));
    while (session) {
      auto served = (*session)->serve();
      if (!served) {
        out.server_error = std::move(served).error();
        return;
      }
      if (!*served) return;
      out.server.push_back((*served)->second);
    }
    out.server_error = std::move(session).error();
  });
  [&, fd = std::move(here)]() mutable {
    auto session = Session::open(client, std::move(fd), "the server", true,
                                 memory_of(*client.tool, work, false), nullptr, std::move(client_hooks));
    if (!session) {
      out.client_error = std::move(session).error();
      return;
    }
    for (const auto size : work.sizes) {
      auto figures = (*session)->measure(plan_of(*client.tool, work, size, false));
      if (!figures) {
        out.client_error = std::move(figures).error();
        return;
      }
      out.client.push_back(*figures);
    }
    if (auto finished = (*session)->finish(); !finished) out.client_error = std::move(finished).error();
  }();
  other.join();
  return out;
}

inline Outcome run_both(const Tool& tool, const std::string& transport, const Work& work, Hooks client = {},
                        Hooks server = {}) {
  return run_both(setup(tool, transport), setup(tool, transport), work, std::move(client), std::move(server));
}

}  // namespace cenote::perf::test
