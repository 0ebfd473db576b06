// Branches, calls, barriers, warp instructions; and the dispatch to everything that is no plain row.
#include "cuda/ptx/decoder.h"

namespace cenote::cuda::ptx {
// True when the instruction was handled (or refused) here.
bool Decoder::control() {
  const auto base = mods_.base;
  if (base == "ld" || base == "ldu")
    load();
  else if (base == "st")
    store();
  else if (base == "mov")
    move();
  else if (base == "cvt")
    convert();
  else if (base == "setp")
    compare(false);
  else if (base == "set")
    compare(true);
  else if (base == "bra")
    branch();
  else if (base == "atom")
    atomic(true);
  else if (base == "red")
    atomic(false);
  else if (base == "cvta" || base == "isspacep")
    convert_address();
  else if (base == "addc" || base == "subc" || ((base == "add" || base == "sub") && mods_.has("cc")))
    carry_chain();
  else if (base == "bar" || base == "barrier")
    barrier();
  else if (base == "shfl")
    shuffle();
  else if (base == "vote" || base == "match")
    vote();
  else if (base == "activemask") {
    if (count_operands(1, 1)) emit(Op::active_mask, target(arg(0), 4));
  } else if (base == "ret")
    emit(code_->functions[body_.index].is_entry ? Op::exit : Op::return_);
  else if (base == "exit")
    emit(Op::exit);
  else if (base == "trap" || base == "brkpt")
    emit(Op::trap);
  else if (base == "membar" || base == "fence" || base == "prefetch" || base == "prefetchu" ||
           base == "discard" || base == "applypriority" || base == "nanosleep" || base == "pmevent" ||
           base == "griddepcontrol")
    emit(Op::nop);
  else
    return false;
  return true;
}

void Decoder::branch() {
  if (!count_operands(1, 1)) return;
  if (arg(0).name.empty() || !(mods_.list.empty() || mods_.list[0] == "uni")) return unsupported();
  body_.branches.emplace_back(static_cast<std::uint32_t>(code_->insts.size()), arg(0).name);
  emit(Op::branch);
}

// Moves arguments into the callee's parameters, or (back) its results into ours.
void Decoder::copy_words(const std::vector<Operand>& ours, const std::vector<ParamWords>& theirs,
                         std::uint32_t callee, bool back) {
  if (ours.size() != theirs.size())
    return error("a call of '" + code_->functions[callee].name + "' with " + std::to_string(ours.size()) +
                 " values for " + std::to_string(theirs.size()));
  for (std::size_t p = 0; good() && p < ours.size(); ++p) {
    const Operand& o = ours[p];
    const bool words = o.kind == Operand::Kind::symbol && o.symbol->kind == Symbol::Kind::words;
    if (words && (o.symbol->size + 7) / 8 != theirs[p].count)
      return error("an argument of another size than its parameter");
    if (!words && (back ? o.kind != Operand::Kind::reg : o.kind == Operand::Kind::symbol))
      return error("an argument has to be a .param variable or a register");
    if (theirs[p].count > max_argument_words - foreign_.size())
      return error("calls with too many arguments", ErrorCode::not_supported);
    for (std::uint32_t w = 0; good() && w < theirs[p].count; ++w) {
      const Slot foreign = foreign_bit | static_cast<Slot>(foreign_.size());
      foreign_.push_back({callee, theirs[p].first + w});
      if (words) {
        const Slot mine = o.symbol->index + w;
        emit(Op::mov_b64, back ? mine : foreign, back ? foreign : mine);
        continue;
      }
      const unsigned width = width_of(o, 8);
      const Slot mine = back ? target(o, width) : source(o, width);
      Inst& i = back ? emit(Op::load_slot, mine, foreign) : emit(Op::store_slot, foreign, mine);
      i.type = width == 1 ? Num::u8 : width == 2 ? Num::u16 : width == 4 ? Num::u32 : Num::u64;
      i.width_d = static_cast<std::uint8_t>(width);
    }
  }
}

// call[.uni] [(results),] function[, (arguments)];
void Decoder::call() {
  const auto list = [this] {
    std::vector<Operand> values;
    while (good() && !lex_.peek().is(')') && values.size() < 256) {
      values.push_back(operand());
      if (!lex_.accept(',')) break;
    }
    if (good()) expect(')');
    return values;
  };
  std::vector<Operand> results, arguments;
  if (lex_.accept('(')) {
    results = list();
    if (good()) expect(',');
  }
  const Operand name = operand();
  if (!good()) return;
  if (name.kind != Operand::Kind::symbol || name.symbol->kind != Symbol::Kind::function)
    return error("only direct calls of declared functions are supported", ErrorCode::not_supported);
  if (lex_.accept(',')) {
    if (!expect('(')) return;
    arguments = list();
  }
  if (good()) expect(';');
  if (!good()) return;
  const std::uint32_t callee = name.symbol->index;
  const Signature& signature = signatures_[callee];
  if (signature.is_entry) return error("a kernel cannot be called");
  const bool known = !signature.defined && (name.name == "vprintf" || name.name == "__assertfail");
  if (known) {
    const bool is_print = name.name == "vprintf";
    const std::size_t wanted = is_print ? 2 : 5;
    if (arguments.size() != wanted || results.size() != (is_print ? 1 : 0))
      return error("'" + std::string(name.name) + "' is declared in an unknown way");
    for (const auto* values : {&arguments, &results})
      for (const auto& o : *values)
        if (o.kind != Operand::Kind::symbol || o.symbol->kind != Symbol::Kind::words || o.symbol->size > 8 ||
            o.symbol->size == 0)
          return error("an argument of '" + std::string(name.name) + "' has to be a .param variable");
    const auto word = [](const Operand& o) { return o.symbol->index; };
    if (is_print)
      emit(Op::print, word(results[0]), word(arguments[0]), word(arguments[1]));
    else
      emit(Op::assert_fail, no_slot, word(arguments[0]), word(arguments[1]), word(arguments[2]),
           word(arguments[3]));
    return;
  }
  copy_words(arguments, signature.params, callee, false);
  if (!good()) return;
  calls_.push_back({body_.index, callee, line_});
  emit(Op::call).imm = callee;
  copy_words(results, signature.results, callee, true);
}

// bar.sync a[, b]   bar.arrive a, b   bar.red.op d, a[, b], p   bar.warp.sync mask   (and
// barrier[.cta].…[.aligned])
void Decoder::barrier() {
  mods_.take("cta");
  mods_.take("aligned");
  if (mods_.take("warp")) {
    if (mods_.list.size() != 1 || mods_.list[0] != "sync") return unsupported();
    if (!count_operands(1, 1)) return;
    const Slot mask = source(arg(0), 4);
    emit(Op::warp_barrier).e = mask;
    return;
  }
  BarrierMode mode = BarrierMode::sync;
  std::size_t first = 0, last = operands_.size();
  Slot p = no_slot, d = no_slot;
  if (mods_.take("red")) {
    if (mods_.list.size() != 2) return unsupported();
    const bool popc = mods_.list[0] == "popc" && mods_.list[1] == "u32";
    const bool logic = mods_.list[1] == "pred" && (mods_.list[0] == "and" || mods_.list[0] == "or");
    if (!popc && !logic) return unsupported();
    if (!count_operands(3, 4)) return;
    mode = popc ? BarrierMode::popc : mods_.list[0] == "and" ? BarrierMode::and_ : BarrierMode::or_;
    d = target(arg(0), popc ? 4 : 1);
    p = predicate(arg(--last));
    first = 1;
  } else if (mods_.list.size() == 1 && (mods_.list[0] == "sync" || mods_.list[0] == "arrive")) {
    if (mods_.list[0] == "arrive") mode = BarrierMode::arrive;
    if (!count_operands(mode == BarrierMode::arrive ? 2 : 1, 2)) return;
  } else {
    return unsupported();
  }
  const Slot id = source(arg(first), 4);
  const Slot threads = last - first > 1 ? source(arg(first + 1), 4) : no_slot;
  if (!good()) return;
  emit(Op::block_barrier, d, id, threads, p).mode = static_cast<std::uint8_t>(mode);
}

// shfl.sync.mode.b32 d[|p], a, b, c, mask
void Decoder::shuffle() {
  static constexpr std::pair<std::string_view, ShuffleMode> modes[] = {{"up", ShuffleMode::up},
                                                                       {"down", ShuffleMode::down},
                                                                       {"bfly", ShuffleMode::bfly},
                                                                       {"idx", ShuffleMode::idx}};
  std::optional<ShuffleMode> mode;
  for (const auto& [name, value] : modes)
    if (mods_.take(name)) mode = value;
  if (!mode || !mods_.take("sync") || mods_.list.size() != 1 || mods_.list[0] != "b32") return unsupported();
  if (!count_operands(5, 5)) return;
  const Slot a = source(arg(1), 4), b = source(arg(2), 4), c = source(arg(3), 4), mask = source(arg(4), 4);
  const Slot d = target(arg(0), 4);
  Slot p = no_slot;
  if (!arg(0).second.empty() && arg(0).second != "_") {
    Symbol* s = find(arg(0).second);
    if (s == nullptr || s->kind != Symbol::Kind::reg || s->width != 1)
      return error("'" + std::string(arg(0).second) + "' is no predicate");
    p = register_of(*s, arg(0).second);
  }
  if (!good()) return;
  Inst& i = emit(Op::shuffle, d, a, b, c, mask);
  i.d2 = p;
  i.mode = static_cast<std::uint8_t>(*mode);
}

// vote.sync.mode.type d, [!]a, mask   match.any/all.sync.type d[|p], a, mask
void Decoder::vote() {
  if (!mods_.take("sync") || mods_.list.size() != 2) return unsupported();
  if (!count_operands(3, 3)) return;
  const auto how = mods_.list[0], type = mods_.list[1];
  const Slot mask = source(arg(2), 4);
  if (mods_.base == "match") {
    const bool all = how == "all";
    if ((how != "any" && !all) || (type != "b32" && type != "b64")) return unsupported();
    const Slot a = source(arg(1), type == "b32" ? 4 : 8), d = target(arg(0), 4);
    Slot p = no_slot;
    if (all && !arg(0).second.empty() && arg(0).second != "_") {
      Symbol* s = find(arg(0).second);
      if (s == nullptr || s->kind != Symbol::Kind::reg || s->width != 1)
        return error("'" + std::string(arg(0).second) + "' is no predicate");
      p = register_of(*s, arg(0).second);
    }
    if (!good()) return;
    Inst& i = emit(Op::match, d, a, no_slot, no_slot, mask);
    i.d2 = p;
    i.mode = all ? 1 : 0;
    i.width_a = type == "b32" ? 4 : 8;
    return;
  }
  VoteMode mode = VoteMode::ballot;
  if (how == "all")
    mode = VoteMode::all;
  else if (how == "any")
    mode = VoteMode::any;
  else if (how == "uni")
    mode = VoteMode::uni;
  else if (how != "ballot")
    return unsupported();
  if (type != (mode == VoteMode::ballot ? "b32" : "pred")) return unsupported();
  const Slot a = predicate(arg(1)), d = target(arg(0), mode == VoteMode::ballot ? 4 : 1);
  if (good()) emit(Op::vote, d, a, no_slot, no_slot, mask).mode = static_cast<std::uint8_t>(mode);
}

}  // namespace cenote::cuda::ptx
