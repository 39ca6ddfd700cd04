// A working set and a vector → scores of its rows, and sums over them.
//
// Sets of more than kWhole rows may be cut into pieces that threads share. The result depends on
// how a set is cut, never on the threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "solve/rows.hpp"
#include "solve/work_sharing.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

inline constexpr std::int64_t kWhole = std::int64_t{1} << 14;

inline bool is_large(const WorkingSet& set) { return set.size() > kWhole; }

/// Rows read in place are scattered over memory: prefetch this many rows ahead.
inline constexpr std::int64_t kRowsAhead = 8;

/// The vector to multiply the stored rows of a set by for their products with d: d itself, or
/// `scaled`, d times the factors still to be applied.
inline const float* along_rows(const WorkingSet& set, const Transformed& X,
                               const std::vector<float>& d, std::vector<float>& scaled) {
  const std::span<const float> factor = set.factor(X);
  if (factor.empty()) return d.data();
  scaled = d;
  float* sparse = scaled.data() + X.dense.width;
  for (std::size_t j = 0; j < factor.size(); ++j) sparse[j] *= factor[j];
  return scaled.data();
}

/// Calls take(i, along·x_i + shift) for some rows of a set, and returns the sum of these scores
/// weighted by row. `ask(i)` is called before row i is read.
template <typename Take, typename Ask>
double sum_of_scores(const WorkingSet& set, const Transformed& X, const float* along, float shift,
                     std::int64_t begin, std::int64_t end, const Take& take, const Ask& ask) {
  double sum = 0;
  const float* sparse = along + X.dense.width;
  const auto add_sparse = [&](std::int64_t i, float score) __attribute__((always_inline)) {
    ask(i);
    score += dot(set.row(X, i), sparse) + shift;
    const double root = set.rows.row_root(i);
    sum += root * root * score;
    take(i, score);
  };
  if (X.dense.width == 0) {
    for (std::int64_t i = begin; i < end; ++i) add_sparse(i, 0.0F);
  } else {
    const auto row_at = [&](std::int64_t i) { return set.rows[i]; };
    each_dense_score(X.dense, begin, end, row_at, along, add_sparse);
  }
  return sum;
}

/// Calls take(i, d·x_i) for each row of a set, and returns the sum of these scores weighted by row.
/// `scaled` is scratch memory.
template <typename Take>
double each_score(const WorkingSet& set, const Transformed& X, const std::vector<float>& d,
                  std::vector<float>& scaled, const Take& take) {
  const float* along = along_rows(set, X, d, scaled);
  return sum_of_scores(set, X, along, X.bias * d.back(), 0, set.size(), take, [](std::int64_t) {});
}

