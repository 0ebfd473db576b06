#include "pool/dropin/helper_wire.h"

#include <fmt/format.h>

#include <utility>

#include "pool/dropin/session_wire.h"

namespace cenote::pool::dropin {
namespace {

// A message's kind is its place in the variant.
using Kind = std::uint8_t;

void put(Writer& out, const ConnectAsk& ask) {
  out.put(ask.protocol).put(static_cast<std::uint32_t>(ask.settings.size()));
  for (const auto& setting : ask.settings) out.text(setting);
}
void take(Reader& in, ConnectAsk& ask) {
  ask.protocol = in.get<std::uint32_t>();
  for (auto left = in.get<std::uint32_t>(); left > 0 && !in.bad(); --left) ask.settings.push_back(in.text());
}

void put(Writer& out, const LeaseAsk& ask) {
  out.put(ask.gpus).text(ask.model).put(ask.memory_bytes).put(ask.ttl_ms).text(ask.note).put(ask.wait_ms);
}
void take(Reader& in, LeaseAsk& ask) {
  ask.gpus = in.get<std::uint32_t>();
  ask.model = in.text();
  ask.memory_bytes = in.get<std::uint64_t>();
  ask.ttl_ms = in.get<std::uint32_t>();
  ask.note = in.text();
  ask.wait_ms = in.get<std::uint32_t>();
}

void put(Writer& out, const AdoptAsk& ask) { out.text(ask.file); }
void take(Reader& in, AdoptAsk& ask) { ask.file = in.text(); }

void put(Writer& out, const OpenAsk& ask) { out.put(ask.lease).blob(ask.fabric_address); }
void take(Reader& in, OpenAsk& ask) {
  ask.lease = in.get<LeaseNumber>();
  const auto address = in.blob();
  ask.fabric_address.assign(address.begin(), address.end());
}

void put(Writer& out, const ReleaseAsk& ask) { out.put(ask.lease); }
void take(Reader& in, ReleaseAsk& ask) { ask.lease = in.get<LeaseNumber>(); }
void put(Writer& out, const ForgetAsk& ask) { out.put(ask.lease); }
void take(Reader& in, ForgetAsk& ask) { ask.lease = in.get<LeaseNumber>(); }

void put(Writer& out, const ReadyReply& reply) { out.put(reply.pid); }
void take(Reader& in, ReadyReply& reply) { reply.pid = in.get<std::int32_t>(); }

void put(Writer& out, const LeaseReply& reply) {
  out.put(reply.lease).text(reply.id).put(static_cast<std::uint32_t>(reply.gpus.size()));
  for (const auto& gpu : reply.gpus) out.text(gpu.uuid).text(gpu.model).text(gpu.agent).put(gpu.memory_bytes);
}
void take(Reader& in, LeaseReply& reply) {
  reply.lease = in.get<LeaseNumber>();
  reply.id = in.text();
  for (auto left = in.get<std::uint32_t>(); left > 0 && !in.bad(); --left) {
    auto& gpu = reply.gpus.emplace_back();
    gpu.uuid = in.text();
    gpu.model = in.text();
    gpu.agent = in.text();
    gpu.memory_bytes = in.get<std::uint64_t>();
  }
}

void put(Writer& out, const WorkersReply& reply) { put_workers(out, reply.workers); }
void take(Reader& in, WorkersReply& reply) { reply.workers = take_workers(in); }
void put(Writer&, const DoneReply&) {}
void take(Reader&, DoneReply&) {}
void put(Writer& out, const FailedReply& reply) { put_error(out, reply.error); }
void take(Reader& in, FailedReply& reply) { reply.error = take_error(in); }
void put(Writer& out, const LostReply& reply) {
  out.put(reply.lease);
  put_error(out, reply.error);
}
void take(Reader& in, LostReply& reply) {
  reply.lease = in.get<LeaseNumber>();
  reply.error = take_error(in);
}

template <class Variant>
void put_variant(Writer& out, const Variant& value) {
  out.put(static_cast<Kind>(value.index()));
  std::visit([&](const auto& message) { put(out, message); }, value);
}

// False: no such kind.
template <class Variant, std::size_t at = 0>
bool take_variant(Reader& in, Kind kind, Variant& value) {
  if constexpr (at == std::variant_size_v<Variant>) {
    return false;
  } else {
    if (kind != at) return take_variant<Variant, at + 1>(in, kind, value);
    take(in, value.template emplace<at>());
    return true;
  }
}

tl::unexpected<Error> malformed(const char* what, std::size_t bytes) {
  return fail(ErrorCode::protocol_error, what, fmt::format("malformed message of {} bytes", bytes));
}

}  // namespace

Bytes encode(const Request& request) {
  Writer out;
  out.put(request.id).put(request.timeout_ms);
  put_variant(out, request.ask);
  return out.take();
}

Bytes encode(const Reply& reply) {
  Writer out;
  out.put(reply.id);
  put_variant(out, reply.body);
  return out.take();
}

Result<Request> decode_request(std::span<const std::byte> frame) {
  Reader in(frame);
  Request request;
  request.id = in.get<std::uint64_t>();
  request.timeout_ms = in.get<std::uint32_t>();
  const auto kind = in.get<Kind>();
  if (in.bad() || !take_variant(in, kind, request.ask) || !in.finished())
    return malformed("read what the program asks", frame.size());
  return request;
}

Result<Reply> decode_helper_reply(std::span<const std::byte> frame) {
  Reader in(frame);
  Reply reply;
  reply.id = in.get<std::uint64_t>();
  const auto kind = in.get<Kind>();
  if (in.bad() || !take_variant(in, kind, reply.body) || !in.finished())
    return malformed("read the pool helper's answer", frame.size());
  return reply;
}

}  // namespace cenote::pool::dropin
