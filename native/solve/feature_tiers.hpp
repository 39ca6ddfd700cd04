// X with many features → the same numbers in two orders, for passes that read only what a label has
// weights for: frequent features pattern by pattern, rare ones feature by feature, and those in
// between both row by row and feature by feature.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "huge_array.hpp"
#include "solve/lanes.hpp"
#include "solve/rows.hpp"

namespace dismec::solve {

/// Values are x_ij with scale and idf applied, as sixteen-bit multiples of `unit`.
///
/// Rows are sorted by their number of frequent features: loops over these then have the same trip
/// count for thousands of rows, and the CPU predicts their end.
///
/// If at least kSharing rows have the same frequent features with proportional values, these are a
/// pattern: its rows are next to each other, by ascending scale, and share the features of the last
/// one. There are no patterns unless most rows have one.
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
    std::int64_t first;       // index of the first pair
    // If the rows share patterns: the first position of each pattern, and the end.
    std::vector<std::int32_t> patterns;
  };

  // With fewer features than this per non-zero of a row, a label's weights touch most rows.
  static constexpr std::int64_t kFeaturesPerNonZero = 256;
  // If one row is this much longer than the others, sixteen bits leave nothing of the others.
  static constexpr double kUneven = 64;
  static constexpr std::int64_t kMostFrequent = 4095;
  static constexpr std::int64_t kMostCoded = 32767;
  static constexpr std::int64_t kSharing = 4;
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
  /// Error bound of a score due to rounded values of frequent and middle features, for weights of
  /// length 1.
  double error() const { return error_; }
  /// Upper bound of Σ_j |a_j·x_ij| with values in units, for weights of length 1.
  double largest_score() const { return (longest_ + error_) / unit_; }
  /// max Σ_j |x_ij| over the frequent and middle features of a row.
  double most() const { return most_; }
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
  /// The frequent features of a row or pattern, given by its number in its group.
  const CodedPair* frequent(const Group& group, std::int64_t number) const {
    return frequent_.data() + group.first + number * group.n_pairs;
  }
  /// Whether there are patterns.
  bool has_patterns() const { return has_patterns_; }
  /// The scale of the row at a position, relative to the last row of its pattern.
  float scale(std::int64_t position) const { return has_patterns_ ? scales_[position] : 1.0F; }
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

  /// A row, and what is known of its frequent features.
  struct Outline {
    std::uint64_t hash;  // of the features and of their values relative to the first
    std::int32_t row, n_features;
    float magnitude;  // of the first value
  };
  Outline outline(const Transformed& X, std::int64_t i) const {
    Outline found{0, static_cast<std::int32_t>(i), 0, 0};
    const Row x = row_of(X, i);
    for (std::int64_t k = 0; k < x.size; ++k) {
      if (!is_frequent(x.index[k])) continue;
      const float value = x.scale * x.value[k];
      if (found.n_features++ == 0) found.magnitude = std::abs(value);
      // The upper half of a float: equal values that have been rounded differently rarely differ.
      const std::uint64_t mixed =
          found.hash ^ (std::uint64_t{narrow(value / found.magnitude)} << 32 |
                        static_cast<std::uint32_t>(x.index[k]));
      found.hash = mixed * 0x9E3779B97F4A7C15U;
      found.hash ^= found.hash >> 29;
    }
    return found;
  }
  /// Whether two rows have the same frequent features with proportional values.
  bool alike(const Transformed& X, const Outline& a, const Outline& b) const {
    constexpr float kNear = 4e-6F;
    if (a.hash != b.hash || a.n_features != b.n_features) return false;
    const Row x = row_of(X, a.row);
    const Row y = row_of(X, b.row);
    std::int64_t l = 0;
    for (std::int64_t k = 0; k < x.size; ++k) {
      if (!is_frequent(x.index[k])) continue;
      while (!is_frequent(y.index[l])) ++l;
      if (x.index[k] != y.index[l]) return false;
      const float of_x = x.scale * x.value[k] / a.magnitude;
      const float of_y = y.scale * y.value[l] / b.magnitude;
      if (!(std::abs(of_x - of_y) <= kNear * std::abs(of_x))) return false;
      ++l;
    }
    return true;
  }

  /// Gives rows their positions: by number of pairs, then rows without a pattern before others,
  /// then by the first row of X with their pattern, then by scale.
  void arrange(const Transformed& X) {
    n_rows_ = X.size();
    std::vector<Outline> rows(n_rows_);
    for (std::int64_t i = 0; i < n_rows_; ++i) rows[i] = outline(X, i);
    std::sort(rows.begin(), rows.end(), [](const Outline& a, const Outline& b) {
      return std::pair(a.hash, a.row) < std::pair(b.hash, b.row);
    });
    struct Pattern {
      std::int64_t n_pairs;
      bool shared;
      std::int32_t first;       // row of X
      std::int64_t begin, end;  // of its rows in `rows`
      auto key() const { return std::tuple(n_pairs, shared, first); }
    };
    std::vector<Pattern> patterns;
    std::int64_t n_sharing = 0;
    for (std::int64_t begin = 0, end; begin < n_rows_; begin = end) {
      end = begin + 1;
      while (end < n_rows_ && alike(X, rows[begin], rows[end])) ++end;
      const bool shared = end - begin >= kSharing;
      if (!shared) end = begin + 1;
      n_sharing += shared ? end - begin : 0;
      patterns.push_back({(rows[begin].n_features + 1) / 2, shared, rows[begin].row, begin, end});
    }
    has_patterns_ = 2 * n_sharing > n_rows_;
    if (!has_patterns_) {
      patterns.clear();
      for (std::int64_t k = 0; k < n_rows_; ++k) {
        patterns.push_back({(rows[k].n_features + 1) / 2, false, rows[k].row, k, k + 1});
      }
    }
    std::sort(patterns.begin(), patterns.end(),
              [](const Pattern& a, const Pattern& b) { return a.key() < b.key(); });
    rows_ = HugeArray<std::int32_t>(n_rows_);
    positions_ = HugeArray<std::int32_t>(n_rows_);
    scales_ = HugeArray<float>(has_patterns_ ? n_rows_ : 0);
    std::int64_t position = 0;
    std::int64_t n_all = 0;
    for (const Pattern& pattern : patterns) {
      if (groups_.empty() || groups_.back().n_pairs != pattern.n_pairs ||
          groups_.back().patterns.empty() == pattern.shared) {
        groups_.push_back({position, position, pattern.n_pairs, n_all, {}});
      }
      Group& group = groups_.back();
      group.end += pattern.end - pattern.begin;
      n_all += pattern.n_pairs;
      if (pattern.shared) {
        if (!group.patterns.empty()) group.patterns.pop_back();
        group.patterns.push_back(static_cast<std::int32_t>(position));
        group.patterns.push_back(static_cast<std::int32_t>(group.end));
        std::sort(rows.begin() + pattern.begin, rows.begin() + pattern.end,
                  [](const Outline& a, const Outline& b) {
                    return std::pair(a.magnitude, a.row) < std::pair(b.magnitude, b.row);
                  });
      }
      const float largest = rows[pattern.end - 1].magnitude;
      for (std::int64_t k = pattern.begin; k < pattern.end; ++k, ++position) {
        const std::int32_t row = rows[k].row;
        rows_[position] = row;
        positions_[row] = static_cast<std::int32_t>(position);
        if (has_patterns_) scales_[position] = largest > 0 ? rows[k].magnitude / largest : 1.0F;
      }
    }
    frequent_ = HugeArray<CodedPair>(n_all);
  }

  void fill(const Transformed& X, const std::vector<std::int32_t>& counts) {
    list_starts_.assign(counts.size() + 1, 0);
    for (std::size_t j = 0; j < counts.size(); ++j) {
      list_starts_[j + 1] = list_starts_[j] + (is_frequent(j) ? 0 : counts[j]);
    }
    rare_ = HugeArray<RareEntry>(list_starts_.back());
    std::vector<std::int64_t> next_entry(list_starts_.begin(), list_starts_.end() - 1);
    middle_starts_ = HugeArray<std::int64_t>(n_rows_ + 1);
    for (std::int64_t position = 0; position < n_rows_; ++position) {
      std::int64_t n = 0;
      for (const auto j : X.x.columns(rows_[position])) n += codes_[j] > n_frequent_;
      middle_starts_[position + 1] = middle_starts_[position] + (n + 1) / 2;
    }
    middle_ = HugeArray<CodedPair>(middle_starts_[n_rows_]);
    entries_below_.assign((n_rows_ + kTogether - 1) / kTogether + 1, 0);
    double worst = 0;
    for (const Group& group : groups_) {
      CodedPair* frequent = frequent_.data() + group.first;
      std::size_t pattern = 0;
      for (std::int64_t position = group.begin; position < group.end;) {
        const std::int64_t next = group.patterns.empty() ? position + 1 : group.patterns[++pattern];
        fill_frequent(X, row_of(X, rows_[next - 1]), frequent);
        for (; position < next; ++position) {
          worst = std::max(worst, fill_row(X, position, frequent, next_entry));
        }
        frequent += group.n_pairs;
      }
    }
    std::partial_sum(entries_below_.begin(), entries_below_.end(), entries_below_.begin());
    error_ = std::sqrt(worst);
  }

  void fill_frequent(const Transformed& X, const Row& x, CodedPair* frequent) const {
    std::int64_t n = 0;
    for (std::int64_t k = 0; k < x.size; ++k) {
      if (is_frequent(x.index[k])) add(frequent, n, x.index[k], rounded(value_of(X, x, k)));
    }
  }

  /// Fills in the middle and rare features of the row at a position, whose pattern has the given
  /// frequent ones; returns the sum of squared errors of frequent and middle features.
  /// `next_entry` holds the ends of the lists.
  double fill_row(const Transformed& X, std::int64_t position, const CodedPair* frequent,
                  std::vector<std::int64_t>& next_entry) {
    const Row x = row_of(X, rows_[position]);
    CodedPair* middle = middle_.data() + middle_starts_[position];
    std::int64_t n_frequent = 0;
    std::int64_t n_middle = 0;
    double squared = 0;
    double sum = 0;
    const auto count = [&](double exact, double stored) {
      squared += (exact - stored) * (exact - stored);
      sum += std::max(std::abs(exact), std::abs(stored));
    };
    for (std::int64_t k = 0; k < x.size; ++k) {
      const auto j = x.index[k];
      const float exact = value_of(X, x, k);
      if (is_frequent(j)) {
        const std::int16_t value = frequent[n_frequent / 2].values[n_frequent % 2];
        count(exact, static_cast<double>(value) * unit_ * scale(position));
        ++n_frequent;
        continue;
      }
      const std::int16_t value = rounded(exact);
      rare_[next_entry[j]++] = {static_cast<std::int32_t>(position), value};
      if (codes_[j] == 0) continue;
      count(exact, static_cast<double>(value) * unit_);
      add(middle, n_middle, j, value);
    }
    most_ = std::max(most_, sum);
    entries_below_[position / kTogether + 1] += x.size - n_frequent;
    return squared;
  }

  std::int16_t rounded(float value) const {
    return static_cast<std::int16_t>(value / unit_ + std::copysign(0.5F, value));
  }
  void add(CodedPair* pairs, std::int64_t& n, std::int32_t j, std::int16_t value) const {
    pairs[n / 2].codes[n % 2] = codes_[j];
    pairs[n / 2].values[n % 2] = value;
    ++n;
  }

  double longest_;
  double most_ = 0;
  float unit_ = 1;
  double error_ = 0;
  std::int64_t n_rows_ = 0;
  std::int64_t n_frequent_ = 0;
  std::int64_t n_coded_ = 0;              // frequent and middle features
  HugeArray<std::uint16_t> codes_{0};     // by feature
  HugeArray<std::int32_t> rows_{0};       // by position
  HugeArray<std::int32_t> positions_{0};  // by row
  HugeArray<float> scales_{0};            // by position, if there are patterns
  bool has_patterns_ = false;
  std::vector<Group> groups_;
  HugeArray<CodedPair> frequent_{0};
  HugeArray<std::int64_t> middle_starts_{0};
  HugeArray<CodedPair> middle_{0};
  std::vector<std::int64_t> list_starts_;
  HugeArray<RareEntry> rare_{0};
  std::vector<std::int64_t> entries_below_;  // in `rare_`, at every multiple of kTogether
};

}  // namespace dismec::solve
