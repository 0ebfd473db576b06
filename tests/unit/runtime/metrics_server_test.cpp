// The metrics over HTTP: what Prometheus gets, and what those get who mean no good.
#include "runtime/metrics_server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "runtime/deadline.h"
#include "runtime/tcp_socket.h"

namespace cenote {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

UniqueFd connect_to(const std::string& address) {
  auto socket = start_connecting(*SocketAddress::parse(address));
  EXPECT_TRUE(socket.has_value());
  pollfd writable{socket->get(), POLLOUT, 0};
  EXPECT_EQ(::poll(&writable, 1, 10'000), 1);
  return std::move(*socket);
}

void say(const UniqueFd& socket, const std::string& text) {
  (void)::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

/// All that comes until the other side closes; "(nothing)" when it does not within ten seconds.
std::string answer(const UniqueFd& socket) {
  std::string text;
  const auto deadline = Deadline::in(std::chrono::seconds(10));
  while (!deadline.passed()) {
    pollfd readable{socket.get(), POLLIN, 0};
    if (::poll(&readable, 1, deadline.poll_ms()) <= 0) break;
    char bytes[4096];
    const auto got = ::recv(socket.get(), bytes, sizeof bytes, 0);
    if (got <= 0) return text;
    text.append(bytes, static_cast<std::size_t>(got));
  }
  return "(nothing)";
}

std::string ask(const std::string& address, const std::string& request) {
  const auto socket = connect_to(address);
  say(socket, request);
  return answer(socket);
}

struct Served {
  std::atomic<int> made{0};
  std::unique_ptr<MetricsServer> server;
  explicit Served(std::string text = "a_total 1\n") {
    auto started = MetricsServer::start("127.0.0.1:0", [this, text = std::move(text)] {
      ++made;
      return text;
    });
    EXPECT_TRUE(started.has_value()) << started.error().message();
    if (started) server = std::move(*started);
  }
};

TEST(MetricsServer, AnswersAsPrometheusAsks) {
  const Served served;
  const auto text =
      ask(served.server->address(), "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\n\r\n");
  EXPECT_THAT(text, AllOf(StartsWith("HTTP/1.1 200 OK\r\n"),
                          HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
                          HasSubstr("Content-Length: 10\r\n"), EndsWith("\r\n\r\na_total 1\n")));
  EXPECT_THAT(ask(served.server->address(), "HEAD /metrics HTTP/1.1\r\n\r\n"), EndsWith("\r\n\r\n"));
}

TEST(MetricsServer, RefusesEverythingElseInWords) {
  const Served served;
  const auto& address = served.server->address();
  EXPECT_THAT(ask(address, "GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(ask(address, "POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405 "));
  EXPECT_THAT(ask(address, "\x16\x03\x01\n\n"), StartsWith("HTTP/1.1 400 "));
  EXPECT_THAT(ask(address, "GET /metrics HTTP/1.1\r\nX: " + std::string(8192 - 26, 'a')),
              StartsWith("HTTP/1.1 431 "));
  EXPECT_EQ(served.made, 0);
}

TEST(MetricsServer, AnAnswerLongerThanASocketHoldsArrivesWhole) {
  const Served served(std::string(20'000'000, 'x'));
  const auto text = ask(served.server->address(), "GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_EQ(text.size() - text.find("\r\n\r\n") - 4, 20'000'000U);
}

TEST(MetricsServer, MakesItsTextSeldomHoweverOftenItIsAsked) {
  const Served served;
  const auto started = Clock::now();
  for (int i = 0; i < 50; ++i)
    EXPECT_THAT(ask(served.server->address(), "GET /metrics HTTP/1.1\r\n\r\n"), HasSubstr("200 OK"));
  const auto quarters = (Clock::now() - started) / std::chrono::milliseconds(250);
  EXPECT_LE(served.made, quarters + 1);
}

// Forty that say nothing, or a byte at a time: the server holds sixteen of them for five seconds, and then
// somebody else's turn comes. It ends at once, whoever is connected.
TEST(MetricsServer, WhoIsSlowIsSentAwayAndTheNextIsServed) {
  auto served = std::make_unique<Served>();
  std::vector<UniqueFd> slow;
  for (int i = 0; i < 14; ++i) slow.push_back(connect_to(served->server->address()));
  for (const auto& socket : slow) say(socket, "GET /met");
  EXPECT_THAT(ask(served->server->address(), "GET /metrics HTTP/1.1\r\n\r\n"), HasSubstr("200 OK"));
  for (int i = 0; i < 2; ++i) slow.push_back(connect_to(served->server->address()));
  const auto started = Clock::now();
  const auto late = connect_to(served->server->address());
  say(late, "GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THAT(answer(late), HasSubstr("200 OK"));
  EXPECT_GT(Clock::now() - started, std::chrono::seconds(2));
  EXPECT_EQ(answer(slow.front()), "");
  const auto held = connect_to(served->server->address());
  const auto ending = Clock::now();
  served.reset();
  EXPECT_LT(Clock::now() - ending, std::chrono::seconds(2));
}

TEST(MetricsServer, SaysThatItsPortIsTaken) {
  const Served served;
  const auto second = MetricsServer::start(served.server->address(), [] { return std::string(); });
  ASSERT_FALSE(second.has_value());
  EXPECT_EQ(second.error().code, ErrorCode::already_exists);
  EXPECT_THAT(second.error().message(), HasSubstr(served.server->address()));
  EXPECT_EQ(MetricsServer::start("nonsense", [] { return std::string(); }).error().code,
            ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace cenote
