// The weights of many labels → their scores of all rows, row by row in the order of X: for data
// with few features or long rows.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "solve/huge_array.hpp"
#include "solve/lanes.hpp"
#include "solve/rows.hpp"
#include "solve/violators.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

/// The slots' weights for a feature are one cache line of sixteen-bit numbers.
class RowScores {
 public:
  RowScores(const Transformed& X, const Summary& summary)
      : X_(X), summary_(summary), weights_(X.n_features() * kSlots) {}

  std::int64_t place(std::int64_t row) const { return row; }

  /// What rows are scored with, bias apart; returns by how much a score may be off.
  double set_weights(int slot, const WorkingSet& set) {
    clear(slot);
    double squared = 0;
    double lost = 0;
    for (std::size_t f = 0; f + 1 < set.w.size(); ++f) {
      const float w = set.w[f];
      if (w == 0) continue;
      const auto j = static_cast<std::int32_t>(set.feature(f));
      const float idf = X_.idf.empty() ? 1.0F : X_.idf[j];
      const std::uint16_t rounded = narrow(w * idf);
      at(slot, j) = rounded;
      used_[slot].push_back(j);
      const double off = idf == 0 ? 0.0 : w - static_cast<double>(widen(rounded)) / idf;
      squared += static_cast<double>(w) * w;
      lost += off * off;
    }
    // Σ_j |w_j·x_j| ≤ ‖w‖·‖x‖, for the weights as for what rounding changes of them.
    return summary_.longest_features * (std::sqrt(lost) + kSumError * std::sqrt(squared));
  }

  /// What a slot's lists take of memory.
  std::int64_t bytes(int slot) const { return bytes_of(used_[slot]); }

  void clear(int slot) {
    for (const auto j : used_[slot]) at(slot, j) = 0;
    used_[slot].clear();
  }

  /// Makes a slot idle.
  void close(int slot) {
    clear(slot);
    empty(used_[slot]);
  }

  struct Desk {};  // a thread needs nothing else
  static constexpr std::int64_t kRowsTogether = 4096;
  static Desk desk() { return {}; }
  Desk& own_desk() { return own_desk_; }

  /// Lists the violators among some rows.
  template <typename Stop>
  void run(std::int64_t first_row, std::int64_t last_row, Desk&, const PerSlot& biases,
           ViolatorLists& violators, const Stop& stop) const {
    // Far enough for a feature's weights to arrive from memory.
    constexpr std::int64_t kAhead = 32;
    const Lanes none = broadcast(0.0F);
    const Lanes lower_biases = load(biases.data());
    const Lanes upper_biases = load(biases.data() + kLanes);
    const std::int32_t* index = X_.x.indices.data();
    const float* value = X_.x.values.data();
    const auto line = [&](std::int64_t k) {
      return weights_.data() + index[k] * std::int64_t{kSlots};
    };
    const auto last = static_cast<std::int64_t>(X_.x.indices.size()) - 1;
    for (std::int64_t i = first_row; i < last_row; ++i) {
      if (i % kRowsTogether == 0 && stop()) return;
      LanePair first = {none, none};
      LanePair second = {none, none};
      const auto add_entry = [&](std::int64_t k, LanePair& sums) {
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
      violators.look(i, {fused(scale, add(first.even, second.even), lower_biases),
                         fused(scale, add(first.odd, second.odd), upper_biases)});
    }
  }

 private:
  // By how much sums of single precision may be off, as a share of ‖w‖·‖x‖.
  static constexpr double kSumError = 1e-5;

  /// `widen` takes even places apart from odd ones: the first half of the slots has the even ones.
  std::uint16_t& at(int slot, std::int64_t feature) {
    return weights_[feature * kSlots + slot % kLanes * 2 + slot / kLanes];
  }

  const Transformed& X_;
  const Summary& summary_;
  HugeArray<std::uint16_t> weights_;  // n_features × kSlots
  std::array<std::vector<std::int32_t>, kSlots> used_;
  Desk own_desk_;
};

}  // namespace dismec::solve
