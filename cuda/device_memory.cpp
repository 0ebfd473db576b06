#include "cuda/device_memory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/current_context.h"
#include "cuda/device_copies.h"
#include "cuda/nic_writes.h"
#include "cuda/reduce_kernels.h"

namespace cenote::cuda {
namespace {

constexpr std::size_t kSlotBytes = std::size_t{1} << 20;
constexpr int kMemoryHost = 1;
constexpr int kFlushFromHost = 1;  // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST

bool known(int type) { return type >= CENOTE_FLOAT32 && type <= CENOTE_INT64; }

int attribute(Driver& driver, DeviceAttribute which, DeviceId device, int unknown = 0) {
  int value = 0;
  return driver.device_get_attribute(&value, which, device) == Status::success ? value : unknown;
}

WritesFacts facts_of(Driver& driver, DeviceId device) {
  WritesFacts facts;
  facts.major = attribute(driver, DeviceAttribute::compute_capability_major, device);
  facts.minor = attribute(driver, DeviceAttribute::compute_capability_minor, device);
  facts.ordering = attribute(driver, DeviceAttribute::gpu_direct_rdma_writes_ordering, device, -1);
  facts.flush_options = attribute(driver, DeviceAttribute::gpu_direct_rdma_flush_writes_options, device, -1);
  facts.coherent_link =
      attribute(driver, DeviceAttribute::pageable_access_uses_host_page_tables, device) != 0;
  return facts;
}

}  // namespace

// Two pinned slots: while one is on its way, the other is emptied or filled.
struct DeviceMemory::Way {
  explicit Way(Driver& with) : driver(with) {}
  ~Way();
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;
  Status open();
  Result<void> read(std::byte* host, DevicePtr device_pointer, std::size_t bytes);
  Result<void> write(DevicePtr device_pointer, const std::byte* host, std::size_t bytes);
  Result<void> reduce(DevicePtr dst, DevicePtr own, const std::byte* incoming, std::size_t count, int type,
                      int op);
  Result<void> divide(DevicePtr x, std::size_t count, int type, unsigned divisor);
  Result<void> copy(DevicePtr dst, DevicePtr src, std::size_t bytes);
  Result<DmaBuf> export_dmabuf(DevicePtr pointer, std::size_t bytes);
  Result<void> flush();

  Driver& driver;
  Context context = nullptr;
  DeviceId device = 0;
  bool dmabuf = false;
  bool peer_direct = false;
  bool has_flush = false;
  bool flush_before_read = false;
  std::string visibility;
  std::string home;
  std::unique_ptr<ReduceKernels> kernels;

 private:
  Status read_slots(std::byte* host, DevicePtr device_pointer, std::size_t bytes);
  Status write_slots(DevicePtr device_pointer, const std::byte* host, std::size_t bytes);
  Status fill_slot(std::size_t slot, DevicePtr device_pointer, const std::byte* host, std::size_t bytes);
  Result<void> reduce_slots(DevicePtr dst, DevicePtr own, const std::byte* incoming, std::size_t count,
                            DataType type, ReduceOp op);
  /// Runs `body` in the context, then waits for the stream.
  template <class Body>
  Result<void> on_device(const char* what, Body body);
  [[nodiscard]] Error failed(const char* what, Status status) const {
    return driver_error(driver, what, status).on(home);
  }

