// Two machines over the scripted fabric, the right one with an emulated GPU whose exported memory the
// fabric's cards really write into. What they write there stays invisible to the GPU until it is flushed.
#pragma once

#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>

#include "cuda/device_memory.h"
#include "cuda/emulator/emulated_driver.h"
#include "runtime/log.h"
#include "runtime/process.h"
#include "tests/unit/transports/pair.h"
#include "tests/unit/transports/verbs/scripted_provider.h"
#include "transports/verbs/verbs.h"

namespace cenote::transport::test {

inline constexpr std::size_t gpu_page = 4096, gpu_megabyte = 1 << 20;

/// A card of 64 MiB, its context current to this thread.
struct Gpu {
  explicit Gpu(cuda::EmulatedRefusals refusals = {}) {
    cuda::EmulatorOptions options;
    options.devices = {{.model = "A100", .memory_bytes = 64 * gpu_megabyte, .context_bytes = gpu_megabyte}};
    options.refusals = refusals;
    driver = cuda::make_emulated_driver(options);
    cuda::Context context = nullptr;
    EXPECT_EQ(driver->init(0), cuda::Status::success);
    EXPECT_EQ(driver->primary_ctx_retain(&context, 0), cuda::Status::success);
    EXPECT_EQ(driver->ctx_set_current(context), cuda::Status::success);
    memory = cuda::DeviceMemory::create(*driver).value();
  }
  /// Cleared. In whole blocks, as a driver gives them: pages of a dma-buf belong to one allocation.
  MemoryDescription allocate(std::size_t bytes, std::size_t offset = 0) {
    cuda::DevicePtr pointer = 0;
    const std::size_t blocks = (bytes + offset + block - 1) / block * block;
    EXPECT_EQ(driver->mem_alloc(&pointer, blocks), cuda::Status::success);
    EXPECT_EQ(driver->memset_d8(pointer, 0, bytes + offset), cuda::Status::success);
    EXPECT_EQ(driver->ctx_synchronize(), cuda::Status::success);
    return memory->describe(pointer + offset, bytes).value();
  }
  void write(const MemoryDescription& to, std::size_t offset, const Bytes& bytes) {
    EXPECT_EQ(driver->memcpy_htod(to.address + offset, bytes.data(), bytes.size()), cuda::Status::success);
    EXPECT_EQ(driver->ctx_synchronize(), cuda::Status::success);
  }
  /// As the GPU sees them.
  Bytes read(const MemoryDescription& from, std::size_t offset, std::size_t bytes) {
    Bytes out(bytes);
    EXPECT_EQ(driver->memcpy_dtoh(out.data(), from.address + offset, bytes), cuda::Status::success);
    return out;
  }
  static constexpr std::size_t block = 2 * gpu_megabyte;
  std::unique_ptr<cuda::Driver> driver;
  std::unique_ptr<cuda::DeviceMemory> memory;
};

/// What the kernel does for a card: opens dma-bufs.
class OpenDmaBufs {
 public:
  ~OpenDmaBufs() {
    for (const auto& [base, bytes] : mapped_) ::munmap(base, bytes);
  }
  OpenDmaBufs() = default;
  OpenDmaBufs(const OpenDmaBufs&) = delete;
  OpenDmaBufs& operator=(const OpenDmaBufs&) = delete;
  void* open(int fd, std::uint64_t offset, std::size_t length) {
    struct stat what {};
    if (::fstat(fd, &what) != 0) return nullptr;
    const auto bytes = static_cast<std::size_t>(what.st_size);
    if (offset + length > bytes) {
      errno = EINVAL;
      return nullptr;
    }
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) return nullptr;
    mapped_[base] = bytes;
    return static_cast<std::byte*>(base) + offset;
  }

 private:
  std::map<void*, std::size_t> mapped_;
};

/// A machine without a GPU on the left, one with a GPU on the right, joined by one or two rails.
struct GpuWorld {
  explicit GpuWorld(cuda::EmulatedRefusals refusals = {}, std::size_t rails = 1)
      : gpu(refusals),
        a((add_cards(rails), fabric.process("a", names("a", rails)))),
        b(fabric.process("b", names("b", rails))),
        apis{a.api(), b.api()} {
    for (auto* process : {&a, &b}) {
      process->on_dmabuf([this](int fd, std::uint64_t offset, std::size_t length) {
        return dmabufs.open(fd, offset, length);
      });
    }
    options.sysfs = "/nonexistent";
    LogOptions logging;
    logging.level = LogLevel::debug;
    logging.sink = [this](std::string_view line) { log += line; };
    logger = Logger::create(logging).value();
    options.log = logger.get();
  }
  ~GpuWorld() {
    to_left.reset(), to_right.reset(), left.reset(), right.reset();
    EXPECT_TRUE(fabric.violations().empty()) << fabric.violations().front();
    EXPECT_EQ(fabric.alive(), verbs::test::Alive{});
  }
  GpuWorld(const GpuWorld&) = delete;
  GpuWorld& operator=(const GpuWorld&) = delete;

