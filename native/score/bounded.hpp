// A row × a split shard → its k best labels, exactly, without reading most of the shard.
//
// A product value · weight raises a sum only if both have the same sign. Adding only those parts of
// the row's features whose products can be positive bounds every score from above. Few weights of
// trained models are positive, and few classifiers have a bound above the k-th best score: only
// these are scored, by looking them up in all parts.
//
// Why the bounds need no slack: terms are added in the same order as for the scores, and rounding
// is monotone. x ≤ y implies fl(x + t) ≤ fl(y + t), and fl(x + t) ≤ x for t ≤ 0; so a bound that is
// not below the sum before a term is not below it after, whether both add the term or only the sum
// adds one that is not positive. Scaling by a positive number and adding the bias are monotone too.
// Overflow does not break this either: all terms of a bound are at least 0, so if it is finite,
// then so was every positive term, and the sum can at worst be −inf; and if it is infinite, or NaN
// with the bias, the classifier is looked up.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "score/ranking.hpp"
#include "score/sums.hpp"

namespace dismec::score {

// Measured on generated models of 50,000 and 500,000 labels, k from 5 to 100.

/// Classifiers looked up together, because most of the time is spent waiting for memory.
inline constexpr std::size_t kAtOnce = 8;
/// Cost of looking up a classifier in a part, relative to adding a weight or a word.
inline constexpr std::int64_t kLookup = 8;
/// Approximate number of classifiers looked up per place that is still empty.
inline constexpr std::int64_t kTries = 2;
/// Entries of a list examined together.
inline constexpr std::int64_t kWindow = 32;

/// A term of the score of one of the classifiers being looked up.
template <typename Code>
struct Found {
  const Code* weight;
  float value;
  std::uint32_t candidate;
};

/// The bounds of a row's classifiers, and which of these have been looked up. The highest bound is
/// found through the maxima of groups of kGroup classifiers, and of blocks of kGroup groups.
struct Bounds {
  std::vector<float> groups, blocks;  // padded with −inf
  std::vector<std::uint16_t> taken;   // one bit per classifier of a group
};

/// Scratch memory, reused from row to row.
template <typename Code>
struct Scratch {
  Bounds bounds;
  std::vector<Found<Code>> found;
  std::vector<std::int64_t> rows;
};

/// Start of the window of a list in which a classifier would be if entries were spread evenly.
/// `share` is the number of list entries per classifier.
inline std::int64_t guess(std::int64_t count, float share, std::int64_t row) {
  const auto at = static_cast<std::int64_t>(static_cast<float>(row) * share);
  return std::clamp<std::int64_t>(at - kWindow / 2, 0, std::max<std::int64_t>(count - kWindow, 0));
}

/// The position of a classifier's weight in a list of places; `count` or more if it has none.
inline std::int64_t find_listed(const std::uint16_t* places, std::int64_t count, float share,
                                std::int64_t row) {
  std::int64_t begin = guess(count, share, row);
  while (begin > 0 && places[begin] > row) begin = std::max<std::int64_t>(begin - kWindow, 0);
  while (begin + kWindow < count && places[begin + kWindow - 1] < row) begin += kWindow;
  const std::int64_t end = std::min(begin + kWindow, count);
  const auto place = static_cast<std::uint16_t>(row);
  std::uint16_t lower = 0;
  for (std::int64_t i = begin; i < end; ++i)
    lower = static_cast<std::uint16_t>(lower + (places[i] < place ? 1 : 0));
  const std::int64_t at = begin + lower;
  return at < end && places[at] == place ? at : count;
}

/// The same for words of bits and their ranks.
inline std::int64_t find_dense(const std::uint16_t* words, std::int64_t count, std::int64_t n_words,
                               std::int64_t row) {
  const std::int64_t word = row / kGroup;
  const unsigned bit = 1U << (row % kGroup);
  if ((words[word] & bit) == 0) return count;
  std::int64_t at = words[n_words + word / kRankWords];
  for (std::int64_t i = word / kRankWords * kRankWords; i < word; ++i)
    at += std::popcount(words[i]);
  return at + std::popcount(words[word] & (bit - 1));
}

/// The sums of some classifiers, added in the order of a scan. Hardly any of this memory is cached,
/// so places and weights are prefetched well before they are used.
template <typename Code>
inline void look_up(const Shard<Code>& shard, std::span<const Term<Code>> terms,
                    std::span<const std::int64_t> candidates, float* sums,
                    std::vector<Found<Code>>& found) {
  const std::int64_t n_words = shard.n_words();
  const float share = 1.0f / static_cast<float>(shard.n_rows());
  for (const auto& [list, value, lifts] : terms) {
    const std::int64_t count = std::ssize(list.weights);
    for (const std::int64_t row : candidates) {
      if (list.dense) {
        __builtin_prefetch(list.places + row / kGroup);
        __builtin_prefetch(list.places + n_words + row / kGroup / kRankWords);
      } else {
        const std::int64_t at = guess(count, share * static_cast<float>(count), row);
        __builtin_prefetch(list.places + at);
        __builtin_prefetch(list.places + at + kWindow - 1);
      }
    }
  }
  found.clear();
  for (const auto& [list, value, lifts] : terms) {
    const std::int64_t count = std::ssize(list.weights);
    if (count == 0) continue;
    for (std::size_t j = 0; j < candidates.size(); ++j) {
      const std::int64_t at =
          list.dense
              ? find_dense(list.places, count, n_words, candidates[j])
              : find_listed(list.places, count, share * static_cast<float>(count), candidates[j]);
      if (at >= count) continue;
      __builtin_prefetch(&list.weights[at]);
      found.push_back({&list.weights[at], value, static_cast<std::uint32_t>(j)});
    }
  }
  std::fill_n(sums, candidates.size(), 0.0f);
  for (const auto& [weight, value, j] : found) sums[j] += value * decode(*weight);
}

/// The maximum of kGroup numbers.
inline float highest_of_group(const float* numbers) {
  Wide highest = load(numbers);
  for (int l = kWide; l < kGroup; l += kWide) {
    const Wide more = load(numbers + l);
    highest = highest > more ? highest : more;
  }
  return highest_of(highest);
}

/// The position of the first maximum. The size is a multiple of kGroup, and there is no NaN.
inline std::int64_t first_highest(std::span<const float> numbers) {
  Wide highest = load(numbers.data());
  for (std::size_t i = kWide; i < numbers.size(); i += kWide) {
    const Wide more = load(numbers.data() + i);
    highest = highest > more ? highest : more;
  }
  return std::ranges::find(numbers, highest_of(highest)) - numbers.begin();
}

/// The classifiers that may be ranked: one word of bits per group, empty if all may; and their
/// number.
struct Open {
  std::span<const std::uint16_t> words;
  std::int64_t count;

