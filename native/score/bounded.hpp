// A row × a shard with ceilings → its k best labels, exactly, without reading most of the shard.
//
// The sum of value · ceiling bounds the score of each classifier. Few classifiers have a bound
// above the k-th best score: only these are scored, by looking them up in the lists of the
// features.
//
// Why no score is above its bound, for n values that are not negative:
//
// 1. Rounding is monotone: x ≤ y implies fl(x + t) ≤ fl(y + t), and fl(x + t) ≤ x for t ≤ 0. So a
//    sum does not get lower if terms that are not positive are left out. Keep all terms of features
//    with a column, and the positive terms of the others. Let m be the sum of their magnitudes.
// 2. Rounding products and sums changes the sum of what is kept by at most (n + 1)·2⁻²⁴·m, up to
//    terms in 2⁻⁴⁸. Nothing overflows, and only float32 weights, whose scale is 1, have products
//    that are too small for this: these change it by 2⁻¹⁵⁰ each. `is_usual` ensures both.
// 3. The exact sum is at most that of value · ceiling. It is added in whole units, and a term is
//    less than a unit too low: n units make up for that.
// 4. Computing the bound of a sum in float32 adds at most 6·2⁻²⁴·m. `find_rises` adds
//    (n + 4)·2⁻²²·m, which is more than all of these together.
// 5. Scaling by a positive number and adding the bias are monotone too, and are the same operations
//    for bounds and scores. A bound that is infinite or NaN counts as +inf.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "score/ranking.hpp"
#include "score/sums.hpp"

