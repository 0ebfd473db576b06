#include "tests/unit/transports/pair.h"
#include "transports/shm/shm.h"
#include "transports/tcp/tcp.h"

namespace cenote::transport::test {

std::vector<Kind> kinds() {
  return {{"shm", [] { return make_shm_transport(); }}, {"tcp", [] { return make_tcp_transport(); }}};
}

}  // namespace cenote::transport::test
