// The conformance suite over UCX's reliable connections (rc, which it sets up through ud), on the VM's
// devices.
#include <cstdlib>

#include "tests/unit/transports/pair.h"
#include "tests/vm/environment.h"
#include "transports/ucx/ucx.h"

namespace cenote::transport::test {

std::vector<Kind> kinds() {
  if (!cenote::test::vm::environment().inside) return {};
  // Not every device: each of UCX's workers holds 50 MB of receive buffers for it, unless told otherwise. And
  // the GID with which its ud finds its peer; where that does not answer, UCX 1.13 aborts the process.
  ::setenv("UCX_NET_DEVICES", "rxe0:1,rxe1:1", 1);
  ::setenv("UCX_IB_GID_INDEX", "0", 1);
  ::setenv("UCX_RC_VERBS_RX_QUEUE_LEN", "512", 1);
  ::setenv("UCX_UD_VERBS_RX_QUEUE_LEN", "512", 1);
  UcxOptions options;
  options.tls = "rc,self";
  return {{"ucx_rc", [options] { return make_ucx_transport(options); },
           [options](FabricOptions& fabric) { fabric.ucx = options; }, 50, 4}};
}

}  // namespace cenote::transport::test
