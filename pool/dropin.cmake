# The drop-ins: libcuda.so.1 (the driver API over a leased GPU) and libcudart.so.13 (the runtime API over
# whichever libcuda.so.1 the program finds). Neither brings gRPC, and neither exports anything else.
cenote_room(session
  SOURCES dropin/session_wire.cpp dropin/session_server.cpp dropin/session_client.cpp
  USES cenote_remote)
# The client of the pool without gRPC: it asks a helper process. The helper's own side needs gRPC: agent.cmake.
cenote_room(helper
  SOURCES dropin/helper_wire.cpp dropin/helper_process.cpp dropin/helper_channel.cpp dropin/helper_client.cpp
  USES cenote_session fmt::fmt ${CMAKE_DL_LIBS})

# libcenote-pool.so: that client as a C ABI.
add_library(cenote_pool_shared SHARED c_api/leases.cpp c_api/gpus.cpp)
set_source_files_properties(c_api/leases.cpp c_api/gpus.cpp PROPERTIES COMPILE_OPTIONS -g)  # types for abidw (tests/abi)
math(EXPR version_number "${PROJECT_VERSION_MAJOR} * 10000 + ${PROJECT_VERSION_MINOR} * 100 + ${PROJECT_VERSION_PATCH}")
target_compile_definitions(cenote_pool_shared PRIVATE CENOTE_VERSION_NUMBER=${version_number})
target_link_libraries(cenote_pool_shared PRIVATE cenote_helper)
target_link_options(cenote_pool_shared PRIVATE
  -Wl,--exclude-libs,ALL -Wl,-Bsymbolic -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/c_api/exports.map)
set_target_properties(cenote_pool_shared PROPERTIES OUTPUT_NAME cenote-pool
  SOVERSION ${PROJECT_VERSION_MAJOR} VERSION ${PROJECT_VERSION} LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/c_api/exports.map)

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
