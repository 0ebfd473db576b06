// ForkMark: how an object notices, without a system call, that it is in a child of fork() and not in the
// process that made it.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>

#include "runtime/result.h"

namespace cenote {

/// A page that the kernel empties in a child. Not thread-safe until set() has returned; then it is.
class ForkMark {
 public:
  ForkMark() = default;
  ~ForkMark() {
    if (page_ != nullptr) munmap(page_, bytes);
  }
  ForkMark(const ForkMark&) = delete;
  ForkMark& operator=(const ForkMark&) = delete;

  /// Once. Errors: system_error.
  Result<void> set() {
    constexpr const char* stage = "mark memory against fork()";
    void* const page = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return fail(system_error(stage, errno));
    if (madvise(page, bytes, MADV_WIPEONFORK) != 0) {
      const int met = errno;
      munmap(page, bytes);
      return fail(system_error(stage, met));
    }
    *static_cast<int*>(page) = 1;
    page_ = static_cast<int*>(page);
    return {};
  }
  /// Whether this process is a child of the one that called set().
  [[nodiscard]] bool forked() const {
    return page_ != nullptr && *static_cast<const volatile int*>(page_) == 0;
  }

 private:
  static constexpr std::size_t bytes = 4096;
  int* page_ = nullptr;
};

}  // namespace cenote
