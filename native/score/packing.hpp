// Weights by label ⇄ a shard. Weights come in pieces of some rows at a time: a first round over all
// pieces counts, a second one places what was counted, so that only the shard and one piece are in
// memory. The rows of a piece, and then ranges of its features, may be processed by several threads
// at once.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "csr.hpp"
#include "score/codes.hpp"
#include "score/shard.hpp"

namespace dismec::score {

/// A shard that owns its memory, complete or under construction.
template <typename Code>
struct Packed {
  std::int64_t n_features;
  std::vector<float> scales, bias;
  std::vector<Start> starts;
  std::vector<std::uint32_t> done;  // weights of each feature counted so far, then placed so far

  // Owned by the caller.
  std::span<std::uint16_t> places = {};
  std::span<Code> weights = {};

  // Classifiers first … first + ends.size() − 1. The entries of each are sorted by feature.
  struct Piece {
    std::int64_t first = 0;
    std::vector<std::int64_t> begins, ends;
    std::vector<std::int32_t> features;
    std::vector<Code> codes;
  } piece = {};

  Packed(std::int64_t rows, std::int64_t features)
      : n_features(features), scales(rows, 1.0f), bias(rows, 0.0f), done(features, 0) {}

  std::int64_t n_rows() const { return std::ssize(scales); }
  Layout layout() const { return Layout(n_rows()); }
};

/// Begins a piece of classifiers from `first` on, with at most sizes[i] weights each.
template <typename Code>
inline void begin_piece(Packed<Code>& shard, std::int64_t first,
                        std::span<const std::int64_t> sizes) {
  if (first < 0 || first > shard.n_rows() - std::ssize(sizes))
    throw std::invalid_argument("classifiers must be in range");
  auto& piece = shard.piece;
  piece.first = first;
  piece.begins.clear();
  std::int64_t total = 0;
  for (const std::int64_t size : sizes) {
    if (size < 0 || size > shard.n_features + 1)
      throw std::invalid_argument("a classifier has no so many weights");
    piece.begins.push_back(total);
    total += size;
  }
  piece.ends = piece.begins;
  piece.begins.push_back(total);
  // Old contents need not be cleared: `ends` says where a row's entries end.
  if (total > std::ssize(piece.features)) {
    piece.features.resize(total);
    piece.codes.resize(total);
  }
}

/// Adds rows of a matrix to the piece: row rows[i] becomes its classifier to[i]. Weights that round
/// to 0 are left out.
template <typename Code>
inline void take_in(Packed<Code>& shard, const Csr& matrix, std::span<const std::int32_t> rows,
                    std::span<const std::int32_t> to) {
  auto& piece = shard.piece;
  if (rows.size() != to.size())
    throw std::invalid_argument("every row needs a classifier to go to");
  if (matrix.indices.size() != matrix.values.size())
    throw std::invalid_argument("indices and values must be of one length");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0 || rows[i] >= matrix.n_rows() || to[i] < 0 || to[i] >= std::ssize(piece.ends))
      throw std::invalid_argument("a row or classifier is out of range");
    const std::int64_t begin = matrix.indptr[rows[i]], end = matrix.indptr[rows[i] + 1];
    if (begin < 0 || end < begin || end > std::ssize(matrix.indices))
      throw std::invalid_argument("indptr must ascend to the length of indices");
    if (end - begin > piece.begins[to[i] + 1] - piece.begins[to[i]])
      throw std::invalid_argument("more weights than there is room for");
    const std::int32_t* feature = matrix.indices.data() + begin;
    const float* weight = matrix.values.data() + begin;
    std::int64_t size = end - begin;
    int disorder = 0;
    for (std::int64_t k = 1; k < size; ++k)
      disorder |= static_cast<int>(feature[k] <= feature[k - 1]);
    if (disorder != 0 || (size > 0 && (feature[0] < 0 || feature[size - 1] > shard.n_features)))
      throw std::invalid_argument("features must ascend and be in range");
    const std::int64_t classifier = piece.first + to[i];
    if (size > 0 && feature[size - 1] == shard.n_features) shard.bias[classifier] = weight[--size];
    std::uint32_t largest = 0;  // magnitudes are ordered like their bit patterns
    for (std::int64_t k = 0; k < size; ++k)
      largest = std::max(largest, std::bit_cast<std::uint32_t>(weight[k]) & 0x7fff'ffffU);
    const float scale = scale_of<Code>(std::bit_cast<float>(largest));
    const float unscale = 1.0f / scale;
    shard.scales[classifier] = scale;
    std::int64_t at = piece.begins[to[i]];
    for (std::int64_t k = 0; k < size; ++k) {
      const auto code = encode<Code>(weight[k] * unscale);
      if (!code) continue;
      piece.features[at] = feature[k];
      piece.codes[at] = *code;
      ++at;
    }
    piece.ends[to[i]] = at;
  }
}

