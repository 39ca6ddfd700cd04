// Text → words → terms: what counts as a feature of a text.
//
// A word is a run of at least two letters, digits, marks and underscores. In scripts written
// without spaces, any two neighboring characters are a word, and so is a single one by itself.
// Words are written to a buffer with one space before and after each, so that every n-gram of
// words, and of the characters of a word with its spaces, is a slice of that buffer and never
// copied.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "text/characters.hpp"

namespace dismec::text {

/// Which n-grams are terms: the shortest and longest length, both 0 for none. `prefix` is the
/// number of characters at the beginning of a longer word that are a term, or 0.
struct TermRules {
  std::int64_t word_from, word_to;
  std::int64_t char_from, char_to;
  std::int64_t prefix;
  bool lowercase;

  /// Characters in the longest character n-gram, with the space before a prefix.
  std::int64_t longest_gram() const { return std::max(char_to, prefix > 0 ? prefix + 1 : 0); }
  /// Whether the prefix of a word is not one of its character n-grams already.
  bool adds_prefix() const {
    return prefix > 0 && !(char_from <= prefix + 1 && prefix + 1 <= char_to);
  }
};

constexpr std::int64_t kLongestGram = 16;  // in words or characters
constexpr std::size_t kLongestWord = 255;  // in bytes: no language has longer words

/// Precedes the characters of a character n-gram, and occurs in no word.
constexpr char kGramSign = '#';

/// A word in the buffer, and its position in the text, all in bytes.
struct Word {
  std::uint64_t hash;
  std::uint32_t begin, end;
  std::size_t source_begin, source_end;
};

/// An occurrence of a term: `size` bytes of the buffer, preceded by kGramSign if `is_gram`.
struct Term {
  std::uint64_t hash;
  std::uint32_t begin;
  std::uint16_t size;
  bool is_gram;
  std::uint32_t word;  // in which it begins
};

/// Buffers reused from text to text.
struct TextBuffer {
  std::vector<char> bytes;
  std::vector<Word> words;
  std::vector<Term> terms;
};

inline std::uint64_t mix_hash(std::uint64_t h) {
  h ^= h >> 32;
  h *= 0x9E3779B97F4A7C15u;
  h ^= h >> 29;
  h *= 0xBF58476D1CE4E5B9u;
  return h ^ h >> 32;
}

inline std::uint64_t load_eight(const char* p) {
  std::uint64_t bytes;
  std::memcpy(&bytes, p, 8);
  return bytes;
}

constexpr bool kLittleEndian = std::endian::native == std::endian::little;

/// Hashes at least one byte. With kSlack, eight bytes can be read from each of them, which is
/// faster.
template <bool kSlack>
std::uint64_t hash_bytes(const char* p, std::size_t size, std::uint64_t seed) {
  std::uint64_t h = seed + size * 0xD6E8FEB86659FD93u;
  for (; size > 8; p += 8, size -= 8) h = mix_hash(h ^ load_eight(p));
  std::uint64_t rest = 0;
  if constexpr (kSlack && kLittleEndian)
    rest = load_eight(p) & ~std::uint64_t{0} >> (64 - 8 * size);
  else
    std::memcpy(&rest, p, size);
  return mix_hash(h ^ rest);
}

constexpr std::uint64_t kGramSeed = 0x5851F42D4C957F2Du;

/// The hash of words joined by spaces, from the hash of all but the last and that of the last.
inline std::uint64_t join_hash(std::uint64_t before, std::uint64_t word) {
  return mix_hash(before * 0xD6E8FEB86659FD93u + word);
}

/// The Term::hash of a written term; 0 if it is not one.
inline std::uint64_t hash_term(std::string_view term) {
  if (term.size() > 1 && term[0] == kGramSign)
    return hash_bytes<false>(term.data() + 1, term.size() - 1, kGramSeed);
  std::uint64_t h = 0;
  for (std::size_t begin = 0, end = 0; begin < term.size(); begin = end + 1) {
    end = std::min(term.find(' ', begin), term.size());
    if (end == begin) return 0;
    const std::uint64_t word = hash_bytes<false>(term.data() + begin, end - begin, 0);
    h = begin == 0 ? word : join_hash(h, word);
  }
  return h;
}

/// Appends the character n-grams of a word with its spaces; a word too short for one counts as a
/// whole, once. The prefix has the space before it.
inline void append_grams(const TermRules& rules, const char* bytes, const Word& word,
                         std::uint32_t number, std::vector<Term>& terms) {
  std::array<std::uint32_t, kLongestWord + 3> starts;
  std::int64_t n_chars = 0;
  for (std::uint32_t at = word.begin - 1; at <= word.end; ++at)
    if (unicode::begins(bytes[at])) starts[n_chars++] = at;
  starts[n_chars] = word.end + 1;
  const auto append = [&](std::int64_t first, std::int64_t size) {
    const std::uint32_t begin = starts[first], length = starts[first + size] - begin;
    terms.push_back({hash_bytes<true>(bytes + begin, length, kGramSeed), begin,
                     static_cast<std::uint16_t>(length), true, number});
  };
  for (std::int64_t n = rules.char_from; n > 0 && n <= rules.char_to; ++n) {
    const std::int64_t size = std::min(n, n_chars);
    for (std::int64_t i = 0; i + size <= n_chars; ++i) append(i, size);
    if (n >= n_chars) break;
  }
  if (rules.adds_prefix() && n_chars > rules.prefix + 2) append(0, rules.prefix + 1);
}

/// Lists the terms that begin in one of the first n words.
inline void list_terms(const TermRules& rules, TextBuffer& buffer, std::size_t n) {
  const std::vector<Word>& words = buffer.words;
  const auto longest = static_cast<std::size_t>(rules.word_to);
  const auto shortest = static_cast<std::size_t>(rules.word_from);
  buffer.terms.clear();
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t last = std::min(words.size(), i + longest);
    std::uint64_t h = 0;
    for (std::size_t j = i; j < last; ++j) {
      h = j == i ? words[j].hash : join_hash(h, words[j].hash);
      if (j - i + 1 >= shortest)
        buffer.terms.push_back({h, words[i].begin,
                                static_cast<std::uint16_t>(words[j].end - words[i].begin), false,
                                static_cast<std::uint32_t>(i)});
    }
    if (rules.longest_gram() > 0)
      append_grams(rules, buffer.bytes.data(), words[i], static_cast<std::uint32_t>(i),
                   buffer.terms);
  }
}

