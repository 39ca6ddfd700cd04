// A label's positives, and the negatives added after each pass → the rows that its sub-problem is
// solved on.
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
/// and is not one of its positives.
struct ListedRows {
  std::span<const std::int32_t> rows;
  std::span<const float> weights;
};

/// A label's working set: its positives, the negatives with a pair weight for this label, then the
/// negatives added so far. Vectors over features hold dense features first and the bias last.
///
/// Dense features are read from X in place. Sparse ones are copied, renumbered in order of first
/// use, so that vectors are only as long as the set needs and stay in cache. A set of more than
/// kCompactBytes is read from X in place, with vectors over all features.
struct WorkingSet {
  std::vector<std::int32_t> rows;
  std::int64_t n_positive = 0;
  std::vector<float> pair_weights;  // of the fixed rows; empty: all 1
  std::int64_t n_outside = 0;       // rows outside the set, all negative
  double weight_inside = 0;         // Σ of the row weights in the set
  Cost cost;
  float positive_root = 1;  // √cost
  float negative_root = 1;
  std::vector<float> weight_roots;  // √(row weight · pair weight); empty: all 1
  std::vector<float> row_roots;     // √(row weight); empty: as weight_roots
  std::vector<float> w;
  std::vector<float> sums;           // Σ of all rows of X, per entry of w; `find_sums` updates it
  std::vector<std::uint16_t> codes;  // `Tiers::code` of each feature; passes update it
  bool compact = true;
  Copies copies;                 // if the set is compact
  std::int64_t n_dense = 0;      // entries of vectors for dense features
  std::int64_t first_dense = 0;  // number of the first dense feature

  std::int64_t size() const { return static_cast<std::int64_t>(rows.size()); }
  bool has_pair_weights() const { return !pair_weights.empty(); }
  /// Number of first rows that never leave the set. Those with a pair weight must stay, as the
  /// stand-in for the rows outside only knows row weights.
  std::int64_t n_fixed() const {
    return has_pair_weights() ? std::ssize(pair_weights) : n_positive;
  }
  /// Memory that the set takes: vectors have room for a quarter more than they hold.
  std::int64_t bytes() const {
    constexpr std::int64_t kPerRow =
        5 * (sizeof(Row) + 2 * sizeof(std::int32_t) + sizeof(float)) / 4;
    constexpr std::int64_t kPerFeature =
        5 * (2 * sizeof(float) + sizeof(std::int32_t) + sizeof(std::uint16_t)) / 4;
    return copies.bytes + kPerRow * size() + kPerFeature * std::ssize(w);
  }
  std::int64_t n_features() const { return std::ssize(w) - 1; }
  bool weighted() const { return !weight_roots.empty(); }
  float weight_root(std::int64_t i) const { return weighted() ? weight_roots[i] : 1.0F; }
  /// √(row weight), without the pair weight, as used in sums over all rows.
  float row_root(std::int64_t i) const { return row_roots.empty() ? weight_root(i) : row_roots[i]; }
  /// √(cost·weight) of a row: a slack multiplied by this has cost 1.
  float root(std::int64_t i) const {
    return (i < n_positive ? positive_root : negative_root) * weight_root(i);
  }
  /// s_i·√(cost·weight).
  float signed_root(std::int64_t i) const {
    return (i < n_positive ? positive_root : -negative_root) * weight_root(i);
  }
  Row row(const Transformed& X, std::int64_t i) const {
    return compact ? copies.rows[i] : row_of(X, rows[i]);
  }
  /// The feature of entry f of a vector; not defined for the last entry, the bias.
  std::int64_t feature(std::size_t f) const {
    const auto place = static_cast<std::int64_t>(f) - n_dense;
    if (place < 0) return first_dense + static_cast<std::int64_t>(f);
    return compact ? copies.features[place] : place;
  }
  /// Factors still to be applied to sparse features; empty if there are none.
  std::span<const float> factor(const Transformed& X) const {
    return compact ? std::span<const float>{} : X.idf;
  }
};

