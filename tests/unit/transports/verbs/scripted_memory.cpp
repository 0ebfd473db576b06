// Protection domains, memory regions and their keys.
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>

#include "tests/unit/transports/verbs/scripted_core.h"

namespace cenote::transport::verbs::test::detail {

namespace {

// A key is an index and a generation, so that one of a dead region names nothing. Remote keys differ from
// local ones, and those of one device from those of another.
constexpr std::uint32_t kRemote = 0x80000000;

constexpr unsigned kRemoteRights = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;

std::uint32_t key_base(const Device& device) { return static_cast<std::uint32_t>(device.number) << 24; }

std::uint32_t take_key(Device& device, Mr* mr) {
  std::uint32_t index = 0;
  // Old indices come back late, so that stale keys stay stale.
  if (device.free_keys.size() > 64 || (device.keys.size() >= 0xffff && !device.free_keys.empty())) {
    index = device.free_keys.front();
    device.free_keys.pop_front();
    device.keys[index] = mr;
  } else {
    index = static_cast<std::uint32_t>(device.keys.size());
    device.keys.push_back(mr);
    device.generations.push_back(0);
  }
  return key_base(device) | (index << 8) | ++device.generations[index];
}

const Mr* keyed(const Device& device, std::uint32_t key, bool remote) {
  if (((key & kRemote) != 0) != remote) return nullptr;
  key &= ~kRemote;
  if ((key & 0xff000000) != key_base(device)) return nullptr;
  const std::uint32_t index = (key >> 8) & 0xffff;
  if (index >= device.keys.size() || device.keys[index] == nullptr) return nullptr;
  return device.keys[index]->lkey == key ? device.keys[index] : nullptr;
}

bool mapped(void* address, std::size_t length) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  if (start + length < start) return false;
  const std::size_t in_page = start % page;
  const std::size_t pages = (in_page + length + page - 1) / page;
  std::vector<unsigned char> resident(pages);
  return mincore(static_cast<std::byte*>(address) - in_page, pages * page, resident.data()) == 0;
}

bool known_rights(unsigned access) {
  constexpr unsigned kKnown = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                              IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
  if ((access & ~(kKnown | IBV_ACCESS_OPTIONAL_RANGE)) != 0) return false;
  return (access & kRemoteRights) == 0 || (access & IBV_ACCESS_LOCAL_WRITE) != 0;
}

ibv_mr* register_locked(Pd& pd, void* address, std::uint64_t start, std::byte* backing, std::size_t length,
                        unsigned access) {
  Core& core = *pd.process->core;
  if (pd.card->keys.size() >= 0xffff && pd.card->free_keys.empty()) {
    errno = ENOMEM;
    return nullptr;
  }
  Mr* mr = core.make<Mr>(*pd.process, *pd.card);
  mr->context = pd.context;
  mr->pd = &pd;
  mr->addr = address;
  mr->length = length;
  mr->handle = core.next_handle++;
  mr->access = access;
  mr->start = start;
  mr->backing = backing;
  mr->lkey = take_key(*pd.card, mr);
  mr->rkey = mr->lkey | kRemote;
  ++pd.users;
  ++pd.process->alive.mrs;
  return mr;
}

template <class T>
T* refused(int error) {
  errno = error;
  return nullptr;
}

ibv_pd* alloc_pd(ibv_context* opaque) {
  auto* context = static_cast<Context*>(opaque);
  const Entry entry(Call::alloc_pd, context);
  if (entry.error != 0) return entry.fail<ibv_pd>();
  Pd* pd = context->process->core->make<Pd>(*context->process, *context->card);
  pd->context = context;
  pd->handle = context->process->core->next_handle++;
  ++context->process->alive.pds;
  return pd;
}

int dealloc_pd(ibv_pd* opaque) {
  auto* pd = static_cast<Pd*>(opaque);
  const Entry entry(Call::dealloc_pd, pd);
  if (entry.error != 0) return entry.error;
  if (pd->users != 0) return EBUSY;
  pd->alive = false;
  --pd->process->alive.pds;
  return 0;
}

ibv_mr* reg_mr(ibv_pd* opaque, void* address, std::size_t length, unsigned access) {
  auto* pd = static_cast<Pd*>(opaque);
  std::function<void*(void*, std::size_t)> peer_memory;
  {
    const std::scoped_lock lock(pd->process->core->mutex);
    peer_memory = pd->process->peer_memory;
  }
  void* const elsewhere = peer_memory ? peer_memory(address, length) : nullptr;
  const Entry entry(Call::reg_mr, pd);
  if (entry.error != 0) return entry.fail<ibv_mr>();
  if (length == 0 || !known_rights(access)) return refused<ibv_mr>(EINVAL);
  const auto start = reinterpret_cast<std::uintptr_t>(address);
  if (elsewhere != nullptr)
    return register_locked(*pd, address, start, static_cast<std::byte*>(elsewhere), length, access);
  if (!mapped(address, length)) return refused<ibv_mr>(EFAULT);
  return register_locked(*pd, address, start, static_cast<std::byte*>(address), length, access);
}

ibv_mr* reg_dmabuf_mr(ibv_pd* opaque, std::uint64_t offset, std::size_t length, std::uint64_t iova, int fd,
                      int access) {
  auto* pd = static_cast<Pd*>(opaque);
  std::function<void*(int, std::uint64_t, std::size_t)> hook;
  {
    const Entry entry(Call::reg_dmabuf_mr, pd);
    if (entry.error != 0) return entry.fail<ibv_mr>();
    hook = pd->process->dmabuf;
  }
  if (!hook) return refused<ibv_mr>(EOPNOTSUPP);
  const auto in_page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) - 1;
  if (length == 0 || ((offset ^ iova) & in_page) != 0 || !known_rights(static_cast<unsigned>(access)))
    return refused<ibv_mr>(EINVAL);
  errno = EBADF;
  auto* backing = static_cast<std::byte*>(hook(fd, offset, length));
  if (backing == nullptr) return nullptr;
  const std::scoped_lock lock(pd->process->core->mutex);
  // libibverbs puts the offset where other regions have their address.
  return register_locked(*pd, std::bit_cast<void*>(offset), iova, backing, length,
                         static_cast<unsigned>(access));
}

