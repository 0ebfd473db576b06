#include "cuda/nic_writes.h"

#include <array>

namespace cenote::cuda {
namespace {

constexpr int ordered_to_owner = 100;  // CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER; ALL_DEVICES is 200
constexpr int flush_from_host = 1;     // CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST
constexpr int hopper = 9;

enum class Link { pcie, coherent };
enum class Ordering { unknown, none, owner };
enum class Flush { any, yes, no };

struct Row {
  Link link;
  int from_major, to_major;  // compute capability
  Ordering ordering;
  Flush flush;
  WritesRule rule;
};

constexpr std::string_view driver_api = "CUDA Driver API 13.0, cuFlushGPUDirectRDMAWrites";
constexpr std::string_view orderings = "CUDA Driver API 13.0, CUGPUDirectRDMAWritesOrdering";
constexpr std::string_view nccl_flush = "NCCL 2.27, graph/paths.cc, ncclTopoNeedFlush";
constexpr std::string_view nccl_read = "NCCL 2.27, transport/net_ib.cc, ncclIbIflush";

// What the driver says of the device in front of it goes before what is known of its generation.
constexpr std::array table = {
    Row{Link::coherent,
        0,
        99,
        Ordering::unknown,
        Flush::any,
        {WritesSeen::after_read_back,
         "bytes may come over PCIe and their completion over the coherent link, and the flush call does "
         "nothing "
         "between the two",
         nccl_flush}},
    Row{Link::coherent,
        0,
        99,
        Ordering::none,
        Flush::any,
        {WritesSeen::after_read_back,
         "bytes may come over PCIe and their completion over the coherent link, and the device orders "
         "neither",
         nccl_flush}},
    Row{Link::coherent,
        0,
        99,
        Ordering::owner,
        Flush::any,
        {WritesSeen::after_read_back,
         "what the driver promises holds on one of the two ways to this device, and a card may use the other",
         driver_api}},
    Row{Link::pcie,
        0,
        99,
        Ordering::owner,
        Flush::any,
        {WritesSeen::at_once, "the device reads what cards have written in order", orderings}},
    Row{Link::pcie,
        0,
        99,
        Ordering::none,
        Flush::yes,
        {WritesSeen::after_flush, "the device orders nothing by itself, and the driver has the call",
         driver_api}},
    Row{Link::pcie,
        0,
        99,
        Ordering::none,
        Flush::no,
        {WritesSeen::after_read_back, "the device orders nothing by itself, and the driver has no flush call",
         nccl_read}},
    Row{Link::pcie,
        hopper,
        99,
        Ordering::unknown,
        Flush::any,
        {WritesSeen::at_once, "Hopper and what came after it need no flush over PCIe", nccl_flush}},
    Row{Link::pcie,
        0,
        hopper - 1,
        Ordering::unknown,
        Flush::any,
        {WritesSeen::after_read_back,
         "Pascal to Ada need it, and this driver is older than the flush call (11.3)", nccl_flush}},
};

constexpr WritesRule beyond_the_table{WritesSeen::after_read_back,
                                      "nothing is known of such a device, and reading back is always right",
                                      nccl_read};

}  // namespace

const WritesRule& writes_rule(const WritesFacts& facts) {
  const Link link = facts.coherent_link ? Link::coherent : Link::pcie;
  const Ordering ordering = facts.ordering < 0                  ? Ordering::unknown
                            : facts.ordering < ordered_to_owner ? Ordering::none
                                                                : Ordering::owner;
  const bool flushes = facts.flush_options > 0 && (facts.flush_options & flush_from_host) != 0;
  for (const Row& row : table) {
    if (row.link == link && row.ordering == ordering && facts.major >= row.from_major &&
        facts.major <= row.to_major && (row.flush == Flush::any || (row.flush == Flush::yes) == flushes))
      return row.rule;
  }
  return beyond_the_table;
}

std::string in_words(const WritesRule& rule) {
  constexpr std::array names{"no flush", "flush call", "read back"};
  return std::string(names.at(static_cast<std::size_t>(rule.seen))) + ": " + std::string(rule.why) + " (" +
         std::string(rule.source) + ")";
}

}  // namespace cenote::cuda
