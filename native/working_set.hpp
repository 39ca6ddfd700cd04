// The rows that one label's sub-problem is solved on, and one row that stands in for all others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "rows.hpp"

namespace dismec {

/// A label's working set: its positives, then the negatives taken in so far, then the mean of the
/// negatives outside with their number as its weight. Vectors over features hold the bias last.
///
/// Small sets are copied into arrays of their own with features renumbered by first use, so that
/// every vector is as short as the set is and stays in cache. A set of more than
/// `compact_limit(n_features)` non-zeros is read from X in place, with vectors over all features.
struct WorkingSet {
  std::vector<std::int32_t> rows;
  std::int64_t n_positive = 0;
  std::vector<float> w;
  std::vector<float> mean;
  double n_outside = 0;

  bool compact = true;
  std::vector<std::int32_t> features;  // compact: local → global
  std::vector<std::int64_t> start;
  std::vector<std::int32_t> index;
  std::vector<float> value;
  std::vector<double> outside;  // n_outside · mean

  std::int64_t size() const { return static_cast<std::int64_t>(rows.size()); }
  float sign(std::int64_t i) const { return i < n_positive ? 1.0F : -1.0F; }
  Row row(const Rows& X, std::int64_t i) const {
    if (!compact) return row_of(X, rows[i]);
    return {index.data() + start[i], value.data() + start[i], start[i + 1] - start[i], 1.0F};
  }
  /// What a row's features are still to be multiplied by; empty for ones.
  std::span<const float> factor(const Rows& X) const {
    return compact ? std::span<const float>{} : X.idf;
  }
};

inline std::int64_t compact_limit(std::int64_t n_features) {
  return std::max<std::int64_t>(std::int64_t{1} << 19, 2 * n_features);
}

/// Turns a compact set into one that reads X in place.
inline void spread(WorkingSet& set, const Rows& X, std::span<const double> sums) {
  std::vector<float> w(X.n_features + 1, 0.0F);
  std::vector<double> outside(sums.begin(), sums.end());
  for (std::size_t f = 0; f < set.features.size(); ++f) {
    w[set.features[f]] = set.w[f];
    outside[set.features[f]] = set.outside[f];
  }
  w.back() = set.w.back();
  outside.back() = set.outside.back();
  set.w = std::move(w);
  set.outside = std::move(outside);
  set.features = {};
  set.start = {};
  set.index = {};
  set.value = {};
  set.compact = false;
}

/// Adds rows; `local_of` maps global features to local ones and is all −1 before and after.
inline void append(WorkingSet& set, const Rows& X, std::span<const double> sums,
                   std::span<const std::int32_t> added, std::vector<std::int32_t>& local_of) {
  std::int64_t nnz = static_cast<std::int64_t>(set.index.size());
  for (const auto r : added) nnz += X.nnz(r);
  if (set.compact && nnz > compact_limit(X.n_features)) spread(set, X, sums);

  const std::int64_t first = set.size();
  set.rows.insert(set.rows.end(), added.begin(), added.end());
  if (set.compact) {
    const float w_bias = set.w.back();
    const double outside_bias = set.outside.back();
    set.w.pop_back();
    set.outside.pop_back();
    for (std::size_t f = 0; f < set.features.size(); ++f) {
      local_of[set.features[f]] = static_cast<std::int32_t>(f);
    }
    set.index.reserve(nnz);
    set.value.reserve(nnz);
    for (const auto r : added) {
      const Row x = row_of(X, r);
      for (std::int64_t k = 0; k < x.size; ++k) {
        const auto j = x.index[k];
        if (local_of[j] < 0) {
          local_of[j] = static_cast<std::int32_t>(set.features.size());
          set.features.push_back(j);
          set.w.push_back(0.0F);
          set.outside.push_back(sums[j]);
        }
        set.index.push_back(local_of[j]);
        set.value.push_back(x.value[k] * x.scale * (X.idf.empty() ? 1.0F : X.idf[j]));
      }
      set.start.push_back(static_cast<std::int64_t>(set.index.size()));
    }
    for (const auto f : set.features) local_of[f] = -1;
    set.w.push_back(w_bias);
    set.outside.push_back(outside_bias);
  }

  const auto factor = set.factor(X);
  for (std::int64_t i = first; i < set.size(); ++i) {
    const Row x = set.row(X, i);
    for (std::int64_t k = 0; k < x.size; ++k) {
      const float v = x.scale * x.value[k] * (factor.empty() ? 1.0F : factor[x.index[k]]);
      set.outside[x.index[k]] -= v;
    }
    set.outside.back() -= X.bias;
  }
  set.n_outside = static_cast<double>(X.size() - set.size());
  set.mean.resize(set.w.size());
  for (std::size_t j = 0; j < set.mean.size(); ++j) {
    set.mean[j] = set.n_outside > 0 ? static_cast<float>(set.outside[j] / set.n_outside) : 0.0F;
  }
}

/// The set of a label's positives, at the solution that holds where there is no positive at all.
inline void begin(WorkingSet& set, const Rows& X, std::span<const double> sums,
                  std::span<const std::int32_t> positives, std::vector<std::int32_t>& local_of) {
  set = WorkingSet{};
  set.w.assign(1, X.bias != 0 ? -1 / X.bias : 0.0F);
  set.outside.assign(1, sums.back());
  set.start.assign(1, 0);
  set.n_positive = static_cast<std::int64_t>(positives.size());
  append(set, X, sums, positives, local_of);
}

}  // namespace dismec
