# cenote_agent_core: the agent's rules, without network, GPU or process: built in every preset.
# cenote_agent: the agent with its gRPC service and worker processes. cenote_client: the pool's client.
# cenote: the command. libcenote-pool.so: the client as a C ABI, with gRPC inside.
cenote_room(agent_core
  SOURCES agent/lease_gate.cpp agent/core.cpp agent/heartbeat_loop.cpp agent/worker_wire.cpp
          agent/worker_process.cpp agent/device_lock.cpp
  USES cenote_pool_core cenote_runtime fmt::fmt)

if(NOT CENOTE_WITH_GRPC)
  return()
endif()

cenote_room(agent
  SOURCES agent/local_driver.cpp agent/worker_main.cpp agent/service.cpp agent/broker_port.cpp agent/agent.cpp
  USES cenote_agent_core cenote_remote cenote_pool_proto cenote_cuda cenote_transports cenote_runtime)

cenote_room(client
  SOURCES client/pool_client.cpp client/lease.cpp client/lease_file.cpp client/identity.cpp
  USES cenote_remote cenote_pool_proto cenote_pool_core cenote_transports cenote_runtime nlohmann_json::nlohmann_json
       fmt::fmt)