/// Calls change(f, x[j]) for each entry f of the vectors except the bias, where j is its feature.
template <typename T, typename Change>
void each_feature(const WorkingSet& set, T* x, const Change& change) {
  for (std::int64_t f = 0; f < set.n_dense; ++f) change(f, x[set.first_dense + f]);
  const auto later = [&](std::int64_t f, T& of_feature) { change(set.n_dense + f, of_feature); };
  if (set.compact) return each_entry(set.copies.features, x, later);
  for (std::int64_t j = 0; j < set.n_features() - set.n_dense; ++j) later(j, x[j]);
}

/// Total weight of the rows outside a set, which is the weight of their stand-in. Returns 0 if they
/// have only a tiny share of all weight: their mean, a difference of sums in single precision,
/// would then be nothing but rounding. Without a stand-in f_W is still at most f, and the rows come
/// in as violators.
inline double weight_outside(const WorkingSet& set, const Summary& summary) {
  constexpr double kLeastShare = 1e-4;
  if (set.n_outside == 0) return 0.0;
  const double outside = summary.weight - set.weight_inside;
  return set.weighted() && outside < kLeastShare * summary.weight ? 0.0 : outside;
}

/// Fills in the missing entries of set.sums.
inline void find_sums(WorkingSet& set, const Summary& summary) {
  constexpr std::int64_t kAhead = 16;
  if (!set.sums.empty()) set.sums.pop_back();
  const std::int64_t n = set.n_features();
  std::int64_t f = std::ssize(set.sums);
  set.sums.resize(n + 1);
  for (; f < n; ++f) {
    if (f + kAhead < n) __builtin_prefetch(summary.sums_float.data() + set.feature(f + kAhead));
    set.sums[f] = summary.sums_float[set.feature(f)];
  }
  set.sums[n] = static_cast<float>(summary.sums.back());
}

/// The vector to multiply the stored rows of a set by for their products with d: d itself, or
/// `scaled`, d times the factors still to be applied.
template <typename Set>
const float* along_rows(const Set& set, const Transformed& X, const std::vector<float>& d,
                        std::vector<float>& scaled) {
  const std::span<const float> factor = set.factor(X);
  if (factor.empty()) return d.data();
  scaled = d;
  float* sparse = scaled.data() + X.dense.width;
  for (std::size_t j = 0; j < factor.size(); ++j) sparse[j] *= factor[j];
  return scaled.data();
}

/// A number times the row weight, if the set has weights.
template <typename Set>
double weighed(const Set& set, std::int64_t i, float x) {
  if constexpr (requires { set.weight_roots; }) {
    const double root = set.row_root(i);
    return root * root * x;
  } else {
    return x;
  }
}

/// Calls take(i, along·x_i + shift) for some rows of a set, and returns the sum of these scores
/// weighted by row. `ask(i)` is called before row i is read.
template <typename Set, typename Take, typename Ask>
double sum_of_scores(const Set& set, const Transformed& X, const float* along, float shift,
                     std::int64_t begin, std::int64_t end, const Take& take, const Ask& ask) {
  double sum = 0;
  const float* sparse = along + X.dense.width;
  const auto add_to_dense = [&](std::int64_t i, float score) {
    ask(i);
    score += dot(set.row(X, i), sparse) + shift;
    sum += weighed(set, i, score);
    take(i, score);
  };
  if (X.dense.width == 0) {
    for (std::int64_t i = begin; i < end; ++i) {
      ask(i);
      const float score = dot(set.row(X, i), sparse) + shift;
      sum += weighed(set, i, score);
      take(i, score);
    }
  } else if constexpr (requires { set.rows[0]; }) {
    const auto row_at = [&](std::int64_t i) { return set.rows[i]; };
    each_dense_score(X.dense, begin, end, row_at, along, add_to_dense);
  }
  return sum;
}

/// Calls take(i, d·x_i) for each row of a set, and returns the sum of these scores weighted by row.
/// `scaled` is scratch memory.
template <typename Set, typename Take>
double each_score(const Set& set, const Transformed& X, const std::vector<float>& d,
                  std::vector<float>& scaled, const Take& take) {
  const float* along = along_rows(set, X, d, scaled);
  const float shift = X.bias * d.back();
  return sum_of_scores(set, X, along, shift, 0, set.size(), take, [](std::int64_t) {});
}

inline constexpr std::int64_t kCompactBytes = std::int64_t{32} << 20;

