#include "transports/verbs/verbs_api.h"

#include <dlfcn.h>

#include <string>

namespace cenote::transport::verbs {
namespace {

using RegMr = ibv_mr* (*)(ibv_pd*, void*, std::size_t, int);
using RegMrIova2 = ibv_mr* (*)(ibv_pd*, void*, std::size_t, std::uint64_t, unsigned);
using QueryPort = int (*)(ibv_context*, std::uint8_t, ibv_port_attr*);
using QueryGidTable = ssize_t (*)(ibv_context*, ibv_gid_entry*, std::size_t, std::uint32_t, std::size_t);

/// The table, and the functions that stand behind the entries which need a word of translation. The entries
/// have no room for a `this`; the library is opened once for the process, so that its addresses are the same
/// for every table.
struct Functions {
  RegMr reg_mr = nullptr;
  RegMrIova2 reg_mr_iova2 = nullptr;
  QueryPort query_port = nullptr;
  QueryGidTable query_gid_table = nullptr;
};

Functions find_functions(void* library) {
  return {reinterpret_cast<RegMr>(::dlsym(library, "ibv_reg_mr")),
          reinterpret_cast<RegMrIova2>(::dlsym(library, "ibv_reg_mr_iova2")),
          reinterpret_cast<QueryPort>(::dlsym(library, "ibv_query_port")),
          reinterpret_cast<QueryGidTable>(::dlsym(library, "_ibv_query_gid_table"))};
}

void* open_library() { return ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); }

const Functions& functions() {
  static const Functions found = find_functions(open_library());
  return found;
}

/// What ___ibv_query_port of the header does: the old symbol knows only a part of the structure.
int query_port(ibv_context* context, std::uint8_t port, ibv_port_attr* out) {
  *out = {};
  return functions().query_port(context, port, out);
}

ssize_t query_gid_table(ibv_context* context, ibv_gid_entry* out, std::size_t room) {
  return functions().query_gid_table(context, out, room, 0, sizeof *out);
}

/// Optional rights (relaxed ordering) are only known to the newer call, which drops those that the kernel
/// does not know.
ibv_mr* reg_mr(ibv_pd* pd, void* address, std::size_t length, unsigned access) {
  const Functions& call = functions();
  if (call.reg_mr_iova2 != nullptr && (access & IBV_ACCESS_OPTIONAL_RANGE) != 0)
    return call.reg_mr_iova2(pd, address, length, reinterpret_cast<std::uintptr_t>(address), access);
  return call.reg_mr(pd, address, length,
                     static_cast<int>(access & ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE)));
}

template <class Function>
bool find(void* library, const char* name, Function*& out) {
  out = reinterpret_cast<Function*>(::dlsym(library, name));
  return out != nullptr;
}

void fill_inline(VerbsApi& api) {
  api.poll_cq = [](ibv_cq* cq, int count, ibv_wc* out) { return cq->context->ops.poll_cq(cq, count, out); };
  api.req_notify_cq = [](ibv_cq* cq, int solicited_only) {
    return cq->context->ops.req_notify_cq(cq, solicited_only);
  };
  api.post_srq_recv = [](ibv_srq* srq, ibv_recv_wr* list, ibv_recv_wr** bad) {
    return srq->context->ops.post_srq_recv(srq, list, bad);
  };
  api.post_send = [](ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
    return qp->context->ops.post_send(qp, list, bad);
  };
}

