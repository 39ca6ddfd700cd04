// Transformed rows and their best labels → rows that have these labels as additional features.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "csr.hpp"

namespace dismec::data {

/// How labels become features: a label of score s has the value ½·scale·(1 + t/√(1 + t²)),
/// t = slope·s, at the place of its column behind the row's own sparse features. Dense features
/// come after those of labels.
struct Widening {
  std::int32_t n_features;               // own sparse ones
  std::int32_t n_columns;                // with labels
  std::int32_t n_dense;                  // of each row, behind its sparse ones
  bool has_bias;                         // of the rows as they come, the last entry of each
  std::span<const std::int32_t> column;  // of each label, −1 for those without
  double scale;
  double slope;
  float bias;  // of output rows; 0: none
};

inline float value_of(const Widening& widening, float score) {
  const double t = widening.slope * std::clamp(static_cast<double>(score), -1e6, 1e6);
  return static_cast<float>(0.5 * widening.scale * (1 + t / std::sqrt(1 + t * t)));
}

/// Takes checked rows with k labels and scores each; empty places have label −1.
inline OwnedCsr widen(const Widening& widening, const Csr& rows,
                      std::span<const std::int32_t> labels, std::span<const float> scores,
                      std::int64_t k) {
  OwnedCsr result;
  const std::size_t most = rows.indices.size() + labels.size() + rows.n_rows();
  result.indptr.reserve(rows.n_rows() + 1);
  result.indices.reserve(most);
  result.values.reserve(most);
  result.indptr.push_back(0);
  std::vector<std::pair<std::int32_t, float>> best;
  for (std::int64_t row = 0; row < rows.n_rows(); ++row) {
    const std::int64_t begin = rows.indptr[row];
    const std::int64_t last = rows.indptr[row + 1] - (widening.has_bias ? 1 : 0);
    const std::int64_t end = last - widening.n_dense;
    result.indices.insert(result.indices.end(), rows.indices.begin() + begin,
                          rows.indices.begin() + end);
    result.values.insert(result.values.end(), rows.values.begin() + begin,
                         rows.values.begin() + end);
    best.clear();
    for (std::int64_t place = row * k; place < (row + 1) * k; ++place) {
      const std::int32_t column = labels[place] < 0 ? -1 : widening.column[labels[place]];
      if (column >= 0) best.emplace_back(column, value_of(widening, scores[place]));
    }
    std::ranges::sort(best);
    for (const auto& [column, value] : best) {
      result.indices.push_back(widening.n_features + column);
      result.values.push_back(value);
    }
    for (std::int64_t e = end; e < last; ++e) {
      result.indices.push_back(widening.n_columns + static_cast<std::int32_t>(e - end));
      result.values.push_back(rows.values[e]);
    }
    if (widening.bias != 0) {
      result.indices.push_back(widening.n_columns + widening.n_dense);
      result.values.push_back(widening.bias);
    }
    result.indptr.push_back(std::ssize(result.indices));
  }
  return result;
}

}  // namespace dismec::data
