// GPU memory over the cards: which way is taken, and why another is not; bytes really move.

#include "tests/unit/transports/verbs/gpu_world.h"

namespace cenote::transport::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using verbs::test::Call;

TEST(GpuMemory, ThatBeginsInTheMidstOfAPageIsReachedWhereItIs) {
  GpuWorld world;
  world.connect();
  const auto memory = world.gpu.allocate(gpu_megabyte, gpu_page + 513);
  const auto target = world.right->register_memory(memory).value();
  expect_put_and_got(world, memory, *target, 20'000);
}

TEST(GpuMemory, IsReachedByAtomics) {
  GpuWorld world;
  world.connect();
  const auto memory = world.gpu.allocate(gpu_page);
  const auto target = world.right->register_memory(memory).value();
  std::uint64_t old = 99;
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(world.to_right->atomic_add({&target->key(), 8}, 5, &old, 1));
    (void)world.finished(*world.to_right, 1);
  }
  EXPECT_EQ(old, 10U);
  ASSERT_TRUE(world.to_right->put({}, {}, 1, 1));
  ASSERT_TRUE(world.until([&] { return world.to_left->signal(1) == 1; }));
  std::uint64_t seen = 0;
  std::memcpy(&seen, world.gpu.read(memory, 8, sizeof seen).data(), sizeof seen);
  EXPECT_EQ(seen, 15U);
}

TEST(GpuMemory, IsOutOfReachWhenItsRegionIsGone) {
  GpuWorld world;
  world.connect();
  const auto memory = world.gpu.allocate(gpu_page);
  auto target = world.right->register_memory(memory).value();
  const RemoteKey key = target->key();
  target.reset();
  const Bytes data = pattern(100, 1);
  ASSERT_TRUE(world.to_right->put(data, {&key, 0}, 1, 1));
  ASSERT_TRUE(world.until([&] { return world.to_right->failure().has_value(); }));
  EXPECT_EQ(world.to_right->failure()->code, ErrorCode::permission_denied);
  EXPECT_EQ(world.gpu.read(memory, 0, 100), Bytes(100));
}

/// What registering says.
std::string refusal(GpuWorld& world) {
  if (world.options.gpu_memory.size() == 3) world.options.gpu_memory.pop_back();  // no staging
  world.connect();
  const auto made = world.right->register_memory(world.gpu.allocate(gpu_page));
  return made ? "" : made.error().message();
}

TEST(GpuMemoryLadder, SaysInTheLogWhichWayItTookAndHowWritesAreSeen) {
  GpuWorld world;
  EXPECT_EQ(refusal(world), "");
  EXPECT_THAT(world.log,
              AllOf(HasSubstr("GPU memory of cuda:0, 4096 bytes: dmabuf"), HasSubstr("flush call")));
}

TEST(GpuMemoryLadder, ACardThatTakesNoDmaBufsIsNamed) {
  for (const auto& [number, name] :
       {std::pair{EOPNOTSUPP, "EOPNOTSUPP"}, std::pair{EPROTONOSUPPORT, "EPROTONOSUPPORT"}}) {
    GpuWorld world({}, 2);
    world.b.refuse(Call::reg_dmabuf_mr, number, 2);  // the second card's
    EXPECT_THAT(refusal(world), AllOf(HasSubstr("b1:1: card or kernel take no dma-bufs"), HasSubstr(name),
                                      HasSubstr("doctor")));
    EXPECT_THAT(world.log, HasSubstr("dmabuf refused: b1:1: card or kernel take no dma-bufs"));
  }
}

TEST(GpuMemoryLadder, AskingTheCardLeavesNothingBehind) {
  GpuWorld world({.dmabuf = true});
  world.options.gpu_memory = {"dmabuf"};
  world.connect();
  const auto memory = world.gpu.allocate(gpu_page);
  const auto before = world.b.alive();
  ASSERT_FALSE(world.right->register_memory(memory));
  EXPECT_EQ(world.b.alive(), before);
  EXPECT_EQ(world.b.calls(Call::reg_dmabuf_mr), 1U);
}

TEST(GpuMemoryLadder, ALibraryWithoutTheCallIsNamed) {
  GpuWorld world;
  world.apis[1] = world.b.api_without_dmabuf();
  EXPECT_THAT(refusal(world), HasSubstr("this libibverbs knows no dma-bufs"));
}

TEST(GpuMemoryLadder, ADriverThatExportsNothingIsNamed) {
  GpuWorld world({.dmabuf = true});
  EXPECT_THAT(refusal(world), AllOf(HasSubstr("the driver of cuda:0 exports no dma-bufs"),
                                    HasSubstr("nvidia_peermem is not loaded")));
}

