// Texts → the document frequency of each term, and the terms that are frequent enough.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "text/slots.hpp"
#include "text/terms.hpp"

namespace dismec::text {

/// Distinct terms, stored one after the other, with a count each.
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

  /// Completes the term that has been written to the end of `bytes`.
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

/// A vocabulary as bytes: term i is bytes starts[i] … starts[i + 1] − 1.
struct TermList {
  std::vector<char> bytes;
  std::vector<std::int64_t> starts{0};
};

/// The number of texts that each term occurs in. These are sums, so it does not matter which thread
/// adds what.
class DocumentCounter {
 public:
  explicit DocumentCounter(const TermRules& rules) : rules_(rules) {}

  /// May be called from any number of threads.
  void add(std::span<const std::string_view> texts) {
    // Counts in a table of its own first: it stays in the cache, and frequent terms reach the large
    // tables once instead of once per text.
    TermCounts found;
    std::vector<std::size_t> last_text;  // in which each term was counted, plus 1
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

  /// If there are more than `most` terms, drops those with the lowest counts until at most half of
  /// `most` are left. Returns the highest count dropped, or 0.
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

  /// The terms in at least `least` and at most `most` texts, the most frequent first, ties in the
  /// order of their bytes; at most `size` terms.
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

}  // namespace dismec::text
