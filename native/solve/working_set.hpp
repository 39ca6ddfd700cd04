// A label's positives, and the negatives added after each pass → the rows that its sub-problem is
// solved on, and vectors over their features.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "solve/copies.hpp"
#include "solve/rows.hpp"

namespace dismec::solve {

/// Cost factors of a label's positive and negative rows.
struct Cost {
  double positive = 1;
  double negative = 1;
};

/// Rows with a pair weight for one label, ascending. A row of weight 0 is ignored for the label,
/// and is not one of its positives. If they are soft, a positive of weight u is also a negative of
/// weight 1 − u.
struct ListedRows {
  std::span<const std::int32_t> rows;
  std::span<const float> weights;
  bool soft = false;
};

/// The rows of a set and their weights: the positives, the negatives with a pair weight for this
/// label, the soft positives again as negatives, then the negatives added so far.
class SetRows {
 public:
  /// Begins the rows of a label, and returns those to add first, which never leave: the positives,
  /// whose pair weight is 1 unless listed, then the other listed rows and soft positives. Rows with
  /// a pair weight must stay, as the mean row only knows row weights.
  std::vector<std::int32_t> begin(std::span<const std::int32_t> positives, const ListedRows& listed,
                                  const Cost& cost) {
    clear();
    pair_weights_.clear();
    n_positive_ = std::ssize(positives);
    cost_ = cost;
    positive_root_ = static_cast<float>(std::sqrt(cost.positive));
    negative_root_ = static_cast<float>(std::sqrt(cost.negative));
    std::vector<std::int32_t> fixed(positives.begin(), positives.end());
    if (listed.rows.empty()) return fixed;
    std::vector<bool> is_positive(listed.rows.size());
    pair_weights_.assign(fixed.size(), 1.0F);
    for (std::size_t i = 0; i < positives.size(); ++i) {
      const auto at_least = std::ranges::lower_bound(listed.rows, positives[i]);
      if (at_least == listed.rows.end() || *at_least != positives[i]) continue;
      const auto k = at_least - listed.rows.begin();
      is_positive[k] = true;
      pair_weights_[i] = listed.weights[k];
    }
    for (std::size_t k = 0; k < listed.rows.size(); ++k) {
      if (is_positive[k]) continue;
      fixed.push_back(listed.rows[k]);
      pair_weights_.push_back(listed.soft ? 1 - listed.weights[k] : listed.weights[k]);
    }
    n_once_ = std::ssize(fixed);
    for (std::int64_t i = 0; listed.soft && i < n_positive_; ++i) {
      if (pair_weights_[i] >= 1) continue;
      fixed.push_back(positives[i]);
      pair_weights_.push_back(1 - pair_weights_[i]);
    }
    return fixed;
  }

  /// Removes all rows. The fixed ones must be added again first.
  void clear() {
    rows_.clear();
    weight_roots_.clear();
    row_roots_.clear();
    weight_ = 0;
  }

  void add(const Transformed& X, std::span<const std::int32_t> added) {
    if (X.weights.empty() && !has_pair_weights()) {
      weight_ += static_cast<double>(added.size());
    } else {
      for (std::int64_t i = size(); const auto r : added) {
        const double weight = X.weight(r);
        weight_ += is_again(i) ? 0 : weight;
        weight_roots_.push_back(static_cast<float>(std::sqrt(weight * pair_weight(i))));
        if (has_pair_weights())
          row_roots_.push_back(is_again(i) ? 0.0F : static_cast<float>(std::sqrt(weight)));
        ++i;
      }
    }
    rows_.insert(rows_.end(), added.begin(), added.end());
  }

  std::int64_t size() const { return std::ssize(rows_); }
  std::int32_t operator[](std::int64_t i) const { return rows_[i]; }
  std::span<const std::int32_t> all() const { return rows_; }
  std::int64_t n_positive() const { return n_positive_; }
  /// Whether the rows have taken more memory than those of most labels.
  bool was_large() const { return rows_.capacity() > 2048; }
  /// Number of first rows that never leave the set.
  std::int64_t n_fixed() const {
    return has_pair_weights() ? std::ssize(pair_weights_) : n_positive_;
  }
  const Cost& cost() const { return cost_; }
  double weight() const { return weight_; }  // Σ of the row weights
  /// Whether row i is a soft positive that is in the set for the second time.
  bool is_again(std::int64_t i) const { return i >= n_once_ && i < std::ssize(pair_weights_); }
  bool has_pair_weights() const { return !pair_weights_.empty(); }
  double pair_weight(std::int64_t i) const {
    return i < std::ssize(pair_weights_) ? pair_weights_[i] : 1.0;
  }

  bool weighted() const { return !weight_roots_.empty(); }
  float positive_root() const { return positive_root_; }
  float negative_root() const { return negative_root_; }
  /// √(row weight · pair weight).
  float weight_root(std::int64_t i) const { return weighted() ? weight_roots_[i] : 1.0F; }
  /// √(row weight), without the pair weight, as used in sums over all rows; 0 for a repeated row.
  float row_root(std::int64_t i) const {
    return row_roots_.empty() ? weight_root(i) : row_roots_[i];
  }
  /// √(cost·weight) of a row: a slack multiplied by this has cost 1.
  float root(std::int64_t i) const {
    return (i < n_positive_ ? positive_root_ : negative_root_) * weight_root(i);
  }
  /// s_i·√(cost·weight).
  float signed_root(std::int64_t i) const {
    return (i < n_positive_ ? positive_root_ : -negative_root_) * weight_root(i);
  }

