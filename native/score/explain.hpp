// A row × one classifier → the contribution of each feature to the score.
#pragma once

#include <cstdint>
#include <span>

#include "score/bounded.hpp"
#include "score/sums.hpp"

namespace dismec::score {

/// Writes the classifier's weight for each entry of the first row, 0 where it has none; returns the
/// score, added in the order of a scan.
template <typename Code>
inline float explain(const Shard<Code>& shard, const Csr& rows, std::int64_t row,
                     std::span<float> weights) {
  float sum = 0, bias = 0;
  for (std::int64_t e = 0; e < rows.indptr[1]; ++e) {
    const std::int64_t feature = rows.indices[e];
    if (feature == shard.n_features()) {
      bias = rows.values[e];
      weights[e] = shard.bias[row];
      continue;
    }
    weights[e] = 0;
    const auto list = shard.list(feature);
    const std::int64_t at = find(list, shard, row);
    if (at >= std::ssize(list.weights)) continue;
    const float weight = decode(list.weights[at]);
    sum += rows.values[e] * weight;
    weights[e] = weight * shard.scales[row];
  }
  return score_of(shard, bias, sum, row);
}

}  // namespace dismec::score
