# Tests over kernel verbs. The programs are ordinary ones; `./dev test` runs those labelled vm inside one boot of the
# test VM, and those labelled vm2 in two at once, host by host in step (docs/testing.md). The thread sanitizer leaves
# them out: what they share with the kernel it cannot see.
if(CENOTE_SANITIZE MATCHES "thread")
  return()
endif()

add_library(cenote_vm STATIC vm/environment.cpp vm/faults.cpp vm/rendezvous.cpp vm/verbs_pair.cpp)
target_link_libraries(cenote_vm PUBLIC cenote_options PkgConfig::ibverbs GTest::gtest)

cenote_test(vm_devices_test SOURCES vm/devices_test.cpp USES cenote_vm LABELS vm TIMEOUT 300)
cenote_test(vm2_devices_test SOURCES vm/two_machines_test.cpp USES cenote_vm LABELS vm2 TIMEOUT 300)
