// The weights of many labels → their scores for all rows, row by row in the order of X: for data
// with few features or long rows.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "huge_array.hpp"
#include "solve/dense.hpp"
#include "solve/lanes.hpp"
#include "solve/rows.hpp"
#include "solve/violators.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

/// The weights of all slots for one feature form a cache line of sixteen-bit numbers.
class RowScores {
 public:
  RowScores(const Transformed& X, const Summary& summary)
      : X_(X), summary_(summary), weights_(X.n_sparse() * kSlots), panel_(X.dense.width * kSlots) {}

  std::int64_t position(std::int64_t row) const { return row; }

  /// Sets the weights that rows are scored with, except the bias; returns a bound on the error of a
  /// score.
  double set_weights(int slot, const SetVectors& vectors) {
    clear(slot);
    double squared = 0;
    double lost = 0;
    double dense_squared = 0;
    for (std::int64_t f = 0; f < vectors.n_dense; ++f) {
      const float w = vectors.w[f];
      panel_[f * kSlots + slot] = w;
      dense_squared += static_cast<double>(w) * w;
    }
    for (std::int64_t f = vectors.n_dense; f < vectors.n_features(); ++f) {
      const float w = vectors.w[f];
      if (w == 0) continue;
      const auto j = static_cast<std::int32_t>(vectors.feature(f));
      const float idf = X_.idf.empty() ? 1.0F : X_.idf[j];
      const std::uint16_t rounded = narrow(w * idf);
      at(slot, j) = rounded;
      used_[slot].push_back(j);
      const double off = idf == 0 ? 0.0 : w - static_cast<double>(widen(rounded)) / idf;
      squared += static_cast<double>(w) * w;
      lost += off * off;
    }
    // Σ_j |w_j·x_j| ≤ ‖w‖·‖x‖ bounds the scores, and likewise the effect of rounding the weights.
    const double of_sparse = std::sqrt(lost) + kSumError * std::sqrt(squared);
    const double sum_error = static_cast<double>(vectors.n_dense + kLast) * kRounding;
    return summary_.longest_features * (of_sparse + sum_error * std::sqrt(dense_squared));
  }

  /// Bytes used by the lists of a slot.
  std::int64_t bytes(int slot) const { return bytes_of(used_[slot]); }

  void clear(int slot) {
    for (const auto j : used_[slot]) at(slot, j) = 0;
    used_[slot].clear();
  }

  /// Makes a slot idle.
  void close(int slot) {
    clear(slot);
    empty(used_[slot]);
    for (std::int64_t k = 0; k < X_.dense.width; ++k) panel_[k * kSlots + slot] = 0;
  }

  struct PassScratch {};  // threads need no state of their own
  static constexpr std::int64_t kRowsTogether = 4096;
  static PassScratch scratch() { return {}; }
  PassScratch& own_scratch() { return own_scratch_; }

  /// Lists the violators among some rows.
  template <typename Stop>
  void run(std::int64_t first_row, std::int64_t last_row, PassScratch&, const PerSlot& biases,
           ViolatorLists& violators, const Stop& stop) const {
    const std::array<Lanes, 2> bases = {load(biases.data()), load(biases.data() + kLanes)};
    if (X_.dense.width == 0) {
      for (std::int64_t i = first_row; i < last_row; ++i) {
        if (i % kRowsTogether == 0 && stop()) return;
        violators.look(i, with_sparse(i, bases));
      }
      return;
    }
    const auto look_at = [&]<int R>(std::int64_t first, std::integral_constant<int, R>) {
      std::array<std::array<Lanes, 2>, R> scores;
      panel_products<R>(X_.dense.row(first), panel_.data(), X_.dense.width, scores.data());
      for (int r = 0; r < R; ++r) {
        const Lanes scale = broadcast(X_.dense.scale[first + r]);
        const std::array<Lanes, 2> with_bias = {fused(scale, scores[r][0], bases[0]),
                                                fused(scale, scores[r][1], bases[1])};
        violators.look(first + r, with_sparse(first + r, with_bias));
      }
    };
    std::int64_t i = first_row;
    for (; i + kPanelRows <= last_row; i += kPanelRows) {
      if (i % kRowsTogether < kPanelRows && stop()) return;
      look_at(i, std::integral_constant<int, kPanelRows>());
    }
    for (; i < last_row; ++i) look_at(i, std::integral_constant<int, 1>());
  }

 private:
  // Error bound of single-precision sums, as a share of ‖w‖·‖x‖.
  static constexpr double kSumError = 1e-5;
  // The same per addition; a dense part has one per column, and a few more to become a score.
  static constexpr double kRounding = 1.0 / (1 << 24);
  static constexpr std::int64_t kLast = 8;

  /// The scores so far plus the contribution of a row's sparse features.
  [[gnu::always_inline]] std::array<Lanes, 2> with_sparse(
      std::int64_t i, const std::array<Lanes, 2>& so_far) const {
    // Far enough ahead for a feature's weights to arrive from memory.
    constexpr std::int64_t kAhead = 32;
    const Lanes none = broadcast(0.0F);
    const std::int32_t* index = X_.x.indices.data();
    const float* value = X_.x.values.data();
    const auto line = [&](std::int64_t k) {
      return weights_.data() + index[k] * std::int64_t{kSlots};
    };
    const auto last = static_cast<std::int64_t>(X_.x.indices.size()) - 1;
    LanePair first = {none, none};
    LanePair second = {none, none};
    const auto add_entry = [&](std::int64_t k, LanePair& sums) __attribute__((always_inline)) {
      const LanePair weights = widen(line(k));
      const Lanes v = broadcast(value[k]);
      sums.even = fused(v, weights.even, sums.even);
      sums.odd = fused(v, weights.odd, sums.odd);
    };
    std::int64_t k = X_.x.indptr[i];
    const std::int64_t end = X_.x.indptr[i + 1];
    for (; k + 2 <= end; k += 2) {
      __builtin_prefetch(line(std::min(k + kAhead, last)));
      __builtin_prefetch(line(std::min(k + kAhead + 1, last)));
      add_entry(k, first);
      add_entry(k + 1, second);
    }
    if (k < end) add_entry(k, first);
    const Lanes scale = broadcast(X_.scale[i]);
    return {fused(scale, add(first.even, second.even), so_far[0]),
            fused(scale, add(first.odd, second.odd), so_far[1])};
  }

  /// `widen` separates even positions from odd ones: the first half of the slots uses the even
  /// ones.
  std::uint16_t& at(int slot, std::int64_t feature) {
    return weights_[feature * kSlots + slot % kLanes * 2 + slot / kLanes];
  }

  const Transformed& X_;
  const Summary& summary_;
  HugeArray<std::uint16_t> weights_;  // n_sparse × kSlots
  HugeArray<float> panel_;            // dense features × kSlots
  std::array<std::vector<std::int32_t>, kSlots> used_;
  PassScratch own_scratch_;
};

}  // namespace dismec::solve
