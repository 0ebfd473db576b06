#include "cuda/ptx/registers.h"

#include <algorithm>

namespace cenote::cuda::ptx {

RegisterPlaces place_registers(std::span<Inst>, std::uint32_t, std::vector<Slot>&,
                               const std::vector<std::uint8_t>& widths, std::size_t fixed) {
  RegisterPlaces result;
  result.places.assign(widths.size(), 0);
  for (std::size_t r = 0; r < fixed; ++r, result.bytes += 8)
    result.places[r] = static_cast<Slot>(result.bytes);
  for (const unsigned width : {8u, 4u, 2u, 1u})
    for (std::size_t r = fixed; r < widths.size(); ++r)
      if (widths[r] == width) {
        result.places[r] = static_cast<Slot>(result.bytes);
        result.bytes += width;
      }
  result.bytes = (result.bytes + 7) / 8 * 8;
  return result;
}

}  // namespace cenote::cuda::ptx
