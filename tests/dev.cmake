# The scripts around the build; they do not depend on the preset, so one runs them.
if(NOT CENOTE_SANITIZE)
  add_test(NAME dev_scripts COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/dev/test_runner.py)
  add_test(NAME dev_lint COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/dev/test_tidy.py)
  add_test(NAME dev_vm_tests COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tests/dev/test_vm_tests.py)
  add_test(NAME dev_api_page COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tests/dev/test_api_page.py)
  add_test(NAME dev_faults_page COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tests/dev/test_faults_page.py)
  set_tests_properties(dev_scripts dev_lint dev_vm_tests dev_api_page dev_faults_page PROPERTIES TIMEOUT 180 LABELS unit)
endif()
