// Device printf and assert.
#include <cctype>
#include <cstdio>
#include <cstring>
#include <string>

#include "cuda/emulator/run_machine.h"

namespace cenote::cuda::emulator {

using ptx::Inst;
using ptx::Space;

namespace {
constexpr std::size_t max_text = 64 << 10;

struct Conversion {
  std::string flags;  ///< "%-08.3", without length and letter
  std::string length;
  char letter = '%';
};

// Reads the conversion behind a % at `at`; moves `at` behind it. Only what printf knows gets through to it.
Conversion conversion_at(const std::string& format, std::size_t& at) {
  Conversion c;
  c.flags = "%";
  std::size_t digits = 0;
  while (at < format.size() && std::strchr("-+ #0123456789.", format[at]) != nullptr && digits++ < 16)
    c.flags += format[at++];
  while (at < format.size() && std::strchr("hlLqjzt", format[at]) != nullptr) c.length += format[at++];
  if (at < format.size()) c.letter = format[at++];
  return c;
}

// Widths of many digits would make printf write that many blanks.
bool sane(const std::string& flags) {
  std::size_t run = 0;
  for (const char c : flags) {
    run = std::isdigit(static_cast<unsigned char>(c)) != 0 ? run + 1 : 0;
    if (run > 4) return false;
  }
  return true;
}

template <class T>
std::string formatted(const std::string& format, T value) {
  char small[512];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  const int wanted = std::snprintf(small, sizeof small, format.c_str(), value);
  if (wanted < 0) return {};
  if (static_cast<std::size_t>(wanted) < sizeof small) return small;
  std::string large(static_cast<std::size_t>(wanted) + 1, '\0');
  std::snprintf(large.data(), large.size(), format.c_str(), value);
#pragma GCC diagnostic pop
  large.pop_back();
  return large;
}

}  // namespace

bool Machine::read_string(Group& g, unsigned lane, std::uint64_t address, std::string& out) {
  for (; out.size() < max_text; ++address) {
    const char* why = "";
    const std::byte* c = lane_access(g, Space::generic, lane, address, 1, false, &why);
    if (c == nullptr) return false;
    if (*c == std::byte{0}) return true;
    out += static_cast<char>(*c);
  }
  return true;
}

bool Machine::print(Group& g, const Fragment& f, const Inst& i, const std::uint8_t* mask) {
  const auto* format_of = at<std::uint64_t>(g, i.a);
  const auto* second = at<std::uint64_t>(g, i.b);
  const bool is_print = i.op == ptx::Op::print;
  for (unsigned lane = f.low; lane < f.high; ++lane) {
    if (!mask[lane]) continue;
    addresses_[lane] = format_of[lane];
    std::string format;
    if (!read_string(g, lane, format_of[lane], format))
      return access_fault(g, i, lane, 1, "load", "no text there", false);
    if (!is_print) {
      std::string file;
      if (!read_string(g, lane, second[lane], file)) file = "?";
      const auto line = static_cast<std::uint32_t>(at<std::uint64_t>(g, i.c)[lane]);
      std::string text = "assertion `";
      text.append(format).append("` failed at ").append(file).append(":").append(std::to_string(line));
      fail(g, lane, i, Status::assert_failed, text);
      return false;
    }
    std::string out;
    std::uint64_t argument = second[lane];
    std::int32_t count = 0;
    for (std::size_t k = 0; k < format.size() && out.size() < max_text;) {
      if (format[k++] != '%') {
        out += format[k - 1];
        continue;
      }
      const Conversion c = conversion_at(format, k);
      if (c.letter == '%') {
        out += '%';
        continue;
      }
      const bool wide = c.length.find_first_of("ljztq") != std::string::npos ||
                        std::strchr("spfFeEgGaA", c.letter) != nullptr;
      const unsigned bytes = wide ? 8 : 4;
      argument = (argument + bytes - 1) / bytes * bytes;
      const char* why = "";
      const std::byte* from = lane_access(g, Space::generic, lane, argument, bytes, false, &why);
      addresses_[lane] = argument;
      if (from == nullptr) return access_fault(g, i, lane, bytes, "load", why, false);
      std::uint64_t value = 0;
      std::memcpy(&value, from, bytes);
      argument += bytes;
      ++count;
      const char letter = sane(c.flags) && c.letter != '\0' ? c.letter : '?';
      if (std::strchr("di", letter) != nullptr) {
        out += formatted(c.flags + "lld", wide ? static_cast<long long>(value)
                                               : static_cast<long long>(static_cast<std::int32_t>(value)));
      } else if (std::strchr("uoxX", letter) != nullptr) {
        out += formatted(c.flags + "ll" + letter, static_cast<unsigned long long>(value));
      } else if (letter == 'c') {
        out += formatted(c.flags + "c", static_cast<int>(value & 0xFF));
      } else if (letter == 'p') {
        out += formatted(std::string("0x%llx"), static_cast<unsigned long long>(value));
      } else if (letter == 's') {
        std::string text;
        addresses_[lane] = value;
        if (!read_string(g, lane, value, text))
          return access_fault(g, i, lane, 1, "load", "no text there", false);
        out += formatted(c.flags + "s", text.c_str());
      } else if (std::strchr("fFeEgGaA", letter) != nullptr) {
        double real = 0;
        std::memcpy(&real, &value, sizeof real);
        out += formatted(c.flags + letter, real);
      } else {
        out += "%?";
      }
    }
    if (shared_.launch.print) shared_.launch.print(out);
    std::uint64_t word = static_cast<std::uint32_t>(count);
    at<std::uint64_t>(g, i.d)[lane] = word;
  }
  return true;
}

}  // namespace cenote::cuda::emulator