  std::mutex mutex_;
  Stream stream_ = nullptr;
  std::array<std::byte*, 2> slots_{};
  std::array<Event, 2> events_{};
  DevicePtr scratch_ = 0;  ///< where incoming operands lie on the device; there where kernels are
};

DeviceMemory::Way::~Way() {
  const CurrentContext current(driver, context);
  if (current.status() != Status::success) return;
  kernels.reset();
  for (auto* event : events_) {
    if (event != nullptr) driver.event_destroy(event);
  }
  for (auto* slot : slots_) {
    if (slot != nullptr) driver.mem_free_host(slot);
  }
  if (scratch_ != 0) driver.mem_free(scratch_);
  if (stream_ != nullptr) driver.stream_destroy(stream_);
}

Status DeviceMemory::Way::open() {
  if (auto status = driver.ctx_get_current(&context); status != Status::success) return status;
  if (auto status = driver.ctx_get_device(&device); status != Status::success) return status;
  if (auto status = driver.stream_create(&stream_, stream_non_blocking); status != Status::success)
    return status;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    void* slot = nullptr;
    if (auto status = driver.mem_host_alloc(&slot, kSlotBytes, 0); status != Status::success) return status;
    slots_[i] = static_cast<std::byte*>(slot);
    if (auto status = driver.event_create(&events_[i], event_disable_timing); status != Status::success)
      return status;
  }
  home = "cuda:" + std::to_string(device);
  dmabuf = attribute(driver, DeviceAttribute::dma_buf_supported, device) != 0;
  peer_direct = attribute(driver, DeviceAttribute::gpu_direct_rdma, device) != 0;
  const WritesFacts facts = facts_of(driver, device);
  const WritesRule& rule = writes_rule(facts);
  flush_before_read = rule.seen != WritesSeen::at_once;
  has_flush = rule.seen == WritesSeen::after_flush && (facts.flush_options & kFlushFromHost) != 0;
  visibility = in_words(rule);
  // A card that cannot run them, or is full, is no failure: the CPU reduces then.
  if (auto loaded = ReduceKernels::load(driver);
      loaded && driver.mem_alloc(&scratch_, kSlotBytes) == Status::success)
    kernels = std::move(*loaded);
  return Status::success;
}

Status DeviceMemory::Way::read_slots(std::byte* host, DevicePtr device_pointer, std::size_t bytes) {
  const auto chunks = (bytes + kSlotBytes - 1) / kSlotBytes;
  const auto size = [&](std::size_t chunk) { return std::min(kSlotBytes, bytes - chunk * kSlotBytes); };
  for (std::size_t chunk = 0; chunk <= chunks; ++chunk) {
    if (chunk < chunks) {
      auto status = driver.memcpy_dtoh_async(slots_[chunk % 2], device_pointer + chunk * kSlotBytes,
                                             size(chunk), stream_);
      if (status == Status::success) status = driver.event_record(events_[chunk % 2], stream_);
      if (status != Status::success) return status;
    }
    if (chunk == 0) continue;
    if (auto status = driver.event_synchronize(events_[(chunk - 1) % 2]); status != Status::success)
      return status;
    std::memcpy(host + (chunk - 1) * kSlotBytes, slots_[(chunk - 1) % 2], size(chunk - 1));
  }
  return Status::success;
}

/// Queues a copy to the device through one slot.
Status DeviceMemory::Way::fill_slot(std::size_t slot, DevicePtr device_pointer, const std::byte* host,
                                    std::size_t bytes) {
  // The slot's last copy, of this call or an earlier one, has left it.
  if (auto status = driver.event_synchronize(events_[slot]); status != Status::success) return status;
  std::memcpy(slots_[slot], host, bytes);
  auto status = driver.memcpy_htod_async(device_pointer, slots_[slot], bytes, stream_);
  if (status == Status::success) status = driver.event_record(events_[slot], stream_);
  return status;
}

Status DeviceMemory::Way::write_slots(DevicePtr device_pointer, const std::byte* host, std::size_t bytes) {
  for (std::size_t done = 0, chunk = 0; done < bytes; ++chunk) {
    const auto size = std::min(kSlotBytes, bytes - done);
    if (auto status = fill_slot(chunk % 2, device_pointer + done, host + done, size);
        status != Status::success)
      return status;
    done += size;
  }
  return driver.stream_synchronize(stream_);
}

/// Operands commute to the bit, so what comes in may as well be the left one.
Result<void> DeviceMemory::Way::reduce_slots(DevicePtr dst, DevicePtr own, const std::byte* incoming,
                                             std::size_t count, DataType type, ReduceOp op) {
  const auto at_once = kSlotBytes / size_of(type);
  for (std::size_t done = 0, chunk = 0; done < count; ++chunk) {
    const auto elements = std::min(at_once, count - done);
    const auto at = done * size_of(type);
    const auto operand = dst == own ? scratch_ : dst + at;
    const auto status = fill_slot(chunk % 2, operand, incoming + at, elements * size_of(type));
    if (status != Status::success) return fail(failed("reduce on the device", status));
    CENOTE_TRY(dst == own ? kernels->reduce(dst + at, scratch_, elements, type, op, stream_)
                          : kernels->reduce(dst + at, own + at, elements, type, op, stream_));
    done += elements;
  }
  return {};
}

