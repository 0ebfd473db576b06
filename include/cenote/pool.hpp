// C++20 over pool.h: a pool, its leases, and the GPUs of a lease, as move-only owners that throw
// cenote::Error. Header-only, like cenote.hpp, whose rules hold; a program that uses only this one links only
// libcenote-pool.
//
//   cenote::Pool pool;
//   cenote::Lease lease = pool.lease({.gpus = 2});
//   cenote::Gpus gpus(lease);
//   cenote::DeviceBuffer<float> x(gpus, 0, 1000);
//
// Ownership: Lease outlives Gpus, Gpus outlives buffers and kernels. No destructor waits: a lease that goes
// out of scope without release() is renewed no more and ends with its ttl, or with the program.
#ifndef CENOTE_POOL_HPP
#define CENOTE_POOL_HPP

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "cenote/cenote.hpp"
#include "cenote/pool.h"

namespace cenote {

namespace detail {

inline void check_pool(cenote_status status) {
  if (status != CENOTE_SUCCESS) throw Error(status, cenote_pool_last_error());
}

}  // namespace detail

/// cenote_pool_options; an empty optional is the default there.
struct PoolOptions {
  std::optional<std::string> config_file{};
  std::optional<std::string> broker{};
  std::optional<std::string> tls_dir{};
  std::optional<std::string> client_name{};
  bool read_environment = true;
  std::optional<std::string> helper{};
};

/// cenote_lease_options; zero and an empty optional are the defaults there.
struct LeaseOptions {
  std::uint32_t gpus = 1;
  std::optional<std::string> model{};
  std::uint64_t memory_bytes = 0;
  std::chrono::nanoseconds ttl{};
  std::optional<std::string> note{};
  std::chrono::nanoseconds timeout{};
  std::chrono::nanoseconds wait{};
};

/// GPUs that are ours. Renews itself. Any thread.
class Lease {
 public:
  explicit Lease(cenote_lease* lease) : lease_(lease) {}

  /// Gives the devices back.
  void release(std::chrono::nanoseconds timeout = {}) {
    detail::check_pool(cenote_lease_release(lease_.get(), detail::milliseconds(timeout)));
  }
  /// Throws why it is held no longer.
  void check() const { detail::check_pool(cenote_lease_state(lease_.get())); }
  [[nodiscard]] std::string id() const { return cenote_lease_id(lease_.get()); }
  [[nodiscard]] std::uint32_t gpus() const noexcept { return cenote_lease_gpus(lease_.get()); }
  [[nodiscard]] cenote_gpu_info gpu(std::uint32_t index) const {
    cenote_gpu_info info{};
    info.size = sizeof info;
    detail::check_pool(cenote_lease_gpu(lease_.get(), index, &info));
    return info;
  }
  [[nodiscard]] cenote_lease* handle() const noexcept { return lease_.get(); }

 private:
  detail::Owner<cenote_lease, cenote_lease_destroy> lease_;
};

/// The pool of a broker. Leases made from it live on when it ends. Any thread.
class Pool {
 public:
  explicit Pool(const PoolOptions& options = {}) {
    cenote_pool_options given{};
    given.size = sizeof given;
    given.config_file = detail::or_default(options.config_file);
    given.broker = detail::or_default(options.broker);
    given.tls_dir = detail::or_default(options.tls_dir);
    given.client_name = detail::or_default(options.client_name);
    given.read_environment = options.read_environment ? 1 : 0;
    given.helper = detail::or_default(options.helper);
    cenote_pool* made = nullptr;
    detail::check_pool(cenote_pool_connect(&given, &made));
    pool_.reset(made);
  }
  [[nodiscard]] Lease lease(const LeaseOptions& options = {}) {
    cenote_lease_options given{};
    given.size = sizeof given;
    given.gpus = options.gpus;
    given.model = detail::or_default(options.model);
    given.memory_bytes = options.memory_bytes;
    given.ttl_ms = detail::milliseconds(options.ttl);
    given.note = detail::or_default(options.note);
    given.timeout_ms = detail::milliseconds(options.timeout);
    given.wait_ms = detail::milliseconds(options.wait);
    cenote_lease* made = nullptr;
    detail::check_pool(cenote_pool_lease(pool_.get(), &given, &made));
    return Lease(made);
  }
  [[nodiscard]] cenote_pool* handle() const noexcept { return pool_.get(); }

