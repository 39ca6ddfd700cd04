// Terms → numbers: in how many texts each occurs, and which feature it is.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "text.hpp"

namespace dismec {

/// Whether `stored` is the term, written out.
inline bool is_term(std::string_view stored, const Term& term, const char* bytes) {
  const std::size_t sign = term.is_gram;
  return stored.size() == term.size + sign && (!sign || stored[0] == kGramSign) &&
         std::memcmp(stored.data() + sign, bytes + term.begin, term.size) == 0;
}

/// Open addressing from hashes to numbers that count from 0. What has a number is kept elsewhere,
/// and compared there: a slot holds half of a hash, which tells most others apart.
class Slots {
 public:
  explicit Slots(std::size_t size = 0) {
    std::size_t n_slots = 64;
    while (n_slots < 2 * size) n_slots *= 2;
    slots_.resize(n_slots);
  }

  void prefetch(std::uint64_t hash) const {
    __builtin_prefetch(&slots_[hash & (slots_.size() - 1)]);
  }

  /// The number for which same(number) holds, or −1.
  template <typename Same>
  std::int64_t find(std::uint64_t hash, Same&& same) const {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t i = hash & mask; slots_[i].next != 0; i = (i + 1) & mask)
      if (slots_[i].tag == hash >> 32 && same(slots_[i].next - 1)) return slots_[i].next - 1;
    return -1;
  }

  /// Takes in the next number, that of hashes.back(); `hashes` are those of all numbers.
  void add(std::span<const std::uint64_t> hashes) {
    if (hashes.size() >= std::numeric_limits<std::uint32_t>::max())
      throw std::length_error("more terms than 32 bits can number");
    if (2 * hashes.size() > slots_.size()) {
      slots_.assign(2 * slots_.size(), {});
      for (std::size_t number = 0; number + 1 < hashes.size(); ++number)
        place(hashes[number], number);
    }
    place(hashes.back(), hashes.size() - 1);
  }

 private:
  struct Slot {
    std::uint32_t tag = 0;
    std::uint32_t next = 0;  // the number plus 1; 0 is free
  };

  void place(std::uint64_t hash, std::size_t number) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = hash & mask;
    while (slots_[i].next != 0) i = (i + 1) & mask;
    slots_[i] = {static_cast<std::uint32_t>(hash >> 32), static_cast<std::uint32_t>(number + 1)};
  }

  std::vector<Slot> slots_;
};

/// Distinct terms, written out one behind the other, each with a count.
struct TermCounts {
  Slots slots;
  std::vector<std::uint64_t> hashes;
  std::vector<std::size_t> starts{0};
  std::vector<char> bytes;
  std::vector<std::int64_t> counts;

  std::size_t size() const { return counts.size(); }

  std::string_view operator[](std::size_t number) const {
    return {bytes.data() + starts[number], starts[number + 1] - starts[number]};
  }

  /// Ends the term that has been written to the end of `bytes`.
  void add_written(std::uint64_t hash, std::int64_t count) {
    hashes.push_back(hash);
    starts.push_back(bytes.size());
    counts.push_back(count);
    slots.add(hashes);
  }

  std::size_t find_or_add(const Term& term, const char* from) {
    const std::int64_t found = slots.find(
        term.hash, [&](std::size_t number) { return is_term((*this)[number], term, from); });
    if (found >= 0) return static_cast<std::size_t>(found);
    if (term.is_gram) bytes.push_back(kGramSign);
    bytes.insert(bytes.end(), from + term.begin, from + term.begin + term.size);
    add_written(term.hash, 0);
    return size() - 1;
  }

  void add(std::uint64_t hash, std::string_view term, std::int64_t count) {
    const std::int64_t found =
        slots.find(hash, [&](std::size_t number) { return (*this)[number] == term; });
    if (found >= 0) {
      counts[found] += count;
      return;
    }
    bytes.insert(bytes.end(), term.begin(), term.end());
    add_written(hash, count);
  }
};

/// A vocabulary written out: term i is bytes starts[i] … starts[i + 1].
struct TermList {
  std::vector<char> bytes;
  std::vector<std::int64_t> starts{0};
};

/// In how many texts each term occurs. Sums, so that it does not matter which thread adds what.
class DocumentCounter {
 public:
  explicit DocumentCounter(const TermRules& rules) : rules_(rules) {}