TEST(GpuMemoryLadder, AnExportThatFailsSaysWhatTheDriverSaid) {
  GpuWorld world;
  world.options.gpu_memory = {"dmabuf"};
  world.connect();
  auto memory = world.gpu.allocate(gpu_page);
  memory.address += 64 * gpu_megabyte;  // beyond the allocation
  const auto refused = world.right->register_memory(memory);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), AllOf(HasSubstr("cuda:0"), HasSubstr("CUDA_ERROR_INVALID_VALUE")));
}

TEST(GpuMemoryLadder, ACardThatCannotLockTheMemoryIsARefusalWithTheLimit) {
  GpuWorld world;
  world.b.refuse(Call::reg_dmabuf_mr, ENOMEM, 2);  // the first only asks
  EXPECT_THAT(refusal(world), AllOf(HasSubstr("b0:1"), HasSubstr("register 4096 bytes"),
                                    HasSubstr("Cannot allocate memory")));
}

TEST(GpuMemoryLadder, OfTwoCardsNoneKeepsWhatTheOtherRefused) {
  GpuWorld world({}, 2);
  world.options.gpu_memory = {"dmabuf"};
  world.connect();
  world.b.refuse(Call::reg_dmabuf_mr, ENOMEM, 4);  // two ask; the second that registers
  const auto memory = world.gpu.allocate(gpu_page);
  const auto before = world.b.alive();
  ASSERT_FALSE(world.right->register_memory(memory));
  EXPECT_EQ(world.b.alive(), before);
}

TEST(GpuMemoryLadder, OnlyWaysThatTheSettingNamesAreTried) {
  GpuWorld world;
  world.options.gpu_memory = {"peermem"};
  EXPECT_THAT(refusal(world), AllOf(HasSubstr("peermem refused"), Not(HasSubstr("dmabuf"))));
  EXPECT_EQ(world.b.calls(Call::reg_dmabuf_mr), 0U);

  GpuWorld none;
  none.options.gpu_memory = {};
  EXPECT_THAT(refusal(none), HasSubstr("verbs.gpu_memory names no way"));

  GpuWorld wrong;
  wrong.options.gpu_memory = {"magic"};
  EXPECT_THAT(refusal(wrong), AllOf(HasSubstr("'magic'"), HasSubstr("dmabuf")));
}

TEST(GpuMemoryLadder, TheModuleIsTakenWhereDmaBufsAreRefused) {
  GpuWorld world;
  const WithPeerMemory module(world);
  world.b.refuse(Call::reg_dmabuf_mr, EOPNOTSUPP, 1, -1);
  world.connect();
  const auto memory = world.gpu.allocate(gpu_megabyte, 100);
  const auto target = world.right->register_memory(memory);
  ASSERT_TRUE(target) << target.error().message();
  expect_put_and_got(world, memory, **target, 50'000);
}

TEST(GpuMemoryLadder, TheModuleIsOfNoUseForACardThatLetsNobodyIn) {
  GpuWorld world;
  const WithPeerMemory module(world);
  world.options.gpu_memory = {"peermem"};
  world.connect();
  auto memory = world.gpu.allocate(gpu_page);
  memory.peer_direct = false;
  const auto refused = world.right->register_memory(memory);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("cuda:0 does not let other cards reach its memory"));
}

TEST(GpuMemoryLadder, TheModulesRefusalIsTheCards) {
  GpuWorld world;
  const WithPeerMemory module(world);
  world.options.gpu_memory = {"peermem"};
  world.connect();
  world.b.refuse(Call::reg_mr, EFAULT);
  const auto refused = world.right->register_memory(world.gpu.allocate(gpu_page));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), AllOf(HasSubstr("b0:1"), HasSubstr("Bad address")));
}

