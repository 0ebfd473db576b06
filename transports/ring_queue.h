// RingQueue: a first-in first-out queue in one block that doubles when full and never shrinks: no allocation
// once it has seen its largest load. Not thread-safe.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace cenote::transport {

template <class T>
class RingQueue {
 public:
  [[nodiscard]] bool empty() const { return head_ == tail_; }
  [[nodiscard]] std::size_t size() const { return tail_ - head_; }
  [[nodiscard]] T& front() { return slots_[head_ & mask()]; }
  [[nodiscard]] T& back() { return slots_[(tail_ - 1) & mask()]; }
  [[nodiscard]] const T& back() const { return slots_[(tail_ - 1) & mask()]; }
  /// The index-th oldest.
  [[nodiscard]] T& operator[](std::size_t index) { return slots_[(head_ + index) & mask()]; }
  void push(T value) {
    if (size() == slots_.size()) grow();
    slots_[tail_++ & mask()] = std::move(value);
  }
  T pop() { return std::exchange(slots_[head_++ & mask()], T{}); }
  void clear() {
    while (!empty()) (void)pop();
  }

 private:
  [[nodiscard]] std::size_t mask() const { return slots_.size() - 1; }
  void grow() {
    std::vector<T> wider(slots_.empty() ? 16 : slots_.size() * 2);
    const auto count = size();
    for (std::size_t i = 0; i < count; ++i) wider[i] = std::move((*this)[i]);
    slots_ = std::move(wider);
    head_ = 0;
    tail_ = count;
  }

  std::vector<T> slots_;
  std::size_t head_ = 0, tail_ = 0;
};

}  // namespace cenote::transport
