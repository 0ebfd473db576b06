#include "pool/remote/comm_rank.h"

#include <utility>

namespace cenote::pool::remote {

using cuda::Status;

namespace {

tl::unexpected<Error> driver_failure(const cuda::Driver& driver, const std::string& stage, Status status) {
  Error error{ErrorCode::driver_error, stage, std::string(cuda::status_name(status))};
  if (auto detail = driver.last_error_detail(); !detail.empty()) error.cause += ": " + detail;
  error.native = static_cast<int>(status);
  return fail(std::move(error));
}

}  // namespace

CommRank::CommRank(cuda::Driver& driver, cuda::Context context, cuda::Stream release_stream, Waker& waker,
                   Options options)
    : driver_(driver),
      context_(context),
      release_stream_(release_stream),
      waker_(waker),
      options_(std::move(options)),
      thread_([this] { run(); }) {}

CommRank::~CommRank() {
  abort("the session ended");
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  arrived_.notify_all();
  thread_.join();
}

void CommRank::enqueue(const Operation& operation) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(operation);
  }
  arrived_.notify_all();
}

void CommRank::abort(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (abort_reason_.empty()) abort_reason_ = reason;
  cancel_.raise();
  if (live_ != nullptr) live_->abort(reason);
}

std::optional<bool> CommRank::created() const {
  const std::lock_guard lock(mutex_);
  return created_;
}

std::optional<Error> CommRank::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::optional<Error> CommRank::fresh_failure() {
  const std::lock_guard lock(mutex_);
  if (!failure_ || std::exchange(reported_, true)) return std::nullopt;
  return failure_;
}

std::vector<collectives::PeerStats> CommRank::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void CommRank::publish(const collectives::Communicator& communicator) {
  auto now = communicator.stats();
  const std::lock_guard lock(mutex_);
  stats_ = std::move(now);
}

void CommRank::fail_with(Error error) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(error);
}

MemoryDescription CommRank::describe(std::uint64_t address, std::size_t bytes) const {
  MemoryDescription memory;
  memory.kind = MemoryKind::device;
  memory.address = address;
  memory.size = bytes;
  memory.cpu_readable = false;
  memory.home = options_.device;
  memory.device = access_;
  return memory;
}

Result<std::unique_ptr<collectives::Communicator>> CommRank::make() {
  if (const auto status = driver_.ctx_set_current(context_); status != Status::success)
    return driver_failure(driver_, "enter context", status);
  // Copies of a rank must not wait for the stream that waits for this rank: never the default stream.
  if (const auto status = driver_.stream_create(&copy_stream_, cuda::stream_non_blocking);
      status != Status::success)
    return driver_failure(driver_, "create copy stream", status);
  DeviceAccess access;
  access.read = [this](std::byte* host, std::uint64_t device, std::size_t bytes) -> Result<void> {
    auto status = driver_.memcpy_dtoh_async(host, device, bytes, copy_stream_);
    if (status == Status::success) status = driver_.stream_synchronize(copy_stream_);
    if (status != Status::success) return driver_failure(driver_, "read device memory", status);
    return {};
  };
  access.write = [this](std::uint64_t device, const std::byte* host, std::size_t bytes) -> Result<void> {
    auto status = driver_.memcpy_htod_async(device, host, bytes, copy_stream_);
    if (status == Status::success) status = driver_.stream_synchronize(copy_stream_);
    if (status != Status::success) return driver_failure(driver_, "write device memory", status);
    return {};
  };
  access_ = std::make_shared<const DeviceAccess>(std::move(access));
  collectives::CommunicatorOptions options;
  options.rank = options_.rank;
  options.size = options_.size;
  CENOTE_ASSIGN(options.id, UniqueId::parse(options_.id));
  options.fabric = options_.fabric;
  options.init_timeout = options_.init_timeout;
  options.algorithm = options_.collectives.algorithm;
  options.operation_timeout = options_.collectives.timeout;
  options.cancel = &cancel_;
  return collectives::Communicator::create(options);
}

Result<void> CommRank::perform(collectives::Communicator& communicator, const Operation& operation) {
  if (!operation.ready)
    return fail(ErrorCode::driver_error, "collective",
                "its stream's context was lost before the inputs were ready");
  const auto bytes = operation.count * size_of(operation.type);
  const auto recv = describe(operation.recv, bytes);
  collectives::Request request;
  if (operation.kind == Operation::Kind::allreduce) {
    CENOTE_ASSIGN(request, communicator.allreduce(describe(operation.send, bytes), recv, operation.count,
                                                  operation.type, operation.op));
  } else {
    CENOTE_ASSIGN(request, communicator.broadcast(recv, operation.count, operation.type, operation.root));
  }
  return communicator.wait(request, Deadline::in(options_.collectives.timeout));
}

void CommRank::run() {
  std::unique_ptr<collectives::Communicator> communicator;
  auto made = make();
  if (made)
    communicator = std::move(*made);
  else
    fail_with(std::move(made).error());
  {
    const std::lock_guard lock(mutex_);
    live_ = communicator.get();
    created_ = communicator != nullptr;
    if (live_ != nullptr && !abort_reason_.empty()) live_->abort(abort_reason_);
  }
  waker_.wake();
  for (;;) {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return ending_ || !queue_.empty(); });
    if (queue_.empty()) break;
    const Operation operation = queue_.front();
    queue_.pop_front();
    const bool broken = failure_.has_value();
    lock.unlock();
    if (communicator != nullptr && !broken) {
      if (auto done = perform(*communicator, operation); !done) {
        communicator->abort(done.error().message());  // the others end too, now
        fail_with(std::move(done).error());
      }
      publish(*communicator);
    }
    // In any case: the stream goes on. A failure was recorded before, so that it is seen with the stream's
    // end.
    driver_.stream_write_value32(release_stream_, operation.word, operation.value, 0);
    waker_.wake();
  }
  {
    const std::lock_guard lock(mutex_);
    live_ = nullptr;
  }
  communicator.reset();
  if (copy_stream_ != nullptr) driver_.stream_destroy(copy_stream_);
}

}  // namespace cenote::pool::remote
