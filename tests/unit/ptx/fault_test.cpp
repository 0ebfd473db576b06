// What goes wrong in a kernel is a value that names kernel, block, thread and address.
#include <thread>

#include "tests/unit/ptx/device.h"

namespace cenote::cuda::testing {
namespace {

std::string entry(const std::string& body) {
  return std::string(ptx_header) +
         ".entry broken(.param .u64 x){ .reg .u64 %q<5>; .reg .b32 %r<5>; .reg .pred %p<3>; ld.param.u64 "
         "%q0,[x]; mov.u32 %r0,%tid.x;\n" +
         body + "\nret; }";
}
emulator::Outcome fault_of(const std::string& body, std::uint64_t* base = nullptr, bool writable = true) {
  const auto program = parsed(entry(body));
  if (!program) return {};
  Device device;
  const auto x = device.allocate(64, writable);
  if (base != nullptr) *base = x;
  return run(*program, "broken", device, {2, 1, 1}, {40, 1, 1}, Args(x));
}

TEST(Faults, AStoreBehindAnAllocationNamesTheFirstThreadThatDidIt) {
  std::uint64_t base = 0;
  const auto outcome = fault_of("mad.wide.u32 %q1,%r0,4,%q0;\nst.global.u32 [%q1],%r0;", &base);
  EXPECT_EQ(outcome.status, Status::illegal_address);
  ASSERT_TRUE(outcome.fault);
  EXPECT_EQ(outcome.fault->kernel, "broken");
  EXPECT_EQ(outcome.fault->block, (emulator::Dim3{0, 0, 0}));
  EXPECT_EQ(outcome.fault->thread, (emulator::Dim3{16, 0, 0}));
  EXPECT_EQ(outcome.fault->address, base + 64);
  EXPECT_EQ(outcome.fault->bytes, 4u);
  EXPECT_EQ(outcome.fault->line, 6u);
  EXPECT_EQ(outcome.fault->text,
            "kernel broken, block (0,0,0), thread (16,0,0): store of 4 bytes at 0x700000000040 in device "
            "memory: no memory there (PTX line 6)");
}
TEST(Faults, StatusesSayWhatKind) {
  EXPECT_EQ(fault_of("ld.global.u32 %r1,[%q0+2];").status, Status::misaligned_address);
  EXPECT_EQ(fault_of("mov.u64 %q1, 0; ld.u32 %r1,[%q1];").status, Status::illegal_address);
  EXPECT_EQ(fault_of("ld.global.v4.u32 {%r1,%r2,%r3,%r4},[%q0+64];").status, Status::illegal_address);
  EXPECT_EQ(fault_of("st.global.u32 [%q0],%r0;", nullptr, false).status, Status::illegal_address);
  EXPECT_EQ(fault_of("ld.shared.u32 %r1,[0];").status, Status::illegal_address);
  EXPECT_EQ(fault_of("mov.u32 %r1, 0xFFFFFFFC; ld.shared.u32 %r1,[%r1+4];").status, Status::illegal_address);
  EXPECT_EQ(fault_of(".local .align 4 .b8 l[8]; mov.u64 %q1,l; ld.local.u32 %r1,[%q1+16];").status,
            Status::illegal_address);
  EXPECT_EQ(fault_of("mov.u64 %q1,0xFFFFFFFFFFFFFFFC; ld.u32 %r1,[%q1];").status, Status::illegal_address);
  EXPECT_EQ(fault_of("atom.global.add.u32 %r1,[%q0+64],1;").status, Status::illegal_address);
  EXPECT_EQ(fault_of("trap;").status, Status::launch_failed);
  EXPECT_EQ(fault_of("bar.sync 16;").status, Status::illegal_instruction);
  EXPECT_EQ(fault_of("ld.global.u32 %r1,[%q0+60];").status, Status::success);
}
TEST(Faults, AThreadThatIsMaskedOffDoesNotFault) {
  EXPECT_EQ(
      fault_of("setp.lt.u32 %p1,%r0,16; mad.wide.u32 %q1,%r0,4,%q0; @%p1 st.global.u32 [%q1],%r0;").status,
      Status::success);
}
TEST(Faults, ARunawayKernelEndsByTheCancelFlag) {
  const auto program = parsed(entry("L: bra L;"));
  Device device;
  CancelFlag cancel;
  std::thread raiser([&] { cancel.raise(); });
  const auto outcome =
      run(*program, "broken", device, {4, 1, 1}, {40, 1, 1}, Args(std::uint64_t{0}), 0, 2, &cancel);
  raiser.join();
  EXPECT_EQ(outcome.status, Status::launch_timeout);
  EXPECT_FALSE(outcome.fault);
}
TEST(Faults, ImpossibleLaunchesAreRefused) {
  const auto program = parsed(entry(""));
  Device device;
  const auto status = [&](emulator::Dim3 grid, emulator::Dim3 block, std::size_t shared) {
    return run(*program, "broken", device, grid, block, Args(std::uint64_t{0}), shared).status;
  };
  EXPECT_EQ(status({0, 1, 1}, {1, 1, 1}, 0), Status::invalid_value);
  EXPECT_EQ(status({1, 1, 1}, {1025, 1, 1}, 0), Status::invalid_value);
  EXPECT_EQ(status({1, 1, 1}, {32, 32, 2}, 0), Status::invalid_value);
  EXPECT_EQ(status({1, 70000, 1}, {1, 1, 1}, 0), Status::invalid_value);
  EXPECT_EQ(status({1, 1, 1}, {1, 1, 1}, std::size_t{1} << 20), Status::invalid_value);
  EXPECT_EQ(run(*program, "broken", device, {1, 1, 1}, {1, 1, 1}, Args(std::uint32_t{0})).status,
            Status::invalid_value);
  EXPECT_EQ(run(*program, "absent", device, {1, 1, 1}, {1, 1, 1}, Args(std::uint64_t{0})).status,
            Status::invalid_value);
}

std::string refusal(const std::string& text) {
  const auto program = ptx::parse(text);
  return program ? "accepted" : program.error().cause;
}
TEST(Parsing, NamesTheFirstUnsupportedInstructionAndItsLine) {
  EXPECT_EQ(refusal(entry("tex.2d.v4.f32.s32 %r1, %r2;")),
            "line 5: unsupported instruction 'tex.2d.v4.f32.s32'");
  EXPECT_EQ(refusal(entry("add.u32 %r1,%r1,1;\nwmma.mma.sync.foo %r1;")),
            "line 6: unsupported instruction 'wmma.mma.sync.foo'");
  const auto program = ptx::parse(entry("cp.async.ca.shared.global %r1;"));
  ASSERT_FALSE(program);
  EXPECT_EQ(program.error().code, ErrorCode::not_supported);
}
TEST(Parsing, NamesWhatIsWrongWithAText) {
  EXPECT_EQ(refusal(""), "line 1: no .version: this is no PTX");
  EXPECT_NE(refusal("hello").find("unexpected 'hello'"), std::string::npos);
  EXPECT_NE(refusal(entry("add.u32 %q1,%r1,1;")).find("has to be a register of 32 bits"), std::string::npos);
  EXPECT_NE(refusal(entry("add.u32 %r1,%q1,1;")).find("register '%q1' has 64 bits"), std::string::npos);
  EXPECT_NE(refusal(entry("add.u32 %r1,%zz,1;")).find("%zz"), std::string::npos);
  EXPECT_NE(refusal(entry("bra NOWHERE;")).find("no label 'NOWHERE'"), std::string::npos);
  EXPECT_NE(refusal(entry("L: L: ret;")).find("defined twice"), std::string::npos);
  EXPECT_NE(refusal(entry("add.u32 %r1,%r2;")).find("with 2 operands"), std::string::npos);
  EXPECT_NE(refusal(entry("ld.param.u64 %q1,[x+8];")).find("outside of the parameters"), std::string::npos);
  EXPECT_NE(refusal(entry("add.u32 %r1,%r2,1")).find("expected ';'"), std::string::npos);
  EXPECT_NE(refusal(std::string(ptx_header) + ".entry k() { ret;").find("does not end"), std::string::npos);
  EXPECT_NE(
      refusal(std::string(ptx_header) + ".global .b8 x[4] = {1,2,3,4,5};").find("too many initial values"),
      std::string::npos);
}
TEST(Parsing, RefusesRecursionAndAbsentFunctions) {
  EXPECT_NE(refusal(std::string(ptx_header) + ".func f() { call f; ret; }").find("recursive"),
            std::string::npos);
  EXPECT_NE(refusal(std::string(ptx_header) + ".extern .func g();\n.entry k() {\ncall g;\nret; }")
                .find("line 6: a call of 'g', which has no body"),
            std::string::npos);
}
TEST(Parsing, DescribesEntriesAndVariables) {
  const auto program =
      parsed(std::string(ptx_header) +
             ".global .align 4 .u32 a[3] = {1, 2};\n.const .align 8 .f64 b = 0d3FF0000000000000;\n.extern "
             ".global .u32 c;\n"
             ".entry k(.param .u8 p, .param .u64 q, .param .align 4 .b8 s[6]) .maxntid 128, 2, 1 { .shared "
             ".align 8 .b8 t[40]; .local .b8 l[20]; .reg .u32 %r; mov.u32 %r, t; ret; }");
  ASSERT_TRUE(program);
  const auto& e = program->entries.at(0);
  EXPECT_EQ(e.params.at(1).offset, 8u);
  EXPECT_EQ(e.params.at(2).offset, 16u);
  EXPECT_EQ(e.params.at(2).size, 6u);
  EXPECT_EQ(e.param_bytes, 22u);
  EXPECT_EQ(e.shared_bytes, 40u);
  EXPECT_EQ(e.local_bytes, 32u);
  EXPECT_EQ(e.max_threads, 256u);
  EXPECT_EQ(program->variables.at(0).size, 12u);
  EXPECT_EQ(program->variables.at(0).initial.size(), 8u);
  EXPECT_EQ(program->variables.at(1).space, ptx::VariableSpace::constant);
  EXPECT_TRUE(program->variables.at(2).external);
}

}  // namespace
}  // namespace cenote::cuda::testing
