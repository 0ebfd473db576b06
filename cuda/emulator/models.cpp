#include "cuda/emulator/models.h"

#include <array>

namespace cenote::cuda::emulator {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;
constexpr std::size_t kMiB = std::size_t{1} << 20;

constexpr std::array kModels = {
    CardModel{"A100", "NVIDIA A100-SXM4-80GB (emulated)", 79 * kGiB + 254 * kMiB, 8, 0, 108, 2048, 1410000,
              1593000, 5120, 40 << 20, 163 << 10, true, 3, true},
    CardModel{"H100", "NVIDIA H100 80GB HBM3 (emulated)", 79 * kGiB + 112 * kMiB, 9, 0, 132, 2048, 1980000,
              2619000, 5120, 50 << 20, 227 << 10, true, 3, true},
    CardModel{"H200", "NVIDIA H200 (emulated)", 139 * kGiB + 820 * kMiB, 9, 0, 132, 2048, 1980000, 3201000,
              6144, 60 << 20, 227 << 10, true, 3, true},
    CardModel{"L40S", "NVIDIA L40S (emulated)", 44 * kGiB + 400 * kMiB, 8, 9, 142, 1536, 2520000, 9001000,
              384, 96 << 20, 99 << 10, false, 2, true},
    CardModel{"L4", "NVIDIA L4 (emulated)", 22 * kGiB + 512 * kMiB, 8, 9, 58, 1536, 2040000, 6251000, 192,
              48 << 20, 99 << 10, false, 2, true},
    CardModel{"T4", "Tesla T4 (emulated)", 14 * kGiB + 760 * kMiB, 7, 5, 40, 1024, 1590000, 5001000, 256,
              4 << 20, 64 << 10, false, 3, true},
};

}  // namespace

const CardModel& card_model(std::string_view name) {
  for (const auto& model : kModels) {
    if (model.model == name) return model;
  }
  return kModels.front();
}

}  // namespace cenote::cuda::emulator