/// Turns a compact set into one that is read from X in place.
inline void spread(WorkingSet& set, const Transformed& X, SetMemory& memory) {
  std::vector<float> w(X.n_features() + 1, 0.0F);
  std::copy_n(set.w.begin(), set.n_dense, w.begin());
  for (std::int64_t f = set.n_dense; f < set.n_features(); ++f) {
    w[set.n_dense + set.feature(f)] = set.w[f];
  }
  w.back() = set.w.back();
  set.w = std::move(w);
  set.sums.clear();
  set.codes.clear();
  set.copies.clear(memory);
  set.compact = false;
}

/// Appends the weights of rows that are being added to the set.
inline void append_weights(WorkingSet& set, const Transformed& X,
                           std::span<const std::int32_t> added) {
  for (const auto r : added) {
    const auto place = std::ssize(set.weight_roots);
    const double weight = X.weight(r);
    const double pair = place < set.n_fixed() ? set.pair_weights[place] : 1.0;
    set.weight_inside += weight;
    set.row_roots.push_back(static_cast<float>(std::sqrt(weight)));
    set.weight_roots.push_back(static_cast<float>(std::sqrt(weight * pair)));
  }
}

/// Adds rows to the set.
inline void append(WorkingSet& set, const Transformed& X, std::span<const std::int32_t> added,
                   SetMemory& memory) {
  set.rows.insert(set.rows.end(), added.begin(), added.end());
  set.n_outside = X.size() - set.size();
  if (set.has_pair_weights()) {
    append_weights(set, X, added);
  } else if (X.weights.empty()) {
    set.weight_inside = static_cast<double>(set.size());
  } else {
    for (const auto r : added) {
      set.weight_inside += X.weights[r];
      set.weight_roots.push_back(std::sqrt(X.weights[r]));
    }
  }
  if (!set.compact) return;
  std::int64_t nnz = 0;
  std::int64_t longest = 0;
  for (const auto r : added) {
    nnz += X.x.nnz(r);
    longest = std::max(longest, X.x.nnz(r));
  }
  if (set.copies.bytes + nnz * copy_bytes(true) > kCompactBytes || longest > Copies::kLongest) {
    spread(set, X, memory);
    return;
  }
  // First the row is prefetched, and once it has arrived, the entries that map its features.
  constexpr std::int64_t kAhead = 8;
  constexpr std::int64_t kNext = 1;
  constexpr std::int64_t kNearby = 1 << 16;  // features whose map stays in the cache
  const bool ask = X.n_sparse() > kNearby;
  set.copies.append(std::ssize(added), nnz, X.n_sparse(), X.idf, memory, [&](std::int64_t i) {
    if (i + kAhead < std::ssize(added)) prefetch(row_of(X, added[i + kAhead]));
    if (ask && i + kNext < std::ssize(added)) {
      const Row next = row_of(X, added[i + kNext]);
      for (std::int64_t k = 0; k < next.size; ++k) {
        __builtin_prefetch(memory.local_of.data() + next.index[k], 1);
      }
    }
    return row_of(X, added[i]);
  });
  const float bias = set.w.back();
  set.w.back() = 0;
  set.w.resize(set.n_dense + set.copies.features.size() + 1, 0.0F);
  set.w.back() = bias;
}

/// A weight and its feature.
struct Weight {
  std::int32_t feature;
  float value;
};

/// The non-zero weights, without the bias.
inline std::vector<Weight> weights_of(const WorkingSet& set) {
  std::vector<Weight> weights;
  for (std::int64_t f = 0; f < set.n_features(); ++f) {
    if (set.w[f] == 0) continue;
    weights.push_back({static_cast<std::int32_t>(set.feature(f)), set.w[f]});
  }
  return weights;
}

