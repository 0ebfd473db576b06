// Makes a context current to the calling thread for a while.
#pragma once

#include "cuda/driver.h"

namespace cenote::cuda {

class CurrentContext {
 public:
  CurrentContext(Driver& driver, Context context)
      : driver_(driver), status_(driver.ctx_push_current(context)) {}
  ~CurrentContext() {
    if (status_ == Status::success) driver_.ctx_pop_current(nullptr);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  /// Whether it is.
  [[nodiscard]] Status status() const { return status_; }

 private:
  Driver& driver_;
  const Status status_;
};

}  // namespace cenote::cuda
