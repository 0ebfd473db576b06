// UCX as a guest in this process: it is opened at run time, and leaves alone what is not its own.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "runtime/settings.h"
#include "transports/fabric.h"
#include "transports/ucx/ucp_api.h"
#include "transports/ucx/ucx.h"

namespace cenote::transport::ucx {
namespace {

/// The first instructions of what UCX's memory hooks would patch.
struct Code {
  std::array<std::array<unsigned char, 24>, 3> bytes{};
  static Code read() {
    Code code;
    const char* const names[] = {"munmap", "mmap", "madvise"};
    for (std::size_t i = 0; i < code.bytes.size(); ++i)
      std::memcpy(code.bytes.at(i).data(), ::dlsym(RTLD_DEFAULT, names[i]), code.bytes.at(i).size());
    return code;
  }
};
const Code code_at_start = Code::read();

bool missing() { return !UcpApi::load(); }

TEST(UcxLibrary, ThatIsMissingIsRefusedWithTheRemedy) {
  const auto api = UcpApi::open("libucp-of-no-version.so.0");
  ASSERT_FALSE(api);
  EXPECT_EQ(api.error().code, ErrorCode::not_supported);
  EXPECT_NE(api.error().cause.find("libucp-of-no-version"), std::string::npos) << api.error().cause;
  EXPECT_NE(api.error().remedy.find("libucx0"), std::string::npos) << api.error().remedy;
}

TEST(UcxLibrary, ThatLacksAFunctionIsRefusedByItsName) {
  const auto api = UcpApi::open("libm.so.6");
  ASSERT_FALSE(api);
  EXPECT_EQ(api.error().code, ErrorCode::not_supported);
  EXPECT_NE(api.error().cause.find("ucp_config_read"), std::string::npos) << api.error().cause;
}

TEST(UcxLibrary, SignalHandlersStayTheHosts) {
  if (missing()) GTEST_SKIP() << "no UCX";
  ASSERT_TRUE(make_ucx_transport());
  for (const int number : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGHUP, SIGABRT}) {
    struct sigaction now {};
    ASSERT_EQ(::sigaction(number, nullptr, &now), 0);
    Dl_info home{};
    const bool named = ::dladdr(reinterpret_cast<void*>(now.sa_handler), &home) != 0;
    EXPECT_EQ(named ? std::string(home.dli_fname).find("libuc") : std::string::npos, std::string::npos)
        << "signal " << number << " goes to " << home.dli_fname;
  }
}

TEST(UcxLibrary, NoFunctionOfTheCLibraryIsPatched) {
  if (missing()) GTEST_SKIP() << "no UCX";
  const auto transport = make_ucx_transport();
  ASSERT_TRUE(transport) << transport.error().message();
  EXPECT_EQ(Code::read().bytes, code_at_start.bytes);
}

TEST(UcxLibrary, SetsNoEnvironment) {
  if (missing()) GTEST_SKIP() << "no UCX";
  ASSERT_TRUE(make_ucx_transport());
  for (char** entry = environ; *entry != nullptr; ++entry)
    EXPECT_NE(std::string(*entry).find("UCX_"), 0U) << *entry;
}

TEST(UcxLibrary, TransportsThatItDoesNotKnowAreRefusedWithTheRemedy) {
  if (missing()) GTEST_SKIP() << "no UCX";
  UcxOptions options;
  options.tls = "pigeon";
  const auto refused = make_ucx_transport(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::not_supported) << refused.error().message();
  EXPECT_NE(refused.error().remedy.find("ucx.tls"), std::string::npos) << refused.error().message();
}

TEST(UcxFabric, IsThereOnlyWhereTheSettingNamesIt) {
  if (missing()) GTEST_SKIP() << "no UCX";
  const auto of = [](const std::string& transports) {
    const auto settings = Settings::load({{}, Environment{}, {"transports=" + transports, "ucx.tls=tcp"}});
    return Fabric::create(fabric_options(settings.value())).value();
  };
  const auto a = of("ucx,tcp"), b = of("ucx,tcp"), c = of("tcp");
  EXPECT_EQ(a->choice(b->address()).value(), "ucx");
  EXPECT_EQ(a->choice(c->address()).value().substr(0, 3), "tcp");
  const auto plain = Fabric::create({}).value();
  for (const Transport* transport : plain->transports()) EXPECT_NE(transport->name(), "ucx");
}

}  // namespace
}  // namespace cenote::transport::ucx
