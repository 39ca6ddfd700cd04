// JSON text → values. Its inputs, manifests and headers of array files, are small.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace dismec::c {

struct Json {
  enum class Kind : std::uint8_t { null, boolean, number, text, list, object };

  Kind kind = Kind::null;
  double number = 0;  // 0 or 1 for a boolean
  std::string string;
  std::vector<Json> items;         // of a list, or the values of an object
  std::vector<std::string> names;  // keys of an object, in the order of `items`

  /// The value of a key, or null if there is none.
  const Json& at(std::string_view name) const {
    static const Json none;
    for (std::size_t i = 0; i < names.size(); ++i)
      if (names[i] == name) return items[i];
    return none;
  }
  bool is_true() const { return kind == Kind::boolean && number == 1; }
  const std::string& text() const { return get(Kind::text, "a text").string; }
  /// A whole number from 0 to 2^53, which a double represents exactly.
  std::int64_t integer() const {
    const double value = get(Kind::number, "a number").number;
    if (!(value >= 0 && value <= 9007199254740992.0) ||
        static_cast<double>(static_cast<std::int64_t>(value)) != value)
      throw std::invalid_argument("expected a whole number");
    return static_cast<std::int64_t>(value);
  }
  double real() const { return get(Kind::number, "a number").number; }
  const std::vector<Json>& list() const { return get(Kind::list, "a list").items; }

 private:
  const Json& get(Kind wanted, const char* what) const {
    if (kind != wanted) throw std::invalid_argument(std::string("expected ") + what);
    return *this;
  }
};

/// Throws std::invalid_argument if the text is not JSON.
class JsonParser {
 public:
  static Json parse(std::string_view text) {
    JsonParser parser(text);
    Json value = parser.value(0);
    parser.skip();
    if (parser.at_ != text.size()) fail();
    return value;
  }

 private:
  static constexpr int kDeepest = 64;

  explicit JsonParser(std::string_view text) : text_(text) {}

  [[noreturn]] static void fail() { throw std::invalid_argument("not valid JSON"); }

  void skip() { at_ = std::min(text_.find_first_not_of(" \t\r\n", at_), text_.size()); }
  bool take(char wanted) {
    skip();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  void expect(char wanted) {
    if (!take(wanted)) fail();
  }
  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Json value(int depth) {
    if (depth > kDeepest) fail();
    skip();
    Json result;
    if (at_ >= text_.size()) fail();
    const char first = text_[at_];
    if (first == '{' || first == '[') {
      ++at_;
      members(result, first == '{', depth);
    } else if (first == '"') {
      result.kind = Json::Kind::text;
      result.string = string();
    } else if (take_word("true") || take_word("false")) {
      result.kind = Json::Kind::boolean;
      result.number = first == 't' ? 1 : 0;
    } else if (!take_word("null")) {
      result.kind = Json::Kind::number;
      result.number = number();
    }
    return result;
  }

  void members(Json& result, bool object, int depth) {
    const char end = object ? '}' : ']';
    result.kind = object ? Json::Kind::object : Json::Kind::list;
    if (take(end)) return;
    do {
      if (object) {
        skip();
        result.names.push_back(string());
        expect(':');
      }
      result.items.push_back(value(depth + 1));
    } while (take(','));
    expect(end);
  }

  double number() {
    const auto stop = std::min(text_.find_first_not_of("+-.0123456789eE", at_), text_.size());
    double value = 0;  // not strtod, which depends on the locale
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + stop, value);
    if (error != std::errc() || end != text_.data() + stop) fail();
    at_ = stop;
    return value;
  }

  std::string string() {
    if (at_ >= text_.size() || text_[at_++] != '"') fail();
    std::string result;
    for (;;) {
      if (at_ >= text_.size()) fail();
      const char c = text_[at_++];
      if (c == '"') return result;
      if (c != '\\') {
        result += c;
        continue;
      }
      if (at_ >= text_.size()) fail();
      append_escaped(text_[at_++], result);
    }
  }

  void append_escaped(char escaped, std::string& to) {
    constexpr std::string_view from = "\"\\/bfnrt", into = "\"\\/\b\f\n\r\t";
    if (const auto found = from.find(escaped); found != std::string_view::npos) {
      to += into[found];
      return;
    }
    if (escaped != 'u') fail();
    std::uint32_t code = four_digits();
    if (code >= 0xD800 && code < 0xDC00) {
      if (!take_word("\\u")) fail();
      const std::uint32_t low = four_digits();
      if (low < 0xDC00 || low > 0xDFFF) fail();
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    const auto put = [&](std::uint32_t byte) { to += static_cast<char>(byte); };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
      put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
    } else {
      put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F));
      put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
    }
  }

  std::uint32_t four_digits() {
    std::uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      constexpr std::string_view digits = "0123456789abcdef";
      if (at_ >= text_.size()) fail();
      const char c = text_[at_++];
      const auto digit = digits.find(c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c);
      if (digit == std::string_view::npos) fail();
      code = code << 4 | static_cast<std::uint32_t>(digit);
    }
    return code;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace dismec::c
