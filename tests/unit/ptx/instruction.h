// One instruction over a table of operands: makes a kernel that loads them, executes it, and stores the
// result.
#pragma once

#include <bit>
#include <cmath>
#include <limits>

#include "tests/unit/ptx/device.h"

namespace cenote::cuda::testing {

/// How a value of C++ type T lies in a PTX register.
template <class T>
struct Register {
  static constexpr int bits = sizeof(T) * 8;
  static std::string type() { return ".b" + std::to_string(bits); }
  static std::string prefix() { return bits == 16 ? "%h" : bits == 32 ? "%r" : "%q"; }
};

template <class T>
std::vector<T> edge_values() {
  if constexpr (std::is_floating_point_v<T>) {
    using L = std::numeric_limits<T>;
    return {0,
            T(-0.0),
            1,
            -1,
            T(0.5),
            T(-0.5),
            T(1.5),
            T(2.5),
            T(-2.5),
            T(3.14159265),
            T(1e10),
            T(-1e10),
            T(1e20),
            T(-1e20),
            L::max(),
            L::lowest(),
            L::min(),
            L::denorm_min(),
            -L::denorm_min(),
            L::infinity(),
            -L::infinity(),
            L::quiet_NaN(),
            T(2147483647),
            T(2147483648.0),
            T(-2147483648.0),
            T(4294967295.0),
            T(0.1),
            T(1.0000001),
            T(123456.789)};
  } else {
    using U = std::make_unsigned_t<T>;
    const U top = U(U{1} << (sizeof(T) * 8 - 1));
    std::vector<T> values = {0,
                             1,
                             2,
                             3,
                             5,
                             7,
                             8,
                             15,
                             16,
                             31,
                             32,
                             33,
                             63,
                             64,
                             100,
                             127,
                             T(128),
                             T(255),
                             T(-1),
                             T(-2),
                             T(-7),
                             T(-128),
                             T(top),
                             T(top - 1),
                             T(top + 1),
                             T(U(0x5555555555555555u)),
                             T(U(0xA5C3F00F12345678u)),
                             T(U(0x123456789ABCDEFu))};
    return values;
  }
}

template <class T>
T same(T v) {
  return v;
}

/// Every combination of `a` x `b` x `c`, thinned so that there are a few thousand at most.
template <class D, class... S>
void check_instruction(const std::string& instruction, auto reference, const std::vector<S>&... values) {
  SCOPED_TRACE(instruction);
  std::size_t count = 1;
  ((count *= values.size()), ...);
  const std::size_t step = count / 4096 + 1;
  std::vector<std::tuple<S...>> operands;
  for (std::size_t n = 0; n < count; n += step) {
    std::size_t rest = n;
    const auto next = [&](const auto& list) {
      const auto v = list[rest % list.size()];
      rest /= list.size();
      return v;
    };
    operands.push_back(std::tuple<S...>{next(values)...});
  }
  Device device;
  std::string text(ptx_header);
  text += ".visible .entry k(.param .u64 p0";
  for (std::size_t k = 0; k < sizeof...(S); ++k) text += ", .param .u64 p" + std::to_string(k + 1);
  text +=
      ", .param .u32 n) {\n.reg .pred %p<4>;\n.reg .b16 %h<9>;\n.reg .b32 %r<19>;\n.reg .b64 %q<19>;\n"
      "mov.u32 %r10, %ctaid.x; mov.u32 %r11, %ntid.x; mov.u32 %r12, %tid.x; mad.lo.s32 %r13, %r10, %r11, "
      "%r12;\n"
      "ld.param.u32 %r14, [n]; setp.ge.u32 %p0, %r13, %r14; @%p0 bra DONE;\n";
  int index = 0;
  std::string named = instruction;
  const auto substitute = [&](const std::string& from, const std::string& to) {
    for (auto at = named.find(from); at != std::string::npos; at = named.find(from))
      named.replace(at, from.size(), to);
  };
  const auto address = [](int parameter, std::size_t size) {
    return "ld.param.u64 %q10, [p" + std::to_string(parameter) + "]; mad.wide.u32 %q11, %r13, " +
           std::to_string(size) + ", %q10;\n";
  };
  const auto input = [&]<class T>(T) {
    ++index;
    const std::string name = Register<T>::prefix() + std::to_string(index);
    text += address(index, sizeof(T)) + "ld.global" + Register<T>::type() + " " + name + ", [%q11];\n";
    substitute(std::string("$") + char('a' + index - 1), name);
  };
  (input(S{}), ...);
  const std::string result = Register<D>::prefix() + "8";
  substitute("$d", result);
  text += named + "\n" + address(0, sizeof(D)) + "st.global" + Register<D>::type() + " [%q11], " + result +
          ";\nDONE: ret;\n}\n";
  const auto program = parsed(text);
  if (!program) return;
  const auto out = device.allocate(operands.size() * sizeof(D));
  std::vector<std::uint64_t> inputs;
  const auto send = [&]<std::size_t... I>(std::index_sequence<I...>) {
    const auto one = [&](auto which) {
      constexpr std::size_t k = decltype(which)::value;
      std::vector<std::tuple_element_t<k, std::tuple<S...>>> column;
      for (const auto& row : operands) column.push_back(std::get<k>(row));
      inputs.push_back(device.upload(column));
    };
    (one(std::integral_constant<std::size_t, I>{}), ...);
  };
  send(std::index_sequence_for<S...>{});
  const auto n = static_cast<std::uint32_t>(operands.size());
  emulator::Outcome outcome;
  const emulator::Dim3 grid{(n + 127) / 128, 1, 1};
  if (inputs.size() == 1) outcome = run(*program, "k", device, grid, {128, 1, 1}, Args(out, inputs[0], n));
  if (inputs.size() == 2)
    outcome = run(*program, "k", device, grid, {128, 1, 1}, Args(out, inputs[0], inputs[1], n));
  if (inputs.size() == 3)
    outcome = run(*program, "k", device, grid, {128, 1, 1}, Args(out, inputs[0], inputs[1], inputs[2], n));
  if (inputs.size() == 4)
    outcome = run(*program, "k", device, grid, {128, 1, 1},
                  Args(out, inputs[0], inputs[1], inputs[2], inputs[3], n));
  expect_success(outcome);
  const auto results = device.download<D>(out, operands.size());
  int shown = 0;
  for (std::size_t k = 0; k < operands.size() && shown < 3; ++k) {
    const D wanted = std::apply(reference, operands[k]);
    bool equal = std::memcmp(&wanted, &results[k], sizeof(D)) == 0;
    if constexpr (std::is_floating_point_v<D>)
      equal = equal || (std::isnan(wanted) && std::isnan(results[k]));
    if (equal) continue;
    ++shown;
    std::string shown_operands;
    std::apply([&](auto... v) { ((shown_operands += " " + ::testing::PrintToString(v)), ...); }, operands[k]);
    ADD_FAILURE() << instruction << " of" << shown_operands << " gave "
                  << ::testing::PrintToString(results[k]) << ", not " << ::testing::PrintToString(wanted);
  }
}

}  // namespace cenote::cuda::testing
