// Dense features, in the caller's own array → their products with vectors, and with the weights of
// many labels at once.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "solve/lanes.hpp"

namespace dismec::solve {

/// Row i is scale[i] · values[i·width …]; nothing is copied.
struct DenseRows {
  std::span<const float> values;  // row after row
  std::span<const float> scale;   // one number per row
  std::int64_t width = 0;         // 0: no dense features

  const float* row(std::int64_t i) const { return values.data() + i * width; }
};

/// Rows multiplied by one vector at a time, so that the vector is loaded once for all of them. The
/// result for a row does not depend on which rows, or how many, are processed with it.
inline constexpr int kDenseTogether = 4;

/// out[r] = rows[r] · w
template <int R>
[[gnu::always_inline]] inline void dense_dots(const float* const* rows, const float* w,
                                              std::int64_t n, float* out) {
  std::array<Lanes, R> sums;
  sums.fill(broadcast(0));
  std::int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    const Lanes part = load(w + k);
    for (int r = 0; r < R; ++r) sums[r] = fused(load(rows[r] + k), part, sums[r]);
  }
  for (int r = 0; r < R; ++r) {
    float rest = 0;
    for (std::int64_t j = k; j < n; ++j) rest = fused(rows[r][j], w[j], rest);
    out[r] = sum(sums[r]) + rest;
  }
}

/// w += Σ_r t[r] · rows[r], in row order
template <int R>
[[gnu::always_inline]] inline void dense_add(const float* t, const float* const* rows,
                                             std::int64_t n, float* w) {
  std::array<Lanes, R> factors;
  for (int r = 0; r < R; ++r) factors[r] = broadcast(t[r]);
  std::int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes) {
    Lanes sums = load(w + k);
    for (int r = 0; r < R; ++r) sums = fused(factors[r], load(rows[r] + k), sums);
    store(w + k, sums);
  }
  for (; k < n; ++k) {
    for (int r = 0; r < R; ++r) w[k] = fused(t[r], rows[r][k], w[k]);
  }
}

/// The product of one row, scale included, with a vector.
inline float dense_score(const DenseRows& dense, std::int64_t i, const float* w) {
  const float* row = dense.row(i);
  float product;
  dense_dots<1>(&row, w, dense.width, &product);
  return dense.scale[i] * product;
}

/// Calls take(i, product of row row_at(i) and w) for begin ≤ i < end.
template <typename RowAt, typename Take>
void each_dense_score(const DenseRows& dense, std::int64_t begin, std::int64_t end,
                      const RowAt& row_at, const float* w, const Take& take) {
  constexpr int R = kDenseTogether;
  std::int64_t i = begin;
  for (; i + R <= end; i += R) {
    std::array<const float*, R> rows;
    std::array<float, R> products;
    for (int r = 0; r < R; ++r) rows[r] = dense.row(row_at(i + r));
    dense_dots<R>(rows.data(), w, dense.width, products.data());
    for (int r = 0; r < R; ++r) take(i + r, dense.scale[row_at(i + r)] * products[r]);
  }
  for (; i < end; ++i) take(i, dense_score(dense, row_at(i), w));
}

/// w += Σ factor_at(i) · row row_at(i) for begin ≤ i < end, in this order, over the columns from
/// `first` to `last`; w[0] belongs to column 0.
template <typename RowAt, typename FactorAt>
void add_dense_rows(const DenseRows& dense, std::int64_t begin, std::int64_t end,
                    const RowAt& row_at, const FactorAt& factor_at, std::int64_t first,
                    std::int64_t last, float* w) {
  constexpr int R = kDenseTogether;
  std::array<const float*, R> rows;
  std::array<float, R> factors;
  const auto look_up = [&](std::int64_t i, int r) {
    const std::int64_t row = row_at(i);
    rows[r] = dense.row(row) + first;
    factors[r] = factor_at(i) * dense.scale[row];
  };
  std::int64_t i = begin;
  for (; i + R <= end; i += R) {
    for (int r = 0; r < R; ++r) look_up(i + r, r);
    dense_add<R>(factors.data(), rows.data(), last - first, w + first);
  }
  for (; i < end; ++i) {
    look_up(i, 0);
    dense_add<1>(factors.data(), rows.data(), last - first, w + first);
  }
}

/// The same for any number of rows and all columns. Only short stretches are summed in single
/// precision, so that rounding errors do not add up.
template <typename RowAt, typename FactorAt>
void add_many_dense_rows(const DenseRows& dense, std::int64_t n, const RowAt& row_at,
                         const FactorAt& factor_at, float* w) {
  constexpr std::int64_t kStretch = 256;
  std::vector<double> sums(w, w + dense.width);
  std::vector<float> part(dense.width);
  for (std::int64_t begin = 0; begin < n; begin += kStretch) {
    std::fill(part.begin(), part.end(), 0.0F);
    add_dense_rows(dense, begin, std::min(begin + kStretch, n), row_at, factor_at, 0, dense.width,
                   part.data());
    for (std::int64_t k = 0; k < dense.width; ++k) sums[k] += part[k];
  }
  for (std::int64_t k = 0; k < dense.width; ++k) w[k] = static_cast<float>(sums[k]);
}

// Rows multiplied with a panel at once: as many as there are registers for their sums.
#if defined(__AVX512F__)
inline constexpr int kPanelRows = 8;
#else
inline constexpr int kPanelRows = 2;
#endif

/// sums[r] = rows[r] · panel, where the panel has two vectors of lanes per column. Sums are taken
/// in column order, so that each is off by at most width·2⁻²⁴ of Σ|row·weight|.
template <int R>
inline void panel_products(const float* first_row, const float* panel, std::int64_t width,
                           std::array<Lanes, 2>* sums) {
  std::array<std::array<Lanes, 2>, R> acc;
  for (auto& pair : acc) pair.fill(broadcast(0));
  for (std::int64_t k = 0; k < width; ++k) {
    const Lanes lower = load(panel + k * 2 * kLanes);
    const Lanes upper = load(panel + k * 2 * kLanes + kLanes);
    for (int r = 0; r < R; ++r) {
      const Lanes x = broadcast(first_row[r * width + k]);
      acc[r][0] = fused(x, lower, acc[r][0]);
      acc[r][1] = fused(x, upper, acc[r][1]);
    }
  }
  for (int r = 0; r < R; ++r) sums[r] = acc[r];
}

}  // namespace dismec::solve
