// The root of a bootstrap: takes the ranks' registrations, tells each where its parent in the tree listens,
// who is missing, and who was there and is gone. One thread, one poll loop; strangers cost a bounded amount
// of memory and a closed connection.
#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <list>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "runtime/bootstrap.h"
#include "runtime/bootstrap_wire.h"
#include "runtime/process.h"
#include "runtime/rank_name.h"
#include "runtime/tcp_socket.h"

namespace cenote {
namespace {

using namespace bootstrap;

constexpr auto greeting_time = std::chrono::seconds(10);
constexpr auto return_time = std::chrono::milliseconds(1500);  // for a rank whose connection ended
constexpr std::size_t max_strangers = 1024;
constexpr std::size_t max_unsent = std::size_t{64} << 10U;

/// One connection. It is a stranger until its hello is accepted.
struct Client {
  FrameChannel channel;
  SocketAddress from;
  Deadline leave_by;  ///< for strangers and for those that were refused
  std::uint32_t rank = no_rank;
  SocketAddress listens{};
  Clock::time_point since{};  ///< its registration
  bool wants_parent = false;
  bool joined = false;   ///< it said `done`
  bool leaving = false;  ///< refused: ends when the refusal is sent
  bool told_loss = false;
};

/// A rank that had registered and whose connection ended before it had joined. It may come back.
struct Loss {
  std::uint32_t rank;
  Clock::time_point since;
  std::string cause;
};

class Root final : public BootstrapRoot {
 public:
  Root(UniqueId id, UniqueFd listener, UniqueFd wake)
      : id_(std::move(id)),
        listener_(std::move(listener)),
        wake_(std::move(wake)),
        thread_([this] { serve(); }) {}

  ~Root() override {
    const std::uint64_t one = 1;
    stop_.raise();
    (void)!::write(wake_.get(), &one, sizeof one);
    thread_.join();
  }
  Root(const Root&) = delete;
  Root& operator=(const Root&) = delete;

  [[nodiscard]] const UniqueId& id() const override { return id_; }

 private:
  void serve();
  void wait();
  void accept_all();
  void serve_client(Client& client);
  void take_frame(Client& client, std::span<const std::byte> frame);
  void greet(Client& client, Reader& reader);
  void answer_search(Client& client, Reader& reader);
  [[nodiscard]] bool knows_secret(std::span<const std::byte> shown) const;
  static void refuse(Client& client, ErrorCode code, std::string_view cause);
  void end_group(std::string cause);
  void give_up();
  void tell_parent(Client& client);
  void tell_missing(Client& client);
  void tell_losses();
  [[nodiscard]] Clock::time_point loss_due(const Client& client) const;
  [[nodiscard]] bool concerned(const Client& client) const;
  bool finished(Client& client);
  void forget(Client& client);

  const UniqueId id_;
  const UniqueFd listener_;
  const UniqueFd wake_;
  CancelFlag stop_;

  // of the thread
  std::list<Client> clients_;
  std::unordered_map<std::uint32_t, Client*> ranks_;
  std::unordered_set<std::uint32_t> came_;          ///< ranks that registered, and may have left again
  std::unordered_map<std::uint32_t, bool> joined_;  ///< ranks that said `done` and may have gone
  std::vector<Loss> losses_;                        ///< oldest first
  std::uint32_t size_ = 0;                          ///< as the first rank said
  std::string contradiction_;                       ///< why the group cannot form any more
  std::size_t strangers_ = 0;
  bool out_of_descriptors_ = false;
  std::vector<pollfd> polled_;

