cenote_test(ptx_instruction_test
  SOURCES unit/ptx/instruction_test.cpp
  USES cenote_ptx)
cenote_test(ptx_control_test
  SOURCES unit/ptx/control_test.cpp unit/ptx/fault_test.cpp
  USES cenote_ptx)
cenote_test(ptx_kernels_test
  SOURCES unit/ptx/kernels_test.cpp unit/ptx/hostile_test.cpp unit/ptx/fatbin_test.cpp
  USES cenote_ptx cenote_kernels cenote_collectives
  TIMEOUT 300)
# The compiler that was found, which need not be in PATH; empty = none.
set(nvcc "")
if(CENOTE_NVCC)
  set(nvcc ${CENOTE_NVCC})
endif()
set_source_files_properties(unit/ptx/kernels_test.cpp PROPERTIES COMPILE_DEFINITIONS CENOTE_NVCC="${nvcc}")
# Hundreds of instantiations, each run once: optimising them takes minutes and saves nothing.
set_source_files_properties(unit/ptx/instruction_test.cpp PROPERTIES COMPILE_OPTIONS -O0)
