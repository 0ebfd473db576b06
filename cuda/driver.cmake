# The driver table: its texts, the emulated driver, and the helpers that work over any driver.
cenote_room(cuda
  SOURCES
    status.cpp
    real_driver.cpp
    reduce_kernels.cpp
    device_memory.cpp
    device_copies.cpp
    nic_writes.cpp
    emulator/range_allocator.cpp
    emulator/models.cpp
    emulator/device_heap.cpp
    emulator/address_space.cpp
    emulator/stream.cpp
    emulator/context.cpp
    emulator/module.cpp
    emulator/rdma.cpp
    emulator/ipc.cpp
    emulator/driver_core.cpp
    emulator/driver_devices.cpp
    emulator/driver_contexts.cpp
    emulator/driver_memory.cpp
    emulator/driver_vmm.cpp
    emulator/driver_copies.cpp
    emulator/driver_streams.cpp
    emulator/driver_modules.cpp
  USES cenote_ptx cenote_kernels cenote_runtime ${CMAKE_DL_LIBS})

# The C interface of libcuda over whatever driver abi::driver() supplies: objects, so that a shared library takes
# all of them.
add_library(cenote_cuda_abi OBJECT
  abi/exports_context.cpp abi/exports_memory.cpp abi/exports_launch.cpp abi/proc_address.cpp
  abi/proc_table.cpp)
target_link_libraries(cenote_cuda_abi PUBLIC cenote_options)
