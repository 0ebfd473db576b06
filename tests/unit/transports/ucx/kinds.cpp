// The conformance suite over UCX's shared memory and over its TCP.
#include "tests/unit/transports/pair.h"
#include "transports/ucx/ucp_api.h"
#include "transports/ucx/ucx.h"

namespace cenote::transport::test {
namespace {

Kind kind(std::string name, const std::string& tls, std::uint64_t unseen) {
  UcxOptions options;
  options.tls = tls;
  return {std::move(name), [options] { return make_ucx_transport(options); },
          [options](FabricOptions& fabric) { fabric.ucx = options; }, unseen, 60};
}

/// Where this machine has no UCX, nothing is tested, and the log says how much.
struct NeedsUcx : testing::Environment {
  void SetUp() override {
    const auto api = ucx::UcpApi::load();
    if (!api)
      GTEST_SKIP() << testing::UnitTest::GetInstance()->test_to_run_count()
                   << " tests need UCX: " << api.error().message();
  }
};
const auto* const needs_ucx = testing::AddGlobalTestEnvironment(std::make_unique<NeedsUcx>().release());

}  // namespace

/// UCX's shared memory holds 64 messages that nobody has read; a socket takes more.
std::vector<Kind> kinds() { return {kind("ucx_shm", "posix", 50), kind("ucx_tcp", "tcp", 1000)}; }

}  // namespace cenote::transport::test
