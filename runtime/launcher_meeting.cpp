#include "runtime/launcher_meeting.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "runtime/bootstrap_find.h"
#include "runtime/tcp_socket.h"

namespace cenote::launcher {
namespace {

constexpr const char* this_machine = "127.0.0.1";
constexpr std::uint32_t first_port = 61000;  // Linux gives connections those below
constexpr std::uint32_t port_count = 65536 - first_port;

/// FNV-1a, its bits mixed as MurmurHash3 ends.
std::uint64_t hash(std::uint64_t seed, std::string_view text) {
  std::uint64_t h = 0xcbf29ce484222325 ^ seed;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  h = (h ^ (h >> 33U)) * 0xff51afd7ed558ccd;
  h = (h ^ (h >> 33U)) * 0xc4ceb9fe1a85ec53;
  return h ^ (h >> 33U);
}

Result<void> check_group(const std::string& group) {
  constexpr std::string_view allowed = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
  if (!group.empty() && group.size() <= 64 && group.find_first_not_of(allowed) == std::string::npos)
    return {};
  return fail(ErrorCode::invalid_argument, "name a group",
              "'" + group + "': 1 to 64 letters, digits and ._- are meant");
}

/// A name, as the number that other machines reach it by.
Result<std::string> reachable(const std::string& name) {
  auto number = resolve(name);
  const auto remedy = "give the context's options this machine's address on the network as host";
  if (!number) return fail(Error(number.error()).fix(remedy));
  if (!is_loopback(*number)) return number;
  return fail(Error{ErrorCode::invalid_argument, "find an address that other machines reach",
                    fmt::format("{} is {} here, which only this machine reaches", name, *number)}
                  .fix(remedy));
}

Result<std::string> own_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0)
    return fail(system_error("read the host's name", errno));
  return std::string(name.data());
}

Result<Meeting> meet_by_pmix(const Place& place, Pmix& pmix, const MeetingOptions& options,
                             Deadline deadline) {
  const auto key = "cenote." + options.group;
  Meeting meeting;
  if (place.rank != 0) {
    auto text = pmix.fetch(0, key, deadline);
    if (!text && text.error().code == ErrorCode::deadline_exceeded)
      return fail(Error{ErrorCode::deadline_exceeded, text.error().stage,
                        fmt::format("rank 0 of {} has not arrived: it has published nothing", place.ranks)}
                      .fix("start it in time, or give the group more time to form"));
    if (!text) return fail(std::move(text).error());
    CENOTE_ASSIGN(meeting.id, UniqueId::parse(*text));
  }
  if (options.host) {
    meeting.host = *options.host;
  } else if (place.one_machine()) {
    meeting.host = this_machine;
  } else if (place.rank == 0) {
    CENOTE_ASSIGN(const auto name, own_name());
    CENOTE_ASSIGN(meeting.host, reachable(name));
  } else {
    CENOTE_ASSIGN(meeting.host, address_towards(meeting.id.host));
  }
  if (place.rank != 0) return meeting;
  CENOTE_ASSIGN(meeting.root, BootstrapRoot::create(meeting.host, options.port));
  meeting.id = meeting.root->id();
  CENOTE_TRY(pmix.publish(key, meeting.id.text()));
  return meeting;
}

/// By ports that every rank knows.
Result<Meeting> meet_by_search(const Place& place, const MeetingOptions& options, Deadline deadline) {
  const auto key = group_key(place.job, options.group);
  const std::vector<std::uint16_t> ports =
      options.port != 0 ? std::vector{options.port} : std::vector(key.ports.begin(), key.ports.end());
  const bool local = place.one_machine() || place.root_host == "localhost" || is_loopback(place.root_host);
  Meeting meeting;
  if (place.rank != 0) {
    std::string root = this_machine;
    if (!local) {
      CENOTE_ASSIGN(root, resolve(place.root_host));
    } else if (options.host) {
      root = *options.host;  // rank 0 was told the same: it is on this machine
    }
    CENOTE_ASSIGN(meeting.host, options.host ? *options.host : address_towards(root));
    CENOTE_ASSIGN(meeting.id, bootstrap::find_root(root, ports, key.secret, deadline));
    return meeting;
  }
  if (options.host) {
    meeting.host = *options.host;
  } else if (local) {
    meeting.host = this_machine;
  } else {
    CENOTE_ASSIGN(meeting.host, reachable(place.root_host));
  }
  auto root = BootstrapRoot::create_at(meeting.host, ports, key.secret);
  if (!root) {
    auto error = std::move(root).error();
    if (error.code == ErrorCode::already_exists) error.remedy = "set launcher_port to a port that is free";
    return fail(std::move(error));
  }
  meeting.root = std::move(*root);
  meeting.id = meeting.root->id();
  return meeting;
}

}  // namespace

GroupKey group_key(std::string_view job, std::string_view group) {
  const auto text = fmt::format("cenote 1\n{}\n{}", job, group);
  GroupKey key;
  const std::array halves{hash(1, text), hash(2, text)};
  std::memcpy(key.secret.data(), halves.data(), key.secret.size());
  constexpr std::uint32_t step = 1009;  // a prime that does not divide the count: no port comes twice
  auto at = static_cast<std::uint32_t>(hash(3, text) % port_count);
  for (auto& port : key.ports) {
    port = static_cast<std::uint16_t>(first_port + at);
    at = (at + step) % port_count;
  }
  return key;
}

Result<Place> ask_place(std::string_view wanted, const Environment& environment, Deadline deadline,
                        std::unique_ptr<Pmix>& pmix) {
  CENOTE_ASSIGN(auto place, find_place(wanted, environment));
  if (place.kind != Kind::pmix) return place;
  if (pmix == nullptr) {
    CENOTE_ASSIGN(pmix, Pmix::open());
  }
  place.rank = pmix->rank();
  CENOTE_ASSIGN(place.ranks, pmix->size(deadline));
  CENOTE_ASSIGN(const auto peers, pmix->local_peers(deadline));
  CENOTE_TRY(place_among(peers, place));
  return place;
}

Result<Meeting> meet(const Place& place, Pmix* pmix, const MeetingOptions& options, Deadline deadline) {
  CENOTE_TRY(check_group(options.group));
  if (place.ranks == 1) {
    Meeting alone;
    alone.host = options.host.value_or(this_machine);
    return alone;
  }
  if (place.kind == Kind::pmix) return meet_by_pmix(place, *pmix, options, deadline);
  return meet_by_search(place, options, deadline);
}

}  // namespace cenote::launcher
