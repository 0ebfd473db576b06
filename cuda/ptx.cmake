# The PTX parser and the execution of kernels on the CPU.
cenote_room(ptx
  SOURCES
    fatbin.cpp fatbin_size.cpp lz4_block.cpp
    ptx/program.cpp ptx/lexer.cpp ptx/decoder_module.cpp ptx/decoder_function.cpp ptx/decoder_arithmetic.cpp
    ptx/decoder_memory.cpp ptx/decoder_control.cpp ptx/registers.cpp ptx/layout.cpp
    emulator/run_launch.cpp emulator/run_block.cpp emulator/run_step.cpp emulator/run_memory.cpp emulator/run_atomic.cpp
    emulator/run_warp.cpp emulator/run_print.cpp emulator/run_lanes.cpp emulator/run_lanes_base.cpp
  USES cenote_runtime PkgConfig::zstd)

# Registers hold whatever type an instruction gives them.
target_compile_options(cenote_ptx PRIVATE -fno-strict-aliasing)

# The lane loops once for each vector width; best_lanes() chooses at run time.
set(lane_flags -O3 -fno-trapping-math -fno-math-errno)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND lane_flags -Wno-pass-failed)  # a loop that cannot be vectorised (division, 128 bits) is no mistake
endif()
if(CENOTE_SANITIZE)
  list(APPEND lane_flags -O1)  # there correctness is looked at, and hundreds of checked loops take minutes to optimise
endif()
set_source_files_properties(emulator/run_lanes_base.cpp PROPERTIES COMPILE_OPTIONS "${lane_flags}")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_sources(cenote_ptx PRIVATE emulator/run_lanes_avx2.cpp emulator/run_lanes_avx512.cpp)
  set_source_files_properties(emulator/run_lanes_avx2.cpp PROPERTIES
    COMPILE_OPTIONS "${lane_flags};-mavx2;-mfma;-mprefer-vector-width=256")
  set_source_files_properties(emulator/run_lanes_avx512.cpp PROPERTIES
    COMPILE_OPTIONS "${lane_flags};-mavx2;-mfma;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mprefer-vector-width=512")
endif()

# The kernels' PTX, kept in the repository (tools/make_ptx.sh makes it), as a library of texts.
set(kernel_texts ${CMAKE_CURRENT_BINARY_DIR}/embedded.cpp)
add_custom_command(OUTPUT ${kernel_texts}
  COMMAND ${CMAKE_COMMAND} -DOUT=${kernel_texts} -DFOLDER=${CMAKE_CURRENT_SOURCE_DIR}/kernels
          -P ${CMAKE_CURRENT_SOURCE_DIR}/kernels/embed.cmake
  DEPENDS kernels/mlp.ptx kernels/reduce.ptx kernels/basic.ptx kernels/embed.cmake
  VERBATIM)
cenote_room(kernels SOURCES ${kernel_texts} USES cenote_runtime)
