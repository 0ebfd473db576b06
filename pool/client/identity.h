// Whose certificate a program of the pool uses, from the settings.
#pragma once

#include <string>

#include "pool/tls/credentials.h"
#include "runtime/result.h"
#include "runtime/settings.h"

namespace cenote::pool::client {

/// Where the certificate for `role` lies in tls.dir: cert.pem and key.pem where they are (one program, one
/// folder), otherwise <role>-<name>.pem and .key, as `cenote broker --init-tls` makes them. `name` may be
/// empty: then the only one of that role. Errors: not_found (which file, and how to make it),
/// invalid_argument (tls.dir is not set, several to choose from).
Result<tls::Files> find_certificate(const Settings& settings, tls::Role role, const std::string& name);

/// find_certificate() and tls::load_as().
Result<tls::Credentials> load_credentials(const Settings& settings, tls::Role role, const std::string& name);

}  // namespace cenote::pool::client
