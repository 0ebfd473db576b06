// VerbsApi: every call of libibverbs that Cenote makes, as a table of function pointers. The real one opens
// libibverbs.so.1 at run time; tests put a provider of their own in its place that refuses, delays or fails
// any of them. Names, arguments and results are those of libibverbs (its manual pages), types those of
// <infiniband/verbs.h>.
//
// Calls that the header makes inline through a context's operations (poll_cq, post_send ...) are entries
// like the others: they cost one more indirect call than the header's.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

#include "runtime/result.h"

namespace cenote::transport::verbs {

struct VerbsApi {
  // Devices.
  ibv_device** (*get_device_list)(int* count) = nullptr;
  void (*free_device_list)(ibv_device** list) = nullptr;
  const char* (*get_device_name)(ibv_device* device) = nullptr;
  ibv_context* (*open_device)(ibv_device* device) = nullptr;
  int (*close_device)(ibv_context* context) = nullptr;
  int (*query_device)(ibv_context* context, ibv_device_attr* out) = nullptr;
  int (*query_port)(ibv_context* context, std::uint8_t port, ibv_port_attr* out) = nullptr;
  /// Valid entries of all ports: how many, or -errno.
  ssize_t (*query_gid_table)(ibv_context* context, ibv_gid_entry* out, std::size_t room) = nullptr;
  int (*query_pkey)(ibv_context* context, std::uint8_t port, int index, __be16* out) = nullptr;
  int (*get_async_event)(ibv_context* context, ibv_async_event* out) = nullptr;
  void (*ack_async_event)(ibv_async_event* event) = nullptr;
  // Memory.
  ibv_pd* (*alloc_pd)(ibv_context* context) = nullptr;
  int (*dealloc_pd)(ibv_pd* pd) = nullptr;
  ibv_mr* (*reg_mr)(ibv_pd* pd, void* address, std::size_t length, unsigned access) = nullptr;
  /// Null where libibverbs is older than dma-bufs.
  ibv_mr* (*reg_dmabuf_mr)(ibv_pd* pd, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
                           int access) = nullptr;
  int (*dereg_mr)(ibv_mr* mr) = nullptr;
  // Completions.
  ibv_comp_channel* (*create_comp_channel)(ibv_context* context) = nullptr;
  int (*destroy_comp_channel)(ibv_comp_channel* channel) = nullptr;
  ibv_cq* (*create_cq)(ibv_context* context, int entries, void* user, ibv_comp_channel* channel,
                       int vector) = nullptr;
  int (*destroy_cq)(ibv_cq* cq) = nullptr;
  int (*poll_cq)(ibv_cq* cq, int count, ibv_wc* out) = nullptr;
  int (*req_notify_cq)(ibv_cq* cq, int solicited_only) = nullptr;
  int (*get_cq_event)(ibv_comp_channel* channel, ibv_cq** cq, void** user) = nullptr;
  void (*ack_cq_events)(ibv_cq* cq, unsigned count) = nullptr;
  // Queues.
  ibv_srq* (*create_srq)(ibv_pd* pd, ibv_srq_init_attr* attributes) = nullptr;
  int (*destroy_srq)(ibv_srq* srq) = nullptr;
  int (*post_srq_recv)(ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) = nullptr;
  ibv_qp* (*create_qp)(ibv_pd* pd, ibv_qp_init_attr* attributes) = nullptr;
  int (*modify_qp)(ibv_qp* qp, ibv_qp_attr* attributes, int mask) = nullptr;
  int (*destroy_qp)(ibv_qp* qp) = nullptr;
  int (*post_send)(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) = nullptr;
};

/// The table of the libibverbs that this machine has. Thread-safe; each call makes its own table, the library
/// is opened once and stays. Errors: not_supported (no libibverbs.so.1, or one without a call that is needed;
/// the remedy names the package).
Result<std::shared_ptr<const VerbsApi>> load_verbs_api();

/// What a completion's status means and what it usually comes from, in words; the name of the status first.
std::string explain(ibv_wc_status status);

}  // namespace cenote::transport::verbs
