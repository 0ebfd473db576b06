# The rules of the house, held against the source tree: they do not depend on the preset, so one runs them.
if(NOT CENOTE_SANITIZE)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  add_test(NAME house COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tests/house/test_house.py)
  set_tests_properties(house PROPERTIES TIMEOUT 60 LABELS unit)
endif()
