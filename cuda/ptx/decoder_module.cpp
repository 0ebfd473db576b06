// Module scope: versions, variables with their initialisers, headers of functions.
#include <algorithm>
#include <bit>
#include <cstring>

#include "cuda/ptx/decoder.h"

namespace cenote::cuda::ptx {
namespace {
constexpr std::uint64_t max_variable_bytes = std::uint64_t{1} << 40;
constexpr std::uint64_t max_param_bytes = 32764;
constexpr std::size_t max_functions = 65536;
}  // namespace

std::optional<Type> find_type(std::string_view name) {
  static constexpr std::pair<std::string_view, Type> types[] = {
      {"b8", {Num::u8, 1}},        {"u8", {Num::u8, 1}},      {"s8", {Num::s8, 1}},
      {"b16", {Num::u16, 2}},      {"u16", {Num::u16, 2}},    {"s16", {Num::s16, 2}},
      {"f16", {Num::f16, 2}},      {"bf16", {Num::bf16, 2}},  {"b32", {Num::u32, 4}},
      {"u32", {Num::u32, 4}},      {"s32", {Num::s32, 4}},    {"f32", {Num::f32, 4}},
      {"f16x2", {Num::u32, 4}},    {"bf16x2", {Num::u32, 4}}, {"b64", {Num::u64, 8}},
      {"u64", {Num::u64, 8}},      {"s64", {Num::s64, 8}},    {"f64", {Num::f64, 8}},
      {"pred", {Num::u8, 1, true}}};
  for (const auto& [text, type] : types)
    if (text == name) return type;
  return std::nullopt;
}

void Decoder::error(std::string cause, ErrorCode code) {
  if (error_) return;
  error_ = Error{code, "load PTX", "line " + std::to_string(line_) + ": " + std::move(cause)};
}

void Decoder::unsupported() {
  error("unsupported instruction '" + std::string(mnemonic_) + "'", ErrorCode::not_supported);
}

bool Decoder::expect(char c) {
  if (lex_.accept(c)) return true;
  line_ = lex_.peek().line;
  const auto text =
      lex_.peek().kind == Token::Kind::end ? "the end" : "'" + std::string(lex_.peek().text) + "'";
  error(std::string("expected '") + c + "' but found " + text);
  return false;
}

Result<std::shared_ptr<const Program>> Decoder::run() {
  while (good() && lex_.peek().kind != Token::Kind::end) module_statement();
  if (good() && program_->version.empty()) error("no .version: this is no PTX");
  if (good()) finish_module();
  if (error_) return fail(std::move(*error_));
  program_->code = code_;
  return std::shared_ptr<const Program>(program_);
}

void Decoder::module_statement() {
  line_ = lex_.peek().line;
  const Token t = lex_.take();
  if (t.is(".version")) {
    program_->version = std::string(lex_.take().text);
  } else if (t.is(".target")) {
    program_->target = std::string(lex_.take().text);
    while (good() && lex_.accept(',')) lex_.take();
  } else if (t.is(".address_size")) {
    if (!lex_.accept("64")) error("only 64-bit addresses are supported", ErrorCode::not_supported);
  } else if (t.is(".file")) {
    lex_.take();
    lex_.take();
    while (good() && lex_.accept(',')) lex_.take();
  } else if (t.is(".section")) {
    skip_section();
  } else if (t.is(".pragma")) {
    lex_.take();
    expect(';');
  } else if (t.is(';')) {
  } else if (t.kind == Token::Kind::directive) {
    bool external = false;
    Token what = t;
    while (what.is(".visible") || what.is(".extern") || what.is(".weak") || what.is(".common")) {
      external |= what.is(".extern");
      what = lex_.take();
    }
    if (what.is(".entry"))
      function(true, external);
    else if (what.is(".func"))
      function(false, external);
    else if (what.is(".global") || what.is(".const") || what.is(".shared"))
      variable(what.text, external);
    else
      error("unknown directive '" + std::string(what.text) + "'");
  } else {
    error("unexpected '" + std::string(t.text) + "' outside a function");
  }
}

// Debug sections: braces with data that nothing here reads.
void Decoder::skip_section() {
  while (good() && !lex_.peek().is('{') && lex_.peek().kind != Token::Kind::end) lex_.take();
  int depth = 0;
  do {
    const Token t = lex_.take();
    if (t.is('{')) ++depth;
    if (t.is('}')) --depth;
    if (t.kind == Token::Kind::end) return error("a .section does not end");
  } while (depth > 0);
}

std::uint64_t Decoder::integer_expression() {
  const bool negative = lex_.accept('-');
  const Token t = lex_.take();
  if (t.kind != Token::Kind::integer) {
    line_ = t.line;
    error("expected a number but found '" + std::string(t.text) + "'");
    return 0;
  }
  return negative ? std::uint64_t{0} - t.value : t.value;
}

// [.align N] [.ptr ...] .type name[n][m]...
Decoder::Declaration Decoder::declaration() {
  Declaration d;
  bool typed = false;
  unsigned vector = 1;
  while (good() && lex_.peek().kind == Token::Kind::directive) {
    const Token t = lex_.take();
    if (t.is(".align"))
      d.align = integer_expression();
    else if (t.is(".v2"))
      vector = 2;
    else if (t.is(".v4"))
      vector = 4;
    else if (t.is(".texref") || t.is(".samplerref") || t.is(".surfref"))
      error("texture, sampler and surface references are not supported", ErrorCode::not_supported);
    else if (const auto type = find_type(t.text.substr(1)))
      d.type = *type, typed = true;
    else if (!t.is(".attribute") && !t.is(".managed") && !t.is(".unified") && !t.is(".ptr") &&
             !t.is(".global") && !t.is(".const") && !t.is(".shared") && !t.is(".local") && !t.is(".param"))
      error("unknown directive '" + std::string(t.text) + "' in a declaration");
    if (t.is(".attribute")) {
      while (good() && !lex_.peek().is(')') && lex_.peek().kind != Token::Kind::end) lex_.take();
      expect(')');
    }
  }
  if (!good()) return d;
  const Token name = lex_.take();
  if (name.kind != Token::Kind::word || !typed) {
    error("expected a type and a name before '" + std::string(name.text) + "'");
    return d;
  }
  d.name = name.text;
  if (d.align == 0) d.align = std::uint64_t{d.type.width} * vector;
  if (!std::has_single_bit(d.align) || d.align > 4096) error("alignment has to be a power of two up to 4096");
  d.count = vector;
  while (good() && lex_.accept('[')) {
    std::uint64_t n = 0;
    if (lex_.peek().is(']'))
      d.open = true;
    else
      n = integer_expression();
    if (n > max_variable_bytes || (n != 0 && d.count > max_variable_bytes / n))
      error("variable too large");
    else
      d.count *= n;
    expect(']');
  }
  d.size = d.count * d.type.width;
  return d;
}

void Decoder::variable(std::string_view space, bool external) {
  do {
    const auto d = declaration();
    if (!good()) return;
    Symbol symbol;
    symbol.size = d.size;
    if (space == ".shared") {
      symbol.kind = Symbol::Kind::shared;
      symbol.index = static_cast<std::uint32_t>(code_->shared.size());
      code_->shared.push_back({std::string(d.name), d.size, d.align, external || d.open});
      declare(d.name, symbol);
      continue;
    }
    Variable v;
    v.name = std::string(d.name);
    v.space = space == ".const" ? VariableSpace::constant : VariableSpace::global;
    v.size = d.size;
    v.align = d.align;
    v.external = external;
    v.line = line_;
    symbol.kind = Symbol::Kind::variable;
    const Symbol* earlier = find(d.name);
    const bool known = earlier != nullptr && earlier->kind == Symbol::Kind::variable;
    const bool redefines = known && program_->variables[earlier->index].external;
    const bool repeats = known && !redefines && external;  // `.extern` behind the definition says nothing new
    symbol.index = redefines ? earlier->index : static_cast<std::uint32_t>(program_->variables.size());
    if (lex_.accept('=')) initialiser(v, d.type);
    if (d.open && !external && v.initial.empty()) error("array '" + v.name + "' has no size");
    v.size = std::max<std::size_t>(v.size, v.initial.size());
    if (repeats) continue;
    if (redefines)
      program_->variables[symbol.index] = std::move(v);
    else
      program_->variables.push_back(std::move(v)), declare(d.name, symbol);
  } while (good() && lex_.accept(','));
  expect(';');
}

void Decoder::initialiser(Variable& v, Type type) {
  std::uint64_t at = 0;
  int depth = 0;
  do {
    if (lex_.accept('{'))
      ++depth;
    else if (lex_.accept('}'))
      --depth;
    else if (!lex_.accept(','))
      initial_element(v, type, at);
    if (lex_.peek().kind == Token::Kind::end) error("an initialiser does not end");
  } while (good() && depth > 0);
}

// One number, name, generic(name), name+n or mask(name).
void Decoder::initial_element(Variable& v, Type type, std::uint64_t& at) {
  const auto room = v.size != 0 ? v.size : max_variable_bytes;
  if (at + type.width > room) return error("too many initial values for '" + v.name + "'");
  std::uint64_t value = 0;
  if (lex_.peek().kind == Token::Kind::word) {
    auto name = lex_.take().text;
    if (name == "mask" || name == "generic") {
      const bool masked = name == "mask";
      if (!expect('(')) return;
      if (masked) return error("mask() in an initialiser is not supported", ErrorCode::not_supported);
      name = lex_.take().text;
      expect(')');
    }
    std::int64_t addend = 0;
    if (lex_.accept('+'))
      addend = static_cast<std::int64_t>(integer_expression());
    else if (lex_.peek().is('-'))
      addend = static_cast<std::int64_t>(integer_expression());
    const Symbol* s = find(name);
    if (s == nullptr || s->kind != Symbol::Kind::variable)
      return error("initialiser names '" + std::string(name) + "', which is no variable");
    v.relocations.push_back({at, type.width, s->index, addend});
  } else {
    const bool negative = lex_.accept('-');
    const Token t = lex_.take();
    double real = t.kind == Token::Kind::float32
                      ? static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(t.value)))
                      : std::bit_cast<double>(t.value);
    if (negative) real = -real;
    if (t.kind == Token::Kind::integer)
      value = negative ? std::uint64_t{0} - t.value : t.value;
    else if (t.kind == Token::Kind::float32 && type.width == 4)
      value = t.value ^ (negative ? 0x80000000u : 0);
    else if (t.kind != Token::Kind::float32 && t.kind != Token::Kind::float64)
      return error("expected an initial value but found '" + std::string(t.text) + "'");
    else
      value = type.width == 4 ? std::bit_cast<std::uint32_t>(static_cast<float>(real))
                              : std::bit_cast<std::uint64_t>(real);
  }
  v.initial.resize(at + type.width);
  std::memcpy(v.initial.data() + at, &value, type.width);
  at += type.width;
}

