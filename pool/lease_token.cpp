#include "pool/lease_token.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#include <cstdlib>
#include <memory>

namespace cenote::pool {
namespace {

constexpr std::size_t kSignatureBytes = 64;
constexpr std::uint8_t kTokenVersion = 1;
constexpr std::size_t kMaxTokenDevices = 65'536;
// Signed in front of each kind of message, so that a signature over one is never one over another.
constexpr std::string_view kTokenContext = "cenote lease token";
constexpr std::string_view kProofContext = "cenote lease proof";

struct FreeKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
struct FreeDigest {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};
using Key = std::unique_ptr<EVP_PKEY, FreeKey>;
using Digest = std::unique_ptr<EVP_MD_CTX, FreeDigest>;

Error crypto_error(std::string stage) {
  std::array<char, 256> text{};
  const auto code = ERR_get_error();
  ERR_error_string_n(code, text.data(), text.size());
  ERR_clear_error();
  return Error{ErrorCode::internal, std::move(stage), code == 0 ? "OpenSSL gave no reason" : text.data()};
}

const unsigned char* octets(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

Bytes token_body(const LeaseToken& token) {
  Writer out;
  out.put(kTokenVersion)
      .text(token.lease_id)
      .text(token.client)
      .raw(std::as_bytes(std::span(token.client_key)));
  out.put(token.isolation).put(token.not_before_unix_ms).put(token.expires_unix_ms);
  out.put(static_cast<std::uint32_t>(token.devices.size()));
  for (const auto& device : token.devices) {
    out.text(device.uuid).text(device.agent).put(device.memory_bytes);
    out.put(device.compute_share_millis).put(device.epoch);
  }
  return out.take();
}

Bytes signed_part(std::span<const std::byte> body) { return Writer().text(kTokenContext).raw(body).take(); }

std::string seconds(std::int64_t ms) {
  return std::to_string(ms / 1000) + "." + std::to_string(ms % 1000 / 100) + " s";
}

}  // namespace

Result<KeyPair> KeyPair::generate() {
  const Key key(EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"));
  if (!key) return fail(crypto_error("generate an Ed25519 key"));
  std::array<std::uint8_t, 32> secret{};
  std::size_t size = secret.size();
  if (EVP_PKEY_get_raw_private_key(key.get(), secret.data(), &size) != 1) {
    return fail(crypto_error("read an Ed25519 key"));
  }
  auto pair = from_private(secret);
  OPENSSL_cleanse(secret.data(), secret.size());
  return pair;
}

Result<KeyPair> KeyPair::from_private(std::span<const std::uint8_t> private_key) {
  if (private_key.size() != 32) {
    return fail(ErrorCode::invalid_argument, "load an Ed25519 key",
                "a private key has 32 bytes, this one " + std::to_string(private_key.size()));
  }
  KeyPair pair;
  std::copy(private_key.begin(), private_key.end(), pair.private_.begin());
  const Key key(
      EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, private_key.data(), private_key.size()));
  std::size_t size = pair.public_.size();
  if (!key || EVP_PKEY_get_raw_public_key(key.get(), pair.public_.data(), &size) != 1) {
    return fail(crypto_error("load an Ed25519 key"));
  }
  return pair;
}

KeyPair::KeyPair(KeyPair&& other) noexcept : private_(other.private_), public_(other.public_) {
  OPENSSL_cleanse(other.private_.data(), other.private_.size());
}

KeyPair& KeyPair::operator=(KeyPair&& other) noexcept {
  if (this == &other) return *this;
  private_ = other.private_;
  public_ = other.public_;
  OPENSSL_cleanse(other.private_.data(), other.private_.size());
  return *this;
}

KeyPair::~KeyPair() { OPENSSL_cleanse(private_.data(), private_.size()); }

Result<Bytes> KeyPair::sign(std::span<const std::byte> message) const {
  const Key key(EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, private_.data(), private_.size()));
  const Digest digest(EVP_MD_CTX_new());
  Bytes signature(kSignatureBytes);
  std::size_t size = signature.size();
  if (!key || !digest || EVP_DigestSignInit(digest.get(), nullptr, nullptr, nullptr, key.get()) != 1 ||
      EVP_DigestSign(digest.get(), reinterpret_cast<unsigned char*>(signature.data()), &size, octets(message),
                     message.size()) != 1) {
    return fail(crypto_error("sign"));
  }
  return signature;
}

Result<void> verify(const PublicKey& key, std::span<const std::byte> message,
                    std::span<const std::byte> signature) {
  if (signature.size() != kSignatureBytes) {
    return fail(ErrorCode::permission_denied, "verify a signature",
                "a signature has 64 bytes, this one " + std::to_string(signature.size()));
  }
  const Key openssl_key(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, key.data(), key.size()));
  const Digest digest(EVP_MD_CTX_new());
  if (!openssl_key || !digest ||
      EVP_DigestVerifyInit(digest.get(), nullptr, nullptr, nullptr, openssl_key.get()) != 1) {
    return fail(crypto_error("verify a signature"));
  }
  const bool good = EVP_DigestVerify(digest.get(), octets(signature), signature.size(), octets(message),
                                     message.size()) == 1;
  ERR_clear_error();  // a refused signature leaves its reason in this thread's queue
  if (!good) {
    return fail(ErrorCode::permission_denied, "verify a signature",
                "the signature is not that key's over these bytes");
  }
  return {};
}

