# cenote_pool_proto: the control plane's messages and services, generated from proto/cenote.proto, and the map
# between Error and grpc::Status. Generated code is compiled without our warnings.
if(NOT CENOTE_WITH_GRPC)
  return()
endif()

set(CENOTE_GENERATED ${CMAKE_BINARY_DIR}/generated)
set(proto ${PROJECT_SOURCE_DIR}/pool/proto/cenote.proto)
set(generated
  ${CENOTE_GENERATED}/pool/proto/cenote.pb.cc ${CENOTE_GENERATED}/pool/proto/cenote.pb.h
  ${CENOTE_GENERATED}/pool/proto/cenote.grpc.pb.cc ${CENOTE_GENERATED}/pool/proto/cenote.grpc.pb.h)
file(MAKE_DIRECTORY ${CENOTE_GENERATED})
add_custom_command(
  OUTPUT ${generated}
  COMMAND protobuf::protoc -I ${PROJECT_SOURCE_DIR} --cpp_out=${CENOTE_GENERATED} --grpc_out=${CENOTE_GENERATED}
          --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin> ${proto}
  DEPENDS ${proto} VERBATIM)
add_custom_target(cenote_generated DEPENDS ${generated})  # what clang-tidy needs to see
add_library(cenote_pool_generated STATIC ${generated})
target_include_directories(cenote_pool_generated SYSTEM PUBLIC ${CENOTE_GENERATED})
target_link_libraries(cenote_pool_generated PUBLIC gRPC::grpc++ protobuf::libprotobuf Threads::Threads)
add_dependencies(cenote_pool_generated cenote_generated)
target_compile_options(cenote_pool_generated PRIVATE -w)
if(CENOTE_SANITIZE)
  # Instrumented like the rest, so that a container that crosses the border is annotated on both sides.
  target_compile_options(cenote_pool_generated PRIVATE -fsanitize=${CENOTE_SANITIZE} -fno-omit-frame-pointer)
endif()

cenote_room(pool_proto SOURCES proto/status.cpp proto/channel.cpp USES cenote_pool_generated cenote_pool_core)
