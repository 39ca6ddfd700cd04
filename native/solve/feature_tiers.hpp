// X with many features → the same numbers in two orders, for passes that read only what a label has
// weights for: frequent features row by row, rare ones feature by feature, and those in between
// both ways.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "huge_array.hpp"
#include "solve/rows.hpp"

namespace dismec::solve {

/// Values are x_ij with scale and idf applied, as sixteen-bit multiples of `unit`. Rows are sorted
/// by their number of frequent features: loops over these then have the same trip count for
/// thousands of rows, and the CPU predicts their end.
class FeatureTiers {
 public:
  /// Two non-zeros of frequent or middle features of a row.
  struct CodedPair {
    std::array<std::uint16_t, 2> codes;  // which features; 0 for none
    std::array<std::int16_t, 2> values;
  };
  /// A non-zero of a rare feature. Entries are sorted by position.
  struct RareEntry {
    std::int32_t position;  // of the row
    std::int16_t value;
  } __attribute__((packed));
  /// Consecutive rows with equally many pairs.
  struct Group {
    std::int64_t begin, end;  // positions
    std::int64_t n_pairs;     // per row
    std::int64_t first;       // index of the first row's first pair
  };

  // With fewer features than this per non-zero of a row, a label's weights touch most rows.
  static constexpr std::int64_t kFeaturesPerNonZero = 256;
  // If one row is this much longer than the others, sixteen bits leave nothing of the others.
  static constexpr double kUneven = 64;
  static constexpr std::int64_t kMostFrequent = 4095;
  static constexpr std::int64_t kMostCoded = 32767;
  // Rows that a pass sums together.
  static constexpr std::int64_t kTogether = 1024;

  /// Stays empty unless there are many features, all of them sparse, and rows are short and of
  /// similar length.
  FeatureTiers(const Transformed& X, const Summary& summary) : longest_(summary.longest_features) {
    const std::int64_t nnz = std::ssize(X.x.indices);
    if (X.dense.width > 0 || X.n_features() * X.size() <= kFeaturesPerNonZero * nnz) return;
    if (summary.longest_features > kUneven * summary.mean_length) return;
    std::vector<std::int32_t> counts(X.n_features(), 0);
    float largest = 0;
    for (std::int64_t i = 0; i < X.size(); ++i) {
      const Row x = row_of(X, i);
      for (std::int64_t k = 0; k < x.size; ++k) {
        ++counts[x.index[k]];
        largest = std::max(largest, std::abs(value_of(X, x, k)));
      }
    }
    unit_ = largest > 0 ? largest / std::numeric_limits<std::int16_t>::max() : 1.0F;
    choose(counts, X.size());
    arrange(X);
    fill(X, counts);
  }

  bool empty() const { return groups_.empty(); }
  float unit() const { return unit_; }
  /// Error bound of a score due to rounded values, for weights of length 1.
  double error() const { return error_; }
  /// Upper bound of Σ_j |a_j·x_ij| with values in units, for weights of length 1.
  double largest_score() const { return (longest_ + error_) / unit_; }
  /// Frequent features are numbered from 1, middle ones after them; rare ones are all 0.
  std::uint16_t code(std::int64_t feature) const { return codes_[feature]; }
  std::int64_t n_frequent() const { return n_frequent_; }
  std::int64_t n_middle() const { return n_coded_ - n_frequent_; }
  std::int64_t n_rows() const { return n_rows_; }
  std::int64_t n_codes() const { return n_coded_ + 1; }
  /// The row at a position, and the position of a row.
  std::int32_t row(std::int64_t position) const { return rows_[position]; }
  std::int32_t position(std::int64_t row) const { return positions_[row]; }
  /// All rows, in ascending order of positions.
  std::span<const Group> groups() const { return groups_; }
  /// The frequent features of the row at a position of a group.
  const CodedPair* frequent(const Group& group, std::int64_t position) const {
    return frequent_.data() + group.first + (position - group.begin) * group.n_pairs;
  }
  /// The middle features of the row at a position.
  std::span<const CodedPair> middle(std::int64_t position) const {
    return {middle_.data() + middle_starts_[position],
            middle_.data() + middle_starts_[position + 1]};
  }
  /// The rows that have a rare or middle feature.
  std::span<const RareEntry> list(std::int64_t feature) const {
    return {rare_.data() + list_starts_[feature], rare_.data() + list_starts_[feature + 1]};
  }
  /// Number of entries of all lists for positions below this one, a multiple of kTogether or the
  /// end.
  std::int64_t entries_below(std::int64_t position) const {
    return entries_below_[(position + kTogether - 1) / kTogether];
  }
  /// Prefetches a feature's code, or its list.
  void prefetch_code(std::int64_t feature) const { __builtin_prefetch(codes_.data() + feature); }
  void prefetch_list(std::int64_t feature) const {
    __builtin_prefetch(list_starts_.data() + feature);
  }

 private:
  static float value_of(const Transformed& X, const Row& x, std::int64_t k) {
    return x.scale * x.value[k] * (X.idf.empty() ? 1.0F : X.idf[x.index[k]]);
  }

  /// A feature is frequent if more than one row in a thousand has it, and middle if more than one
  /// in ten thousand does.
  void choose(const std::vector<std::int32_t>& counts, std::int64_t n_rows) {
    std::vector<std::int32_t> chosen;
    for (std::size_t j = 0; j < counts.size(); ++j) {
      if (counts[j] > n_rows / 10000) chosen.push_back(static_cast<std::int32_t>(j));
    }
    std::sort(chosen.begin(), chosen.end(), [&](std::int32_t a, std::int32_t b) {
      return counts[a] > counts[b] || (counts[a] == counts[b] && a < b);
    });
    if (std::ssize(chosen) > kMostCoded) chosen.resize(kMostCoded);
    n_coded_ = std::ssize(chosen);
    while (n_frequent_ < std::min(n_coded_, kMostFrequent) &&
           counts[chosen[n_frequent_]] > n_rows / 1000) {
      ++n_frequent_;
    }
    codes_ = HugeArray<std::uint16_t>(std::ssize(counts));
    for (std::int64_t c = 0; c < n_coded_; ++c) {
      codes_[chosen[c]] = static_cast<std::uint16_t>(c + 1);
    }
  }
  bool is_frequent(std::int64_t feature) const {
    return codes_[feature] != 0 && codes_[feature] <= n_frequent_;
  }

