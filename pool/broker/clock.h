// The broker's clocks, behind an interface so that tests can turn them.
#pragma once

#include <chrono>
#include <cstdint>

namespace cenote::pool {

class BrokerClock {
 public:
  virtual ~BrokerClock() = default;
  /// Wall time: expiries, which agents compare with clocks of their own.
  [[nodiscard]] virtual std::int64_t unix_ms() const = 0;
  /// Time that never jumps: how long an agent has been silent.
  [[nodiscard]] virtual std::int64_t monotonic_ms() const = 0;
};

class SystemClock final : public BrokerClock {
 public:
  [[nodiscard]] std::int64_t unix_ms() const override { return ms(std::chrono::system_clock::now()); }
  [[nodiscard]] std::int64_t monotonic_ms() const override { return ms(std::chrono::steady_clock::now()); }

 private:
  template <class TimePoint>
  static std::int64_t ms(TimePoint point) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(point.time_since_epoch()).count();
  }
};

}  // namespace cenote::pool
