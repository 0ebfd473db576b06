// The conformance suite over the devices of the test VM.
#include "tests/unit/transports/pair.h"
#include "tests/vm/environment.h"
#include "transports/verbs/verbs.h"

namespace cenote::transport::test {

std::vector<Kind> kinds() {
  if (!cenote::test::vm::environment().inside) return {};
  VerbsOptions options;
  options.devices = {"rxe0", "rxe1"};
  options.timeout = cenote::test::vm::patient_timeout;
  return {{"verbs", [options] { return make_verbs_transport(options); },
           [options](FabricOptions& fabric) { fabric.verbs = options; }, 1000, 8}};
}

}  // namespace cenote::transport::test