int dereg_mr(ibv_mr* opaque) {
  auto* mr = static_cast<Mr*>(opaque);
  const Entry entry(Call::dereg_mr, mr);
  if (entry.error != 0) return entry.error;
  const std::uint32_t index = (mr->lkey >> 8) & 0xffff;
  mr->card->keys[index] = nullptr;
  mr->card->free_keys.push_back(index);
  mr->alive = false;
  forget_lingering_locked(*mr->process->core, *mr);
  --static_cast<Pd*>(mr->pd)->users;
  --mr->process->alive.mrs;
  return 0;
}

}  // namespace

const Mr* region_locked(const Device& device, std::uint32_t key, bool remote) {
  return keyed(device, key, remote);
}

std::byte* reach_locked(Device& device, const ibv_pd* pd, std::uint32_t key, bool remote,
                        std::uint64_t address, std::uint64_t length, unsigned access) {
  const Mr* mr = keyed(device, key, remote);
  if (mr == nullptr || mr->pd != pd || (mr->access & access) != access) return nullptr;
  if (address < mr->start || length > mr->length || address - mr->start > mr->length - length) return nullptr;
  return mr->backing + (address - mr->start);
}

#define CENOTE_UNSEEN __attribute__((no_sanitize("thread")))

namespace {

// Words that may stand anywhere and be anything.
struct __attribute__((packed, may_alias)) Word8 {
  std::uint64_t value;
};
struct __attribute__((packed, may_alias)) Word4 {
  std::uint32_t value;
};
struct __attribute__((packed, may_alias)) Word2 {
  std::uint16_t value;
};
struct __attribute__((packed, may_alias)) Word1 {
  std::uint8_t value;
};

template <class Word>
CENOTE_UNSEEN inline bool moved(std::byte*& to, const std::byte*& from, std::size_t& left) {
  if (left < sizeof(Word) || reinterpret_cast<std::uintptr_t>(to) % sizeof(Word) != 0) return false;
  // volatile: neither a library's memcpy, which the thread sanitizer sees, nor torn words.
  reinterpret_cast<volatile Word*>(to)->value = reinterpret_cast<const volatile Word*>(from)->value;
  to += sizeof(Word), from += sizeof(Word), left -= sizeof(Word);
  return true;
}

}  // namespace

CENOTE_UNSEEN void dma(std::byte* to, const std::byte* from, std::size_t bytes) {
  while (moved<Word8>(to, from, bytes) || moved<Word4>(to, from, bytes) || moved<Word2>(to, from, bytes) ||
         moved<Word1>(to, from, bytes)) {
  }
#if defined(__aarch64__)
  asm volatile("dmb ishst" ::: "memory");  // what comes next comes later for a reader without the lock
#endif
}

void fill_memory_calls(VerbsApi& table) {
  table.alloc_pd = alloc_pd;
  table.dealloc_pd = dealloc_pd;
  table.reg_mr = reg_mr;
  table.reg_dmabuf_mr = reg_dmabuf_mr;
  table.dereg_mr = dereg_mr;
}

}  // namespace cenote::transport::verbs::test::detail