  std::thread thread_;  // last: it uses what stands above
};

void Root::serve() {
  while (!stop_.raised()) {
    wait();
    auto polled = polled_.begin() + 2;  // those of clients_, in order
    for (auto& client : clients_)
      if ((polled++)->revents != 0) serve_client(client);
    accept_all();
    for (auto at = clients_.begin(); at != clients_.end();) {
      if (finished(*at)) {
        forget(*at);
        at = clients_.erase(at);
      } else {
        ++at;
      }
    }
    tell_losses();
  }
  give_up();
}

/// Whoever still waits would see no more than a connection that ends.
void Root::give_up() {
  const auto missing = list_ranks(size_, [this](std::uint32_t r) { return !came_.contains(r); });
  if (missing.empty()) return;
  for (const auto& [rank, client] : ranks_) {
    if (client->leaving || client->joined) continue;
    refuse(*client, ErrorCode::peer_failed,
           "it has given the group up: " + missing + have(missing) + " not arrived");
    client->channel.flush();
  }
}

/// Whether it waits for a group that a lost rank is missing from.
bool Root::concerned(const Client& client) const {
  return !losses_.empty() && client.rank != no_rank && !client.leaving && !client.told_loss && !client.joined;
}

/// Who registers anew gives the lost ones time to do so too.
Clock::time_point Root::loss_due(const Client& client) const {
  return std::max(losses_.front().since, client.since) + return_time;
}

void Root::tell_losses() {
  const auto now = Clock::now();
  for (auto& client : clients_) {
    if (!concerned(client) || loss_due(client) > now) continue;
    const auto& loss = losses_.front();
    client.channel.queue(Writer().put(Kind::lost).put(loss.rank).text(loss.cause).bytes());
    client.channel.flush();
    client.told_loss = true;
  }
}

void Root::wait() {
  polled_.clear();
  polled_.push_back({wake_.get(), POLLIN, 0});
  // A negative descriptor is skipped: while there are none to spare, a waiting connection must not spin the
  // loop.
  polled_.push_back({out_of_descriptors_ ? -1 : listener_.get(), POLLIN, 0});
  int timeout = out_of_descriptors_ ? 50 : -1;
  for (const auto& client : clients_) {
    polled_.push_back(
        {client.channel.fd(), static_cast<short>(POLLIN | (client.channel.unsent() ? POLLOUT : 0)), 0});
    if (client.rank == no_rank || client.leaving) {
      const int left = client.leave_by.poll_ms();
      timeout = timeout < 0 ? left : std::min(timeout, left);
    }
    if (concerned(client)) {
      const int left = Deadline::at(loss_due(client)).poll_ms();
      timeout = timeout < 0 ? left : std::min(timeout, left);
    }
  }
  out_of_descriptors_ = false;
  (void)::poll(polled_.data(), polled_.size(), timeout);  // a failure means: look at everybody
}

void Root::accept_all() {
  for (;;) {
    auto fd = accept_from(listener_.get());
    if (!fd) {
      out_of_descriptors_ = true;  // others may be let go soon; try again then
      return;
    }
    if (!*fd) return;
    auto from = peer_address(fd->get());
    if (!from) continue;  // gone already
    if (strangers_ >= max_strangers) {
      auto oldest = std::ranges::find(clients_, no_rank, &Client::rank);
      if (oldest != clients_.end()) {
        forget(*oldest);
        clients_.erase(oldest);
      }
    }
    ++strangers_;
    clients_.push_back(
        Client{FrameChannel(std::move(*fd), max_greeting), std::move(*from), Deadline::in(greeting_time)});
  }
}

void Root::serve_client(Client& client) {
  client.channel.fill();
  while (!client.leaving) {
    auto frame = client.channel.next();
    if (!frame) {
      client.leaving = true;  // not our protocol
      client.leave_by = Deadline::in(Clock::duration::zero());
      break;
    }
    if (!*frame) break;
    take_frame(client, **frame);
  }
  client.channel.flush();
}

void Root::take_frame(Client& client, std::span<const std::byte> frame) {
  Reader reader(frame);
  const auto kind = reader.get<Kind>();
  if (client.rank == no_rank) {
    if (kind == Kind::hello) return greet(client, reader);
    if (kind == Kind::search) return answer_search(client, reader);
  } else if (kind == Kind::ask_parent && reader.finished()) {
    return tell_parent(client);
  } else if (kind == Kind::ask_missing && reader.finished()) {
    return tell_missing(client);
  } else if (kind == Kind::done && reader.finished()) {
    client.joined = true;
    joined_[client.rank] = true;
    return;
  }
  client.leaving = true;
  client.leave_by = Deadline::in(Clock::duration::zero());
}

void Root::greet(Client& client, Reader& reader) {
  const auto their_magic = reader.get<std::uint32_t>();
  const auto secret = reader.raw(id_.secret.size());
  const auto rank = reader.get<std::uint32_t>();
  const auto size = reader.get<std::uint32_t>();
  const auto port = reader.get<std::uint16_t>();
  if (!reader.finished() || their_magic != magic) {
    client.leaving = true;
    client.leave_by = Deadline::in(Clock::duration::zero());
    return;
  }
  if (!knows_secret(secret))
    return refuse(client, ErrorCode::permission_denied, "the secret is not that of this group");
  if (size == 0 || size > max_size || rank >= size)
    return refuse(client, ErrorCode::invalid_argument,
                  "rank " + std::to_string(rank) + " of " + std::to_string(size) + " does not exist");
  if (!joined_.empty())
    return refuse(client, ErrorCode::already_exists, "the group already stands; make a new id");
  if (!contradiction_.empty()) return refuse(client, ErrorCode::invalid_argument, contradiction_);
  if (ranks_.empty()) size_ = size;
  if (size != size_) {
    const auto differs = std::to_string(size) + " ranks, the others expect " + std::to_string(size_);
    end_group(rank_name(rank) + " expects " + differs);
    return refuse(client, ErrorCode::invalid_argument, "it expects " + differs);
  }
  if (const auto there = ranks_.find(rank); there != ranks_.end()) {
    auto& first = *there->second;
    first.channel.fill();  // whether it has died meanwhile
    if (!first.channel.closed()) {
      refuse(client, ErrorCode::already_exists,
             rank_name(rank) + " is already there, from " + first.from.text());
      return end_group(rank_name(rank) + " came twice, from " + first.from.text() + " and from " +
                       client.from.text());
    }
  }
  std::erase_if(losses_, [rank](const Loss& loss) { return loss.rank == rank; });
  client.rank = rank;
  client.since = Clock::now();
  client.listens = {client.from.host, port};
  client.channel.set_max_frame(max_reply);
  --strangers_;
  ranks_[rank] = &client;
  came_.insert(rank);
  if (rank != 0) tell_parent(client);
  for (std::uint64_t child = std::uint64_t{rank} * fan_out + 1;
       child <= std::uint64_t{rank} * fan_out + fan_out; ++child) {
    const auto waiting = ranks_.find(static_cast<std::uint32_t>(child));
    if (waiting != ranks_.end() && waiting->second->wants_parent) {
      tell_parent(*waiting->second);
      waiting->second->channel.flush();
    }
  }
}

bool Root::knows_secret(std::span<const std::byte> shown) const {
  const std::span<const std::uint8_t> theirs(reinterpret_cast<const std::uint8_t*>(shown.data()),
                                             shown.size());
  return equal_in_constant_time(theirs, id_.secret);
}

/// It goes on as a stranger: who searched connects again to join.
void Root::answer_search(Client& client, Reader& reader) {
  const auto their_magic = reader.get<std::uint32_t>();
  const auto secret = reader.raw(id_.secret.size());
  if (!reader.finished() || their_magic != magic) {
    client.leaving = true;
    client.leave_by = Deadline::in(Clock::duration::zero());
    return;
  }
  if (!knows_secret(secret))
    return refuse(client, ErrorCode::permission_denied, "the secret is not that of this group");
  if (!joined_.empty()) return refuse(client, ErrorCode::already_exists, "the group already stands");
  client.channel.queue(Writer().put(Kind::here).bytes());
}

void Root::refuse(Client& client, ErrorCode code, std::string_view cause) {
  client.channel.queue(Writer().put(Kind::refused).put(code).text(cause).bytes());
  client.leaving = true;
  client.leave_by = Deadline::in(std::chrono::seconds(1));
}

/// Who has shown the secret contradicts the others: nobody can say which of them is right, and all are told.
void Root::end_group(std::string cause) {
  contradiction_ = std::move(cause);
  for (const auto& [rank, client] : ranks_) {
    if (client->leaving) continue;
    refuse(*client, ErrorCode::invalid_argument, contradiction_);
    client->channel.flush();
  }
}

void Root::tell_parent(Client& client) {
  const auto parent = ranks_.find(parent_of(client.rank));
  client.wants_parent = parent == ranks_.end();
  if (client.wants_parent) return;  // told when it registers
  const auto& at = parent->second->listens;
  client.channel.queue(Writer().put(Kind::parent_at).text(at.host).put(at.port).bytes());
}

/// Who never came; only when all have come, who has left: a rank that gave up waiting is not whom the others
/// wait for.
void Root::tell_missing(Client& client) {
  auto text = list_ranks(size_, [this](std::uint32_t r) { return !came_.contains(r); });
  if (text.empty())
    text = list_ranks(size_, [this](std::uint32_t r) { return !ranks_.contains(r) && !joined_.contains(r); });
  client.channel.queue(Writer().put(Kind::missing).text(text).bytes());
}

bool Root::finished(Client& client) {
  if (client.channel.closed() || client.channel.unsent_bytes() > max_unsent) return true;
  if (client.leaving) return !client.channel.unsent() || client.leave_by.passed();
  return client.rank == no_rank && client.leave_by.passed();
}

void Root::forget(Client& client) {
  if (client.rank == no_rank) {
    --strangers_;
  } else if (const auto at = ranks_.find(client.rank); at != ranks_.end() && at->second == &client) {
    ranks_.erase(
        at);  // a rank that died before the group stood may come back, perhaps before this is noticed
    if (!client.joined)
      losses_.push_back({client.rank, Clock::now(),
                         client.channel.closed() ? client.channel.close_cause() : "it broke the protocol"});
  }
}

}  // namespace

Result<std::unique_ptr<BootstrapRoot>> BootstrapRoot::create(const std::string& host, std::uint16_t port) {
  std::array<std::uint8_t, 16> secret{};
  CENOTE_TRY(random_bytes(std::span<std::uint8_t>(secret)));
  return create_at(host, {&port, 1}, secret);
}

Result<std::unique_ptr<BootstrapRoot>> BootstrapRoot::create_at(const std::string& host,
                                                                std::span<const std::uint16_t> ports,
                                                                const std::array<std::uint8_t, 16>& secret) {
  Result<UniqueFd> listener =
      fail(ErrorCode::invalid_argument, "listen on " + host, "there is no port to choose from");
  for (const auto port : ports) {
    listener = listen_on({host, port}, 4096);
    if (listener || listener.error().code != ErrorCode::already_exists) break;
  }
  if (!listener) return fail(std::move(listener).error());
  CENOTE_ASSIGN(const auto address, local_address(listener->get()));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return fail(system_error("make the bootstrap's wake descriptor", errno));
  try {
    return std::make_unique<Root>(UniqueId{host, address.port, secret}, std::move(*listener),
                                  std::move(wake));
  } catch (const std::system_error& error) {
    return fail(system_error("start the bootstrap's thread", error.code().value()));
  }
}

std::string UniqueId::text() const { return SocketAddress{host, port}.text() + "/" + to_hex(secret); }

Result<UniqueId> UniqueId::parse(std::string_view text) {
  const auto slash = text.rfind('/');
  if (slash == std::string_view::npos)
    return fail(ErrorCode::invalid_argument, "read unique id", "it is not of the form host:port/secret");
  CENOTE_ASSIGN(const auto address, SocketAddress::parse(text.substr(0, slash)));
  CENOTE_ASSIGN(const auto secret, from_hex(text.substr(slash + 1)));
  UniqueId id{address.host, address.port};
  if (id.port == 0) return fail(ErrorCode::invalid_argument, "read unique id", "port 0 is nobody's");
  if (secret.size() != id.secret.size())
    return fail(ErrorCode::invalid_argument, "read unique id", "its secret has not 32 digits");
  std::memcpy(id.secret.data(), secret.data(), secret.size());
  return id;
}

}  // namespace cenote
