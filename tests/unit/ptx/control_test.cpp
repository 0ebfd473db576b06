// Control flow, barriers, memory spaces and everything in which threads meet.
#include <numeric>
#include <set>

#include "tests/unit/ptx/device.h"

namespace cenote::cuda::testing {
namespace {

using u32 = std::uint32_t;
using u64 = std::uint64_t;

// A kernel k(out, n) over one block; `body` computes %r0 from the thread index in %t (and may use n in %n).
std::string kernel(const std::string& body, const std::string& before = "") {
  return std::string(ptx_header) + before +
         ".visible .entry k(.param .u64 out, .param .u32 n) {\n.reg .pred %p<9>; .reg .b32 %r<20>; .reg .b64 "
         "%q<20>; .reg .f32 %f<9>;\n"
         ".reg .u32 %t; .reg .u32 %n;\nmov.u32 %t, %tid.x; ld.param.u32 %n, [n]; mov.u32 %r0, 0;\n" +
         body +
         "\nld.param.u64 %q0, [out]; mad.wide.u32 %q1, %t, 4, %q0; st.global.u32 [%q1], %r0;\nret;\n}\n";
}
std::vector<u32> results(const std::string& text, unsigned threads, u32 n = 0, std::size_t shared = 0) {
  const auto program = parsed(text);
  if (!program) return {};
  Device device;
  const auto out = device.allocate(threads * 4);
  expect_success(run(*program, "k", device, {1, 1, 1}, {threads, 1, 1}, Args(out, n), shared));
  return device.download<u32>(out, threads);
}
void expect_each(const std::vector<u32>& got, auto wanted) {
  ASSERT_FALSE(got.empty());
  for (u32 t = 0; t < got.size(); ++t) ASSERT_EQ(got[t], u32(wanted(t))) << "thread " << t;
}
emulator::Outcome outcome_of(const std::string& text, unsigned threads, u32 n = 0) {
  const auto program = parsed(text);
  if (!program) return {};
  Device device;
  const auto out = device.allocate(threads * 4);
  return run(*program, "k", device, {1, 1, 1}, {threads, 1, 1}, Args(out, n));
}

const unsigned block_sizes[] = {1, 31, 32, 33, 100, 256, 257, 1000, 1024};

TEST(Divergence, BothSidesOfABranchMeetAgain) {
  for (const auto size : block_sizes)
    expect_each(results(kernel("and.b32 %r1, %t, 1; setp.eq.u32 %p0, %r1, 0; @%p0 bra EVEN; add.u32 %r0, %t, "
                               "100; bra JOIN;\n"
                               "EVEN: mul.lo.u32 %r0, %t, 3;\nJOIN: add.u32 %r0, %r0, 1;"),
                        size),
                [](u32 t) { return (t % 2 ? t + 100 : t * 3) + 1; });
}
TEST(Divergence, LoopsOfDifferentLengths) {
  for (const auto size : block_sizes)
    expect_each(results(kernel("mov.u32 %r1, 0;\nLOOP: setp.ge.u32 %p0, %r1, %t; @%p0 bra DONE; add.u32 %r0, "
                               "%r0, %r1; add.u32 %r1, %r1, 1; bra LOOP;\n"
                               "DONE: add.u32 %r0, %r0, 7;"),
                        size),
                [](u32 t) { return t * (t - 1) / 2 * (t > 0) + 7; });
}
TEST(Divergence, NestedLoopsAndBranches) {
  const auto wanted = [](u32 t) {
    u32 sum = 0;
    for (u32 i = 0; i < t % 7; ++i)
      for (u32 j = 0; j <= i; ++j) {
        if ((j ^ t) & 1)
          sum += 3;
        else if (j % 3 == 2)
          break;
        sum += i;
      }
    return sum;
  };
  expect_each(
      results(
          kernel(
              "rem.u32 %r1, %t, 7; mov.u32 %r2, 0;\nOUTER: setp.ge.u32 %p0, %r2, %r1; @%p0 bra END; mov.u32 "
              "%r3, 0;\n"
              "INNER: setp.gt.u32 %p1, %r3, %r2; @%p1 bra NEXT; xor.b32 %r4, %r3, %t; and.b32 %r4, %r4, 1;\n"
              "setp.ne.u32 %p2, %r4, 0; @%p2 bra ODD; rem.u32 %r5, %r3, 3; setp.eq.u32 %p3, %r5, 2; @%p3 bra "
              "NEXT; bra SUM;\n"
              "ODD: add.u32 %r0, %r0, 3;\nSUM: add.u32 %r0, %r0, %r2; add.u32 %r3, %r3, 1; bra INNER;\n"
              "NEXT: add.u32 %r2, %r2, 1; bra OUTER;\nEND:"),
          256),
      wanted);
}
TEST(Divergence, PredicatedInstructionsLeaveOtherLanesAlone) {
  expect_each(
      results(
          kernel("setp.lt.u32 %p0, %t, 40; mov.u32 %r0, 5; @%p0 add.u32 %r0, %r0, %t; @!%p0 mov.u32 %r0, 9;"),
          100),
      [](u32 t) { return t < 40 ? 5 + t : 9; });
}
TEST(Divergence, EarlyExitLeavesTheRestRunning) {
  const auto got =
      results(kernel("setp.lt.u32 %p0, %t, %n; @%p0 exit; mov.u32 %r0, 77; bar.sync 0;"), 300, 130);
  expect_each(got, [](u32 t) { return t < 130 ? 0 : 77; });
}

// Thread 0 waits for a later thread: only fair scheduling inside a warp gets out of it.
TEST(Progress, LanesOfOneWarpMayWaitForEachOther) {
  const std::string wait =
      "mov.u32 %r1, flag; setp.ne.u32 %p0, %t, 0; @%p0 bra SIGNAL;\n"
      "SPIN: ld.volatile.shared.u32 %r2, [%r1]; setp.eq.u32 %p1, %r2, 0; @%p1 bra SPIN; mov.u32 %r0, 1; bra "
      "END;\n"
      "SIGNAL: setp.ne.u32 %p2, %t, %n; @%p2 bra END; st.volatile.shared.u32 [%r1], 1;\nEND:";
  for (const u32 signaller : {1u, 31u, 32u, 255u, 300u})
    expect_each(results(kernel(wait, ".shared .align 4 .u32 flag;\n"), 320, signaller),
                [](u32 t) { return t == 0; });
}
TEST(Progress, ASpinLockWithinAWarpIsHeldByOneAtATime) {
  expect_each(results(kernel("mov.u32 %r1, lock;\nTRY: atom.shared.cas.b32 %r2, [%r1], 0, 1; setp.ne.u32 "
                             "%p0, %r2, 0; @%p0 bra TRY;\n"
                             "ld.shared.u32 %r3, [%r1+4]; add.u32 %r3, %r3, 1; st.shared.u32 [%r1+4], %r3; "
                             "atom.shared.exch.b32 %r2, [%r1], 0;\n"
                             "bar.sync 0; ld.shared.u32 %r0, [%r1+4];",
                             ".shared .align 4 .b8 lock[8];\n"),
                      96),
              [](u32) { return 96; });
}

TEST(Barriers, MakeStoresOfAllThreadsVisible) {
  for (const auto size : block_sizes)
    expect_each(results(kernel("shl.b32 %r1, %t, 2; mov.u32 %r2, buffer; add.u32 %r3, %r2, %r1; "
                               "st.shared.u32 [%r3], %t; bar.sync 0;\n"
                               "mov.u32 %r4, %ntid.x; sub.u32 %r4, %r4, 1; sub.u32 %r4, %r4, %t; shl.b32 "
                               "%r4, %r4, 2; add.u32 %r4, %r2, %r4; ld.shared.u32 %r0, [%r4];",
                               ".shared .align 4 .b8 buffer[4096];\n"),
                        size),
                [size](u32 t) { return size - 1 - t; });
}
TEST(Barriers, MayBeMetInDifferentBranches) {
  expect_each(results(kernel("setp.lt.u32 %p0, %t, 64; @%p0 bra A; bar.sync 1, 128; bra B;\nA: bar.sync 1, "
                             "128;\nB: mov.u32 %r0, 3;"),
                      128),
              [](u32) { return 3; });
}
TEST(Barriers, ReduceAPredicate) {
  const auto body = [](const std::string& red) { return "setp.lt.u32 %p0, %t, %n; " + red; };
  expect_each(results(kernel(body("bar.red.popc.u32 %r0, 0, %p0;")), 300, 123), [](u32) { return 123; });
  expect_each(results(kernel(body("barrier.red.and.pred %p1, 0, %p0; selp.u32 %r0, 1, 0, %p1;")), 300, 123),
              [](u32) { return 0; });
  expect_each(results(kernel(body("bar.red.or.pred %p1, 0, %p0; selp.u32 %r0, 1, 0, %p1;")), 300, 1),
              [](u32) { return 1; });
}
TEST(Barriers, NamedOnesSynchroniseSomeWarps) {
  expect_each(
      results(kernel("shr.u32 %r1, %t, 6; add.u32 %r1, %r1, 1; barrier.sync %r1, 64; mov.u32 %r0, %r1;"),
              256),
      [](u32 t) { return t / 64 + 1; });
  expect_each(results(kernel("setp.lt.u32 %p0, %t, 32; @%p0 bra P; bar.sync 2, 64; bra Q;\nP: bar.arrive 2, "
                             "64;\nQ: mov.u32 %r0, 8;"),
                      64),
              [](u32) { return 8; });
}
TEST(Barriers, ThatCannotOpenAreReportedAsDeadlock) {
  const auto outcome =
      outcome_of(kernel("setp.lt.u32 %p0, %t, 32; @%p0 bra A; bar.sync 1; bra B;\nA: bar.sync 2;\nB:"), 64);
  ASSERT_TRUE(outcome.fault);
  EXPECT_EQ(outcome.status, Status::launch_failed);
  EXPECT_NE(outcome.fault->text.find("deadlock"), std::string::npos);
  EXPECT_NE(outcome.fault->text.find("32 threads at barrier 1 (PTX line 8)"), std::string::npos)
      << outcome.fault->text;
  EXPECT_NE(outcome.fault->text.find("32 threads at barrier 2 (PTX line 9)"), std::string::npos)
      << outcome.fault->text;
}

TEST(Warps, Shuffle) {
  const auto shuffled = [](const std::string& operation) {
    return results(kernel("mul.lo.u32 %r1, %t, 10; " + operation), 64);
  };
  expect_each(shuffled("shfl.sync.idx.b32 %r0, %r1, 5, 31, -1;"),
              [](u32 t) { return (t / 32 * 32 + 5) * 10; });
  expect_each(shuffled("shfl.sync.bfly.b32 %r0, %r1, 3, 31, -1;"), [](u32 t) { return (t ^ 3) * 10; });
  expect_each(
      shuffled("shfl.sync.down.b32 %r0|%p0, %r1, 4, 31, -1; selp.u32 %r2, 1, 0, %p0; add.u32 %r0, %r0, %r2;"),
      [](u32 t) { return t % 32 < 28 ? (t + 4) * 10 + 1 : t * 10; });
  expect_each(shuffled("shfl.sync.up.b32 %r0, %r1, 1, 0, -1;"),
              [](u32 t) { return t % 32 ? (t - 1) * 10 : t * 10; });
  expect_each(shuffled("shfl.sync.down.b32 %r0, %r1, 2, 6175, -1;"),  // segments of 8: c = 0x181f
              [](u32 t) { return t % 8 < 6 ? (t + 2) * 10 : t * 10; });
}
TEST(Warps, VoteMatchAndActiveMask) {
  expect_each(results(kernel("setp.lt.u32 %p0, %t, 5; vote.sync.ballot.b32 %r0, %p0, -1;"), 64),
              [](u32 t) { return t < 32 ? 31 : 0; });
  expect_each(
      results(kernel("setp.lt.u32 %p0, %t, 40; vote.sync.all.pred %p1, %p0, -1; selp.u32 %r0, 1, 0, %p1;"),
              64),
      [](u32 t) { return t < 32; });
  expect_each(
      results(kernel("setp.eq.u32 %p0, %t, 40; vote.sync.any.pred %p1, %p0, -1; selp.u32 %r0, 1, 0, %p1;"),
              64),
      [](u32 t) { return t >= 32; });
  expect_each(results(kernel("and.b32 %r1, %t, 3; match.any.sync.b32 %r0, %r1, -1;"), 32),
              [](u32 t) { return 0x11111111u << t % 4; });
  expect_each(
      results(
          kernel(
              "setp.lt.u32 %p0, %t, 8; @%p0 bra A; activemask.b32 %r0; bra B;\nA: activemask.b32 %r0;\nB:"),
          32),
      [](u32 t) { return t < 8 ? 0xFFu : 0xFFFFFF00u; });
}
TEST(Warps, AShuffleWaitsForTheLanesItNames) {
  // Lanes come to the same shuffle at different times: those above 16 make a detour first.
  expect_each(results(kernel("setp.lt.u32 %p0, %t, 16; mov.u32 %r1, 4; @%p0 bra MEET; mov.u32 %r1, 9; "
                             "mul.lo.u32 %r1, %r1, 2;\n"
                             "MEET: shfl.sync.bfly.b32 %r0, %r1, 16, 31, -1;"),
                      32),
              [](u32 t) { return t < 16 ? 18 : 4; });
  // A bar.warp.sync may be met in two places.
  expect_each(results(kernel("setp.lt.u32 %p0, %t, 16; @%p0 bra A; bar.warp.sync -1; bra B;\nA: "
                             "bar.warp.sync -1;\nB: mov.u32 %r0, 2;"),
                      32),
              [](u32) { return 2; });
}

TEST(Memory, VectorsAndNarrowTypesKeepTheirBytes) {
  expect_each(results(kernel("mov.u32 %r1, buffer; shl.b32 %r2, %t, 4; add.u32 %r1, %r1, %r2; add.u32 %r3, "
                             "%t, 1; add.u32 %r4, %t, 2;\n"
                             "st.shared.v4.u32 [%r1], {%t, %r3, %r4, 40}; ld.shared.v2.u32 {%r5, %r6}, "
                             "[%r1+8]; sub.u32 %r0, %r6, %r5;",
                             ".shared .align 16 .b8 buffer[1024];\n"),
                      38),
              [](u32 t) { return 40 - (t + 2); });
  expect_each(results(kernel("mov.u32 %r1, buffer; add.u32 %r1, %r1, %t; sub.u32 %r2, 0, %t; st.shared.u8 "
                             "[%r1], %r2; ld.shared.s8 %r3, [%r1];\n"
                             "ld.shared.u8 %r4, [%r1]; sub.u32 %r0, %r4, %r3;",
                             ".shared .align 16 .b8 buffer[256];\n"),
                      200),
              [](u32 t) { return u32(std::uint8_t(-t)) - u32(std::int32_t(std::int8_t(-t))); });
}
TEST(Memory, LocalIsEachThreadsOwnAlsoThroughGenericAddresses) {
  expect_each(results(kernel(".local .align 4 .b8 depot[64]; mov.u64 %q2, depot; cvta.local.u64 %q3, %q2; "
                             "st.local.u32 [%q2+8], %t;\n"
                             "ld.u32 %r1, [%q3+8]; add.u32 %r1, %r1, 1; st.u32 [%q3+12], %r1; ld.local.u32 "
                             "%r0, [depot+12];"),
                      300),
              [](u32 t) { return t + 1; });
}
TEST(Memory, GenericAddressesReachSharedMemory) {
  expect_each(results(kernel("mov.u64 %q2, cell; cvta.shared.u64 %q3, %q2; isspacep.shared %p0, %q3; "
                             "isspacep.global %p1, %q3; bar.sync 0;\n"
                             "atom.add.u32 %r1, [%q3], 1; bar.sync 0; ld.u32 %r0, [%q3]; @!%p0 mov.u32 %r0, "
                             "0; @%p1 mov.u32 %r0, 0;",
                             ".shared .align 4 .u32 cell;\n"),
                      77),
              [](u32) { return 77; });
}
TEST(Memory, DynamicSharedMemoryComesAfterTheStatic) {
  expect_each(results(kernel("mov.u32 %r1, fixed; mov.u32 %r2, dynamic; sub.u32 %r3, %r2, %r1; mov.u32 %r4, "
                             "%dynamic_smem_size; add.u32 %r0, %r3, %r4;",
                             ".shared .align 4 .b8 fixed[20];\n.extern .shared .align 16 .b8 dynamic[];\n"),
                      1, 0, 100),
              [](u32) { return 32 + 100; });
}
TEST(Memory, ConstantsAndInitialisedVariables) {
  expect_each(results(kernel("shl.b32 %r1, %t, 2; cvt.u64.u32 %q2, %r1; mov.u64 %q3, table; add.u64 %q3, "
                             "%q3, %q2; ld.const.u32 %r2, [%q3];\n"
                             "ld.global.u64 %q4, [pointer]; ld.u32 %r3, [%q4]; add.u32 %r0, %r2, %r3;",
                             ".const .align 4 .u32 table[4] = {5, 6, 7, 8};\n.global .align 4 .u32 cell = "
                             "100;\n.global .align 8 .u64 pointer = generic(cell);\n"),
                      4),
              [](u32 t) { return 105 + t; });
}
TEST(Atomics, EveryOperation) {
  const auto one = [](const std::string& op, u32 start) {
    return results(kernel("mov.u32 %r1, cell; setp.eq.u32 %p0, %t, 0; @%p0 st.shared.u32 [%r1], " +
                              std::to_string(start) + "; bar.sync 0; add.u32 %r2, %t, 1;\n" + op +
                              "; bar.sync 0; ld.shared.u32 %r0, [%r1];",
                          ".shared .align 4 .u32 cell;\n"),
                   40)[7];
  };
  EXPECT_EQ(one("atom.shared.add.u32 %r3, [%r1], %r2", 5), 5u + 820u);
  EXPECT_EQ(one("red.shared.max.s32 [%r1], %r2", 7), 40u);
  EXPECT_EQ(one("red.shared.min.u32 [%r1], %r2", 7), 1u);
  EXPECT_EQ(one("red.shared.or.b32 [%r1], %r2", 0), 63u);
  EXPECT_EQ(one("red.shared.and.b32 [%r1], 12", 0xFF), 12u);
  EXPECT_EQ(one("red.shared.xor.b32 [%r1], %r2", 0), 40u);
  EXPECT_EQ(one("atom.shared.inc.u32 %r3, [%r1], 9", 0), 0u);
  EXPECT_EQ(one("atom.shared.dec.u32 %r3, [%r1], 9", 0), 0u);
  EXPECT_EQ(one("cvt.rn.f32.u32 %f1, %r2; atom.shared.add.f32 %f2, [%r1], %f1", 0), 0x444D0000u);  // 820.0f
}
TEST(Atomics, OnGlobalMemoryFromManyBlocksAndThreads) {
  const auto program = parsed(std::string(ptx_header) +
                              ".entry k(.param .u64 x){ .reg .u64 %q; .reg .u32 %r; ld.param.u64 %q,[x]; "
                              "atom.global.add.u32 %r,[%q],1; ret; }");
  Device device;
  const auto x = device.upload(std::vector<u32>{0});
  expect_success(run(*program, "k", device, {50, 2, 3}, {100, 1, 1}, Args(x), 0, 2));
  EXPECT_EQ(device.download<u32>(x, 1)[0], 30000u);
}

TEST(Calls, PassArgumentsAndResultsAlsoWhenOnlySomeThreadsCall) {
  const std::string functions =
      ".func (.param .b32 r) twice(.param .b32 a, .param .b64 b) { .reg .b32 %x<4>; .reg .b64 %y; .reg .pred "
      "%p; ld.param.u32 %x1, [a]; ld.param.u64 %y, [b];\n"
      "cvt.u32.u64 %x2, %y; setp.gt.u32 %p, %x1, 50; @%p bra BIG; add.u32 %x3, %x1, %x1; add.u32 %x3, %x3, "
      "%x2; st.param.b32 [r], %x3; ret;\n"
      "BIG: st.param.b32 [r], 1000; ret; }\n"
      ".func (.param .b32 r) outer(.param .b32 a) { .reg .b32 %x<4>; ld.param.u32 %x1, [a]; { .param .b32 "
      "p0; st.param.b32 [p0], %x1; .param .b64 p1; st.param.b64 [p1], 7;\n"
      ".param .b32 q; call.uni (q), twice, (p0, p1); ld.param.b32 %x2, [q]; } add.u32 %x3, %x2, 1; "
      "st.param.b32 [r], %x3; ret; }\n";
  expect_each(results(kernel("and.b32 %r1, %t, 1; setp.eq.u32 %p0, %r1, 0; @%p0 bra SKIP; { .param .b32 a; "
                             "st.param.b32 [a], %t; .param .b32 b; call (b), outer, (a);\n"
                             "ld.param.b32 %r0, [b]; }\nSKIP:",
                             functions),
                      100),
              [](u32 t) { return t % 2 == 0 ? 0
                                 : t > 50   ? 1001
                                            : 2 * t + 7 + 1; });
}

TEST(Print, FormatsAsPrintfDoes) {
  const std::string text =
      std::string(ptx_header) +
      ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n.global .align 1 .b8 fmt[] = "
      "{120, 61, 37, 48, 52, 100, 32, 37, 46, 50, 102, 32, 37, 37, 10, 0};\n"
      ".entry k() { .local .align 8 .b8 d[16]; .reg .b64 %q<5>; .reg .b32 %r<3>; .reg .f64 %d; mov.u32 %r1, "
      "%tid.x; st.local.u32 [d], %r1; mov.f64 %d, 0d3FF8000000000000; st.local.f64 [d+8], %d;\n"
      "mov.u64 %q1, d; cvta.local.u64 %q2, %q1; mov.u64 %q3, fmt; cvta.global.u64 %q4, %q3; { .param .b64 a; "
      "st.param.b64 [a], %q4; .param .b64 b; st.param.b64 [b], %q2; .param .b32 c;\n"
      "call.uni (c), vprintf, (a, b); ld.param.b32 %r2, [c]; } ret; }";
  const auto program = parsed(text);
  ASSERT_TRUE(program);
  Device device;
  std::vector<std::uint64_t> variables{device.upload(program->variables[0].initial)};
  emulator::Launch launch;
  launch.program = program.get();
  launch.block = {2, 1, 1};
  launch.variables = variables;
  launch.memory = device.ranges();
  std::string printed;
  launch.print = [&](std::string_view s) { printed += s; };
  expect_success(emulator::run(launch));
  EXPECT_EQ(printed, "x=0000 1.50 %\nx=0001 1.50 %\n");
}

TEST(Indices, OfThreadsAndBlocksInThreeDimensions) {
  const auto program = parsed(
      std::string(ptx_header) +
      ".entry k(.param .u64 out){ .reg .u64 %q<3>; .reg .u32 %r<20>; mov.u32 %r0,%tid.x; mov.u32 %r1,%tid.y; "
      "mov.u32 %r2,%tid.z; mov.u32 %r3,%ctaid.x; mov.u32 %r4,%ctaid.y; mov.u32 %r5,%ctaid.z;\n"
      "mad.lo.u32 %r6,%r2,5,%r1; mad.lo.u32 %r6,%r6,7,%r0; mad.lo.u32 %r7,%r5,3,%r4; mad.lo.u32 "
      "%r7,%r7,2,%r3; mad.lo.u32 %r8,%r7,105,%r6; ld.param.u64 %q0,[out]; mad.wide.u32 %q1,%r8,4,%q0; "
      "add.u32 %r9,%r8,1; st.global.u32 [%q1],%r9; ret; }");
  Device device;
  const auto out = device.allocate(105 * 24 * 4);
  expect_success(run(*program, "k", device, {2, 3, 4}, {7, 5, 3}, Args(out), 0, 2));
  const auto got = device.download<u32>(out, 105 * 24);
  for (u32 i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], i + 1);
}

}  // namespace
}  // namespace cenote::cuda::testing
