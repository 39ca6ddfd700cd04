// UTF-8 bytes → characters, their role in words, and their lower case.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "text/unicode.hpp"

namespace dismec::text::unicode {

/// The role of a character in words; kAlone is for scripts written without spaces.
enum Kind : std::uint8_t { kOther, kLetter, kMark, kAlone };

constexpr std::uint8_t kKind = 3;   // the bits of a Kind
constexpr std::uint8_t kUpper = 4;  // an extra bit: it has a lower case

/// The Kind of every character, plus kUpper if it has a lower case.
inline const std::uint8_t* kinds() {
  static const std::vector<std::uint8_t> table = [] {
    std::vector<std::uint8_t> kinds(0x110000, kOther);
    const auto fill = [&](std::span<const Range> ranges, Kind kind) {
      for (const auto [first, last] : ranges)
        std::fill(kinds.begin() + first, kinds.begin() + last + 1, kind);
    };
    fill(kLetters, kLetter);
    fill(kMarks, kMark);
    fill(kSpaceless, kAlone);
    for (const Capitals& run : kCapitals)
      for (char32_t code = run.first; code <= run.last; code += run.step) kinds[code] |= kUpper;
    return kinds;
  }();
  return table.data();
}

/// The lower case of a non-ASCII character that has one.
inline char32_t lower(char32_t code) {
  const auto* run = std::upper_bound(
      std::begin(kCapitals), std::end(kCapitals), code,
      [](char32_t wanted, const Capitals& capitals) { return wanted < capitals.first; });
  return code + (run - 1)->add;
}

struct Character {
  char32_t code;
  std::size_t size;  // bytes
};

/// The non-ASCII character that begins at `p`, in valid UTF-8.
inline Character decode(const char* p) {
  const auto byte = [&](int i) { return static_cast<char32_t>(static_cast<unsigned char>(p[i])); };
  const auto rest = [&](int i) { return byte(i) & 0x3F; };
  if (byte(0) < 0xE0) return {(byte(0) & 0x1F) << 6 | rest(1), 2};
  if (byte(0) < 0xF0) return {(byte(0) & 0x0F) << 12 | rest(1) << 6 | rest(2), 3};
  return {(byte(0) & 0x07) << 18 | rest(1) << 12 | rest(2) << 6 | rest(3), 4};
}

/// Writes up to four bytes and returns the end.
inline char* encode(char32_t code, char* out) {
  const auto put = [&](char32_t byte) { *out++ = static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
  return out;
}

/// Whether a byte of UTF-8 begins a character.
inline bool begins(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

constexpr char32_t kDottedI = 0x130;  // its lower case is i and a dot above: two characters

/// The form of an ASCII character within a word; 0 if it ends the word.
constexpr std::array<char, 128> ascii_letters(bool lowercase) {
  std::array<char, 128> letters{};
  for (int c = 0; c < 128; ++c) {
    const bool upper = c >= 'A' && c <= 'Z';
    if (upper || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')
      letters[c] = static_cast<char>(upper && lowercase ? c + ('a' - 'A') : c);
  }
  return letters;
}

/// For eight ASCII characters: the highest bit of each that belongs to a word; `capitals` are those
/// from A to Z.
inline std::uint64_t word_bits(std::uint64_t eight, std::uint64_t& capitals) {
  constexpr std::uint64_t kEach = 0x0101010101010101u, kHigh = 0x80 * kEach;
  // Below 0x80, adding 0x80 − c sets the highest bit of every byte that is at least c.
  const auto within = [&](std::uint64_t bytes, std::uint64_t first, std::uint64_t last) {
    return (bytes + (0x80 - first) * kEach) & ~(bytes + (0x7F - last) * kEach) & kHigh;
  };
  capitals = within(eight, 'A', 'Z');
  return capitals | within(eight, 'a', 'z') | within(eight, '0', '9') | within(eight, '_', '_');
}

inline constexpr std::array<char, 128> kAsciiLower = ascii_letters(true);
inline constexpr std::array<char, 128> kAsciiAsIs = ascii_letters(false);

}  // namespace dismec::text::unicode
