# The drop-ins: libcuda.so.1 (the driver API over a leased GPU) and libcudart.so.13 (the runtime API over
# whichever libcuda.so.1 the program finds). Neither brings gRPC, and neither exports anything else.
cenote_room(session
  SOURCES dropin/session_wire.cpp dropin/session_server.cpp dropin/session_client.cpp
  USES cenote_remote)

set(dropin_folder ${CMAKE_BINARY_DIR}/lib/dropin)

add_library(cenote_dropin_cuda SHARED dropin/libcuda/supplier.cpp $<TARGET_OBJECTS:cenote_cuda_abi>)
target_link_libraries(cenote_dropin_cuda PRIVATE cenote_session)
set_target_properties(cenote_dropin_cuda PROPERTIES OUTPUT_NAME cuda SOVERSION 1 VERSION 1
  LIBRARY_OUTPUT_DIRECTORY ${dropin_folder})
target_link_options(cenote_dropin_cuda PRIVATE
  -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/dropin/libcuda/exports.map)

add_library(cenote_dropin_cudart SHARED
  dropin/cudart/runtime.cpp dropin/cudart/errors.cpp dropin/cudart/api_device.cpp dropin/cudart/api_memory.cpp
  dropin/cudart/api_stream.cpp dropin/cudart/api_launch.cpp dropin/cudart/unserved.cpp)
target_link_libraries(cenote_dropin_cudart PRIVATE cenote_options cenote_cuda)
set_target_properties(cenote_dropin_cudart PROPERTIES OUTPUT_NAME cudart SOVERSION 13 VERSION 13
  LIBRARY_OUTPUT_DIRECTORY ${dropin_folder})
target_link_options(cenote_dropin_cudart PRIVATE
  -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/dropin/cudart/exports.map)
