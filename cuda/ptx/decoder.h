// Decoder: the parser's inside. One object reads one module from its first token to its last; its methods are
// spread over decoder_module.cpp (declarations), decoder_function.cpp (bodies and operands),
// decoder_arithmetic.cpp, decoder_memory.cpp and decoder_control.cpp (instructions), and layout.cpp (places
// of registers). The first error stops everything.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cuda/ptx/code.h"
#include "cuda/ptx/lexer.h"
#include "cuda/ptx/program.h"
#include "runtime/result.h"

namespace cenote::cuda::ptx {

// While a function is decoded its slots are numbers of virtual registers; layout.cpp turns them into places.
// Words of another function's parameters are marked until then.
inline constexpr Slot foreign_bit = 0x4000'0000u;

// Counts are kept in 32 bits and slots spend two of those on marks; these bounds, checked wherever something
// is added, are what makes that safe whatever the text says.
inline constexpr std::size_t max_registers = std::size_t{1}
                                             << 20;  ///< of a function, its parameters included
inline constexpr std::size_t max_instructions = std::size_t{1} << 26;
inline constexpr std::size_t max_argument_words = std::size_t{1} << 22;  ///< of all calls together

struct Symbol {
  enum class Kind : std::uint8_t { reg, reg_range, variable, shared, local, entry_param, words, function };
  Kind kind = Kind::reg;
  std::uint8_t width = 0;  ///< of a register
  std::uint32_t index =
      0;  ///< register + 1 (0 = no place yet), variable, shared variable, function, first word
  std::uint64_t size = 0;    ///< bytes; registers of a range
  std::uint64_t offset = 0;  ///< of a local variable or an entry's parameter
};

/// A type as PTX writes it.
struct Type {
  Num num = Num::u32;
  std::uint8_t width = 4;  ///< bytes; 1 for .pred
  bool pred = false;
};
std::optional<Type> find_type(std::string_view name);

struct Operand {
  enum class Kind : std::uint8_t {
    none,
    reg,
    sink,
    special,
    integer,
    float32,
    float64,
    symbol,
    address,
    vector
  };
  Kind kind = Kind::none;
  bool negated = false;     ///< !p
  bool float_sign = false;  ///< - before a float
  std::string_view name;
  std::string_view second{};  ///< q of p|q
  Symbol* symbol = nullptr;
  std::uint64_t value = 0;        ///< of a literal; the offset of an address
  std::vector<Operand> elements;  ///< of a vector; the base of an address (none or one)
};

/// A row of ops.def.
struct Row {
  Op op;
  std::string_view types;
};
const Row* find_row(std::string_view mnemonic);

class Decoder {
 public:
  explicit Decoder(std::string_view text) : lex_(text) {}
  Result<std::shared_ptr<const Program>> run();

 private:
  struct ParamWords {
    std::uint32_t first = 0, count = 0;
    bool operator==(const ParamWords&) const = default;
  };
  /// What a function's declaration says, known before its body.
  struct Signature {
    bool is_entry = false, defined = false, declared = false;
    std::vector<ParamWords> results, params;  ///< numbered from 0 through results and then parameters
    std::uint32_t words = 0;
  };
  struct Call {
    std::uint32_t caller, callee;
    unsigned line;
  };
  /// Of the function being decoded.
  struct Body {                        // NOLINT(bugprone-reserved-identifier): a name in the implicit copy
    std::vector<std::uint8_t> widths;  ///< of the virtual registers; the parameter words come first
    std::map<std::tuple<int, unsigned, std::uint64_t, std::uint32_t>, std::uint32_t> constants;
    std::unordered_map<std::string_view, std::uint32_t> labels;
    std::vector<std::pair<std::uint32_t, std::string_view>> branches;  ///< instruction, label
    std::vector<Slot> temporaries[9];                                  ///< by width
    std::size_t temporaries_used[9] = {};
    std::uint64_t local_bytes = 0;
    std::uint32_t index = 0;  ///< of the function
    Slot carry = no_slot;
  };
  struct Modifiers {
    std::string_view base;
    std::vector<std::string_view> list;
    bool take(std::string_view name);
    [[nodiscard]] bool has(std::string_view name) const;
  };
  struct Foreign {
    std::uint32_t function, word;
  };

