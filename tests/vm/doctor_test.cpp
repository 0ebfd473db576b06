// `cenote doctor` over the kernel's own devices: healthy as they are made, and with what is broken named.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/multi/agent/cluster.h"
#include "tests/vm/environment.h"
#include "tests/vm/faults.h"

namespace cenote::test::vm {
namespace {

using nlohmann::json;
using pool::testing::run_cenote;
using ::testing::HasSubstr;

class Doctor : public VmTest {
 protected:
  static json examine() {
    const auto result = run_cenote({"doctor", "--json"});
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return json::parse(result.output);
  }
  static json finding(const json& report, const std::string& subject) {
    for (const auto& found : report["preflight"])
      if (found["subject"] == subject) return found;
    ADD_FAILURE() << "nothing is said of " << subject << ": " << report["preflight"];
    return {};
  }
  static void expect(const json& report, const std::string& subject, const std::string& verdict,
                     const std::string& seen, const std::string& remedy = {}) {
    const json found = finding(report, subject);
    EXPECT_EQ(found.value("verdict", ""), verdict) << found;
    EXPECT_THAT(found.value("seen", ""), HasSubstr(seen)) << subject;
    EXPECT_THAT(found.value("remedy", ""), HasSubstr(remedy)) << subject;
  }
};

/// An interface that was left at 1500 bytes, for as long as this lives.
struct SmallMtu {
  explicit SmallMtu(std::string of) : device(std::move(of)) {
    run_tool("ip link set " + device + " mtu 1500");
  }
  ~SmallMtu() { run_tool("ip link set " + device + " mtu 4200"); }
  SmallMtu(const SmallMtu&) = delete;
  SmallMtu& operator=(const SmallMtu&) = delete;
  std::string device;
};

TEST_F(Doctor, FindsSoftRoceDevicesHealthyAndTheTransportUsable) {
  const auto report = examine();
  for (std::size_t k = 0; k < 2; ++k) {
    const auto device = environment().devices[k];
    expect(report, device, "ok", "a software device");
    expect(report, device + ":1 link", "ok", "RoCE ACTIVE");
    expect(report, device + ":1 GIDs", "ok", "RoCE v2 " + environment().addresses[k]);
    expect(report, device + ":1 MTU", "ok", "active 4096, rnet" + std::to_string(k) + " has 4200");
  }
  expect(report, "module ib_uverbs", "ok", "loaded");
  expect(report, "MTU of the ports", "ok", "4200 at all");
  for (const auto& rung : report["rungs"])
    if (rung["rung"] == "verbs") {
      EXPECT_TRUE(rung["usable"]) << rung;
    }
}

TEST_F(Doctor, NamesAnInterfaceThatIsDownAndAnMtuThatDiffers) {
  const SmallMtu small("rnet1");
  const LinkDown down("rnet0");
  const auto report = examine();
  const auto strict = run_cenote({"doctor", "--strict"});
  const auto device = environment().devices[0], other = environment().devices[1];
  expect(report, device + ":1 link", "problem", "RoCE DOWN", "ip link set rnet0 up");
  expect(report, other + ":1 MTU", "warning", "active 1024, rnet1 has 1500", "mtu 9000");
  expect(report, "MTU of the ports", "warning", "1500: " + other + ":1; 4200: " + device + ":1");
  EXPECT_EQ(strict.exit_code, 1);
  EXPECT_THAT(strict.output, HasSubstr("ip link set rnet0 up"));
}

}  // namespace
}  // namespace cenote::test::vm
