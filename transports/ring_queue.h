// RingQueue: a first-in first-out queue in one block that doubles when full and never shrinks: no allocation
// once it has seen its largest load. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace cenote::transport {

template <class T>
class RingQueue {
 public:
  [[nodiscard]] bool empty() const { return head_ == tail_; }
  [[nodiscard]] std::size_t size() const { return tail_ - head_; }
  [[nodiscard]] T& front() { return slots_[head_ & mask_]; }
  [[nodiscard]] T& back() { return slots_[(tail_ - 1) & mask_]; }
  [[nodiscard]] const T& back() const { return slots_[(tail_ - 1) & mask_]; }
  /// The index-th oldest.
  [[nodiscard]] T& operator[](std::size_t index) { return slots_[(head_ + index) & mask_]; }
  void push(T value) { add() = std::move(value); }
  /// The new last one, to be filled in: of a trivial type it holds whatever was there.
  [[nodiscard]] T& add() {
    if (size() == capacity_) [[unlikely]]
      grow();
    return slots_[tail_++ & mask_];
  }
  T pop() {
    T& oldest = slots_[head_++ & mask_];
    if constexpr (std::is_trivially_copyable_v<T>) {
      return oldest;
    } else {
      return std::exchange(oldest, T{});  // what it owns goes now
    }
  }
  void clear() {
    while (!empty()) (void)pop();
  }
  // Several at once, of a trivial type. A run is what lies in one piece: not always all there are.
  /// The oldest, at most `most`; not empty where the queue and `most` are not.
  [[nodiscard]] std::span<T> run(std::size_t most) {
    const std::size_t begin = head_ & mask_;
    return {slots_.get() + begin, std::min({most, size(), capacity_ - begin})};
  }
  void drop(std::size_t count) { head_ += count; }
  /// From then on as many are taken in without an allocation.
  void reserve(std::size_t count) {
    while (capacity_ < count) grow();
  }
  /// The place of the next one, to be filled in before added(1). Where there is room.
  [[nodiscard]] T& next() { return slots_[tail_ & mask_]; }
  void take_back() { --tail_; }  ///< the latest that was added
  /// Room for new ones, at least one and at most `most`, to be filled in from its begin; then added() takes
  /// as many of them in.
  [[nodiscard]] std::span<T> room(std::size_t most) {
    if (size() == capacity_) [[unlikely]]
      grow();
    const std::size_t begin = tail_ & mask_;
    return {slots_.get() + begin, std::min({most, capacity_ - size(), capacity_ - begin})};
  }
  void added(std::size_t count) { tail_ += count; }

 private:
  void grow() {
    const std::size_t wider = capacity_ == 0 ? 16 : capacity_ * 2;
    auto slots = std::make_unique<T[]>(wider);
    const auto count = size();
    for (std::size_t i = 0; i < count; ++i) slots[i] = std::move((*this)[i]);
    slots_ = std::move(slots);
    capacity_ = wider;
    mask_ = wider - 1;
    head_ = 0;
    tail_ = count;
  }

  std::unique_ptr<T[]> slots_;
  std::size_t capacity_ = 0;  ///< a power of two
  std::size_t mask_ = 0;      ///< one less
  std::size_t head_ = 0, tail_ = 0;
};

}  // namespace cenote::transport