/// Calls take() whenever `buffer` holds the next terms of a text in valid UTF-8. Memory does not
/// grow with the text.
template <typename Take>
void for_terms(std::string_view text, const TermRules& rules, TextBuffer& buffer, Take&& take) {
  constexpr std::size_t kFull = std::size_t{1} << 14;  // fits in the first-level cache
  constexpr std::size_t kSlack = kLongestWord + 32;
  const std::uint8_t* const kinds = unicode::kinds();
  const auto& ascii = rules.lowercase ? unicode::kAsciiLower : unicode::kAsciiAsIs;
  const char* const text_begin = text.data();
  const char* const text_end = text_begin + text.size();

  buffer.bytes.resize(kFull + kSlack);
  buffer.words.clear();
  char* const bytes = buffer.bytes.data();
  char* const full = bytes + kFull;
  char* out = bytes;
  *out++ = ' ';

  // Terms may continue in what follows: the last words are kept for the terms that they begin.
  const auto hand_over = [&](bool last) {
    std::vector<Word>& words = buffer.words;
    const auto longest = static_cast<std::size_t>(std::max<std::int64_t>(rules.word_to, 1));
    const std::size_t n = last ? words.size() : words.size() - (longest - 1);
    list_terms(rules, buffer, n);
    take();
    if (last) return;
    const char* const from = n < words.size() ? bytes + words[n].begin - 1 : out - 1;
    const auto shift = static_cast<std::uint32_t>(from - bytes);
    std::memmove(bytes, from, out - from);
    out -= shift;
    words.erase(words.begin(), words.begin() + n);
    for (Word& word : words) word.begin -= shift, word.end -= shift;
  };

  // Adds the word written from `begin` to `out`.
  const auto add_word = [&](char* begin, const char* source_begin, const char* source_end) {
    const auto size = static_cast<std::size_t>(out - begin);
    buffer.words.push_back({hash_bytes<true>(begin, size, 0),
                            static_cast<std::uint32_t>(begin - bytes),
                            static_cast<std::uint32_t>(out - bytes),
                            static_cast<std::size_t>(source_begin - text_begin),
                            static_cast<std::size_t>(source_end - text_begin)});
    *out++ = ' ';
    if (out > full) hand_over(false);
  };

  const auto add_piece = [&](const char* begin, const char* end) {
    if (static_cast<std::size_t>(end - begin) > kLongestWord) return;
    char* const word = out;
    out = std::copy(begin, end, out);
    add_word(word, begin, end);
  };

  // Reads words of a script without spaces, from `p` on; marks belong to the character before them.
  const auto read_pairs = [&](const char* p) {
    const char *before = nullptr, *here = nullptr;
    while (p < text_end && static_cast<unsigned char>(*p) >= 0x80) {
      const auto [code, size] = unicode::decode(p);
      const std::uint8_t kind = kinds[code] & unicode::kKind;
      if (kind == unicode::kAlone) {
        if (before) add_piece(before, p);
        before = here;
        here = p;
      } else if (kind != unicode::kMark) {
        break;
      }
      p += size;
    }
    add_piece(before ? before : here, p);
    return p;
  };

  // Reads one word from its first character on.
  const auto read_word = [&](const char* p) {
    const char* const source = p;
    char* const begin = out;
    char* const too_long = out + kLongestWord + 1;
    std::size_t n_chars = 0;
    while (p < text_end) {
      if (kLittleEndian && text_end - p >= 8 && out < too_long) {
        // Eight characters at a time where they are ASCII: most words end within the first eight.
        constexpr std::uint64_t kHigh = 0x8080808080808080u;
        const std::uint64_t eight = load_eight(p);
        if ((eight & kHigh) == 0) {
          std::uint64_t capitals;
          const std::uint64_t others = ~unicode::word_bits(eight, capitals) & kHigh;
          const std::uint64_t lower = rules.lowercase ? eight | capitals >> 2 : eight;
          std::memcpy(out, &lower, 8);
          const int n = others ? std::countr_zero(others) / 8 : 8;
          p += n, out += n, n_chars += n;
          if (others) break;
          continue;
        }
      }
      if (const auto byte = static_cast<unsigned char>(*p); byte < 0x80) {
        const char letter = ascii[byte];
        if (letter == 0) break;
        if (out < too_long) *out++ = letter;
        ++p, ++n_chars;
        continue;
      }
      const auto [code, size] = unicode::decode(p);
      const std::uint8_t kind = kinds[code] & unicode::kKind;
      if (kind == unicode::kOther || kind == unicode::kAlone) break;
      if (out < too_long) {
        const bool lower = rules.lowercase && (kinds[code] & unicode::kUpper);
        out = unicode::encode(lower ? unicode::lower(code) : code, out);
        if (lower && code == unicode::kDottedI) out = unicode::encode(0x307, out);
      }
      p += size, ++n_chars;
    }
    if (n_chars >= 2 && out < too_long)
      add_word(begin, source, p);
    else
      out = begin;
    return p;
  };

  for (const char* p = text_begin; p < text_end;) {
    if (const auto byte = static_cast<unsigned char>(*p); byte < 0x80) {
      p = ascii[byte] ? read_word(p) : p + 1;
      continue;
    }
    const auto [code, size] = unicode::decode(p);
    const std::uint8_t kind = kinds[code] & unicode::kKind;
    if (kind == unicode::kAlone)
      p = read_pairs(p);
    else
      p = kind == unicode::kOther ? p + size : read_word(p);
  }
  hand_over(true);
}

}  // namespace dismec::text