 private:
  detail::Owner<cenote_pool, cenote_pool_destroy> pool_;
};

/// A session on the devices of a lease. Any thread.
class Gpus {
 public:
  explicit Gpus(Lease& lease, std::chrono::nanoseconds timeout = {}) : count_(lease.gpus()) {
    cenote_gpus* made = nullptr;
    detail::check_pool(cenote_lease_open(lease.handle(), detail::milliseconds(timeout), &made));
    gpus_.reset(made);
  }
  [[nodiscard]] std::uint32_t count() const noexcept { return count_; }
  /// Waits for all work of the device.
  void synchronize(std::uint32_t device) { detail::check_pool(cenote_gpu_synchronize(handle(), device)); }
  /// recv[d] = op over all devices of send[d], `count` elements; an address for each device. Does not wait.
  void allreduce(std::span<const std::uint64_t> send, std::span<const std::uint64_t> recv, std::size_t count,
                 cenote_type type, cenote_op op) {
    if (send.size() != count_ || recv.size() != count_)
      throw Error(CENOTE_INVALID_ARGUMENT,
                  "allreduce failed: " + std::to_string(count_) + " devices, one address for each");
    detail::check_pool(cenote_gpus_allreduce(handle(), send.data(), recv.data(), count, type, op));
  }
  [[nodiscard]] cenote_gpus* handle() const noexcept { return gpus_.get(); }

 private:
  std::uint32_t count_;
  detail::Owner<cenote_gpus, cenote_gpus_close> gpus_;
};

/// `size` elements in memory of a device.
template <Bytewise T>
class DeviceBuffer {
 public:
  DeviceBuffer(Gpus& gpus, std::uint32_t device, std::size_t size)
      : gpus_(gpus.handle()), device_(device), size_(size) {
    if (size > SIZE_MAX / sizeof(T))
      throw Error(CENOTE_INVALID_ARGUMENT, "allocate device memory failed: too many elements");
    detail::check_pool(cenote_gpu_alloc(gpus_, device, size * sizeof(T), &address_));
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : gpus_(other.gpus_),
        device_(other.device_),
        size_(std::exchange(other.size_, 0)),
        address_(std::exchange(other.address_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(gpus_, other.gpus_);
    std::swap(device_, other.device_);
    std::swap(size_, other.size_);
    std::swap(address_, other.address_);
    return *this;
  }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() {
    if (address_ != 0) static_cast<void>(cenote_gpu_free(gpus_, device_, address_));
  }

  void upload(std::span<const T> from) {
    fits(from.size());
    detail::check_pool(cenote_gpu_upload(gpus_, device_, address_, from.data(), from.size_bytes()));
  }
  /// Waits for the device's earlier work.
  void download(std::span<T> to) const {
    fits(to.size());
    detail::check_pool(cenote_gpu_download(gpus_, device_, to.data(), address_, to.size_bytes()));
  }
  [[nodiscard]] std::uint64_t address() const noexcept { return address_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }

 private:
  void fits(std::size_t elements) const {
    if (elements > size_)
      throw Error(CENOTE_INVALID_ARGUMENT, "copy failed: " + std::to_string(elements) +
                                               " elements for a buffer of " + std::to_string(size_));
  }

  cenote_gpus* gpus_;
  std::uint32_t device_;
  std::size_t size_;
  std::uint64_t address_ = 0;
};

using Dim3 = std::array<std::uint32_t, 3>;

/// A function of a module. Belongs to its Gpus.
class Kernel {
 public:
  explicit Kernel(cenote_kernel* kernel) : kernel_(kernel) {}
  /// The arguments as the kernel declares them: their types are not checked. Returns when the launch is on
  /// its way.
  template <Bytewise... Arguments>
  void launch(const Dim3& grid, const Dim3& block, std::uint32_t shared_bytes, Arguments... arguments) const {
    std::array<void*, sizeof...(Arguments) + 1> pointers{static_cast<void*>(&arguments)..., nullptr};
    detail::check_pool(
        cenote_kernel_launch(kernel_, grid.data(), block.data(), shared_bytes, pointers.data()));
  }

 private:
  cenote_kernel* kernel_;
};

/// Code on a device. Belongs to its Gpus.
class Module {
 public:
  /// PTX text.
  Module(Gpus& gpus, std::uint32_t device, const std::string& ptx)
      : Module(gpus, device, std::as_bytes(std::span(ptx.c_str(), ptx.size() + 1))) {}
  /// PTX text with its final 0, or a fatbin.
  Module(Gpus& gpus, std::uint32_t device, std::span<const std::byte> image) {
    detail::check_pool(cenote_gpu_load(gpus.handle(), device, image.data(), image.size(), &module_));
  }
  [[nodiscard]] Kernel kernel(const std::string& name) const {
    cenote_kernel* made = nullptr;
    detail::check_pool(cenote_module_kernel(module_, name.c_str(), &made));
    return Kernel(made);
  }

 private:
  cenote_module* module_ = nullptr;
};

}  // namespace cenote

#endif
