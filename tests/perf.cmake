# The measuring tools: their figures, and both ends in one process; then the command, with a process for each end.
cenote_test(perf_figures_test
  SOURCES unit/perf/statistics_test.cpp unit/perf/report_test.cpp unit/perf/options_test.cpp
  USES cenote_perf_tools LABELS unit)
cenote_test(perf_peer_test SOURCES unit/perf/peer_test.cpp unit/perf/callgrind_test.cpp USES cenote_perf LABELS unit nogrpc)
cenote_test(perf_session_test SOURCES unit/perf/session_test.cpp USES cenote_perf_tools LABELS unit nogrpc TIMEOUT 300)
cenote_test(perf_gpu_memory_test SOURCES unit/perf/gpu_memory_test.cpp
  USES cenote_perf_tools scripted_verbs LABELS unit nogrpc)
if(NOT CENOTE_SANITIZE)  # it replaces operator new, as sanitizers do
  cenote_test(perf_allocation_test SOURCES unit/perf/allocation_test.cpp USES cenote_perf_tools LABELS unit)
endif()
if(TARGET cenote)
  cenote_test(perf_command_test SOURCES multi/perf/perf_command_test.cpp multi/agent/cluster.cpp
    USES cenote_cli LABELS multi TIMEOUT 600)
  add_dependencies(perf_command_test cenote)
endif()
