#include "cuda/device_copies.h"

#include <deque>
#include <utility>
#include <vector>

#include "cuda/current_context.h"
#include "cuda/reduce_kernels.h"

namespace cenote::cuda {
namespace {

class StreamCopies final : public DeviceCopies {
 public:
  StreamCopies(Driver& driver, Context context, const std::string& home, std::shared_ptr<void> keep)
      : keep_(std::move(keep)), driver_(driver), context_(context), home_(home) {}
  ~StreamCopies() override {
    const CurrentContext current(driver_, context_);
    if (current.status() != Status::success) return;
    if (stream_ != nullptr) (void)driver_.stream_synchronize(stream_);
    for (Event event : under_way_) driver_.event_destroy(event);
    for (Event event : idle_) driver_.event_destroy(event);
    if (stream_ != nullptr) driver_.stream_destroy(stream_);
    if (memory_ != nullptr) driver_.mem_free_host(memory_);
  }
  StreamCopies(const StreamCopies&) = delete;
  StreamCopies& operator=(const StreamCopies&) = delete;

  Status open(std::size_t bytes) {
    const CurrentContext current(driver_, context_);
    auto status = current.status();
    if (status == Status::success) status = driver_.mem_host_alloc(&memory_, bytes, 0);
    if (status == Status::success) status = driver_.stream_create(&stream_, stream_non_blocking);
    bytes_ = bytes;
    return status;
  }
  [[nodiscard]] std::span<std::byte> pinned() const override {
    return {static_cast<std::byte*>(memory_), bytes_};
  }
  [[nodiscard]] const std::string& home() const override { return home_; }
  Result<std::uint64_t> to_device(std::uint64_t device, const std::byte* host, std::size_t bytes) override {
    const CurrentContext current(driver_, context_);
    auto status = current.status();
    if (status == Status::success) status = driver_.memcpy_htod_async(device, host, bytes, stream_);
    return marked(status, "write device memory");
  }
  Result<std::uint64_t> from_device(std::byte* host, std::uint64_t device, std::size_t bytes) override {
    const CurrentContext current(driver_, context_);
    auto status = current.status();
    if (status == Status::success) status = driver_.memcpy_dtoh_async(host, device, bytes, stream_);
    return marked(status, "read device memory");
  }
  Result<std::uint64_t> finished() override {
    if (under_way_.empty()) return finished_;
    const CurrentContext current(driver_, context_);
    auto status = current.status();
    while (status == Status::success && !under_way_.empty()) {
      status = driver_.event_query(under_way_.front());
      if (status != Status::success) break;
      idle_.push_back(under_way_.front());
      under_way_.pop_front();
      ++finished_;
    }
    if (status != Status::success && status != Status::not_ready)
      return fail(driver_error(driver_, "copy device memory", status).on(home_));
    return finished_;
  }

 private:
  Result<std::uint64_t> marked(Status status, const char* what) {
    Event event = nullptr;
    if (status == Status::success && idle_.empty()) {
      status = driver_.event_create(&event, event_disable_timing);
    } else if (status == Status::success) {
      event = idle_.back();
      idle_.pop_back();
    }
    if (status == Status::success) status = driver_.event_record(event, stream_);
    if (event != nullptr) (status == Status::success ? under_way_.push_back(event) : idle_.push_back(event));
    if (status != Status::success) return fail(driver_error(driver_, what, status).on(home_));
    return finished_ + under_way_.size();
  }

  std::shared_ptr<void> keep_;
  Driver& driver_;
  Context context_;
  std::string home_;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  Stream stream_ = nullptr;
  std::deque<Event> under_way_;
  std::vector<Event> idle_;
  std::uint64_t finished_ = 0;
};

}  // namespace

Result<std::unique_ptr<DeviceCopies>> open_copies(Driver& driver, Context context, const std::string& home,
                                                  std::size_t pinned_bytes, std::shared_ptr<void> keep) {
  auto copies = std::make_unique<StreamCopies>(driver, context, home, std::move(keep));
  if (const auto status = copies->open(pinned_bytes); status != Status::success)
    return fail(
        driver_error(driver, "pin " + std::to_string(pinned_bytes) + " bytes for copies", status).on(home));
  return copies;
}

}  // namespace cenote::cuda