 private:
  std::vector<std::int32_t> rows_;
  std::int64_t n_positive_ = 0;
  std::int64_t n_once_ = 0;  // number of fixed rows before soft positives are repeated
  Cost cost_;
  float positive_root_ = 1;  // √cost
  float negative_root_ = 1;
  double weight_ = 0;
  std::vector<float> pair_weights_;  // of the fixed rows; empty: all 1
  std::vector<float> weight_roots_;  // empty: all 1
  std::vector<float> row_roots_;     // empty: as weight_roots_
};

/// A weight and its feature.
struct Weight {
  std::int32_t feature;
  float value;
};

/// Vectors over the features of a set: dense features first, the bias last. Compact ones have only
/// the sparse features of the set's rows, in order of first use, and stay in cache; the others have
/// all features.
struct SetVectors {
  std::vector<float> w;
  std::vector<float> sums;             // Σ of all rows of X; `find_sums` updates it
  std::vector<std::uint16_t> codes;    // `FeatureTiers::code` of each feature; passes update it
  std::vector<std::int32_t> features;  // the sparse ones, if compact
  bool compact = true;
  std::int64_t n_dense = 0;      // entries for dense features
  std::int64_t first_dense = 0;  // number of the first dense feature

  /// Begins with zeros for the dense features.
  void begin(const Transformed& X, float bias_weight) {
    n_dense = X.dense.width;
    first_dense = X.n_sparse();
    w.assign(n_dense, 0.0F);
    w.push_back(bias_weight);
    sums.clear();
    codes.clear();
    features.clear();
    compact = true;
  }

  std::int64_t size() const { return std::ssize(w); }
  std::int64_t n_features() const { return size() - 1; }
  /// The feature of entry f; not defined for the last entry, the bias.
  std::int64_t feature(std::int64_t f) const {
    if (f < n_dense) return first_dense + f;
    return compact ? features[f - n_dense] : f - n_dense;
  }

  /// Makes room for features that have been added.
  void extend() {
    const float bias = w.back();
    w.back() = 0;
    w.resize(n_dense + features.size() + 1, 0.0F);
    w.back() = bias;
  }

  /// Turns compact vectors into ones over all features.
  void spread(const Transformed& X) {
    std::vector<float> all(X.n_features() + 1, 0.0F);
    std::copy_n(w.begin(), n_dense, all.begin());
    for (std::int64_t f = n_dense; f < n_features(); ++f) all[n_dense + feature(f)] = w[f];
    all.back() = w.back();
    w = std::move(all);
    sums.clear();
    codes.clear();
    features.clear();
    compact = false;
  }

  /// Calls change(f, x[j]) for each entry f except the bias, where j is its feature.
  template <typename T, typename Change>
  void each_feature(T* x, const Change& change) const {
    for (std::int64_t f = 0; f < n_dense; ++f) change(f, x[first_dense + f]);
    const auto later = [&](std::int64_t f, T& of_feature) { change(n_dense + f, of_feature); };
    if (compact) return each_entry(features, x, later);
    for (std::int64_t j = 0; j < n_features() - n_dense; ++j) later(j, x[j]);
  }

  /// Fills in the missing entries of `sums`.
  void find_sums(const Summary& summary) {
    constexpr std::int64_t kAhead = 16;
    if (!sums.empty()) sums.pop_back();
    const std::int64_t n = n_features();
    std::int64_t f = std::ssize(sums);
    sums.resize(n + 1);
    for (; f < n; ++f) {
      if (f + kAhead < n) __builtin_prefetch(summary.sums_float.data() + feature(f + kAhead));
      sums[f] = summary.sums_float[feature(f)];
    }
    sums[n] = static_cast<float>(summary.sums.back());
  }

  /// The non-zero weights, without the bias.
  std::vector<Weight> weights() const {
    std::vector<Weight> all;
    for (std::int64_t f = 0; f < n_features(); ++f) {
      if (w[f] != 0) all.push_back({static_cast<std::int32_t>(feature(f)), w[f]});
    }
    return all;
  }

  /// Assigns these weights, for the features that there are; the bias is kept.
  void assign(std::span<const Weight> weights, SetMemory& memory) {
    std::fill(w.begin(), w.end() - 1, 0.0F);
    std::int32_t* local = memory.local_of.data();
    if (compact) each_entry(features, local, [](std::int32_t f, std::int32_t& to) { to = f; });
    for (const auto [feature, value] : weights) {
      if (feature >= first_dense) {
        w[feature - first_dense] = value;
      } else if (!compact) {
        w[n_dense + feature] = value;
      } else if (local[feature] >= 0) {
        w[n_dense + local[feature]] = value;
      }
    }
    if (compact) each_entry(features, local, [](std::int32_t, std::int32_t& to) { to = -1; });
  }
};

/// Some of the rows outside a set, with a mean row of their own.
struct Group {
  std::int64_t size = 0;
  std::vector<float> sums;  // Σ x over these rows, for the entries of the set's vectors
};

/// A label's working set. Dense features are read from X in place. Sparse ones are copied, unless
/// that takes more than kCompactBytes: then they are read in place too, with vectors over all
/// features.
struct WorkingSet {
  static constexpr std::int64_t kCompactBytes = std::int64_t{32} << 20;

