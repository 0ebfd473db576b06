// remote_saxpy.c in C++: leases a GPU of the pool, computes y = 2 x + y there, and gives it back.
//   remote_saxpy_cpp [SETTINGS.toml]
#include <cenote/pool.hpp>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "saxpy.ptx.h"

namespace {

void saxpy(cenote::Gpus& gpus) {
  constexpr std::uint32_t count = 1000;
  std::vector<float> x(count), y(count, 1.0F);
  for (std::uint32_t i = 0; i < count; ++i) x[i] = static_cast<float>(i);
  cenote::DeviceBuffer<float> x_there(gpus, 0, count), y_there(gpus, 0, count);
  x_there.upload(x);
  y_there.upload(y);

  const cenote::Module module(gpus, 0, saxpy_ptx);
  module.kernel("saxpy").launch({(count + 127) / 128, 1, 1}, {128, 1, 1}, 0, 2.0F, x_there.address(),
                                y_there.address(), count);
  y_there.download(y);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (y[i] != 2 * x[i] + 1)
      throw std::runtime_error("y[" + std::to_string(i) + "] is " + std::to_string(y[i]));
  }
  std::cout << count << " elements of 2 x + y are right\n";
}

void work(const cenote::PoolOptions& options) {
  cenote::Pool pool(options);
  cenote::Lease lease = pool.lease({.gpus = 1, .note = "remote_saxpy", .wait = std::chrono::minutes(1)});
  const auto info = lease.gpu(0);
  std::cout << "leased a " << info.model << " of agent " << info.agent << ": lease " << lease.id() << '\n';
  {
    cenote::Gpus gpus(lease);
    saxpy(gpus);
  }
  lease.release();
  std::cout << "gave it back\n";
}

}  // namespace

int main(int argc, char** argv) {
  try {
    cenote::PoolOptions options;
    if (argc > 1) options.config_file = argv[1];
    work(options);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
