// The demo's data: handwritten digits, 8 x 8 grey values and what each shows (examples/data/SOURCE.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/result.h"

namespace cenote::pool::cli {

inline constexpr std::size_t digit_pixels = 64;
inline constexpr std::size_t digit_classes = 10;

/// Rows of `digit_pixels` values in 0..1, and a class each.
struct Digits {
  std::vector<float> pixels;
  std::vector<std::int32_t> labels;
  [[nodiscard]] std::size_t rows() const { return labels.size(); }
};

struct DigitsSplit {
  Digits train, test;
};

/// Reads the CSV. Errors: not_found, protocol_error (with row and column).
Result<Digits> read_digits(const std::string& path);
/// Every fifth row is held out.
DigitsSplit split(const Digits& digits);
/// The folder that this program lies in.
std::filesystem::path program_folder();
/// `given`, or the copy beside the program, in its installation, or in a source tree around it or here.
/// Errors: not_found, with all the places.
Result<std::string> find_digits(const std::string& given,
                                const std::filesystem::path& program = program_folder());

}  // namespace cenote::pool::cli
