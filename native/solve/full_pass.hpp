// The weights of many labels → for each, the negatives outside its working set that may violate the
// margin, by one pass over all rows.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "solve/huge_array.hpp"
#include "solve/lanes.hpp"
#include "solve/rows.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

/// Labels scored together. Their weights for a feature are one cache line of sixteen-bit numbers.
inline constexpr int kSlots = 2 * kLanes;

/// A negative row outside the working set whose score is, or may be, above −1.
struct Violator {
  std::int32_t row;
  float score;
};

/// Whether `a` is the worse of two violators; equals by row number, so that the order is unique.
inline bool worse(const Violator& a, const Violator& b) {
  return a.score > b.score || (a.score == b.score && a.row < b.row);
}

/// Keeps the worst `n`, in no order.
inline void keep_worst(std::vector<Violator>& violators, std::int64_t n) {
  if (std::ssize(violators) <= n) return;
  std::nth_element(violators.begin(), violators.begin() + n, violators.end(), worse);
  violators.resize(n);
}

/// One pass over X for all slots. Scores are a little off, because weights are rounded: rows are
/// reported from that much below the margin, and `rescore` gives exact scores.
class FullPass {
 public:
  FullPass(const Transformed& X, const Summary& summary)
      : X_(X),
        longest_(static_cast<float>(summary.longest)),
        weights_(X.n_features() * kSlots),
        in_set_(X.size(), 0),
        exact_(X.n_features(), 0.0F) {
    threshold_.fill(kIdle);
  }

  /// Says that rows are in the working set of a slot's label, and not to be reported.
  void join(int slot, std::span<const std::int32_t> rows) {
    for (const auto r : rows) in_set_[r] |= bit(slot);
  }

  /// What the next pass scores rows with; it reports the worst `most` violators at least, and all
  /// of them unless it says that there are `more`.
  void set_weights(int slot, const WorkingSet& set, std::int64_t most) {
    for (std::size_t f = 0; f + 1 < set.w.size(); ++f) {
      const auto j = set.feature(f);
      at(slot, j) = narrow(set.w[f] * idf(j));
    }
    bias_[slot] = X_.bias * set.w.back();
    // Σ_j |w_j·x_j| ≤ ‖w‖·‖x‖
    const float error =
        kNarrowError * longest_ * static_cast<float>(std::sqrt(inner(set.w, set.w)));
    threshold_[slot] = -1.0F - error;
    most_[slot] = most;
    more_[slot] = false;
  }

  void close(int slot, const WorkingSet& set) {
    for (std::size_t f = 0; f + 1 < set.w.size(); ++f) at(slot, set.feature(f)) = 0;
    for (const auto r : set.rows) in_set_[r] &= ~bit(slot);
    threshold_[slot] = kIdle;
    violators_[slot] = {};
  }

  std::vector<Violator>& violators(int slot) { return violators_[slot]; }
  bool more(int slot) const { return more_[slot]; }

  /// Gives a slot's violators their exact scores, and keeps those that are above −1.
  void rescore(int slot, const WorkingSet& set) {
    for (std::size_t f = 0; f + 1 < set.w.size(); ++f) {
      const auto j = set.feature(f);
      exact_[j] = set.w[f] * idf(j);
    }
    auto& list = violators_[slot];
    for (Violator& v : list) v.score = dot(row_of(X_, v.row), exact_.data()) + bias_[slot];
    std::erase_if(list, [](const Violator& v) { return v.score <= -1.0F; });
    for (std::size_t f = 0; f + 1 < set.w.size(); ++f) exact_[set.feature(f)] = 0.0F;
  }

  template <typename Stop>
  void run(const Stop& stop) {
    // Far enough for a feature's weights to arrive from memory.
    constexpr std::int64_t kAhead = 32;
    for (auto& list : violators_) list.clear();
    const Lanes none = broadcast(0.0F);
    LanePair thresholds = split(threshold_);
    const LanePair biases = split(bias_);
    const std::int32_t* index = X_.x.indices.data();
    const float* value = X_.x.values.data();
    const auto line = [&](std::int64_t k) {
      return weights_.data() + index[k] * std::int64_t{kSlots};
    };
    const auto last = static_cast<std::int64_t>(X_.x.indices.size()) - 1;
    for (std::int64_t i = 0; i < X_.size(); ++i) {
      if (i % 4096 == 0 && stop()) return;
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
      const Lanes even = fused(scale, add(first.even, second.even), biases.even);
      const Lanes odd = fused(scale, add(first.odd, second.odd), biases.odd);
      std::uint32_t hits = greater(even, thresholds.even) | greater(odd, thresholds.odd) << kLanes;
      hits &= ~in_set_[i];
      if (hits == 0) continue;
      float scores[kSlots];
      store(scores, even);
      store(scores + kLanes, odd);
      bool full = false;
      for (; hits != 0; hits &= hits - 1) {
        const int place = __builtin_ctz(hits);
        const int slot = place < kLanes ? 2 * place : 2 * (place - kLanes) + 1;
        auto& list = violators_[slot];
        list.push_back({static_cast<std::int32_t>(i), scores[place]});
        if (std::ssize(list) < 2 * most_[slot]) continue;
        // Only what is worse than the worst so far can still matter.
        keep_worst(list, most_[slot]);
        threshold_[slot] = std::max_element(list.begin(), list.end(), worse)->score;
        more_[slot] = full = true;
      }
      if (full) thresholds = split(threshold_);
    }
  }

 private:
  static constexpr float kIdle = std::numeric_limits<float>::infinity();
  using PerSlot = std::array<float, kSlots>;

  /// Even slots in the lower half, as the comparison of two registers leaves them.
  static std::uint32_t bit(int slot) { return std::uint32_t{1} << (slot / 2 + slot % 2 * kLanes); }
  std::uint16_t& at(int slot, std::int64_t feature) { return weights_[feature * kSlots + slot]; }
  float idf(std::int64_t feature) const { return X_.idf.empty() ? 1.0F : X_.idf[feature]; }

  /// Slots 0, 2, … and slots 1, 3, …, as `widen` takes them apart.
  static LanePair split(const PerSlot& values) {
    float even[kLanes];
    float odd[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      even[lane] = values[2 * lane];
      odd[lane] = values[2 * lane + 1];
    }
    return {load(even), load(odd)};
  }

  const Transformed& X_;
  float longest_;
  HugeArray<std::uint16_t> weights_;   // n_features × kSlots
  std::vector<std::uint32_t> in_set_;  // one bit per slot: the row is in that label's working set
  std::vector<float> exact_;           // one label's weights, zero between uses
  PerSlot bias_ = {};
  PerSlot threshold_;  // kIdle where no label is at work
  std::array<std::int64_t, kSlots> most_ = {};
  std::array<bool, kSlots> more_ = {};
  std::array<std::vector<Violator>, kSlots> violators_;
};

}  // namespace dismec::solve
