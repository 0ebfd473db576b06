// Task: a callable kept in place, so that a launch allocates nothing.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

namespace cenote::cuda::emulator {

class Task {
 public:
  static constexpr std::size_t capacity = 240;

  template <class F>
    requires(!std::is_same_v<std::decay_t<F>, Task>)
  explicit Task(F&& work) {  // NOLINT(bugprone-forwarding-reference-overload): not for Task itself
    using Work = std::decay_t<F>;
    static_assert(sizeof(Work) <= capacity && alignof(Work) <= alignof(std::max_align_t));
    static_assert(std::is_nothrow_move_constructible_v<Work>);
    new (storage_) Work(std::forward<F>(work));
    table_ = &table_of<Work>;
  }
  Task(Task&& other) noexcept : table_(other.table_) { table_->move(storage_, other.storage_); }
  Task& operator=(Task&&) = delete;
  ~Task() { table_->destroy(storage_); }

  void operator()() { table_->run(storage_); }

 private:
  struct Table {
    void (*run)(void*);
    void (*move)(void* to, void* from);
    void (*destroy)(void*);
  };
  template <class Work>
  static constexpr Table table_of = {
      [](void* at) { (*static_cast<Work*>(at))(); },
      [](void* to, void* from) { new (to) Work(std::move(*static_cast<Work*>(from))); },
      [](void* at) { static_cast<Work*>(at)->~Work(); },
  };

  alignas(std::max_align_t) std::byte storage_[capacity];
  const Table* table_;
};

}  // namespace cenote::cuda::emulator
