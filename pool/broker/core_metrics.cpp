// Where the broker's core counts.
#include "pool/broker/core.h"
#include "runtime/log.h"

namespace cenote::pool {

Result<LeaseView> BrokerCore::request(const LeaseAsk& ask) {
  auto answer = grant(ask);
  if (!answer) metrics_->refused(answer.error());
  return answer;
}

std::string BrokerCore::metrics_text() const {
  auto text = metrics_->text(top());
  if (text) return std::move(*text);
  log_.write(LogLevel::error, text.error());
  return "# " + text.error().cause + "\n";
}

}  // namespace cenote::pool
