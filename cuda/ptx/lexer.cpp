#include "cuda/ptx/lexer.h"

#include <bit>
#include <charconv>
#include <system_error>

namespace cenote::cuda::ptx {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '$' || c == '%';
}

}  // namespace

void Lexer::skip_blanks() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '\n') ++line_;
    if (c == '\n' || c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
      ++at_;
    } else if (text_.substr(at_, 2) == "//") {
      const auto end = text_.find('\n', at_);
      at_ = end == std::string_view::npos ? text_.size() : end;
    } else if (text_.substr(at_, 2) == "/*") {
      const auto end = text_.find("*/", at_ + 2);
      const auto stop = end == std::string_view::npos ? text_.size() : end + 2;
      for (; at_ < stop; ++at_) line_ += text_[at_] == '\n';
    } else {
      return;
    }
  }
}

void Lexer::number() {
  const char* first = text_.data() + at_;
  const char* last = text_.data() + text_.size();
  const auto finish = [&](Token::Kind kind, const char* end, std::uint64_t value) {
    next_.kind = kind;
    next_.value = value;
    next_.text = std::string_view(first, static_cast<std::size_t>(end - first));
    at_ += next_.text.size();
  };
  const char tag = last - first > 1 && *first == '0' ? first[1] : '\0';
  if (tag == 'f' || tag == 'F' || tag == 'd' || tag == 'D') {
    const std::ptrdiff_t digits = tag == 'f' || tag == 'F' ? 8 : 16;
    std::uint64_t value = 0;
    const char* stop = last - first - 2 < digits ? last : first + 2 + digits;
    const auto [end, error] = std::from_chars(first + 2, stop, value, 16);
    const bool whole = error == std::errc{} && end == first + 2 + digits;
    return finish(!whole        ? Token::Kind::bad
                  : digits == 8 ? Token::Kind::float32
                                : Token::Kind::float64,
                  stop, value);
  }
  int base = 10;
  const char* digits = first;
  if (tag == 'x' || tag == 'X')
    base = 16, digits += 2;
  else if (tag == 'b' || tag == 'B')
    base = 2, digits += 2;
  else if (is_digit(tag))
    base = 8, digits += 1;
  std::uint64_t value = 0;
  auto [end, error] = std::from_chars(digits, last, value, base);
  if (base == 10 && end != last && (*end == '.' || *end == 'e' || *end == 'E')) {
    double real = 0;
    const auto [stop, failed] = std::from_chars(first, last, real);
    return finish(failed == std::errc{} ? Token::Kind::float64 : Token::Kind::bad, stop,
                  std::bit_cast<std::uint64_t>(real));
  }
  const bool good = error == std::errc{} && end != digits;
  if (end != last && *end == 'U') ++end;
  if (end != last && is_word(*end)) {
    while (end != last && is_word(*end)) ++end;
    return finish(Token::Kind::bad, end, 0);
  }
  finish(good ? Token::Kind::integer : Token::Kind::bad, end == first ? first + 1 : end, value);
}

void Lexer::advance() {
  skip_blanks();
  start_ = at_;
  next_ = Token{Token::Kind::end, {}, 0, line_};
  if (at_ >= text_.size()) return;
  const char c = text_[at_];
  if (is_digit(c)) return number();
  if (is_word(c) || (c == '.' && at_ + 1 < text_.size() && is_word(text_[at_ + 1]))) {
    next_.kind = c == '.' ? Token::Kind::directive : Token::Kind::word;
    auto end = at_ + 1;
    while (end < text_.size() && is_word(text_[end])) ++end;
    next_.text = text_.substr(at_, end - at_);
    at_ = end;
  } else if (c == '"') {
    const auto end = text_.find('"', at_ + 1);
    const bool closed = end != std::string_view::npos;
    next_.kind = closed ? Token::Kind::text : Token::Kind::bad;
    next_.text = text_.substr(at_ + 1, (closed ? end : text_.size()) - at_ - 1);
    for (const char inside : next_.text) line_ += inside == '\n';
    at_ = closed ? end + 1 : text_.size();
  } else {
    next_.kind = c == '\0' ? Token::Kind::end : Token::Kind::punctuation;
    next_.text = text_.substr(at_, 1);
    if (next_.kind == Token::Kind::punctuation)
      ++at_;
    else
      at_ = text_.size(), next_.text = {};
  }
}

Token Lexer::take_dotted() {
  Token t = next_;
  auto end = start_ + t.text.size();
  while (end < text_.size()) {
    if (is_word(text_[end]) || (text_[end] == '.' && end + 1 < text_.size() && is_word(text_[end + 1])))
      ++end;
    else if (text_.substr(end, 2) == "::")
      end += 2;
    else
      break;
  }
  t.text = text_.substr(start_, end - start_);
  at_ = end;
  advance();
  return t;
}

bool Lexer::at_label() const {
  if (next_.kind != Token::Kind::word) return false;
  auto end = at_;
  while (end < text_.size() && (text_[end] == ' ' || text_[end] == '\t')) ++end;
  return end < text_.size() && text_[end] == ':' && text_.substr(end, 2) != "::";
}

}  // namespace cenote::cuda::ptx
