// Whatever the text is: an error or a run, never more. Mutations are made from a seed, so a failure can be
// repeated.
#include <chrono>
#include <mutex>
#include <random>
#include <thread>

#include "cuda/kernels/embedded.h"
#include "tests/unit/ptx/device.h"

namespace cenote::cuda::testing {
namespace {

// With the cancel flag raised beforehand a block does not start; a flag raised by the first slice of an
// endless kernel would need a second thread for each mutant. So one thread raises the flags of all of them,
// one after another.
class Watch {
 public:
  Watch()
      : thread_([this](std::stop_token stop) {
          while (!stop.stop_requested()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
            const std::scoped_lock lock(mutex_);
            if (current_ != nullptr && ++seen_ > 2) current_->raise();
          }
        }) {}
  void over(CancelFlag* flag) {
    const std::scoped_lock lock(mutex_);
    current_ = flag;
    seen_ = 0;
  }

 private:
  std::mutex mutex_;
  CancelFlag* current_ = nullptr;
  int seen_ = 0;
  std::jthread thread_;
};

void run_everything(const ptx::Program& program, Watch& watch) {
  for (std::size_t e = 0; e < program.entries.size(); ++e) {
    Device device;
    const auto buffer = device.allocate(4096);
    std::vector<std::uint64_t> arguments(program.entries[e].param_bytes / 8 + 1, buffer);
    const std::vector<std::uint64_t> variables(program.variables.size(), buffer);
    emulator::Launch launch;
    launch.program = &program;
    launch.entry = e;
    launch.block = {70, 1, 1};
    launch.params = std::as_bytes(std::span(arguments));
    launch.variables = variables;
    launch.memory = device.ranges();
    CancelFlag cancel;
    launch.cancel = &cancel;
    watch.over(&cancel);
    emulator::run(launch);
    watch.over(nullptr);
  }
}

std::string mutated(std::string text, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const std::size_t changes = 1 + below(2);
  for (std::size_t c = 0; c < changes && text.size() > 2; ++c) {
    const auto at = below(text.size()), other = below(text.size());
    switch (below(7)) {
      case 0:
        text[at] = static_cast<char>(random());
        break;
      case 1:
        text.erase(at, 1 + below(20));
        break;
      case 2:
        text.insert(at, text.substr(other, 1 + below(40)));
        break;
      case 3:
        text[at] = "0123456789.,;[]{}%@!-+xfd"[below(25)];
        break;
      case 4:
        text.resize(at);
        break;
      case 5:
        text.replace(at, 1, std::to_string(random()));
        break;
      default: {  // exchange two lines
        const auto a = text.find('\n', at), b = text.find('\n', other);
        if (a == std::string::npos || b == std::string::npos) break;
        const auto line_a = text.substr(a, text.find('\n', a + 1) - a),
                   line_b = text.substr(b, text.find('\n', b + 1) - b);
        text.replace(a, line_a.size(), line_b);
      }
    }
  }
  return text;
}

TEST(Hostile, MutantsOfTheKernelsAreRefusedOrRun) {
  Watch watch;
  std::mt19937 random(20240607);
  std::size_t accepted = 0;
  const std::vector<std::string> texts = {std::string(kernels::basic_ptx()), std::string(kernels::mlp_ptx()),
                                          std::string(kernels::reduce_ptx())};
  for (int round = 0; round < 3000; ++round) {
    const auto program = ptx::parse(mutated(texts[random() % 8 == 0 ? 1 + random() % 2 : 0], random));
    if (!program) continue;
    ++accepted;
    run_everything(**program, watch);
  }
  EXPECT_GT(accepted, 100u);  // otherwise the runs were not tested
}
TEST(Hostile, TokensInAnyOrder) {
  Watch watch;
  std::mt19937 random(7);
  const std::vector<std::string> tokens = {
      ".version",   "8.0\n", ".entry",    "k",       "(",       ")",       "{",
      "}",          ";",     ",",         ".param",  ".u64",    "[",       "]",
      "x",          ".reg",  ".b32",      "%r<5>",   "%r1",     "add.u32", "ld.global.v4.f32",
      "@%p",        "bra",   "L:",        "L",       ".shared", ".align",  "4096",
      "-1",         "call",  "{%r1,%r2}", "mov.b64", ".func",   ".global", "=",
      "0f3F800000", "\"",    "/*",        "0x",      ".extern", "_|%p",    "st.local.u8"};
  for (int round = 0; round < 5000; ++round) {
    std::string text = ".version 8.0\n.target sm_75\n";
    for (int k = 0; k < 40; ++k) text += tokens[random() % tokens.size()] + " ";
    const auto program = ptx::parse(text);
    if (program) run_everything(**program, watch);
  }
}
TEST(Hostile, LargeClaimsAreRefusedWithoutTakingMemory) {
  const auto refused = [](const std::string& body) { return !ptx::parse(std::string(ptx_header) + body); };
  EXPECT_TRUE(refused(".entry k() { .local .b8 x[99999999999]; ret; }"));
  EXPECT_TRUE(refused(".entry k(.param .b8 x[40000]) { ret; }"));
  EXPECT_TRUE(refused(".entry k() { .param .b8 x[999999]; ret; }"));
  EXPECT_TRUE(refused(".global .b8 x[999999999999999][99999999999999];"));
  std::string deep = ".entry k() ";
  for (int i = 0; i < 1000; ++i) deep += "{";
  EXPECT_TRUE(refused(deep));
  std::string nested = ".entry k() { .reg .u32 %r; mov.u32 ";
  for (int i = 0; i < 100000; ++i) nested += "{";
  EXPECT_TRUE(refused(nested));
  const auto declared = ptx::parse(std::string(ptx_header) +
                                   ".entry k() { .reg .b64 %q<4000000000>; mov.u64 %q3999999999, 1; ret; }");
  EXPECT_TRUE(declared);  // only the registers that are used take room
}
// All kernels share one range of constants; a kernel reached by a call would write past its caller's.
TEST(Hostile, NoNameIsBothAKernelAndAFunction) {
  const std::string
      function = ".func foo();\n",
      kernel =
          ".entry foo(.param .b8 p[30000]) {\n.reg .b32 %r<2>;\n"
          "ld.param.u32 %r0, [p+29996];\nadd.u32 %r1, %r0, 12345;\nst.global.u32 [%r1], %r0;\nret; }\n",
      caller = ".entry small() {\ncall foo;\nret; }\n";
  for (const auto& text : {function + caller + kernel, function + kernel + caller, kernel + function + caller,
                           ".func foo() { ret; }\n" + caller + kernel, kernel + caller,
                           ".extern .entry foo();\n" + function + caller + kernel,
                           function + caller + ".extern .entry foo();\n"}) {
    const auto program = ptx::parse(std::string(ptx_header) + text);
    ASSERT_FALSE(program) << text;
    EXPECT_NE(program.error().message().find("kernel"), std::string::npos) << program.error().message();
  }
}
TEST(Hostile, AFunctionKeepsThePlacesOfItsParameters) {
  const auto refused = [](const std::string& first, const std::string& second) {
    return !ptx::parse(std::string(ptx_header) + ".func " + first + ";\n.entry k() { ret; }\n.func " +
                       second + " { ret; }\n");
  };
  EXPECT_FALSE(refused("(.param .b32 r) f(.param .b64 a)", "(.param .b32 x) f(.param .b64 y)"));
  EXPECT_TRUE(refused("f(.param .b8 a[8], .param .b8 b[80])", "f(.param .b8 a[80], .param .b8 b[8])"));
  EXPECT_TRUE(refused("(.param .b32 r) f(.param .b8 a[16])", "f(.param .b8 a[24])"));
}
// 2^32 words of parameters and a few more: a count of 32 bits would start again at 0.
TEST(Hostile, ParametersBeyond32BitsAreRefused) {
  constexpr unsigned words = 32760 / 8;
  std::string list;
  for (std::uint64_t k = 0; k * words < (std::uint64_t{1} << 32) + words; ++k)
    list += (k != 0 ? ",.param .b8 a" : ".param .b8 a") + std::to_string(k) + "[32760]";
  for (const auto& header : {"f(" + list + ")", "(" + list + ") f()"}) {
    const auto program = ptx::parse(std::string(ptx_header) + ".func " + header +
                                    " {\n.reg .b64 %q;\nst.param.b64 [a1], 1;\nret; }\n");
    ASSERT_FALSE(program);
    EXPECT_NE(program.error().message().find("too many parameters"), std::string::npos)
        << program.error().message();
  }
}
TEST(Hostile, ShortCallsCannotMakeEndlessCode) {
  std::string declared, given;
  for (int k = 0; k < 256; ++k) {
    declared += (k != 0 ? ", .param .b8 a" : ".param .b8 a") + std::to_string(k) + "[4096]";
    given += k != 0 ? ", x" : "x";
  }
  std::string text(ptx_header);
  text += ".func f(" + declared + ") { ret; }\n.entry k() {\n.param .b8 x[4096];\n";
  for (int k = 0; k < 64; ++k) text += "call f, (" + given + ");\n";
  const auto program = ptx::parse(text + "ret; }\n");
  ASSERT_FALSE(program);
  EXPECT_NE(program.error().message().find("too many arguments"), std::string::npos)
      << program.error().message();
}

}  // namespace
}  // namespace cenote::cuda::testing
