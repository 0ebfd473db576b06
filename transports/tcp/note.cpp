#include "transports/tcp/note.h"

#include <cstring>

#include "transports/tcp/frame.h"

namespace cenote::transport::tcp {
namespace {

/// In a Hello this field is zero; in a Note it is the size of the text + 1.
std::uint32_t size_field(std::span<const std::byte> got) {
  constexpr std::size_t at = sizeof(Note::sender) + sizeof(Note::channel);
  std::uint32_t size = 0;
  if (got.size() >= at + sizeof size) std::memcpy(&size, got.data() + at, sizeof size);
  return size > max_reason + 1 ? 0 : size;
}

}  // namespace

Bytes Note::pack() const {
  Writer out;
  out.put(sender).put(channel).put(static_cast<std::uint32_t>(text.size() + 1));
  const Nonce unused{};
  out.raw(std::as_bytes(std::span(unused))).raw(std::as_bytes(std::span(proof))).raw(text);
  return out.take();
}

std::size_t Note::wanted(std::span<const std::byte> got) {
  const std::uint32_t size = got.size() < Hello::size ? 0 : size_field(got);
  return size == 0 ? Hello::size : Hello::size + size - 1;
}

std::optional<Note> Note::unpack(std::span<const std::byte> got) {
  const std::uint32_t size = size_field(got);
  if (size == 0) return std::nullopt;
  Reader in(got);
  Note note;
  note.sender = in.get<std::uint64_t>();
  note.channel = in.get<std::uint32_t>();
  (void)in.get<std::uint32_t>();
  (void)in.raw(sizeof(Nonce));
  const auto proof = in.raw(sizeof(Mac));
  const auto text = in.raw(size - 1);
  if (!in.finished()) return std::nullopt;
  std::memcpy(note.proof.data(), proof.data(), proof.size());
  note.text.assign(text.begin(), text.end());
  return note;
}

Mac proof_of_note(Side sender, const Secret& secret, const Nonce& acceptor_nonce, const Hello& hello,
                  std::uint64_t acceptor, std::span<const std::byte> text) {
  Writer all;
  all.text("note").put(sender).raw(std::as_bytes(std::span(acceptor_nonce)));
  all.raw(std::as_bytes(std::span(hello.nonce))).put(hello.dialer).put(acceptor).put(hello.channel).raw(text);
  return siphash128(secret, all.bytes());
}

}  // namespace cenote::transport::tcp
