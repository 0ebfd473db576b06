// Places: where the registers, constants and local memory of each function lie. A function's come after those
// of all its callers, so that no call has to save anything; that rules out recursion.
#include <algorithm>

#include "cuda/ptx/decoder.h"
#include "cuda/ptx/registers.h"

namespace cenote::cuda::ptx {
namespace {
constexpr std::uint64_t max_bytes_per_lane = std::uint64_t{16} << 20;
constexpr std::size_t max_reachable = std::size_t{1} << 24;
constexpr std::uint64_t round_up(std::uint64_t n, std::uint64_t to) { return (n + to - 1) / to * to; }
}  // namespace

SharedLayout shared_layout(const Code& code, const Function& entry) {
  std::vector<std::uint32_t> used = entry.shared;
  for (const auto callee : entry.callees)
    used.insert(used.end(), code.functions[callee].shared.begin(), code.functions[callee].shared.end());
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  SharedLayout layout;
  layout.offsets.assign(code.shared.size(), 0);
  std::uint64_t at = 0;
  std::uint64_t dynamic_align = 16;
  for (const auto index : used) {
    const auto& v = code.shared[index];
    if (v.dynamic) {
      dynamic_align = std::max<std::uint64_t>(dynamic_align, v.align);
      continue;
    }
    at = round_up(at, v.align);
    layout.offsets[index] = static_cast<std::uint32_t>(std::min<std::uint64_t>(at, 0xFFFF'FFFFu));
    at = std::min<std::uint64_t>(at + v.size, std::uint64_t{1} << 40);
  }
  const bool has_dynamic =
      std::any_of(used.begin(), used.end(), [&](auto i) { return code.shared[i].dynamic; });
  if (has_dynamic) at = round_up(at, dynamic_align);
  for (const auto index : used)
    if (code.shared[index].dynamic)
      layout.offsets[index] = static_cast<std::uint32_t>(std::min<std::uint64_t>(at, 0xFFFF'FFFFu));
  layout.static_bytes = at;
  return layout;
}

void Decoder::finish_function() {
  Function& f = code_->functions[body_.index];
  f.last = static_cast<std::uint32_t>(code_->insts.size());
  std::sort(f.shared.begin(), f.shared.end());
  f.shared.erase(std::unique(f.shared.begin(), f.shared.end()), f.shared.end());
  const std::span<Inst> insts(code_->insts.data() + f.first, f.last - f.first);
  const auto registers =
      place_registers(insts, f.first, code_->lists, body_.widths, signatures_[body_.index].words);
  Places own;
  own.registers = registers.bytes;
  std::vector<std::uint32_t> by_width(f.constants.size());
  for (std::uint32_t i = 0; i < by_width.size(); ++i) by_width[i] = i;
  std::stable_sort(by_width.begin(), by_width.end(),
                   [&](auto a, auto b) { return f.constants[a].bytes > f.constants[b].bytes; });
  for (const auto i : by_width) {
    f.constants[i].slot = static_cast<Slot>(own.constants);
    own.constants += f.constants[i].bytes;
  }
  own.constants = round_up(own.constants, 8);
  own.local = round_up(body_.local_bytes, 16);
  if (own.registers > max_bytes_per_lane || own.constants > max_bytes_per_lane)
    return error("a function with more than 16 MiB of registers in each thread", ErrorCode::not_supported);
  for (auto& i : insts)
    for_each_slot(i, code_->lists, [&](Slot& s, bool) {
      if (s & constant_bit)
        s = constant_bit | f.constants[s & ~constant_bit].slot;
      else if (!(s & foreign_bit))
        s = registers.places[s];
    });
  own_.resize(signatures_.size());
  own_[body_.index] = own;
}

// Callers before callees. False when there is a cycle.
bool Decoder::order_functions(const std::vector<std::vector<std::uint32_t>>& callees,
                              std::vector<std::uint32_t>& order) {
  std::vector<std::uint32_t> callers(callees.size(), 0);
  for (const auto& list : callees)
    for (const auto callee : list) ++callers[callee];
  for (std::uint32_t f = 0; f < callees.size(); ++f)
    if (callers[f] == 0) order.push_back(f);
  for (std::size_t next = 0; next < order.size(); ++next)
    for (const auto callee : callees[order[next]])
      if (--callers[callee] == 0) order.push_back(callee);
  return order.size() == callees.size();
}

void Decoder::rewrite(const Function& f, const Places& base, const std::vector<Places>& bases) {
  for (auto at = f.first; at < f.last; ++at) {
    Inst& i = code_->insts[at];
    for_each_slot(i, code_->lists, [&](Slot& s, bool) {
      if (s & constant_bit)
        s += static_cast<Slot>(base.constants);
      else if (s & foreign_bit) {
        const Foreign& word = foreign_[s & ~foreign_bit];
        s = static_cast<Slot>(bases[word.function].registers + std::uint64_t{word.word} * 8);
      } else {
        s += static_cast<Slot>(base.registers);
      }
    });
    if (i.space == Space::local && i.a == no_slot) i.imm += static_cast<std::int64_t>(base.local);
    if (i.op == Op::call) i.imm = code_->functions[static_cast<std::size_t>(i.imm)].first;
  }
}

void Decoder::finish_module() {
  const std::size_t count = signatures_.size();
  own_.resize(count);
  std::vector<std::vector<std::uint32_t>> callees(count);
  for (const auto& call : calls_) {
    line_ = call.line;
    if (signatures_[call.callee].is_entry)
      return error("a call of '" + code_->functions[call.callee].name + "', which is a kernel");
    if (!signatures_[call.callee].defined)
      return error("a call of '" + code_->functions[call.callee].name + "', which has no body in this module",
                   ErrorCode::not_supported);
    callees[call.caller].push_back(call.callee);
  }
  for (auto& list : callees) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  std::vector<std::uint32_t> order;
  if (!order_functions(callees, order))
    return error("recursive functions are not supported", ErrorCode::not_supported);

  std::vector<Places> bases(count);
  std::uint64_t constants = 0;
  for (std::uint32_t f = 0; f < count; ++f)
    if (!signatures_[f].is_entry) bases[f].constants = constants, constants += own_[f].constants;
  for (std::uint32_t f = 0; f < count; ++f)
    if (signatures_[f].is_entry) bases[f].constants = constants;
  for (const auto f : order)
    for (const auto callee : callees[f]) {
      bases[callee].registers = std::max(bases[callee].registers, bases[f].registers + own_[f].registers);
      bases[callee].local = std::max(bases[callee].local, bases[f].local + own_[f].local);
    }
  std::size_t reachable = 0;
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    Function& f = code_->functions[*at];
    std::uint64_t registers = bases[*at].registers + own_[*at].registers,
                  local = bases[*at].local + own_[*at].local;
    for (const auto callee : callees[*at]) {
      const Function& c = code_->functions[callee];
      registers = std::max<std::uint64_t>(registers, c.register_bytes);
      local = std::max<std::uint64_t>(local, c.local_bytes);
      f.callees.push_back(callee);
      f.callees.insert(f.callees.end(), c.callees.begin(), c.callees.end());
      reachable += f.callees.size();
      if (reachable > max_reachable)
        return error("too many calls between functions", ErrorCode::not_supported);
    }
    std::sort(f.callees.begin(), f.callees.end());
    f.callees.erase(std::unique(f.callees.begin(), f.callees.end()), f.callees.end());
    const std::uint64_t last_constant = bases[*at].constants + own_[*at].constants;
    if (registers > max_bytes_per_lane || last_constant > max_bytes_per_lane || local > max_bytes_per_lane)
      return error("'" + f.name + "' and its callees need too many registers or too much local memory",
                   ErrorCode::not_supported);
    f.register_bytes = static_cast<std::uint32_t>(registers);
    f.local_bytes = static_cast<std::uint32_t>(local);
    f.constant_bytes = static_cast<std::uint32_t>(last_constant);
  }
  for (std::uint32_t f = 0; f < count; ++f) {
    Function& function = code_->functions[f];
    for (auto& c : function.constants) {
      c.slot += static_cast<Slot>(bases[f].constants);
      const bool is_local = c.kind == Constant::Kind::literal && c.variable == 1;
      if (is_local) c.value += bases[f].local;
    }
    if (signatures_[f].defined) rewrite(function, bases[f], bases);
  }
  for (std::size_t e = 0; e < program_->entries.size(); ++e) {
    const Function& f = code_->functions[code_->entry_functions[e]];
    Entry& entry = program_->entries[e];
    entry.shared_bytes = shared_layout(*code_, f).static_bytes;
    entry.local_bytes = f.local_bytes;
    entry.registers = std::min(255u, (f.register_bytes + 3) / 4);
  }
}

}  // namespace cenote::cuda::ptx
