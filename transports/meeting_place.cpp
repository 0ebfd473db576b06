#include "transports/meeting_place.h"

namespace cenote::transport {

Result<void> can_meet(const HostIdentity& here, const MeetingPlace& mine, const HostIdentity& there,
                      const MeetingPlace& theirs, std::string_view over) {
  if (!theirs.loopback() && !mine.loopback()) return {};
  if (here.boot_id == there.boot_id && here.network_space == there.network_space) return {};
  return fail(Error{ErrorCode::not_supported, "reach peer over " + std::string(over),
                    (theirs.loopback() ? "it listens only on its loopback address " + theirs.host
                                       : "this side listens only on its loopback address " + mine.host) +
                        ", and it runs on another host or in another network namespace"}
                  .fix("let both sides listen on an address of their network: the setting tcp.host"));
}

Result<MeetingAddress> MeetingAddress::parse(std::span<const std::byte> bytes, std::string_view kind) {
  Reader in(bytes);
  MeetingAddress out;
  CENOTE_ASSIGN(out.header, AddressHeader::unpack(in, kind));
  out.place.host = in.text();
  out.place.port = in.get<std::uint16_t>();
  if (!in.finished())
    return fail(ErrorCode::invalid_argument, "read peer address",
                "not a whole " + std::string(kind) + " address");
  return out;
}

Bytes MeetingAddress::bytes() const {
  Writer out;
  header.pack(out);
  out.text(place.host).put(place.port);
  return out.take();
}

}  // namespace cenote::transport
