# The agent's rules in process, then its processes, then whole pools.
cenote_test(agent_core_test
  SOURCES unit/agent/lease_gate_test.cpp unit/agent/core_test.cpp unit/agent/heartbeat_loop_test.cpp
          unit/agent/worker_wire_test.cpp unit/agent/device_lock_test.cpp unit/agent/agent_threads_test.cpp unit/agent/cage_plan_test.cpp
  USES cenote_agent_core)
cenote_test(worker_process_test SOURCES multi/agent/worker_process_test.cpp USES cenote_agent_core LABELS multi)

# In release only: a sanitizer's own system calls are refused with the rest.
if(NOT CENOTE_SANITIZE)
  add_executable(cage_process multi/agent/cage_process.cpp)
  target_link_libraries(cage_process PRIVATE cenote_agent_core)
  set_target_properties(cage_process PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  cenote_test(cage_test SOURCES multi/agent/cage_test.cpp USES cenote_agent_core LABELS multi)
  add_dependencies(cage_test cage_process)
endif()

# The pool's client without its network: renewals and the ends of sessions, while everything dies around them.
cenote_test(client_core_test
  SOURCES unit/client/call_gate_test.cpp unit/client/lease_renewal_test.cpp unit/client/session_watch_test.cpp
          unit/client/cancel_test.cpp
  USES cenote_client_core)

if(CENOTE_WITH_GRPC AND TARGET cenote_cli)
  cenote_test(agent_near_devices_test SOURCES unit/agent/near_devices_test.cpp USES cenote_agent)
  cenote_test(agent_worker_log_test SOURCES unit/agent/worker_log_test.cpp USES cenote_agent scripted_verbs)
  cenote_test(stuck_test SOURCES unit/pool/stuck_test.cpp USES cenote_cli)
  set(cluster multi/agent/cluster.cpp)
  cenote_test(cli_test SOURCES multi/agent/cli_test.cpp ${cluster} USES cenote_cli LABELS multi TIMEOUT 300)
  if(NOT CENOTE_SANITIZE)
    cenote_test(caged_worker_test SOURCES multi/agent/caged_worker_test.cpp ${cluster} USES cenote_cli LABELS multi
      TIMEOUT 300)
    add_dependencies(caged_worker_test cenote)
  endif()
  if(NOT CENOTE_SANITIZE)  # what is loaded in front of it
    add_library(disk_trouble MODULE multi/agent/disk_trouble.cpp)
    target_link_libraries(disk_trouble PRIVATE cenote_options ${CMAKE_DL_LIBS})
    set_target_properties(disk_trouble PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    cenote_test(trouble_test SOURCES multi/agent/trouble_test.cpp ${cluster} USES cenote_cli LABELS slow TIMEOUT 300)
    add_dependencies(trouble_test cenote disk_trouble)
  endif()
  cenote_test(refusal_test SOURCES multi/agent/refusal_test.cpp ${cluster} USES cenote_cli LABELS multi TIMEOUT 300)
  cenote_test(session_loss_test SOURCES multi/agent/session_loss_test.cpp ${cluster} USES cenote_cli LABELS multi
    TIMEOUT 300)
  cenote_test(broker_port_test SOURCES multi/agent/broker_port_test.cpp USES cenote_agent cenote_broker LABELS multi)
  cenote_test(demo_test SOURCES multi/agent/demo_test.cpp ${cluster} USES cenote_cli LABELS multi TIMEOUT 600)
  # With the address sanitizer these two take three minutes, and demo_test runs the same processes.
  if(CENOTE_SANITIZE)
    set(of_kills multi slow)
  else()
    set(of_kills multi)
  endif()
  cenote_test(kill_test SOURCES multi/agent/kill_test.cpp ${cluster} USES cenote_cli LABELS ${of_kills} TIMEOUT 600)
  cenote_test(demo_kill_test SOURCES multi/agent/demo_kill_test.cpp ${cluster} USES cenote_cli LABELS ${of_kills} TIMEOUT 600)
  cenote_test(pool_metrics_test SOURCES multi/agent/metrics_test.cpp ${cluster} USES cenote_cli LABELS multi
    TIMEOUT 300)
  cenote_test(who_is_stuck_test SOURCES multi/agent/who_is_stuck_test.cpp ${cluster} USES cenote_cli LABELS multi
    TIMEOUT 300)
  foreach(test cli_test pool_metrics_test who_is_stuck_test refusal_test kill_test session_loss_test demo_test demo_kill_test)
    add_dependencies(${test} cenote)
  endforeach()
endif()
