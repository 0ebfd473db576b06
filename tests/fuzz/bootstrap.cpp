// The bootstrap, met by somebody who may know its secret. The first byte says where: at the root's door; as a
// root that a rank has gone to; as a child of rank 0 in a group that is joined. The rest is what he says. The
// root serves others as before, and every call ends at its deadline with an error that has a cause.
#include "runtime/bootstrap.h"

#include <poll.h>
#include <sys/socket.h>

#include <future>
#include <thread>

#include "runtime/bootstrap_wire.h"
#include "runtime/frame_channel.h"
#include "runtime/tcp_socket.h"
#include "tests/fuzz/fuzzer.h"

namespace cenote::fuzz {
namespace {

using namespace bootstrap;  // NOLINT(google-build-using-namespace)
using std::chrono::milliseconds;

constexpr std::string_view some_secret = "16-byte-secret-!";  // stands for the root's in an input
constexpr const char* here = "127.0.0.1";

Bytes with_secret(std::span<const std::byte> input, const UniqueId& id) {
  Bytes bytes(input.begin(), input.end());
  for (std::size_t at = 0; at + some_secret.size() <= bytes.size(); ++at) {
    if (std::memcmp(&bytes[at], some_secret.data(), some_secret.size()) == 0)
      std::memcpy(&bytes[at], id.secret.data(), id.secret.size());
  }
  return bytes;
}

UniqueFd connected(const SocketAddress& where) {
  auto fd = start_connecting(where);
  if (!fd) return {};
  pollfd writable{fd->get(), POLLOUT, 0};
  return ::poll(&writable, 1, 1000) == 1 ? std::move(*fd) : UniqueFd();
}

/// Says it, and no more; hears the other out until it ends, or for a moment.
void say(const UniqueFd& fd, std::span<const std::byte> bytes, milliseconds hear_for) {
  (void)!::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  (void)::shutdown(fd.get(), SHUT_WR);
  std::array<std::byte, 4096> heard{};
  pollfd readable{fd.get(), POLLIN, 0};
  while (::poll(&readable, 1, static_cast<int>(hear_for.count())) == 1 &&
         ::recv(fd.get(), heard.data(), heard.size(), 0) > 0) {
  }
}

/// A group of two on `root`: whether it comes together.
bool comes_together(const BootstrapRoot& root) {
  const auto joined = [&](std::uint32_t rank) {
    auto group = Bootstrap::join(root.id(), rank, 2, Deadline::in(std::chrono::seconds(20)));
    return group && (*group)->barrier(Deadline::in(std::chrono::seconds(20)));
  };
  auto other = std::async(std::launch::async, [&] { return joined(1); });
  const bool mine = joined(0);
  return other.get() && mine;
}

/// One root for many strangers, of whom none joins: without the secret.
void at_the_door(std::span<const std::byte> input) {
  static std::unique_ptr<BootstrapRoot> root;
  static int runs = 0;
  if (!root) root = BootstrapRoot::create(here).value();
  say(connected({here, root->id().port}), input, milliseconds(20));
  if (++runs % 512 != 0) return;
  require(comes_together(*root), "the root serves others as before");
  root.reset();
}

/// The same with the secret: what the root makes of it is the stranger's affair, but it goes on.
void as_a_rank(std::span<const std::byte> input) {
  const auto root = BootstrapRoot::create(here).value();
  say(connected({here, root->id().port}), with_secret(input, root->id()), milliseconds(20));
}

/// Whether a frame in it would send the rank to another machine.
bool leads_away(std::span<const std::byte> bytes) {
  Reader in(bytes);
  while (!in.bad() && !in.finished()) {
    Reader frame(in.blob());
    if (frame.get<Kind>() == Kind::parent_at && frame.text() != here) return true;
  }
  return false;
}

void as_the_root(std::span<const std::byte> input) {
  if (leads_away(input)) return;
  UniqueId id{here, 0, {}};
  const UniqueFd listener = listen_on({here, 0}, 8).value();
  id.port = local_address(listener.get()).value().port;
  auto join = std::async(std::launch::async,
                         [&] { return Bootstrap::join(id, 1, 3, Deadline::in(milliseconds(50))); });
  pollfd dialed{listener.get(), POLLIN, 0};
  if (::poll(&dialed, 1, 1000) == 1) {
    if (auto rank = accept_from(listener.get())) say(*rank, with_secret(input, id), milliseconds(100));
  }
  const auto joined = join.get();
  require(!joined && !joined.error().cause.empty(), "nobody joins a group of one liar");
}

/// Rank 1 of 2 as it should be, up to the operation; there it says the input.
void as_a_child(std::span<const std::byte> input) {
  const auto root = BootstrapRoot::create(here).value();
  const UniqueId& id = root->id();
  auto parent = std::async(std::launch::async, [&]() -> Result<void> {
    CENOTE_ASSIGN(const auto group, Bootstrap::join(id, 0, 2, Deadline::in(std::chrono::seconds(5))));
    CENOTE_ASSIGN(const auto all, group->allgather(Bytes(8), Deadline::in(milliseconds(50))));
    require(all.size() == 2, "an allgather that succeeds has everybody's bytes");
    return {};
  });
  const auto secret = std::as_bytes(std::span(id.secret));
  FrameChannel to_root(connected({here, id.port}), max_reply);
  to_root.queue(
      Writer().put(Kind::hello).put(magic).raw(secret).put(1U).put(2U).put(std::uint16_t{9}).bytes());
  to_root.flush();
  std::uint16_t port = 0;
  for (const auto until = Deadline::in(std::chrono::seconds(5)); port == 0 && !until.passed();) {
    pollfd readable{to_root.fd(), POLLIN, 0};
    (void)::poll(&readable, 1, 100);
    to_root.fill();
    while (auto frame = to_root.next().value()) {
      Reader in(*frame);
      if (in.get<Kind>() == Kind::parent_at && in.text() == here) port = in.get<std::uint16_t>();
    }
  }
  Writer said;
  const auto add = [&](const Writer& frame) { said.blob(frame.bytes()); };
  add(Writer().put(Kind::child_hello).put(magic).raw(secret).put(1U).put(2U));
  add(Writer().put(Kind::ready));
  const auto to_parent = connected({here, port});
  (void)!::send(to_parent.get(), said.bytes().data(), said.bytes().size(), MSG_NOSIGNAL);
  pollfd gone_on{to_parent.get(), POLLIN, 0};
  require(::poll(&gone_on, 1, 5000) == 1, "the group forms");
  say(to_parent, input, milliseconds(100));
  const auto ended = parent.get();
  require(ended || !ended.error().cause.empty(), "an error says what is wrong");
}

void run(std::span<const std::byte> input) {
  if (input.empty()) return;
  const auto rest = input.subspan(1);
  switch (static_cast<std::uint8_t>(input[0]) % 8) {
    case 0:
      return as_the_root(rest);
    case 1:
      return as_a_child(rest);
    case 2:
    case 3:
      return as_a_rank(rest);
    default:
      return at_the_door(rest);
  }
}

Bytes seed(std::uint8_t where, const std::vector<Writer>& frames) {
  Writer out;
  out.put(where);
  for (const auto& frame : frames) out.blob(frame.bytes());
  return out.take();
}

Writer hello(std::uint32_t rank, std::uint32_t size) {
  Writer out;
  return out.put(Kind::hello).put(magic).raw(as_bytes(some_secret)).put(rank).put(size).put(std::uint16_t{9}),
         out;
}

}  // namespace

std::vector<Bytes> seeds() {
  const auto operation = [](Kind kind, Operation what) {
    Writer out;
    return out.put(kind).put(std::uint64_t{1}).put(what), out;
  };
  auto contribution = operation(Kind::contribution, Operation::allgather);
  contribution.put(1U).raw(Bytes(8));
  auto abort = Writer();
  abort.put(Kind::abort).put(std::uint64_t{1}).put(1U).text("enough");
  auto parent_at = Writer(), refused = Writer(), lost = Writer();
  parent_at.put(Kind::parent_at).text(here).put(std::uint16_t{9});
  refused.put(Kind::refused).put(ErrorCode::already_exists).text("rank 1 is already there");
  lost.put(Kind::lost).put(2U).text("connection closed");
  auto ask = Writer(), done = Writer();
  ask.put(Kind::ask_missing);
  done.put(Kind::done);
  return {seed(4, {hello(1, 3)}),
          seed(2, {hello(1, 3), ask, done}),
          seed(2, {hello(1, 3), hello(2, 3)}),
          seed(0, {parent_at, lost}),
          seed(0, {refused}),
          seed(1, {contribution}),
          seed(1, {operation(Kind::contribution, Operation::barrier), abort})};
}

}  // namespace cenote::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cenote::fuzz::run(std::as_bytes(std::span(data, size)));
  return 0;
}
