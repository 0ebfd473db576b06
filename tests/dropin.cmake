if(NOT CENOTE_WITH_GRPC OR NOT TARGET cenote_cli OR CENOTE_SANITIZE)
  # Programs that know nothing of a sanitizer cannot load libraries built with one.
  return()
endif()

add_test(NAME libraries_together
  COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/dropin/test_libraries.py ${CMAKE_BINARY_DIR})
set_tests_properties(libraries_together PROPERTIES TIMEOUT 600 LABELS multi)

add_executable(dropin_runtime_program dropin/runtime_program.cpp)
target_link_libraries(dropin_runtime_program PRIVATE cenote_options cenote_kernels cenote_dropin_cudart)
add_executable(dropin_driver_program dropin/driver_program.c)
target_link_libraries(dropin_driver_program PRIVATE ${CMAKE_DL_LIBS})
set_target_properties(dropin_runtime_program dropin_driver_program PROPERTIES
  RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests BUILD_RPATH "" SKIP_BUILD_RPATH ON)

cenote_test(dropin_programs_test SOURCES dropin/programs_test.cpp multi/agent/cluster.cpp USES cenote_cli
  LABELS multi TIMEOUT 300)
add_dependencies(dropin_programs_test cenote dropin_runtime_program dropin_driver_program cenote_dropin_cuda)
if(CENOTE_NVCC)
  set(program ${CMAKE_BINARY_DIR}/tests/dropin_nvcc_program)
  add_custom_command(OUTPUT ${program}
    COMMAND ${CENOTE_NVCC} -arch=sm_75 -cudart shared -o ${program} ${CMAKE_CURRENT_SOURCE_DIR}/dropin/nvcc_program.cu
    DEPENDS dropin/nvcc_program.cu VERBATIM)
  add_custom_target(dropin_nvcc_programs DEPENDS ${program})
  add_dependencies(dropin_programs_test dropin_nvcc_programs)
  target_compile_definitions(dropin_programs_test PRIVATE CENOTE_HAS_NVCC)
endif()
