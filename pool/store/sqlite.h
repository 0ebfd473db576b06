// The default store: one SQLite file in WAL mode with synchronous = FULL, so that a commit survives the loss
// of power. Each record carries a checksum over itself and the one before.
#pragma once

#include <filesystem>
#include <memory>

#include "pool/store/store.h"

namespace cenote::pool {

/// Opens or makes `path`. A lock file beside it (`path`.lock, with the holder's pid) keeps a second broker
/// out; the kernel drops the lock when the holder dies. Errors: already_exists (held, names the pid),
/// protocol_error (not a database, or not one of ours), system_error (unreadable, read-only, full: SQLite's
/// text and errno).
Result<std::unique_ptr<Store>> open_sqlite_store(const std::filesystem::path& path);

}  // namespace cenote::pool