void Decoder::parameters(bool is_entry, std::vector<std::pair<std::string_view, Symbol>>& names,
                         std::vector<ParamWords>& words, std::uint32_t& next_word, std::size_t entry) {
  while (good() && !lex_.peek().is(')')) {
    if (!lex_.accept(".param")) {
      line_ = lex_.peek().line;
      return error("only .param parameters are supported", ErrorCode::not_supported);
    }
    const auto d = declaration();
    if (!good()) return;
    Symbol s;
    s.size = d.size;
    if (d.size > max_param_bytes) return error("parameter '" + std::string(d.name) + "' is too large");
    if (is_entry) {
      Entry& e = program_->entries[entry];
      s.kind = Symbol::Kind::entry_param;
      s.offset = (e.param_bytes + d.align - 1) / d.align * d.align;
      e.param_bytes = s.offset + d.size;
      if (e.param_bytes > max_param_bytes) return error("more than 32764 bytes of parameters");
      e.params.push_back({std::string(d.name), s.offset, d.size, d.align});
    } else {
      s.kind = Symbol::Kind::words;
      const auto count = static_cast<std::uint32_t>((d.size + 7) / 8);
      if (count > max_registers - next_word)
        return error("too many parameters of one function", ErrorCode::not_supported);
      s.index = next_word;
      words.push_back({next_word, count});
      next_word += count;
    }
    names.emplace_back(d.name, s);
    if (!lex_.accept(',')) break;
  }
  expect(')');
}