/// The name of the first call that is missing, or null.
const char* fill(VerbsApi& api, void* library) {
#define CENOTE_VERB(entry) \
  if (!find(library, "ibv_" #entry, api.entry)) return "ibv_" #entry
  CENOTE_VERB(get_device_list);
  CENOTE_VERB(free_device_list);
  CENOTE_VERB(get_device_name);
  CENOTE_VERB(open_device);
  CENOTE_VERB(close_device);
  CENOTE_VERB(query_device);
  CENOTE_VERB(query_pkey);
  CENOTE_VERB(get_async_event);
  CENOTE_VERB(ack_async_event);
  CENOTE_VERB(alloc_pd);
  CENOTE_VERB(dealloc_pd);
  CENOTE_VERB(dereg_mr);
  CENOTE_VERB(create_comp_channel);
  CENOTE_VERB(destroy_comp_channel);
  CENOTE_VERB(create_cq);
  CENOTE_VERB(destroy_cq);
  CENOTE_VERB(get_cq_event);
  CENOTE_VERB(ack_cq_events);
  CENOTE_VERB(create_srq);
  CENOTE_VERB(destroy_srq);
  CENOTE_VERB(create_qp);
  CENOTE_VERB(modify_qp);
  CENOTE_VERB(destroy_qp);
#undef CENOTE_VERB
  (void)find(library, "ibv_reg_dmabuf_mr", api.reg_dmabuf_mr);
  if (functions().reg_mr == nullptr) return "ibv_reg_mr";
  if (functions().query_port == nullptr) return "ibv_query_port";
  if (functions().query_gid_table == nullptr) return "_ibv_query_gid_table";
  api.reg_mr = reg_mr;
  api.query_port = query_port;
  api.query_gid_table = query_gid_table;
  fill_inline(api);
  return nullptr;
}

struct StatusWords {
  const char* name;
  const char* words;
};

StatusWords words_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return {"SUCCESS", "done"};
    case IBV_WC_LOC_LEN_ERR:
      return {"LOC_LEN_ERR", "a message was longer than the buffer that waited for it"};
    case IBV_WC_LOC_QP_OP_ERR:
      return {"LOC_QP_OP_ERR", "this side's queue pair could not do it: its own port or cable is down"};
    case IBV_WC_LOC_PROT_ERR:
      return {"LOC_PROT_ERR", "this side's memory is not registered, or no longer"};
    case IBV_WC_WR_FLUSH_ERR:
      return {"WR_FLUSH_ERR", "the queue pair had failed before"};
    case IBV_WC_REM_INV_REQ_ERR:
      return {"REM_INV_REQ_ERR", "the peer's card called the request invalid"};
    case IBV_WC_REM_ACCESS_ERR:
      return {"REM_ACCESS_ERR",
              "the peer's card refused the access: the key's region was destroyed (its lease may have "
              "ended), or the key is forged"};
    case IBV_WC_REM_OP_ERR:
      return {"REM_OP_ERR", "the peer's card could not complete it"};
    case IBV_WC_RETRY_EXC_ERR:
      return {"RETRY_EXC_ERR",
              "the peer's card stopped answering: cable or port down, host lost, or its queue pair was "
              "destroyed"};
    case IBV_WC_RNR_RETRY_EXC_ERR:
      return {"RNR_RETRY_EXC_ERR", "the peer had no buffer for it, time and again"};
    case IBV_WC_FATAL_ERR:
      return {"FATAL_ERR", "this side's device failed"};
    case IBV_WC_RESP_TIMEOUT_ERR:
      return {"RESP_TIMEOUT_ERR", "the peer's card did not respond in time"};
    default:
      return {"status", "see enum ibv_wc_status"};
  }
}

}  // namespace

Result<std::shared_ptr<const VerbsApi>> load_verbs_api() {
  void* library = open_library();
  if (library == nullptr) {
    const char* why = ::dlerror();
    return fail(Error{ErrorCode::not_supported, "load libibverbs", why == nullptr ? "not found" : why}.fix(
        "install the packages libibverbs1 and ibverbs-providers"));
  }
  auto api = std::make_shared<VerbsApi>();
  if (const char* missing = fill(*api, library); missing != nullptr)
    return fail(Error{ErrorCode::not_supported, "load libibverbs", std::string("it has no ") + missing}.fix(
        "install rdma-core 28 or newer"));
  return std::shared_ptr<const VerbsApi>(std::move(api));
}

std::string explain(ibv_wc_status status) {
  const StatusWords words = words_of(status);
  const std::string number = std::to_string(static_cast<int>(status));
  return std::string(words.name) + " (" + number + "): " + words.words;
}

}  // namespace cenote::transport::verbs
