set(conformance unit/transports/transfer_test.cpp unit/transports/small_put_test.cpp unit/transports/connect_test.cpp
  unit/transports/faults_test.cpp unit/transports/wait_test.cpp unit/transports/reception_test.cpp)
cenote_test(transports_test SOURCES ${conformance} unit/transports/kinds.cpp unit/transports/fabric_test.cpp
    unit/transports/inbox_test.cpp unit/transports/peer_process_test.cpp
  USES cenote_transports LABELS unit nogrpc TIMEOUT 300)
cenote_test(transports_death_test SOURCES multi/transports/death_test.cpp unit/transports/kinds.cpp
  USES cenote_transports LABELS multi nogrpc TIMEOUT 120)
cenote_test(transports_farewell_test SOURCES multi/transports/farewell_test.cpp unit/transports/kinds.cpp
  USES cenote_transports LABELS multi nogrpc TIMEOUT 240)
cenote_test(transports_hostile_test
  SOURCES unit/transports/hostile_tcp_test.cpp unit/transports/hostile_shm_test.cpp
    unit/transports/hostile_small_puts_test.cpp
  USES cenote_transports LABELS unit nogrpc TIMEOUT 300)
# The same suite over UCX's shared memory and TCP.
cenote_test(transports_ucx_test SOURCES ${conformance} unit/transports/ucx/kinds.cpp unit/transports/ucx/memory_test.cpp
  USES cenote_transports LABELS unit nogrpc TIMEOUT 300)
cenote_test(transports_ucx_end_test
  SOURCES multi/transports/death_test.cpp multi/transports/farewell_test.cpp unit/transports/ucx/kinds.cpp
  USES cenote_transports LABELS multi nogrpc TIMEOUT 400)
cenote_test(transports_ucx_hostile_test SOURCES unit/transports/ucx/hostile_test.cpp unit/transports/ucx/kinds.cpp
  USES cenote_transports LABELS unit nogrpc TIMEOUT 300)
cenote_test(transports_ucx_library_test SOURCES unit/transports/ucx/library_test.cpp
  USES cenote_transports LABELS unit nogrpc)
# The stand-in for libibverbs that the tests of transports/verbs put into its table.
add_library(scripted_verbs STATIC
  unit/transports/verbs/scripted_provider.cpp unit/transports/verbs/scripted_calls.cpp
  unit/transports/verbs/scripted_memory.cpp unit/transports/verbs/scripted_events.cpp
  unit/transports/verbs/scripted_queues.cpp unit/transports/verbs/scripted_traffic.cpp
  unit/transports/verbs/scripted_routes.cpp unit/transports/verbs/scripted_late.cpp)
target_link_libraries(scripted_verbs PUBLIC cenote_options cenote_runtime)
cenote_test(scripted_verbs_test
  SOURCES unit/transports/verbs/scripted_provider_test.cpp unit/transports/verbs/scripted_errors_test.cpp
    unit/transports/verbs/scripted_faults_test.cpp
    unit/transports/verbs/scripted_late_test.cpp
  USES scripted_verbs LABELS unit nogrpc TIMEOUT 120)
cenote_test(transports_verbs_test SOURCES ${conformance} unit/transports/verbs/kinds.cpp
  USES scripted_verbs cenote_transports LABELS unit nogrpc TIMEOUT 300)
# It counts allocations by functions of its own that the sanitizers bring too.
if(NOT CENOTE_SANITIZE AND CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  cenote_test(transports_small_put_cost_test SOURCES unit/transports/verbs/small_put_cost_test.cpp
    USES cenote_transports LABELS unit nogrpc)
  add_dependencies(transports_small_put_cost_test cenote_at_once)
endif()
# Memory of emulated GPUs over the scripted fabric.
if(TARGET cenote_cuda)
  cenote_test(transports_gpu_memory_test
    SOURCES unit/transports/verbs/gpu_memory_test.cpp unit/transports/verbs/gpu_ways_test.cpp
      unit/transports/verbs/gpu_visibility_test.cpp unit/transports/verbs/gpu_staging_test.cpp
    USES scripted_verbs cenote_transports cenote_cuda LABELS unit nogrpc TIMEOUT 300)
endif()
cenote_test(transports_recovery_test
  SOURCES unit/transports/verbs/recovery_test.cpp unit/transports/verbs/port_counters_test.cpp
  USES scripted_verbs cenote_transports LABELS unit nogrpc TIMEOUT 300)
cenote_test(transports_parking_test SOURCES unit/transports/verbs/parking_test.cpp
  USES scripted_verbs cenote_transports LABELS unit nogrpc TIMEOUT 300)
# What is chosen for rails, and what the preflight says, over recorded machines and the scripted fabric.
cenote_test(transports_choice_test
  SOURCES unit/transports/verbs/choice_test.cpp unit/transports/verbs/recorded_machine.cpp
  USES scripted_verbs cenote_transports LABELS unit nogrpc TIMEOUT 120)
cenote_test(transports_preflight_test
  SOURCES unit/transports/verbs/preflight_test.cpp unit/transports/verbs/recorded_machine.cpp
  USES scripted_verbs cenote_transports LABELS unit nogrpc)
# The same suite, and traffic with real failures, over transports that inject faults: a seed an iteration.
add_library(fault_seeds STATIC fault_seeds.cpp)
target_link_libraries(fault_seeds PUBLIC cenote_options cenote_transports GTest::gtest)
cenote_test(fault_conformance SOURCES ${conformance} unit/transports/fault/kinds.cpp USES fault_seeds PROGRAM_ONLY)
set(long_cases *Wait.*:*Reception*:*SixtyFour*:*WrongSecret*:*NeverComes*:*NobodySleeps*:*MessagesArriveOnce*)
string(APPEND long_cases :*BeforeALaterMessage*:*RandomOperations*:*EverySize*:*ManyEndpoints*:*ThousandsLeave*:*OverlappingOnes*)
cenote_seeds(transports_fault_test PROGRAM fault_conformance SEEDS 300 WITHOUT ${long_cases}
  LABELS unit nogrpc TIMEOUT 300)
cenote_seeds(transports_fault_long_test PROGRAM fault_conformance SEEDS 4 ONLY ${long_cases} WITHOUT *Reception*
  LABELS unit nogrpc TIMEOUT 300)
cenote_seeds(transports_fault_many_test PROGRAM fault_conformance SEEDS 10000 WITHOUT ${long_cases}
  LABELS unit nogrpc slow TIMEOUT 3600)
cenote_test(fault_traffic SOURCES unit/transports/fault/traffic.cpp unit/transports/fault/traffic_test.cpp
  USES fault_seeds PROGRAM_ONLY)
cenote_seeds(transports_fault_traffic_test PROGRAM fault_traffic SEEDS 300 LABELS unit nogrpc TIMEOUT 300)
cenote_seeds(transports_fault_traffic_many_test PROGRAM fault_traffic SEEDS 10000 LABELS unit nogrpc slow TIMEOUT 3600)