void Decoder::function(bool is_entry, bool external) {
  std::vector<std::pair<std::string_view, Symbol>> names;
  Signature signature;
  signature.is_entry = is_entry;
  if (!is_entry && lex_.accept('(')) parameters(false, names, signature.results, signature.words, 0);
  const Token name = lex_.take();
  if (good() && name.kind != Token::Kind::word) error("expected the name of a function");
  if (!good()) return;
  std::size_t entry = program_->entries.size();
  if (is_entry) {
    program_->entries.push_back({});
    program_->entries.back().name = std::string(name.text);
    program_->entries.back().line = line_;
  }
  if (lex_.accept('(')) parameters(is_entry, names, signature.params, signature.words, entry);
  unsigned max_threads = 0;
  while (good() && lex_.peek().kind == Token::Kind::directive) {
    const Token t = lex_.take();
    std::uint64_t product = 1;
    if (lex_.peek().kind == Token::Kind::integer) {
      do
        product =
            std::min<std::uint64_t>(product * std::min<std::uint64_t>(integer_expression(), 65536), 65536);
      while (good() && lex_.accept(','));
    }
    if (t.is(".maxntid") || t.is(".reqntid")) max_threads = static_cast<unsigned>(product);
    if (t.is(".attribute") || t.is(".abi_preserve"))
      return error("unsupported function directive", ErrorCode::not_supported);
  }
  if (!good()) return;
  Symbol* known = find(name.text);
  if (known != nullptr && known->kind != Symbol::Kind::function)
    return error("'" + std::string(name.text) + "' is no function");
  std::uint32_t index = 0;
  if (known != nullptr) {
    index = known->index;
  } else {
    if (signatures_.size() >= max_functions)
      return error("more than 65536 functions", ErrorCode::not_supported);
    index = static_cast<std::uint32_t>(signatures_.size());
    signatures_.emplace_back();
    code_->functions.emplace_back();
    code_->functions.back().name = std::string(name.text);
    Symbol s;
    s.kind = Symbol::Kind::function;
    s.index = index;
    declare(name.text, s);
  }
  const Signature& before = signatures_[index];
  if (before.declared && before.is_entry != is_entry)
    return error("'" + std::string(name.text) + "' is both a kernel and a function");
  if (before.declared && (before.results != signature.results || before.params != signature.params))
    return error("'" + std::string(name.text) + "' is declared differently before");
  if (signatures_[index].defined && lex_.peek().is('{'))
    return error("'" + std::string(name.text) + "' is defined twice");
  signature.declared = true;
  signature.defined = signatures_[index].defined;
  signatures_[index] = signature;
  code_->functions[index].is_entry = is_entry;
  if (!lex_.peek().is('{')) {
    if (is_entry && !external) return void(expect('{'));
    if (is_entry) program_->entries.pop_back();
    return void(expect(';'));
  }
  signatures_[index].defined = true;
  if (is_entry) {
    program_->entries.back().max_threads = max_threads;
    code_->entry_functions.push_back(index);
  }
  body_ = Body{};
  body_.index = index;
  body_.widths.assign(signature.words, 8);
  scopes_.emplace_back();
  for (auto& [parameter, symbol] : names) declare(parameter, symbol);
  body();
  scopes_.resize(1);
}

Result<std::shared_ptr<const Program>> parse(std::string_view text) {
  if (text.size() > std::size_t{256} << 20)
    return fail(ErrorCode::not_supported, "load PTX", "more than 256 MiB of text");
  return Decoder(text).run();
}

}  // namespace cenote::cuda::ptx