/// The same for a large set: sums the scores of each piece first, then the pieces.
template <typename Take>
double each_score_of_large(const WorkingSet& set, const Transformed& X, const std::vector<float>& d,
                           std::vector<float>& scaled, WorkSharing& sharing, const Take& take) {
  constexpr std::int64_t kRows = 4096;
  const float* along = along_rows(set, X, d, scaled);
  const float shift = X.bias * d.back();
  const Pieces pieces(set.size(), (set.size() + kRows - 1) / kRows);
  std::vector<double> sums(pieces.n());
  const auto ask = [&](std::int64_t i) {
    if (!set.vectors.compact && i + kRowsAhead < set.size()) prefetch(set.row(X, i + kRowsAhead));
  };
  sharing.each(pieces.n(), [&](std::int64_t piece) {
    sums[piece] =
        sum_of_scores(set, X, along, shift, pieces.begin(piece), pieces.end(piece), take, ask);
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// `inner_products` of vectors over the features of a set.
template <auto pairs, std::size_t V>
std::array<double, pairs.size()> inner_products_of_set(const WorkingSet& set,
                                                       const std::array<const float*, V>& vectors,
                                                       WorkSharing& sharing) {
  constexpr std::int64_t kPieces = 16;
  if (!is_large(set)) return inner_products<pairs>(vectors, set.vectors.size());
  const Pieces pieces(set.vectors.size(), kPieces);
  std::vector<std::array<double, pairs.size()>> parts(pieces.n());
  sharing.each(pieces.n(), [&](std::int64_t piece) {
    std::array<const float*, V> begins = vectors;
    for (const float*& begin : begins) begin += pieces.begin(piece);
    parts[piece] = inner_products<pairs>(begins, pieces.size(piece));
  });
  std::array<double, pairs.size()> products = {};
  for (const auto& part : parts) {
    for (std::size_t p = 0; p < pairs.size(); ++p) products[p] += part[p];
  }
  return products;
}

/// out += Σ factors[i]·x_i over some rows i of a set, in this order, for a range of dense
/// columns.
inline void add_dense(const WorkingSet& set, const Transformed& X,
                      std::span<const std::int32_t> members, const float* factors,
                      std::int64_t first, std::int64_t last, float* out) {
  add_dense_rows(
      X.dense, 0, std::ssize(members), [&](std::int64_t k) { return set.rows[members[k]]; },
      [&](std::int64_t k) { return factors[members[k]]; }, first, last, out);
}

/// Adds multiples of rows of a set to a vector.
class RowSums {
 public:
  /// out += Σ factors[i]·x_i over some rows i of the set.
  void add(const WorkingSet& set, const Transformed& X, std::span<const std::int32_t> members,
           const float* factors, std::vector<float>& out, WorkSharing& sharing) {
    if (set.vectors.compact) {
      add_in_pieces(set, X, members, factors, out, sharing);
    } else {
      add_in_ranges(set, X, members, factors, out, sharing);
      add_dense_in_ranges(set, X, members, factors, out, sharing);
    }
  }

 private:
  // At most this many pieces: each needs a vector that has to be cleared and added up.
  static constexpr std::int64_t kMostPieces = 8;

  /// Each piece but the first has its own vector, and the vectors are added in order.
  void add_in_pieces(const WorkingSet& set, const Transformed& X,
                     std::span<const std::int32_t> members, const float* factors,
                     std::vector<float>& out, WorkSharing& sharing) {
    const auto& rows = set.copies.rows;
    const std::int64_t nnz =
        std::accumulate(members.begin(), members.end(), X.dense.width * std::ssize(members),
                        [&](std::int64_t sum, std::int32_t i) { return sum + rows[i].size; });
    const Pieces pieces(std::ssize(members),
                        std::clamp<std::int64_t>(nnz / std::ssize(out), 1, kMostPieces));
    const auto add_piece = [&](std::int64_t piece, float* sums) {
      const auto some = members.subspan(pieces.begin(piece), pieces.size(piece));
      for (const auto i : some) add_scaled(factors[i], rows[i], sums + X.dense.width);
      if (X.dense.width > 0) add_dense(set, X, some, factors, 0, X.dense.width, sums);
    };
    if (!sharing.has_helpers()) {  // one vector is enough
      if (pieces.n() > 1) make_parts(1, out.size());
      add_piece(0, out.data());
      for (std::int64_t piece = 1; piece < pieces.n(); ++piece) {
        add_piece(piece, parts_[0].data());
        take_up(1, 0, std::ssize(out), out);
      }
      return;
    }
    make_parts(pieces.n() - 1, out.size());
    sharing.each(pieces.n(), [&](std::int64_t piece) {
      add_piece(piece, piece == 0 ? out.data() : parts_[piece - 1].data());
    });
    const Pieces ranges(std::ssize(out), kMostPieces);
    sharing.each(ranges.n(), [&](std::int64_t range) {
      take_up(pieces.n() - 1, ranges.begin(range), ranges.end(range), out);
    });
  }

  void make_parts(std::int64_t n, std::size_t size) {
    while (std::ssize(parts_) < n) parts_.emplace_back(size, 0.0F);
  }

  /// Adds the first `n` parts to a range of a vector, and zeroes them.
  void take_up(std::int64_t n, std::int64_t begin, std::int64_t end, std::vector<float>& out) {
    for (std::int64_t part = 0; part < n; ++part) {
      float* sums = parts_[part].data();
      for (std::int64_t j = begin; j < end; ++j) {
        out[j] += sums[j];
        sums[j] = 0;
      }
    }
  }

  /// Vectors over all features are too long for that. Instead threads take ranges of features, over
  /// all rows: every sum is then taken in row order, however the ranges are chosen.
  static void add_in_ranges(const WorkingSet& set, const Transformed& X,
                            std::span<const std::int32_t> members, const float* factors,
                            std::vector<float>& out, WorkSharing& sharing) {
    const std::vector<std::int32_t> bounds =
        bounds_of_ranges(set, X, members, sharing.n_helpers() + 1);
    const std::int64_t n_ranges = std::ssize(bounds) - 1;
    const std::int64_t n = std::ssize(members);
    sharing.each(n_ranges, [&](std::int64_t range) {
      for (std::int64_t k = 0; k < n; ++k) {
        if (k + kRowsAhead < n) prefetch(set.row(X, members[k + kRowsAhead]));
        Row x = set.row(X, members[k]);
        if (n_ranges > 1) x = within(x, bounds[range], bounds[range + 1]);
        add_scaled(factors[members[k]], x, out.data() + X.dense.width);
      }
    });
  }

  static void add_dense_in_ranges(const WorkingSet& set, const Transformed& X,
                                  std::span<const std::int32_t> members, const float* factors,
                                  std::vector<float>& out, WorkSharing& sharing) {
    if (X.dense.width == 0) return;
    const Pieces ranges(X.dense.width, sharing.n_helpers() + 1);
    sharing.each(ranges.n(), [&](std::int64_t range) {
      add_dense(set, X, members, factors, ranges.begin(range), ranges.end(range), out.data());
    });
  }

  /// The entries of a row, whose features ascend, within a range of features.
  static Row within(Row x, std::int32_t first, std::int32_t last) {
    const std::int32_t* begin = std::lower_bound(x.index, x.index + x.size, first);
    const std::int32_t* end = std::lower_bound(begin, x.index + x.size, last);
    x.value += begin - x.index;
    x.index = begin;
    x.size = static_cast<std::int32_t>(end - begin);
    return x;
  }

  /// Ranges of features with about equally many entries.
  static std::vector<std::int32_t> bounds_of_ranges(const WorkingSet& set, const Transformed& X,
                                                    std::span<const std::int32_t> members,
                                                    std::int64_t n_ranges) {
    constexpr std::int64_t kSampled = 256;  // rows
    std::vector<std::int32_t> features;
    const std::int64_t step = std::max<std::int64_t>(std::ssize(members) / kSampled, 1);
    if (n_ranges > 1) {
      for (std::int64_t k = 0; k < std::ssize(members); k += step) {
        const Row x = set.row(X, members[k]);
        features.insert(features.end(), x.index, x.index + x.size);
      }
      std::sort(features.begin(), features.end());
    }
    std::vector<std::int32_t> bounds{0};
    for (std::int64_t range = 1; range < n_ranges && !features.empty(); ++range) {
      bounds.push_back(features[std::ssize(features) * range / n_ranges]);
    }
    bounds.push_back(static_cast<std::int32_t>(X.n_sparse()));
    return bounds;
  }

  std::vector<std::vector<float>> parts_;  // zeros between uses
};

}  // namespace dismec::solve
