#include "pool/remote/codec.h"

#include <string>

namespace cenote::pool::remote {

std::string_view to_string(Opcode opcode) {
  switch (opcode) {
#define CENOTE_REMOTE_NAME(Struct, name, answered, fields) \
  case Opcode::name:                                       \
    return #name;
    CENOTE_REMOTE_CALLS(CENOTE_REMOTE_NAME, CENOTE_REMOTE_NO_FIELD)
#undef CENOTE_REMOTE_NAME
    case Opcode::none:
    case Opcode::count:
      break;
  }
  return "unknown";
}

tl::unexpected<Error> detail::malformed(std::uint16_t opcode, const char* why, std::size_t have) {
  return fail(ErrorCode::protocol_error, "decode command",
              std::string(to_string(static_cast<Opcode>(opcode))) + " (opcode " + std::to_string(opcode) +
                  "): " + why + " in " + std::to_string(have) + " bytes");
}

Result<std::size_t> command_size(std::span<const std::byte> in) {
  Reader reader(in);
  const auto opcode = reader.get<std::uint16_t>();
  reader.get<std::uint16_t>();
  const auto size = reader.get<std::uint32_t>();
  if (reader.bad() || size < command_header || size > in.size() || size % 8 != 0)
    return detail::malformed(opcode, "bad size", in.size());
  return size;
}

Result<Command> decode(std::span<const std::byte> in) {
  Command out;
  CENOTE_TRY(dispatch(in, [&](const auto& command) -> Result<void> {
    out = command;
    return {};
  }));
  return out;
}

}  // namespace cenote::pool::remote
