// Bodies of functions: scopes, declarations, labels, operands. What an instruction means is decided
// elsewhere.
#include <algorithm>
#include <bit>
#include <charconv>

#include "cuda/ptx/decoder.h"

namespace cenote::cuda::ptx {
namespace {

constexpr std::uint64_t max_local_bytes = std::uint64_t{512} << 10;
constexpr int max_depth = 64;

struct SpecialName {
  std::string_view name;
  Special special;
  std::uint8_t width;
};
constexpr SpecialName special_names[] = {{"%tid.x", Special::tid_x, 4},
                                         {"%tid.y", Special::tid_y, 4},
                                         {"%tid.z", Special::tid_z, 4},
                                         {"%ntid.x", Special::ntid_x, 4},
                                         {"%ntid.y", Special::ntid_y, 4},
                                         {"%ntid.z", Special::ntid_z, 4},
                                         {"%ctaid.x", Special::ctaid_x, 4},
                                         {"%ctaid.y", Special::ctaid_y, 4},
                                         {"%ctaid.z", Special::ctaid_z, 4},
                                         {"%nctaid.x", Special::nctaid_x, 4},
                                         {"%nctaid.y", Special::nctaid_y, 4},
                                         {"%nctaid.z", Special::nctaid_z, 4},
                                         {"%laneid", Special::laneid, 4},
                                         {"%warpid", Special::warpid, 4},
                                         {"%nwarpid", Special::nwarpid, 4},
                                         {"%smid", Special::smid, 4},
                                         {"%nsmid", Special::nsmid, 4},
                                         {"%gridid", Special::gridid, 8},
                                         {"%lanemask_eq", Special::lanemask_eq, 4},
                                         {"%lanemask_le", Special::lanemask_le, 4},
                                         {"%lanemask_lt", Special::lanemask_lt, 4},
                                         {"%lanemask_ge", Special::lanemask_ge, 4},
                                         {"%lanemask_gt", Special::lanemask_gt, 4},
                                         {"%dynamic_smem_size", Special::dynamic_smem_size, 4},
                                         {"%total_smem_size", Special::total_smem_size, 4},
                                         {"%clock", Special::clock, 4},
                                         {"%clock_hi", Special::clock_hi, 4},
                                         {"%clock64", Special::clock64, 8},
                                         {"%globaltimer", Special::globaltimer, 8},
                                         {"%globaltimer_lo", Special::globaltimer_lo, 4},
                                         {"%globaltimer_hi", Special::globaltimer_hi, 4}};

bool changes(Special s) { return s >= Special::clock; }
}  // namespace

void Decoder::body() {
  expect('{');
  Function& f = code_->functions[body_.index];
  f.first = first_inst_ = static_cast<std::uint32_t>(code_->insts.size());
  int depth = 1;
  while (good() && depth > 0) statement(depth);
  if (!good()) return;
  guard_ = no_slot;
  emit(f.is_entry ? Op::exit : Op::return_);  // falling off the end
  for (const auto& [at, label] : body_.branches) {
    const auto found = body_.labels.find(label);
    if (found == body_.labels.end()) {
      line_ = code_->insts[at].line;
      return error("no label '" + std::string(label) + "' in this function");
    }
    code_->insts[at].imm = found->second;
  }
  finish_function();
}

void Decoder::statement(int& depth) {
  const Token& next = lex_.peek();
  line_ = next.line;
  if (next.kind == Token::Kind::end) return error("a function does not end");
  if (lex_.accept('{')) {
    if (++depth > max_depth) return error("blocks nested too deeply");
    scopes_.emplace_back();
    return;
  }
  if (lex_.accept('}')) {
    if (--depth > 0) scopes_.pop_back();
    return;
  }
  if (lex_.accept(';')) return;
  if (lex_.accept(".reg")) return declare_registers();
  if (next.is(".local") || next.is(".shared") || next.is(".param") || next.is(".global") ||
      next.is(".const")) {
    const auto space = lex_.take().text;
    if (space == ".shared" || space == ".global" || space == ".const") return variable(space, false);
    return declare_storage(space);
  }
  if (lex_.accept(".loc")) {  // .loc file line column[, function_name label[+n], inlined_at file line column]
    while (good() && lex_.peek().line == line_ && lex_.peek().kind != Token::Kind::end) lex_.take();
    return;
  }
  if (next.is(".pragma") || next.is(".callprototype") || next.is(".branchtargets") ||
      next.is(".calltargets")) {
    while (good() && !lex_.peek().is(';') && lex_.peek().kind != Token::Kind::end) lex_.take();
    return void(expect(';'));
  }
  if (lex_.at_label()) {
    const auto name = lex_.take().text;
    lex_.take();
    if (lex_.peek().is(".callprototype") || lex_.peek().is(".branchtargets") ||
        lex_.peek().is(".calltargets"))
      return;
    if (!body_.labels.emplace(name, static_cast<std::uint32_t>(code_->insts.size())).second)
      error("label '" + std::string(name) + "' is defined twice");
    return;
  }
  guard_ = no_slot;
  guard_negated_ = false;
  std::fill(std::begin(body_.temporaries_used), std::end(body_.temporaries_used), std::size_t{0});
  if (lex_.accept('@')) {
    guard_negated_ = lex_.accept('!');
    const Operand p = operand();
    if (!good()) return;
    if (p.kind != Operand::Kind::reg || p.symbol->width != 1) return error("a guard has to be a predicate");
    guard_ = register_of(*p.symbol, p.name);
  }
  if (lex_.peek().kind != Token::Kind::word)
    return error("expected an instruction but found '" + std::string(lex_.peek().text) + "'");
  instruction(lex_.take_dotted().text);
}

void Decoder::declare_registers() {
  const Token t = lex_.take();
  const auto type = t.kind == Token::Kind::directive ? find_type(t.text.substr(1)) : std::nullopt;
  if (!type) return error("unknown register type '" + std::string(t.text) + "'", ErrorCode::not_supported);
  do {
    const Token name = lex_.take();
    if (name.kind != Token::Kind::word) return error("expected the name of a register");
    Symbol s;
    s.width = type->width;
    if (s.width == 1 && !type->pred) s.width = 2;  // .b8 registers exist in old texts only
    if (lex_.accept('<')) {
      s.kind = Symbol::Kind::reg_range;
      s.size = integer_expression();
      expect('>');
    }
    declare(name.text, s);
  } while (good() && lex_.accept(','));
  expect(';');
}

void Decoder::declare_storage(std::string_view space) {
  do {
    const auto d = declaration();
    if (!good()) return;
    Symbol s;
    s.size = d.size;
    if (space == ".local") {
      s.kind = Symbol::Kind::local;
      s.offset = (body_.local_bytes + d.align - 1) / d.align * d.align;
      if (d.size > max_local_bytes || s.offset + d.size > max_local_bytes)
        return error("more than 512 KiB of local memory in one thread", ErrorCode::not_supported);
      body_.local_bytes = s.offset + d.size;
    } else {
      s.kind = Symbol::Kind::words;
      if (d.size > 4096) return error("an argument is larger than 4096 bytes", ErrorCode::not_supported);
      const std::uint64_t count = (d.size + 7) / 8;
      if (count > max_registers - body_.widths.size())
        return error("too many registers in one function", ErrorCode::not_supported);
      s.index = static_cast<std::uint32_t>(body_.widths.size());
      body_.widths.insert(body_.widths.end(), count, 8);
    }
    declare(d.name, s);
  } while (good() && lex_.accept(','));
  expect(';');
}

Symbol* Decoder::declare(std::string_view name, Symbol symbol) {
  const auto [at, is_new] = scopes_.back().emplace(name, symbol);
  if (!is_new) {
    const bool again = scopes_.size() == 1 && at->second.kind == symbol.kind;
    if (!again)
      error("'" + std::string(name) + "' is declared twice");
    else
      at->second = symbol;
  }
  return &at->second;
}

// A register %r17 of `.reg .b32 %r<20>` becomes a symbol of its own on first use, in the scope of the range.
Symbol* Decoder::find(std::string_view name) {
  auto digits = name.size();
  while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->find(name); found != scope->end()) return &found->second;
    // A prefix may end in digits itself (%rd1<3>): try every split, shortest number last.
    for (auto split = digits; split < name.size() && name.size() - split <= 10; ++split) {
      const auto range = scope->find(name.substr(0, split));
      if (range == scope->end() || range->second.kind != Symbol::Kind::reg_range) continue;
      std::uint64_t number = 0;
      std::from_chars(name.data() + split, name.data() + name.size(), number);
      if (number >= range->second.size || (name[split] == '0' && name.size() - split > 1)) continue;
      Symbol s;
      s.width = range->second.width;
      return &scope->emplace(name, s).first->second;
    }
  }
  return nullptr;
}

