#include "transports/handshake.h"

#include <bit>
#include <cstring>

#include "runtime/process.h"

namespace cenote::transport {
namespace {

constexpr std::uint32_t challenge_magic = 0x31544e43;  // "CNT1"

struct SipState {
  std::uint64_t v0, v1, v2, v3;
  void round() {
    v0 += v1, v1 = std::rotl(v1, 13), v1 ^= v0, v0 = std::rotl(v0, 32);
    v2 += v3, v3 = std::rotl(v3, 16), v3 ^= v2;
    v0 += v3, v3 = std::rotl(v3, 21), v3 ^= v0;
    v2 += v1, v1 = std::rotl(v1, 17), v1 ^= v2, v2 = std::rotl(v2, 32);
  }
  void absorb(std::uint64_t word) {
    v3 ^= word;
    round(), round();
    v0 ^= word;
  }
  [[nodiscard]] std::uint64_t squeeze() {
    for (int i = 0; i < 4; ++i) round();
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

}  // namespace

Mac siphash128(const Secret& key, std::span<const std::byte> data) {
  std::uint64_t k[2];
  std::memcpy(k, key.data(), sizeof k);
  SipState s{k[0] ^ 0x736f6d6570736575, k[1] ^ 0x646f72616e646f6d ^ 0xee, k[0] ^ 0x6c7967656e657261,
             k[1] ^ 0x7465646279746573};
  const std::size_t whole = data.size() / 8 * 8;
  for (std::size_t at = 0; at < whole; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data() + at, 8);
    s.absorb(word);
  }
  std::uint64_t last = static_cast<std::uint64_t>(data.size()) << 56;
  if (whole < data.size()) {
    std::uint64_t tail = 0;
    std::memcpy(&tail, data.data() + whole, data.size() - whole);
    last |= tail;
  }
  s.absorb(last);
  s.v2 ^= 0xee;
  const std::uint64_t low = s.squeeze();
  s.v1 ^= 0xdd;
  const std::uint64_t high = s.squeeze();
  Mac mac;
  std::memcpy(mac.data(), &low, 8);
  std::memcpy(mac.data() + 8, &high, 8);
  return mac;
}

void AddressHeader::pack(Writer& out) const {
  out.text(kind).put(id).raw(std::as_bytes(std::span(secret)));
  host.pack(out);
  out.put(process.number).put(process.started);
}

Result<AddressHeader> AddressHeader::unpack(Reader& in, std::string_view kind) {
  AddressHeader header;
  header.kind = in.text();
  header.id = in.get<std::uint64_t>();
  const auto secret = in.raw(sizeof header.secret);
  header.host = HostIdentity::unpack(in);
  header.process.number = in.get<std::int32_t>();
  header.process.started = in.get<std::uint64_t>();
  if (in.bad() || header.kind != kind)
    return fail(ErrorCode::invalid_argument, "read peer address",
                "not an address of the " + std::string(kind) + " transport");
  std::memcpy(header.secret.data(), secret.data(), secret.size());
  return header;
}

Result<AddressHeader> AddressHeader::make(std::string kind) {
  AddressHeader header;
  header.kind = std::move(kind);
  CENOTE_TRY(random_bytes(std::as_writable_bytes(std::span(&header.id, 1))));
  CENOTE_TRY(random_bytes(std::span<std::uint8_t>(header.secret)));
  CENOTE_ASSIGN(header.host, HostIdentity::read());
  CENOTE_ASSIGN(header.process, ProcessMark::own());
  return header;
}

Bytes pack(const Challenge& message) {
  Writer out;
  out.put(challenge_magic).put(std::uint32_t{1}).raw(std::as_bytes(std::span(message.nonce)));
  return out.take();
}

Bytes pack(const Hello& message) {
  Writer out;
  out.put(message.dialer).put(message.channel).put(std::uint32_t{0});
  out.raw(std::as_bytes(std::span(message.nonce))).raw(std::as_bytes(std::span(message.proof)));
  return out.take();
}

std::optional<Challenge> unpack_challenge(std::span<const std::byte> bytes) {
  Reader in(bytes);
  const auto magic = in.get<std::uint32_t>();
  const auto version = in.get<std::uint32_t>();
  const auto nonce = in.raw(sizeof(Nonce));
  if (!in.finished() || magic != challenge_magic || version != 1) return std::nullopt;
  Challenge message;
  std::memcpy(message.nonce.data(), nonce.data(), nonce.size());
  return message;
}

std::optional<Hello> unpack_hello(std::span<const std::byte> bytes) {
  Reader in(bytes);
  Hello message;
  message.dialer = in.get<std::uint64_t>();
  message.channel = in.get<std::uint32_t>();
  const auto zero = in.get<std::uint32_t>();
  const auto nonce = in.raw(sizeof(Nonce));
  const auto proof = in.raw(sizeof(Mac));
  if (!in.finished() || zero != 0) return std::nullopt;
  std::memcpy(message.nonce.data(), nonce.data(), nonce.size());
  std::memcpy(message.proof.data(), proof.data(), proof.size());
  return message;
}

Mac proof_of(Side side, const Secret& secret, const Nonce& acceptor_nonce, const Hello& hello,
             std::uint64_t acceptor) {
  Writer text;
  text.put(side).raw(std::as_bytes(std::span(acceptor_nonce))).raw(std::as_bytes(std::span(hello.nonce)));
  text.put(hello.dialer).put(acceptor).put(hello.channel);
  return siphash128(secret, text.bytes());
}

}  // namespace cenote::transport
