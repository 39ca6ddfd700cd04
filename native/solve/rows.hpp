// X as stored, and its transform → rows as classifiers see them, read in place; their products with
// dense vectors; and a summary of all rows.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "csr.hpp"
#include "huge_array.hpp"
#include "solve/dense.hpp"
#include "solve/lanes.hpp"

namespace dismec::solve {

/// Dense vectors are processed in strides of this many floats.
inline constexpr std::int64_t kStride = 4 * kLanes;

/// Row i is scale_i · (x_i ∘ idf), followed by its dense features, if any, from index n_sparse on,
/// and by the bias feature at index n_features.
struct Transformed {
  Csr x;
  std::span<const float> scale;
  std::span<const float> idf;  // empty: all ones
  float bias = 1.0F;
  std::span<const float> weights = {};  // factor of each row's loss; empty: all ones
  DenseRows dense = {};

  std::int64_t size() const { return x.n_rows(); }
  std::int64_t n_sparse() const { return x.n_columns; }
  std::int64_t n_features() const { return x.n_columns + dense.width; }
  float weight(std::int64_t i) const { return weights.empty() ? 1.0F : weights[i]; }
};

/// The sparse features of a row: scale · value[k] at index[k], or at narrow[k] if that is set.
struct Row {
  const float* value;
  const std::int32_t* index;
  const std::uint16_t* narrow;
  std::int32_t size;
  float scale;
};

inline Row row_of(const Transformed& X, std::int64_t i) {
  const std::int64_t begin = X.x.indptr[i];
  return {X.x.values.data() + begin, X.x.indices.data() + begin, nullptr,
          static_cast<std::int32_t>(X.x.nnz(i)), X.scale[i]};
}

/// Prefetches what `row_of` reads, this many rows before the row itself is read.
inline constexpr std::int64_t kStartsAhead = 24;
inline void prefetch_start(const Transformed& X, std::int64_t i) {
  __builtin_prefetch(X.x.indptr.data() + i);
  __builtin_prefetch(X.scale.data() + i);
}

/// Prefetches a row.
inline void prefetch(const Row& x) {
  constexpr std::int64_t kLine = 16;  // numbers
  for (std::int64_t k = 0; k < x.size; k += kLine) {
    __builtin_prefetch(x.value + k);
    __builtin_prefetch(x.index + k);
  }
}

/// a · b of two dense vectors, n a multiple of kStride, in independent chains that the CPU
/// overlaps.
inline float inner(const float* a, const float* b, std::int64_t n) {
  Lanes sums[4] = {broadcast(0), broadcast(0), broadcast(0), broadcast(0)};
  for (std::int64_t k = 0; k < n; k += kStride) {
    for (int q = 0; q < 4; ++q) {
      sums[q] = fused(load(a + k + q * kLanes), load(b + k + q * kLanes), sums[q]);
    }
  }
  return sum(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

/// a · b of two dense vectors of n numbers; uses single precision only within short stretches.
inline double inner_product(const float* a, const float* b, std::int64_t n) {
  constexpr std::int64_t kStretch = 16 * kStride;
  const std::int64_t whole = n / kStride * kStride;
  double sum = 0;
  for (std::int64_t k = 0; k < whole; k += kStretch) {
    sum += inner(a + k, b + k, std::min(kStretch, whole - k));
  }
  for (std::int64_t k = whole; k < n; ++k) sum += static_cast<double>(a[k]) * b[k];
  return sum;
}
/// The same for two vectors of equal size.
inline double inner(const std::vector<float>& a, const std::vector<float>& b) {
  return inner_product(a.data(), b.data(), std::ssize(a));
}

struct SumAndSquares {
  double sum = 0;
  double squares = 0;
};
/// Sums over the positive numbers; uses single precision only within short stretches.
inline SumAndSquares sums_of_positive(const float* x, std::int64_t n) {
  constexpr std::int64_t kStretch = 64 * kLanes;
  SumAndSquares total;
  const std::int64_t whole = n / kLanes * kLanes;
  for (std::int64_t begin = 0; begin < whole; begin += kStretch) {
    Lanes sums = broadcast(0);
    Lanes squares = broadcast(0);
    const std::int64_t end = std::min(begin + kStretch, whole);
    for (std::int64_t k = begin; k < end; k += kLanes) {
      const Lanes all = load(x + k);
      const Lanes positive = where_positive(all, all);
      sums = add(sums, positive);
      squares = fused(positive, positive, squares);
    }
    total.sum += sum(sums);
    total.squares += sum(squares);
  }
  for (std::int64_t k = whole; k < n; ++k) {
    const double positive = std::max(0.0F, x[k]);
    total.sum += positive;
    total.squares += positive * positive;
  }
  return total;
}

/// Which pairs of some vectors are multiplied.
template <std::size_t N>
using Pairs = std::array<std::array<int, 2>, N>;

/// Inner products of dense vectors of equal size, all pairs in one sweep; uses single precision
/// only within short stretches.
template <auto pairs, std::size_t V>
std::array<double, pairs.size()> inner_products(const std::array<const float*, V>& vectors,
                                                std::int64_t n) {
  constexpr std::int64_t kStretch = 64 * kLanes;
  std::array<double, pairs.size()> products = {};
  const std::int64_t whole = n / kLanes * kLanes;
  for (std::int64_t begin = 0; begin < whole; begin += kStretch) {
    std::array<Lanes, pairs.size()> sums;
    sums.fill(broadcast(0));
    const std::int64_t end = std::min(begin + kStretch, whole);
    for (std::int64_t k = begin; k < end; k += kLanes) {
      std::array<Lanes, V> part;
      for (std::size_t v = 0; v < V; ++v) part[v] = load(vectors[v] + k);
      for (std::size_t p = 0; p < pairs.size(); ++p) {
        sums[p] = fused(part[pairs[p][0]], part[pairs[p][1]], sums[p]);
      }
    }
    for (std::size_t p = 0; p < pairs.size(); ++p) products[p] += sum(sums[p]);
  }
  for (std::int64_t k = whole; k < n; ++k) {
    for (std::size_t p = 0; p < pairs.size(); ++p) {
      const auto& [a, b] = pairs[p];
      products[p] += static_cast<double>(vectors[a][k]) * vectors[b][k];
    }
  }
  return products;
}

/// Σ_k value[k] · w[index[k]], in four independent chains that the CPU overlaps.
template <typename Index>
[[gnu::always_inline]] inline float dot(const float* value, const Index* index, std::int64_t size,
                                        const float* w) {
  Four sums = four(0, 0, 0, 0);
  std::int64_t k = 0;
  for (; k + 4 <= size; k += 4) {
    const Index* i = index + k;
    sums = fused(load_four(value + k), four(w[i[0]], w[i[1]], w[i[2]], w[i[3]]), sums);
  }
  float first = sums.v[0];
  for (; k < size; ++k) first = fused(value[k], w[index[k]], first);
  return (first + sums.v[1]) + (sums.v[2] + sums.v[3]);
}

/// w[index[k]] += t · value[k], four at a time with loads before stores: the features of a row are
/// distinct, which the compiler cannot know.
template <typename Index>
[[gnu::always_inline]] inline void add_scaled(float t, const float* value, const Index* index,
                                              std::int64_t size, float* w) {
  const Four factor = four(t, t, t, t);
  std::int64_t k = 0;
  for (; k + 4 <= size; k += 4) {
    float* a = w + index[k];
    float* b = w + index[k + 1];
    float* c = w + index[k + 2];
    float* d = w + index[k + 3];
    const Four sums = fused(factor, load_four(value + k), four(*a, *b, *c, *d));
    *a = sums.v[0];
    *b = sums.v[1];
    *c = sums.v[2];
    *d = sums.v[3];
  }
  for (; k < size; ++k) w[index[k]] = fused(t, value[k], w[index[k]]);
}

/// x · w
[[gnu::always_inline]] inline float dot(const Row& x, const float* w) {
  return x.scale *
         (x.narrow ? dot(x.value, x.narrow, x.size, w) : dot(x.value, x.index, x.size, w));
}

/// w += t · x
[[gnu::always_inline]] inline void add_scaled(float t, const Row& x, float* w) {
  t *= x.scale;
  x.narrow ? add_scaled(t, x.value, x.narrow, x.size, w)
           : add_scaled(t, x.value, x.index, x.size, w);
}

/// What the solver needs to know about all rows together; v_i is the weight of row i.
struct Summary {
  std::vector<double> sums;        // Σ_i v_i·x_i, bias last
  HugeArray<float> sums_float{0};  // the same in single precision
  std::vector<float> magnitudes;   // Σ_i |x_i| over the sparse features
  double sums_squared = 0;         // ‖Σ_i v_i·x_i‖²
  double weight = 0;               // Σ_i v_i
  double squares = 0;              // Σ_i v_i·‖x_i‖²
  double longest = 0;              // max ‖x_i‖
  double longest_features = 0;     // max ‖x_i‖ without the bias
  double mean_length = 0;          // mean ‖x_i‖ without the bias
  bool nonnegative = true;         // no sparse feature of X is negative
};

inline Summary summarize(const Transformed& X) {
  Summary summary;
  summary.sums.assign(X.n_features() + 1, 0.0);
  summary.magnitudes.assign(X.n_sparse(), 0.0F);
  double longest_squared = 0;
  for (std::int64_t i = 0; i < X.size(); ++i) {
    const Row x = row_of(X, i);
    const double weight = X.weight(i);
    summary.weight += weight;
    double squared = 0;
    for (std::int64_t k = 0; k < x.size; ++k) {
      const double idf = X.idf.empty() ? 1.0 : X.idf[x.index[k]];
      const double v = static_cast<double>(x.scale) * x.value[k] * idf;
      summary.sums[x.index[k]] += weight * v;
      summary.magnitudes[x.index[k]] += static_cast<float>(std::abs(v));
      squared += v * v;
      if (v < 0) summary.nonnegative = false;
    }
    double* dense_sums = summary.sums.data() + X.n_sparse();
    for (std::int64_t k = 0; k < X.dense.width; ++k) {
      const double v = static_cast<double>(X.dense.scale[i]) * X.dense.row(i)[k];
      dense_sums[k] += weight * v;
      squared += v * v;
    }
    summary.squares += weight * squared;
    longest_squared = std::max(longest_squared, squared);
    summary.mean_length += std::sqrt(squared) / static_cast<double>(X.size());
  }
  const double bias = X.bias;
  summary.sums[X.n_features()] = bias * summary.weight;
  summary.squares += bias * bias * summary.weight;
  summary.sums_float = HugeArray<float>(X.n_features() + 1);
  std::copy(summary.sums.begin(), summary.sums.end(), summary.sums_float.data());
  for (const double s : summary.sums) summary.sums_squared += s * s;
  summary.longest_features = std::sqrt(longest_squared);
  summary.longest = std::sqrt(longest_squared + bias * bias);
  return summary;
}

}  // namespace dismec::solve