  // errors
  bool good() const { return !error_; }
  void error(std::string cause, ErrorCode code = ErrorCode::invalid_argument);
  void unsupported();
  bool expect(char c);

  // decoder_module.cpp
  void module_statement();
  void variable(std::string_view space, bool external);
  void function(bool is_entry, bool external);
  void parameters(bool is_entry, std::vector<std::pair<std::string_view, Symbol>>& names,
                  std::vector<ParamWords>& words, std::uint32_t& next_word, std::size_t entry);
  std::uint64_t integer_expression();
  void initialiser(Variable& v, Type type);
  void initial_element(Variable& v, Type type, std::uint64_t& at);
  void skip_section();
  struct Declaration {
    std::uint64_t align = 0, size = 0, count = 1;
    Type type;
    std::string_view name;
    bool open = false;
  };
  Declaration declaration();

  // decoder_function.cpp
  void body();
  void statement(int& depth);
  void declare_registers();
  void declare_storage(std::string_view space);
  void instruction(std::string_view mnemonic);
  void operands();
  Operand operand();
  Operand address();
  Symbol* find(std::string_view name);
  Symbol* declare(std::string_view name, Symbol symbol);
  Slot register_of(Symbol& symbol, std::string_view name);
  Slot fresh(unsigned width);
  Slot temporary(unsigned width);
  Slot constant(std::uint64_t value, unsigned width);
  Slot constant(Constant::Kind kind, unsigned width, std::uint64_t value, std::uint32_t index,
                Special special);
  Slot source(const Operand& o, unsigned width);
  Slot special(std::string_view name, unsigned width);
  Slot symbol_address(const Operand& o, unsigned width);
  Slot target(const Operand& o, unsigned width);
  unsigned width_of(const Operand& o, unsigned natural);
  Slot predicate(const Operand& o);
  Inst& emit(Op op, Slot d = no_slot, Slot a = no_slot, Slot b = no_slot, Slot c = no_slot, Slot e = no_slot);
  bool count_operands(std::size_t least, std::size_t most);
  Operand& arg(std::size_t i) { return operands_[i]; }

  // decoder_arithmetic.cpp
  void row_instruction();
  void compare(bool set);
  void convert();
  void move();
  void carry_chain();
  Slot flushed(Slot a);
  void resize(Slot d, unsigned to, Slot a, unsigned from, bool sign);

  // decoder_memory.cpp
  void load();
  void load_kernel_param(const Inst& access, Type type, const std::vector<Slot>& slots);
  void store();
  void load_words(const Operand& address, Type type, const std::vector<Operand>& elements, bool is_store);
  void atomic(bool has_result);
  void convert_address();
  bool place(Inst& i, const Operand& address);
  bool take_access_modifiers(Inst& i, std::uint8_t& elements);

  // decoder_control.cpp
  bool control();
  void branch();
  void call();
  void barrier();
  void shuffle();
  void vote();
  void copy_words(const std::vector<Operand>& from, const std::vector<ParamWords>& to, std::uint32_t callee,
                  bool back);

  // layout.cpp
  struct Places {
    std::uint64_t registers = 0, constants = 0, local = 0;
  };
  void finish_function();
  void finish_module();
  bool order_functions(const std::vector<std::vector<std::uint32_t>>& callees,
                       std::vector<std::uint32_t>& order);
  void rewrite(const Function& f, const Places& base, const std::vector<Places>& bases);

  Lexer lex_;
  std::optional<Error> error_;
  std::shared_ptr<Program> program_ = std::make_shared<Program>();
  std::shared_ptr<Code> code_ = std::make_shared<Code>();
  std::vector<std::unordered_map<std::string_view, Symbol>> scopes_{1};
  std::vector<Signature> signatures_;
  std::vector<Call> calls_;
  std::vector<Foreign> foreign_;
  std::vector<Places> own_;  ///< sizes of each function
  Body body_;
  // Of the instruction being decoded:
  unsigned line_ = 1;
  std::string_view mnemonic_;
  Modifiers mods_;
  std::vector<Operand> operands_;
  Slot guard_ = no_slot;
  bool guard_negated_ = false;
  bool nested_ = false;  ///< inside the brackets of an operand
  std::uint32_t first_inst_ = 0;
};

}  // namespace cenote::cuda::ptx
