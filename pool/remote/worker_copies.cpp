// A lane's copies. Uploads are read by the device straight from the ring, whose slots go back when it is
// done; downloads go through pinned staging and leave in the order in which they were asked for.
#include <algorithm>

#include "pool/remote/worker_lane_inl.h"

namespace cenote::pool::remote {

using cuda::Status;

WorkerLane::StreamWork& WorkerLane::work_of(std::uint32_t wire) {
  if (wire < std::size(named_work_)) return named_work_[wire];
  if (wire >= stream_work_.size()) stream_work_.resize(wire + 1);
  return stream_work_[wire];
}

void WorkerLane::worked(cuda::Stream stream, std::uint32_t wire, std::uint32_t context) {
  work_since_ = true;
  auto& work = work_of(wire);
  work.last = ++work_;
  work.context = context;
  last_stream_ = stream;
  last_wire_ = wire;
  last_context_ = context;
  queued(stream, wire, context);
}

Result<void> WorkerLane::copy_in(std::uint64_t dst, std::uint32_t wire, std::span<const std::byte> bytes) {
  cuda::Stream stream = nullptr;
  std::uint32_t context = 0;
  if (!find_stream(wire, stream, context))
    return tell_error(context_, Status::invalid_handle, "upload: no such stream");
  if (!accessible(dst, bytes.size()))
    return tell_error(context, Status::invalid_value, "upload: no memory there");
  auto status = enter(context);
  if (status == Status::success)
    status = shared_.driver.memcpy_htod_async(dst, bytes.data(), bytes.size(), stream);
  if (status != Status::success) return tell_error(context, status, detail_of());
  worked(stream, wire, context);
  if (std::none_of(uploading_.begin(), uploading_.end(), [&](const auto& u) { return u.second == stream; }) ||
      std::find(uploading_context_.begin(), uploading_context_.end(), context) == uploading_context_.end()) {
    uploading_.emplace_back(wire, stream);
    uploading_context_.push_back(context);
  }
  return {};
}

Result<void> WorkerLane::on(const Upload& c) { return copy_in(c.dst, c.stream, c.bytes); }

Result<void> WorkerLane::on(const UploadBulk& c) {
  const auto& bulk = batch_->bulk;
  if (c.offset > bulk.size() || c.count > bulk.size() - c.offset)
    return fail(ErrorCode::protocol_error, "upload", "its bytes lie beyond the batch");
  return copy_in(c.dst, c.stream, bulk.subspan(c.offset, c.count));
}

Result<void> WorkerLane::on(const Download& c) {
  cuda::Stream stream = nullptr;
  std::uint32_t context = 0;
  if (!find_stream(c.stream, stream, context))
    return answer_text(c.request, Status::invalid_handle, 0, 0, "no such stream");
  if (!accessible(c.src, c.bytes))
    return answer_text(c.request, Status::invalid_value, 0, 0, "no memory there");
  DownloadJob job;
  job.request = c.request;
  job.src = c.src;
  job.left = c.bytes;
  job.context = context;
  job.stream = c.stream;
  downloads_.push_back(std::move(job));
  CENOTE_ASSIGN(const bool fed, feed_download());
  (void)fed;
  // Later commands of the stream may change the source: they wait until every piece is in the stream.
  if (downloads_.back().left != 0)
    blocked_ = [this] { return downloads_.empty() || downloads_.back().left == 0; };
  return {};
}

/// Puts pieces of the newest download into its stream while there is staging for them.
Result<bool> WorkerLane::feed_download() {
  if (downloads_.empty()) return false;
  auto& job = downloads_.back();
  bool moved = false;
  while (job.left != 0 && !free_staging_.empty()) {
    cuda::Stream stream = nullptr;
    std::uint32_t context = 0;
    auto status = find_stream(job.stream, stream, context) ? enter(context) : Status::invalid_handle;
    const auto staging = free_staging_.back();
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>(job.left, ring_bulk_bytes));
    if (status == Status::success)
      status = shared_.driver.memcpy_dtoh_async(staging_.get() + staging * ring_bulk_bytes, job.src, count,
                                                stream);
    Fence* const fence = status == Status::success ? place_fence(stream, job.stream, context) : nullptr;
    if (fence == nullptr) {
      job.status = status == Status::success ? context_status(context) : status;
      if (job.status == Status::success) job.status = Status::unknown;
      job.detail = detail_of();
      job.left = 0;
      return true;
    }
    free_staging_.pop_back();
    job.chunks.push_back({fence, staging, count});
    job.src += count;
    job.left -= count;
    worked(stream, job.stream, context);
    moved = true;
  }
  return moved;
}

