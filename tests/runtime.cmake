cenote_test(runtime_test
  SOURCES
    unit/runtime/result_test.cpp unit/runtime/settings_test.cpp unit/runtime/log_test.cpp
    unit/runtime/metrics_test.cpp unit/runtime/ledger_test.cpp unit/runtime/process_test.cpp
    unit/runtime/rank_name_test.cpp unit/runtime/spawn_test.cpp
  USES cenote_runtime)
cenote_test(runtime_topology_test SOURCES unit/runtime/topology_test.cpp USES cenote_runtime)
cenote_test(runtime_rail_plan_test SOURCES unit/runtime/rail_plan_test.cpp USES cenote_runtime)
cenote_test(runtime_bootstrap_test SOURCES unit/runtime/bootstrap_test.cpp USES cenote_runtime)
cenote_test(runtime_bootstrap_processes_test
  SOURCES multi/runtime/bootstrap_processes_test.cpp
  USES cenote_runtime
  LABELS multi)
