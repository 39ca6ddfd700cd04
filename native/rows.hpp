// X as the classifiers see it, read in place: nothing of it is copied or scaled beforehand.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "lanes.hpp"

namespace dismec {

/// Row i is scale_i · (x_i ∘ idf), followed by the bias feature at index n_features.
struct Rows {
  std::span<const std::int64_t> indptr;
  std::span<const std::int32_t> indices;
  std::span<const float> values;
  std::span<const float> scale;
  std::span<const float> idf;  // empty: all ones
  std::int64_t n_features = 0;
  float bias = 1.0F;

  std::int64_t size() const { return static_cast<std::int64_t>(indptr.size()) - 1; }
  std::int64_t nnz(std::int64_t row) const { return indptr[row + 1] - indptr[row]; }
};

/// One sparse row, without the bias.
struct Row {
  const std::int32_t* index;
  const float* value;
  std::int64_t size;
  float scale;
};

inline Row row_of(const Rows& X, std::int64_t i) {
  const std::int64_t begin = X.indptr[i];
  return {X.indices.data() + begin, X.values.data() + begin, X.indptr[i + 1] - begin, X.scale[i]};
}

/// x · w, in four chains that the CPU can overlap.
inline float dot(const Row& x, const float* w) {
  float a = 0;
  float b = 0;
  float c = 0;
  float d = 0;
  std::int64_t k = 0;
  for (; k + 4 <= x.size; k += 4) {
    a = fused(x.value[k], w[x.index[k]], a);
    b = fused(x.value[k + 1], w[x.index[k + 1]], b);
    c = fused(x.value[k + 2], w[x.index[k + 2]], c);
    d = fused(x.value[k + 3], w[x.index[k + 3]], d);
  }
  for (; k < x.size; ++k) a = fused(x.value[k], w[x.index[k]], a);
  return x.scale * ((a + b) + (c + d));
}

/// w += t · x
inline void add_scaled(float t, const Row& x, float* w) {
  t *= x.scale;
  for (std::int64_t k = 0; k < x.size; ++k) w[x.index[k]] = fused(t, x.value[k], w[x.index[k]]);
}

/// a · b of two dense vectors of one size, summed in a fixed order.
inline double inner(const std::vector<float>& a, const std::vector<float>& b) {
  const std::size_t n = a.size();
  Lanes even = broadcast(0);
  Lanes odd = broadcast(0);
  std::size_t k = 0;
  for (; k + 2 * kLanes <= n; k += 2 * kLanes) {
    even = fused(load(&a[k]), load(&b[k]), even);
    odd = fused(load(&a[k + kLanes]), load(&b[k + kLanes]), odd);
  }
  float parts[kLanes];
  store(parts, add(even, odd));
  double sum = 0;
  for (const float part : parts) sum += part;
  for (; k < n; ++k) sum += static_cast<double>(a[k]) * b[k];
  return sum;
}

/// What the solver needs to know of all rows together.
struct Summary {
  std::vector<double> sums;  // Σ_i x_i, bias last
  double sums_squared = 0;   // ‖Σ_i x_i‖²
  double longest = 0;        // max ‖x_i‖
};

inline Summary summarise(const Rows& X) {
  Summary summary;
  summary.sums.assign(X.n_features + 1, 0.0);
  double longest_squared = 0;
  for (std::int64_t i = 0; i < X.size(); ++i) {
    const Row x = row_of(X, i);
    double squared = 0;
    for (std::int64_t k = 0; k < x.size; ++k) {
      const double idf = X.idf.empty() ? 1.0 : X.idf[x.index[k]];
      const double v = static_cast<double>(x.scale) * x.value[k] * idf;
      summary.sums[x.index[k]] += v;
      squared += v * v;
    }
    longest_squared = std::max(longest_squared, squared);
  }
  const double bias = X.bias;
  summary.sums[X.n_features] = bias * static_cast<double>(X.size());
  for (const double s : summary.sums) summary.sums_squared += s * s;
  summary.longest = std::sqrt(longest_squared + bias * bias);
  return summary;
}

}  // namespace dismec