Slot Decoder::register_of(Symbol& symbol, std::string_view) {
  if (symbol.index == 0) symbol.index = fresh(symbol.width) + 1;
  return symbol.index - 1;
}

Slot Decoder::fresh(unsigned width) {
  if (body_.widths.size() >= max_registers) {
    error("too many registers in one function", ErrorCode::not_supported);
    return 0;
  }
  body_.widths.push_back(static_cast<std::uint8_t>(width));
  return static_cast<Slot>(body_.widths.size() - 1);
}

// Valid until the next instruction.
Slot Decoder::temporary(unsigned width) {
  auto& pool = body_.temporaries[width];
  auto& used = body_.temporaries_used[width];
  if (used == pool.size()) pool.push_back(fresh(width));
  return pool[used++];
}

Slot Decoder::constant(std::uint64_t value, unsigned width) {
  if (width < 8) value &= (std::uint64_t{1} << width * 8) - 1;
  return constant(Constant::Kind::literal, width, value, 0, Special::tid_x);
}

Slot Decoder::constant(Constant::Kind kind, unsigned width, std::uint64_t value, std::uint32_t index,
                       Special special) {
  auto& list = code_->functions[body_.index].constants;
  const auto key =
      std::make_tuple(static_cast<int>(kind) * 256 + static_cast<int>(special), width, value, index);
  const auto [at, is_new] = body_.constants.emplace(key, static_cast<std::uint32_t>(list.size()));
  if (is_new) {
    Constant c;
    c.kind = kind;
    c.bytes = static_cast<std::uint8_t>(width);
    c.special = special;
    c.value = value;
    c.variable = index;
    list.push_back(c);
  }
  return constant_bit | at->second;
}

