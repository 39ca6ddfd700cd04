// Arrays as stored in a file → the weights of up to 65,536 classifiers, by feature.
//
// Classifiers are numbered within the shard, so that sixteen bits identify one. A feature either
// lists the classifiers that have a weight for it or, if these are more than one in sixteen, has
// one bit per classifier, which takes less space and can be processed sixteen classifiers at a
// time.
//
// In a large shard the weights of a feature are split by sign into two such parts. Most weights are
// negative; bounded.hpp explains how the best labels are found without reading those.
//
// A stored weight is a code times its classifier's scale, a power of two: scaling a sum of products
// by a power of two is exact, so it is done once per sum. A view of a shard that ranks by
// probability has other scales, all positive. The bias is stored separately, in float32: it is the
// largest term of nearly every score.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>

namespace dismec::score {

inline constexpr std::int64_t kShardRows = std::int64_t{1} << 16;
inline constexpr std::int64_t kGroup = 16;           // classifiers per word of bits
inline constexpr std::int64_t kSplitRows = 1 << 14;  // larger shards are split
inline constexpr std::int64_t kRankWords = 32;       // words per rank in a split shard

struct Start {
  std::uint32_t weight, place;
};

/// The number of parts of a feature's weights. If there are two, the first holds the positive ones.
inline std::int64_t parts_of(bool split) { return split ? 2 : 1; }

/// How the weights of a part are stored: as a list, or as bits if that takes less space.
struct Layout {
  std::int64_t n_words;  // words of bits
  std::int64_t n_ranks;  // after the words: how many bits are set before every kRankWords-th word

  Layout(std::int64_t n_rows, bool split)
      : n_words((n_rows + kGroup - 1) / kGroup),
        n_ranks(split ? (n_words + kRankWords - 1) / kRankWords : 0) {}

  bool dense(std::int64_t count) const { return count > n_words; }
  std::int64_t n_places(std::int64_t count) const {
    return dense(count) ? n_words + n_ranks : count;
  }
};

/// Views of a shard's arrays. These may come straight from a damaged file: `list` checks what it
/// returns, and any value in `places` stays within kShardRows.
template <typename Code>
struct Shard {
  std::span<const float> scales;
  std::span<const float> bias;
  std::span<const Start> starts;          // one per part of each feature, and one end per part
  std::span<const std::uint16_t> places;  // classifiers, or words of bits
  std::span<const Code> weights;          // padded by kGroup, so that whole vectors can be loaded
  bool split;

  std::int64_t n_rows() const { return std::ssize(scales); }
  std::int64_t n_words() const { return layout().n_words; }
  std::int64_t n_parts() const { return parts_of(split); }
  std::int64_t n_features() const { return std::ssize(starts) / n_parts() - 1; }
  Layout layout() const { return {n_rows(), split}; }

  /// The weights of one part of a feature, and the classifiers that they belong to.
  struct List {
    std::span<const Code> weights;
    const std::uint16_t* places;
    bool dense;  // whether `places` holds words of bits, followed by ranks
  };
  List list(std::int64_t feature, std::int64_t part) const {
    const std::int64_t at = feature * n_parts() + part;
    const Start begin = starts[at], end = starts[at + 1];
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
