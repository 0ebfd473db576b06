// Loads, stores, atomics and address conversions.
#include "cuda/ptx/decoder.h"

namespace cenote::cuda::ptx {

// Everything between the mnemonic and the type: state space, ordering, cache hints, vector size.
bool Decoder::take_access_modifiers(Inst& i, std::uint8_t& elements) {
  static constexpr std::pair<std::string_view, Space> spaces[] = {
      {"global", Space::global},      {"const", Space::constant},   {"shared", Space::shared},
      {"local", Space::local},        {"param", Space::param},      {"shared::cta", Space::shared},
      {"param::entry", Space::param}, {"param::func", Space::param}};
  static constexpr std::string_view ignored[] = {"weak", "sys", "gpu", "cta",         "cluster",
                                                 "ca",   "cg",  "cs",  "lu",          "cv",
                                                 "wb",   "wt",  "nc",  "evict_first", "evict_last"};
  static constexpr std::string_view orders[] = {"volatile", "relaxed", "acquire",
                                                "release",  "acq_rel", "mmio"};
  for (const auto& [name, space] : spaces)
    if (mods_.take(name)) i.space = space;
  for (const auto name : ignored) mods_.take(name);
  for (const auto name : orders) i.ordered |= mods_.take(name);
  std::erase_if(mods_.list,
                [](std::string_view m) { return m.starts_with("L1::") || m.starts_with("L2::"); });
  elements = mods_.take("v2") ? 2 : mods_.take("v4") ? 4 : mods_.take("v8") ? 8 : 1;
  return true;
}

// Sets the address of an access from [base+offset].
bool Decoder::place(Inst& i, const Operand& address) {
  if (address.kind != Operand::Kind::address) {
    error("'" + std::string(mnemonic_) + "' needs an address in brackets");
    return false;
  }
  i.imm = static_cast<std::int64_t>(address.value);
  if (address.elements.empty()) return good();
  const Operand& base = address.elements.front();
  if (base.kind == Operand::Kind::reg) {
    if (base.symbol->width != 4 && base.symbol->width != 8) error("an address register has 32 or 64 bits");
    i.width_a = base.symbol->width;
    i.a = register_of(*base.symbol, base.name);
    return good();
  }
  const auto kind = base.symbol->kind;
  if (kind == Symbol::Kind::local) {
    i.space = Space::local;
    i.imm += static_cast<std::int64_t>(base.symbol->offset);
    return good();
  }
  if (kind == Symbol::Kind::entry_param) {
    i.space = Space::param;
    i.imm += static_cast<std::int64_t>(base.symbol->offset);
    return good();
  }
  if (kind == Symbol::Kind::shared) i.space = Space::shared;
  i.width_a = kind == Symbol::Kind::shared ? 4 : 8;
  i.a = symbol_address(base, i.width_a);
  return good();
}

// Access to a .param variable of a function: it lives in registers, 8 bytes each.
void Decoder::load_words(const Operand& address, Type type, const std::vector<Operand>& elements,
                         bool is_store) {
  const Symbol& s = *address.elements.front().symbol;
  for (std::size_t k = 0; good() && k < elements.size(); ++k) {
    const std::uint64_t offset = address.value + k * type.width;
    if (offset > s.size || s.size - offset < type.width || offset % type.width != 0)
      return error("an access outside of '" + std::string(address.elements.front().name) + "'");
    const unsigned width = width_of(elements[k], type.width);
    if (width < type.width) return error("a register of '" + std::string(mnemonic_) + "' is too small");
    const Slot value = is_store ? source(elements[k], width) : target(elements[k], width);
    const auto word = s.index + static_cast<Slot>(offset / 8);
    Inst& i = is_store ? emit(Op::store_slot, word, value) : emit(Op::load_slot, value, word);
    i.type = type.num;
    i.imm = static_cast<std::int64_t>(offset % 8);
    i.width_d = static_cast<std::uint8_t>(width);
  }
}

void Decoder::load() {
  Inst access;
  std::uint8_t count = 1;
  take_access_modifiers(access, count);
  const auto type = mods_.list.size() == 1 ? find_type(mods_.list[0]) : std::nullopt;
  if (!type || type->pred) return unsupported();
  if (!count_operands(2, 2)) return;
  const std::vector<Operand> elements =
      arg(0).kind == Operand::Kind::vector ? arg(0).elements : std::vector{arg(0)};
  if (elements.size() != count) return error("'" + std::string(mnemonic_) + "' has a vector of another size");
  const Operand& from = arg(1);
  if (from.kind == Operand::Kind::address && !from.elements.empty() &&
      from.elements[0].kind == Operand::Kind::symbol && from.elements[0].symbol->kind == Symbol::Kind::words)
    return load_words(from, *type, elements, false);
  if (!place(access, from)) return;
  access.width_d = static_cast<std::uint8_t>(width_of(elements[0], type->width));
  std::vector<Slot> slots;
  for (const auto& element : elements) {
    const unsigned width = width_of(element, access.width_d);
    if (width < type->width || width != access.width_d)
      error("a register of '" + std::string(mnemonic_) + "' has the wrong size");
    slots.push_back(target(element, width));
  }
  if (!good()) return;
  if (access.space == Space::param && access.a == no_slot) return load_kernel_param(access, *type, slots);
  Inst& i = emit(Op::load, no_slot, access.a);
  i.space = access.space;
  i.ordered = access.ordered;
  i.imm = access.imm;
  i.width_a = access.width_a;
  i.width_d = access.width_d;
  i.type = type->num;
  i.count = count;
  i.list = static_cast<std::uint32_t>(code_->lists.size());
  code_->lists.insert(code_->lists.end(), slots.begin(), slots.end());
}

// A kernel's parameter at a fixed place is the same in all lanes: a constant of the launch.
void Decoder::load_kernel_param(const Inst& access, Type type, const std::vector<Slot>& slots) {
  const Entry* entry = code_->functions[body_.index].is_entry ? &program_->entries.back() : nullptr;
  const auto bytes = static_cast<std::uint64_t>(type.width) * slots.size();
  if (entry == nullptr || access.imm < 0 ||
      static_cast<std::uint64_t>(access.imm) + bytes > entry->param_bytes)
    return error("'" + std::string(mnemonic_) + "' reads outside of the parameters");
  for (std::size_t k = 0; k < slots.size(); ++k) {
    const auto offset = static_cast<std::uint64_t>(access.imm) + k * type.width;
    const Slot value = constant(Constant::Kind::param, type.width, offset, 0, Special::tid_x);
    resize(slots[k], access.width_d, value, type.width, is_signed(type.num));
  }
}

void Decoder::store() {
  Inst access;
  std::uint8_t count = 1;
  take_access_modifiers(access, count);
  const auto type = mods_.list.size() == 1 ? find_type(mods_.list[0]) : std::nullopt;
  if (!type || type->pred) return unsupported();
  if (!count_operands(2, 2)) return;
  const std::vector<Operand> elements =
      arg(1).kind == Operand::Kind::vector ? arg(1).elements : std::vector{arg(1)};
  if (elements.size() != count) return error("'" + std::string(mnemonic_) + "' has a vector of another size");
  const Operand& to = arg(0);
  if (to.kind == Operand::Kind::address && !to.elements.empty() &&
      to.elements[0].kind == Operand::Kind::symbol && to.elements[0].symbol->kind == Symbol::Kind::words)
    return load_words(to, *type, elements, true);
  if (!place(access, to)) return;
  if (access.space == Space::param || access.space == Space::constant)
    return error("a store to a read-only state space");
  std::vector<Slot> slots;
  for (const auto& element : elements) {
    const unsigned width = width_of(element, type->width);
    if (width < type->width) error("a register of '" + std::string(mnemonic_) + "' is too small");
    Slot value = source(element, width);
    if (width > type->width) {  // the low bytes
      const Slot part = temporary(type->width);
      resize(part, type->width, value, width, false);
      value = part;
    }
    slots.push_back(value);
  }
  if (!good()) return;
  Inst& i = emit(Op::store, no_slot, access.a);
  i.space = access.space;
  i.ordered = access.ordered;
  i.imm = access.imm;
  i.width_a = access.width_a;
  i.width_d = type->width;
  i.type = type->num;
  i.count = count;
  i.list = static_cast<std::uint32_t>(code_->lists.size());
  code_->lists.insert(code_->lists.end(), slots.begin(), slots.end());
}

// atom[.order][.scope][.space].op[.noftz].type d, [a], b[, c]   red: the same without d
void Decoder::atomic(bool has_result) {
  Inst access;
  std::uint8_t count = 1;
  take_access_modifiers(access, count);
  mods_.take("noftz");
  if (mods_.list.size() != 2 || count != 1) return unsupported();
  static constexpr std::pair<std::string_view, AtomicOp> ops[] = {
      {"add", AtomicOp::add},   {"min", AtomicOp::min},  {"max", AtomicOp::max}, {"inc", AtomicOp::inc},
      {"dec", AtomicOp::dec},   {"and", AtomicOp::and_}, {"or", AtomicOp::or_},  {"xor", AtomicOp::xor_},
      {"exch", AtomicOp::exch}, {"cas", AtomicOp::cas}};
  std::optional<AtomicOp> op;
  for (const auto& [name, value] : ops)
    if (mods_.list[0] == name) op = value;
  const auto type = find_type(mods_.list[1]);
  if (!op || !type || type->pred || type->width == 1 || mods_.list[1].ends_with("x2")) return unsupported();
  if (is_float(type->num) && *op != AtomicOp::add) return unsupported();
  if (type->width == 2 && !is_float(type->num) && *op != AtomicOp::cas) return unsupported();
  const std::size_t first = has_result ? 1 : 0, sources = *op == AtomicOp::cas ? 2 : 1;
  if (!count_operands(first + 1 + sources, first + 1 + sources)) return;
  if (!place(access, arg(first))) return;
  if (access.space != Space::generic && access.space != Space::global && access.space != Space::shared)
    return unsupported();
  const Slot b = source(arg(first + 1), type->width);
  const Slot c = sources == 2 ? source(arg(first + 2), type->width) : no_slot;
  const Slot d = has_result ? target(arg(0), type->width) : no_slot;
  if (!good()) return;
  Inst& i = emit(Op::atomic, d, access.a, b, c);
  i.space = access.space;
  i.imm = access.imm;
  i.width_a = access.width_a;
  i.width_d = type->width;
  i.type = type->num;
  i.mode = static_cast<std::uint8_t>(*op);
}

// cvta[.to].space.size d, a   isspacep.space p, a
void Decoder::convert_address() {
  const bool test = mods_.base == "isspacep", to = mods_.take("to");
  Inst access;
  std::uint8_t count = 1;
  take_access_modifiers(access, count);
  const unsigned width = test || mods_.take("u64") ? 8 : mods_.take("u32") ? 4 : 0;
  if (!mods_.list.empty() || width == 0 || access.space == Space::generic) return unsupported();
  if (!count_operands(2, 2)) return;
  const Slot a = source(arg(1), test ? width_of(arg(1), 8) : width);
  const Slot d = target(arg(0), test ? 1 : width);
  if (!good()) return;
  const bool identity = access.space == Space::global || access.space == Space::constant || width == 4;
  if (test && width_of(arg(1), 8) != 8) return unsupported();
  if (identity && !test) return void(emit(width == 8 ? Op::mov_b64 : Op::mov_b32, d, a));
  Inst& i = emit(test ? Op::is_space : to ? Op::from_generic : Op::to_generic, d, a);
  i.space = access.space;
}

}  // namespace cenote::cuda::ptx