Slot Decoder::special(std::string_view name, unsigned width) {
  Special which = Special::tid_x;
  unsigned natural = 0;
  std::uint64_t index = 0;
  for (const auto& s : special_names)
    if (s.name == name) which = s.special, natural = s.width;
  if (name.starts_with("%envreg")) {
    which = Special::envreg;
    natural = 4;
    std::from_chars(name.data() + 7, name.data() + name.size(), index);
  }
  if (natural == 0) {
    error("unsupported special register '" + std::string(name) + "'", ErrorCode::not_supported);
    return 0;
  }
  if (!changes(which)) return constant(Constant::Kind::special, width, index, 0, which);
  const Slot d = temporary(width);
  Inst& i = emit(Op::special, d);
  i.mode = static_cast<std::uint8_t>(which);
  i.width_d = static_cast<std::uint8_t>(width);
  return d;
}

Slot Decoder::symbol_address(const Operand& o, unsigned width) {
  const Symbol& s = *o.symbol;
  switch (s.kind) {
    case Symbol::Kind::variable:
      return constant(Constant::Kind::variable, width, o.value, s.index, Special::tid_x);
    case Symbol::Kind::shared: {
      auto& used = code_->functions[body_.index].shared;
      if (used.empty() || used.back() != s.index) used.push_back(s.index);
      return constant(Constant::Kind::shared, width, o.value, s.index, Special::tid_x);
    }
    case Symbol::Kind::local: {
      // A constant of its own kind until the place of the function's local memory is known: see layout.cpp.
      return constant(Constant::Kind::literal, width, s.offset + o.value, 1, Special::tid_x);
    }
    case Symbol::Kind::entry_param:
      return constant(s.offset + o.value, width);
    default:
      error("'" + std::string(o.name) + "' has no address here", ErrorCode::not_supported);
      return 0;
  }
}

