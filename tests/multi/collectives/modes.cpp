// The transports that every machine has.
#include "tests/multi/collectives/ranks.h"

namespace cenote::collectives {

std::vector<Mode> modes() { return {Mode::shm, Mode::tcp, Mode::mixed}; }

std::vector<GroupOf> groups() {
  return {{Mode::shm, 1}, {Mode::shm, 2},   {Mode::shm, 3},   {Mode::shm, 4},  {Mode::shm, 5},
          {Mode::shm, 8}, {Mode::tcp, 2},   {Mode::tcp, 3},   {Mode::tcp, 4},  {Mode::tcp, 5},
          {Mode::tcp, 8}, {Mode::mixed, 3}, {Mode::mixed, 4}, {Mode::mixed, 8}};
}

}  // namespace cenote::collectives
