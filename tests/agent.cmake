# The agent's rules in process, then its processes, then whole pools.
cenote_test(agent_core_test
  SOURCES unit/agent/lease_gate_test.cpp unit/agent/core_test.cpp unit/agent/heartbeat_loop_test.cpp
          unit/agent/worker_wire_test.cpp unit/agent/device_lock_test.cpp
  USES cenote_agent_core)
cenote_test(worker_process_test SOURCES multi/agent/worker_process_test.cpp USES cenote_agent_core LABELS multi)
