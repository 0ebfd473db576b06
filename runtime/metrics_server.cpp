#include "runtime/metrics_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/deadline.h"
#include "runtime/tcp_socket.h"

namespace cenote {
namespace {

constexpr std::size_t most_connections = 16;
constexpr std::size_t most_request_bytes = 8192;
constexpr auto patience = std::chrono::seconds(5);
constexpr auto text_lasts = std::chrono::milliseconds(250);

struct Connection {
  UniqueFd socket;
  Deadline deadline;
  std::string request{};
  std::string answer{};  ///< empty while the request is not whole
  std::size_t sent = 0;
};

std::string answer_of(std::string_view status, std::string_view body, bool with_body = true) {
  return fmt::format(
      "HTTP/1.1 {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\n"
      "Connection: close\r\n\r\n{}",
      status, body.size(), with_body ? body : std::string_view{});
}

/// The next word of a line.
std::string_view take_word(std::string_view& line) {
  const auto end = std::min(line.find(' '), line.size());
  const auto word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

class Server final : public MetricsServer {
 public:
  Server(UniqueFd listener, UniqueFd stop, std::string address, std::function<std::string()> text)
      : listener_(std::move(listener)),
        stop_(std::move(stop)),
        address_(std::move(address)),
        text_(std::move(text)),
        thread_([this] { run(); }) {}
  ~Server() override {
    // Of eight bytes into an eventfd that nobody else writes to, none is refused.
    (void)!::write(stop_.get(), &one_, sizeof one_);
    thread_.join();
  }
  [[nodiscard]] const std::string& address() const override { return address_; }

 private:
  void run() {
    std::vector<pollfd> watched;
    for (;;) {
      watched.clear();
      watched.push_back({stop_.get(), POLLIN, 0});
      const bool room = connections_.size() < most_connections && !refused_until_.left().count();
      watched.push_back({room ? listener_.get() : -1, POLLIN, 0});
      int wait_ms = room ? -1 : 100;
      for (const auto& connection : connections_) {
        watched.push_back(
            {connection.socket.get(), static_cast<short>(connection.answer.empty() ? POLLIN : POLLOUT), 0});
        const auto left = connection.deadline.poll_ms();
        wait_ms = wait_ms < 0 ? left : std::min(wait_ms, left);
      }
      if (::poll(watched.data(), watched.size(), wait_ms) < 0 && errno != EINTR) refuse_for_a_while();
      if (watched[0].revents != 0) return;
      serve(watched);
      if (watched[1].revents != 0) accept_one();
    }
  }

  /// Whom poll named, and whose time is over.
  void serve(const std::vector<pollfd>& watched) {
    for (std::size_t i = connections_.size(); i > 0; --i) {
      auto& connection = connections_[i - 1];
      const bool ready = watched[i + 1].revents != 0;
      if (connection.deadline.passed() || (ready && is_over(connection)))
        connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i - 1));
    }
  }

  void accept_one() {
    auto socket = accept_from(listener_.get());
    if (!socket) return refuse_for_a_while();  // no descriptor: those that wait get theirs later
    if (*socket) connections_.push_back({std::move(*socket), Deadline::in(patience)});
  }
  void refuse_for_a_while() { refused_until_ = Deadline::in(std::chrono::milliseconds(100)); }

  /// Reads or writes what goes; true when nothing more will.
  bool is_over(Connection& connection) {
    if (connection.answer.empty()) {
      char bytes[2048];
      const auto got = ::recv(connection.socket.get(), bytes, sizeof bytes, 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
      if (got <= 0) return true;
      connection.request.append(bytes, static_cast<std::size_t>(got));
      if (!decide(connection)) return false;
    }
    while (connection.sent < connection.answer.size()) {
      const auto rest = std::string_view(connection.answer).substr(connection.sent);
      const auto sent = ::send(connection.socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
      if (sent < 0) return errno != EAGAIN && errno != EINTR;
      connection.sent += static_cast<std::size_t>(sent);
    }
    return true;
  }

  /// False while the request is not whole.
  bool decide(Connection& connection) {
    const auto& request = connection.request;
    const bool whole =
        request.find("\r\n\r\n") != std::string::npos || request.find("\n\n") != std::string::npos;
    if (!whole && request.size() < most_request_bytes) return false;
    auto line = std::string_view(request).substr(0, request.find_first_of("\r\n"));
    const auto method = take_word(line);
    const auto target = take_word(line);
    if (!whole) {
      connection.answer = answer_of("431 Request Header Fields Too Large", "the request is too long\n");
    } else if (!take_word(line).starts_with("HTTP/1.")) {
      connection.answer = answer_of("400 Bad Request", "no HTTP/1.1\n");
    } else if (method != "GET" && method != "HEAD") {
      connection.answer = answer_of("405 Method Not Allowed", "GET only\n");
    } else if (target.substr(0, target.find('?')) != "/metrics") {
      connection.answer = answer_of("404 Not Found", "/metrics is here\n", method == "GET");
    } else {
      connection.answer = answer_of("200 OK", fresh_text(), method == "GET");
    }
    return true;
  }

  const std::string& fresh_text() {
    if (made_.empty() || made_until_.passed()) {
      made_ = text_();
      made_until_ = Deadline::in(text_lasts);
    }
    return made_;
  }

  static constexpr std::uint64_t one_ = 1;
  UniqueFd listener_, stop_;
  std::string address_;
  std::function<std::string()> text_;
  std::string made_;
  Deadline made_until_ = Deadline::at({});
  Deadline refused_until_ = Deadline::at({});
  std::vector<Connection> connections_;
  std::thread thread_;  ///< last: it uses the others
};

}  // namespace

Result<std::unique_ptr<MetricsServer>> MetricsServer::start(const std::string& address,
                                                            std::function<std::string()> text) {
  constexpr const char* stage = "serve metrics";
  CENOTE_ASSIGN(const auto asked, SocketAddress::parse(address));
  CENOTE_ASSIGN(auto listener, listen_on(asked, static_cast<int>(most_connections)));
  CENOTE_ASSIGN(const auto got, local_address(listener.get()));
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC));
  if (!stop) return fail(system_error(stage, errno));
  return std::make_unique<Server>(std::move(listener), std::move(stop), got.text(), std::move(text));
}

}  // namespace cenote