TEST(GpuMemoryLadder, StagingIsTakenWhereAllElseIsRefusedAndTheLogSaysWhy) {
  GpuWorld world({.dmabuf = true});
  world.connect();
  const auto memory = world.gpu.allocate(gpu_page * 8);
  const auto target = world.right->register_memory(memory);
  ASSERT_TRUE(target) << target.error().message();
  EXPECT_THAT(world.log, AllOf(HasSubstr("staged"), HasSubstr("dmabuf refused: the driver of cuda:0"),
                               HasSubstr("peermem refused: no module")));
  expect_put_and_got(world, memory, **target, 20'000);
}

TEST(GpuMemoryLadder, StagingWithoutMemoryToPinIsARefusalWithItsCause) {
  GpuWorld world;
  world.options.gpu_memory = {"staged"};
  world.connect();
  const auto memory = world.gpu.allocate(gpu_page);
  const auto before = world.b.alive();
  world.b.refuse(Call::reg_mr, ENOMEM);
  const auto unlocked = world.right->register_memory(memory);
  ASSERT_FALSE(unlocked);
  EXPECT_THAT(unlocked.error().message(), AllOf(HasSubstr("b0:1"), HasSubstr("Cannot allocate memory")));
  auto access = std::make_shared<DeviceAccess>(*memory.device);
  access->open_copies = nullptr;
  auto bare = memory;
  bare.device = access;
  EXPECT_THAT(world.right->register_memory(bare).error().message(), HasSubstr("nobody gave a way to copy"));
  EXPECT_EQ(world.b.alive(), before);
}

std::string in_words(const std::vector<GpuMemoryWay>& ways) {
  std::string all;
  for (const auto& way : ways)
    all += way.name + (way.usable ? " yes: " : " no: ") + way.reason + (way.remedy.empty() ? "" : " > ") +
           way.remedy + "\n";
  return all;
}

TEST(GpuMemoryWays, SayWhatCardsAndKernelHaveWithoutTouchingAnything) {
  GpuWorld world({}, 2);
  world.options.api = world.apis[1].get();
  EXPECT_THAT(in_words(gpu_memory_ways(world.options)),
              AllOf(HasSubstr("dmabuf yes: b0: takes dma-bufs; b1: takes dma-bufs\n"),
                    HasSubstr("peermem no: module nvidia_peermem is not loaded > modprobe nvidia_peermem")));
  EXPECT_EQ(world.fabric.alive(), verbs::test::Alive{});
  const WithPeerMemory module(world);
  world.b.refuse(Call::reg_dmabuf_mr, EOPNOTSUPP, 2);
  EXPECT_THAT(
      in_words(gpu_memory_ways(world.options)),
      AllOf(HasSubstr("dmabuf no: b0: takes dma-bufs; b1: card or kernel take no dma-bufs (EOPNOTSUPP) > "),
            HasSubstr("peermem yes: module nvidia_peermem is loaded")));
  EXPECT_EQ(world.fabric.alive(), verbs::test::Alive{});
}

TEST(GpuMemoryWays, SayWhatIsMissingOnAMachineWithoutCards) {
  GpuWorld world;
  auto bare = world.fabric.process("bare", {});
  const auto api = bare.api();
  world.options.api = api.get();
  world.options.gpu_memory = {"dmabuf"};
  EXPECT_THAT(in_words(gpu_memory_ways(world.options)),
              AllOf(HasSubstr("dmabuf no: this machine has no RDMA device > "),
                    HasSubstr("peermem no: the setting verbs.gpu_memory leaves it out")));
}

TEST(GpuMemoryWays, ADeviceThatDoesNotOpenIsARefusalWithItsCause) {
  GpuWorld world;
  world.options.api = world.apis[1].get();
  world.b.refuse(Call::open_device, EACCES);
  EXPECT_THAT(in_words(gpu_memory_ways(world.options)), HasSubstr("dmabuf no: b0: Permission denied"));
}

// Each lease has a worker process with a transport of its own.
TEST(ProtectionDomains, AreOneATransportSoThatAKeyOpensNothingOfAnother) {
  GpuWorld world;
  world.connect();
  auto other = world.start(*world.apis[1]);
  EXPECT_EQ(world.b.alive().pds, 2);
  const auto memory = world.gpu.allocate(gpu_page);
  auto others = other->register_memory(memory).value();
  // A peer of the one forges the other's key into one of the one.
  const auto own = region(*world.right, 64);
  RemoteKey forged = others->key();
  std::memcpy(forged.bytes.data(), own->key().bytes.data(), sizeof(std::uint64_t));
  const Bytes data = pattern(100, 1);
  ASSERT_TRUE(world.to_right->put(data, {&forged, 0}, 1, 1));
  ASSERT_TRUE(world.until([&] { return world.to_right->failure().has_value(); }));
  EXPECT_EQ(world.to_right->failure()->code, ErrorCode::permission_denied);
  ASSERT_TRUE(memory.device->flush());
  EXPECT_EQ(world.gpu.read(memory, 0, 100), Bytes(100));
  others.reset();
}

}  // namespace
}  // namespace cenote::transport::test
