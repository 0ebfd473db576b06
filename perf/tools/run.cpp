#include "perf/tools/run.h"

namespace cenote::perf {

bool Run::fail_with(Error error) {
  // The endpoint's own failure says how the peer was lost; that the peer said why is better still.
  error_ = std::move(error);
  if (error_.peer.empty()) error_.peer = ends_.control.peer();
  return false;
}

bool Run::look() {
  const auto now = Clock::now();
  if (auto alive = ends_.control.tick(now); !alive) return failed_by(alive);
  if (auto failure = ends_.endpoint.failure()) return fail_with(std::move(*failure));
  if (ends_.progress) ends_.progress(done, now);
  return true;
}

bool Run::fill(const Buffer& buffer, std::uint64_t at, std::uint64_t message) {
  if (buffer.is_host()) {
    fill_pattern(buffer.at(at, plan.size), message);
    return true;
  }
  fill_pattern(scratch_, message);
  auto written = buffer.write(at, scratch_);
  return written ? true : failed_by(written);
}

bool Run::check_bytes(std::span<std::byte> bytes, std::uint64_t message) {
  if (ends_.before_check) ends_.before_check(bytes);
  auto right = check_pattern(bytes, message);
  return right ? true : failed_by(right);
}

bool Run::check(const Buffer& buffer, std::uint64_t at, std::uint64_t message) {
  if (buffer.is_host()) return check_bytes(buffer.at(at, plan.size), message);
  if (auto copied = buffer.read(at, scratch_); !copied) return failed_by(copied);
  return check_bytes(scratch_, message);
}

bool Run::answer_done() {
  if (answered || !has(slot_done)) return true;
  take(slot_done);
  answered = true;
  return signal(slot_confirm);
}

bool Run::conclude() {
  if (!signal(slot_done)) return false;
  while (!has(slot_confirm)) {
    if (!turn() || !reap()) return false;
  }
  take(slot_confirm);
  return true;
}

bool Run::serve() {
  while (!answered) {
    if (!turn() || !reap()) return false;
    // of a byte that is written somewhere nobody is woken
    if (idle_ > turns_before_yield && !plan.poll_memory && !rest()) return false;
  }
  return true;
}

// What is written to and read by a card needs nobody here; a processor that looks on is one less for the
// rest.
bool Run::rest() {
  transport::Transport* const transports[] = {&ends_.transport};
  auto woken = transport::wait(transports, Deadline::in(longest_rest), nullptr, "wait for the peer",
                               Clock::duration{});
  if (!woken && woken.error().code != ErrorCode::deadline_exceeded) return failed_by(woken);
  idle_ = woken ? 0 : turns_before_yield;
  return look();
}

bool Run::drain() {
  while (!ends_.endpoint.drained()) {
    if (!turn() || !reap()) return false;
  }
  return reap();
}

}  // namespace cenote::perf
