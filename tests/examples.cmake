# The programs of examples/, built out of the tree against an installed copy of this build, and run.
if(NOT CENOTE_SANITIZE AND CENOTE_WITH_GRPC)
  add_test(NAME examples COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tests/examples/test_examples.py
    ${CMAKE_BINARY_DIR})
  set_tests_properties(examples PROPERTIES TIMEOUT 900 LABELS multi)
endif()
