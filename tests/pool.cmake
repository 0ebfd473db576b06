# The broker: without the network in every preset, with it where gRPC is there.
cenote_test(pool_token_test
  SOURCES unit/pool/lease_token_test.cpp unit/pool/certificates_test.cpp
  USES cenote_pool_core)
cenote_test(pool_state_test
  SOURCES unit/pool/state_test.cpp unit/pool/scheduler_test.cpp
  USES cenote_pool_core)
cenote_test(pool_core_test
  SOURCES unit/pool/store_test.cpp unit/pool/journal_test.cpp unit/pool/broker_core_test.cpp
          unit/pool/broker_disk_test.cpp
  USES cenote_pool_core)
if(CENOTE_WITH_GRPC)
  cenote_test(pool_client_test
    SOURCES unit/pool/status_test.cpp unit/pool/lease_file_test.cpp multi/pool/silent_broker_test.cpp
    USES cenote_client)
  cenote_test(pool_broker_test
    SOURCES multi/pool/broker_server_test.cpp
    USES cenote_broker
    LABELS multi)
  add_executable(pool_broker_process multi/pool/broker_process.cpp)
  target_link_libraries(pool_broker_process PRIVATE cenote_broker)
  set_target_properties(pool_broker_process PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  cenote_test(pool_broker_kill_test
    SOURCES multi/pool/broker_kill_test.cpp
    USES cenote_broker
    LABELS multi TIMEOUT 300)
  add_dependencies(pool_broker_kill_test pool_broker_process)
endif()
