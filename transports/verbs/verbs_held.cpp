// What has arrived and may not be told yet: the GPU memory that it speaks of does not show it so far.
#include <utility>

#include "transports/verbs/verbs_endpoint.h"

namespace cenote::transport::verbs {

void VerbsEndpoint::hold(Held held) {
  held.round = core_->visibility.want();
  held_.push_back(std::move(held));
  core_->gated = true;
}

void VerbsEndpoint::hold(std::uint8_t slot, std::span<const std::byte> message) {
  Held held;
  held.slot = slot;
  held.message.assign(message.begin(), message.end());
  hold(std::move(held));
}

// What came into a slot of pinned memory is copied on; what the card wrote by itself may have to be flushed.
bool VerbsEndpoint::hold(const Piece& got) {
  Held held;
  held.got = got;
  held.got->borrows = held.got->on_device = false;  // nothing is under way for it any more
  if (got.block != Blocks::none) {
    const Registered* region = core_->registrations->find(got.local, got.length);
    auto copy = region == nullptr || !region->pinned
                    ? Result<std::uint64_t>(fail(ErrorCode::invalid_argument, "get into GPU memory",
                                                 "its region was destroyed before the operation was done"))
                    : region->pinned->store(reinterpret_cast<std::uintptr_t>(got.local),
                                            core_->blocks.at(got.block), got.length);
    if (copy) {
      held.pinned = region->pinned;
      held.copy = *copy;
    } else {
      doomed_ = std::make_unique<Error>(std::move(copy).error());
    }
  } else if (!core_->gated) {
    return false;
  }
  hold(std::move(held));
  return true;
}

bool VerbsEndpoint::tell_seen() {
  bool any = false;
  while (!held_.empty() && !doomed_ && held_.front().round <= core_->visibility.done()) {
    if (const Held& first = held_.front(); first.pinned) {
      auto there = first.pinned->is_done(first.copy);
      if (!there) {
        doomed_ = std::make_unique<Error>(std::move(there).error());
        break;
      }
      if (!*there) break;
    }
    Held seen = std::move(held_.front());
    held_.pop_front();
    if (seen.got) {
      if (seen.got->block != Blocks::none) core_->blocks.give(seen.got->block);
      seen.got->block = Blocks::none;
      finish_piece(*seen.got);
    } else if (seen.pinned) {
      staged_done(seen);
    } else {
      tell(seen.slot, seen.message);
    }
    any = true;
  }
  if (!doomed_ || failure_) return any;
  break_unseen(std::move(*std::exchange(doomed_, nullptr)));
  return true;
}

void VerbsEndpoint::break_unseen(Error error) {
  drop_held();
  break_with(std::move(error));
}

// What had come before the end is still given, unless it takes more than a call to make it visible.
void VerbsEndpoint::tell_last() {
  for (const Held& held : held_) {
    if (!held.pinned) continue;
    if (auto finished = held.pinned->finish_all(); !finished)
      core_->log_debug("endpoint ends: " + finished.error().message());
  }
  const auto begun = core_->visibility.proceed();
  if (begun) (void)tell_seen();
  drop_held();
  if (!begun) core_->break_waiting(begun.error());
}

void VerbsEndpoint::drop_held() {
  for (const Held& held : held_) {
    if (held.pinned) (void)held.pinned->finish_all();  // what it says, the end of its region says, too
    if (held.got) give_up(*held.got);
  }
  held_.clear();
}

}  // namespace cenote::transport::verbs
