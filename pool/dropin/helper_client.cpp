#include "pool/dropin/helper_client.h"

#include <utility>

#include "pool/dropin/helper_channel.h"
#include "pool/dropin/helper_process.h"

namespace cenote::pool::dropin {
namespace {

// The answer of the kind that was asked for.
template <class Wanted>
Result<Wanted> as(Result<ReplyBody> reply) {
  if (!reply) return fail(std::move(reply).error());
  if (auto* wanted = std::get_if<Wanted>(&*reply)) return std::move(*wanted);
  return fail(ErrorCode::protocol_error, "ask the pool's helper process",
              "it answered something else: it is of another version of cenote");
}

}  // namespace

HelperLease::HelperLease(std::shared_ptr<HelperChannel> channel, LeaseReply granted, WorkOptions work)
    : channel_(std::move(channel)), granted_(std::move(granted)), work_(std::move(work)) {}

HelperLease::~HelperLease() { channel_->forget(granted_.lease); }

Error HelperLease::released_before(std::string stage) const {
  return Error{ErrorCode::not_found, std::move(stage), "it was released"}.fix("lease again");
}

std::optional<Error> HelperLease::lost() const {
  if (released_) return released_before("look at lease " + id());
  return channel_->lost(granted_.lease);
}

Result<std::unique_ptr<remote::RemoteDriver>> HelperLease::open(Deadline deadline) {
  if (auto over = lost()) return fail(std::move(*over));
  CENOTE_ASSIGN(auto fabric, transport::Fabric::create(work_.fabric));
  CENOTE_ASSIGN(const auto reply,
                as<WorkersReply>(channel_->call(OpenAsk{granted_.lease, fabric->address()}, deadline)));
  return remote::RemoteDriver::connect(std::move(fabric), reply.workers, deadline, nullptr,
                                       work_.worker_timeout);
}

Result<void> HelperLease::release(Deadline deadline) {
  if (released_) return fail(released_before("release lease " + id()));
  CENOTE_TRY(as<DoneReply>(channel_->call(ReleaseAsk{granted_.lease}, deadline)));
  released_ = true;
  return {};
}

HelperPool::HelperPool(std::shared_ptr<HelperChannel> channel, WorkOptions work)
    : channel_(std::move(channel)), work_(std::move(work)) {}

Result<std::unique_ptr<HelperPool>> HelperPool::connect(const std::string& program,
                                                        std::vector<std::string> settings, WorkOptions work,
                                                        Deadline deadline) {
  CENOTE_ASSIGN(auto helper, StartedHelper::start(program));
  CENOTE_TRY(helper.finish(deadline));
  auto channel = std::make_shared<HelperChannel>(helper.take_socket(), helper.take_words());
  CENOTE_TRY(as<ReadyReply>(channel->call(ConnectAsk{helper_protocol, std::move(settings)}, deadline)));
  return std::unique_ptr<HelperPool>(new HelperPool(std::move(channel), std::move(work)));
}

Result<std::unique_ptr<HelperLease>> HelperPool::granted(Ask ask, Deadline deadline) {
  CENOTE_ASSIGN(auto reply, as<LeaseReply>(channel_->call(std::move(ask), deadline)));
  return std::make_unique<HelperLease>(channel_, std::move(reply), work_);
}

Result<std::unique_ptr<HelperLease>> HelperPool::lease(LeaseAsk ask, Deadline deadline) {
  return granted(std::move(ask), deadline);
}

Result<std::unique_ptr<HelperLease>> HelperPool::adopt(std::string file, Deadline deadline) {
  return granted(AdoptAsk{std::move(file)}, deadline);
}

}  // namespace cenote::pool::dropin
