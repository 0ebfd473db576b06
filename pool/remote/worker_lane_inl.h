// Templates of WorkerLane that several of its sources use.
#pragma once

#include "pool/remote/worker_lane.h"

namespace cenote::pool::remote {

/// More objects of one kind than this in one lane are refused.
inline constexpr std::uint32_t most_handles = 1U << 20;

template <class C>
Result<void> WorkerLane::say(const C& command) {
  const auto size = encoded_size(command);
  if (out_head_ + size > batch_capacity) CENOTE_TRY(send_answers());
  if (!out_->room() || out_head_ + size > batch_capacity)
    return fail(ErrorCode::resource_exhausted, "answer the client", "it does not take its answers");
  out_head_ += encode(command, out_->head().subspan(out_head_));
  return {};
}

template <class Work>
Result<void> WorkerLane::in_stream(std::uint32_t wire, std::string_view what, Work&& work) {
  cuda::Stream stream = nullptr;
  std::uint32_t context = 0;
  if (!find_stream(wire, stream, context))
    return tell_error(context_, cuda::Status::invalid_handle, std::string(what) + ": no such stream");
  auto status = enter(context);
  if (status == cuda::Status::success) status = work(stream);
  if (status != cuda::Status::success) return tell_error(context, status, detail_of());
  worked(stream, wire, context);
  return {};
}

template <class Slot>
Slot* WorkerLane::make_slot(std::vector<Slot>& table, std::uint32_t index) {
  if (index >= most_handles) return nullptr;
  if (index >= table.size()) table.resize(index + 1);
  return table[index].live ? nullptr : &table[index];
}

template <class Slot>
Slot* WorkerLane::live_slot(std::vector<Slot>& table, std::uint32_t index) {
  return index < table.size() && table[index].live ? &table[index] : nullptr;
}

}  // namespace cenote::pool::remote