  /// Gives rows their positions: by number of pairs, ties in the order of X.
  void arrange(const Transformed& X) {
    n_rows_ = X.size();
    std::vector<std::int32_t> pairs(n_rows_);
    std::vector<std::int64_t> sizes;
    for (std::int64_t i = 0; i < n_rows_; ++i) {
      std::int64_t n = 0;
      for (const auto j : X.x.columns(i)) n += is_frequent(j);
      const std::int64_t n_pairs = (n + 1) / 2;
      pairs[i] = static_cast<std::int32_t>(n_pairs);
      if (n_pairs >= std::ssize(sizes)) sizes.resize(n_pairs + 1, 0);
      ++sizes[n_pairs];
    }
    std::vector<std::int64_t> next;
    std::int64_t position = 0;
    std::int64_t n_all = 0;
    for (std::int64_t n_pairs = 0; n_pairs < std::ssize(sizes); ++n_pairs) {
      next.push_back(position);
      if (sizes[n_pairs] == 0) continue;
      groups_.push_back({position, position + sizes[n_pairs], n_pairs, n_all});
      position += sizes[n_pairs];
      n_all += sizes[n_pairs] * n_pairs;
    }
    rows_ = HugeArray<std::int32_t>(n_rows_);
    positions_ = HugeArray<std::int32_t>(n_rows_);
    for (std::int64_t i = 0; i < n_rows_; ++i) {
      positions_[i] = static_cast<std::int32_t>(next[pairs[i]]++);
      rows_[positions_[i]] = static_cast<std::int32_t>(i);
    }
    frequent_ = HugeArray<CodedPair>(n_all);
  }

  void fill(const Transformed& X, const std::vector<std::int32_t>& counts) {
    list_starts_.assign(counts.size() + 1, 0);
    for (std::size_t j = 0; j < counts.size(); ++j) {
      list_starts_[j + 1] = list_starts_[j] + (is_frequent(j) ? 0 : counts[j]);
    }
    rare_ = HugeArray<RareEntry>(list_starts_.back());
    std::vector<std::int64_t> next(list_starts_.begin(), list_starts_.end() - 1);
    middle_starts_ = HugeArray<std::int64_t>(n_rows_ + 1);
    for (std::int64_t position = 0; position < n_rows_; ++position) {
      std::int64_t n = 0;
      for (const auto j : X.x.columns(rows_[position])) n += codes_[j] > n_frequent_;
      middle_starts_[position + 1] = middle_starts_[position] + (n + 1) / 2;
    }
    middle_ = HugeArray<CodedPair>(middle_starts_[n_rows_]);
    double worst = 0;
    entries_below_.assign((n_rows_ + kTogether - 1) / kTogether + 1, 0);
    for (const Group& group : groups_) {
      for (std::int64_t position = group.begin; position < group.end; ++position) {
        const Row x = row_of(X, rows_[position]);
        CodedPair* frequent =
            frequent_.data() + group.first + (position - group.begin) * group.n_pairs;
        CodedPair* middle = middle_.data() + middle_starts_[position];
        std::int64_t n_frequent = 0;
        std::int64_t n_middle = 0;
        const auto add = [&](CodedPair* pairs, std::int64_t& n, std::int32_t j,
                             std::int16_t value) {
          pairs[n / 2].codes[n % 2] = codes_[j];
          pairs[n / 2].values[n % 2] = value;
          ++n;
        };
        double squared = 0;
        for (std::int64_t k = 0; k < x.size; ++k) {
          const auto j = x.index[k];
          const float exact = value_of(X, x, k);
          const auto value = static_cast<std::int16_t>(exact / unit_ + std::copysign(0.5F, exact));
          const double off = exact - static_cast<double>(value) * unit_;
          squared += off * off;
          if (is_frequent(j)) {
            add(frequent, n_frequent, j, value);
            continue;
          }
          rare_[next[j]++] = {static_cast<std::int32_t>(position), value};
          if (codes_[j] != 0) add(middle, n_middle, j, value);
        }
        worst = std::max(worst, squared);
        entries_below_[position / kTogether + 1] += x.size - n_frequent;
      }
    }
    std::partial_sum(entries_below_.begin(), entries_below_.end(), entries_below_.begin());
    error_ = std::sqrt(worst);
  }

  double longest_;
  float unit_ = 1;
  double error_ = 0;
  std::int64_t n_rows_ = 0;
  std::int64_t n_frequent_ = 0;
  std::int64_t n_coded_ = 0;              // frequent and middle features
  HugeArray<std::uint16_t> codes_{0};     // by feature
  HugeArray<std::int32_t> rows_{0};       // by position
  HugeArray<std::int32_t> positions_{0};  // by row
  std::vector<Group> groups_;
  HugeArray<CodedPair> frequent_{0};
  HugeArray<std::int64_t> middle_starts_{0};
  HugeArray<CodedPair> middle_{0};
  std::vector<std::int64_t> list_starts_;
  HugeArray<RareEntry> rare_{0};
  std::vector<std::int64_t> entries_below_;  // in `rare_`, at every multiple of kTogether
};

}  // namespace dismec::solve
