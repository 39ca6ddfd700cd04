// A row × one classifier → the contribution of each feature to the score.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "score/bounded.hpp"
#include "score/sums.hpp"

namespace dismec::score {

/// The position of a classifier's weight in bits without ranks; `count` or more if it has none.
inline std::int64_t find_unranked(const std::uint16_t* words, std::int64_t count,
                                  std::int64_t row) {
  const std::int64_t word = row / kGroup;
  const unsigned bit = 1U << (row % kGroup);
  if ((words[word] & bit) == 0) return count;
  std::int64_t at = std::popcount(words[word] & (bit - 1));
  for (std::int64_t i = 0; i < word; ++i) at += std::popcount(words[i]);
  return at;
}

/// Writes the classifier's weight for each entry of the first row, 0 where it has none; returns the
/// score, added in the order of a scan.
template <typename Code>
inline float explain(const Shard<Code>& shard, const Csr& rows, std::int64_t row,
                     std::span<float> weights) {
  const float share = 1.0f / static_cast<float>(shard.n_rows());
  float sum = 0, bias = 0;
  for (std::int64_t e = 0; e < rows.indptr[1]; ++e) {
    const std::int64_t feature = rows.indices[e];
    if (feature == shard.n_features()) {
      bias = rows.values[e];
      weights[e] = shard.bias[row];
      continue;
    }
    weights[e] = 0;
    for (std::int64_t part = 0; part < shard.n_parts(); ++part) {
      const auto list = shard.list(feature, part);
      const std::int64_t count = std::ssize(list.weights);
      if (count == 0) continue;
      const std::int64_t at =
          !list.dense   ? find_listed(list.places, count, share * static_cast<float>(count), row)
          : shard.split ? find_dense(list.places, count, shard.n_words(), row)
                        : find_unranked(list.places, count, row);
      if (at >= count) continue;
      const float weight = decode(list.weights[at]);
      sum += rows.values[e] * weight;
      weights[e] += weight * shard.scales[row];
    }
  }
  return score_of(shard, bias, sum, row);
}

}  // namespace dismec::score
