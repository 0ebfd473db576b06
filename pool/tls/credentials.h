// Loading what certificates.h wrote, or what somebody's own authority did: checked before it is used, so that
// a wrong file is named instead of every handshake failing.
#pragma once

#include <string>
#include <string_view>

#include "pool/tls/certificates.h"
#include "runtime/result.h"

namespace cenote::pool::tls {

/// PEM texts that belong together, and whom they prove.
struct Credentials {
  std::string authority;
  std::string certificate;
  std::string key;
  Identity identity;
};

/// Errors: not_found (a missing file), permission_denied (expired, not yet valid, signed by another
/// authority, a key that is not the certificate's or that others may read), protocol_error (no PEM), each
/// with the file.
Result<Credentials> load(const Files& files);

/// load(), and the holder must have `role`.
Result<Credentials> load_as(const Files& files, Role role);

/// Role and name from a certificate (PEM). Verifies nothing: for certificates that TLS has verified.
Result<Identity> identity_of(std::string_view certificate_pem);

}  // namespace cenote::pool::tls
