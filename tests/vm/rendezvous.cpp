#include "tests/vm/rendezvous.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <thread>

namespace cenote::test::vm {
namespace {

constexpr std::uint16_t port = 7077;
constexpr std::size_t most_bytes = 1U << 20U;

std::runtime_error failed(const std::string& what) { return std::runtime_error("rendezvous: " + what); }

sockaddr_in at(const std::string& address) {
  sockaddr_in found{};
  found.sin_family = AF_INET;
  found.sin_port = htons(port);
  if (::inet_pton(AF_INET, address.c_str(), &found.sin_addr) != 1)
    throw failed("no address '" + address + "'");
  return found;
}

UniqueFd new_socket() {
  UniqueFd made(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int yes = 1;
  if (!made || ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0)
    throw failed(std::string("socket: ") + std::strerror(errno));
  return made;
}

bool wait_until(int fd, short events, Deadline deadline) {
  pollfd watched{fd, events, 0};
  int found = 0;
  do {
    found = ::poll(&watched, 1, deadline.poll_ms());
  } while (found < 0 && errno == EINTR);
  return found > 0;
}

UniqueFd accept_peer(Deadline deadline) {
  const UniqueFd listener = new_socket();
  const sockaddr_in own = at(environment().control_address);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0 ||
      ::listen(listener.get(), 1) != 0)
    throw failed(std::string("cannot listen: ") + std::strerror(errno));
  if (!wait_until(listener.get(), POLLIN, deadline)) throw failed("the other VM did not come to this test");
  return UniqueFd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

UniqueFd connect_peer(Deadline deadline) {
  const sockaddr_in peer = at(environment().peer_control_address);
  while (!deadline.passed()) {
    UniqueFd socket = new_socket();
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&peer), sizeof peer) == 0) return socket;
    int error = errno;
    if (error == EINPROGRESS && wait_until(socket.get(), POLLOUT, deadline)) {
      socklen_t size = sizeof error;
      ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == 0) return socket;
    }
    // Nothing tells when the other one begins to listen.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  throw failed("the other VM did not come to this test");
}

}  // namespace

Rendezvous Rendezvous::open(const std::string& name, Deadline deadline) {
  Rendezvous met(environment().host == 0 ? accept_peer(deadline) : connect_peer(deadline), deadline);
  met.barrier(name);
  return met;
}

void Rendezvous::wait_for(short events, const char* what) const {
  if (!wait_until(socket_.get(), events, deadline_)) throw failed(std::string("out of time ") + what);
}

void Rendezvous::send(const std::string& bytes) {
  const auto size = static_cast<std::uint32_t>(bytes.size());
  const std::string framed = std::string(reinterpret_cast<const char*>(&size), sizeof size) + bytes;
  for (std::size_t sent = 0; sent < framed.size();) {
    wait_for(POLLOUT, "while sending");
    const auto n = ::send(socket_.get(), framed.data() + sent, framed.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR) throw failed("the other VM has left this test");
    if (n > 0) sent += static_cast<std::size_t>(n);
  }
}

void Rendezvous::read_exactly(char* to, std::size_t size) {
  for (std::size_t got = 0; got < size;) {
    wait_for(POLLIN, "while receiving");
    const auto n = ::recv(socket_.get(), to + got, size - got, 0);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
      throw failed("the other VM has left this test");
    if (n > 0) got += static_cast<std::size_t>(n);
  }
}

std::string Rendezvous::receive() {
  std::uint32_t size = 0;
  read_exactly(reinterpret_cast<char*>(&size), sizeof size);
  if (size > most_bytes) throw failed("a message of " + std::to_string(size) + " bytes");
  std::string bytes(size, '\0');
  read_exactly(bytes.data(), bytes.size());
  return bytes;
}

void Rendezvous::barrier(const std::string& place) {
  send(place);
  const std::string theirs = receive();
  if (theirs != place) throw failed("here '" + place + "', the other VM at '" + theirs + "'");
}

void Rendezvous::throw_size(std::size_t got, std::size_t wanted) {
  throw failed(std::to_string(got) + " bytes where the other VM was to send " + std::to_string(wanted));
}

void TwoVmTest::SetUp() {
  if (environment().peer_addresses.empty())
    GTEST_SKIP() << "needs two test VMs: tests/vm/cenote-vm run2 -- PROGRAM";
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  other_ = std::make_unique<Rendezvous>(
      Rendezvous::open(std::string(test->test_suite_name()) + "." + test->name(), Deadline::in(limit_)));
}

void TwoVmTest::TearDown() {
  if (other_ && !HasFailure()) other_->barrier("the end of the test");
}

}  // namespace cenote::test::vm
