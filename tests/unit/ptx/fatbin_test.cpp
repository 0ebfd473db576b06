// Fat binaries made here from parts, a kept one of nvcc, and new ones where nvcc is found.
#include "cuda/fatbin.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "cuda/kernels/embedded.h"
#include "cuda/lz4_block.h"
#include "runtime/bytes.h"
#include "tests/test_paths.h"
#include "tests/unit/ptx/device.h"

namespace cenote::cuda {
namespace {

const std::string sample = ".version 8.0\n.target sm_75\n.address_size 64\n.entry k() { ret; }\n";

Bytes entry(std::uint16_t kind, std::span<const std::byte> payload, std::uint32_t compressed,
            std::uint64_t flags, std::uint64_t plain) {
  Writer w;
  const std::uint64_t padded = (payload.size() + 7) / 8 * 8;
  w.put(kind)
      .put(std::uint16_t{0x0101})
      .put(std::uint32_t{64})
      .put(padded)
      .put(compressed)
      .put(std::uint32_t{0});
  w.put(std::uint16_t{0})
      .put(std::uint16_t{8})
      .put(std::uint32_t{75})
      .put(std::uint32_t{0})
      .put(std::uint32_t{0})
      .put(flags);
  w.put(std::uint64_t{0}).put(plain).raw(payload);
  for (auto i = payload.size(); i < padded; ++i) w.put(std::uint8_t{0});
  return w.take();
}
Bytes container(const std::vector<Bytes>& entries) {
  std::uint64_t size = 0;
  for (const auto& e : entries) size += e.size();
  Writer w;
  w.put(fatbin_container_magic).put(std::uint16_t{1}).put(std::uint16_t{16}).put(size);
  for (const auto& e : entries) w.raw(e);
  return w.take();
}
Bytes zstandard(const std::string& text) {
  Bytes out(ZSTD_compressBound(text.size() + 1));
  out.resize(ZSTD_compress(out.data(), out.size(), text.c_str(), text.size() + 1, 3));
  return out;
}
// Literals only: valid LZ4, if not small.
Bytes lz4_literals(const std::string& text) {
  Writer w;
  std::size_t left = text.size() + 1;
  w.put(std::uint8_t(0xF0));
  for (left -= 15; left >= 255; left -= 255) w.put(std::uint8_t{255});
  w.put(std::uint8_t(left)).raw({reinterpret_cast<const std::byte*>(text.c_str()), text.size() + 1});
  return w.take();
}

TEST(Fatbin, GivesPlainZstandardAndLz4Texts) {
  const auto z = zstandard(sample), l = lz4_literals(sample);
  const auto c = container({entry(2, as_bytes("ELF"), 0, 0x11, 0), entry(1, as_bytes(sample), 0, 0x11, 0),
                            entry(1, z, static_cast<std::uint32_t>(z.size()), 0x8011, sample.size() + 1),
                            entry(1, l, static_cast<std::uint32_t>(l.size()), 0x2011, sample.size() + 1)});
  EXPECT_TRUE(is_fatbin(c));
  EXPECT_EQ(fatbin_size(c), c.size());
  const auto texts = fatbin_ptx(c);
  ASSERT_TRUE(texts) << texts.error().message();
  ASSERT_EQ(texts->size(), 3u);
  for (const auto& t : *texts) EXPECT_EQ(t.text, sample);
  EXPECT_EQ(texts->at(0).architecture, 75u);
}
TEST(Fatbin, WithMachineCodeOnlyHasNoTexts) {
  const auto texts = fatbin_ptx(container({entry(2, as_bytes("ELF"), 0, 0x11, 0)}));
  ASSERT_TRUE(texts);
  EXPECT_TRUE(texts->empty());
}
TEST(Fatbin, WrappersLeadToTheirContainers) {
  const auto c = container({entry(1, as_bytes(sample), 0, 0x11, 0)});
  struct {
    std::uint32_t magic, version;
    const void *data, *extra;
  } one{fatbin_wrapper_magic, 1, c.data(), nullptr};
  ASSERT_TRUE(fatbin_containers(&one));
  EXPECT_EQ(fatbin_containers(&one)->at(0).size(), c.size());
  const void* units[] = {c.data(), c.data(), nullptr};
  one.version = 2;
  one.extra = units;
  EXPECT_EQ(fatbin_containers(&one)->size(), 2u);
  one.magic = 1;
  EXPECT_FALSE(fatbin_containers(&one));
}
TEST(Fatbin, DamageIsAnErrorWhereverItIs) {
  const auto z = zstandard(sample), l = lz4_literals(sample);
  const auto good = container({entry(1, z, static_cast<std::uint32_t>(z.size()), 0x8011, sample.size() + 1),
                               entry(1, l, static_cast<std::uint32_t>(l.size()), 0x2011, sample.size() + 1)});
  for (std::size_t cut = 0; cut < good.size(); ++cut)
    EXPECT_FALSE(fatbin_ptx(std::span(good).first(cut))) << cut;
  std::mt19937 random(5);
  for (int round = 0; round < 20000; ++round) {
    auto bad = good;
    for (int k = 0; k < 3; ++k) bad[random() % bad.size()] = std::byte(random());
    (void)fatbin_ptx(bad);  // an error or some text; the sanitizers watch
  }
}
TEST(Lz4, CopiesOverlappingMatches) {
  const std::byte block[] = {std::byte{0x15}, std::byte{'a'},  std::byte{1},
                             std::byte{0},    std::byte{0x10}, std::byte{'b'}};
  std::string out(11, '?');
  ASSERT_TRUE(decode_lz4_block(block, std::as_writable_bytes(std::span(out.data(), out.size()))));
  EXPECT_EQ(out, "aaaaaaaaaab");
  EXPECT_FALSE(decode_lz4_block(block, std::as_writable_bytes(std::span(out.data(), 10))));
  const std::byte far[] = {std::byte{0x15}, std::byte{'a'}, std::byte{2}, std::byte{0}};
  EXPECT_FALSE(decode_lz4_block(far, std::as_writable_bytes(std::span(out.data(), 10))));
}

// tests/data/ptx/scale.fatbin is of nvcc 13: machine code, and PTX that is compressed by default.
TEST(Fatbin, OfTheCompilerIsReadAndItsKernelRuns) {
  std::ifstream file(CENOTE_SOURCE_DIR "/tests/data/ptx/scale.fatbin", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  ASSERT_EQ(bytes.find(".version"), std::string::npos) << "the sample is to be a compressed one";
  ASSERT_NE(bytes.find("\x28\xB5\x2F\xFD"), std::string::npos) << "a frame of Zstandard";
  const auto texts = fatbin_ptx(as_bytes(bytes));
  ASSERT_TRUE(texts) << texts.error().message();
  ASSERT_EQ(texts->size(), 1u);
  EXPECT_EQ(texts->at(0).architecture, 75u);
  const auto program = testing::parsed(texts->at(0).text);
  ASSERT_NE(program, nullptr);
  testing::Device device;
  const auto values = device.upload(std::vector<float>{1, 2, 3, 4});
  testing::expect_success(testing::run(*program, "cenote_sample_scale", device, {1, 1, 1}, {32, 1, 1},
                                       testing::Args(values, 2.5f, 3u)));
  EXPECT_EQ(device.download<float>(values, 4), (std::vector<float>{2.5f, 5, 7.5f, 4}));
}
TEST(Fatbin, MadeByTheCompilerHoldsTheKeptPtx) {
  if (std::system("command -v nvcc >/dev/null 2>&1") != 0) GTEST_SKIP() << "no nvcc here";
  const auto folder = std::filesystem::path(CENOTE_BINARY_DIR) / "tests";
  for (const std::string mode : {"default", "speed", "none"}) {
    const auto out = folder / ("basic_" + mode + ".fatbin");
    const std::string command =
        "nvcc -fatbin -std=c++17 -O3 -fmad=false -gencode arch=compute_75,code=[sm_75,compute_75] "
        "--compress-mode=" +
        mode + " -o " + out.string() + " " CENOTE_SOURCE_DIR "/cuda/kernels/basic.cu";
    ASSERT_EQ(std::system(command.c_str()), 0);
    std::ifstream file(out, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    const auto texts = fatbin_ptx(as_bytes(bytes));
    ASSERT_TRUE(texts) << mode << ": " << texts.error().message();
    ASSERT_EQ(texts->size(), 1u) << mode;
    EXPECT_NE(texts->at(0).text.find("cenote_saxpy"), std::string::npos) << mode;
    EXPECT_EQ(texts->at(0).architecture, 75u);
    std::filesystem::remove(out);
  }
}

}  // namespace
}  // namespace cenote::cuda
