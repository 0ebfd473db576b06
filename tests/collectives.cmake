cenote_test(collectives_schedule_test
  SOURCES unit/collectives/schedule_test.cpp unit/collectives/verifier_test.cpp unit/collectives/mutation_test.cpp
    unit/collectives/reduction_order_test.cpp unit/collectives/documentation_test.cpp
  USES cenote_collectives fmt::fmt)
cenote_test(collectives_reduce_test
  SOURCES unit/collectives/reduce_test.cpp
  USES cenote_collectives)
cenote_test(collectives_executor_test
  SOURCES unit/collectives/executor_test.cpp unit/collectives/executor_device_test.cpp
  USES cenote_collectives)
cenote_test(collectives_communicator_test
  SOURCES multi/collectives/communicator_test.cpp multi/collectives/operations_test.cpp multi/collectives/modes.cpp
  USES cenote_collectives LABELS multi)
cenote_test(collectives_failure_test
  SOURCES multi/collectives/failure_test.cpp multi/collectives/forming_test.cpp multi/collectives/modes.cpp
  USES cenote_collectives LABELS multi TIMEOUT 300)
cenote_test(fault_collectives SOURCES multi/collectives/fault_test.cpp multi/collectives/modes.cpp
  USES fault_seeds cenote_collectives PROGRAM_ONLY)
cenote_seeds(collectives_fault_test PROGRAM fault_collectives SEEDS 300 LABELS multi TIMEOUT 300)
cenote_seeds(collectives_fault_many_test PROGRAM fault_collectives SEEDS 10000 LABELS multi slow TIMEOUT 3600)
cenote_test(collectives_window_test
  SOURCES multi/collectives/window_test.cpp multi/collectives/modes.cpp
  USES cenote_collectives LABELS multi TIMEOUT 300)

# The shared library from a C program: no C++ runtime of its own, nothing but the public header.
add_executable(collectives_c_api_test unit/collectives/c_api_test.c)
target_include_directories(collectives_c_api_test PRIVATE ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(collectives_c_api_test PRIVATE cenote_shared Threads::Threads)
if(CENOTE_SANITIZE)
  target_link_options(collectives_c_api_test PRIVATE -fsanitize=${CENOTE_SANITIZE})
endif()
set_target_properties(collectives_c_api_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests
  C_STANDARD 11 C_EXTENSIONS ON LINKER_LANGUAGE C)
if(CENOTE_SANITIZE)
  set_target_properties(collectives_c_api_test PROPERTIES LINKER_LANGUAGE CXX)
endif()
add_test(NAME collectives_c_api_test COMMAND collectives_c_api_test)
set_tests_properties(collectives_c_api_test PROPERTIES TIMEOUT 60 LABELS unit)
# What C programs are told of failures, over the shared library alone.
cenote_test(collectives_c_api_failures_test
  SOURCES multi/collectives/c_api_failures_test.cpp
  USES cenote_shared LABELS multi)
# Groups of mpirun, torchrun and srun, over the shared library alone.
add_executable(launched_program multi/collectives/launched_program.c)
target_include_directories(launched_program PRIVATE ${PROJECT_SOURCE_DIR}/include)
target_compile_options(launched_program PRIVATE -Wall -Wextra -Wpedantic -Werror)
target_link_libraries(launched_program PRIVATE cenote_shared Threads::Threads)
set_target_properties(launched_program PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
if(CENOTE_SANITIZE)
  set_target_properties(launched_program PROPERTIES LINKER_LANGUAGE CXX)
  target_link_options(launched_program PRIVATE -fsanitize=${CENOTE_SANITIZE})
endif()
if(NOT CENOTE_SANITIZE MATCHES "thread")  # libpmix has threads that are not instrumented
  add_test(NAME launched_test COMMAND ${Python3_EXECUTABLE} -B
    ${CMAKE_CURRENT_SOURCE_DIR}/multi/collectives/test_launched.py $<TARGET_FILE:launched_program>)
  set_tests_properties(launched_test PROPERTIES TIMEOUT 300 LABELS multi)
endif()
# The C++ headers, over both libraries.
cenote_test(cpp_api_test SOURCES unit/collectives/cpp_api_test.cpp USES cenote_shared cenote_pool_shared)
# The same on device buffers, over an emulated driver that the program loads as it would the real one.
add_executable(collectives_device_buffers_test unit/collectives/device_buffers_test.c)
target_include_directories(collectives_device_buffers_test PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
target_link_libraries(collectives_device_buffers_test PRIVATE cenote_shared Threads::Threads ${CMAKE_DL_LIBS})
set_target_properties(collectives_device_buffers_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests
  C_STANDARD 11 C_EXTENSIONS ON LINKER_LANGUAGE C)
if(CENOTE_SANITIZE)
  target_link_options(collectives_device_buffers_test PRIVATE -fsanitize=${CENOTE_SANITIZE})
  set_target_properties(collectives_device_buffers_test PROPERTIES LINKER_LANGUAGE CXX)
endif()
add_dependencies(collectives_device_buffers_test cenote_cuda_standin)
add_test(NAME collectives_device_buffers_test
  COMMAND collectives_device_buffers_test $<TARGET_FILE:cenote_cuda_standin>)
set_tests_properties(collectives_device_buffers_test PROPERTIES TIMEOUT 300 LABELS unit)

# Only cenote_* leaves the library, and nothing in it is of gRPC, protobuf or OpenSSL.
add_test(NAME collectives_exports_test COMMAND sh -c
  "! nm -D --defined-only $<TARGET_FILE:cenote_shared> | grep -v ' [A-Z] cenote_' && ! ldd $<TARGET_FILE:cenote_shared> | grep -E 'grpc|protobuf|ssl|crypto'")
set_tests_properties(collectives_exports_test PROPERTIES TIMEOUT 60 LABELS unit)
