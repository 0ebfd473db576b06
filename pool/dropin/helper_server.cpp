#include "pool/dropin/helper_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "pool/dropin/helper_wire.h"
#include "pool/dropin/session_wire.h"

namespace cenote::pool::dropin {
namespace {

constexpr auto kGiveBack = std::chrono::seconds(10);
constexpr std::size_t kMostAtOnce = 256;         // requests; each has a thread
constexpr auto kLook = std::chrono::seconds(3);  // for adopted leases that others have ended

struct KeptLease {
  std::unique_ptr<client::Lease> lease;
  bool ours = false;  ///< made here, so given back when the program is gone
};

LeaseReply describe(LeaseNumber number, const client::LeaseInfo& info) {
  LeaseReply reply{number, info.id, {}};
  for (const auto& device : info.devices)
    reply.gpus.push_back({device.uuid, device.model, device.agent, device.memory_bytes});
  return reply;
}

Error over(const std::string& lease) {
  return Error{ErrorCode::not_found, "keep lease " + lease,
               "it is over: it was released, or its time to live has passed"}
      .fix("lease again");
}

bool lists(const std::vector<client::LeaseInfo>& leases, const std::string& id) {
  return std::ranges::find(leases, id, &client::LeaseInfo::id) != leases.end();
}

class Server {
 public:
  Server(UniqueFd socket, UniqueFd program, const MakeClient& make_client)
      : socket_(std::move(socket)), program_(std::move(program)), make_client_(make_client) {}

  Result<void> run() {
    auto served = listen();
    finish();
    return served;
  }

 private:
  struct Task {
    std::thread thread;
    std::atomic<bool> over{false};
  };

  Result<void> listen() {
    FrameBuffer arrived;
    while (wait()) {
      const auto got = arrived.read(socket_.get());
      if (!got) return {};  // it closed its end, or is gone: both are how this ends
      while (true) {
        CENOTE_ASSIGN(const auto frame, arrived.next());
        if (!frame) break;
        CENOTE_ASSIGN(auto request, decode_request(*frame));
        take(std::move(request));
      }
    }
    return {};
  }

  // False: the program is gone, though a child of it may still have the socket.
  bool wait() {
    pollfd entries[2] = {{socket_.get(), POLLIN, 0}, {program_.get(), POLLIN, 0}};
    while (::poll(entries, program_ ? 2 : 1, -1) < 0 && errno == EINTR) {
    }
    return entries[0].revents != 0 || entries[1].revents == 0;
  }

  // On the listening thread, so that what a request means does not depend on how fast the others are.
  void take(Request request) {
    for (auto task = tasks_.begin(); task != tasks_.end();) {
      auto here = task++;
      if (!here->over) continue;
      here->thread.join();
      tasks_.erase(here);
    }
    if (tasks_.size() >= kMostAtOnce) {
      answer(request.id, FailedReply{{ErrorCode::resource_exhausted, "ask the pool's helper process",
                                      "more than 256 requests at once"}});
      return;
    }
    const auto deadline = Deadline::in(std::chrono::milliseconds(request.timeout_ms));
    auto kept = kept_for(request.ask);
    auto& task = tasks_.emplace_back();
    task.thread = std::thread([this, &task, deadline, kept = std::move(kept), request = std::move(request)] {
      auto body = std::visit([&](const auto& ask) { return done(ask, kept, deadline); }, request.ask);
      const auto* granted = body ? std::get_if<LeaseReply>(&*body) : nullptr;
      const auto made = granted == nullptr ? 0 : granted->lease;
      if (request.id != 0) answer(request.id, body ? std::move(*body) : FailedReply{std::move(body).error()});
      if (made != 0) watch(made);
      task.over = true;
    });
  }

  std::shared_ptr<KeptLease> find(LeaseNumber number) {
    const std::lock_guard lock(mutex_);
    const auto found = leases_.find(number);
    return found == leases_.end() ? nullptr : found->second;
  }

  std::shared_ptr<KeptLease> take_out(LeaseNumber number) {
    const std::lock_guard lock(mutex_);
    const auto node = leases_.extract(number);
    return node.empty() ? nullptr : node.mapped();
  }

