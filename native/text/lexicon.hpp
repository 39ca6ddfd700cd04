// Texts and a vocabulary → rows of features, and where in a text they occur.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "text/slots.hpp"
#include "text/terms.hpp"

namespace dismec::text {

/// Rows of a matrix: the size of each, and all entries.
struct CountedRows {
  std::vector<std::int64_t> sizes;
  std::vector<std::int32_t> features;
  std::vector<float> values;
};

/// An occurrence of a feature in a text, in characters.
struct Span {
  std::int64_t feature, begin, end;
};

/// Radix sort of numbers below `limit`: for the terms of a text it is several times as fast as a
/// comparison sort.
inline void sort_numbers(std::vector<std::uint32_t>& numbers, std::vector<std::uint32_t>& spare,
                         std::size_t limit) {
  constexpr std::size_t kFew = 64, kDigit = 256;
  if (numbers.size() < kFew) {
    std::sort(numbers.begin(), numbers.end());
    return;
  }
  spare.resize(numbers.size());
  for (int shift = 0; limit >> shift != 0; shift += 8) {
    std::array<std::uint32_t, kDigit + 1> starts{};
    for (const std::uint32_t number : numbers) ++starts[(number >> shift) % kDigit + 1];
    for (std::size_t digit = 1; digit < kDigit; ++digit) starts[digit] += starts[digit - 1];
    for (const std::uint32_t number : numbers) spare[starts[(number >> shift) % kDigit]++] = number;
    numbers.swap(spare);
  }
}

/// Maps terms to features. A term's feature is its position among the terms, whose memory belongs
/// to the caller.
class Lexicon {
 public:
  /// Term i is bytes starts[i] … starts[i + 1] − 1.
  Lexicon(const TermRules& rules, std::span<const char> bytes, std::span<const std::int64_t> starts)
      : rules_(rules), bytes_(bytes), starts_(starts), slots_(starts.size()) {
    std::vector<std::uint64_t> hashes;
    hashes.reserve(size());
    for (std::size_t number = 0; number < size() && !unsound_; ++number) {
      const std::string_view term = (*this)[number];
      const std::uint64_t hash = hash_term(term);
      const bool twice =
          slots_.find(hash, [&](std::size_t other) { return (*this)[other] == term; }) >= 0;
      if (twice || !is_possible(term)) unsound_ = number;
      hashes.push_back(hash);
      slots_.add(hashes);
    }
  }

  std::size_t size() const { return starts_.size() - 1; }

  /// The first term that occurs twice, or that these rules cannot produce.
  std::optional<std::size_t> unsound() const { return unsound_; }

  /// How often each feature occurs in each text; 1 + ln of that if `sublinear`.
  CountedRows rows(std::span<const std::string_view> texts, bool sublinear) const {
    CountedRows result;
    TextBuffer buffer;
    std::vector<std::uint32_t> found, spare;
    for (const std::string_view text : texts) {
      found.clear();
      for_features(text, buffer, [&](const Term&, std::int64_t feature) {
        found.push_back(static_cast<std::uint32_t>(feature));
      });
      sort_numbers(found, spare, size());
      const std::size_t before = result.features.size();
      for (std::size_t begin = 0, end = 0; begin < found.size(); begin = end) {
        while (end < found.size() && found[end] == found[begin]) ++end;
        result.features.push_back(static_cast<std::int32_t>(found[begin]));
        result.values.push_back(value_of(end - begin, sublinear));
      }
      result.sizes.push_back(static_cast<std::int64_t>(result.features.size() - before));
    }
    return result;
  }

  /// Every occurrence of a feature, ordered by where it begins, longer n-grams last.
  std::vector<Span> spans(std::string_view text) const {
    std::vector<Span> result;  // in bytes at first
    TextBuffer buffer;
    for_features(text, buffer, [&](const Term& term, std::int64_t feature) {
      const auto [begin, end] = source_of(term, buffer, text);
      result.push_back({feature, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end)});
    });
    std::vector<std::int64_t*> places;
    for (Span& span : result) places.insert(places.end(), {&span.begin, &span.end});
    std::sort(places.begin(), places.end(), [](const auto* a, const auto* b) { return *a < *b; });
    std::int64_t at = 0, n_chars = 0;
    for (std::int64_t* place : places) {
      for (; at < *place; ++at) n_chars += unicode::begins(text[at]);
      *place = n_chars;
    }
    return result;
  }

 private:
  std::string_view operator[](std::size_t number) const {
    return {bytes_.data() + starts_[number],
            static_cast<std::size_t>(starts_[number + 1] - starts_[number])};
  }

  bool is_possible(std::string_view term) const {
    if (term.empty()) return false;
    if (term[0] == kGramSign) {
      const std::int64_t n = std::count_if(term.begin() + 1, term.end(), unicode::begins);
      return n >= 1 && n <= rules_.longest_gram();
    }
    if (term.front() == ' ' || term.back() == ' ' || term.find("  ") != term.npos) return false;
    const std::int64_t n = 1 + std::count(term.begin(), term.end(), ' ');
    return n >= rules_.word_from && n <= rules_.word_to;
  }

  static float value_of(std::size_t count, bool sublinear) {
    const auto value = static_cast<double>(count);
    return static_cast<float>(sublinear && count > 1 ? 1 + std::log(value) : value);
  }

  template <typename Take>
  void for_features(std::string_view text, TextBuffer& buffer, Take&& take) const {
    constexpr std::size_t kAhead = 8;
    for_terms(text, rules_, buffer, [&] {
      const std::vector<Term>& terms = buffer.terms;
      for (std::size_t i = 0; i < terms.size(); ++i) {
        if (i + kAhead < terms.size()) slots_.prefetch(terms[i + kAhead].hash);
        const Term& term = terms[i];
        const std::int64_t feature = slots_.find(term.hash, [&](std::size_t number) {
          return is_term((*this)[number], term, buffer.bytes.data());
        });
        if (feature >= 0) take(term, feature);
      }
    });
  }

  /// The position of a term in the text, without spaces that do not belong to it.
  std::pair<std::size_t, std::size_t> source_of(const Term& term, const TextBuffer& buffer,
                                                std::string_view text) const {
    const Word& word = buffer.words[term.word];
    const std::uint32_t term_end = term.begin + term.size;
    if (!term.is_gram) {
      std::size_t last = term.word;
      while (buffer.words[last].end < term_end) ++last;
      return {word.source_begin, buffer.words[last].source_end};
    }
    // The character of the text that each character of the buffer comes from: İ becomes two.
    std::vector<std::pair<std::size_t, std::size_t>> chars;
    for (std::size_t at = word.source_begin, end = 0; at < word.source_end; at = end) {
      for (end = at + 1; end < word.source_end && !unicode::begins(text[end]);) ++end;
      chars.emplace_back(at, end);
      if (rules_.lowercase && text.substr(at, end - at) == "\xC4\xB0") chars.emplace_back(at, end);
    }
    const auto chars_before = [&](std::uint32_t place) {
      return static_cast<std::size_t>(std::count_if(buffer.bytes.begin() + word.begin,
                                                    buffer.bytes.begin() + place, unicode::begins));
    };
    const std::size_t first = chars_before(std::max(term.begin, word.begin));
    const std::size_t last = chars_before(std::min(term_end, word.end));
    return {first < chars.size() ? chars[first].first : word.source_end,
            last > 0 ? chars[last - 1].second : word.source_begin};
  }

  TermRules rules_;
  std::span<const char> bytes_;
  std::span<const std::int64_t> starts_;
  Slots slots_;
  std::optional<std::size_t> unsound_;
};

}  // namespace dismec::text
