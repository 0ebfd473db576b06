# The remote-CUDA protocol: both ends. No gRPC here.
cenote_room(remote
  SOURCES
    remote/address_space.cpp
    remote/client_comm.cpp
    remote/client_copies.cpp
    remote/client_devices.cpp
    remote/client_driver.cpp
    remote/client_lane.cpp
    remote/client_memory.cpp
    remote/client_modules.cpp
    remote/client_streams.cpp
    remote/codec.cpp
    remote/comm_rank.cpp
    remote/device_info.cpp
    remote/ring.cpp
    remote/worker.cpp
    remote/worker_comms.cpp
    remote/worker_contexts.cpp
    remote/worker_copies.cpp
    remote/worker_device.cpp
    remote/worker_lane.cpp
    remote/worker_memory.cpp
    remote/worker_modules.cpp
    remote/worker_streams.cpp
  USES cenote_collectives cenote_cuda cenote_transports cenote_runtime)
