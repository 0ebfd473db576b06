// MetricsServer: answers GET /metrics over plain HTTP, for Prometheus. Nobody who asks can cost more than
// this: one thread, at most 16 connections, 8 KiB of request and 5 s each, one answer a connection, and a
// text that is made at most four times a second, however often it is asked for.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "runtime/result.h"

namespace cenote {

class MetricsServer {
 public:
  /// `text` is called on the server's thread; what it uses outlives this. `address`: host:port, port 0 = a
  /// free one. Errors: already_exists (the port is taken), invalid_argument, system_error.
  static Result<std::unique_ptr<MetricsServer>> start(const std::string& address,
                                                      std::function<std::string()> text);
  virtual ~MetricsServer() = default;
  /// "127.0.0.1:9470", with the port that it got.
  [[nodiscard]] virtual const std::string& address() const = 0;
};

}  // namespace cenote
