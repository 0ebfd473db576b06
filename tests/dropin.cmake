if(NOT CENOTE_SANITIZE AND CENOTE_WITH_GRPC)
  add_test(NAME libraries_together
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/tests/dropin/test_libraries.py ${CMAKE_BINARY_DIR})
  set_tests_properties(libraries_together PROPERTIES TIMEOUT 600 LABELS multi)
endif()