  // The lease that a request is about; a forgotten one leaves the table here.
  std::shared_ptr<KeptLease> kept_for(const Ask& ask) {
    if (const auto* open = std::get_if<OpenAsk>(&ask)) return find(open->lease);
    if (const auto* release = std::get_if<ReleaseAsk>(&ask)) return find(release->lease);
    if (const auto* forget = std::get_if<ForgetAsk>(&ask)) return take_out(forget->lease);
    return nullptr;
  }

  Result<ReplyBody> done(const ConnectAsk& ask, const std::shared_ptr<KeptLease>&, Deadline) {
    constexpr const char* kStage = "connect to a pool";
    if (ask.protocol != helper_protocol)
      return fail(Error{ErrorCode::not_supported, kStage,
                        "the library and the cenote program are of different versions"}
                      .fix("install both from one version, or name the right one: setting session.helper"));
    CENOTE_ASSIGN(auto made, make_client_(ask.settings));
    const std::lock_guard lock(mutex_);
    if (client_) return fail(ErrorCode::protocol_error, kStage, "it was asked twice");
    client_ = std::move(made);
    return ReadyReply{::getpid()};
  }

  Result<ReplyBody> done(const LeaseAsk& ask, const std::shared_ptr<KeptLease>&, Deadline deadline) {
    CENOTE_ASSIGN(auto* client, connected());
    client::LeaseSpec spec;
    spec.gpus = ask.gpus;
    spec.model = ask.model;
    spec.memory_bytes = ask.memory_bytes;
    spec.ttl = std::chrono::milliseconds(ask.ttl_ms);
    spec.note = ask.note;
    spec.wait = std::chrono::milliseconds(ask.wait_ms);
    CENOTE_ASSIGN(auto lease, client->lease(spec, Deadline::at(deadline.when() - spec.wait), &ending_));
    return keep(std::move(lease), true);
  }

  Result<ReplyBody> done(const AdoptAsk& ask, const std::shared_ptr<KeptLease>&, Deadline) {
    CENOTE_ASSIGN(auto* client, connected());
    CENOTE_ASSIGN(const auto file, client::decode_lease_file(ask.file));
    CENOTE_ASSIGN(auto lease, client->adopt(file, false));
    auto adopted = keep(std::move(lease), false);
    const std::lock_guard lock(mutex_);
    if (!over_ && !looks_.joinable()) looks_ = std::thread([this, client] { look(*client); });
    return adopted;
  }

  Result<ReplyBody> done(const OpenAsk& ask, const std::shared_ptr<KeptLease>& kept, Deadline deadline) {
    if (!kept) return unknown("open a lease");
    CENOTE_ASSIGN(auto workers, kept->lease->open_workers(ask.fabric_address, deadline, &ending_));
    return WorkersReply{std::move(workers)};
  }

  Result<ReplyBody> done(const ReleaseAsk& ask, const std::shared_ptr<KeptLease>& kept, Deadline deadline) {
    if (!kept) return unknown("release a lease");
    if (!kept->ours) {  // others may have: the broker remembers it for a while, and would say yes again
      CENOTE_ASSIGN(auto* client, connected());
      CENOTE_ASSIGN(const auto held, client->leases(deadline, &ending_));
      const auto id = kept->lease->info().id;
      if (!lists(held, id)) return fail(over(id));
    }
    CENOTE_TRY(kept->lease->release(deadline, &ending_));
    static_cast<void>(take_out(ask.lease));
    return DoneReply{};
  }

  // The last reference goes with this task: the renewals end.
  static Result<ReplyBody> done(const ForgetAsk&, const std::shared_ptr<KeptLease>&, Deadline) {
    return DoneReply{};
  }

  static tl::unexpected<Error> unknown(std::string stage) {
    return fail(ErrorCode::not_found, std::move(stage), "the helper keeps no such lease");
  }

  Result<client::PoolClient*> connected() {
    const std::lock_guard lock(mutex_);
    if (!client_) return fail(ErrorCode::protocol_error, "use a pool", "it is not connected");
    return client_.get();
  }

