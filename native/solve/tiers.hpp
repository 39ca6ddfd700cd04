// X with many features → the same numbers in two orders, for passes that only look where a label
// has weights: frequent features row by row, rare ones feature by feature.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "solve/huge_array.hpp"
#include "solve/rows.hpp"

namespace dismec::solve {

/// Values are x_ij with scale and idf applied, as multiples of `unit` in sixteen bits.
class Tiers {
 public:
  /// Two non-zeros of frequent features in a row.
  struct FrequentPair {
    std::array<std::uint16_t, 2> codes;  // which of the frequent features; 0 for none
    std::array<std::int16_t, 2> values;
  };
  /// A non-zero of a rare feature, in ascending order of rows.
  struct RareEntry {
    std::int32_t row;
    std::int16_t value;
  } __attribute__((packed));

  // With fewer features than this per non-zero of a row, a label's weights touch most rows.
  static constexpr std::int64_t kFeaturesPerNonZero = 256;
  // Where one row is so much longer than others, sixteen bits leave nothing of these.
  static constexpr double kUneven = 64;
  static constexpr std::int64_t kMostFrequent = 4095;

  /// Empty unless there are many features, and rows are short and of about one length.
  Tiers(const Transformed& X, const Summary& summary) : longest_(summary.longest_features) {
    const std::int64_t nnz = std::ssize(X.x.indices);
    if (X.n_features() * X.size() <= kFeaturesPerNonZero * nnz) return;
    if (summary.longest_features > kUneven * summary.mean_length) return;
    std::vector<std::int32_t> counts(X.n_features(), 0);
    float largest = 0;
    for (std::int64_t i = 0; i < X.size(); ++i) {
      const Row x = row_of(X, i);
      longest_row_ = std::max<std::int64_t>(longest_row_, x.size);
      for (std::int64_t k = 0; k < x.size; ++k) {
        ++counts[x.index[k]];
        largest = std::max(largest, std::abs(value_of(X, x, k)));
      }
    }
    unit_ = largest > 0 ? largest / std::numeric_limits<std::int16_t>::max() : 1.0F;
    choose(counts, X.size());
    fill(X, counts);
  }

  bool empty() const { return row_starts_.empty(); }
  float unit() const { return unit_; }
  /// By how much a score may be off because values are rounded, for weights of length 1.
  double error() const { return 0.5 * unit_ * std::sqrt(static_cast<double>(longest_row_)); }
  /// An upper bound for Σ_j |a_j·x_ij| where values are in units, for weights of length 1.
  double largest_score() const { return longest_ / unit_ + error() / unit_; }
  /// Which of the frequent features it is, counted from 1; 0 for a rare one.
  std::uint16_t code(std::int64_t feature) const { return codes_[feature]; }
  std::int64_t n_rows() const { return std::ssize(row_starts_) - 1; }
  std::int64_t n_codes() const { return n_frequent_ + 1; }
  /// The frequent features of all rows, two by two: those of row i begin at row_starts()[i].
  const FrequentPair* frequent() const { return frequent_.data(); }
  const std::int64_t* row_starts() const { return row_starts_.data(); }
  /// The rows that have a rare feature.
  std::span<const RareEntry> list(std::int64_t feature) const {
    return {rare_.data() + list_starts_[feature], rare_.data() + list_starts_[feature + 1]};
  }

 private:
  static float value_of(const Transformed& X, const Row& x, std::int64_t k) {
    return x.scale * x.value[k] * (X.idf.empty() ? 1.0F : X.idf[x.index[k]]);
  }

  /// A feature is frequent if more than one row in a thousand has it.
  void choose(const std::vector<std::int32_t>& counts, std::int64_t n_rows) {
    std::vector<std::int32_t> chosen;
    for (std::size_t j = 0; j < counts.size(); ++j) {
      if (counts[j] > n_rows / 1000) chosen.push_back(static_cast<std::int32_t>(j));
    }
    std::sort(chosen.begin(), chosen.end(), [&](std::int32_t a, std::int32_t b) {
      return counts[a] > counts[b] || (counts[a] == counts[b] && a < b);
    });
    if (std::ssize(chosen) > kMostFrequent) chosen.resize(kMostFrequent);
    n_frequent_ = std::ssize(chosen);
    codes_ = HugeArray<std::uint16_t>(std::ssize(counts));
    for (std::int64_t c = 0; c < n_frequent_; ++c) {
      codes_[chosen[c]] = static_cast<std::uint16_t>(c + 1);
    }
  }

  void fill(const Transformed& X, const std::vector<std::int32_t>& counts) {
    list_starts_.assign(counts.size() + 1, 0);
    for (std::size_t j = 0; j < counts.size(); ++j) {
      list_starts_[j + 1] = list_starts_[j] + (codes_[j] == 0 ? counts[j] : 0);
    }
    rare_ = HugeArray<RareEntry>(list_starts_.back());
    row_starts_.assign(1, 0);
    row_starts_.reserve(X.size() + 1);
    for (std::int64_t i = 0; i < X.size(); ++i) {
      std::int64_t n = 0;
      for (const auto j : X.x.columns(i)) n += codes_[j] != 0;
      row_starts_.push_back(row_starts_.back() + (n + 1) / 2);
    }
    frequent_ = HugeArray<FrequentPair>(row_starts_.back());
    std::vector<std::int64_t> next(list_starts_.begin(), list_starts_.end() - 1);
    for (std::int64_t i = 0; i < X.size(); ++i) {
      const Row x = row_of(X, i);
      std::int64_t n = 0;
      for (std::int64_t k = 0; k < x.size; ++k) {
        const auto j = x.index[k];
        const auto value = static_cast<std::int16_t>(std::lround(value_of(X, x, k) / unit_));
        if (codes_[j] == 0) {
          rare_[next[j]++] = {static_cast<std::int32_t>(i), value};
          continue;
        }
        FrequentPair& pair = frequent_[row_starts_[i] + n / 2];
        pair.codes[n % 2] = codes_[j];
        pair.values[n % 2] = value;
        ++n;
      }
    }
  }

  double longest_;
  float unit_ = 1;
  std::int64_t longest_row_ = 0;  // non-zeros
  std::int64_t n_frequent_ = 0;
  HugeArray<std::uint16_t> codes_{0};  // of each feature
  std::vector<std::int64_t> row_starts_;
  HugeArray<FrequentPair> frequent_{0};
  std::vector<std::int64_t> list_starts_;
  HugeArray<RareEntry> rare_{0};
};

}  // namespace dismec::solve
