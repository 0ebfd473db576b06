#include "tests/vm/environment.h"

#include <cstdlib>
#include <sstream>

namespace cenote::test::vm {
namespace {

std::vector<std::string> words_of(const char* name) {
  const char* value = std::getenv(name);
  std::istringstream words(value == nullptr ? "" : value);
  std::vector<std::string> found;
  for (std::string word; words >> word;) found.push_back(word);
  return found;
}

Environment read() {
  Environment found;
  const char* host = std::getenv("CENOTEVM_HOST");
  if (host == nullptr) return found;
  found.inside = true;
  found.host = std::atoi(host);
  found.devices = words_of("CENOTEVM_DEVICES");
  found.addresses = words_of("CENOTEVM_ADDRESSES");
  found.peer_addresses = words_of("CENOTEVM_PEER_ADDRESSES");
  if (const auto control = words_of("CENOTEVM_CONTROL"); control.size() == 2) {
    found.control_address = control[0];
    found.peer_control_address = control[1];
  }
  return found;
}

}  // namespace

const Environment& environment() {
  static const Environment found = read();
  return found;
}

void VmTest::SetUp() {
  if (!environment().inside) GTEST_SKIP() << "needs the test VM: tests/vm/cenote-vm run -- PROGRAM";
}

}  // namespace cenote::test::vm