/// Assigns these weights, for the features that the set has; the bias is kept.
inline void assign_weights(WorkingSet& set, std::span<const Weight> weights, SetMemory& memory) {
  std::fill(set.w.begin(), set.w.end() - 1, 0.0F);
  // A set always has all dense features.
  float* sparse = set.w.data() + set.n_dense;
  const auto assign_dense = [&](const Weight& weight) {
    const bool is_dense = set.n_dense > 0 && weight.feature >= set.first_dense;
    if (is_dense) set.w[weight.feature - set.first_dense] = weight.value;
    return is_dense;
  };
  if (!set.compact) {
    for (const Weight& weight : weights) {
      if (!assign_dense(weight)) sparse[weight.feature] = weight.value;
    }
    return;
  }
  std::int32_t* local = memory.local_of.data();
  const std::span<const std::int32_t> features = set.copies.features;
  each_entry(features, local, [](std::int32_t f, std::int32_t& place) { place = f; });
  for (const Weight& weight : weights) {
    if (assign_dense(weight)) continue;
    if (local[weight.feature] >= 0) sparse[local[weight.feature]] = weight.value;
  }
  each_entry(features, local, [](std::int32_t, std::int32_t& place) { place = -1; });
}

/// Keeps only some rows, given by their places in the set, ascending, and adds others. The fixed
/// rows must be among those kept. Features that no row has anymore lose their weights.
inline void replace_rows(WorkingSet& set, const Transformed& X,
                         std::span<const std::int32_t> places, std::span<const std::int32_t> added,
                         SetMemory& memory) {
  std::vector<std::int32_t> rows;
  for (const auto i : places) rows.push_back(set.rows[i]);
  rows.insert(rows.end(), added.begin(), added.end());
  const std::vector<Weight> weights = weights_of(set);
  const float bias = set.w.back();
  set.copies.clear(memory);
  set.rows.clear();
  set.weight_roots.clear();
  set.row_roots.clear();
  set.weight_inside = 0;
  set.w.assign(set.n_dense, 0.0F);
  set.w.push_back(bias);
  set.sums.clear();
  set.codes.clear();
  set.compact = true;
  append(set, X, rows, memory);
  assign_weights(set, weights, memory);
}

/// Empties a set, and frees the memory that only a large one needs.
inline void end(WorkingSet& set, SetMemory& memory) {
  constexpr std::size_t kUsual = 2048;
  set.copies.clear(memory);
  if (set.rows.capacity() > kUsual || !set.compact) set = WorkingSet{};
}

/// Returns the fixed rows of a label's set, and sets their pair weights: the positives, whose
/// weight is 1 unless listed, then the other listed rows.
inline std::vector<std::int32_t> fixed_rows(std::span<const std::int32_t> positives,
                                            const ListedRows& listed,
                                            std::vector<float>& pair_weights) {
  std::vector<std::int32_t> rows(positives.begin(), positives.end());
  std::vector<bool> is_positive(listed.rows.size());
  pair_weights.assign(positives.size(), 1.0F);
  for (std::size_t i = 0; i < positives.size(); ++i) {
    const auto found = std::ranges::lower_bound(listed.rows, positives[i]);
    if (found == listed.rows.end() || *found != positives[i]) continue;
    const auto place = found - listed.rows.begin();
    is_positive[place] = true;
    pair_weights[i] = listed.weights[place];
  }
  for (std::size_t k = 0; k < listed.rows.size(); ++k) {
    if (is_positive[k]) continue;
    rows.push_back(listed.rows[k]);
    pair_weights.push_back(listed.weights[k]);
  }
  return rows;
}

/// Begins the set of a label with its positives and listed rows. The weights start from the
/// solution for a label without positives.
inline void begin(WorkingSet& set, const Transformed& X, std::span<const std::int32_t> positives,
                  const ListedRows& listed, const Cost& cost, SetMemory& memory) {
  set.rows.clear();
  set.pair_weights.clear();
  set.weight_roots.clear();
  set.row_roots.clear();
  set.weight_inside = 0;
  set.n_positive = std::ssize(positives);
  set.cost = cost;
  set.positive_root = static_cast<float>(std::sqrt(cost.positive));
  set.negative_root = static_cast<float>(std::sqrt(cost.negative));
  set.n_dense = X.dense.width;
  set.first_dense = X.n_sparse();
  set.w.assign(set.n_dense, 0.0F);
  set.w.push_back(X.bias != 0 ? -1 / X.bias : 0.0F);
  set.sums.clear();
  set.codes.clear();
  set.compact = true;
  if (listed.rows.empty()) {
    append(set, X, positives, memory);
  } else {
    append(set, X, fixed_rows(positives, listed, set.pair_weights), memory);
  }
}

}  // namespace dismec::solve
