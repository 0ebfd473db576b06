// Loads and stores. The addresses of all lanes are looked at together first: when they lie in one range,
// nothing has to be checked lane by lane; when they follow each other, they are one copy.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "cuda/emulator/run_machine.h"

namespace cenote::cuda::emulator {

using ptx::Inst;
using ptx::no_slot;
using ptx::Space;

namespace {

template <class Visit>
void with_unsigned(unsigned bytes, Visit visit) {
  switch (bytes) {
    case 1:
      return visit(std::uint8_t{});
    case 2:
      return visit(std::uint16_t{});
    case 4:
      return visit(std::uint32_t{});
    default:
      return visit(std::uint64_t{});
  }
}

template <class T>
T read(const std::byte* from, bool ordered) {
  if (ordered) return __atomic_load_n(reinterpret_cast<const T*>(from), __ATOMIC_ACQUIRE);
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void write(std::byte* to, T value, bool ordered) {
  if (ordered) return __atomic_store_n(reinterpret_cast<T*>(to), value, __ATOMIC_RELEASE);
  std::memcpy(to, &value, sizeof value);
}

// Element as memory has it, to a register at least as wide.
template <class T>
void place(std::byte* to, unsigned width, T value, bool sign) {
  using Signed = std::make_signed_t<T>;
  const std::uint64_t wide =
      sign ? static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<Signed>(value)))
           : std::uint64_t{value};
  std::memcpy(to, &wide, width);
}

std::string hex(std::uint64_t v) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(v));
  return text;
}

const char* name_of(Space s) {
  switch (s) {
    case Space::shared:
      return "shared memory";
    case Space::local:
      return "local memory";
    case Space::param:
      return "parameter memory";
    default:
      return "device memory";
  }
}

}  // namespace

const MemoryRange* Machine::range_of(std::uint64_t address) {
  if (last_range_ != nullptr && address - last_range_->address < last_range_->bytes) return last_range_;
  const auto memory = shared_.launch.memory;
  const auto after = std::upper_bound(memory.begin(), memory.end(), address,
                                      [](std::uint64_t a, const MemoryRange& r) { return a < r.address; });
  if (after == memory.begin()) return nullptr;
  const MemoryRange& r = *(after - 1);
  if (address - r.address >= r.bytes) return nullptr;
  return last_range_ = &r;
}

// Where address `origin` lies on the host, when every lane's access is aligned and inside one piece of
// memory; else null.
std::byte* Machine::whole_access(const Inst& i, const AddressScan& scan, unsigned bytes, bool writes,
                                 std::uint64_t& origin) {
  if ((scan.ored & (bytes - 1)) != 0) return nullptr;
  Space space = i.space;
  std::uint64_t base = 0;
  if (space == Space::generic && scan.lowest >= generic_windows) {
    if (scan.lowest >= local_window || scan.highest >= local_window) return nullptr;
    space = Space::shared;
    base = shared_window;
  }
  origin = base;
  if (space == Space::shared) {
    const std::uint64_t end = scan.highest - base + bytes;
    return end > shared_bytes_ || end < bytes ? nullptr : shared_memory_.get();
  }
  if (space == Space::local || space == Space::param) return nullptr;
  const MemoryRange* r = range_of(scan.lowest);
  if (r == nullptr || (writes && !r->writable)) return nullptr;
  const std::uint64_t last = scan.highest - r->address;
  if (last >= r->bytes || r->bytes - last < bytes) return nullptr;
  origin = r->address;
  return r->host;
}