Slot Decoder::source(const Operand& o, unsigned width) {
  if (!good()) return 0;
  switch (o.kind) {
    case Operand::Kind::reg: {
      const Slot slot = register_of(*o.symbol, o.name);
      if (o.symbol->width != width) {
        error("register '" + std::string(o.name) + "' has " + std::to_string(o.symbol->width * 8) +
              " bits where '" + std::string(mnemonic_) + "' takes " + std::to_string(width * 8));
        return 0;
      }
      if (!o.negated) return slot;
      const Slot flipped = temporary(1);
      emit(Op::not_pred, flipped, slot);
      return flipped;
    }
    case Operand::Kind::integer:
      return constant(width == 1 && mods_.has("pred") ? std::uint64_t{o.value != 0} : o.value, width);
    case Operand::Kind::float32:
    case Operand::Kind::float64: {
      const bool single = o.kind == Operand::Kind::float32;
      double real = single ? static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(o.value)))
                           : std::bit_cast<double>(o.value);
      if (o.float_sign) real = -real;
      if (width == 8) return constant(std::bit_cast<std::uint64_t>(real), 8);
      if (width == 4 && single) return constant(o.value ^ (o.float_sign ? 0x80000000u : 0u), 4);
      if (width == 4) return constant(std::bit_cast<std::uint32_t>(static_cast<float>(real)), 4);
      error("a floating-point number where '" + std::string(mnemonic_) + "' takes " +
            std::to_string(width * 8) + " bits");
      return 0;
    }
    case Operand::Kind::special:
      return special(o.name, width);
    case Operand::Kind::symbol:
      if (width < 4) break;
      return symbol_address(o, width);
    default:
      break;
  }
  error("an operand of '" + std::string(mnemonic_) + "' is of the wrong kind");
  return 0;
}

unsigned Decoder::width_of(const Operand& o, unsigned natural) {
  return o.kind == Operand::Kind::reg ? o.symbol->width : natural;
}

Slot Decoder::target(const Operand& o, unsigned width) {
  if (!good()) return 0;
  if (o.kind == Operand::Kind::sink) return temporary(width);
  if (o.kind == Operand::Kind::reg && !o.negated && o.symbol->width == width)
    return register_of(*o.symbol, o.name);
  error("the result of '" + std::string(mnemonic_) + "' has to be a register of " +
        (width == 1 ? std::string("type pred") : std::to_string(width * 8) + " bits"));
  return 0;
}

Slot Decoder::predicate(const Operand& o) { return source(o, 1); }

Inst& Decoder::emit(Op op, Slot d, Slot a, Slot b, Slot c, Slot e) {
  if (code_->insts.size() >= max_instructions) error("too many instructions", ErrorCode::not_supported);
  Inst i;
  i.op = op;
  i.line = line_;
  i.guard = guard_;
  i.guard_negated = guard_negated_;
  i.d = d;
  i.a = a;
  i.b = b;
  i.c = c;
  i.e = e;
  code_->insts.push_back(i);
  return code_->insts.back();
}

bool Decoder::Modifiers::take(std::string_view name) {
  const auto at = std::find(list.begin(), list.end(), name);
  if (at == list.end()) return false;
  list.erase(at);
  return true;
}
bool Decoder::Modifiers::has(std::string_view name) const {
  return std::find(list.begin(), list.end(), name) != list.end();
}

bool Decoder::count_operands(std::size_t least, std::size_t most) {
  if (!good()) return false;
  if (operands_.size() >= least && operands_.size() <= most) return true;
  error("'" + std::string(mnemonic_) + "' with " + std::to_string(operands_.size()) + " operands");
  return false;
}

