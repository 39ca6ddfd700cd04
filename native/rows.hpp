// X as the classifiers see it, read in place: nothing of it is copied or scaled beforehand.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "lanes.hpp"

namespace dismec {

/// Dense vectors are walked in steps of so many floats.
inline constexpr std::int64_t kWide = 4 * kLanes;

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

/// One row without the bias: scale · (dense features 0 … n_dense − 1, then sparse ones).
struct Row {
  const std::int32_t* index;
  const float* value;
  std::int64_t size;
  float scale;
  const float* dense = nullptr;
  std::int64_t n_dense = 0;  // a multiple of kWide
};

inline Row row_of(const Rows& X, std::int64_t i) {
  const std::int64_t begin = X.indptr[i];
  return {X.indices.data() + begin, X.values.data() + begin, X.indptr[i + 1] - begin, X.scale[i]};
}

/// a · b of two dense vectors, n a multiple of kWide, in chains that the CPU can overlap.
inline float inner(const float* a, const float* b, std::int64_t n) {
  Lanes sums[4] = {broadcast(0), broadcast(0), broadcast(0), broadcast(0)};
  for (std::int64_t k = 0; k < n; k += kWide) {
    for (int q = 0; q < 4; ++q) {
      sums[q] = fused(load(a + k + q * kLanes), load(b + k + q * kLanes), sums[q]);
    }
  }
  return sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

/// a · b of two dense vectors of one size.
inline double inner(const std::vector<float>& a, const std::vector<float>& b) {
  const auto n = static_cast<std::int64_t>(a.size());
  const std::int64_t whole = n / kWide * kWide;
  double sum = inner(a.data(), b.data(), whole);
  for (std::int64_t k = whole; k < n; ++k) sum += static_cast<double>(a[k]) * b[k];
  return sum;
}

/// x · w, in chains that the CPU can overlap.
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
  float sum = (a + b) + (c + d);
  if (x.n_dense > 0) sum += inner(x.dense, w, x.n_dense);
  return x.scale * sum;
}

/// w += t · x
inline void add_scaled(float t, const Row& x, float* w) {
  t *= x.scale;
  for (std::int64_t k = 0; k < x.n_dense; k += kLanes) {
    store(w + k, fused(broadcast(t), load(x.dense + k), load(w + k)));
  }
  // Four at a time, loads before stores: a row's features are distinct, which only we know.
  std::int64_t k = 0;
  for (; k + 4 <= x.size; k += 4) {
    float* a = w + x.index[k];
    float* b = w + x.index[k + 1];
    float* c = w + x.index[k + 2];
    float* d = w + x.index[k + 3];
    const float va = fused(t, x.value[k], *a);
    const float vb = fused(t, x.value[k + 1], *b);
    const float vc = fused(t, x.value[k + 2], *c);
    const float vd = fused(t, x.value[k + 3], *d);
    *a = va;
    *b = vb;
    *c = vc;
    *d = vd;
  }
  for (; k < x.size; ++k) w[x.index[k]] = fused(t, x.value[k], w[x.index[k]]);
}

/// What the solver needs to know of all rows together.
struct Summary {
  std::vector<double> sums;  // Σ_i x_i, bias last
  double sums_squared = 0;   // ‖Σ_i x_i‖²
  double longest = 0;        // max ‖x_i‖
  // Features that so many rows have that storing them densely is faster, a multiple of kWide.
  std::vector<std::int32_t> frequent;
};

/// The features that more than one in `kRare` rows has, by frequency.
inline void find_frequent(const Rows& X, Summary& summary) {
  constexpr std::int64_t kRare = 6;
  constexpr std::size_t kMost = 1024;
  std::vector<std::int64_t> count(X.n_features, 0);
  for (const auto j : X.indices) ++count[j];
  auto& frequent = summary.frequent;
  for (std::int64_t j = 0; j < X.n_features; ++j) {
    if (count[j] * kRare > X.size()) frequent.push_back(static_cast<std::int32_t>(j));
  }
  std::stable_sort(frequent.begin(), frequent.end(),
                   [&](auto a, auto b) { return count[a] > count[b]; });
  frequent.resize(std::min(frequent.size(), kMost) / kWide * kWide);
}

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
  find_frequent(X, summary);
  return summary;
}

}  // namespace dismec