// One lane's access, with all checks. Null, and why, when it is none.
std::byte* Machine::lane_access(Group& g, Space space, unsigned lane, std::uint64_t address, unsigned bytes,
                                bool writes, const char** why) {
  if ((address & (bytes - 1)) != 0) {
    *why = "misaligned";
    return nullptr;
  }
  if (space == Space::generic && address >= generic_windows) {
    if (address - shared_window < window_bytes)
      space = Space::shared, address -= shared_window;
    else if (address - local_window < window_bytes)
      space = Space::local, address -= local_window;
    else if (address - param_window < window_bytes)
      space = Space::param, address -= param_window;
  }
  const auto inside = [&](std::uint64_t size) { return address < size && size - address >= bytes; };
  switch (space) {
    case Space::shared:
      *why = "outside of the block's shared memory";
      return inside(shared_bytes_) ? shared_memory_.get() + address : nullptr;
    case Space::local: {
      *why = "outside of the thread's local memory";
      const std::size_t size = shared_.function.local_bytes;
      return inside(size) && lane < g.threads ? g.local.get() + lane * size + address : nullptr;
    }
    case Space::param:
      *why = writes ? "parameters cannot be written" : "outside of the parameters";
      // Only ever read: `writes` is refused.
      return inside(shared_.entry.param_bytes) && !writes
                 ? const_cast<std::byte*>(shared_.launch.params.data()) + address
                 : nullptr;
    default:
      break;
  }
  const MemoryRange* r = range_of(address);
  *why = "no memory there";
  if (r == nullptr) return nullptr;
  const std::uint64_t at = address - r->address;
  *why = "reaches over the end of its allocation";
  if (r->bytes - at < bytes) return nullptr;
  *why = "that memory is read-only";
  return writes && !r->writable ? nullptr : r->host + at;
}

bool Machine::access_fault(Group& g, const Inst& i, unsigned lane, unsigned bytes, const char* what,
                           const char* why, bool misaligned) {
  const Status status = misaligned ? Status::misaligned_address : Status::illegal_address;
  fail(g, lane, i, status,
       std::string(what) + " of " + std::to_string(bytes) + " bytes at " + hex(addresses_[lane]) + " in " +
           name_of(i.space) + ": " + why);
  fault.address = addresses_[lane];
  fault.bytes = bytes;
  return false;
}

bool Machine::load(Group& g, const Fragment& f, const Inst& i, const std::uint8_t* mask, unsigned active) {
  const unsigned size = bytes_of(i.type), bytes = size * i.count, low = f.low, n = f.high - f.low;
  const std::byte* base = i.a == no_slot ? nullptr : at(g, i.a) + std::size_t{low} * i.width_a;
  const AddressScan scan = lanes_.addresses(addresses_ + low, base, i.a == no_slot ? 0 : i.width_a,
                                            static_cast<std::uint64_t>(i.imm), mask + low, n, bytes);
  const bool sign = is_signed(i.type);
  std::uint64_t origin = 0;
  const std::byte* host = whole_access(i, scan, bytes, false, origin);
  if (host != nullptr && active == n && scan.consecutive && i.count == 1 && size == i.width_d && !i.ordered) {
    std::memcpy(at(g, code_.lists[i.list]) + std::size_t{low} * size, host + (scan.lowest - origin),
                std::size_t{n} * size);
    return true;
  }
  if (host != nullptr) {
    with_unsigned(size, [&](auto element) {
      using T = decltype(element);
      for (unsigned k = 0; k < i.count; ++k) {
        std::byte* d = at(g, code_.lists[i.list + k]);
        const std::uint64_t before = origin - std::uint64_t{k} * size;  // may wrap; the difference does not
        if (i.width_d == size && !i.ordered) {
          T* to = reinterpret_cast<T*>(d);
          for (unsigned lane = low; lane < f.high; ++lane)
            if (mask[lane]) to[lane] = read<T>(host + (addresses_[lane] - before), false);
        } else {
          for (unsigned lane = low; lane < f.high; ++lane)
            if (mask[lane])
              place(d + std::size_t{lane} * i.width_d, i.width_d,
                    read<T>(host + (addresses_[lane] - before), i.ordered), sign);
        }
      }
    });
    return true;
  }
  for (unsigned lane = low; lane < f.high; ++lane) {
    if (!mask[lane]) continue;
    const char* why = "";
    const std::byte* from = lane_access(g, i.space, lane, addresses_[lane], bytes, false, &why);
    if (from == nullptr)
      return access_fault(g, i, lane, bytes, "load", why, (addresses_[lane] & (bytes - 1)) != 0);
    with_unsigned(size, [&](auto element) {
      using T = decltype(element);
      for (unsigned k = 0; k < i.count; ++k)
        place(at(g, code_.lists[i.list + k]) + std::size_t{lane} * i.width_d, i.width_d,
              read<T>(from + std::size_t{k} * size, i.ordered), sign);
    });
  }
  return true;
}

