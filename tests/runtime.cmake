cenote_test(runtime_test
  SOURCES
    unit/runtime/result_test.cpp unit/runtime/settings_test.cpp unit/runtime/log_test.cpp
    unit/runtime/metrics_test.cpp unit/runtime/ledger_test.cpp unit/runtime/process_test.cpp
    unit/runtime/rank_name_test.cpp unit/runtime/spawn_test.cpp
  USES cenote_runtime nlohmann_json::nlohmann_json)
cenote_test(runtime_metrics_server_test SOURCES unit/runtime/metrics_server_test.cpp USES cenote_runtime)
cenote_test(runtime_topology_test SOURCES unit/runtime/topology_test.cpp USES cenote_runtime)
cenote_test(runtime_rail_plan_test SOURCES unit/runtime/rail_plan_test.cpp USES cenote_runtime)
cenote_test(runtime_bootstrap_test SOURCES unit/runtime/bootstrap_test.cpp USES cenote_runtime)
cenote_test(runtime_launcher_test
  SOURCES unit/runtime/launcher_test.cpp unit/runtime/launcher_meeting_test.cpp
  USES cenote_runtime)
# Where PMIx's headers are, our own types are held to them.
pkg_check_modules(pmix IMPORTED_TARGET pmix)
if(TARGET PkgConfig::pmix)
  cenote_test(runtime_pmix_types_test SOURCES unit/runtime/pmix_types_test.cpp USES cenote_runtime PkgConfig::pmix)
endif()
cenote_test(runtime_bootstrap_processes_test
  SOURCES multi/runtime/bootstrap_processes_test.cpp
  USES cenote_runtime
  LABELS multi)
