#include "transports/verbs/event_order.h"

namespace cenote::transport::verbs {
namespace {

constexpr std::uint64_t most_ahead = 16384;  // more are never under way

tl::unexpected<Error> nonsense(const char* what) {
  return fail(ErrorCode::protocol_error, "read from peer", what);
}

}  // namespace

Result<void> EventOrder::take(const EventPart& part, const Deliver& deliver) {
  const std::uint64_t ahead = (part.number - static_cast<std::uint32_t>(delivered_ + 1)) & number_mask;
  if (ahead >= most_ahead) return nonsense("a signal or message that came before, or is far ahead");
  Waiting& event = waiting_[delivered_ + 1 + ahead];
  if (event.got == 0) {
    event.parts = part.parts;
    event.slot = part.slot;
  }
  if (event.parts != part.parts || event.slot != part.slot || event.got == event.parts ||
      (part.carries && event.carried))
    return nonsense("parts that are not of one signal or message");
  ++event.got;
  if (part.carries) {
    event.carried = true;
    event.message.assign(part.message.begin(), part.message.end());
  }
  while (!waiting_.empty()) {
    const auto first = waiting_.begin();
    if (first->first != delivered_ + 1 || first->second.got != first->second.parts) break;
    if ((first->second.slot == message_slot) != first->second.carried)
      return nonsense("a message without its bytes");
    ++delivered_;
    const Waiting whole = std::move(first->second);
    waiting_.erase(first);
    CENOTE_TRY(deliver(whole.slot, whole.message));
  }
  return {};
}

}  // namespace cenote::transport::verbs
