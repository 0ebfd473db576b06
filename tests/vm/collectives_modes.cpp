// The collectives over the devices of the test VM, and over nothing else.
#include "tests/multi/collectives/ranks.h"
#include "tests/vm/environment.h"

namespace cenote::collectives {

std::vector<Mode> modes() {
  if (!cenote::test::vm::environment().inside) return {};
  return {Mode::verbs};
}

std::vector<GroupOf> groups() {
  if (!cenote::test::vm::environment().inside) return {};
  return {{Mode::verbs, 3}, {Mode::verbs, 4}};
}

}  // namespace cenote::collectives
