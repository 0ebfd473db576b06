#include "transports/reception.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace cenote::transport {
namespace {

enum Serial : std::uint64_t { serial_listener, serial_wakeup, serial_timer };

constexpr auto look_interval = std::chrono::milliseconds(1);  // how soon a death is noticed while spinning
constexpr std::uint32_t most_turns = 1024;
constexpr long pause_ns = 100'000'000;

void drain(const UniqueFd& fd) {
  std::uint64_t ignored = 0;
  (void)!::read(fd.get(), &ignored, sizeof ignored);
}

}  // namespace

Result<void> Reception::open(UniqueFd listener, const std::string& stage) {
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  wakeup_.reset(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
  if (!epoll_ || !wakeup_ || !timer_) return fail(system_error(stage, errno));
  listener_ = std::move(listener);
  CENOTE_TRY(watch(listener_.get(), serial_listener));
  CENOTE_TRY(watch(wakeup_.get(), serial_wakeup));
  return watch(timer_.get(), serial_timer);
}

Result<void> Reception::watch(int fd, std::uint64_t serial, bool for_writing, bool again) {
  epoll_event event{};
  event.events = EPOLLIN | EPOLLRDHUP | (for_writing ? EPOLLOUT : 0U);
  event.data.u64 = serial;
  if (::epoll_ctl(epoll_.get(), again ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &event) != 0)
    return fail(system_error("watch a socket", errno));
  return {};
}

UniqueFd Reception::accept(bool room) {
  while (room) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd || errno == EAGAIN) return fd;
    if (errno != EINTR && errno != ECONNABORTED) break;
  }
  heed(false);
  return {};
}

void Reception::heed(bool listener) {
  epoll_event event{};
  event.events = listener ? EPOLLIN : 0U;
  event.data.u64 = serial_listener;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event);
  itimerspec when{};
  if (!listener) when.it_value.tv_nsec = pause_ns;
  (void)::timerfd_settime(timer_.get(), 0, &when, nullptr);
}

bool Reception::look(const std::function<void()>& dialed, const std::function<void(std::uint64_t)>& event) {
  bool any = false;
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t serial = events.at(static_cast<std::size_t>(i)).data.u64;
    if (serial == serial_wakeup) {
      drain(wakeup_);
    } else if (serial == serial_timer) {
      drain(timer_);
      heed(true);
    } else {
      any = true;
      serial == serial_listener ? dialed() : event(serial);
    }
  }
  return any;
}

// As many turns as pass in a fraction of the interval; for who comes rarely, every one.
bool Reception::late() {
  const auto now = Clock::now();
  const auto passed = now - counted_;
  if (passed > look_interval) turns_ = std::max(turns_ / 2, 1U);
  if (passed < look_interval / 8) turns_ = std::min(turns_ * 2, most_turns);
  turns_left_ = turns_;
  counted_ = now;
  if (now < next_look_) return false;
  next_look_ = now + look_interval;
  return true;
}

void Reception::interrupt() {
  interrupted_.store(true, std::memory_order_release);
  const std::uint64_t one = 1;
  (void)!::write(wakeup_.get(), &one, sizeof one);
}

}  // namespace cenote::transport