Result<Bytes> seal(const LeaseToken& token, const KeyPair& broker) {
  auto body = token_body(token);
  CENOTE_ASSIGN(const auto signature, broker.sign(signed_part(body)));
  body.insert(body.end(), signature.begin(), signature.end());
  return body;
}

Result<LeaseToken> unseal(std::span<const std::byte> sealed, const PublicKey& broker) {
  constexpr auto stage = "check the lease's token";
  if (sealed.size() <= kSignatureBytes) {
    return fail(ErrorCode::permission_denied, stage,
                "it has " + std::to_string(sealed.size()) + " bytes, too few to be signed");
  }
  const auto body = sealed.first(sealed.size() - kSignatureBytes);
  if (auto good = verify(broker, signed_part(body), sealed.last(kSignatureBytes)); !good) {
    return fail(
        Error{good.error().code, stage, "the broker's signature does not verify: " + good.error().cause}.fix(
            "lease again: the token was altered, or another broker signed it"));
  }
  Reader in(body);
  const auto version = in.get<std::uint8_t>();
  if (version != kTokenVersion) {
    return fail(
        ErrorCode::protocol_error, stage,
        "token version " + std::to_string(version) + ", this build knows " + std::to_string(kTokenVersion));
  }
  LeaseToken token;
  token.lease_id = in.text();
  token.client = in.text();
  const auto key = in.raw(token.client_key.size());
  if (!in.bad()) std::memcpy(token.client_key.data(), key.data(), key.size());
  const auto isolation = in.get<std::uint8_t>();
  token.isolation = static_cast<Isolation>(isolation);
  token.not_before_unix_ms = in.get<std::int64_t>();
  token.expires_unix_ms = in.get<std::int64_t>();
  const auto count = in.get<std::uint32_t>();
  if (in.bad() || isolation > static_cast<std::uint8_t>(Isolation::mig) || count > kMaxTokenDevices) {
    return fail(ErrorCode::protocol_error, stage, "it is signed, but its fields make no sense");
  }
  for (std::uint32_t i = 0; i < count && !in.bad(); ++i) {
    auto& device = token.devices.emplace_back();
    device.uuid = in.text();
    device.agent = in.text();
    device.memory_bytes = in.get<std::uint64_t>();
    device.compute_share_millis = in.get<std::uint32_t>();
    device.epoch = in.get<std::uint64_t>();
  }
  if (!in.finished()) return fail(ErrorCode::protocol_error, stage, "it is signed, but has the wrong length");
  return token;
}

