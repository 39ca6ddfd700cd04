// Arrays as stored in a file → the weights of up to 65,536 classifiers, by feature.
//
// Classifiers are numbered within the shard, so that sixteen bits identify one. A feature either
// lists the classifiers that have a weight for it or, if these are more than one in sixteen, has
// one bit per classifier, which takes less space and can be processed sixteen classifiers at a
// time.
//
// A large shard also has ceilings of its weights, which bounded.hpp uses to find the best labels
// without reading most weights.
//
// A stored weight is a code times its classifier's scale, a power of two: scaling a sum of products
// by a power of two is exact, so it is done once per sum. A view of a shard that ranks by
// probability has other scales, all positive. The bias is stored separately, in float32: it is the
// largest term of nearly every score.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <stdexcept>

#include "score/ceilings.hpp"

namespace dismec::score {

inline constexpr std::int64_t kShardRows = std::int64_t{1} << 16;
inline constexpr std::int64_t kGroup = 16;             // classifiers per word of bits
inline constexpr std::int64_t kBoundedRows = 1 << 14;  // larger shards have ceilings
inline constexpr std::int64_t kRankWords = 32;         // words per rank

/// How the weights of a feature are stored: as a list, or as bits if that takes less space.
struct Layout {
  std::int64_t n_words;  // words of bits
  std::int64_t n_ranks;  // after the words: how many bits are set before each kRankWords-th word

  explicit Layout(std::int64_t n_rows)
      : n_words((n_rows + kGroup - 1) / kGroup),
        n_ranks(n_words > 0 ? (n_words - 1) / kRankWords : 0) {}

  bool dense(std::int64_t count) const { return count > n_words; }
  std::int64_t n_places(std::int64_t count) const {
    return dense(count) ? n_words + n_ranks : count;
  }
};

/// Fills in the ranks of words of bits.
inline void add_ranks(const Layout& layout, std::uint16_t* words) {
  int before = 0;
  for (std::int64_t i = 0; i < layout.n_ranks * kRankWords; ++i) {
    before += std::popcount(words[i]);
    if ((i + 1) % kRankWords == 0)
      words[layout.n_words + i / kRankWords] = static_cast<std::uint16_t>(before);
  }
}

/// Views of a shard's arrays. These may come straight from a damaged file: `list` checks what it
/// returns, and any value in `places` stays within kShardRows.
template <typename Code>
struct Shard {
  std::span<const float> scales;
  std::span<const float> bias;
  std::span<const Start> starts;          // one per feature, and the ends
  std::span<const std::uint16_t> places;  // classifiers, or words of bits
  std::span<const Code> weights;          // padded by kGroup, so that whole vectors can be loaded
  Ceilings ceilings = {};                 // none in a small shard
  std::span<const float> slopes = {};     // what a view multiplied the scales by; none if nothing

  std::int64_t n_rows() const { return std::ssize(scales); }
  std::int64_t n_words() const { return layout().n_words; }
  std::int64_t n_features() const { return std::ssize(starts) - 1; }
  Layout layout() const { return Layout(n_rows()); }

  /// The weights of a feature, and the classifiers that they belong to.
  struct List {
    std::span<const Code> weights;
    const std::uint16_t* places;
    bool dense;  // whether `places` holds words of bits, followed by ranks
  };
  List list(std::int64_t feature) const {
    const Start begin = starts[feature], end = starts[feature + 1];
    const std::int64_t count = std::int64_t{end.weight} - begin.weight;
    const std::int64_t n_places = std::int64_t{end.place} - begin.place;
    if (count < 0 || n_places != layout().n_places(count) || end.place > places.size() ||
        end.weight + static_cast<std::size_t>(kGroup) > weights.size())
      throw std::invalid_argument("the weights of a feature are out of range");
    return {weights.subspan(begin.weight, count), places.data() + begin.place,
            layout().dense(count)};
  }
};

/// Calls visit(row, weight code) for each classifier that has a weight in the list.
template <typename Code, typename Visit>
inline void each(const Shard<Code>& shard, const typename Shard<Code>::List& list, Visit&& visit) {
  const std::int64_t count = std::ssize(list.weights);
  if (!list.dense) {
    for (std::int64_t j = 0; j < count; ++j) visit(list.places[j], list.weights[j]);
    return;
  }
  std::int64_t j = 0;
  for (std::int64_t i = 0; i < shard.n_words(); ++i)
    for (unsigned word = list.places[i]; word != 0 && j < count; word &= word - 1, ++j)
      visit(i * kGroup + __builtin_ctz(word), list.weights[j]);
}

}  // namespace dismec::score
