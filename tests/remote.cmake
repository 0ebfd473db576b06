cenote_test(remote_codec_test
  SOURCES unit/remote/codec_test.cpp
  USES cenote_remote)
cenote_test(remote_test
  SOURCES unit/remote/remote_test.cpp unit/remote/comm_test.cpp unit/remote/hostile_test.cpp
          unit/remote/shared_worker_test.cpp unit/remote/share_test.cpp unit/remote/worker_end_test.cpp
          unit/remote/silence_test.cpp unit/remote/overrun_test.cpp
  USES cenote_remote
  TIMEOUT 300)
# The driver's own conformance suite, with a worker in between.
cenote_test(remote_conformance_test
  SOURCES
    unit/remote/makers.cpp
    unit/cuda/memory_test.cpp
    unit/cuda/streams_test.cpp
    unit/cuda/launch_test.cpp
    unit/cuda/context_test.cpp
    unit/cuda/vmm_test.cpp
  USES cenote_remote
  TIMEOUT 600)
# What needs the device to see the client's own memory, or the host to see the device write into it, does not work
# across processes (docs/remote-cuda.md says so, call by call).
set(remote_differs
  *PinnedSourceIsReadWhenTheStreamGetsThere* *TheHostSeesWhatStreamsWriteToPinnedMemory*
  *WaitForValuesThatTheHostWritesToPinnedMemory* *ADestroyedStreamStillRunsWhatIsInIt*
  *HostFunctionsRunInOrderAndMayNotCallTheDriver* *KernelsReachPinnedHostMemory*
  # Overruns are noticed at the granule's end (overrun_test.cpp runs what can be), and mappings are opened to devices,
  # not to contexts.
  *AStoreBehindTheEndIsAnIllegalAddressThatSticks* *AFaultDoesNotReachOtherContexts*
  *AnotherCardsMemoryNeedsPeerAccess*
  # Free memory is told in granules; one device's memory is not mapped in another's range.
  *ContextsTakeMemoryOfTheCard* *APeerIsGivenAccess*)
list(JOIN remote_differs ":" remote_differs)
set_tests_properties(remote_conformance_test PROPERTIES ENVIRONMENT "GTEST_FILTER=-${remote_differs}")
# The thread sanitizer leaves a process too little address space for the ranges that workers reserve.
if(NOT CENOTE_SANITIZE MATCHES "thread")
  cenote_test(remote_kill_test
    SOURCES multi/remote/kill_test.cpp
    USES cenote_remote
    LABELS multi
    TIMEOUT 300)
endif()
