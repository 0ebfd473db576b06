// What only the emulated driver promises: other processes, forks, NICs, refusals, several drivers in one
// process.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <thread>

#include "cuda/emulator/emulated_driver.h"
#include "cuda/emulator/range_allocator.h"
#include "tests/unit/cuda/conformance.h"

namespace cenote::cuda::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

class Emulator : public testing::Test {
 protected:
  void start(const EmulatorOptions& options = small_machine()) {
    driver = make_emulated_driver(options);
    ASSERT_OK(driver->init(0));
    ASSERT_OK(driver->primary_ctx_retain(&context, 0));
    ASSERT_OK(driver->ctx_set_current(context));
  }
  DevicePtr allocate(std::size_t bytes) {
    DevicePtr pointer = 0;
    EXPECT_OK(driver->mem_alloc(&pointer, bytes));
    return pointer;
  }
  std::vector<unsigned> words(DevicePtr pointer, std::size_t count) {
    std::vector<unsigned> values(count);
    EXPECT_OK(driver->memcpy_dtoh(values.data(), pointer, count * 4));
    return values;
  }
  std::unique_ptr<Driver> driver;
  Context context = nullptr;
};

/// A child process that runs `body` and tells by its exit code whether it went well. It ends by itself.
class Child {
 public:
  template <class Body>
  explicit Child(Body body) {
    id_ = fork();
    if (id_ != 0) return;
    alarm(60);
    _exit(body() ? 0 : 1);
  }
  ~Child() {
    if (id_ <= 0) return;
    kill(id_, SIGKILL);
    waitpid(id_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  /// Waits for its end.
  bool went_well() {
    int status = 0;
    const bool ended = waitpid(id_, &status, 0) == id_;
    id_ = -1;
    return ended && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t id_ = -1;
};

class Pipe {
 public:
  Pipe() { good_ = pipe(ends_) == 0; }
  ~Pipe() {
    close(ends_[0]);
    close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  template <class T>
  bool send(const T& value) {
    return good_ && write(ends_[1], &value, sizeof(value)) == sizeof(value);
  }
  template <class T>
  bool receive(T& value) {
    return good_ && read(ends_[0], &value, sizeof(value)) == sizeof(value);
  }

 private:
  int ends_[2] = {-1, -1};
  bool good_ = false;
};

// The exporting side: makes words, lends them, waits to hear what became of them.
bool lend(Pipe& out, Pipe& in) {
  auto driver = make_emulated_driver(small_machine());
  Context context = nullptr;
  DevicePtr pad = 0, pointer = 0;
  IpcMemHandle handle{};
  std::vector<unsigned> values(1000, 7);
  bool good = driver->init(0) == Status::success &&
              driver->primary_ctx_retain(&context, 0) == Status::success &&
              driver->ctx_set_current(context) == Status::success &&
              driver->mem_alloc(&pad, 512) == Status::success &&
              driver->mem_alloc(&pointer, 4000) == Status::success &&
              driver->memcpy_htod(pointer, values.data(), 4000) == Status::success &&
              driver->ctx_synchronize() == Status::success &&
              driver->ipc_get_mem_handle(&handle, pointer) == Status::success;
  // Nobody opens what he has exported himself.
  DevicePtr mine = 0;
  good = good && driver->ipc_open_mem_handle(&mine, handle, 0) == Status::invalid_context;
  good = good && out.send(handle);
  char go = 0;
  good = good && in.receive(go);
  good = good && driver->memcpy_dtoh(values.data(), pointer, 4000) == Status::success && values[0] == 9 &&
         values[999] == 7;
  good = good && driver->mem_free(pointer) == Status::success && out.send(go) && in.receive(go);
  return good;
}

TEST_F(Emulator, NamesTheVariableThatAModuleLacks) {
  start();
  const std::string text = ".version 8.0\n.target sm_75\n.address_size 64\n.extern .global .u32 elsewhere;\n";
  Module module = nullptr;
  EXPECT_EQ(driver->module_load_data(&module, text.data(), text.size()), Status::not_found);
  EXPECT_THAT(driver->last_error_detail(), HasSubstr("elsewhere"));
}

TEST_F(Emulator, AnotherProcessOpensItsMemory) {
  Pipe to_child, from_child;
  Child child([&] { return lend(from_child, to_child); });
  start();
  IpcMemHandle handle{};
  ASSERT_TRUE(from_child.receive(handle));
  DevicePtr theirs = 0, again = 0;
  ASSERT_OK(driver->ipc_open_mem_handle(&theirs, handle, 1));
  EXPECT_THAT(words(theirs, 1000), Each(7u));
  ASSERT_OK(driver->ipc_open_mem_handle(&again, handle, 1));
  EXPECT_EQ(again, theirs) << "opened twice: counted";
  ASSERT_OK(driver->memset_d32_async(theirs, 9, 1, nullptr));
  ASSERT_OK(driver->ctx_synchronize());
  unsigned word = 0;
  EXPECT_EQ(driver->memcpy_dtoh(&word, theirs + 4000, 4), Status::invalid_value)
      << "no more than the allocation";
  EXPECT_EQ(driver->mem_free(theirs), Status::invalid_value) << "closed, not freed";
  ASSERT_OK(driver->ipc_close_mem_handle(again));
  EXPECT_EQ(words(theirs, 1)[0], 9u);
  constexpr int more = 7, tries = 12;
  for (int k = 0; k < more; ++k) ASSERT_OK(driver->ipc_open_mem_handle(&again, handle, 0));
  std::atomic<int> closed = 0, refused = 0;
  std::vector<std::thread> closers;
  for (int k = 0; k < tries; ++k)
    closers.emplace_back([&] {
      EXPECT_OK(driver->ctx_set_current(context));
      const auto status = driver->ipc_close_mem_handle(theirs);
      ++(status == Status::success ? closed : refused);
    });
  for (auto& closer : closers) closer.join();
  EXPECT_EQ(closed, more + 1) << "as often as it was opened, whoever closes";
  EXPECT_EQ(refused, tries - more - 1);
  EXPECT_EQ(driver->ipc_close_mem_handle(theirs), Status::invalid_value);
  EXPECT_EQ(driver->memcpy_dtoh(&word, theirs, 4), Status::invalid_value);

  char go = 1;
  ASSERT_TRUE(to_child.send(go));
  ASSERT_TRUE(from_child.receive(go)) << "the child has freed it";
  EXPECT_EQ(driver->ipc_open_mem_handle(&theirs, handle, 1), Status::map_failed);
  EXPECT_THAT(driver->last_error_detail(), HasSubstr("has freed that memory"));
  ASSERT_TRUE(to_child.send(go));
  EXPECT_TRUE(child.went_well());
  EXPECT_EQ(driver->ipc_open_mem_handle(&theirs, handle, 1), Status::map_failed);
  EXPECT_THAT(driver->last_error_detail(), HasSubstr("process has ended"));
}

TEST_F(Emulator, ForgedIpcHandlesAreRefused) {
  start();
  IpcMemHandle handle{};
  DevicePtr pointer = 0;
  EXPECT_EQ(driver->ipc_open_mem_handle(&pointer, handle, 0), Status::invalid_value);
  std::memset(&handle, 0x5a, sizeof(handle));
  EXPECT_EQ(driver->ipc_open_mem_handle(&pointer, handle, 0), Status::invalid_value);
  EXPECT_EQ(driver->ipc_get_mem_handle(&handle, 0x1234), Status::invalid_value);
}

TEST_F(Emulator, AForkedChildGetsErrorsNotHangs) {
  start();
  Stream stream = nullptr;
  ASSERT_OK(driver->stream_create(&stream, stream_non_blocking));
  const auto pointer = allocate(64);
  ASSERT_OK(driver->memset_d8_async(pointer, 1, 64, stream));
  Child child([&] {
    DevicePtr more = 0;
    const bool refused = driver->mem_alloc(&more, 1) == Status::not_initialized &&
                         driver->stream_synchronize(stream) == Status::not_initialized &&
                         driver->init(0) == Status::not_initialized;
    driver.reset();
    return refused;
  });
  EXPECT_TRUE(child.went_well());
  EXPECT_OK(driver->stream_synchronize(stream)) << "the parent goes on";
}

TEST_F(Emulator, AChildForkedBeforeInitMayInit) {
  driver = make_emulated_driver(small_machine());
  Child child([&] {
    Context mine = nullptr;
    return driver->init(0) == Status::success && driver->primary_ctx_retain(&mine, 0) == Status::success;
  });
  EXPECT_TRUE(child.went_well());
  EXPECT_OK(driver->init(0));
}

TEST_F(Emulator, WhatANicWroteIsInvisibleUntilFlushed) {
  start();
  const auto pointer = allocate(2 * kMiB);
  ASSERT_OK(driver->memset_d32_async(pointer, 1, kMiB / 2, nullptr));
  ASSERT_OK(driver->ctx_synchronize());
  int fd = -1;
  ASSERT_OK(driver->mem_get_dmabuf_fd(&fd, pointer, 8192));
  auto* nic = static_cast<unsigned*>(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  ASSERT_NE(nic, MAP_FAILED);
  EXPECT_EQ(nic[2047], 1u) << "it reads what the device holds";
  nic[0] = 77;
  EXPECT_EQ(words(pointer, 1)[0], 1u);
  ASSERT_OK(driver->flush_gpu_direct_rdma_writes());
  EXPECT_THAT(words(pointer, 2), ElementsAre(77, 1));

  ASSERT_OK(driver->memset_d32_async(pointer + 4, 5, 1, nullptr));
  ASSERT_OK(driver->ctx_synchronize());
  EXPECT_EQ(nic[1], 5u) << "what the device wrote is seen after a synchronisation";
  EXPECT_EQ(nic[0], 77u);

  int same = -1;
  ASSERT_OK(driver->mem_get_dmabuf_fd(&same, pointer, 8192));
  unsigned through = 0;
  EXPECT_EQ(pread(same, &through, 4, 4), 4);
  EXPECT_EQ(through, 5u) << "the same memory again";
  close(same);
  close(fd);
  munmap(nic, 8192);
}

TEST_F(Emulator, AWaitForAValueMayFlush) {
  start();
  const auto pointer = allocate(2 * kMiB);
  ASSERT_OK(driver->memset_d8(pointer, 0, 4096));
  ASSERT_OK(driver->ctx_synchronize());
  int fd = -1;
  ASSERT_OK(driver->mem_get_dmabuf_fd(&fd, pointer, 4096));
  Stream stream = nullptr;
  ASSERT_OK(driver->stream_create(&stream, stream_non_blocking));
  constexpr unsigned kFlush = 1u << 30;
  ASSERT_OK(driver->stream_wait_value32(stream, pointer, 3, wait_eq | kFlush));
  EXPECT_EQ(driver->stream_query(stream), Status::not_ready);
  const unsigned three = 3;
  ASSERT_EQ(pwrite(fd, &three, 4, 0), 4);
  EXPECT_OK(driver->stream_synchronize(stream));
  close(fd);
}

TEST_F(Emulator, ADmabufIsOfWholePagesOfOneAllocation) {
  start();
  const auto pointer = allocate(2 * kMiB);
  int fd = -1;
  EXPECT_EQ(driver->mem_get_dmabuf_fd(&fd, pointer + 512, 4096), Status::invalid_value);
  EXPECT_EQ(driver->mem_get_dmabuf_fd(&fd, pointer, 100), Status::invalid_value);
  EXPECT_EQ(driver->mem_get_dmabuf_fd(&fd, pointer, 2 * kMiB + 4096), Status::invalid_value);
}

TEST_F(Emulator, RefusesWhatItIsToldToRefuse) {
  auto options = small_machine();
  options.refusals = {.ipc = true, .dmabuf = true, .address_hints = true, .peer_access = true};
  start(options);
  const auto pointer = allocate(2 * kMiB);
  IpcMemHandle handle{};
  EXPECT_EQ(driver->ipc_get_mem_handle(&handle, pointer), Status::not_supported);
  int fd = -1, value = 1, can = 1;
  EXPECT_EQ(driver->mem_get_dmabuf_fd(&fd, pointer, 4096), Status::not_supported);
  EXPECT_OK(driver->device_get_attribute(&value, DeviceAttribute::dma_buf_supported, 0));
  EXPECT_EQ(value, 0) << "and says so beforehand";
  EXPECT_OK(driver->device_can_access_peer(&can, 0, 1));
  EXPECT_EQ(can, 0);
  Context other = nullptr;
  ASSERT_OK(driver->primary_ctx_retain(&other, 1));
  EXPECT_EQ(driver->ctx_enable_peer_access(other, 0), Status::peer_access_unsupported);
  DevicePtr range = 0, elsewhere = 0;
  ASSERT_OK(driver->mem_address_reserve(&range, 4 * kMiB, 0, 0));
  ASSERT_OK(driver->mem_address_free(range, 4 * kMiB));
  DevicePtr far = range - (std::uint64_t{1} << 36);  // free, but not where the kernel would put it by itself
  ASSERT_OK(driver->mem_address_reserve(&elsewhere, 4 * kMiB, 0, far));
  EXPECT_NE(elsewhere, far);
}

TEST_F(Emulator, RefusalsAreDrawnOnTheSeed) {
  const auto refuses = [](std::uint64_t seed) {
    auto options = small_machine();
    options.refusals.chance = 0.5;
    options.seed = seed;
    auto machine = make_emulated_driver(options);
    int peer = 0, dmabuf = 0;
    machine->init(0);
    machine->device_can_access_peer(&peer, 0, 1);
    machine->device_get_attribute(&dmabuf, DeviceAttribute::dma_buf_supported, 0);
    return peer * 2 + dmabuf;
  };
  std::vector<int> seen;
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    seen.push_back(refuses(seed));
    EXPECT_EQ(refuses(seed), seen.back()) << "the same again";
  }
  for (const int outcome : {0, 1, 2, 3}) EXPECT_THAT(seen, testing::Contains(outcome));
}

TEST_F(Emulator, TwoDriversInOneProcessDoNotSeeEachOther) {
  start();
  auto second = make_emulated_driver(small_machine());
  Context mine = nullptr;
  EXPECT_EQ(second->init(0), Status::success);
  EXPECT_EQ(second->ctx_get_current(&mine), Status::success);
  EXPECT_EQ(mine, nullptr) << "the current context is per driver";
  EXPECT_EQ(second->primary_ctx_retain(&mine, 0), Status::success);
  EXPECT_EQ(second->ctx_set_current(mine), Status::success);
  const auto pointer = allocate(64);
  EXPECT_EQ(second->mem_free(pointer), Status::invalid_value);
  second.reset();
  EXPECT_OK(driver->mem_free(pointer));
}

TEST_F(Emulator, TheDestructorEndsWhatIsInFlight) {
  start();
  const auto gate = allocate(4);
  ASSERT_OK(driver->memset_d8(gate, 0, 4));
  ASSERT_OK(driver->ctx_synchronize());
  Stream stream = nullptr;
  ASSERT_OK(driver->stream_create(&stream, stream_non_blocking));
  ASSERT_OK(driver->stream_wait_value32(stream, gate, 1, wait_eq));
  driver.reset();  // nobody will ever write the 1
}

TEST_F(Emulator, AThreadsDefaultStreamEndsWithItAndRunsWhatIsInIt) {
  start();
  const auto memory = allocate(400);
  const auto threads_now = [] {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
      count += entry.exists() ? 1 : 0;
    return count;
  };
  const auto before = threads_now();
  std::vector<unsigned> wanted;
  for (unsigned i = 0; i < 100; ++i) {
    wanted.push_back(i + 1);
    std::thread([&] {
      driver->ctx_set_current(context);
      driver->memset_d32_async(memory + i * 4, i + 1, 1, reinterpret_cast<Stream>(2));
    }).join();
  }
  ASSERT_OK(driver->ctx_synchronize());
  EXPECT_EQ(words(memory, 100), wanted);
  EXPECT_TRUE(eventually([&] { return threads_now() <= before + 2; })) << threads_now();
}

TEST_F(Emulator, CardsAreWhatTheirModelsAre) {
  EmulatorOptions options;
  options.devices.clear();
  for (const char* model : {"H200", "L4", "my own"}) options.devices.push_back({.model = model});
  driver = make_emulated_driver(options);
  ASSERT_OK(driver->init(0));
  char name[96];
  std::size_t bytes = 0;
  ASSERT_OK(driver->device_get_name(name, sizeof(name), 0));
  EXPECT_THAT(name, HasSubstr("H200"));
  ASSERT_OK(driver->device_total_mem(&bytes, 0));
  EXPECT_GT(bytes, std::size_t{139} << 30) << "a whole H200: only touched pages are real";
  int major = 0, can = 1;
  ASSERT_OK(driver->device_get_attribute(&major, DeviceAttribute::compute_capability_major, 0));
  EXPECT_EQ(major, 9);
  ASSERT_OK(driver->device_can_access_peer(&can, 0, 1));
  EXPECT_EQ(can, 0) << "an L4 has no NVLink";
  ASSERT_OK(driver->device_get_name(name, sizeof(name), 2));
  EXPECT_THAT(name, HasSubstr("my own"));
}

TEST_F(Emulator, UuidsAreThoseOfTheMachine) {
  const auto uuid = [](const char* machine, DeviceId device) {
    auto options = small_machine();
    options.machine = machine;
    options.seed = 5;
    auto one = make_emulated_driver(options);
    DeviceUuid bytes{};
    one->init(0);
    one->device_get_uuid(&bytes, device);
    return std::string(reinterpret_cast<const char*>(bytes.bytes), sizeof(bytes));
  };
  EXPECT_EQ(uuid("node-a", 0), uuid("node-a", 0));
  EXPECT_NE(uuid("node-a", 0), uuid("node-a", 1));
  EXPECT_NE(uuid("node-a", 0), uuid("node-b", 0));
}

TEST_F(Emulator, AMachineWithoutCardsHasNoDevice) {
  EmulatorOptions options;
  options.devices.clear();
  driver = make_emulated_driver(options);
  EXPECT_EQ(driver->init(0), Status::no_device);
}

TEST_F(Emulator, AFreedAddressRestsBeforeItIsUsedAgain) {
  start();
  std::vector<DevicePtr> seen;
  for (int i = 0; i < 1000; ++i) {
    const auto pointer = allocate(kMiB);
    EXPECT_THAT(seen, testing::Not(testing::Contains(pointer)));
    seen.push_back(pointer);
    ASSERT_OK(driver->mem_free(pointer));
  }
}

TEST(RangeAllocator, GivesEverythingBackTogether) {
  emulator::RangeAllocator ranges(0, 1 << 20);
  std::vector<std::uint64_t> taken;
  while (auto at = ranges.take(1000, 512, 512)) taken.push_back(*at);
  EXPECT_GE(taken.size(), (1u << 20) / (1000 + 512 + 512 + 512));
  std::sort(taken.begin(), taken.end());
  for (std::size_t i = 1; i < taken.size(); ++i) EXPECT_GE(taken[i] - taken[i - 1], 1000u + 512);
  for (std::size_t i = 0; i < taken.size(); i += 2) ranges.give(taken[i], 1000, 512);
  for (std::size_t i = 1; i < taken.size(); i += 2) ranges.give(taken[i], 1000, 512);
  EXPECT_TRUE(ranges.take((1 << 20) - 1024, 512, 512)) << "one range again";
  EXPECT_FALSE(ranges.take(1, 1, 0)) << "and all of it taken";
}

}  // namespace
}  // namespace cenote::cuda::test
