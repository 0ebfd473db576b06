#include "cuda/ptx/program.h"

namespace cenote::cuda::ptx {

namespace {
template <class T>
std::optional<std::size_t> find(const std::vector<T>& list, std::string_view name) {
  for (std::size_t i = 0; i < list.size(); ++i)
    if (list[i].name == name) return i;
  return std::nullopt;
}
}  // namespace

std::optional<std::size_t> Program::find_entry(std::string_view name) const { return find(entries, name); }
std::optional<std::size_t> Program::find_variable(std::string_view name) const {
  return find(variables, name);
}

}  // namespace cenote::cuda::ptx
