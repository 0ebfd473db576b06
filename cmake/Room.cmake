# cenote_room(NAME SOURCES ... USES ...): one folder of the house as a static library `cenote_NAME`.
# cenote_test(NAME SOURCES ... USES ... [LABELS ...] [TIMEOUT s]): one GoogleTest program under ctest. Each has a
# deadline; a test that hangs is a failure. Labels: unit, multi (several processes), slow (only with
# `./dev test --full`), vm and vm2 (inside the test VM, or in two; tests/vm.cmake).
# cenote_seeds(NAME PROGRAM p SEEDS n [ONLY cases] [WITHOUT cases] [LABELS ...] [TIMEOUT s]): runs a program of tests/fault_seeds.h over
# so many seeds; a tenth of them with a sanitizer.
# cenote_bench(NAME SOURCES ... USES ...): the program bench_NAME, which `./dev bench NAME` builds and runs.
function(cenote_room NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES" ${ARGN})
  add_library(cenote_${NAME} STATIC ${ARG_SOURCES})
  target_link_libraries(cenote_${NAME} PUBLIC cenote_options ${ARG_USES})
endfunction()

function(cenote_test NAME)
  cmake_parse_arguments(ARG "PROGRAM_ONLY" "TIMEOUT" "SOURCES;USES;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  add_executable(${NAME} ${ARG_SOURCES})
  target_link_libraries(${NAME} PRIVATE cenote_options ${ARG_USES} GTest::gmock GTest::gtest GTest::gtest_main)
  target_include_directories(${NAME} PRIVATE ${CMAKE_BINARY_DIR})  # tests/test_paths.h
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${NAME} PRIVATE -O1)  # the test's own files: to compile them is most of what they cost
  endif()
  set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if(ARG_PROGRAM_ONLY)
    return()
  endif()
  add_test(NAME ${NAME} COMMAND ${NAME} --gtest_brief=0)
  set_tests_properties(${NAME} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()

function(cenote_seeds NAME)
  cmake_parse_arguments(ARG "" "PROGRAM;SEEDS;WITHOUT;ONLY;TIMEOUT" "LABELS" ${ARGN})
  if(CENOTE_SANITIZE)
    math(EXPR ARG_SEEDS "${ARG_SEEDS} / 10 + 1")
  endif()
  add_test(NAME ${NAME} COMMAND ${ARG_PROGRAM} --gtest_brief=0 --seeds=${ARG_SEEDS})
  set_tests_properties(${NAME} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}"
    ENVIRONMENT "GTEST_FILTER=${ARG_ONLY}-${ARG_WITHOUT}")
endfunction()

function(cenote_bench NAME)
  cmake_parse_arguments(ARG "" "" "SOURCES;USES" ${ARGN})
  add_executable(bench_${NAME} ${ARG_SOURCES})
  target_link_libraries(bench_${NAME} PRIVATE cenote_options cenote_perf CLI11::CLI11 ${ARG_USES})
endfunction()
