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
/// Sets are copied into arrays of their own: the frequent features of a row densely, the others
/// sparsely and renumbered by first use, so that every vector is as short as the set is and stays
/// in cache. A set of more than kCompactBytes is read from X in place, with vectors over all
/// features.
struct WorkingSet {
  std::vector<std::int32_t> rows;
  std::int64_t n_positive = 0;
  std::vector<float> w;
  std::vector<float> mean;
  double n_outside = 0;

  bool compact = true;
  std::vector<std::int32_t> features;  // compact: local → global
  std::vector<float> dense;            // compact: rows × n_dense
  std::int64_t n_dense = 0;
  std::vector<std::int64_t> start;
  std::vector<std::int32_t> index;
  std::vector<float> value;
  std::vector<double> outside;  // n_outside · mean

  std::int64_t size() const { return static_cast<std::int64_t>(rows.size()); }
  float sign(std::int64_t i) const { return i < n_positive ? 1.0F : -1.0F; }
  Row row(const Rows& X, std::int64_t i) const {
    if (!compact) return row_of(X, rows[i]);
    return {index.data() + start[i],    value.data() + start[i],
            start[i + 1] - start[i],    1.0F,
            dense.data() + i * n_dense, n_dense};
  }
  /// The feature that entry f of a vector is about; not for the last entry, the bias.
  std::int64_t feature(std::size_t f) const {
    return compact ? features[f] : static_cast<std::int64_t>(f);
  }
  /// What a row's features are still to be multiplied by; empty for ones.
  std::span<const float> factor(const Rows& X) const {
    return compact ? std::span<const float>{} : X.idf;
  }
};

inline constexpr std::int64_t kCompactBytes = std::int64_t{32} << 20;

/// What the copies of a compact set take.
inline std::int64_t compact_bytes(std::int64_t rows, std::int64_t nnz, std::int64_t n_dense) {
  return rows * n_dense * 4 + nnz * 8;
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
  set.dense = {};
  set.start = {};
  set.index = {};
  set.value = {};
  set.compact = false;
}

/// Copies rows to the end of a compact set and takes them out of `outside`.
inline void copy_rows(WorkingSet& set, const Rows& X, const Summary& summary,
                      std::span<const std::int32_t> added, std::vector<std::int32_t>& local_of,
                      std::int64_t most_nnz) {
  const float w_bias = set.w.back();
  const double outside_bias = set.outside.back();
  set.w.pop_back();
  set.outside.pop_back();
  for (std::size_t f = 0; f < set.features.size(); ++f) {
    local_of[set.features[f]] = static_cast<std::int32_t>(f);
  }
  const auto first = static_cast<std::int64_t>(set.start.size()) - 1;
  // Reserved first: a vector that grows by itself takes twice what it needs.
  set.dense.reserve((first + std::ssize(added)) * set.n_dense);
  set.index.reserve(most_nnz);
  set.value.reserve(most_nnz);
  set.dense.resize((first + std::ssize(added)) * set.n_dense, 0.0F);
  std::int64_t end = set.start.back();
  set.index.resize(most_nnz);
  set.value.resize(most_nnz);
  float* dense = set.dense.data() + first * set.n_dense;
  for (const auto r : added) {
    const Row x = row_of(X, r);
    for (std::int64_t k = 0; k < x.size; ++k) {
      const auto j = x.index[k];
      const float v = x.value[k] * x.scale * (X.idf.empty() ? 1.0F : X.idf[j]);
      auto local = local_of[j];
      if (local < 0) {
        local = local_of[j] = static_cast<std::int32_t>(set.features.size());
        set.features.push_back(j);
        set.w.push_back(0.0F);
        set.outside.push_back(summary.sums[j]);
      }
      set.outside[local] -= v;
      if (local < set.n_dense) {
        dense[local] = v;
      } else {
        set.index[end] = local;
        set.value[end] = v;
        ++end;
      }
    }
    dense += set.n_dense;
    set.start.push_back(end);
  }
  set.index.resize(end);
  set.value.resize(end);
  for (const auto f : set.features) local_of[f] = -1;
  set.w.push_back(w_bias);
  set.outside.push_back(outside_bias);
}

/// Adds rows; `local_of` maps global features to local ones and is all −1 before and after.
inline void append(WorkingSet& set, const Rows& X, const Summary& summary,
                   std::span<const std::int32_t> added, std::vector<std::int32_t>& local_of) {
  const auto& sums = summary.sums;
  set.rows.insert(set.rows.end(), added.begin(), added.end());
  std::int64_t nnz = static_cast<std::int64_t>(set.index.size());
  for (const auto r : added) nnz += X.nnz(r);
  if (set.compact && compact_bytes(set.size(), nnz, set.n_dense) > kCompactBytes) {
    spread(set, X, sums);
  }

  if (set.compact) {
    copy_rows(set, X, summary, added, local_of, nnz);
  } else {
    for (const auto r : added) {
      const Row x = row_of(X, r);
      for (std::int64_t k = 0; k < x.size; ++k) {
        const float idf = X.idf.empty() ? 1.0F : X.idf[x.index[k]];
        set.outside[x.index[k]] -= x.scale * x.value[k] * idf;
      }
    }
  }
  set.outside.back() -= static_cast<double>(X.bias) * static_cast<double>(added.size());
  set.n_outside = static_cast<double>(X.size() - set.size());
  set.mean.resize(set.w.size());
  for (std::size_t j = 0; j < set.mean.size(); ++j) {
    set.mean[j] = set.n_outside > 0 ? static_cast<float>(set.outside[j] / set.n_outside) : 0.0F;
  }
}

/// The set of a label's positives, at the solution that holds where there is no positive at all.
inline void begin(WorkingSet& set, const Rows& X, const Summary& summary,
                  std::span<const std::int32_t> positives, std::vector<std::int32_t>& local_of) {
  // Cleared, not made anew: most labels need as much memory as the one before. A large one's is
  // given back.
  constexpr std::size_t kKept = std::size_t{1} << 18;
  if (set.dense.capacity() + set.index.capacity() > kKept) set = WorkingSet{};
  for (auto* v : {&set.rows, &set.features, &set.index}) v->clear();
  for (auto* v : {&set.dense, &set.value}) v->clear();
  set.outside.clear();
  set.compact = true;
  set.n_positive = static_cast<std::int64_t>(positives.size());
  set.n_dense = static_cast<std::int64_t>(summary.frequent.size());
  set.features.assign(summary.frequent.begin(), summary.frequent.end());
  for (const auto j : set.features) set.outside.push_back(summary.sums[j]);
  set.outside.push_back(summary.sums.back());
  set.w.assign(set.outside.size(), 0.0F);
  set.w.back() = X.bias != 0 ? -1 / X.bias : 0.0F;
  set.start.assign(1, 0);
  append(set, X, summary, positives, local_of);
}

}  // namespace dismec
