// The part of PMIx's binary interface that is used here, as libpmix.so.2 has it since PMIx 2. A test holds it
// to <pmix.h>.
#pragma once

#include <cstdint>

namespace cenote::launcher::pmix {

using Status = int;
inline constexpr Status success = 0;
inline constexpr Status timed_out = -24;
inline constexpr Status not_found = -46;
inline constexpr const char* job_size = "pmix.job.size";
inline constexpr const char* local_peers = "pmix.lpeers";

struct Process {
  char job[256];
  std::uint32_t rank;
};

enum class Type : std::uint16_t { text = 3, uint32 = 14 };

struct Value {
  Type type;
  union {
    char* text;
    std::uint32_t uint32;
    std::uint64_t room[3];  ///< for what others put here
  } data;
};

struct Info;  ///< directives; none are given

inline constexpr std::uint8_t to_all = 3;               ///< a scope: processes of all machines
inline constexpr std::uint32_t whole_job = 0xfffffffe;  ///< instead of a rank

using Answer = void (*)(Status, Value*, void*);

}  // namespace cenote::launcher::pmix
