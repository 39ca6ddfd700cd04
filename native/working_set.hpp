// The rows that one label's sub-problem is solved on, and what is known of all others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "rows.hpp"

namespace dismec {

/// A label's working set: its positives, then the negatives taken in so far. Vectors over features
/// hold the bias last.
///
/// Rows are copied, with features renumbered by first use, so that every vector is as short as the
/// set is and stays in cache. A set of more than kCompactBytes is read from X in place, with
/// vectors over all features.
struct WorkingSet {
  std::vector<std::int32_t> rows;
  std::int64_t n_positive = 0;
  std::int64_t n_outside = 0;  // the other rows, all of them negatives
  std::vector<float> w;

  bool compact = true;
  std::vector<std::int32_t> features;  // compact: local → global
  std::vector<Row> copies;             // compact: they look into `parts`
  struct Part {
    std::unique_ptr<float[]> value;
    std::unique_ptr<std::uint16_t[]> narrow;
    std::unique_ptr<std::int32_t[]> index;  // where 16 bits do not suffice
  };
  std::vector<Part> parts;
  std::int64_t bytes = 0;  // of the parts

  std::int64_t size() const { return static_cast<std::int64_t>(rows.size()); }
  float sign(std::int64_t i) const { return i < n_positive ? 1.0F : -1.0F; }
  Row row(const Rows& X, std::int64_t i) const { return compact ? copies[i] : row_of(X, rows[i]); }
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

/// What a copied non-zero takes, with sixteen bits for its place.
inline constexpr std::int64_t kCopyBytes = sizeof(float) + sizeof(std::uint16_t);

/// Turns a compact set into one that reads X in place.
inline void spread(WorkingSet& set, const Rows& X) {
  std::vector<float> w(X.n_features + 1, 0.0F);
  for (std::size_t f = 0; f < set.features.size(); ++f) w[set.features[f]] = set.w[f];
  w.back() = set.w.back();
  set.w = std::move(w);
  set.features = {};
  set.copies = {};
  set.parts.clear();
  set.bytes = 0;
  set.compact = false;
}

/// Copies rows as one part; `index` is where their places go.
template <typename Index>
void copy_rows(WorkingSet& set, const Rows& X, std::span<const std::int32_t> added, Index* index,
               float* value, std::vector<std::int32_t>& local_of) {
  auto n_local = static_cast<std::int64_t>(set.features.size());
  std::int64_t nnz = 0;
  for (const auto r : added) nnz += X.nnz(r);
  set.features.resize(std::min(n_local + nnz, X.n_features));
  std::int32_t* features = set.features.data();
  std::int32_t* local = local_of.data();
  for (std::int64_t f = 0; f < n_local; ++f) local[features[f]] = static_cast<std::int32_t>(f);
  for (const auto r : added) {
    const Row x = row_of(X, r);
    Row copy{value, nullptr, nullptr, x.size, 1.0F};
    if constexpr (std::is_same_v<Index, std::uint16_t>) {
      copy.narrow = index;
    } else {
      copy.index = index;
    }
    set.copies.push_back(copy);
    for (std::int64_t k = 0; k < x.size; ++k) {
      const auto j = x.index[k];
      auto place = local[j];
      if (place < 0) {
        place = local[j] = static_cast<std::int32_t>(n_local);
        features[n_local++] = j;
      }
      index[k] = static_cast<Index>(place);
      value[k] = x.value[k] * x.scale;
    }
    if (!X.idf.empty()) {
      for (std::int64_t k = 0; k < x.size; ++k) value[k] *= X.idf[x.index[k]];
    }
    value += x.size;
    index += x.size;
  }
  for (std::int64_t f = 0; f < n_local; ++f) local[features[f]] = -1;
  set.features.resize(n_local);
}

/// Adds rows; `local_of` maps global features to local ones and is all −1 before and after.
inline void append(WorkingSet& set, const Rows& X, std::span<const std::int32_t> added,
                   std::vector<std::int32_t>& local_of) {
  set.rows.insert(set.rows.end(), added.begin(), added.end());
  set.n_outside = X.size() - set.size();
  if (!set.compact) return;
  std::int64_t nnz = 0;
  for (const auto r : added) nnz += X.nnz(r);
  const std::int64_t most = std::min(std::ssize(set.features) + nnz, X.n_features);
  const bool narrow = most <= std::int64_t{std::numeric_limits<std::uint16_t>::max()} + 1;
  const std::int64_t bytes = nnz * (narrow ? kCopyBytes : 8);
  if (set.bytes + bytes > kCompactBytes) {
    spread(set, X);
    return;
  }
  set.bytes += bytes;
  auto& part = set.parts.emplace_back();
  part.value = std::make_unique_for_overwrite<float[]>(nnz);
  if (narrow) {
    part.narrow = std::make_unique_for_overwrite<std::uint16_t[]>(nnz);
    copy_rows(set, X, added, part.narrow.get(), part.value.get(), local_of);
  } else {
    part.index = std::make_unique_for_overwrite<std::int32_t[]>(nnz);
    copy_rows(set, X, added, part.index.get(), part.value.get(), local_of);
  }
  const float bias = set.w.back();
  set.w.back() = 0;
  set.w.resize(set.features.size() + 1, 0.0F);
  set.w.back() = bias;
}

/// The set of a label's positives, at the solution that holds where there is no positive at all.
inline void begin(WorkingSet& set, const Rows& X, std::span<const std::int32_t> positives,
                  std::vector<std::int32_t>& local_of) {
  set.rows.clear();
  set.features.clear();
  set.copies.clear();
  set.parts.clear();
  set.bytes = 0;
  set.compact = true;
  set.n_positive = std::ssize(positives);
  set.w.assign(1, X.bias != 0 ? -1 / X.bias : 0.0F);
  append(set, X, positives, local_of);
}

}  // namespace dismec
