// The C interface: each function checks its arguments, calls the C++ API, and turns a Result into a status.
// One-sided operations: c_api_window.cpp.
#include "collectives/c_api.h"

#include <fmt/format.h>

#include <initializer_list>
#include <span>

using cenote::Error;
using cenote::ErrorCode;
using cenote::Result;
using cenote::c_api::bad;
using cenote::c_api::create_comm;
using cenote::c_api::deadline_of;
using cenote::c_api::guarded;
using cenote::c_api::in_its_process;
using cenote::c_api::known_part;
using cenote::c_api::started;
using cenote::c_boundary::status_of;
using cenote::collectives::Communicator;
using cenote::collectives::CommunicatorOptions;
using cenote::collectives::Devices;
using cenote::collectives::Gate;
using cenote::collectives::Request;

namespace cenote::c_api {

Result<std::unique_ptr<cenote_comm>> create_comm(const cenote_context& context,
                                                 const CommunicatorOptions& options) {
  auto made = std::make_unique<cenote_comm>();
  made->devices = context.devices;
  made->mark = context.mark;
  CENOTE_ASSIGN(made->communicator, Communicator::create(options));
  return made;
}

}  // namespace cenote::c_api

namespace {

constexpr std::uint32_t version = 0 * 10000 + 1 * 100 + 0;

std::vector<std::string> split(std::string_view list) {
  std::vector<std::string> out;
  while (!list.empty()) {
    const auto comma = std::min(list.find(','), list.size());
    if (comma > 0) out.emplace_back(list.substr(0, comma));
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return out;
}

Result<cenote::MemoryDescription> described(const cenote_buffer* buffer, const char* stage) {
  if (buffer == nullptr) return bad(stage, "a buffer is NULL");
  CENOTE_ASSIGN(auto known, known_part(buffer, stage));
  cenote::MemoryDescription memory;
  memory.address = known.address;
  memory.size = known.bytes;
  memory.home = "host";
  if (known.access == nullptr) return memory;
  CENOTE_ASSIGN(auto access, known_part(known.access, stage));
  if (access.read == nullptr || access.write == nullptr)
    return bad(stage, "device access without read or write");
  const auto outcome = [](int code, const char* what) -> Result<void> {
    if (code == 0) return {};
    Error error{ErrorCode::driver_error, what, fmt::format("the caller's function returned {}", code)};
    error.native = code;
    return cenote::fail(std::move(error));
  };
  auto reach = std::make_shared<cenote::DeviceAccess>();
  reach->read = [access, outcome](std::byte* host, std::uint64_t device, std::size_t bytes) {
    return outcome(access.read(access.user, host, device, bytes), "read device memory");
  };
  reach->write = [access, outcome](std::uint64_t device, const std::byte* host, std::size_t bytes) {
    return outcome(access.write(access.user, device, host, bytes), "write device memory");
  };
  memory.kind = cenote::MemoryKind::device;
  memory.cpu_readable = false;
  memory.home = "device";
  memory.device = std::move(reach);
  return memory;
}

/// What lies at a pointer that the caller gave: `count` elements, as often as `vectors` says.
Result<cenote::MemoryDescription> memory_at(const cenote_comm& comm, const void* pointer, std::size_t count,
                                            cenote_type type, std::size_t vectors = 1) {
  return comm.devices->describe(pointer, count * cenote::size_of(type) * vectors);
}

/// The stream that an operation follows; none is not the default stream, which is NULL.
struct Order {
  bool follows = false;
  void* stream = nullptr;
  [[nodiscard]] Result<Gate> gate(const cenote_comm& comm,
                                  std::initializer_list<cenote::MemoryDescription> buffers) const {
    if (!follows) return Gate{};
    return comm.devices->after(stream, std::span(buffers.begin(), buffers.size()));
  }
};

cenote_status allreduce(cenote_comm* comm, const void* send, void* recv, std::size_t count, cenote_type type,
                        cenote_op op, Order order, cenote_request* request) {
  return started("allreduce", comm, request, [&](Communicator& c) -> Result<Request> {
    CENOTE_ASSIGN(const auto from, memory_at(*comm, send, count, type));
    CENOTE_ASSIGN(const auto to, memory_at(*comm, recv, count, type));
    CENOTE_ASSIGN(auto gate, order.gate(*comm, {from, to}));
    return c.allreduce(from, to, count, type, op, std::move(gate));
  });
}

cenote_status allgather(cenote_comm* comm, const void* send, void* recv, std::size_t count, cenote_type type,
                        Order order, cenote_request* request) {
  return started("allgather", comm, request, [&](Communicator& c) -> Result<Request> {
    CENOTE_ASSIGN(const auto from, memory_at(*comm, send, count, type));
    CENOTE_ASSIGN(const auto to, memory_at(*comm, recv, count, type, c.size()));
    CENOTE_ASSIGN(auto gate, order.gate(*comm, {from, to}));
    return c.allgather(from, to, count, type, std::move(gate));
  });
}

cenote_status broadcast(cenote_comm* comm, void* buffer, std::size_t count, cenote_type type,
                        std::uint32_t root, Order order, cenote_request* request) {
  return started("broadcast", comm, request, [&](Communicator& c) -> Result<Request> {
    CENOTE_ASSIGN(const auto memory, memory_at(*comm, buffer, count, type));
    CENOTE_ASSIGN(auto gate, order.gate(*comm, {memory}));
    return c.broadcast(memory, count, type, root, std::move(gate));
  });
}

}  // namespace

extern "C" {

const char* cenote_last_error(void) { return cenote::c_boundary::last_error().c_str(); }

const char* cenote_status_text(cenote_status status) {
  if (status == CENOTE_SUCCESS) return "success";
  for (int code = 0; code <= static_cast<int>(ErrorCode::internal); ++code) {
    // The texts are literals, which end in a 0.
    if (status_of(static_cast<ErrorCode>(code)) == status)
      return to_string(static_cast<ErrorCode>(code)).data();
  }
  return "unknown status";
}

uint32_t cenote_version(void) { return version; }

cenote_status cenote_context_create(const cenote_context_options* options, cenote_context** context) {
  return guarded([&]() -> Result<void> {
    if (context == nullptr) return bad("create a context", "nowhere to put it");
    *context = nullptr;
    CENOTE_ASSIGN(const auto known, known_part(options, "create a context"));
    auto made = std::make_unique<cenote_context>();
    CENOTE_TRY(made->mark->set());
    if (known.transports != nullptr) made->fabric.transports = split(known.transports);
    made->host_given = known.host != nullptr;
    if (known.host != nullptr) made->fabric.tcp_host = known.host;
    if (made->fabric.transports.empty()) return bad("create a context", "no transports");
    const char* library = known.cuda_library != nullptr ? known.cuda_library : "libcuda.so.1";
    made->devices = std::make_shared<Devices>(library);
    *context = made.release();
    return {};
  });
}

void cenote_context_destroy(cenote_context* context) {
  // The thread that serves its ids is the parent's: there is nothing to join.
  if (context != nullptr && !context->mark->forked()) delete context;
}

cenote_status cenote_unique_id_create(cenote_context* context, cenote_unique_id* id) {
  return guarded([&]() -> Result<void> {
    if (context == nullptr || id == nullptr)
      return bad("create a unique id", "the context or the id is NULL");
    CENOTE_TRY(in_its_process(*context, "create a unique id"));
    CENOTE_ASSIGN(auto root, cenote::BootstrapRoot::create(context->fabric.tcp_host));
    const auto text = root->id().text();
    if (text.size() >= sizeof id->text) return bad("create a unique id", "the host's name is too long");
    std::memset(id->text, 0, sizeof id->text);
    std::memcpy(id->text, text.data(), text.size());
    const std::lock_guard lock(context->mutex);
    context->roots.push_back(std::move(root));
    return {};
  });
}

cenote_status cenote_comm_create(cenote_context* context, const cenote_comm_options* options,
                                 cenote_comm** comm) {
  return guarded([&]() -> Result<void> {
    if (context == nullptr || options == nullptr || comm == nullptr) {
      return bad("create a communicator", "the context, the options or the place to put it is NULL");
    }
    *comm = nullptr;
    CENOTE_TRY(in_its_process(*context, "create a communicator"));
    CENOTE_ASSIGN(const auto known, known_part(options, "create a communicator"));
    CommunicatorOptions wanted;
    wanted.rank = known.rank;
    wanted.size = known.ranks;
    wanted.fabric = context->fabric;
    wanted.check = known.no_check == 0;
    if (known.algorithm != nullptr) wanted.algorithm = known.algorithm;
    if (known.init_timeout_ms != 0) wanted.init_timeout = std::chrono::milliseconds(known.init_timeout_ms);
    if (known.operation_timeout_ms != 0) {
      wanted.operation_timeout = std::chrono::milliseconds(known.operation_timeout_ms);
    }
    if (known.ranks > 1) {
      const std::string_view text(known.id.text, strnlen(known.id.text, sizeof known.id.text));
      CENOTE_ASSIGN(wanted.id, cenote::UniqueId::parse(text));
    }
    CENOTE_ASSIGN(auto made, create_comm(*context, wanted));
    *comm = made.release();
    return {};
  });
}

void cenote_comm_destroy(cenote_comm* comm) {
  if (comm != nullptr && !comm->mark->forked()) delete comm;
}

void cenote_comm_abort(cenote_comm* comm, const char* reason) {
  if (comm == nullptr || comm->mark->forked()) return;
  (void)guarded([&]() -> Result<void> {
    comm->communicator->abort(reason != nullptr ? reason : "no reason given");
    return {};
  });
}

uint32_t cenote_comm_rank(const cenote_comm* comm) {
  return comm != nullptr ? comm->communicator->rank() : 0;
}
uint32_t cenote_comm_ranks(const cenote_comm* comm) {
  return comm != nullptr ? comm->communicator->size() : 0;
}

cenote_status cenote_allreduce(cenote_comm* comm, const void* send, void* recv, size_t count,
                               cenote_type type, cenote_op op, cenote_request* request) {
  return allreduce(comm, send, recv, count, type, op, {}, request);
}

cenote_status cenote_allgather(cenote_comm* comm, const void* send, void* recv, size_t count,
                               cenote_type type, cenote_request* request) {
  return allgather(comm, send, recv, count, type, {}, request);
}

cenote_status cenote_broadcast(cenote_comm* comm, void* buffer, size_t count, cenote_type type, uint32_t root,
                               cenote_request* request) {
  return broadcast(comm, buffer, count, type, root, {}, request);
}

cenote_status cenote_allreduce_stream(cenote_comm* comm, const void* send, void* recv, size_t count,
                                      cenote_type type, cenote_op op, void* stream, cenote_request* request) {
  return allreduce(comm, send, recv, count, type, op, {true, stream}, request);
}

cenote_status cenote_allgather_stream(cenote_comm* comm, const void* send, void* recv, size_t count,
                                      cenote_type type, void* stream, cenote_request* request) {
  return allgather(comm, send, recv, count, type, {true, stream}, request);
}

cenote_status cenote_broadcast_stream(cenote_comm* comm, void* buffer, size_t count, cenote_type type,
                                      uint32_t root, void* stream, cenote_request* request) {
  return broadcast(comm, buffer, count, type, root, {true, stream}, request);
}

cenote_status cenote_barrier(cenote_comm* comm, cenote_request* request) {
  return started("barrier", comm, request, [](Communicator& c) { return c.barrier(); });
}

cenote_status cenote_allreduce_buffers(cenote_comm* comm, const cenote_buffer* send,
                                       const cenote_buffer* recv, size_t count, cenote_type type,
                                       cenote_op op, cenote_request* request) {
  return started("allreduce", comm, request, [&](Communicator& c) -> Result<Request> {
    CENOTE_ASSIGN(const auto from, described(send, "allreduce"));
    CENOTE_ASSIGN(const auto to, described(recv, "allreduce"));
    return c.allreduce(from, to, count, type, op);
  });
}

cenote_status cenote_allgather_buffers(cenote_comm* comm, const cenote_buffer* send,
                                       const cenote_buffer* recv, size_t count, cenote_type type,
                                       cenote_request* request) {
  return started("allgather", comm, request, [&](Communicator& c) -> Result<Request> {
    CENOTE_ASSIGN(const auto from, described(send, "allgather"));
    CENOTE_ASSIGN(const auto to, described(recv, "allgather"));
    return c.allgather(from, to, count, type);
  });
}

cenote_status cenote_broadcast_buffer(cenote_comm* comm, const cenote_buffer* buffer, size_t count,
                                      cenote_type type, uint32_t root, cenote_request* request) {
  return started("broadcast", comm, request, [&](Communicator& c) -> Result<Request> {
    CENOTE_ASSIGN(const auto memory, described(buffer, "broadcast"));
    return c.broadcast(memory, count, type, root);
  });
}

cenote_status cenote_test(cenote_comm* comm, cenote_request* request, int* done) {
  return guarded([&]() -> Result<void> {
    if (comm == nullptr || request == nullptr || done == nullptr) return bad("test", "an argument is NULL");
    *done = 0;
    CENOTE_TRY(in_its_process(*comm, "test"));
    Request of{std::exchange(request->sequence, 0)};
    CENOTE_ASSIGN(const bool complete, comm->communicator->test(of));
    *done = complete ? 1 : 0;
    request->sequence = of.sequence;
    return {};
  });
}

cenote_status cenote_wait(cenote_comm* comm, cenote_request* request, uint32_t timeout_ms) {
  return guarded([&]() -> Result<void> {
    if (comm == nullptr || request == nullptr) return bad("wait", "the communicator or the request is NULL");
    CENOTE_TRY(in_its_process(*comm, "wait"));
    Request of{std::exchange(request->sequence, 0)};
    return comm->communicator->wait(of, deadline_of(timeout_ms));
  });
}

}  // extern "C"
