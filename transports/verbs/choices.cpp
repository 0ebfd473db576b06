#include "transports/verbs/choices.h"

#include <fmt/format.h>

#include <algorithm>

namespace cenote::transport::verbs {
namespace {

constexpr int smallest_mtu = 1, largest_mtu = 5;  // as libibverbs counts: 256 and 4096 bytes

std::uint32_t bytes_of(int code) {
  return code >= smallest_mtu && code <= largest_mtu ? 128U << static_cast<unsigned>(code) : 0;
}

int code_of(std::uint32_t bytes) {
  int code = largest_mtu;
  while (code > smallest_mtu && bytes_of(code) > bytes) --code;
  return code;
}

std::string mtu_text(const PathChoice& choice, const Port& mine, const Port& theirs, std::uint32_t wanted) {
  // What the peer says of its port is limited by its own setting already.
  const bool limited = wanted != 0 && code_of(wanted) < mine.mtu && code_of(wanted) <= theirs.mtu;
  return fmt::format("path mtu {}, {}", choice.mtu,
                     limited                  ? "by verbs.mtu"
                     : mine.mtu == theirs.mtu ? "that of both ports"
                                              : fmt::format("the lesser of the ports' {} and {}",
                                                            bytes_of(mine.mtu), bytes_of(theirs.mtu)));
}

std::string_view type_name(GidType type) {
  switch (type) {
    case GidType::infiniband:
      return "InfiniBand";
    case GidType::roce_v1:
      return "RoCE v1";
    case GidType::roce_v2:
      return "RoCE v2";
  }
  return "unknown";
}

std::string gid_text(const PathChoice& choice, int wanted) {
  const Gid &mine = choice.gids.mine, &theirs = choice.gids.theirs;
  std::string why = wanted >= 0         ? "by verbs.gid_index"
                    : choice.pairs == 1 ? "the only pair of one type and family"
                    : choice.attempt == 0
                        ? fmt::format("the likeliest of {} pairs", choice.pairs)
                        : fmt::format("the {}. of {} pairs: no write went over those before it",
                                      choice.attempt + 1, choice.pairs);
  return fmt::format("gid {} > {}, {}{}{}, {}", mine.index, theirs.index, type_name(mine.type),
                     mine.is_ipv4() ? " IPv4" : "", one_subnet(mine, theirs) ? " in one subnet" : "", why);
}

std::string path_text(const PathChoice& choice, const Port& mine, const Port& theirs, int wanted) {
  if (mine.link_layer != LinkLayer::infiniband) return "its flow label from its queue pairs' numbers";
  if (mine.lmc == 0 && theirs.lmc == 0) return "one path: both ports have LMC 0";
  return fmt::format("path bits {} > {}, {}", choice.my_path, choice.their_path,
                     wanted >= 0 ? "by verbs.path_bits" : "the next of each port");
}

}  // namespace

int path_mtu(const Port& mine, const Port& theirs, const VerbsOptions& options) {
  const int least = std::min<int>(mine.mtu, theirs.mtu);
  return options.mtu == 0 ? least : std::min(least, code_of(options.mtu));
}

std::string text_of(const PathChoice& choice, const Port& mine, const Port& theirs,
                    const VerbsOptions& options) {
  const VerbsOptions usual;
  const auto source = [](auto value, auto automatic, std::string_view setting, std::string_view reason) {
    return value == automatic ? std::string(reason) : fmt::format("by {}", setting);
  };
  const double patience = 4.096e-6 * static_cast<double>(std::uint64_t{1} << (options.timeout & 31U));
  return fmt::format(
      "{}; {}; {}; timeout {} ({:.3g} s), {}; retries {}, {}; service level {}, {}; traffic class {}, {}",
      mtu_text(choice, mine, theirs, options.mtu), gid_text(choice, options.gid_index),
      path_text(choice, mine, theirs, options.path_bits), options.timeout, patience,
      source(options.timeout, usual.timeout, "verbs.timeout", "longer than a congested fabric takes"),
      options.retries,
      source(options.retries, usual.retries, "verbs.retries",
             "as many as every card counts, 7 is for ever on some"),
      options.service_level,
      source(options.service_level, usual.service_level, "verbs.service_level", "the fabric's default"),
      options.traffic_class,
      source(options.traffic_class, usual.traffic_class, "verbs.traffic_class", "the network's default"));
}

}  // namespace cenote::transport::verbs
