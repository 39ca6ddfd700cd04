// Weights by label → a shard, and back. They come one matrix after another: a first round over all
// of them counts, a second one places what was counted, so that no more than the shard and one
// matrix is in memory.
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

/// A shard in memory of its own, whole or on its way.
template <typename Code>
struct Packed {
  std::int64_t n_features;
  bool split;
  std::vector<float> scales, bias;
  std::vector<Start> starts;
  std::vector<std::uint16_t> places;
  std::vector<Code> weights;
  std::vector<std::int64_t> done;  // weights of each part that were counted, then placed

  Packed(std::int64_t n_rows, std::int64_t n_features, bool split)
      : n_features(n_features),
        split(split),
        scales(n_rows, 1.0f),
        bias(n_rows, 0.0f),
        done(n_features * parts_of(split), 0) {}

  std::int64_t n_rows() const { return std::ssize(scales); }
  Layout layout() const { return {n_rows(), split}; }
};

/// Throws unless row i of a matrix can go to classifier to[i], or nowhere where that is negative.
/// Classifiers have to come in ascending order, also from one matrix to the next.
template <typename Code>
inline void check_target(const Packed<Code>& shard, const Csr& matrix,
                         std::span<const std::int32_t> to) {
  check_rows(matrix);
  if (std::ssize(to) != matrix.n_rows())
    throw std::invalid_argument("every row needs a classifier to go to");
  std::int64_t last = -1;
  for (const std::int32_t row : to) {
    if (row < 0) continue;
    if (row <= last || row >= shard.n_rows())
      throw std::invalid_argument("classifiers must ascend and be in range");
    last = row;
  }
}

/// Calls visit(classifier, part, code) for the weights of a matrix that do not round to 0.
template <typename Code, typename Visit>
inline void each_weight(const Packed<Code>& shard, const Csr& matrix,
                        std::span<const std::int32_t> to, Visit&& visit) {
  for (std::int64_t i = 0; i < matrix.n_rows(); ++i) {
    if (to[i] < 0) continue;
    const float unscale = 1.0f / shard.scales[to[i]];
    for (std::int64_t e = matrix.indptr[i]; e < matrix.indptr[i + 1]; ++e) {
      if (matrix.indices[e] == shard.n_features) continue;
      const auto code = encode<Code>(matrix.values[e] * unscale);
      if (!code) continue;
      const std::int64_t negative = shard.split && std::signbit(matrix.values[e]) ? 1 : 0;
      visit(to[i], matrix.indices[e] * parts_of(shard.split) + negative, *code);
    }
  }
}

/// The first round.
template <typename Code>
inline void count(Packed<Code>& shard, const Csr& matrix, std::span<const std::int32_t> to) {
  check_target(shard, matrix, to);
  for (std::int64_t i = 0; i < matrix.n_rows(); ++i) {
    if (to[i] < 0) continue;
    float largest = 0;
    for (std::int64_t e = matrix.indptr[i]; e < matrix.indptr[i + 1]; ++e) {
      if (matrix.indices[e] == shard.n_features) {
        shard.bias[to[i]] = matrix.values[e];
      } else {
        largest = std::max(largest, std::fabs(matrix.values[e]));
      }
    }
    shard.scales[to[i]] = scale_of<Code>(largest);
  }
  each_weight(shard, matrix, to,
              [&](std::int64_t, std::int64_t part, Code) { ++shard.done[part]; });
}

/// Between the rounds: makes room.
template <typename Code>
inline void make_room(Packed<Code>& shard) {
  std::int64_t weights = 0, places = 0;
  shard.starts.reserve(shard.done.size() + parts_of(shard.split));
  shard.starts.push_back({0, 0});
  for (std::int64_t& count : shard.done) {
    weights += count;
    places += shard.layout().n_places(count);
    if (std::max(weights, places) > std::numeric_limits<std::uint32_t>::max())
      throw std::invalid_argument("too many weights in a shard");
    shard.starts.push_back(
        {static_cast<std::uint32_t>(weights), static_cast<std::uint32_t>(places)});
    count = 0;
  }
  if (shard.split) shard.starts.push_back(shard.starts.back());  // as many ends as parts
  shard.places.assign(places, 0);
  shard.weights.assign(weights + kGroup, Code{});
}

/// The second round, over the same matrices in the same order.
template <typename Code>
inline void place(Packed<Code>& shard, const Csr& matrix, std::span<const std::int32_t> to) {
  check_target(shard, matrix, to);
  if (shard.starts.empty()) throw std::invalid_argument("nothing has been counted");
  const Layout layout = shard.layout();
  each_weight(shard, matrix, to, [&](std::int64_t row, std::int64_t part, Code code) {
    const Start begin = shard.starts[part], end = shard.starts[part + 1];
    const std::int64_t size = std::int64_t{end.weight} - begin.weight;
    const std::int64_t at = shard.done[part]++;
    if (at >= size) throw std::invalid_argument("more weights than were counted");
    shard.weights[begin.weight + at] = code;
    if (layout.dense(size)) {
      shard.places[begin.place + row / kGroup] |= static_cast<std::uint16_t>(1U << (row % kGroup));
    } else {
      shard.places[begin.place + at] = static_cast<std::uint16_t>(row);
    }
  });
}

/// At the end: how many bits are set before each kRankWords-th word of a split shard.
template <typename Code>
inline void add_ranks(Packed<Code>& shard) {
  const Layout layout = shard.layout();
  for (std::size_t part = 0; part < shard.done.size(); ++part) {
    if (!layout.dense(shard.done[part])) continue;
    const std::uint16_t* words = shard.places.data() + shard.starts[part].place;
    std::uint16_t* ranks = shard.places.data() + shard.starts[part].place + layout.n_words;
    for (std::int64_t rank = 1; rank < layout.n_ranks; ++rank) {
      ranks[rank] = ranks[rank - 1];
      for (std::int64_t i = (rank - 1) * kRankWords; i < rank * kRankWords; ++i)
        ranks[rank] += static_cast<std::uint16_t>(std::popcount(words[i]));
    }
  }
}

/// The other way: the weights of a shard by classifier, bias last, as they were rounded.
template <typename Code>
inline OwnedCsr unpack(const Shard<Code>& shard) {
  const std::int64_t n_rows = shard.n_rows();
  std::vector<std::int64_t> fill(kShardRows + 1, 0);
  const auto each_weight = [&](auto&& visit) {
    for (std::int64_t f = 0; f < shard.n_features(); ++f)
      for (std::int64_t part = 0; part < shard.n_parts(); ++part)
        each(shard, shard.list(f, part), [&](std::int64_t row, Code code) {
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
