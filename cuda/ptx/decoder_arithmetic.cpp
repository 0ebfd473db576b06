// Instructions that every lane executes by itself: rows of ops.def, after .ftz, .sat and predicates have been
// made into further rows.
#include <unordered_map>

#include "cuda/ptx/decoder.h"

namespace cenote::cuda::ptx {
namespace {

constexpr unsigned width_named(std::string_view type) {
  if (type == "pred" || type == "u8" || type == "s8") return 1;
  if (type == "u16" || type == "s16") return 2;
  if (type == "u32" || type == "s32" || type == "f32") return 4;
  return 8;
}

constexpr Shape shape_of(std::string_view types) {
  std::uint8_t widths[5] = {};
  types = types.substr(1, types.size() - 2);
  for (auto& width : widths) {
    if (types.empty()) break;
    const auto comma = types.find(',');
    width = static_cast<std::uint8_t>(width_named(types.substr(0, comma)));
    types = comma == std::string_view::npos ? std::string_view{} : types.substr(comma + 2);
  }
  return {widths[0], widths[1], widths[2], widths[3], widths[4]};
}

bool is_float_name(std::string_view type) { return type.starts_with('f') || type.starts_with("bf"); }

}  // namespace

const std::array<Shape, static_cast<std::size_t>(Op::convert)> shapes = {
#define CENOTE_OP(name, mnemonics, types, ...) shape_of(#types),
#include "cuda/ptx/ops.def"
#undef CENOTE_OP
};

const Row* find_row(std::string_view mnemonic) {
  static const auto* const rows = [] {
    auto* table =
        new std::unordered_map<std::string_view, Row>;  // lives as long as the process: no destruction order
    const auto add = [table](Op op, std::string_view mnemonics, std::string_view types) {
      while (!mnemonics.empty()) {
        const auto bar = std::min(mnemonics.find('|'), mnemonics.size());
        table->emplace(mnemonics.substr(0, bar), Row{op, types});
        mnemonics.remove_prefix(std::min(bar + 1, mnemonics.size()));
      }
    };
#define CENOTE_OP(name, mnemonics, types, ...) add(Op::name, mnemonics, #types);
#include "cuda/ptx/ops.def"
#undef CENOTE_OP
    return table;
  }();
  const auto found = rows->find(mnemonic);
  return found == rows->end() ? nullptr : &found->second;
}

Slot Decoder::flushed(Slot a) {
  const Slot d = temporary(4);
  emit(Op::ftz_f32, d, a);
  return d;
}

void Decoder::row_instruction() {
  if (mods_.list.empty()) return unsupported();
  const auto type = mods_.list.back();
  const bool floating = is_float_name(type);
  const bool flush = floating && mods_.take("ftz") && type == "f32";
  const bool saturate = floating && mods_.take("sat");
  if (floating) mods_.take("rn");
  std::string name(mods_.base);
  for (const auto modifier : mods_.list) (name += '.') += modifier;
  const Row* row = name.front() == '!' ? nullptr : find_row(name);
  if (row == nullptr || (saturate && type != "f32" && type != "f64")) return unsupported();
  const Shape shape = shapes[static_cast<std::size_t>(row->op)];
  const std::size_t sources = (shape.a != 0) + (shape.b != 0) + (shape.c != 0) + (shape.e != 0);
  if (!count_operands(sources + 1, sources + 1)) return;
  const std::uint8_t widths[4] = {shape.a, shape.b, shape.c, shape.e};
  Slot from[4] = {no_slot, no_slot, no_slot, no_slot};
  for (std::size_t i = 0; i < sources; ++i) {
    from[i] = source(arg(i + 1), widths[i]);
    if (flush && widths[i] == 4) from[i] = flushed(from[i]);
  }
  const Slot d = target(arg(0), shape.d);
  if (!good()) return;
  emit(row->op, d, from[0], from[1], from[2], from[3]);
  if (flush && shape.d == 4) emit(Op::ftz_f32, d, d);
  if (saturate) emit(type == "f32" ? Op::sat_f32 : Op::sat_f64, d, d);
}

// setp.cmp[.bool][.ftz].type p[|q], a, b[, [!]c]   and   set.cmp[.bool][.ftz].dtype.type d, a, b[, [!]c]
void Decoder::compare(bool set) {
  if (mods_.list.size() < (set ? 3u : 2u)) return unsupported();
  const auto type = mods_.list.back();
  const auto result = set ? mods_.list[mods_.list.size() - 2] : std::string_view{};
  const bool flush = mods_.take("ftz") && type == "f32";
  std::optional<Op> combine;
  if (mods_.take("and"))
    combine = Op::and_pred;
  else if (mods_.take("or"))
    combine = Op::or_pred;
  else if (mods_.take("xor"))
    combine = Op::xor_pred;
  if (mods_.list.size() != (set ? 3u : 2u)) return unsupported();
  const Row* row = find_row("setp." + std::string(mods_.list[0]) + "." + std::string(type));
  if (row == nullptr) return unsupported();
  if (!count_operands(combine ? 4 : 3, combine ? 4 : 3)) return;
  const Shape shape = shapes[static_cast<std::size_t>(row->op)];
  Slot a = source(arg(1), shape.a), b = source(arg(2), shape.b);
  const Slot c = combine ? predicate(arg(3)) : no_slot;
  if (!good()) return;
  if (flush) a = flushed(a), b = flushed(b);
  const Slot holds = temporary(1);
  if (set) {
    const bool single = result == "f32";
    if (!single && result != "u32" && result != "s32") return unsupported();
    emit(row->op, holds, a, b);
    if (combine) emit(*combine, holds, holds, c);
    const Slot d = target(arg(0), 4);
    emit(Op::selp_b32, d, constant(single ? 0x3F800000u : 0xFFFFFFFFu, 4), constant(0, 4), holds);
    return;
  }
  const Slot p = target(arg(0), 1);
  Symbol* second = arg(0).second.empty() || arg(0).second == "_" ? nullptr : find(arg(0).second);
  const bool has_second = !arg(0).second.empty() && arg(0).second != "_";
  if (has_second && (second == nullptr || second->kind != Symbol::Kind::reg || second->width != 1))
    return error("'" + std::string(arg(0).second) + "' is no predicate");
  if (!good()) return;
  if (!combine && !has_second) return void(emit(row->op, p, a, b));
  emit(row->op, holds, a, b);
  Slot opposite = no_slot;
  if (has_second) {
    opposite = temporary(1);
    emit(Op::not_pred, opposite, holds);
    if (combine) emit(*combine, opposite, opposite, c);
  }
  if (combine)
    emit(*combine, p, holds, c);
  else
    emit(Op::mov_pred, p, holds);
  if (has_second) emit(Op::mov_pred, register_of(*second, arg(0).second), opposite);
}

void Decoder::resize(Slot d, unsigned to, Slot a, unsigned from, bool sign) {
  const auto num = [sign](unsigned width) {
    const unsigned log = width == 1 ? 0 : width == 2 ? 1 : width == 4 ? 2 : 3;
    return log * 2 + (sign ? 1 : 0);
  };
  emit(static_cast<Op>(static_cast<unsigned>(Op::convert) + num(to) * number_types + num(from)), d, a);
}

// cvt[.round][.ftz][.sat].dtype.type d, a; registers may be wider than the types.
void Decoder::convert() {
  if (mods_.list.size() < 2) return unsupported();
  const auto to = find_type(mods_.list[mods_.list.size() - 2]), from = find_type(mods_.list.back());
  if (mods_.list[mods_.list.size() - 2].ends_with("x2")) return row_instruction();
  if (!to || !from || to->pred || from->pred || mods_.list.back().ends_with("x2")) return unsupported();
  static constexpr std::pair<std::string_view, Round> rounds[] = {
      {"rn", Round::rn},   {"rz", Round::rz},   {"rm", Round::rm},   {"rp", Round::rp},
      {"rni", Round::rni}, {"rzi", Round::rzi}, {"rmi", Round::rmi}, {"rpi", Round::rpi}};
  Round round = Round::none;
  for (const auto& [name, value] : rounds)
    if (mods_.take(name)) round = value;
  const bool flush = mods_.take("ftz"), saturate = mods_.take("sat");
  if (mods_.list.size() != 2) return unsupported();
  if (!is_float(to->num) && is_float(from->num) && round < Round::rni)
    return error("'" + std::string(mnemonic_) + "' needs a rounding");
  if (!count_operands(2, 2)) return;
  const unsigned from_width = width_of(arg(1), from->width), to_width = width_of(arg(0), to->width);
  if (from_width < from->width || to_width < to->width ||
      (is_float(from->num) && from_width != from->width) || (is_float(to->num) && to_width != to->width))
    return error("a register of '" + std::string(mnemonic_) + "' has the wrong size");
  Slot a = source(arg(1), from_width);
  const Slot d = target(arg(0), to_width);
  if (!good()) return;
  if (from_width > from->width) {
    const Slot part = temporary(from->width);
    resize(part, from->width, a, from_width, false);
    a = part;
  }
  if (flush && from->num == Num::f32) a = flushed(a);
  const Slot result = to_width > to->width ? temporary(to->width) : d;
  Inst& i =
      emit(static_cast<Op>(static_cast<unsigned>(Op::convert) +
                           static_cast<unsigned>(to->num) * number_types + static_cast<unsigned>(from->num)),
           result, a);
  i.mode = static_cast<std::uint8_t>(round);
  i.saturate = saturate;
  if (flush && to->num == Num::f32) emit(Op::ftz_f32, result, result);
  if (result != d) resize(d, to_width, result, to->width, is_signed(to->num));
}

// mov, with a vector on one side or an address on the right too.
void Decoder::move() {
  if (!count_operands(2, 2)) return;
  const bool to_vector = arg(0).kind == Operand::Kind::vector,
             from_vector = arg(1).kind == Operand::Kind::vector;
  if (!to_vector && !from_vector) return row_instruction();
  const Type type =
      mods_.list.size() == 1 ? find_type(mods_.list[0]).value_or(Type{Num::u8, 1}) : Type{Num::u8, 1};
  const auto& elements = to_vector ? arg(0).elements : arg(1).elements;
  const auto count = static_cast<unsigned>(elements.size());
  if (to_vector == from_vector || (count != 2 && count != 4) || type.width < 4) return unsupported();
  const unsigned part = type.width / count;
  const Row* row = find_row((to_vector ? "!part" : "!pack") + std::string(count == 4 ? "4.b" : ".b") +
                            std::to_string(type.width * 8));
  if (row == nullptr) return unsupported();
  if (to_vector) {
    const Slot whole = temporary(type.width);
    emit(type.width == 8 ? Op::mov_b64 : Op::mov_b32, whole, source(arg(1), type.width));
    for (unsigned i = 0; good() && i < count; ++i) {
      if (elements[i].kind == Operand::Kind::sink) continue;
      const Slot d = part == 1 ? temporary(1) : target(elements[i], part);
      emit(row->op, d, whole, constant(std::uint64_t{i} * part * 8, 4));
      if (part == 1) resize(target(elements[i], 2), 2, d, 1, false);
    }
    return;
  }
  Slot from[4] = {no_slot, no_slot, no_slot, no_slot};
  for (unsigned i = 0; i < count; ++i) {
    if (part == 1) {
      from[i] = temporary(1);
      resize(from[i], 1, source(elements[i], 2), 2, false);
    } else {
      from[i] = source(elements[i], part);
    }
  }
  const Slot d = target(arg(0), type.width);
  if (good()) emit(row->op, d, from[0], from[1], from[2], from[3]);
}

// add.cc, addc[.cc], sub.cc, subc[.cc]
void Decoder::carry_chain() {
  const bool writes = mods_.take("cc"), reads = mods_.base.size() == 4,
             subtracts = mods_.base.starts_with("sub");
  const auto type = mods_.list.size() == 1 ? find_type(mods_.list[0]) : std::nullopt;
  if (!type || type->width < 4 || is_float(type->num)) return unsupported();
  if (!count_operands(3, 3)) return;
  const Slot a = source(arg(1), type->width), b = source(arg(2), type->width),
             d = target(arg(0), type->width);
  if (!good()) return;
  if (body_.carry == no_slot) body_.carry = fresh(1);
  const Slot in = reads ? body_.carry : constant(0, 1), out = temporary(1);
  const bool wide = type->width == 8;
  if (writes)
    emit(subtracts ? (wide ? Op::subc_out_b64 : Op::subc_out_b32)
                   : (wide ? Op::addc_out_b64 : Op::addc_out_b32),
         out, a, b, in);
  emit(subtracts ? (wide ? Op::subc_b64 : Op::subc_b32) : (wide ? Op::addc_b64 : Op::addc_b32), d, a, b, in);
  if (writes) emit(Op::mov_pred, body_.carry, out);
}

}  // namespace cenote::cuda::ptx
