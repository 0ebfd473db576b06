// Note: a farewell that goes past a full connection. Into a window that is full the kernel takes no last
// word, and when the process ends, what has not left is lost with the first byte that the peer still sends.
// So the one who goes dials the peer's listener and leaves a note there: the size of a Hello, and a text,
// which is how many bytes the connection still brings in all (u64), and the reason. Its proof holds for this
// one connection, for it is made with the nonces of its handshake.
#pragma once

#include <optional>
#include <string_view>

#include "transports/handshake.h"

namespace cenote::transport::tcp {

struct Note {
  std::uint64_t sender = 0;
  std::uint32_t channel = 0;
  Mac proof{};
  Bytes text;

  [[nodiscard]] Bytes pack() const;
  /// How many bytes the guest who sent these has to send in all, as far as they tell.
  static std::size_t wanted(std::span<const std::byte> got);
  /// nullopt: it is a Hello, or nothing known.
  static std::optional<Note> unpack(std::span<const std::byte> got);
};

/// What `sender` must show: made with the secret of the other side.
Mac proof_of_note(Side sender, const Secret& secret, const Nonce& acceptor_nonce, const Hello& hello,
                  std::uint64_t acceptor, std::span<const std::byte> text);

}  // namespace cenote::transport::tcp