  static std::vector<std::string> names(const std::string& machine, std::size_t count) {
    std::vector<std::string> all;
    for (std::size_t i = 0; i < count; ++i) all.push_back(machine + std::to_string(i));
    return all;
  }
  void add_cards(std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      fabric.add_device(
          verbs::test::roce_device("a" + std::to_string(i), "10.0." + std::to_string(i) + ".1"));
      fabric.add_device(
          verbs::test::roce_device("b" + std::to_string(i), "10.0." + std::to_string(i) + ".2"));
    }
  }
  std::unique_ptr<Transport> start(const verbs::VerbsApi& api) {
    options.api = &api;
    return make_verbs_transport(options).value();
  }
  /// With `options` as they are then.
  void connect() {
    left = start(*apis[0]);
    right = start(*apis[1]);
    to_right = left->connect(right->address(), "right", 0, soon()).value();
    to_left = right->connect(left->address(), "left", 0, soon()).value();
    ASSERT_TRUE(to_right->put({}, {}, 63, 0));
    ASSERT_TRUE(until([&] { return to_left->signal(63) == 1; }));
    (void)finished(*to_right, 1);
  }
  bool until(const std::function<bool()>& done) const { return drive({left.get(), right.get()}, done); }
  std::vector<Completion> finished(Endpoint& endpoint, std::size_t count) const {
    std::vector<Completion> all;
    EXPECT_TRUE(until([&] {
      Completion some[16];
      const std::size_t got = endpoint.poll(some);
      all.insert(all.end(), some, some + got);
      return all.size() >= count;
    })) << all.size()
        << " of " << count;
    return all;
  }

  Gpu gpu;
  OpenDmaBufs dmabufs;
  verbs::test::ScriptedFabric fabric;
  verbs::test::ScriptedProcess a, b;
  std::vector<std::shared_ptr<const verbs::VerbsApi>> apis;
  VerbsOptions options;
  std::string log;
  std::unique_ptr<Logger> logger;
  std::unique_ptr<Transport> left, right;
  std::unique_ptr<Endpoint> to_right, to_left;
};

/// /sys of a kernel that has loaded the module.
struct WithPeerMemory {
  explicit WithPeerMemory(GpuWorld& world) : folder(TemporaryFolder::create("sysfs").value()) {
    std::filesystem::create_directories(folder.file("module/nvidia_peermem"));
    world.options.sysfs = folder.path();
    for (auto* process : {&world.a, &world.b}) {
      process->on_peer_memory([&world](void* address, std::size_t length) -> void* {
        int fd = -1;
        const auto at = reinterpret_cast<std::uint64_t>(address), begin = at / gpu_page * gpu_page;
        const auto end = (at + length + gpu_page - 1) / gpu_page * gpu_page;
        if (world.gpu.driver->mem_get_dmabuf_fd(&fd, begin, end - begin) != cuda::Status::success)
          return nullptr;
        const UniqueFd closed(fd);
        return world.dmabufs.open(fd, at - begin, length);
      });
    }
  }
  TemporaryFolder folder;
};

/// What a put takes: only the transport looks behind a device's address.
inline std::span<std::byte> span_of(const MemoryDescription& memory, std::size_t offset, std::size_t bytes) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the device
  return {reinterpret_cast<std::byte*>(memory.address + offset), bytes};
}

/// A put of the left side into the right one's region, as the GPU sees it, and back by a get.
inline void expect_put_and_got(GpuWorld& world, const MemoryDescription& memory, Region& target,
                               std::size_t bytes) {
  const Bytes sent = pattern(bytes, bytes);
  ASSERT_TRUE(world.to_right->put(sent, {&target.key(), 64}, 1, 1));
  const auto before = world.to_left->signal(1);
  ASSERT_TRUE(world.until([&] { return world.to_left->signal(1) == before + 1; }));
  EXPECT_EQ(world.gpu.read(memory, 64, bytes), sent) << bytes;
  Bytes back(bytes);
  ASSERT_TRUE(world.to_right->get(back, {&target.key(), 64}, 2));
  (void)world.finished(*world.to_right, 2);
  EXPECT_EQ(back, sent) << bytes;
}

}  // namespace cenote::transport::test
