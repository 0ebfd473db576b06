# cenote_broker: the broker's gRPC service over its core.
if(CENOTE_WITH_GRPC)
  cenote_room(broker SOURCES broker/service.cpp broker/server.cpp USES cenote_pool_proto cenote_pool_core)
endif()