bool Machine::store(Group& g, const Fragment& f, const Inst& i, const std::uint8_t* mask, unsigned active) {
  const unsigned size = bytes_of(i.type), bytes = size * i.count, low = f.low, n = f.high - f.low;
  const std::byte* base = i.a == no_slot ? nullptr : at(g, i.a) + std::size_t{low} * i.width_a;
  const AddressScan scan = lanes_.addresses(addresses_ + low, base, i.a == no_slot ? 0 : i.width_a,
                                            static_cast<std::uint64_t>(i.imm), mask + low, n, bytes);
  std::uint64_t origin = 0;
  std::byte* host = whole_access(i, scan, bytes, true, origin);
  if (host != nullptr && active == n && scan.consecutive && i.count == 1 && !i.ordered) {
    std::memcpy(host + (scan.lowest - origin), at(g, code_.lists[i.list]) + std::size_t{low} * size,
                std::size_t{n} * size);
    return true;
  }
  for (unsigned lane = low; lane < f.high; ++lane) {
    if (!mask[lane]) continue;
    const char* why = "";
    std::byte* to = host != nullptr ? host + (addresses_[lane] - origin)
                                    : lane_access(g, i.space, lane, addresses_[lane], bytes, true, &why);
    if (to == nullptr)
      return access_fault(g, i, lane, bytes, "store", why, (addresses_[lane] & (bytes - 1)) != 0);
    with_unsigned(size, [&](auto element) {
      using T = decltype(element);
      for (unsigned k = 0; k < i.count; ++k)
        write<T>(to + std::size_t{k} * size, at<T>(g, code_.lists[i.list + k])[lane], i.ordered);
    });
  }
  return true;
}

// Between a register and a part of an 8-byte word of a function's .param variable.
void Machine::move_slot(Group& g, const Fragment& f, const Inst& i, const std::uint8_t* mask) {
  const unsigned size = bytes_of(i.type);
  const bool loads = i.op == ptx::Op::load_slot;
  std::byte* words = at(g, loads ? i.a : i.d) + i.imm;
  std::byte* values = at(g, loads ? i.d : i.a);
  with_unsigned(size, [&](auto element) {
    using T = decltype(element);
    for (unsigned lane = f.low; lane < f.high; ++lane) {
      if (!mask[lane]) continue;
      std::byte* word = words + std::size_t{lane} * 8;
      std::byte* value = values + std::size_t{lane} * i.width_d;
      if (loads)
        place(value, i.width_d, read<T>(word, false), is_signed(i.type));
      else
        std::memcpy(word, value, size);
    }
  });
}

void Machine::convert_address(Group& g, const Fragment& f, const Inst& i, const std::uint8_t* mask) {
  const std::uint64_t window = i.space == Space::shared  ? shared_window
                               : i.space == Space::local ? local_window
                                                         : param_window;
  const auto* a = at<std::uint64_t>(g, i.a);
  for (unsigned lane = f.low; lane < f.high; ++lane) {
    if (!mask[lane]) continue;
    if (i.op == ptx::Op::to_generic)
      at<std::uint64_t>(g, i.d)[lane] = a[lane] + window;
    else if (i.op == ptx::Op::from_generic)
      at<std::uint64_t>(g, i.d)[lane] = a[lane] - window;
    else if (i.space == Space::global || i.space == Space::constant)
      at<std::uint8_t>(g, i.d)[lane] = a[lane] < generic_windows;
    else
      at<std::uint8_t>(g, i.d)[lane] = a[lane] - window < window_bytes;
  }
}

}  // namespace cenote::cuda::emulator
