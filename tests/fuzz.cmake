# Fuzzers, guided by coverage (libFuzzer): what takes bytes from a client, a file or a peer. cenote_fuzzer(NAME SOURCES
# ... UNDER ... USES ...): fuzz_NAME; the sources UNDER test are compiled again, with the counters that guide it. The
# same number of runs from the same seed each time: `./dev test` repeats; `--full` goes on from a random one.
if(NOT CENOTE_SANITIZE MATCHES "address" OR NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  return()
endif()

function(cenote_fuzzer NAME)
  cmake_parse_arguments(ARG "" "RUNS" "SOURCES;UNDER;USES" ${ARGN})
  list(TRANSFORM ARG_UNDER PREPEND ${PROJECT_SOURCE_DIR}/)
  add_executable(fuzz_${NAME} fuzz/start.cpp ${ARG_SOURCES} ${ARG_UNDER})
  target_compile_options(fuzz_${NAME} PRIVATE -fsanitize=fuzzer)
  target_link_options(fuzz_${NAME} PRIVATE -fsanitize=fuzzer)
  target_link_libraries(fuzz_${NAME} PRIVATE cenote_options ${ARG_USES})
  set_target_properties(fuzz_${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  set(flags -timeout=30 -rss_limit_mb=2048 -print_final_stats=1 -max_len=16384)
  add_test(NAME fuzz_${NAME} COMMAND fuzz_${NAME} -seed=1 -runs=${ARG_RUNS} ${flags})
  set_tests_properties(fuzz_${NAME} PROPERTIES TIMEOUT 300 LABELS unit)
  add_test(NAME fuzz_${NAME}_long COMMAND fuzz_${NAME} -max_total_time=300 ${flags})
  set_tests_properties(fuzz_${NAME}_long PROPERTIES TIMEOUT 600 LABELS slow)
endfunction()

cenote_fuzzer(remote_commands RUNS 300000 SOURCES fuzz/remote_commands.cpp UNDER pool/remote/codec.cpp
  USES cenote_runtime)
cenote_fuzzer(ptx_program RUNS 20000 SOURCES fuzz/ptx_program.cpp
  UNDER cuda/ptx/program.cpp cuda/ptx/lexer.cpp cuda/ptx/decoder_module.cpp cuda/ptx/decoder_function.cpp
        cuda/ptx/decoder_arithmetic.cpp cuda/ptx/decoder_memory.cpp cuda/ptx/decoder_control.cpp cuda/ptx/registers.cpp
        cuda/ptx/layout.cpp
  USES cenote_kernels cenote_runtime)
target_compile_options(fuzz_ptx_program PRIVATE -fno-strict-aliasing)
cenote_fuzzer(fatbin RUNS 100000 SOURCES fuzz/fatbin.cpp
  UNDER cuda/fatbin.cpp cuda/fatbin_size.cpp cuda/lz4_block.cpp USES cenote_runtime PkgConfig::zstd)
cenote_fuzzer(journal RUNS 100000 SOURCES fuzz/journal.cpp UNDER pool/state/state.cpp pool/state/codec.cpp
  USES cenote_runtime)
cenote_fuzzer(settings RUNS 4000 SOURCES fuzz/settings.cpp UNDER runtime/settings.cpp runtime/setting_values.cpp
  USES cenote_runtime)
cenote_fuzzer(launcher RUNS 30000 SOURCES fuzz/launcher.cpp UNDER runtime/launcher_lists.cpp USES cenote_runtime)
cenote_fuzzer(lease_token RUNS 30000 SOURCES fuzz/lease_token.cpp UNDER pool/lease_token.cpp
  USES cenote_runtime OpenSSL::Crypto)
cenote_fuzzer(tcp_stream RUNS 10000 SOURCES fuzz/tcp_stream.cpp
  UNDER transports/tcp/note.cpp transports/tcp/send_queue.cpp transports/tcp/tcp_endpoint.cpp
        transports/tcp/tcp_receive.cpp transports/tcp/tcp_transport.cpp
  USES cenote_transports GTest::gtest)
cenote_fuzzer(shm_inbox RUNS 4000 SOURCES fuzz/shm_inbox.cpp
  UNDER transports/shm/mapping.cpp transports/shm/small_puts.cpp transports/shm/control_channel.cpp
        transports/shm/shm_endpoint.cpp transports/shm/shm_connect.cpp transports/shm/shm_transport.cpp
  USES cenote_transports GTest::gtest)
cenote_fuzzer(pool_wires RUNS 200000 SOURCES fuzz/pool_wires.cpp
  UNDER pool/dropin/helper_wire.cpp pool/dropin/session_wire.cpp pool/agent/worker_wire.cpp pool/client/lease_file.cpp
  USES cenote_helper cenote_agent_core cenote_client_core)
cenote_fuzzer(bootstrap RUNS 6000 SOURCES fuzz/bootstrap.cpp
  UNDER runtime/bootstrap.cpp runtime/bootstrap_join.cpp runtime/bootstrap_root.cpp runtime/bootstrap_wire.cpp
        runtime/frame_channel.cpp
  USES cenote_runtime)
