// Lists of nodes and of tasks as Slurm writes them, in any bytes: what is read is no larger than a job may
// be.
#include "runtime/launcher_lists.h"
#include "tests/fuzz/fuzzer.h"

namespace cenote::fuzz {
namespace {

using namespace launcher;

void run(std::string_view list) {
  if (const auto names = expand_nodes(list)) {
    require(!names->empty() && names->size() <= most_nodes, "a list has from 1 to most_nodes names");
    for (const auto& name : *names)
      require(!name.empty() && name.size() <= 253, "a name is one of a machine");
    const auto again = expand_nodes(names->back());
    require(again && again->size() == 1 && again->front() == names->back(), "a name stands for itself");
  } else {
    require(names.error().cause.size() < 400, "an error does not repeat all of a list");
  }
  if (const auto counts = expand_counts(list))
    require(!counts->empty() && counts->size() <= most_nodes, "so has a list of counts");
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> out;
  for (const std::string_view list : {"gpu[1-3,07],login", "r[0-1]n[0-1]", "n[008-011]-ib", "2(x3),1", "8"})
    out.push_back(Writer().raw(as_bytes(list)).take());
  return out;
}

}  // namespace cenote::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cenote::fuzz::run({reinterpret_cast<const char*>(data), size});
  return 0;
}