  SetRows rows;
  SetVectors vectors;
  Copies copies;  // of the rows, if the vectors are compact
  Group group;    // assigned by penalties that have one

  /// Begins with a label's positives and listed rows. The weights start from the solution for a
  /// label without positives.
  void begin(const Transformed& X, std::span<const std::int32_t> positives,
             const ListedRows& listed, const Cost& cost, SetMemory& memory) {
    vectors.begin(X, X.bias != 0 ? -1 / X.bias : 0.0F);
    append(X, rows.begin(positives, listed, cost), memory);
  }

  /// Empties the set, and frees the memory that only a large one needs.
  void end(SetMemory& memory) {
    copies.clear(memory);
    if (rows.was_large() || !vectors.compact) *this = WorkingSet{};
  }

  void append(const Transformed& X, std::span<const std::int32_t> added, SetMemory& memory) {
    rows.add(X, added);
    if (!vectors.compact) return;
    std::int64_t nnz = 0;
    std::int64_t longest = 0;
    for (const auto r : added) {
      nnz += X.x.nnz(r);
      longest = std::max(longest, X.x.nnz(r));
    }
    if (copies.bytes + nnz * copy_bytes(true) > kCompactBytes || longest > Copies::kLongest) {
      vectors.spread(X);
      copies.clear(memory);
      return;
    }
    // First the row is prefetched, and once it has arrived, the entries that map its features.
    constexpr std::int64_t kAhead = 8;
    constexpr std::int64_t kNext = 1;
    constexpr std::int64_t kNearby = 1 << 16;  // features whose map stays in the cache
    const bool ask = X.n_sparse() > kNearby;
    const auto row_at = [&](std::int64_t i) {
      if (i + kStartsAhead < std::ssize(added)) prefetch_start(X, added[i + kStartsAhead]);
      if (i + kAhead < std::ssize(added)) prefetch(row_of(X, added[i + kAhead]));
      if (ask && i + kNext < std::ssize(added)) {
        const Row next = row_of(X, added[i + kNext]);
        for (std::int64_t k = 0; k < next.size; ++k) {
          __builtin_prefetch(memory.local_of.data() + next.index[k], 1);
        }
      }
      return row_of(X, added[i]);
    };
    copies.append(std::ssize(added), nnz, X.n_sparse(), X.idf, vectors.features, memory, row_at);
    vectors.extend();
  }

  /// Keeps only some rows, given by their indices in the set, ascending, and adds others. The fixed
  /// rows must be among those kept. Features that no row has anymore lose their weights.
  void replace_rows(const Transformed& X, std::span<const std::int32_t> kept,
                    std::span<const std::int32_t> added, SetMemory& memory) {
    std::vector<std::int32_t> now;
    for (const auto i : kept) now.push_back(rows[i]);
    now.insert(now.end(), added.begin(), added.end());
    const std::vector<Weight> weights = vectors.weights();
    copies.clear(memory);
    rows.clear();
    vectors.begin(X, vectors.w.back());
    append(X, now, memory);
    vectors.assign(weights, memory);
  }

  std::int64_t size() const { return rows.size(); }
  Row row(const Transformed& X, std::int64_t i) const {
    return vectors.compact ? copies.rows[i] : row_of(X, rows[i]);
  }
  /// Factors still to be applied to sparse features; empty if there are none.
  std::span<const float> factor(const Transformed& X) const {
    return vectors.compact ? std::span<const float>{} : X.idf;
  }
  /// Total weight of the rows outside, which is the weight of their mean row. Returns 0 if they
  /// have only a tiny share of all weight: their mean, a difference of sums in single precision,
  /// would then be nothing but rounding. Without a mean row f_W is still at most f, and the rows
  /// come in as violators.
  double weight_outside(const Summary& summary) const {
    constexpr double kLeastShare = 1e-4;
    const double outside = summary.weight - rows.weight();
    return rows.weighted() && outside < kLeastShare * summary.weight ? 0.0 : outside;
  }
  /// Memory that the set takes: vectors have room for a quarter more than they hold.
  std::int64_t bytes() const {
    constexpr std::int64_t kPerRow =
        5 * (sizeof(Row) + 2 * sizeof(std::int32_t) + sizeof(float)) / 4;
    constexpr std::int64_t kPerFeature =
        5 * (2 * sizeof(float) + sizeof(std::int32_t) + sizeof(std::uint16_t)) / 4;
    return copies.bytes + kPerRow * size() + kPerFeature * vectors.size();
  }
};

}  // namespace dismec::solve
