// Rows as stored → rows as classifiers see them: square roots if asked for, times idf, divided by
// the norm, and the bias as the last feature.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "csr.hpp"

namespace dismec::data {

struct Transform {
  std::span<const float> idf;  // one factor per feature; empty: none
  bool sqrt;                   // of the magnitude of each value, first of all
  bool normalize;
  float bias;  // 0: none
  std::int32_t n_features;
};

inline float root_of(float value) { return std::copysign(std::sqrt(std::abs(value)), value); }

/// 1/‖x∘idf‖₂ in float32, computed in float64; 1 for a row of zeros, and without `normalize`.
inline float row_scale(const Transform& transform, const Csr& rows, std::int64_t row) {
  if (!transform.normalize) return 1.0f;
  double sum = 0;
  for (std::int64_t e = rows.indptr[row]; e < rows.indptr[row + 1]; ++e) {
    double value = transform.sqrt ? root_of(rows.values[e]) : rows.values[e];
    if (!transform.idf.empty()) value *= transform.idf[rows.indices[e]];
    sum += value * value;
  }
  if (!(sum > 0)) return 1.0f;
  // The inverse of a subnormal norm is not finite in float32.
  return static_cast<float>(
      std::min(1.0 / std::sqrt(sum), double{std::numeric_limits<float>::max()}));
}

/// Transforms rows begin … end − 1 of a matrix that has been checked. A value is x·scale, then
/// ·idf, each product rounded.
inline OwnedCsr apply(const Transform& transform, const Csr& rows, std::int64_t begin,
                      std::int64_t end) {
  const bool has_bias = transform.bias != 0;
  const std::int64_t nnz = rows.indptr[end] - rows.indptr[begin];
  OwnedCsr result;
  result.indptr.reserve(end - begin + 1);
  result.indices.resize(nnz + (has_bias ? end - begin : 0));
  result.values.resize(result.indices.size());
  std::int64_t at = 0;
  result.indptr.push_back(0);
  for (std::int64_t row = begin; row < end; ++row) {
    const float scale = row_scale(transform, rows, row);
    for (std::int64_t e = rows.indptr[row]; e < rows.indptr[row + 1]; ++e, ++at) {
      result.indices[at] = rows.indices[e];
      float value = (transform.sqrt ? root_of(rows.values[e]) : rows.values[e]) * scale;
      if (!transform.idf.empty()) value *= transform.idf[rows.indices[e]];
      result.values[at] = value;
    }
    if (has_bias) {
      result.indices[at] = transform.n_features;
      result.values[at++] = transform.bias;
    }
    result.indptr.push_back(at);
  }
  return result;
}

}  // namespace dismec::data