Result<void> DeviceMemory::Way::read(std::byte* host, DevicePtr device_pointer, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  const CurrentContext current(driver, context);
  auto status = current.status();
  if (status == Status::success) status = read_slots(host, device_pointer, bytes);
  if (status != Status::success) return fail(failed("read device memory", status));
  return {};
}

Result<void> DeviceMemory::Way::write(DevicePtr device_pointer, const std::byte* host, std::size_t bytes) {
  std::lock_guard lock(mutex_);
  const CurrentContext current(driver, context);
  auto status = current.status();
  if (status == Status::success) status = write_slots(device_pointer, host, bytes);
  if (status != Status::success) return fail(failed("write device memory", status));
  return {};
}

template <class Body>
Result<void> DeviceMemory::Way::on_device(const char* what, Body body) {
  std::lock_guard lock(mutex_);
  const CurrentContext current(driver, context);
  if (current.status() != Status::success) return fail(failed(what, current.status()));
  CENOTE_TRY(body());
  if (auto status = driver.stream_synchronize(stream_); status != Status::success)
    return fail(failed(what, status));
  return {};
}

Result<void> DeviceMemory::Way::reduce(DevicePtr dst, DevicePtr own, const std::byte* incoming,
                                       std::size_t count, int type, int op) {
  constexpr auto what = "reduce on the device";
  if (!known(type) || op < CENOTE_SUM || op > CENOTE_AVG)
    return fail(ErrorCode::invalid_argument, what, "no such element type or operation");
  return on_device(what, [&] {
    return reduce_slots(dst, own, incoming, count, static_cast<DataType>(type), static_cast<ReduceOp>(op));
  });
}

Result<void> DeviceMemory::Way::divide(DevicePtr x, std::size_t count, int type, unsigned divisor) {
  constexpr auto what = "divide on the device";
  if (!known(type)) return fail(ErrorCode::invalid_argument, what, "no such element type");
  return on_device(what,
                   [&] { return kernels->divide(x, count, static_cast<DataType>(type), divisor, stream_); });
}

Result<void> DeviceMemory::Way::copy(DevicePtr dst, DevicePtr src, std::size_t bytes) {
  constexpr auto what = "copy on the device";
  return on_device(what, [&]() -> Result<void> {
    if (auto status = driver.memcpy_dtod_async(dst, src, bytes, stream_); status != Status::success)
      return fail(failed(what, status));
    return {};
  });
}

/// Of the pages around the range: a dma-buf is made of whole ones.
Result<DmaBuf> DeviceMemory::Way::export_dmabuf(DevicePtr pointer, std::size_t bytes) {
  const auto page = static_cast<DevicePtr>(::sysconf(_SC_PAGESIZE));
  const DevicePtr begin = pointer / page * page, end = (pointer + bytes + page - 1) / page * page;
  const CurrentContext current(driver, context);
  int fd = -1;
  auto status = current.status();
  if (status == Status::success) status = driver.mem_get_dmabuf_fd(&fd, begin, end - begin);
  if (status != Status::success) return fail(failed("export device memory as a dma-buf", status));
  return DmaBuf{UniqueFd(fd), pointer - begin};
}

Result<void> DeviceMemory::Way::flush() {
  const CurrentContext current(driver, context);
  auto status = current.status();
  if (status == Status::success) status = driver.flush_gpu_direct_rdma_writes();
  if (status != Status::success) return fail(failed("flush what cards wrote to device memory", status));
  return {};
}

