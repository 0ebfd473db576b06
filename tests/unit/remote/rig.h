// A rig for tests of the remote driver: workers on threads, each over a driver of its own, and the client's
// side of their connections.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/driver.h"
#include "cuda/emulator/emulated_driver.h"
#include "pool/remote/client_driver.h"
#include "pool/remote/worker.h"
#include "transports/fabric.h"

namespace cenote::pool::remote::test {

inline transport::FabricOptions over(const std::string& transport) {
  transport::FabricOptions options;
  options.transports = {transport};
  return options;
}

/// One worker that serves on a thread until its client is gone or stop() is called.
class WorkerThread {
 public:
  WorkerThread(cuda::Driver& driver, const transport::FabricOptions& fabric, WorkerOptions options)
      : fabric_(transport::Fabric::create(fabric).value()),
        worker_(Worker::create(driver, *fabric_, std::move(options)).value()),
        address_(fabric_->address()),
        thread_([this] { result_ = worker_->serve(cancel_); }) {}
  ~WorkerThread() {
    stop();
    if (thread_.joinable()) thread_.join();
  }
  WorkerThread(const WorkerThread&) = delete;
  WorkerThread& operator=(const WorkerThread&) = delete;

  [[nodiscard]] const Bytes& address() const { return address_; }
  [[nodiscard]] Worker& worker() { return *worker_; }
  void stop() { cancel_.raise(); }
  /// How serving ended.
  Result<void> join() {
    thread_.join();
    return *result_;
  }

 private:
  CancelFlag cancel_;
  std::unique_ptr<transport::Fabric> fabric_;
  std::unique_ptr<Worker> worker_;
  Bytes address_;
  std::optional<Result<void>> result_;
  std::thread thread_;
};

inline WorkerOptions options_for(const Bytes& client, std::uint32_t channel,
                                 const std::vector<cuda::DeviceId>& devices,
                                 const std::string& lease = "7f3a") {
  WorkerOptions options;
  options.lease_id = lease;
  options.devices = devices;
  options.memory_limits.assign(devices.size(), 0);
  options.client_fabric_address = client;
  options.channel = channel;
  return options;
}

/// Workers with so many devices each; ordinals of the client count through them.
struct Rig {
  std::vector<std::unique_ptr<cuda::Driver>> drivers;
  std::vector<std::unique_ptr<WorkerThread>> workers;
  std::unique_ptr<RemoteDriver> client;

  Rig() = default;
  Rig(const std::string& transport, const std::vector<std::size_t>& devices_of_workers,
      const cuda::EmulatorOptions& like = {}, std::uint64_t memory_limit = 0,
      std::uint64_t module_bytes = WorkerOptions{}.module_bytes,
      Clock::duration worker_timeout = default_worker_timeout,
      const std::vector<CollectiveOptions>& collectives = {}) {
    auto fabric = transport::Fabric::create(over(transport)).value();
    std::vector<WorkerAddress> addresses;
    int gpu = 0;
    for (std::size_t w = 0; w < devices_of_workers.size(); ++w) {
      auto options = like;
      options.devices.assign(devices_of_workers[w], like.devices.front());
      options.machine = "machine-" + std::to_string(w);
      drivers.push_back(cuda::make_emulated_driver(options));
      EXPECT_EQ(drivers.back()->init(0), cuda::Status::success);
      std::vector<cuda::DeviceId> devices;
      WorkerAddress address;
      for (std::size_t d = 0; d < devices_of_workers[w]; ++d) {
        devices.push_back(static_cast<cuda::DeviceId>(d));
        address.device_names.push_back("lease 7f3a gpu " + std::to_string(gpu++) + " (" +
                                       like.devices.front().model + " on agent-" +
                                       static_cast<char>('a' + static_cast<char>(w)) + ")");
      }
      address.channel = static_cast<std::uint32_t>(w + 1);
      auto worker = options_for(fabric->address(), address.channel, devices);
      worker.memory_limits.assign(devices.size(), memory_limit);
      worker.module_bytes = module_bytes;
      if (w < collectives.size()) worker.collectives = collectives[w];
      workers.push_back(std::make_unique<WorkerThread>(*drivers.back(), over(transport), worker));
      address.fabric_address = workers.back()->address();
      address.peer = "agent-" + std::string(1, static_cast<char>('a' + static_cast<char>(w)));
      addresses.push_back(address);
    }
    auto connected = RemoteDriver::connect(std::move(fabric), addresses,
                                           Deadline::in(std::chrono::seconds(30)), nullptr, worker_timeout);
    EXPECT_TRUE(connected) << (connected ? "" : connected.error().message());
    if (connected) client = std::move(*connected);
  }
  ~Rig() { client.reset(); }
  Rig(Rig&&) = default;
  Rig& operator=(Rig&&) = delete;
};

}  // namespace cenote::pool::remote::test
