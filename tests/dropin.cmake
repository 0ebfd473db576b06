# What libcenote-pool and its helper process say to each other.
cenote_test(helper_test SOURCES unit/dropin/helper_wire_test.cpp unit/dropin/helper_channel_test.cpp USES cenote_helper)
# The helper's side of it, and the socket of `cenote lease -- CMD`, with clients that come, vanish and are many.
cenote_test(helper_server_test
  SOURCES unit/dropin/helper_server_test.cpp unit/dropin/session_server_test.cpp
  USES cenote_helper_server)

if(NOT CENOTE_WITH_GRPC OR NOT TARGET cenote_cli)
  return()
endif()

# A C program against the public header and libcenote-pool alone, and the test that commands it.
add_executable(pool_program multi/dropin/pool_program.c)
target_include_directories(pool_program PRIVATE ${PROJECT_SOURCE_DIR}/include)
target_compile_options(pool_program PRIVATE -Wall -Wextra -Wpedantic -Werror)
target_link_libraries(pool_program PRIVATE cenote_pool_shared Threads::Threads)
set_target_properties(pool_program PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
if(CENOTE_SANITIZE)
  # The program itself is plain C; the sanitizer that the library needs has to be there first.
  set_target_properties(pool_program PROPERTIES LINKER_LANGUAGE CXX)
  target_link_options(pool_program PRIVATE -fsanitize=${CENOTE_SANITIZE})
endif()
cenote_test(pool_api_test SOURCES multi/dropin/pool_api_test.cpp multi/dropin/pool_api_wait_test.cpp
  multi/agent/cluster.cpp USES cenote_cli LABELS multi TIMEOUT 600)
add_dependencies(pool_api_test cenote pool_program)
cenote_test(lease_command_test SOURCES multi/dropin/lease_command_test.cpp multi/agent/cluster.cpp USES cenote_cli
  LABELS multi TIMEOUT 300)
add_dependencies(lease_command_test cenote)

if(CENOTE_SANITIZE)
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