  bool all() const { return words.empty(); }
};

/// Computes the bounds of the open classifiers from the sums of their positive terms. The others
/// count as taken.
template <typename Code>
inline void find_bounds(const Shard<Code>& shard, float bias, const float* sums, Open open,
                        Bounds& bounds) {
  if (open.all()) {
    for (std::int64_t group = 0; group < shard.n_words(); ++group)
      bounds.groups[group] = highest_score(shard, bias, sums, group * kGroup);
    std::ranges::fill(bounds.taken, std::uint16_t{0});
  } else {
    for (std::int64_t group = 0; group < shard.n_words(); ++group) {
      const std::uint16_t word = open.words[group];
      bounds.groups[group] = highest_score(shard, bias, sums, group * kGroup, word);
      bounds.taken[group] = static_cast<std::uint16_t>(~word);
    }
  }
  for (std::size_t block = 0; block * kGroup < bounds.groups.size(); ++block)
    bounds.blocks[block] = highest_of_group(&bounds.groups[block * kGroup]);
}

/// Takes the classifier with the highest bound, the first if several share it. Returns −1 if it
/// does not rank before `worst`, so that none does, and −2 at a bound of −inf, which may also mean
/// that no classifier is left.
template <typename Code>
inline std::int64_t take_best(const Shard<Code>& shard, const Labels& of, float bias,
                              const float* sums, const Place& worst, Bounds& bounds) {
  const std::int64_t block = first_highest(bounds.blocks);
  const float highest = bounds.blocks[block];
  if (highest < worst.score) return -1;
  if (highest == -HUGE_VALF) return -2;
  const std::int64_t group =
      block * kGroup +
      first_highest(std::span<const float>(bounds.groups).subspan(block * kGroup, kGroup));
  const std::int64_t stop = std::min(kGroup, shard.n_rows() - group * kGroup);
  float second = -HUGE_VALF;
  std::int64_t best = -1;
  for (std::int64_t i = 0; i < stop; ++i) {
    if (bounds.taken[group] >> i & 1) continue;
    const std::int64_t row = group * kGroup + i;
    const float bound = at_most(score_of(shard, bias, sums[row], row));
    if (best < 0 && bound == highest) {
      best = i;
    } else {
      second = std::max(second, bound);
    }
  }
  if (!before({highest, of.first(group * kGroup + best)}, worst)) return -1;
  bounds.taken[group] |= static_cast<std::uint16_t>(1U << best);
  bounds.groups[group] = second;
  bounds.blocks[block] = highest_of_group(&bounds.groups[block * kGroup]);
  return group * kGroup + best;
}

/// How many classifiers can be looked up in the time saved by not reading all parts.
template <typename Code>
inline std::int64_t lookups_worth(const Shard<Code>& shard, std::span<const Term<Code>> terms,
                                  std::int64_t lookup) {
  if (lookup == 0 || terms.empty()) return std::numeric_limits<std::int64_t>::max();
  std::int64_t saved = 0;
  for (const auto& term : terms)
    if (!term.lifts)
      saved += std::min<std::int64_t>(std::ssize(term.list.weights), shard.n_words());
  return saved / (lookup * std::ssize(terms));
}

/// Lets the labels of a split shard compete for the places of one row, with the same result as
/// adding all terms and calling `enter`. If that would be faster, gives up and returns false; the
/// places may have changed by then. The sums are 0 before and after. `lookup` is kLookup, or 0 to
/// never give up. Classifiers that are not `open` are skipped.
template <typename Code>
inline bool enter_by_bounds(const Shard<Code>& shard, const Labels& of,
                            std::span<const Term<Code>> terms, float bias, Open open,
                            std::int64_t lookup, float* sums, std::span<Place> heap,
                            Scratch<Code>& scratch, Ahead<Code> ahead) {
  std::int64_t left = lookups_worth(shard, terms, lookup);
  const std::int64_t empty = heap.front().label == Place::empty ? std::ssize(heap) : 0;
  if (left <= kTries * empty || shard.n_rows() == 0) return false;
  // No allocation may fail while the sums are not 0.
  Bounds& bounds = scratch.bounds;
  const std::int64_t n_blocks = (shard.n_words() + kGroup - 1) / kGroup;
  const std::int64_t some_blocks = (n_blocks + kGroup - 1) / kGroup * kGroup;
  bounds.groups.resize(n_blocks * kGroup, -HUGE_VALF);
  bounds.blocks.resize(some_blocks, -HUGE_VALF);
  bounds.taken.resize(shard.n_words());
  scratch.found.reserve(terms.size() * kAtOnce);

  add_terms(shard, terms, true, sums, ahead);
  find_bounds(shard, bias, sums, open, bounds);
  std::array<std::int64_t, kAtOnce> candidates;
  std::array<float, kAtOnce> exact;
  std::int64_t next = 0, untaken = open.count;
  while (next >= 0 && left > 0) {
    std::size_t size = 0;
    for (; size < kAtOnce; ++size, --untaken) {
      next = untaken == 0 ? -1 : take_best(shard, of, bias, sums, heap.front(), bounds);
      if (next < 0) break;
      candidates[size] = next;
    }
    left -= static_cast<std::int64_t>(size);
    look_up(shard, terms, std::span<const std::int64_t>(candidates.data(), size), exact.data(),
            scratch.found);
    for (std::size_t j = 0; j < size; ++j)
      compete(of, candidates[j], score_of(shard, bias, exact[j], candidates[j]), heap);
  }
  std::fill_n(sums, shard.n_words() * kGroup, 0.0f);
  return next == -1;
}

}  // namespace dismec::score