Result<void> check_in_force(const LeaseToken& token, std::int64_t expires_unix_ms, std::int64_t now_unix_ms,
                            std::int64_t drift_ms) {
  const auto stage = "check lease " + token.lease_id;
  if (now_unix_ms >= expires_unix_ms) {
    return fail(Error{ErrorCode::permission_denied, stage,
                      "it expired " + seconds(now_unix_ms - expires_unix_ms) + " ago"}
                    .fix("renew leases before they end, or lease again"));
  }
  if (now_unix_ms + drift_ms < token.not_before_unix_ms) {
    return fail(Error{ErrorCode::permission_denied, stage,
                      "it begins in " + seconds(token.not_before_unix_ms - now_unix_ms)}
                    .fix("the clocks of broker and agent differ: synchronise them"));
  }
  return {};
}

Bytes proof_message(std::string_view purpose, std::string_view lease_id, std::string_view audience,
                    std::int64_t unix_ms) {
  return Writer().text(kProofContext).text(purpose).text(lease_id).text(audience).put(unix_ms).take();
}

Result<Proof> make_proof(const KeyPair& client, std::string_view purpose, std::string_view lease_id,
                         std::string_view audience, std::int64_t now_unix_ms) {
  CENOTE_ASSIGN(auto signature, client.sign(proof_message(purpose, lease_id, audience, now_unix_ms)));
  return Proof{now_unix_ms, std::move(signature)};
}

Result<void> check_proof(const PublicKey& client, std::string_view purpose, std::string_view lease_id,
                         std::string_view audience, const Proof& proof, std::int64_t now_unix_ms) {
  const auto stage = "check the proof to " + std::string(purpose) + " lease " + std::string(lease_id);
  if (auto good = verify(client, proof_message(purpose, lease_id, audience, proof.unix_ms), proof.signature);
      !good) {
    return fail(Error{good.error().code, stage,
                      "it is not signed by the key that the lease was granted to: " + good.error().cause}
                    .fix("only who holds the lease's private key may use it"));
  }
  // Compared without subtracting: the time is the client's word and may be any number.
  if (proof.unix_ms < now_unix_ms - kProofWindowMs || proof.unix_ms > now_unix_ms + kProofWindowMs) {
    return fail(Error{ErrorCode::permission_denied, stage,
                      "it was signed at " + std::to_string(proof.unix_ms) + " ms, it is " +
                          std::to_string(now_unix_ms) + " ms here (at most " + seconds(kProofWindowMs) +
                          " apart)"}
                    .fix("synchronise the clocks of client and " + std::string(audience)));
  }
  return {};
}

Result<void> ProofGuard::admit(const PublicKey& client, std::string_view purpose, std::string_view lease_id,
                               const Proof& proof, std::int64_t now_unix_ms) {
  CENOTE_TRY(check_proof(client, purpose, lease_id, audience_, proof, now_unix_ms));
  const std::lock_guard lock(mutex_);
  // What left the window is refused by its time.
  std::erase_if(last_, [&](const auto& entry) { return entry.second < now_unix_ms - kProofWindowMs; });
  auto [entry, fresh] = last_.try_emplace({std::string(lease_id), std::string(purpose)}, proof.unix_ms);
  if (!fresh && proof.unix_ms <= entry->second) {
    return fail(Error{ErrorCode::permission_denied,
                      "check the proof to " + std::string(purpose) + " lease " + std::string(lease_id),
                      "it was used before, or a later one was"}
                    .fix("sign a new proof for each attempt"));
  }
  entry->second = proof.unix_ms;
  return {};
}

std::size_t ProofGuard::remembered() const {
  const std::lock_guard lock(mutex_);
  return last_.size();
}

}  // namespace cenote::pool