DeviceMemory::DeviceMemory(std::shared_ptr<Way> way) : way_(std::move(way)) {
  auto access = std::make_shared<DeviceAccess>();
  access->read = [way = way_](std::byte* host, std::uint64_t device, std::size_t bytes) {
    return way->read(host, device, bytes);
  };
  access->write = [way = way_](std::uint64_t device, const std::byte* host, std::size_t bytes) {
    return way->write(device, host, bytes);
  };
  access->copy = [way = way_](std::uint64_t dst, std::uint64_t src, std::size_t bytes) {
    return way->copy(dst, src, bytes);
  };
  if (way_->kernels != nullptr) {
    access->reduce = [way = way_](std::uint64_t dst, std::uint64_t own, const std::byte* incoming,
                                  std::size_t count, int type,
                                  int op) { return way->reduce(dst, own, incoming, count, type, op); };
    access->divide = [way = way_](std::uint64_t x, std::size_t count, int type, unsigned divisor) {
      return way->divide(x, count, type, divisor);
    };
  }
  access->export_dmabuf = [way = way_](std::uint64_t device, std::size_t bytes) {
    return way->export_dmabuf(device, bytes);
  };
  if (way_->has_flush) access->flush = [way = way_] { return way->flush(); };
  access->open_copies = [way = way_](std::size_t bytes) {
    return open_copies(way->driver, way->context, way->home, bytes, way);
  };
  access_ = std::move(access);
}

DeviceMemory::~DeviceMemory() = default;

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::create(Driver& driver) {
  auto way = std::make_shared<Way>(driver);
  if (auto status = way->open(); status != Status::success) {
    return fail(driver_error(driver, "open a way to device memory", status));
  }
  return std::unique_ptr<DeviceMemory>(new DeviceMemory(std::move(way)));
}

Result<MemoryDescription> DeviceMemory::describe(DevicePtr pointer, std::size_t size) const {
  auto& driver = way_->driver;
  const CurrentContext current(driver, way_->context);
  if (current.status() != Status::success) {
    return fail(driver_error(driver, "describe device memory", current.status()).on(way_->home));
  }
  int type = 0;
  auto status = driver.pointer_get_attribute(&type, PointerAttribute::memory_type, pointer);
  if (status == Status::success && type == kMemoryHost) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): unified addressing
    return MemoryDescription::of_host(reinterpret_cast<const void*>(pointer), size);
  }
  // Memory of no context is mapped, and what lies behind it may belong to the same buffer.
  Context owner = nullptr;
  if (driver.pointer_get_attribute(&owner, PointerAttribute::context, pointer) != Status::success)
    owner = way_->context;
  for (auto at = pointer; status == Status::success && at - pointer < size;) {
    DevicePtr base = 0;
    std::size_t whole = 0;
    status = at == pointer || owner == nullptr ? driver.mem_get_address_range(&base, &whole, at)
                                               : Status::invalid_value;
    if (status == Status::success && base + whole > at) {
      at = base + whole;
    } else if (at != pointer) {
      return fail(
          Error{ErrorCode::invalid_argument, "describe device memory",
                "the range is longer than the allocation that it starts in: " + std::to_string(at - pointer) +
                    " of " + std::to_string(size) + " bytes are memory"}
              .on(way_->home));
    } else if (status == Status::success) {
      status = Status::invalid_value;
    }
  }
  if (status != Status::success) {
    auto error = driver_error(driver, "describe device memory", status);
    error.code = ErrorCode::invalid_argument;
    return fail(std::move(error).on(way_->home));
  }
  MemoryDescription memory;
  memory.kind = MemoryKind::device;
  memory.address = pointer;
  memory.size = size;
  memory.cpu_readable = false;
  IpcMemHandle handle{};
  memory.exportable = driver.ipc_get_mem_handle(&handle, pointer) == Status::success;
  memory.dmabuf = way_->dmabuf;
  memory.flush_before_read = way_->flush_before_read;
  memory.home = way_->home;
  memory.device = access_;
  memory.peer_direct = way_->peer_direct;
  memory.visibility = way_->visibility;
  return memory;
}

GpuDirect gpu_direct(Driver& driver, DeviceId device) {
  GpuDirect direct;
  direct.dmabuf = attribute(driver, DeviceAttribute::dma_buf_supported, device) != 0;
  direct.peer_direct = attribute(driver, DeviceAttribute::gpu_direct_rdma, device) != 0;
  direct.visibility = in_words(writes_rule(facts_of(driver, device)));
  return direct;
}

Result<MemoryDescription> describe(Driver& driver, DevicePtr pointer, std::size_t size) {
  CENOTE_ASSIGN(auto memory, DeviceMemory::create(driver));
  return memory->describe(pointer, size);
}

}  // namespace cenote::cuda
