# Tests over kernel verbs. The programs are ordinary ones; `./dev test` runs those labelled vm inside one boot of the
# test VM, and those labelled vm2 in two at once, host by host in step (docs/testing.md). The thread sanitizer leaves
# them out: what they share with the kernel it cannot see.
if(NOT CENOTE_SANITIZE)
  add_test(NAME vm_tool COMMAND ${Python3_EXECUTABLE} -B ${PROJECT_SOURCE_DIR}/tests/vm/test_cenote_vm.py)
  set_tests_properties(vm_tool PROPERTIES TIMEOUT 240 LABELS unit)
endif()
if(CENOTE_SANITIZE MATCHES "thread")
  return()
endif()

add_library(cenote_vm STATIC vm/environment.cpp vm/faults.cpp vm/rendezvous.cpp vm/verbs_pair.cpp)
target_link_libraries(cenote_vm PUBLIC cenote_options PkgConfig::ibverbs GTest::gtest)

if(NOT CENOTE_SANITIZE)  # of the VM itself
  cenote_test(vm_devices_test SOURCES vm/devices_test.cpp USES cenote_vm LABELS vm TIMEOUT 600)
  cenote_test(vm2_devices_test SOURCES vm/two_machines_test.cpp USES cenote_vm LABELS vm2 TIMEOUT 600)
endif()

# The transports' conformance suite, over the VM's devices.
cenote_test(vm_verbs_test SOURCES
    unit/transports/transfer_test.cpp unit/transports/small_put_test.cpp unit/transports/connect_test.cpp
    unit/transports/faults_test.cpp unit/transports/wait_test.cpp vm/verbs_kinds.cpp
  USES cenote_vm cenote_transports LABELS vm TIMEOUT 600)
if(NOT CENOTE_SANITIZE)  # a minute of forks under emulation; the suite above covers the same code there
  cenote_test(vm_verbs_death_test SOURCES
      multi/transports/death_test.cpp multi/transports/farewell_test.cpp vm/verbs_kinds.cpp
    USES cenote_vm cenote_transports LABELS vm TIMEOUT 600)
endif()
if(TARGET cenote_cuda)
  cenote_test(vm_gpu_memory_test SOURCES vm/gpu_memory_test.cpp
    USES cenote_vm cenote_transports cenote_cuda LABELS vm TIMEOUT 300)
endif()
# Half a minute, mostly of waiting; what the address sanitizer could see of it, transports_recovery_test shows it.
if(NOT CENOTE_SANITIZE)
  cenote_test(vm_verbs_faults_test SOURCES vm/verbs_faults_test.cpp
    USES cenote_vm cenote_transports LABELS vm TIMEOUT 600)
endif()

if(NOT CENOTE_SANITIZE)  # forks again
  cenote_test(vm_verbs_ends_test SOURCES vm/verbs_ends_test.cpp
    USES cenote_vm cenote_transports nlohmann_json::nlohmann_json LABELS vm TIMEOUT 600)
endif()

# cgroups of version 2, which the machine outside may have given to version 1.
if(NOT CENOTE_SANITIZE)
  cenote_test(vm_cage_test SOURCES vm/cage_test.cpp USES cenote_vm cenote_agent_core LABELS vm TIMEOUT 120)
  add_dependencies(vm_cage_test cage_process)
endif()

# The same over UCX's rc, which takes seconds to connect there.
if(NOT CENOTE_SANITIZE)  # as above
  cenote_test(vm_ucx_test SOURCES
      unit/transports/transfer_test.cpp unit/transports/small_put_test.cpp unit/transports/connect_test.cpp
      unit/transports/faults_test.cpp unit/transports/wait_test.cpp vm/ucx_kinds.cpp
    USES cenote_vm cenote_transports LABELS vm slow TIMEOUT 900)
endif()

# The collectives with every rank behind verbs: as threads, and as processes that die.
if(NOT CENOTE_SANITIZE)  # as above
  cenote_test(vm_collectives_test SOURCES
      multi/collectives/operations_test.cpp multi/collectives/failure_test.cpp vm/collectives_modes.cpp
    USES cenote_vm cenote_collectives LABELS vm TIMEOUT 600)
  cenote_test(vm_window_test SOURCES multi/collectives/window_test.cpp vm/collectives_modes.cpp
    USES cenote_vm cenote_collectives LABELS vm TIMEOUT 300)
endif()

# What `cenote` does over verbs. What the address sanitizer could see of it, it sees without a VM.
if(TARGET cenote AND NOT CENOTE_SANITIZE)
  cenote_test(vm_perf_test SOURCES vm/perf_test.cpp multi/agent/cluster.cpp
    USES cenote_vm cenote_cli cenote_perf LABELS vm TIMEOUT 600)
  cenote_test(vm_demo_test SOURCES vm/demo_test.cpp multi/agent/cluster.cpp
    USES cenote_vm cenote_cli LABELS vm slow TIMEOUT 600)  # vm2_demo_test shows the same in less time
  cenote_test(vm_doctor_test SOURCES vm/doctor_test.cpp multi/agent/cluster.cpp
    USES cenote_vm cenote_cli LABELS vm TIMEOUT 600)
  cenote_test(vm2_demo_test SOURCES vm/two_machines_demo_test.cpp multi/agent/cluster.cpp
    USES cenote_vm cenote_cli LABELS vm2 TIMEOUT 600)
  foreach(test vm_perf_test vm_demo_test vm_doctor_test vm2_demo_test)
    add_dependencies(${test} cenote)
  endforeach()
endif()
