# cenote_agent_core: the agent's rules, without network, GPU or process: built in every preset.
# cenote_client_core: the pool's client, without the network: built in every preset.
# cenote_agent: the agent with its gRPC service and worker processes. cenote_client: the client over gRPC.
# cenote_cli: the command, also the helper process of libcenote-pool; its main() is in perf/.
cenote_room(agent_core
  SOURCES agent/lease_gate.cpp agent/core.cpp agent/heartbeat_loop.cpp agent/worker_wire.cpp
          agent/worker_process.cpp agent/device_lock.cpp agent/cage.cpp agent/system_calls.cpp agent/cage_plan.cpp
          agent/worker_groups.cpp agent/cages.cpp agent/agent_metrics.cpp
  USES cenote_pool_core cenote_runtime PkgConfig::seccomp fmt::fmt)

cenote_room(client_core
  SOURCES client/pool_client.cpp client/lease.cpp client/session_watch.cpp client/lease_file.cpp client/identity.cpp
  USES cenote_remote cenote_pool_core cenote_transports cenote_runtime nlohmann_json::nlohmann_json fmt::fmt)

# What `cenote session` does for one program that uses libcenote-pool.
cenote_room(helper_server SOURCES dropin/helper_server.cpp USES cenote_client_core cenote_helper)

if(NOT CENOTE_WITH_GRPC)
  return()
endif()

cenote_room(agent
  SOURCES agent/local_driver.cpp agent/near_devices.cpp agent/worker_main.cpp agent/service.cpp agent/broker_port.cpp agent/agent.cpp
  USES cenote_agent_core cenote_remote cenote_pool_proto cenote_cuda cenote_transports cenote_runtime)

cenote_room(client SOURCES client/grpc_network.cpp USES cenote_client_core cenote_pool_proto)

# Everything of the command but main(), which stands above all that has commands (perf/main.cpp): tests use parts of it.
cenote_room(cli
  SOURCES
    cli/cli.cpp cli/program.cpp cli/interrupt.cpp cli/output.cpp cli/ready.cpp cli/child_process.cpp cli/process_set.cpp cli/ladders.cpp cli/gpu_ladder.cpp
    cli/checks.cpp cli/preflight_section.cpp
    cli/progress_bar.cpp cli/demo.cpp cli/demo_data.cpp cli/demo_device.cpp cli/demo_report.cpp cli/demo_train.cpp
    cli/demo_kill.cpp cli/demo_client.cpp
    cli/cmd_broker.cpp cli/cmd_agent.cpp cli/cmd_worker.cpp cli/cmd_guard.cpp cli/cmd_session.cpp cli/agent_watch.cpp
    cli/cmd_lease.cpp cli/cmd_release.cpp cli/cmd_leases.cpp cli/cmd_top.cpp
    cli/cmd_who_is_stuck.cpp cli/stuck.cpp cli/stuck_output.cpp
    cli/cmd_doctor.cpp cli/cmd_config.cpp cli/cmd_version.cpp cli/cmd_completion.cpp cli/cmd_demo.cpp
  USES cenote_agent cenote_client cenote_broker cenote_session cenote_helper_server cenote_collectives cenote_kernels
       CLI11::CLI11)
target_compile_definitions(cenote_cli PRIVATE CENOTE_VERSION="${PROJECT_VERSION}")
# CLI11 is a header of ten seconds: parsed once for all the commands.
target_precompile_headers(cenote_cli PRIVATE <CLI/CLI.hpp>)
