// The kernels of cuda/kernels against plain C++, and the kept PTX against what nvcc makes today.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "collectives/reduce/reduce.h"
#include "cuda/emulator/run_lanes.h"
#include "cuda/kernels/embedded.h"
#include "cuda/kernels/mlp_layout.h"
#include "cuda/ptx/code.h"
#include "tests/test_paths.h"
#include "tests/unit/ptx/device.h"

namespace cenote::cuda::testing {
namespace {

using kernels::blocks_for;
using kernels::mlp_block;
using kernels::mlp_tile;

std::vector<float> random_floats(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> any(-1, 1);
  std::vector<float> values(count);
  for (auto& v : values) v = any(random);
  return values;
}

struct Shape {
  unsigned rows, inputs, outputs;
};
class Mlp : public ::testing::TestWithParam<Shape> {
 protected:
  void launch(const char* name, emulator::Dim3 grid, emulator::Dim3 block, const Args& args) {
    expect_success(run(*program, name, device, grid, block, args, 0, 2));
  }
  static emulator::Dim3 tiles(unsigned columns, unsigned rows) {
    return {blocks_for(columns, mlp_tile), blocks_for(rows, mlp_tile), 1};
  }
  std::shared_ptr<const ptx::Program> program = parsed(kernels::mlp_ptx());
  Device device;
  Shape s = GetParam();
  std::vector<float> x = random_floats(s.rows * s.inputs, 1), w = random_floats(s.inputs * s.outputs, 2),
                     bias = random_floats(s.outputs, 3), dy = random_floats(s.rows * s.outputs, 4);
};
INSTANTIATE_TEST_SUITE_P(Shapes, Mlp,
                         ::testing::Values(Shape{64, 64, 64}, Shape{100, 64, 10}, Shape{17, 33, 65},
                                           Shape{1, 1, 1}, Shape{256, 128, 10}));

TEST_P(Mlp, ForwardIsBitEqual) {
  const auto px = device.upload(x), pw = device.upload(w), pb = device.upload(bias),
             py = device.allocate(s.rows * s.outputs * 4);
  for (const unsigned relu : {0u, 1u}) {
    launch("cenote_mlp_forward", tiles(s.outputs, s.rows), {mlp_tile, mlp_tile, 1},
           Args(px, pw, pb, py, s.rows, s.inputs, s.outputs, relu));
    const auto y = device.download<float>(py, s.rows * s.outputs);
    for (unsigned r = 0; r < s.rows; ++r)
      for (unsigned c = 0; c < s.outputs; ++c) {
        float sum = 0;
        for (unsigned k = 0; k < s.inputs; ++k)
          sum = std::fma(x[r * s.inputs + k], w[k * s.outputs + c], sum);
        sum += bias[c];
        ASSERT_EQ(y[r * s.outputs + c], relu != 0 && !(sum > 0) ? 0.0f : sum);
      }
  }
}
TEST_P(Mlp, GradientsAreBitEqual) {
  const auto px = device.upload(x), pw = device.upload(w), pdy = device.upload(dy),
             pdw = device.allocate(w.size() * 4), pdb = device.allocate(s.outputs * 4),
             pdx = device.allocate(x.size() * 4);
  launch("cenote_mlp_weight_gradient", tiles(s.outputs, s.inputs), {mlp_tile, mlp_tile, 1},
         Args(px, pdy, pdw, s.rows, s.inputs, s.outputs));
  launch("cenote_mlp_bias_gradient", {blocks_for(s.outputs, mlp_block), 1, 1}, {mlp_block, 1, 1},
         Args(pdy, pdb, s.rows, s.outputs));
  launch("cenote_mlp_input_gradient", tiles(s.inputs, s.rows), {mlp_tile, mlp_tile, 1},
         Args(pdy, pw, px, pdx, s.rows, s.inputs, s.outputs));
  const auto dw = device.download<float>(pdw, w.size()), db = device.download<float>(pdb, s.outputs),
             dx = device.download<float>(pdx, x.size());
  for (unsigned i = 0; i < s.inputs; ++i)
    for (unsigned c = 0; c < s.outputs; ++c) {
      float sum = 0;
      for (unsigned r = 0; r < s.rows; ++r) sum = std::fma(x[r * s.inputs + i], dy[r * s.outputs + c], sum);
      ASSERT_EQ(dw[i * s.outputs + c], sum);
    }
  for (unsigned c = 0; c < s.outputs; ++c) {
    float sum = 0;
    for (unsigned r = 0; r < s.rows; ++r) sum += dy[r * s.outputs + c];
    ASSERT_EQ(db[c], sum);
  }
  for (unsigned r = 0; r < s.rows; ++r)
    for (unsigned i = 0; i < s.inputs; ++i) {
      float sum = 0;
      for (unsigned c = 0; c < s.outputs; ++c)
        sum = std::fma(dy[r * s.outputs + c], w[i * s.outputs + c], sum);
      ASSERT_EQ(dx[r * s.inputs + i], x[r * s.inputs + i] > 0 ? sum : 0.0f);
    }
}
TEST_P(Mlp, LossItsGradientAndTheCountOfRightRows) {
  std::vector<int> labels(s.rows);
  for (unsigned r = 0; r < s.rows; ++r) labels[r] = int(r * 7 % s.outputs);
  const auto pz = device.upload(dy), pl = device.upload(labels), pg = device.allocate(dy.size() * 4),
             ploss = device.allocate(s.rows * 4), pcount = device.upload(std::vector<unsigned>{0}),
             psum = device.allocate(4);
  const emulator::Dim3 grid{blocks_for(s.rows, mlp_block), 1, 1}, block{mlp_block, 1, 1};
  launch("cenote_mlp_softmax_loss", grid, block, Args(pz, pl, pg, ploss, s.rows, s.outputs));
  launch("cenote_mlp_count_correct", grid, block, Args(pz, pl, pcount, s.rows, s.outputs));
  launch("cenote_mlp_sum", {1, 1, 1}, block, Args(ploss, psum, s.rows));
  const auto g = device.download<float>(pg, dy.size()), loss = device.download<float>(ploss, s.rows);
  unsigned correct = 0;
  double total = 0;
  for (unsigned r = 0; r < s.rows; ++r) {
    const float* z = &dy[r * s.outputs];
    double sum = 0;
    for (unsigned c = 0; c < s.outputs; ++c) sum += std::exp(double{z[c]});
    for (unsigned c = 0; c < s.outputs; ++c)
      ASSERT_NEAR(g[r * s.outputs + c], std::exp(double{z[c]}) / sum - (int(c) == labels[r]), 1e-6);
    ASSERT_NEAR(loss[r], std::log(sum) - z[labels[r]], 2e-6);
    total += loss[r];
    correct += std::max_element(z, z + s.outputs) - z == labels[r];
  }
  EXPECT_EQ(device.download<unsigned>(pcount, 1)[0], correct);
  EXPECT_NEAR(device.download<float>(psum, 1)[0], total, 1e-5 * std::fabs(total) + 1e-6);
}
TEST_P(Mlp, UpdateIsBitEqual) {
  auto v = random_floats(w.size(), 9), p = w;
  const auto g = random_floats(w.size(), 10);
  const auto pp = device.upload(p), pv = device.upload(v), pg = device.upload(g);
  const auto count = static_cast<unsigned>(w.size());
  launch("cenote_mlp_update", {blocks_for(count, mlp_block), 1, 1}, {mlp_block, 1, 1},
         Args(pp, pv, pg, count, 0.1f, 0.9f, 1.0f / 256));
  for (std::size_t i = 0; i < w.size(); ++i) {
    v[i] = std::fma(0.9f, v[i], 1.0f / 256 * g[i]);
    p[i] = std::fma(-0.1f, v[i], p[i]);
  }
  EXPECT_EQ(device.download<float>(pp, w.size()), p);
  EXPECT_EQ(device.download<float>(pv, w.size()), v);
}

TEST(ReduceKernels, AreBitEqualToTheReductionOnTheCpu) {
  const auto program = parsed(kernels::reduce_ptx());
  const std::pair<DataType, const char*> types[] = {{CENOTE_FLOAT32, "f32"}, {CENOTE_FLOAT64, "f64"},
                                                    {CENOTE_FLOAT16, "f16"}, {CENOTE_BFLOAT16, "bf16"},
                                                    {CENOTE_INT32, "s32"},   {CENOTE_INT64, "s64"}};
  const std::pair<ReduceOp, const char*> ops[] = {
      {CENOTE_SUM, "sum"}, {CENOTE_MIN, "min"}, {CENOTE_MAX, "max"}};
  constexpr std::size_t count = 5000;
  std::mt19937_64 random(3);
  for (const auto& [type, type_name] : types) {
    const auto bytes = size_of(type) * count;
    std::vector<std::byte> a(bytes), b(bytes);  // any bits: NaNs, infinities and subnormals among them
    for (auto* v : {&a, &b})
      for (auto& x : *v) x = std::byte(random());
    std::memset(a.data(), 0, bytes / 8);  // zeroes against zeroes of either sign
    for (std::size_t i = 0; i < bytes / 8; ++i)
      b[i] = (i + 1) % size_of(type) == 0 && i % 3 == 0 ? std::byte{0x80} : std::byte{0};
    for (const auto& [op, op_name] : ops) {
      Device device;
      const auto pa = device.upload(a), pb = device.upload(b);
      const std::string name = std::string("cenote_reduce_") + op_name + "_" + type_name;
      expect_success(
          run(*program, name, device, {20, 1, 1}, {256, 1, 1}, Args(pa, pb, std::uint64_t{count})));
      auto wanted = a;
      ASSERT_TRUE(collectives::reduce(wanted.data(), b.data(), bytes, type, op));
      EXPECT_TRUE(device.download<std::byte>(pa, bytes) == wanted) << name;
    }
    Device device;
    const auto pa = device.upload(a);
    expect_success(run(*program, std::string("cenote_divide_") + type_name, device, {20, 1, 1}, {256, 1, 1},
                       Args(pa, std::uint64_t{count}, 3u)));
    auto wanted = a;
    collectives::divide_kernel(type)(wanted.data(), count, 3);
    EXPECT_TRUE(device.download<std::byte>(pa, bytes) == wanted) << type_name;
  }
}

TEST(BasicKernels, DoWhatTheirNamesSay) {
  const auto program = parsed(kernels::basic_ptx());
  constexpr unsigned n = 1000;
  const emulator::Dim3 grid{4, 1, 1}, block{256, 1, 1};
  const auto x = random_floats(n, 1), y = random_floats(n, 2);
  Device device;
  const auto px = device.upload(x), py = device.upload(y), pz = device.allocate(n * 4);
  expect_success(run(*program, "cenote_null", device, grid, block, Args()));
  expect_success(run(*program, "cenote_vector_add", device, grid, block, Args(px, py, pz, n)));
  expect_success(run(*program, "cenote_saxpy", device, grid, block, Args(2.5f, px, py, n)));
  const auto sum = device.download<float>(pz, n), axpy = device.download<float>(py, n);
  for (unsigned i = 0; i < n; ++i) ASSERT_EQ(sum[i], x[i] + y[i]);
  for (unsigned i = 0; i < n; ++i) ASSERT_EQ(axpy[i], std::fma(2.5f, x[i], y[i]));
  expect_success(run(*program, "cenote_scale_and_count", device, grid, block, Args(px, n)));
  for (unsigned i = 0; i < n; ++i) ASSERT_EQ(device.download<float>(px, n)[i], x[i] * float(1 << i % 4));
  const auto fault = run(*program, "cenote_store_at", device, grid, block, Args(pz, std::uint64_t{n}, 300u));
  EXPECT_EQ(fault.status, Status::illegal_address);
  EXPECT_EQ(fault.fault->block, (emulator::Dim3{1, 0, 0}));
  EXPECT_EQ(fault.fault->thread, (emulator::Dim3{44, 0, 0}));
}

// Every lane function on operands of any bits: all vector widths that this processor has give the same.
TEST(Lanes, AreTheSameAtEveryVectorWidth) {
  std::vector<const emulator::LaneTable*> tables{&emulator::lanes_base};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    tables.push_back(&emulator::lanes_avx2);
  if (&emulator::best_lanes() == &emulator::lanes_avx512) tables.push_back(&emulator::lanes_avx512);
#endif
  std::mt19937_64 random(11);
  const std::uint64_t edges[] = {0,
                                 ~std::uint64_t{0},
                                 0x7F8000007F800000,
                                 0x8000000080000000,
                                 0x7FFFFFFF7FFFFFFF,
                                 0x3F8000003F800000,
                                 0x3FF0000000000000,
                                 31,
                                 0x7FF0000000000000,
                                 1};
  for (unsigned op = 0; op < static_cast<unsigned>(ptx::Op::lanes_end); ++op) {
    alignas(64) std::uint64_t in[4][64];
    for (auto& operand : in)
      for (auto& v : operand) v = random() % 4 == 0 ? edges[random() % 10] : random();
    const auto shape = op < static_cast<unsigned>(ptx::Op::convert) ? ptx::shapes[op] : ptx::Shape{};
    const std::uint8_t widths[4] = {shape.a, shape.b, shape.c, shape.e};
    for (int k = 0; k < 4; ++k)  // predicates hold 0 or 1
      if (widths[k] == 1)
        for (auto& v : in[k]) v &= 0x0101010101010101;
    const unsigned modes = op < static_cast<unsigned>(ptx::Op::convert) ? 1 : 9;
    for (unsigned mode = 0; mode < modes; ++mode)
      for (const bool saturate : {false, true}) {
        std::vector<std::byte> first;
        for (const auto* table : tables) {
          alignas(64) std::byte out[64 * 8] = {};
          table->functions[op]({out, reinterpret_cast<std::byte*>(in[0]), reinterpret_cast<std::byte*>(in[1]),
                                reinterpret_cast<std::byte*>(in[2]), reinterpret_cast<std::byte*>(in[3]), 64,
                                static_cast<std::uint8_t>(mode), saturate});
          std::vector<std::byte> got(out, out + sizeof out);
          if (first.empty()) first = got;
          // float64 NaNs may come from either operand.
          if (got == first) continue;
          bool only_nan = true;
          for (unsigned i = 0; i < 64; ++i) {
            double a = 0, b = 0;
            std::memcpy(&a, &first[i * 8], 8);
            std::memcpy(&b, &got[i * 8], 8);
            only_nan = only_nan && (std::memcmp(&a, &b, 8) == 0 || (std::isnan(a) && std::isnan(b)));
          }
          EXPECT_TRUE(only_nan) << "op " << op << " mode " << mode << " at " << table->name;
        }
      }
  }
}

// What nvcc derives from the path of the source: the hash in the names of what has internal linkage.
std::string without_paths(std::string text) {
  static constexpr std::string_view mark = "_INTERNAL_";
  constexpr std::size_t digits = 8;
  const auto at = text.find(mark);
  if (at == std::string::npos || at + mark.size() + digits > text.size()) return text;
  const auto hash = text.substr(at + mark.size(), digits);
  for (auto h = text.find(hash); h != std::string::npos; h = text.find(hash, h + digits))
    text.replace(h, digits, digits, '_');
  return text;
}
std::string code_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string out;
  for (std::string line; std::getline(file, line);) {
    line.resize(std::min(line.find("//"), line.size()));
    line.resize(line.find_last_not_of(" \t") + 1);
    if (!line.empty()) out += line + "\n";
  }
  return without_paths(std::move(out));
}
std::string compiler_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.find("Cuda compilation tools") != std::string::npos) return line;
  return {};
}
TEST(KeptPtx, IsWhatTheCompilerMakesOfItsSource) {
  const std::string nvcc = CENOTE_NVCC;
  if (nvcc.empty()) GTEST_SKIP() << "no nvcc was found when this was configured";
  const std::filesystem::path source(CENOTE_SOURCE_DIR);
  std::string made_in = (std::filesystem::temp_directory_path() / "cenote-ptx-XXXXXX").string();
  ASSERT_NE(mkdtemp(made_in.data()), nullptr);
  const std::filesystem::path folder(made_in);
  const std::shared_ptr<void> leaves_nothing(nullptr, [folder](void*) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  });
  const auto make = "NVCC='" + nvcc + "' '" + (source / "tools/make_ptx.sh").string() + "' '" + made_in + "'";
  ASSERT_EQ(std::system(make.c_str()), 0);
  for (const char* name : {"mlp.ptx", "reduce.ptx", "basic.ptx"}) {
    const auto kept = source / "cuda/kernels" / name, made = folder / name;
    if (compiler_of(kept) != compiler_of(made))
      GTEST_SKIP() << "another release of nvcc: " << compiler_of(made);
    EXPECT_EQ(code_of(kept), code_of(made)) << name << ": run tools/make_ptx.sh";
  }
}

}  // namespace
}  // namespace cenote::cuda::testing
