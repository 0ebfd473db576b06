# The Debian package in a clean root (only with --full: it fetches a small system).
if(NOT CENOTE_SANITIZE AND CENOTE_WITH_GRPC)
  add_test(NAME package COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tests/package/test_package.py ${CMAKE_BINARY_DIR})
  set_tests_properties(package PROPERTIES TIMEOUT 1800 LABELS slow)
endif()
