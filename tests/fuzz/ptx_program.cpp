// PTX that a client sends: parsing ends with a program or an error that names a line, never with more. What
// is accepted has the invariants that running it relies on.
#include "cuda/kernels/embedded.h"
#include "cuda/ptx/program.h"
#include "tests/fuzz/fuzzer.h"

namespace cenote::fuzz {
namespace {

/// The module's head, and one entry each: small inputs, which the fuzzer changes best.
void split(std::string_view module, std::vector<Bytes>& to) {
  constexpr std::string_view mark = "\n.visible .entry ";
  const auto first = module.find(mark);
  const auto head = module.substr(0, first);
  for (auto at = first; at != std::string_view::npos;) {
    const auto next = module.find(mark, at + 1);
    std::string text(head);
    text += module.substr(at, next == std::string_view::npos ? next : next - at);
    const auto bytes = as_bytes(text);
    to.emplace_back(bytes.begin(), bytes.end());
    at = next;
  }
}

}  // namespace

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  for (const auto module :
       {cuda::kernels::basic_ptx(), cuda::kernels::mlp_ptx(), cuda::kernels::reduce_ptx()})
    split(module, all);
  require(all.size() > 10, "the kept kernels have entries");
  return all;
}

}  // namespace cenote::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace cenote;
  const auto program = cuda::ptx::parse(as_text(std::as_bytes(std::span(data, size))));
  if (!program) {
    fuzz::require(!program.error().cause.empty(), "a refusal has a cause");
    return 0;
  }
  fuzz::require(*program != nullptr, "a program was made");
  for (std::size_t i = 0; i < (*program)->entries.size(); ++i) {
    const auto found = (*program)->find_entry((*program)->entries[i].name);
    fuzz::require(found && *found == i, "an entry is found under its name");
  }
  return 0;
}