/// Calls visit(classifier, feature, code) for the weights of a piece for features first … last − 1.
/// It visits a range of features for all rows, then the next range, so that the memory being
/// written stays in the cache.
template <typename Code, typename Visit>
inline void each_weight(const Packed<Code>& shard, std::int64_t first, std::int64_t last,
                        Visit&& visit) {
  constexpr std::int64_t kFeatures = 1024;  // per range: half a megabyte of places to write to
  constexpr std::int64_t kEntries =
      8;  // per row and range, at least: starting a row costs about as much
  if (first < 0 || first > last || last > shard.n_features)
    throw std::invalid_argument("a feature is out of range");
  const auto& piece = shard.piece;
  const std::int64_t n_rows = std::ssize(piece.ends);
  std::vector<std::int64_t> next(n_rows);
  std::int64_t n_entries = 1;
  for (std::int64_t i = 0; i < n_rows; ++i) {
    const auto all = piece.features.begin();
    const auto from = std::lower_bound(all + piece.begins[i], all + piece.ends[i], first);
    next[i] = from - all;
    n_entries += std::lower_bound(from, all + piece.ends[i], last) - from;
  }
  const std::int64_t at_once = std::max(kFeatures, kEntries * n_rows * (last - first) / n_entries);
  // Local copies: otherwise the compiler must assume that writes change them.
  const std::int32_t* features = piece.features.data();
  const Code* codes = piece.codes.data();
  const std::int64_t* ends = piece.ends.data();
  const std::int64_t classifier = piece.first;
  for (std::int64_t stop = first; stop < last;) {
    stop = std::min(last, stop + at_once);
    for (std::int64_t i = 0; i < n_rows; ++i) {
      const std::int64_t size = ends[i];
      std::int64_t e = next[i];
      for (; e < size && features[e] < stop; ++e) visit(classifier + i, features[e], codes[e]);
      next[i] = e;
    }
  }
}

/// The first round: counts the weights of a piece for some features.
template <typename Code>
inline void count(Packed<Code>& shard, std::int64_t first, std::int64_t last) {
  std::uint32_t* done = shard.done.data();
  each_weight(shard, first, last,
              [done](std::int64_t, std::int32_t feature, Code) { ++done[feature]; });
}

/// The size of a shard: elements of `places`, bytes of `weights`.
struct Room {
  std::int64_t n_places, weight_bytes;
};

/// Between the rounds: computes where each feature begins.
template <typename Code>
inline Room measure(Packed<Code>& shard) {
  std::int64_t weights = 0, places = 0;
  shard.starts.reserve(shard.done.size() + 1);
  shard.starts.push_back({0, 0});
  for (std::uint32_t& count : shard.done) {
    weights += count;
    places += shard.layout().n_places(count);
    if (std::max(weights, places) > std::numeric_limits<std::uint32_t>::max())
      throw std::invalid_argument("too many weights in a shard");
    shard.starts.push_back(
        {static_cast<std::uint32_t>(weights), static_cast<std::uint32_t>(places)});
    count = 0;
  }
  return {places, (weights + kGroup) * std::int64_t{sizeof(Code)}};
}

/// Accepts the zeroed arrays that are written from now on.
template <typename Code>
inline void give(Packed<Code>& shard, std::span<std::uint16_t> places,
                 std::span<std::uint8_t> weights) {
  if (std::bit_cast<std::uintptr_t>(weights.data()) % alignof(Code) != 0)
    throw std::invalid_argument("the weights are not aligned");
  shard.places = places;
  shard.weights = {reinterpret_cast<Code*>(weights.data()), weights.size() / sizeof(Code)};
}

/// The second round, over the same pieces in the same order.
template <typename Code>
inline void place(Packed<Code>& shard, std::int64_t first, std::int64_t last) {
  const Layout layout = shard.layout();
  const Start* starts = shard.starts.data();
  std::uint32_t* done = shard.done.data();
  std::uint16_t* places = shard.places.data();
  Code* weights = shard.weights.data();
  each_weight(shard, first, last, [=](std::int64_t classifier, std::int32_t feature, Code code) {
    const Start begin = starts[feature];
    const std::uint32_t size = starts[feature + 1].weight - begin.weight;
    const std::uint32_t at = done[feature]++;
    if (at >= size) throw std::invalid_argument("more weights than were counted");
    weights[begin.weight + at] = code;
    // Whether a feature has bits or a list is unpredictable for the CPU.
    const auto row = static_cast<std::uint32_t>(classifier);
    const std::uint32_t bits = layout.dense(size) ? ~0U : 0U;
    std::uint16_t& place = places[begin.place + ((row / kGroup & bits) | (at & ~bits))];
    const std::uint32_t with_bit = place | 1U << (row % kGroup);
    place = static_cast<std::uint16_t>((with_bit & bits) | (row & ~bits));
  });
}

