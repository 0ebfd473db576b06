// ForkMark: tells, with one load, the process that made it from a child of fork(): memory that the kernel
// gives the child as zeros. Where it cannot (before Linux 4.14), the process is asked for its number.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace cenote::collectives {

class ForkMark {
 public:
  ForkMark() {
    void* page = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    if (::madvise(page, bytes, MADV_WIPEONFORK) != 0) {
      ::munmap(page, bytes);
      return;
    }
    mark_ = static_cast<unsigned char*>(page);
    *mark_ = 1;
  }
  ~ForkMark() {
    if (mark_ != nullptr) ::munmap(mark_, bytes);
  }
  ForkMark(const ForkMark&) = delete;
  ForkMark& operator=(const ForkMark&) = delete;

  [[nodiscard]] bool in_child() const { return mark_ != nullptr ? *mark_ == 0 : ::getpid() != made_by_; }

 private:
  static constexpr std::size_t bytes = 4096;  ///< the kernel rounds it up to a page
  unsigned char* mark_ = nullptr;
  pid_t made_by_ = ::getpid();
};

}  // namespace cenote::collectives
