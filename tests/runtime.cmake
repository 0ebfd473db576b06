cenote_test(runtime_bootstrap_test SOURCES unit/runtime/bootstrap_test.cpp USES cenote_runtime)
cenote_test(runtime_topology_test SOURCES unit/runtime/topology_test.cpp USES cenote_runtime)
