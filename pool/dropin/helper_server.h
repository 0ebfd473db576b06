// The other end of libcenote-pool: what `cenote session` does for one program. It asks the broker, renews,
// and gives back; it has the certificates and the keys.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "pool/client/pool_client.h"
#include "runtime/result.h"
#include "runtime/unique_fd.h"

namespace cenote::pool::dropin {

/// The client that the program's settings ("name=value") ask for.
using MakeClient =
    std::function<Result<std::unique_ptr<client::PoolClient>>(const std::vector<std::string>& settings)>;

/// Answers the program at the other end of `socket` until it closes it or is gone (`program`: a pidfd; -1 =
/// only the socket tells). Then gives back the leases that it made and that the program neither released nor
/// destroyed, for at most ten seconds. Errors: protocol_error (the program sends nonsense), system_error.
Result<void> serve_program(UniqueFd socket, UniqueFd program, const MakeClient& make_client);

}  // namespace cenote::pool::dropin