Result<bool> WorkerLane::pump_downloads() {
  bool moved = false;
  // Staging is free again when the client has given back the slot that carried it.
  while (!sent_.empty() && out_->sent() - out_->in_flight() > sent_.front().batch) {
    free_staging_.push_back(sent_.front().staging);
    sent_.pop_front();
    moved = true;
  }
  for (auto job = downloads_.begin(); job != downloads_.end();) {
    while (!job->chunks.empty() && job->chunks.front().fence->done() && can_answer()) {
      const Chunk chunk = job->chunks.front();
      const bool failed = chunk.fence->failed || job->status != Status::success;
      if (failed) {
        if (job->status == Status::success) {
          job->status = context_status(job->context);
          job->detail = detail_of();
        }
        free_staging_.push_back(chunk.staging);
      } else {
        CENOTE_ASSIGN(const bool fits, bulk_fits());
        if (!fits) break;
        const std::span<const std::byte> bytes{staging_.get() + chunk.staging * ring_bulk_bytes, chunk.count};
        if (auto put = out_->put_bulk(bytes, 0); !put) {
          if (put.error().code == ErrorCode::resource_exhausted) break;
          return fail(std::move(put).error());
        }
        out_bulk_ = chunk.count;
        CENOTE_TRY(say(DataBulk{job->request, 0, static_cast<std::uint32_t>(chunk.count)}));
        sent_.push_back({out_->sent(), chunk.staging});
        CENOTE_TRY(send_answers());
      }
      retire(chunk.fence);
      job->chunks.pop_front();
      moved = true;
    }
    if (!job->chunks.empty() || job->left != 0 || !can_answer()) {
      ++job;
      continue;
    }
    // A context may have been lost after the copy was made of garbage: its state decides.
    auto status = job->status;
    if (status == Status::success) {
      status = context_status(job->context);
      if (status != Status::success) job->detail = detail_of();
    }
    CENOTE_TRY(answer_text(job->request, status, 0, 0, job->detail));
    job = downloads_.erase(job);
    moved = true;
  }
  CENOTE_ASSIGN(const bool fed, feed_download());
  return moved || fed;
}

Result<void> WorkerLane::on(const Copy& c) {
  if (!accessible(c.dst, c.bytes) || !accessible(c.src, c.bytes))
    return tell_error(context_, Status::invalid_value, "copy: no memory there");
  return in_stream(c.stream, "copy", [&](cuda::Stream stream) {
    return shared_.driver.memcpy_dtod_async(c.dst, c.src, c.bytes, stream);
  });
}

Result<void> WorkerLane::on(const Fill& c) {
  if (c.width != 1 && c.width != 4)
    return fail(ErrorCode::protocol_error, "fill", "width is neither 1 nor 4");
  if (c.count > UINT64_MAX / c.width || c.dst % c.width != 0 || !accessible(c.dst, c.count * c.width))
    return tell_error(context_, Status::invalid_value, "fill: no memory there");
  return in_stream(c.stream, "fill", [&](cuda::Stream stream) {
    auto& driver = shared_.driver;
    return c.width == 1 ? driver.memset_d8_async(c.dst, static_cast<unsigned char>(c.value), c.count, stream)
                        : driver.memset_d32_async(c.dst, c.value, c.count, stream);
  });
}

}  // namespace cenote::pool::remote
