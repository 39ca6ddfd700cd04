// What is done to a row before it is learned from or scored: x∘idf, divided by its norm, and the
// bias as one more feature, the last.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "shard.hpp"

namespace dismec {

struct Transform {
  std::span<const float> idf;  // a factor a feature, or empty: none
  bool normalize;
  float bias;  // 0: none
  std::int32_t n_features;
};

/// 1/‖x∘idf‖₂ in float32, computed in float64; 1 for a row of zeros, and without `normalize`.
inline float row_scale(const Transform& transform, const Csr& rows, std::int64_t row) {
  if (!transform.normalize) return 1.0f;
  double sum = 0;
  for (std::int64_t e = rows.starts[row]; e < rows.starts[row + 1]; ++e) {
    double value = rows.values[e];
    if (!transform.idf.empty()) value *= transform.idf[rows.columns[e]];
    sum += value * value;
  }
  if (!(sum > 0)) return 1.0f;
  // Norms below float32's normal numbers have no finite float32 inverse.
  return static_cast<float>(
      std::min(1.0 / std::sqrt(sum), double{std::numeric_limits<float>::max()}));
}

/// Rows in memory of their own.
struct Rows {
  std::vector<std::int64_t> starts;
  std::vector<std::int32_t> columns;
  std::vector<float> values;
};

/// Rows begin … end of a matrix that has been checked, transformed. A value is x·scale, then ·idf,
/// each product rounded.
inline Rows apply(const Transform& transform, const Csr& rows, std::int64_t begin,
                  std::int64_t end) {
  const bool has_bias = transform.bias != 0;
  const std::int64_t nnz = rows.starts[end] - rows.starts[begin];
  Rows result;
  result.starts.reserve(end - begin + 1);
  result.columns.resize(nnz + (has_bias ? end - begin : 0));
  result.values.resize(result.columns.size());
  std::int64_t at = 0;
  result.starts.push_back(0);
  for (std::int64_t row = begin; row < end; ++row) {
    const float scale = row_scale(transform, rows, row);
    for (std::int64_t e = rows.starts[row]; e < rows.starts[row + 1]; ++e, ++at) {
      result.columns[at] = rows.columns[e];
      float value = rows.values[e] * scale;
      if (!transform.idf.empty()) value *= transform.idf[rows.columns[e]];
      result.values[at] = value;
    }
    if (has_bias) {
      result.columns[at] = transform.n_features;
      result.values[at++] = transform.bias;
    }
    result.starts.push_back(at);
  }
  return result;
}

}  // namespace dismec