  LeaseReply keep(std::unique_ptr<client::Lease> lease, bool ours) {
    const auto info = lease->info();
    const std::lock_guard lock(mutex_);
    leases_.emplace(++last_number_, std::make_shared<KeptLease>(KeptLease{std::move(lease), ours}));
    return describe(last_number_, info);
  }

  // After the answer that tells of a lease: the program knows the number by then.
  void watch(LeaseNumber number) {
    const auto kept = find(number);
    if (!kept) return;
    kept->lease->on_loss([this, number](const Error& error) { answer(0, LostReply{number, error}); });
  }

  // No renewal of this helper tells of the end of an adopted lease, so the broker's list has to.
  void look(client::PoolClient& client) {
    std::set<LeaseNumber> told;
    std::unique_lock lock(mutex_);
    while (!ends_.wait_for(lock, kLook, [this] { return over_; })) {
      std::map<LeaseNumber, std::string> adopted;
      for (const auto& [number, kept] : leases_) {
        if (!kept->ours && !told.contains(number)) adopted.emplace(number, kept->lease->info().id);
      }
      if (adopted.empty()) continue;
      lock.unlock();
      // A broker that is away says nothing of a lease: it is asked again.
      if (const auto held = client.leases(Deadline::in(kLook), &ending_)) {
        for (const auto& [number, id] : adopted) {
          if (lists(*held, id)) continue;
          answer(0, LostReply{number, over(id)});
          told.insert(number);
        }
      }
      lock.lock();
    }
  }

  void answer(std::uint64_t id, ReplyBody body) {
    auto frame = encode(Reply{id, std::move(body)});
    if (frame.size() > max_frame) {
      frame = encode(Reply{id, FailedReply{{ErrorCode::not_supported, "answer the program",
                                            "the lease has too many devices for one answer"}}});
    }
    Writer out;
    out.blob(frame);
    const std::lock_guard lock(send_mutex_);
    send(out.take());
  }

  // Waits for a program that is stopped, not for one that is gone; finish() ends it too.
  void send(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      pollfd entries[2] = {{socket_.get(), POLLOUT, 0}, {program_.get(), POLLIN, 0}};
      if (::poll(entries, program_ ? 2 : 1, -1) < 0 && errno != EINTR) return;
      if (entries[1].revents != 0) return;
      const auto sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return;
      bytes = bytes.subspan(static_cast<std::size_t>(std::max<ssize_t>(sent, 0)));
    }
  }

  void finish() {
    ending_.raise();
    ::shutdown(socket_.get(), SHUT_RDWR);
    std::thread looks;
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
      looks.swap(looks_);
    }
    ends_.notify_all();
    if (looks.joinable()) looks.join();
    const auto deadline = Deadline::in(kGiveBack);
    give_back(deadline);  // while the requests in flight end: a broker may be slow to hear of it
    for (auto& task : tasks_) task.thread.join();
    tasks_.clear();
    give_back(deadline);
  }

  void give_back(Deadline deadline) {
    std::map<LeaseNumber, std::shared_ptr<KeptLease>> leases;
    {
      const std::lock_guard lock(mutex_);
      leases.swap(leases_);
    }
    std::vector<std::thread> returns;
    for (auto& [number, kept] : leases) {
      if (!kept->ours || kept->lease->lost()) continue;
      returns.emplace_back([&lease = *kept->lease, deadline] { static_cast<void>(lease.release(deadline)); });
    }
    for (auto& thread : returns) thread.join();
  }

  const UniqueFd socket_, program_;
  const MakeClient& make_client_;
  CancelFlag ending_;
  std::list<Task> tasks_;
  std::mutex send_mutex_;
  std::mutex mutex_;  ///< guards what follows
  std::unique_ptr<client::PoolClient> client_;
  std::map<LeaseNumber, std::shared_ptr<KeptLease>> leases_;
  LeaseNumber last_number_ = 0;
  bool over_ = false;
  std::thread looks_;  ///< from the first adopted lease on
  std::condition_variable ends_;
};

}  // namespace

Result<void> serve_program(UniqueFd socket, UniqueFd program, const MakeClient& make_client) {
  return Server(std::move(socket), std::move(program), make_client).run();
}

}  // namespace cenote::pool::dropin
