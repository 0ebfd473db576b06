// Files that hold secrets: written whole or not at all, readable by their owner only.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "pool/lease_token.h"
#include "runtime/result.h"

namespace cenote::pool {

/// Replaces `path` with `text`, mode 0600, durable when it returns. A crash leaves the old file or the new
/// one.
Result<void> write_private_file(const std::filesystem::path& path, std::string_view text);

/// The whole file. Errors: not_found, system_error, both with the path; invalid_argument above `most` bytes.
Result<std::string> read_file(const std::filesystem::path& path, std::size_t most = 1 << 20);

/// The Ed25519 key kept in `path`, made on first use. Errors: permission_denied when others may read the
/// file, protocol_error when it is no key.
Result<KeyPair> load_or_create_key(const std::filesystem::path& path);

}  // namespace cenote::pool
