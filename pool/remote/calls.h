// The schema of the remote-CUDA protocol: every command, its fields in the order of the wire, and whether it
// is answered. There is no opcode without a row here; structs, codec and documentation are made from this
// table.
//
// A lane is one device of one worker: a ring of commands to the worker, a ring of answers back. Commands of a
// lane are executed in order; lanes are independent of each other except for `lane_wait`. Handles (contexts,
// streams, events, modules, functions, communicators) are small numbers that the client chooses, each kind
// counted per lane. Streams 0, 1 and 2 are CUDA's own (default, legacy, per thread).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <variant>

namespace cenote::pool::remote {

using Blob = std::span<const std::byte>;  ///< u32 length and bytes; decoded: a view into the input
using Text = std::string_view;            ///< the same, as text

/// Whether a command is answered by a `result`: never, always, or when its field `request` is not 0.
enum class Answer : std::uint8_t { never, always, if_asked };

// CALL(Struct, name, answer, fields): F(type, field).
// clang-format off
#define CENOTE_REMOTE_CALLS(CALL, F)                                                                                    \
  /* session */                                                                                                         \
  CALL(Hello, hello, always, F(std::uint32_t, version) F(std::uint32_t, lanes) F(std::uint32_t, slots) F(Blob, key))     \
  CALL(Welcome, welcome, never, F(std::uint32_t, version) F(std::uint32_t, lanes) F(std::uint32_t, slots) F(Blob, key)) \
  CALL(Goodbye, goodbye, never, )                                                                                       \
  CALL(DeviceInfo, device_info, always, F(std::uint64_t, request))                                                      \
  CALL(RangeReserve, range_reserve, always, F(std::uint64_t, request) F(std::uint64_t, hint) F(std::uint64_t, bytes))   \
  CALL(LaneWait, lane_wait, never, F(std::uint32_t, lane) F(std::uint64_t, commands))                                   \
  /* contexts */                                                                                                        \
  CALL(CtxCreate, ctx_create, always, F(std::uint64_t, request) F(std::uint32_t, context) F(std::uint32_t, flags))      \
  CALL(CtxDestroy, ctx_destroy, always, F(std::uint64_t, request) F(std::uint32_t, context))                            \
  CALL(CtxSelect, ctx_select, never, F(std::uint32_t, context))                                                         \
  CALL(CtxSync, ctx_sync, always, F(std::uint64_t, request))                                                            \
  CALL(CtxPeer, ctx_peer, always, F(std::uint64_t, request) F(std::uint32_t, lane) F(std::uint32_t, context))           \
  /* memory */                                                                                                          \
  CALL(MemInfo, mem_info, always, F(std::uint64_t, request))                                                            \
  CALL(MemAlloc, mem_alloc, if_asked, F(std::uint64_t, request) F(std::uint64_t, address) F(std::uint64_t, bytes))      \
  CALL(MemFree, mem_free, never, F(std::uint64_t, address) F(std::uint64_t, bytes))                                     \
  CALL(Drain, drain, never, )                                                                                           \
  CALL(VmmCreate, vmm_create, always, F(std::uint64_t, request) F(std::uint32_t, handle) F(std::uint64_t, bytes))       \
  CALL(VmmRelease, vmm_release, always, F(std::uint64_t, request) F(std::uint32_t, handle))                             \
  CALL(VmmMap, vmm_map, always, F(std::uint64_t, request) F(std::uint64_t, address) F(std::uint64_t, bytes)             \
       F(std::uint64_t, offset) F(std::uint32_t, handle))                                                               \
  CALL(VmmUnmap, vmm_unmap, always, F(std::uint64_t, request) F(std::uint64_t, address) F(std::uint64_t, bytes))        \
  CALL(VmmAccess, vmm_access, always, F(std::uint64_t, request) F(std::uint64_t, address) F(std::uint64_t, bytes)       \
       F(std::uint32_t, lane))                                                                                          \
  CALL(FlushWrites, flush_writes, always, F(std::uint64_t, request))                                                    \
  /* copies: `upload` carries its bytes, `upload_bulk` names a part of the batch's bulk area */                         \
  CALL(Upload, upload, never, F(std::uint64_t, dst) F(std::uint32_t, stream) F(Blob, bytes))                            \
  CALL(UploadBulk, upload_bulk, never, F(std::uint64_t, dst) F(std::uint32_t, stream) F(std::uint32_t, offset)          \
       F(std::uint32_t, count))                                                                                         \
  CALL(Download, download, always, F(std::uint64_t, request) F(std::uint64_t, src) F(std::uint64_t, bytes)              \
       F(std::uint32_t, stream))                                                                                        \
  CALL(Copy, copy, never, F(std::uint64_t, dst) F(std::uint64_t, src) F(std::uint64_t, bytes) F(std::uint32_t, stream)) \
  CALL(Fill, fill, never, F(std::uint64_t, dst) F(std::uint32_t, value) F(std::uint32_t, width)                         \
       F(std::uint64_t, count) F(std::uint32_t, stream))                                                                \
  /* streams and events */                                                                                              \
  CALL(StreamCreate, stream_create, never, F(std::uint32_t, stream) F(std::uint32_t, flags))                            \
  CALL(StreamDestroy, stream_destroy, never, F(std::uint32_t, stream))                                                  \
  CALL(StreamSync, stream_sync, always, F(std::uint64_t, request) F(std::uint32_t, stream))                             \
  CALL(StreamQuery, stream_query, always, F(std::uint64_t, request) F(std::uint32_t, stream))                           \
  CALL(StreamWaitEvent, stream_wait_event, never, F(std::uint32_t, stream) F(std::uint32_t, lane)                       \
       F(std::uint32_t, event))                                                                                         \
  CALL(StreamWaitValue, stream_wait_value, never, F(std::uint32_t, stream) F(std::uint64_t, address)                    \
       F(std::uint32_t, value) F(std::uint32_t, flags))                                                                 \
  CALL(StreamWriteValue, stream_write_value, never, F(std::uint32_t, stream) F(std::uint64_t, address)                  \
       F(std::uint32_t, value) F(std::uint32_t, flags))                                                                 \
  CALL(HostFunc, host_func, always, F(std::uint64_t, request) F(std::uint32_t, stream) F(std::uint64_t, id))            \
  CALL(HostFuncDone, host_func_done, never, F(std::uint64_t, id) F(std::uint32_t, lane))                                                       \
  CALL(EventCreate, event_create, never, F(std::uint32_t, event) F(std::uint32_t, flags))                               \
  CALL(EventDestroy, event_destroy, never, F(std::uint32_t, event))                                                     \
  CALL(EventRecord, event_record, never, F(std::uint32_t, event) F(std::uint32_t, stream))                              \
  CALL(EventSync, event_sync, always, F(std::uint64_t, request) F(std::uint32_t, event))                                \
  CALL(EventQuery, event_query, always, F(std::uint64_t, request) F(std::uint32_t, event))                              \
  CALL(EventElapsed, event_elapsed, always, F(std::uint64_t, request) F(std::uint32_t, start) F(std::uint32_t, end))    \
  /* modules and launches: `module_data` pieces make the image that `module_load` of that number loads */               \
  CALL(ModuleData, module_data, never, F(std::uint32_t, module) F(Blob, bytes))                                         \
  CALL(ModuleLoad, module_load, always, F(std::uint64_t, request) F(std::uint32_t, module) F(std::uint64_t, bytes)      \
       F(std::uint32_t, containers))                                                                                     \
  CALL(ModuleUnload, module_unload, never, F(std::uint32_t, module))                                                    \
  CALL(ModuleGlobal, module_global, always, F(std::uint64_t, request) F(std::uint32_t, module) F(Text, name))           \
  CALL(FunctionGet, function_get, always, F(std::uint64_t, request) F(std::uint32_t, module)                            \
       F(std::uint32_t, function) F(Text, name))                                                                        \
  CALL(FunctionAttr, function_attr, always, F(std::uint64_t, request) F(std::uint32_t, function)                        \
       F(std::int32_t, attribute))                                                                                      \
  CALL(FunctionSet, function_set, always, F(std::uint64_t, request) F(std::uint32_t, function)                          \
       F(std::int32_t, attribute) F(std::int32_t, value))                                                               \
  CALL(Launch, launch, never, F(std::uint32_t, function) F(std::uint32_t, stream)                                       \
       F(std::uint32_t, grid_x) F(std::uint32_t, grid_y) F(std::uint32_t, grid_z)                                       \
       F(std::uint32_t, block_x) F(std::uint32_t, block_y) F(std::uint32_t, block_z)                                    \
       F(std::uint32_t, shared_bytes) F(Blob, params))                                                                  \
  /* pooled communicators: one rank each */                                                                             \
  CALL(CommId, comm_id, always, F(std::uint64_t, request) F(std::uint32_t, comm))                                       \
  CALL(CommCreate, comm_create, always, F(std::uint64_t, request) F(std::uint32_t, comm) F(std::uint32_t, rank)         \
       F(std::uint32_t, size) F(std::uint32_t, timeout_ms) F(Text, id))                                                 \
  CALL(CommAllreduce, comm_allreduce, never, F(std::uint32_t, comm) F(std::uint64_t, send) F(std::uint64_t, recv)       \
       F(std::uint64_t, count) F(std::uint32_t, type) F(std::uint32_t, op) F(std::uint32_t, stream))                    \
  CALL(CommBroadcast, comm_broadcast, never, F(std::uint32_t, comm) F(std::uint64_t, buffer) F(std::uint64_t, count)    \
       F(std::uint32_t, type) F(std::uint32_t, root) F(std::uint32_t, stream))                                          \
  CALL(CommStats, comm_stats, always, F(std::uint64_t, request) F(std::uint32_t, comm))                                 \
  CALL(CommFailure, comm_failure, always, F(std::uint64_t, request) F(std::uint32_t, comm))                             \
  CALL(CommAbort, comm_abort, never, F(std::uint32_t, comm) F(Text, reason))                                            \
  CALL(CommDestroy, comm_destroy, never, F(std::uint32_t, comm))                                                        \
  /* from the worker: the end of a request, its bytes, and what nobody asked for */                                     \
  CALL(Answered, result, never, F(std::uint64_t, request) F(std::int32_t, status) F(std::uint64_t, a)                   \
       F(std::uint64_t, b) F(Text, detail))                                                                             \
  CALL(Data, data, never, F(std::uint64_t, request) F(Blob, bytes))                                                     \
  CALL(DataBulk, data_bulk, never, F(std::uint64_t, request) F(std::uint32_t, offset) F(std::uint32_t, count))          \
  CALL(AsyncError, async_error, never, F(std::uint32_t, context) F(std::int32_t, status) F(Text, detail))               \
  CALL(HostCall, host_call, never, F(std::uint64_t, id))                                                                \
  /* messages beside the rings, as host_func_done: the client asks for a sign of life, the worker gives it; `busy`     \
     says beforehand that a call of its driver may take long, until the next pong */                                    \
  CALL(Ping, ping, never, )                                                                                             \
  CALL(Pong, pong, never, )                                                                                             \
  CALL(Busy, busy, never, )
// clang-format on

#define CENOTE_REMOTE_ENUM(Struct, name, answer, fields) name,
#define CENOTE_REMOTE_NO_FIELD(type, field)
/// Values are the wire's; version 1 of the protocol is this order.
enum class Opcode : std::uint16_t {
  none = 0,
  CENOTE_REMOTE_CALLS(CENOTE_REMOTE_ENUM, CENOTE_REMOTE_NO_FIELD) count
};
#undef CENOTE_REMOTE_ENUM

#define CENOTE_REMOTE_FIELD(type, field) type field{};
#define CENOTE_REMOTE_VISIT(type, field) visitor(#field, self.field);
#define CENOTE_REMOTE_STRUCT(Struct, name, answered, fields) \
  struct Struct {                                            \
    static constexpr Opcode opcode = Opcode::name;           \
    static constexpr Answer answer = Answer::answered;       \
    static constexpr const char* label = #name;              \
    fields                                                   \
  };
CENOTE_REMOTE_CALLS(CENOTE_REMOTE_STRUCT, CENOTE_REMOTE_FIELD)
#undef CENOTE_REMOTE_STRUCT

// NOLINTBEGIN(bugprone-macro-parentheses): a type's name takes none
/// Calls visitor(name, field) for each field, in the order of the wire. `self` may be const.
#define CENOTE_REMOTE_VISITOR(Struct, name, answered, fields)                                  \
  template <class Visitor>                                                                     \
  void visit_fields([[maybe_unused]] Struct& self, [[maybe_unused]] Visitor&& visitor) {       \
    fields                                                                                     \
  }                                                                                            \
  template <class Visitor>                                                                     \
  void visit_fields([[maybe_unused]] const Struct& self, [[maybe_unused]] Visitor&& visitor) { \
    fields                                                                                     \
  }
CENOTE_REMOTE_CALLS(CENOTE_REMOTE_VISITOR, CENOTE_REMOTE_VISIT)
#undef CENOTE_REMOTE_VISITOR
// NOLINTEND(bugprone-macro-parentheses)

#define CENOTE_REMOTE_ALTERNATIVE(Struct, name, answered, fields) , Struct
/// Any command, decoded.
using Command =
    std::variant<std::monostate CENOTE_REMOTE_CALLS(CENOTE_REMOTE_ALTERNATIVE, CENOTE_REMOTE_NO_FIELD)>;
#undef CENOTE_REMOTE_ALTERNATIVE

inline constexpr std::uint32_t protocol_version = 3;

}  // namespace cenote::pool::remote