void Decoder::instruction(std::string_view mnemonic) {
  mnemonic_ = mnemonic;
  mods_.list.clear();
  auto rest = mnemonic;
  for (bool first = true; !rest.empty(); first = false) {
    const auto point = std::min(rest.find('.'), rest.size());
    if (first)
      mods_.base = rest.substr(0, point);
    else
      mods_.list.push_back(rest.substr(0, point));
    rest.remove_prefix(std::min(point + 1, rest.size()));
  }
  if (mods_.list.size() > 16) return unsupported();
  operands_.clear();
  if (mods_.base == "call") return call();
  operands();
  if (!good()) return;
  if (control()) return;
  if (good()) row_instruction();
}

void Decoder::operands() {
  if (lex_.accept(';')) return;
  do {
    operands_.push_back(operand());
    if (operands_.size() > 16) error("too many operands");
  } while (good() && lex_.accept(','));
  if (good()) expect(';');
}

Operand Decoder::operand() {
  Operand o;
  if (!good()) return o;
  if (lex_.accept('!')) o.negated = true;
  const bool nests = lex_.peek().is('[') || lex_.peek().is('{');
  if (nests && nested_) {
    error("an operand inside an operand");
    return o;
  }
  if (lex_.peek().is('[')) return address();
  if (lex_.accept('{')) {
    o.kind = Operand::Kind::vector;
    nested_ = true;
    do {
      o.elements.push_back(operand());
      if (o.elements.back().kind == Operand::Kind::vector || o.elements.size() > 8)
        error("a vector with too many elements");
    } while (good() && lex_.accept(','));
    nested_ = false;
    if (good()) expect('}');
    return o;
  }
  const bool minus = lex_.accept('-');
  if (!minus) lex_.accept('+');
  const Token t = lex_.peek().kind == Token::Kind::word ? lex_.take_dotted() : lex_.take();
  o.name = t.text;
  o.value = t.value;
  if (t.kind == Token::Kind::integer) {
    o.kind = Operand::Kind::integer;
    if (minus) o.value = std::uint64_t{0} - o.value;
    return o;
  }
  if (t.kind == Token::Kind::float32 || t.kind == Token::Kind::float64) {
    o.kind = t.kind == Token::Kind::float32 ? Operand::Kind::float32 : Operand::Kind::float64;
    o.float_sign = minus;
    return o;
  }
  if (t.kind != Token::Kind::word || minus) {
    error("unexpected '" + std::string(t.text) + "'");
    return o;
  }
  o.symbol = t.is("_") ? nullptr : find(t.text);
  if (t.is("_")) {
    o.kind = Operand::Kind::sink;
  } else if (o.symbol != nullptr) {
    o.kind = o.symbol->kind == Symbol::Kind::reg ? Operand::Kind::reg : Operand::Kind::symbol;
    if (o.symbol->kind == Symbol::Kind::reg_range)
      error("'" + std::string(t.text) + "' is a range of registers");
  } else if (t.text.front() == '%') {
    o.kind = Operand::Kind::special;
  } else if (t.is("WARP_SZ")) {
    o.kind = Operand::Kind::integer;
    o.value = 32;
  } else {
    o.kind = Operand::Kind::none;  // a label, or unknown: whoever needs a value says so
  }
  if (lex_.accept('|')) o.second = lex_.take().text;
  if (o.kind == Operand::Kind::symbol && lex_.accept('+')) o.value = integer_expression();
  return o;
}

// [base], [base+n], [n]
Operand Decoder::address() {
  Operand o;
  expect('[');
  o.kind = Operand::Kind::address;
  if (lex_.peek().kind == Token::Kind::integer || lex_.peek().is('-')) {
    o.value = integer_expression();
  } else {
    nested_ = true;
    Operand base = operand();
    nested_ = false;
    if (good() && base.kind != Operand::Kind::reg && base.kind != Operand::Kind::symbol)
      error("'" + std::string(base.name) + "' is no address");
    if (base.kind == Operand::Kind::symbol) o.value = base.value, base.value = 0;
    o.elements.push_back(base);
    if (lex_.accept('+') || lex_.peek().is('-')) o.value += integer_expression();
  }
  if (good() && lex_.peek().is(','))
    error("addresses with several parts (textures) are not supported", ErrorCode::not_supported);
  if (good()) expect(']');
  return o;
}

}  // namespace cenote::cuda::ptx
