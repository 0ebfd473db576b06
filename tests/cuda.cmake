cenote_test(cuda_driver_test
  SOURCES
    unit/cuda/makers.cpp
    unit/cuda/memory_test.cpp
    unit/cuda/streams_test.cpp
  USES cenote_cuda
  LABELS unit TIMEOUT 300)