namespace dismec::score {

// Measured on generated models of 50,000 and 500,000 labels, k from 5 to 100.

/// Classifiers looked up together, because most of the time is spent waiting for memory.
inline constexpr std::size_t kAtOnce = 8;
/// Cost of looking up a classifier's weight for a feature, relative to adding a weight or a word.
inline constexpr std::int64_t kLookup = 8;
/// Approximate number of classifiers looked up per place that is still empty.
inline constexpr std::int64_t kTries = 2;
/// Bounds are in units, of which this many are in the range of a row's sums: they fit in 16 bits.
inline constexpr double kUnits = 64'000;
/// Classifiers in a block: kGroup groups of kGroup.
inline constexpr std::int64_t kBlock = kGroup * kGroup;
/// Entries of a list examined together.
inline constexpr std::int64_t kWindow = 32;

/// A term of the score of one of the classifiers being looked up.
template <typename Code>
struct Found {
  const Code* weight;
  float value;
  std::uint32_t candidate;
};

/// The ceilings of one of the row's features. A code adds code · factor / 256 units.
struct Rise {
  Ceilings::List list;
  float value;
  std::uint16_t factor;
};

/// The ceilings of a row's features: no sum times the scale is above units · unit + base.
struct Rises {
  std::vector<Rise> columns, lists;
  float unit = 0, base = 0;
  bool usable = false;  // whether bounds are for these values
};

/// The bounds of a row's classifiers, and which of these have been looked up. The highest bound is
/// found through the maxima of groups and of blocks of kBlock classifiers. The classifiers of a
/// group are kGroup apart, so that the maxima of a block's groups are those of the lanes of
/// vectors.
struct Bounds {
  std::vector<float> groups, blocks;  // blocks are padded with −inf
  std::vector<std::uint16_t> taken;   // one bit per classifier
};

/// This thread's sums of ceilings, in units and without the bias. There is room for every
/// classifier that sixteen bits can identify, whatever a file holds.
inline std::uint16_t* units() {
  thread_local std::vector<std::uint16_t> memory(kShardRows);
  return memory.data();
}

/// Scratch memory, reused from row to row.
template <typename Code>
struct Scratch {
  Rises rises, next;  // of a row, and of the next one
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
  const std::int64_t rank = word / kRankWords;
  std::int64_t at = rank > 0 ? words[n_words + rank - 1] : 0;
  for (std::int64_t i = rank * kRankWords; i < word; ++i) at += std::popcount(words[i]);
  return at + std::popcount(words[word] & (bit - 1));
}

/// The position of a classifier's weight in a list; its length or more if it has none.
template <typename Code>
inline std::int64_t find(const typename Shard<Code>::List& list, const Shard<Code>& shard,
                         std::int64_t row) {
  const std::int64_t count = std::ssize(list.weights);
  if (count == 0) return count;
  if (list.dense) return find_dense(list.places, count, shard.n_words(), row);
  const float share = 1.0f / static_cast<float>(shard.n_rows());
  return find_listed(list.places, count, share * static_cast<float>(count), row);
}

/// The sums of some classifiers, added in the order of a scan. Hardly any of this memory is cached,
/// so places and weights are prefetched well before they are used.
template <typename Code>
inline void look_up(const Shard<Code>& shard, std::span<const Term<Code>> terms,
                    std::span<const std::int64_t> candidates, float* sums,
                    std::vector<Found<Code>>& found) {
  const std::int64_t n_words = shard.n_words();
  const float share = 1.0f / static_cast<float>(shard.n_rows());
  for (const auto& [list, value] : terms) {
    const std::int64_t count = std::ssize(list.weights);
    for (const std::int64_t row : candidates) {
      if (list.dense) {
        __builtin_prefetch(list.places + row / kGroup);
        __builtin_prefetch(list.places + n_words + row / kGroup / kRankWords - 1);
      } else {
        const std::int64_t at = guess(count, share * static_cast<float>(count), row);
        __builtin_prefetch(list.places + at);
        __builtin_prefetch(list.places + at + kWindow - 1);
      }
    }
  }
  found.clear();
  for (const auto& [list, value] : terms) {
    for (std::size_t j = 0; j < candidates.size(); ++j) {
      const std::int64_t at = find(list, shard, candidates[j]);
      if (at >= std::ssize(list.weights)) continue;
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
  const Wide wanted = Wide{} + highest_of(highest);
  for (std::size_t i = 0;; i += kWide)
    if (any(load(numbers.data() + i) == wanted))
      return std::ranges::find(numbers.subspan(i), wanted[0]) - numbers.begin();
}

/// The classifiers that may be ranked: one word of bits per group, empty if all may; and their
/// number.
struct Open {
  std::span<const std::uint16_t> words;
  std::int64_t count;

  bool all() const { return words.empty(); }
};

/// Whether bounds are for this value: not negative, and far from the limits of float32.
inline bool is_usual(float value) { return value == 0 || (value >= 0x1p-80F && value <= 0x1p60F); }

/// Finds the ceilings of a row's features, and fetches the first ones of each from memory.
template <typename Code>
inline void find_rises(const Shard<Code>& shard, std::span<const std::int32_t> features,
                       std::span<const Term<Code>> terms, Rises& rises) {
  rises.columns.clear(), rises.lists.clear();
  double range = 0, base = 0, magnitude = 0;
  rises.usable = true;
  for (std::size_t t = 0; t < terms.size(); ++t) {
    const float value = terms[t].value;
    const auto list = shard.ceilings.list(features[t], shard.n_rows());
    rises.usable &= is_usual(value) && list.range.step >= 0;  // a damaged one may be negative
    if (list.codes.empty()) continue;
    __builtin_prefetch(list.codes.data());
    __builtin_prefetch(list.codes.data() + 64);
    __builtin_prefetch(list.places);
    __builtin_prefetch(list.places + 32);
    (list.column ? rises.columns : rises.lists).push_back({list, value, 0});
    const double least = double{value} * list.range.least;
    const double steps = double{value} * list.range.step * kSteps;
    range += steps, base += least, magnitude += steps + std::fabs(least);
  }
  const auto n = static_cast<double>(terms.size());
  const double unit = range / (kUnits - n);
  rises.usable &= n <= kUnits / 2 && magnitude < 0x1p100 && range > 0x1p-100;
  if (!rises.usable) return;
  for (auto* some : {&rises.columns, &rises.lists})
    for (Rise& rise : *some)
      rise.factor = static_cast<std::uint16_t>(
          std::ceil(double{rise.value} * rise.list.range.step * 256 / unit));
  rises.unit = static_cast<float>(unit);
  rises.base = static_cast<float>(base + n * unit + (n + 4) * (magnitude * 0x1p-22 + 0x1p-148));
}

/// sums += code · factor / 256.
inline void rise(const std::uint8_t* codes, std::uint32_t factor, std::int64_t n,
                 std::uint16_t* sums) {
  const auto add = [&](std::int64_t i) {
    const std::uint32_t code = static_cast<std::uint32_t>(codes[i]) << 8;
    sums[i] = static_cast<std::uint16_t>(sums[i] + (code * factor >> 16));
  };
  if (n == 64) {
    for (std::int64_t i = 0; i < 64; ++i) add(i);
  } else {
    for (std::int64_t i = 0; i < n; ++i) add(i);
  }
}

/// Adds the ceilings, in units.
inline void add_rises(const Rises& rises, std::int64_t n_rows, std::uint16_t* units) {
  constexpr std::int64_t strip = 1 << 12;  // their units stay in the fastest cache
  for (std::int64_t start = 0; start < n_rows; start += strip) {
    std::uint16_t* const sums = units + start;
    const std::int64_t size = std::min(strip, n_rows - start);
    std::fill_n(sums, size, std::uint16_t{0});
    for (std::size_t t = 0; t < rises.columns.size(); ++t) {
      const bool last = t + 1 == rises.columns.size();
      const std::uint8_t* const codes = rises.columns[t].list.codes.data() + start;
      const std::uint8_t* const next =
          rises.columns[last ? 0 : t + 1].list.codes.data() + start + (last ? strip : 0);
      for (std::int64_t i = 0; i < size; i += 64) {
        __builtin_prefetch(next + i);
        rise(codes + i, rises.columns[t].factor, std::min<std::int64_t>(64, size - i), sums + i);
      }
    }
  }
  for (std::size_t t = 0; t < rises.lists.size(); ++t) {
    const Ceilings::List& next = rises.lists[std::min(t + 1, rises.lists.size() - 1)].list;
    const std::uint8_t* const codes = rises.lists[t].list.codes.data();
    const std::uint16_t* const places = rises.lists[t].list.places;
    const std::uint32_t factor = rises.lists[t].factor;
    const std::int64_t count = std::ssize(rises.lists[t].list.codes);
    std::int64_t j = 0;
    for (; j + kWindow <= count; j += kWindow) {
      __builtin_prefetch(next.codes.data() + j);
      __builtin_prefetch(next.places + j);
      std::uint16_t some[kWindow];
      for (int l = 0; l < kWindow; ++l)
        some[l] = static_cast<std::uint16_t>(
            (static_cast<std::uint32_t>(codes[j + l]) << 8) * factor >> 16);
#pragma GCC unroll 32
      for (int l = 0; l < kWindow; ++l)
        units[places[j + l]] = static_cast<std::uint16_t>(units[places[j + l]] + some[l]);
    }
    for (; j < count; ++j)
      units[places[j]] = static_cast<std::uint16_t>(units[places[j]] + (codes[j] * factor >> 8));
  }
}

/// The bounds of kWide classifiers from `row` on: the same operations as for a score.
template <typename Code>
inline Wide bounds_of(const Shard<Code>& shard, const Rises& rises, float bias, std::int64_t row) {
  Wide sums = widen(units() + row) * rises.unit + rises.base;
  if (!shard.slopes.empty()) sums *= load(&shard.slopes[row]);
  const Wide bounds = sums + bias * load(&shard.bias[row]);
  return bounds < HUGE_VALF ? bounds : Wide{} + HUGE_VALF;
}
template <typename Code>
inline float bound_of(const Shard<Code>& shard, const Rises& rises, float bias, std::int64_t row) {
  float sum = static_cast<float>(units()[row]) * rises.unit + rises.base;
  if (!shard.slopes.empty()) sum *= shard.slopes[row];
  return at_most(sum + bias * shard.bias[row]);
}

/// Computes the highest bounds of groups of open classifiers. The others count as taken.
template <typename Code>
inline void find_bounds(const Shard<Code>& shard, const Rises& rises, float bias, Open open,
                        Bounds& bounds) {
  for (std::int64_t word = 0; word < shard.n_words(); ++word)
    bounds.taken[word] = static_cast<std::uint16_t>(open.all() ? 0 : ~open.words[word]);
  for (std::int64_t block = 0; block * kGroup < std::ssize(bounds.groups); ++block) {
    const std::int64_t start = block * kBlock, stop = std::min(start + kBlock, shard.n_rows());
    Wide best[kGroup / kWide];
    for (Wide& some : best) some = Wide{} - HUGE_VALF;
    std::int64_t row = start;
    for (; row + kGroup <= stop; row += kGroup)
      for (int v = 0; v < kGroup / kWide; ++v) {
        Wide some = bounds_of(shard, rises, bias, row + v * kWide);
        if (!open.all()) some = only(open.words[row / kGroup] >> v * kWide, some);
        best[v] = best[v] > some ? best[v] : some;
      }
    float* const highest = &bounds.groups[block * kGroup];
    std::memcpy(highest, best, sizeof(best));
    for (; row < stop; ++row)
      if (open.all() || (open.words[row / kGroup] >> row % kGroup & 1) != 0)
        highest[row % kGroup] = std::max(highest[row % kGroup], bound_of(shard, rises, bias, row));
    bounds.blocks[block] = highest_of_group(highest);
  }
}

/// Takes the classifier with the highest bound. Returns −1 if that is below `worst`, and −2 at a
/// bound of −inf, which may also mean that no classifier is left.
template <typename Code>
inline std::int64_t take_best(const Shard<Code>& shard, const Rises& rises, float bias, float worst,
                              Bounds& bounds) {
  const std::int64_t block = first_highest(bounds.blocks);
  const float highest = bounds.blocks[block];
  if (highest < worst) return -1;
  if (highest == -HUGE_VALF) return -2;
  const std::span<float> groups = std::span(bounds.groups).subspan(block * kGroup, kGroup);
  const std::int64_t lane = first_highest(groups);
  const std::int64_t stop = std::min((block + 1) * kBlock, shard.n_rows());
  float second = -HUGE_VALF;
  std::int64_t best = -1;
  for (std::int64_t row = block * kBlock + lane; row < stop; row += kGroup) {
    if (bounds.taken[row / kGroup] >> lane & 1) continue;
    const float bound = bound_of(shard, rises, bias, row);
    if (best < 0 && bound == highest) {
      best = row;
    } else {
      second = std::max(second, bound);
    }
  }
  bounds.taken[best / kGroup] |= static_cast<std::uint16_t>(1U << lane);
  groups[lane] = second;
  bounds.blocks[block] = highest_of_group(groups.data());
  return best;
}

/// How many classifiers can be looked up in the time saved by not reading all weights.
template <typename Code>
inline std::int64_t lookups_worth(const Shard<Code>& shard, std::span<const Term<Code>> terms,
                                  std::int64_t lookup) {
  if (lookup == 0 || terms.empty()) return std::numeric_limits<std::int64_t>::max();
  std::int64_t saved = 0;
  for (const auto& term : terms)
    saved += std::min<std::int64_t>(std::ssize(term.list.weights), shard.n_words());
  return saved / (lookup * std::ssize(terms));
}

/// Lets the labels of a shard compete for the places of one row, with the same result as adding all
/// terms and calling `enter`. If that would be faster, gives up and returns false; the places may
/// have changed by then. `lookup` is kLookup, or 0 to never give up. Classifiers that are not
/// `open` are skipped.
template <typename Code>
inline bool enter_by_bounds(const Shard<Code>& shard, const Labels& of,
                            std::span<const Term<Code>> terms, float bias, Open open,
                            std::int64_t lookup, std::span<Place> heap, Scratch<Code>& scratch) {
  std::int64_t left = lookups_worth(shard, terms, lookup);
  const std::int64_t empty = heap.front().label == Place::empty ? std::ssize(heap) : 0;
  const Rises& rises = scratch.rises;
  if (!rises.usable || left <= kTries * empty || shard.n_rows() == 0) return false;
  Bounds& bounds = scratch.bounds;
  const std::int64_t n_blocks = (shard.n_rows() + kBlock - 1) / kBlock;
  bounds.groups.resize(n_blocks * kGroup);
  bounds.blocks.resize((n_blocks + kGroup - 1) / kGroup * kGroup, -HUGE_VALF);
  bounds.taken.resize(shard.n_words());

  add_rises(rises, shard.n_rows(), units());
  find_bounds(shard, rises, bias, open, bounds);
  std::array<std::int64_t, kAtOnce> candidates;
  std::array<float, kAtOnce> exact;
  std::int64_t next = 0, untaken = open.count;
  while (next >= 0 && left > 0) {
    std::size_t size = 0;
    for (; size < kAtOnce; ++size, --untaken) {
      next = untaken == 0 ? -1 : take_best(shard, rises, bias, heap.front().score, bounds);
      if (next < 0) break;
      candidates[size] = next;
    }
    left -= static_cast<std::int64_t>(size);
    look_up(shard, terms, std::span<const std::int64_t>(candidates.data(), size), exact.data(),
            scratch.found);
    for (std::size_t j = 0; j < size; ++j)
      compete(of, candidates[j], score_of(shard, bias, exact[j], candidates[j]), heap);
  }
  return next == -1;
}

}  // namespace dismec::score