/// At the end: counts the bits set before every kRankWords-th word.
template <typename Code>
inline void add_ranks(Packed<Code>& shard) {
  const Layout layout = shard.layout();
  for (std::size_t feature = 0; feature < shard.done.size(); ++feature)
    if (layout.dense(shard.done[feature]))
      add_ranks(layout, shard.places.data() + shard.starts[feature].place);
}

/// A feature has a column of ceilings if more than one in so many classifiers have a weight for it,
/// or a positive weight. Columns of negative weights lower the bounds, but take longer to read.
inline constexpr std::int64_t kColumnShare = 2, kPositiveShare = 12;

/// The ceilings of a shard's weights. Throws if a list names a classifier that is not there.
template <typename Code>
inline OwnedCeilings ceilings_of(const Shard<Code>& shard) {
  OwnedCeilings made;
  const std::int64_t n_rows = shard.n_rows();
  made.starts.push_back({0, 0});
  std::vector<std::uint16_t> rows;
  std::vector<double> weights;  // float32 could round tiny ones
  for (std::int64_t feature = 0; feature < shard.n_features(); ++feature) {
    const auto list = shard.list(feature);
    const auto positive =
        std::ranges::count_if(list.weights, [](Code code) { return decode(code) > 0; });
    const bool column =
        std::ssize(list.weights) * kColumnShare > n_rows || positive * kPositiveShare > n_rows;
    rows.clear(), weights.clear();
    each(shard, list, [&](std::int64_t row, Code code) {
      if (row >= n_rows) throw std::invalid_argument("a classifier is out of range");
      const double weight = double{decode(code)} * shard.scales[row];
      if (!column && !(weight > 0)) return;
      rows.push_back(static_cast<std::uint16_t>(row));
      weights.push_back(weight);
    });
    double least = 0, highest = 0;
    for (const double weight : weights)
      least = std::min(least, weight), highest = std::max(highest, weight);
    const Range range = range_of(least, highest);
    made.ranges.push_back(range);
    const std::size_t begin = made.codes.size();
    if (column) {
      made.codes.resize(begin + n_rows, ceiling_of(0, range));
      for (std::size_t j = 0; j < rows.size(); ++j)
        made.codes[begin + rows[j]] = ceiling_of(weights[j], range);
    } else {
      made.places.insert(made.places.end(), rows.begin(), rows.end());
      for (const double weight : weights) made.codes.push_back(ceiling_of(weight, range));
    }
    if (made.codes.size() > std::numeric_limits<std::uint32_t>::max())
      throw std::invalid_argument("too many weights in a shard");
    made.starts.push_back({static_cast<std::uint32_t>(made.codes.size()),
                           static_cast<std::uint32_t>(made.places.size())});
  }
  return made;
}

/// The reverse: the weights of a shard by classifier, bias last, as they were rounded.
template <typename Code>
inline OwnedCsr unpack(const Shard<Code>& shard) {
  const std::int64_t n_rows = shard.n_rows();
  std::vector<std::int64_t> fill(kShardRows + 1, 0);
  const auto each_weight = [&](auto&& visit) {
    for (std::int64_t f = 0; f < shard.n_features(); ++f)
      each(shard, shard.list(f), [&](std::int64_t row, Code code) {
        if (row >= n_rows) throw std::invalid_argument("a classifier is out of range");
        visit(row, f, decode(code) * shard.scales[row]);
      });
    for (std::int64_t row = 0; row < n_rows; ++row)
      if (shard.bias[row] != 0) visit(row, shard.n_features(), shard.bias[row]);
  };
  OwnedCsr result;
  each_weight([&](std::int64_t row, std::int64_t, float) { ++fill[row + 1]; });
  for (std::int64_t row = 0; row < n_rows; ++row) fill[row + 1] += fill[row];
  result.indptr.assign(fill.begin(), fill.begin() + n_rows + 1);
  result.indices.resize(result.indptr.back());
  result.values.resize(result.indptr.back());
  each_weight([&](std::int64_t row, std::int64_t feature, float weight) {
    const std::int64_t at = fill[row]++;
    result.indices[at] = static_cast<std::int32_t>(feature);
    result.values[at] = weight;
  });
  return result;
}

}  // namespace dismec::score