  /// From any number of threads at a time.
  void add(std::span<const std::string_view> texts) {
    // A table of its own first: it stays in the cache, and frequent terms reach the large tables
    // once and not once a text.
    TermCounts found;
    std::vector<std::size_t> last_text;  // that a term was counted for, plus 1
    TextBuffer buffer;
    for (std::size_t text = 1; text <= texts.size(); ++text)
      for_terms(texts[text - 1], rules_, buffer, [&] {
        for (const Term& term : buffer.terms) {
          const std::size_t number = found.find_or_add(term, buffer.bytes.data());
          if (number == last_text.size()) last_text.push_back(0);
          found.counts[number] += last_text[number] != text;
          last_text[number] = text;
        }
      });
    std::vector<std::vector<std::uint32_t>> by_shard(kShards);
    for (std::size_t number = 0; number < found.size(); ++number)
      by_shard[found.hashes[number] >> kShardShift].push_back(static_cast<std::uint32_t>(number));
    for (std::size_t s = 0; s < kShards; ++s) {
      Shard& shard = shards_[s];
      const std::vector<std::uint32_t>& numbers = by_shard[s];
      const std::scoped_lock lock(shard.mutex);
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        if (i + kAhead < numbers.size())
          shard.terms.slots.prefetch(found.hashes[numbers[i + kAhead]]);
        const std::uint32_t number = numbers[i];
        shard.terms.add(found.hashes[number], found[number], found.counts[number]);
      }
    }
  }

  /// If there are more than `most` terms, forgets those of the lowest counts, so many that at most
  /// half of `most` are left. Returns the highest count that was forgotten, else 0.
  std::int64_t prune(std::size_t most) {
    constexpr std::size_t kHighest = std::size_t{1} << 20;
    std::vector<std::size_t> with_count(kHighest + 1);
    std::size_t left = 0;
    for (const Shard& shard : shards_) {
      left += shard.terms.size();
      for (const std::int64_t count : shard.terms.counts)
        ++with_count[std::min<std::size_t>(count, kHighest)];
    }
    if (left <= most) return 0;
    std::size_t limit = 0;
    while (left > most / 2 && limit + 1 < kHighest) left -= with_count[++limit];
    for (Shard& shard : shards_) {
      TermCounts kept;
      for (std::size_t number = 0; number < shard.terms.size(); ++number)
        if (shard.terms.counts[number] > static_cast<std::int64_t>(limit))
          kept.add(shard.terms.hashes[number], shard.terms[number], shard.terms.counts[number]);
      shard.terms = std::move(kept);
    }
    return static_cast<std::int64_t>(limit);
  }

  /// The terms in at least `least` and at most `most` texts, the most frequent first and equally
  /// frequent ones by their bytes; no more than `size`.
  TermList list(std::int64_t least, double most, std::size_t size) const {
    struct Entry {
      std::int64_t count;
      std::string_view term;
    };
    std::vector<Entry> entries;
    for (const Shard& shard : shards_)
      for (std::size_t number = 0; number < shard.terms.size(); ++number) {
        const std::int64_t count = shard.terms.counts[number];
        if (count >= least && static_cast<double>(count) <= most)
          entries.push_back({count, shard.terms[number]});
      }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return a.count != b.count ? a.count > b.count : a.term < b.term;
    });
    if (entries.size() > size) entries.resize(size);
    TermList result;
    for (const Entry& entry : entries) {
      result.bytes.insert(result.bytes.end(), entry.term.begin(), entry.term.end());
      result.starts.push_back(static_cast<std::int64_t>(result.bytes.size()));
    }
    return result;
  }

 private:
  static constexpr std::size_t kShards = 64;
  static constexpr int kShardShift = 64 - 6;
  static constexpr std::size_t kAhead = 8;

  struct Shard {
    std::mutex mutex;
    TermCounts terms;
  };

  TermRules rules_;
  std::array<Shard, kShards> shards_;
};

/// Rows of a matrix: how many entries each has, and all of them.
struct CountedRows {
  std::vector<std::int64_t> sizes;
  std::vector<std::int32_t> features;
  std::vector<float> values;
};

/// An occurrence of a feature in a text, in characters.
struct Span {
  std::int64_t feature, begin, end;
};

/// Puts numbers below `limit` into ascending order, digit by digit: of a text's terms there are
/// many enough for this to be several times as fast as to compare them.
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

/// Which feature each term is: its place among the terms, whose memory belongs to the caller.
class Lexicon {
 public:
  /// bytes starts[i] … starts[i + 1] are term i.
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

  /// The first term that is there twice, or that these rules do not make.
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

  /// Every occurrence of a feature, in the order in which they begin and longer n-grams last.
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
      return n >= 1 && n <= rules_.char_to;
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

  /// Where in the text a term stands, without the spaces that are not part of it.
  std::pair<std::size_t, std::size_t> source_of(const Term& term, const TextBuffer& buffer,
                                                std::string_view text) const {
    const Word& word = buffer.words[term.word];
    const std::uint32_t term_end = term.begin + term.size;
    if (!term.is_gram) {
      std::size_t last = term.word;
      while (buffer.words[last].end < term_end) ++last;
      return {word.source_begin, buffer.words[last].source_end};
    }
    // The character of the text that each of the buffer comes from; of a capital with a dot above,
    // two do.
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

}  // namespace dismec
