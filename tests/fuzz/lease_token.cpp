// Lease tokens whose signature is good, whatever they say: what is taken is sealed to the same bytes again.
// And the same bytes with a signature of nobody's, which is refused.
#include "pool/lease_token.h"

#include <algorithm>

#include "tests/fuzz/fuzzer.h"

namespace cenote::fuzz {
namespace {

using namespace cenote::pool;

const KeyPair& broker() {
  static const KeyPair key = KeyPair::from_private(std::array<std::uint8_t, 32>{7}).value();
  return key;
}

LeaseToken token(std::size_t devices) {
  LeaseToken made{.lease_id = "lease-1", .client = "alice", .client_key = {1}, .expires_unix_ms = 60'000};
  for (std::size_t i = 0; i < devices; ++i)
    made.devices.push_back({"gpu-" + std::to_string(i), "agent", 1ULL << 30U, 1000, i});
  return made;
}

constexpr std::size_t signature_bytes = 64;
constexpr std::string_view context = "cenote lease token";  // before what is signed; does not travel

Bytes body_of(const LeaseToken& of) {
  Bytes sealed = seal(of, broker()).value();
  sealed.resize(sealed.size() - signature_bytes);
  return sealed;
}

void run(std::span<const std::byte> body) {
  Bytes sealed(body.begin(), body.end());
  sealed.resize(sealed.size() + signature_bytes);
  require(!unseal(sealed, broker().public_key()), "who does not sign is refused");
  const Bytes signature = broker().sign(Writer().text(context).raw(body).take()).value();
  std::copy(signature.begin(), signature.end(), sealed.end() - signature_bytes);
  const auto token = unseal(sealed, broker().public_key());
  if (!token) return;
  require(seal(*token, broker()).value() == sealed, "a token has one encoding");
}

}  // namespace

std::vector<Bytes> seeds() { return {body_of(token(0)), body_of(token(1)), body_of(token(3))}; }

}  // namespace cenote::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cenote::fuzz::run(std::as_bytes(std::span(data, size)));
  return 0;
}
