// Lexer: PTX text as tokens, one at a time, with one token of look-ahead. Never fails: what is no token is
// `bad`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cenote::cuda::ptx {

struct Token {
  enum class Kind : std::uint8_t { end, word, directive, integer, float32, float64, text, punctuation, bad };
  Kind kind = Kind::end;
  std::string_view text;    ///< as written; without the quotes for a text
  std::uint64_t value = 0;  ///< of an integer; the bits of a float
  unsigned line = 1;

  [[nodiscard]] bool is(char c) const { return kind == Kind::punctuation && text.front() == c; }
  [[nodiscard]] bool is(std::string_view s) const { return text == s; }
};

/// Words are made of letters, digits, _, $ and %; directives are a point and a word; comments are skipped.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { advance(); }

  [[nodiscard]] const Token& peek() const { return next_; }
  Token take() {
    Token t = next_;
    advance();
    return t;
  }
  bool accept(char c) {
    if (!next_.is(c)) return false;
    advance();
    return true;
  }
  bool accept(std::string_view s) {
    if (!next_.is(s)) return false;
    advance();
    return true;
  }
  /// The next token is a word: takes it together with the points, colons and words that follow without a
  /// blank, as in ld.global.L2::128B.f32 or %tid.x.
  Token take_dotted();
  /// Whether the next token is a word followed by a single colon.
  [[nodiscard]] bool at_label() const;

 private:
  void advance();
  void skip_blanks();
  void number();

  std::string_view text_;
  std::size_t at_ = 0;     ///< behind next_
  std::size_t start_ = 0;  ///< of next_
  unsigned line_ = 1;
  Token next_;
};

}  // namespace cenote::cuda::ptx
