# The binary interface, against the dumps in tests/abi: those of the release preset's compiler.
if(NOT CENOTE_SANITIZE AND CMAKE_BUILD_TYPE STREQUAL "Release")
  add_test(NAME abi COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tests/abi/test_abi.py ${CMAKE_BINARY_DIR})
  set_tests_properties(abi PROPERTIES TIMEOUT 120 LABELS unit)
endif()
