#include "pool/client/session_watch.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/support/async_unary_call.h>

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "pool/proto/cenote.grpc.pb.h"
#include "pool/proto/status.h"

namespace cenote::pool::client {

namespace {

// How long one call waits for the end of its session; then it is asked again.
constexpr auto kWait = std::chrono::minutes(10);
// How long an agent that was lost may take to answer once more: its connection may have broken, not it.
constexpr auto kLastChance = std::chrono::seconds(2);

class Watch final : public SessionWatch {
 public:
  explicit Watch(std::function<void(const Error&)> lost)
      : lost_(std::move(lost)), thread_([this] { run(); }) {}
  ~Watch() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
      for (auto& [tag, call] : calls_) call->context.TryCancel();
      queue_.Shutdown();
    }
    thread_.join();
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  void watch(WatchedSession session) override {
    const std::lock_guard lock(mutex_);
    start(std::move(session), false);
  }

  void forget(const std::string& agent) override {
    const std::lock_guard lock(mutex_);
    for (auto& [tag, call] : calls_) {
      if (call->session.agent != agent) continue;
      call->forgotten = true;
      call->context.TryCancel();
    }
  }

 private:
  struct Call {
    WatchedSession session;
    bool last_chance = false, forgotten = false;
    grpc::ClientContext context{};
    std::unique_ptr<v1::Agent::Stub> stub{};
    v1::AwaitSessionEndReply reply{};
    grpc::Status status{};
    std::unique_ptr<grpc::ClientAsyncResponseReader<v1::AwaitSessionEndReply>> reader{};
  };

  void start(WatchedSession session, bool last_chance) {
    if (closing_) return;
    auto made = std::make_unique<Call>();
    auto& call = *made;
    call.session = std::move(session);
    call.last_chance = last_chance;
    call.stub = v1::Agent::NewStub(call.session.channel);
    v1::AwaitSessionEndRequest request;
    request.set_lease_id(call.session.lease_id);
    request.set_channel(call.session.number);
    std::chrono::milliseconds wait = kWait;
    if (last_chance) {
      wait = std::chrono::milliseconds(0);
      call.context.set_wait_for_ready(true);
    }
    request.set_wait_ms(static_cast<std::uint32_t>(wait.count()));
    call.context.set_deadline(std::chrono::system_clock::now() + wait + kLastChance);
    call.reader = call.stub->AsyncAwaitSessionEnd(&call.context, request, &queue_);
    call.reader->Finish(&call.reply, &call.status, &call);
    calls_.emplace(&call, std::move(made));
  }

  void run() {
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
      std::unique_lock lock(mutex_);
      const auto found = calls_.find(tag);
      const auto call = std::move(found->second);
      calls_.erase(found);
      if (closing_ || call->forgotten) continue;
      if (const auto error = judge(*call)) {
        lock.unlock();
        lost_(*error);
      }
    }
  }

  // What the end of a call says of its session. Asks again where it says nothing.
  std::optional<Error> judge(Call& call) {
    const auto stage = "keep lease " + call.session.lease_id;
    if (call.status.ok()) {
      if (!call.reply.over()) {
        start(std::move(call.session), false);
      } else if (call.reply.failed()) {
        return Error{ErrorCode::peer_failed, stage, call.reply.reason()}.with(call.session.peer);
      }
      return std::nullopt;
    }
    if (call.status.error_code() == grpc::StatusCode::UNIMPLEMENTED) return std::nullopt;  // an older agent
    if (!call.last_chance) {
      start(std::move(call.session), true);
      return std::nullopt;
    }
    return Error{
        ErrorCode::peer_failed, stage,
        "its agent cannot be reached any more: the process ended, or its machine or the way there is down; "
        "workers die with their agent"}
        .with(call.session.peer)
        .fix("see the agent's log; open the lease again once it is back, or lease other GPUs");
  }

  const std::function<void(const Error&)> lost_;
  std::mutex mutex_;
  grpc::CompletionQueue queue_;
  std::map<void*, std::unique_ptr<Call>> calls_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<SessionWatch> SessionWatch::create(std::function<void(const Error&)> lost) {
  return std::make_unique<Watch>(std::move(lost));
}

}  // namespace cenote::pool::client
