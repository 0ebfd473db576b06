# The PTX parser and the execution of kernels on the CPU.
cenote_room(ptx
  SOURCES
    ptx/program.cpp
  USES cenote_runtime PkgConfig::zstd)
