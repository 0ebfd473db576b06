# A libcuda.so.1 over the emulated driver: what the loader is tested with where there is no GPU.
add_library(cenote_cuda_standin SHARED cuda_standin/standin.cpp $<TARGET_OBJECTS:cenote_cuda_abi>)
target_link_libraries(cenote_cuda_standin PRIVATE cenote_options cenote_cuda)
set_target_properties(cenote_cuda_standin PROPERTIES
  OUTPUT_NAME cuda SUFFIX .so.1 LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/standin)

cenote_test(cuda_driver_test
  SOURCES
    unit/cuda/makers.cpp
    unit/cuda/memory_test.cpp
    unit/cuda/streams_test.cpp
    unit/cuda/launch_test.cpp
    unit/cuda/context_test.cpp
    unit/cuda/vmm_test.cpp
    unit/cuda/emulator_test.cpp
    unit/cuda/real_driver_test.cpp
    unit/cuda/device_memory_test.cpp
    unit/cuda/device_rdma_test.cpp
    unit/cuda/nic_writes_test.cpp
  USES cenote_cuda
  LABELS unit TIMEOUT 300)
add_dependencies(cuda_driver_test cenote_cuda_standin)
if(CENOTE_CUDA_INCLUDE)
  target_sources(cuda_driver_test PRIVATE unit/cuda/cuda_header_test.cpp)
  target_include_directories(cuda_driver_test SYSTEM PRIVATE ${CENOTE_CUDA_INCLUDE})
endif()
