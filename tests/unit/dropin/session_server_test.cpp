// The socket through which drop-ins reach a lease: whatever its clients do, the others are served, and it
// ends at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>
#include <thread>
#include <vector>

#include "pool/dropin/session.h"
#include "pool/dropin/session_wire.h"

namespace cenote::pool::dropin {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Workers = std::vector<remote::WorkerAddress>;

Deadline patience() { return Deadline::in(seconds(60)); }

class Session : public ::testing::Test {
 protected:
  void SetUp() override { start(); }
  void start() {
    auto made = SessionServer::start(
        name, [this](std::span<const std::byte> address, const CancelFlag& ended) -> Result<Workers> {
          ++opening;
          while (held && !ended.raised()) std::this_thread::sleep_for(milliseconds(5));
          if (held) return fail(ErrorCode::cancelled, "open", "the server ends");
          if (address.empty()) return fail(ErrorCode::permission_denied, "open the lease", "it has expired");
          return Workers{{Bytes(address.begin(), address.end()), 7, "a (a:1)", {"gpu 0"}}};
        });
    ASSERT_TRUE(made) << made.error().message();
    server = std::move(*made);
  }
  [[nodiscard]] UniqueFd connect() const {
    const auto address = socket_address(name);
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), address->get(), address->size) != 0) return {};
    return socket;
  }
  [[nodiscard]] Result<Workers> ask(std::span<const std::byte> address) const {
    const auto socket = connect();
    if (!socket) return fail(ErrorCode::not_found, "ask", "nobody listens");
    CENOTE_TRY(send_frame(socket.get(), address, patience()));
    CENOTE_ASSIGN(const auto reply, receive_frame(socket.get(), patience()));
    return decode_reply(reply);
  }
  void expect_served() const {
    const auto workers = ask(Bytes{std::byte{1}});
    ASSERT_TRUE(workers) << workers.error().message();
    EXPECT_EQ(workers->at(0).fabric_address, Bytes{std::byte{1}});
  }

  const std::string name = "@cenote-session-test-" + std::to_string(::getpid());
  std::atomic<bool> held{false};
  std::atomic<int> opening{0};
  std::unique_ptr<SessionServer> server;
};

TEST_F(Session, AnswersEachOfManyClientsAtOnceWithItsOwnWorkers) {
  std::vector<std::thread> clients;
  for (int t = 0; t < 8; ++t) {
    clients.emplace_back([this, t] {
      for (int round = 0; round < 10; ++round) {
        const Bytes mine{static_cast<std::byte>(t), static_cast<std::byte>(round)};
        const auto workers = ask(mine);
        ASSERT_TRUE(workers) << workers.error().message();
        EXPECT_EQ(workers->at(0).fabric_address, mine);
      }
    });
  }
  for (auto& client : clients) client.join();
}

TEST_F(Session, TellsAClientWhyItsLeaseCannotBeOpened) {
  const auto workers = ask({});
  ASSERT_FALSE(workers);
  EXPECT_EQ(workers.error().code, ErrorCode::permission_denied);
  EXPECT_EQ(workers.error().cause, "it has expired");
}

TEST_F(Session, ClientsThatVanishAnywhereInAFrameDoNotHoldUpTheNext) {
  Writer out;
  out.blob(Bytes(100));
  const auto frame = out.take();
  for (const std::size_t sent :
       {std::size_t{0}, std::size_t{2}, std::size_t{4}, std::size_t{50}, frame.size()}) {
    const auto client = connect();
    ASSERT_TRUE(client);
    ASSERT_EQ(::send(client.get(), frame.data(), sent, 0), static_cast<ssize_t>(sent));
  }
  expect_served();
}

TEST_F(Session, AClientThatLiesAboutALengthIsDropped) {
  const auto liar = connect();
  const std::uint32_t length = 0xffffffff;
  ASSERT_EQ(::send(liar.get(), &length, sizeof length, 0), static_cast<ssize_t>(sizeof length));
  const auto reply = receive_frame(liar.get(), patience());
  ASSERT_FALSE(reply);
  EXPECT_NE(reply.error().code, ErrorCode::deadline_exceeded) << "the connection is closed";
  expect_served();
}

TEST_F(Session, AClientThatSaysNothingIsDropped) {
  const auto silent = connect();
  expect_served();
  EXPECT_FALSE(receive_frame(silent.get(), patience()));
}

TEST_F(Session, EndsAtOnceThoughAClientSaysNothing) {
  auto shortest = Clock::duration::max();
  for (int round = 0; round < 5; ++round) {
    if (round > 0) start();
    const auto silent = connect();
    ASSERT_TRUE(silent);
    const std::uint32_t length = 100;  // its server waits for the rest
    ASSERT_EQ(::send(silent.get(), &length, sizeof length, 0), static_cast<ssize_t>(sizeof length));
    std::this_thread::sleep_for(milliseconds(20));
    const auto begun = Clock::now();
    server.reset();
    shortest = std::min(shortest, Clock::now() - begun);
  }
  EXPECT_LT(shortest, milliseconds(500)) << "a second is what such a client gets while the server lives";
}

TEST_F(Session, EndsThoughAnAgentThatItOpensAtHangs) {
  held = true;
  std::thread client([this] { EXPECT_FALSE(ask(Bytes{std::byte{1}})); });
  while (opening == 0) std::this_thread::yield();
  auto ending = std::async(std::launch::async, [this] { server.reset(); });
  EXPECT_EQ(ending.wait_for(seconds(30)), std::future_status::ready);
  held = false;
  client.join();
}

TEST_F(Session, WhoAsksWhileItEndsIsAnsweredOrTold) {
  for (int round = 0; round < 20; ++round) {
    if (round > 0) start();
    std::vector<std::thread> clients;
    for (int t = 0; t < 4; ++t) {
      clients.emplace_back([this] {
        if (const auto workers = ask(Bytes{std::byte{1}})) {
          EXPECT_EQ(workers->size(), 1U);
        }
      });
    }
    server.reset();
    for (auto& client : clients) client.join();
  }
}

TEST_F(Session, TakesNoNameThatIsTaken) {
  const auto second =
      SessionServer::start(name, [](std::span<const std::byte>, const CancelFlag&) { return Workers(); });
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::already_exists);
  expect_served();
}

TEST_F(Session, NobodyServingIsToldAtOnceWithTheRemedy) {
  server.reset();
  const auto driver = open_session(name, {}, patience(), seconds(10));
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().code, ErrorCode::not_found);
  EXPECT_THAT(driver.error().message(), ::testing::HasSubstr("cenote lease"));
}

TEST_F(Session, AServerThatIsStoppedIsADeadlineHoweverManyWaitForIt) {
  server.reset();
  const auto address = socket_address(name);
  const UniqueFd stopped(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(stopped.get(), address->get(), address->size), 0);
  ASSERT_EQ(::listen(stopped.get(), 0), 0);
  const auto first = connect();  // all that its queue holds
  ASSERT_TRUE(first);
  auto second = std::async(std::launch::async, [this] {
    return open_session(name, {}, Deadline::in(milliseconds(100)), seconds(10)).error().code;
  });
  const bool ended = second.wait_for(seconds(30)) == std::future_status::ready;
  EXPECT_TRUE(ended) << "it waits in connect()";
  if (!ended) ::shutdown(stopped.get(), SHUT_RDWR);
  EXPECT_EQ(second.get(), ErrorCode::deadline_exceeded);
}

}  // namespace
}  // namespace cenote::pool::dropin
