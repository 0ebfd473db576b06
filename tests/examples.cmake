# The programs of examples/, built against the public headers and the shared libraries alone, and run.
if(NOT CENOTE_SANITIZE)
  add_executable(example_allreduce ${PROJECT_SOURCE_DIR}/examples/allreduce.c)
  target_include_directories(example_allreduce PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_compile_options(example_allreduce PRIVATE -Wall -Wextra -Wpedantic -Werror)
  target_link_libraries(example_allreduce PRIVATE cenote_shared)
  set_target_properties(example_allreduce PROPERTIES OUTPUT_NAME allreduce
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/examples)
  add_test(NAME examples COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/examples/test_examples.py
    ${CMAKE_BINARY_DIR}/examples)
  set_tests_properties(examples PROPERTIES TIMEOUT 120 LABELS multi)
endif()
