// The driver conformance suite over the remote driver: a worker on a thread, shm or tcp in between.
#include "tests/unit/cuda/conformance.h"
#include "tests/unit/remote/rig.h"

namespace cenote::cuda::test {
namespace {

namespace remote = pool::remote;

/// The client's fabric, which takes the worker with it when it goes.
class HostingFabric final : public transport::Fabric {
 public:
  explicit HostingFabric(const std::string& transport)
      : inner_(transport::Fabric::create(remote::test::over(transport)).value()) {}
  ~HostingFabric() override { inner_.reset(); }

  remote::WorkerAddress host(std::unique_ptr<Driver> driver, const std::string& transport) {
    driver_ = std::move(driver);
    EXPECT_EQ(driver_->init(0), Status::success);
    int count = 0;
    EXPECT_EQ(driver_->device_get_count(&count), Status::success);
    remote::WorkerAddress address;
    std::vector<DeviceId> devices;
    for (int i = 0; i < count; ++i) {
      devices.push_back(i);
      address.device_names.push_back("lease 7f3a gpu " + std::to_string(i) + " (A100 on agent-a)");
    }
    worker_ = std::make_unique<remote::test::WorkerThread>(
        *driver_, remote::test::over(transport), remote::test::options_for(inner_->address(), 1, devices));
    address.fabric_address = worker_->address();
    address.channel = 1;
    address.peer = "agent-a";
    return address;
  }

  const Bytes& address() const override { return inner_->address(); }
  Result<std::string> choice(std::span<const std::byte> peer) const override { return inner_->choice(peer); }
  Result<transport::Link> connect(std::span<const std::byte> peer, std::string name, std::uint32_t channel,
                                  Deadline deadline) override {
    return inner_->connect(peer, std::move(name), channel, deadline);
  }
  std::span<transport::Transport* const> transports() const override { return inner_->transports(); }
  bool progress() override { return inner_->progress(); }
  Result<void> wait(Deadline deadline, const CancelFlag* cancel, std::string_view what) override {
    return inner_->wait(deadline, cancel, what);
  }
  void interrupt() override { inner_->interrupt(); }

 private:
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<remote::test::WorkerThread> worker_;
  std::unique_ptr<transport::Fabric> inner_;
};

std::function<std::unique_ptr<Driver>(EmulatorOptions)> remote_over(std::string transport,
                                                                    std::uint64_t adversary) {
  return [transport, adversary](EmulatorOptions options) -> std::unique_ptr<Driver> {
    if (adversary != 0) {
      options.adversarial_streams = true;
      options.seed = adversary;
    }
    auto fabric = std::make_unique<HostingFabric>(transport);
    auto address = fabric->host(make_emulated_driver(std::move(options)), transport);
    auto driver =
        remote::RemoteDriver::connect(std::move(fabric), {address}, Deadline::in(std::chrono::seconds(30)));
    EXPECT_TRUE(driver) << (driver ? "" : driver.error().message());
    if (!driver) return nullptr;
    return std::move(*driver);
  };
}

}  // namespace

std::vector<Maker> makers() {
  return {{"RemoteShm", remote_over("shm", 0)},
          {"RemoteTcp", remote_over("tcp", 0)},
          {"RemoteAdversarial", remote_over("shm", 7)}};
}

}  // namespace cenote::cuda::test
