// Scores of all rows for sixteen labels at once, and the negatives that violate their margin.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "lanes.hpp"
#include "rows.hpp"
#include "working_set.hpp"

namespace dismec {

/// A negative row outside the working set with w·x > −1.
struct Violator {
  std::int32_t row;
  float score;
};

class FullPass {
 public:
  explicit FullPass(const Rows& X)
      : X_(X), weights_((X.n_features + 1) * kLanes, 0.0F), in_set_(X.size(), 0) {}

  /// Gives a lane to a label whose working set is `rows`.
  void open(int lane, std::span<const std::int32_t> rows) {
    threshold_[lane] = -1.0F;
    join(lane, rows);
  }

  void join(int lane, std::span<const std::int32_t> rows) {
    for (const auto r : rows) in_set_[r] |= bit(lane);
  }

  void set_weights(int lane, const WorkingSet& set) {
    if (set.compact) {
      for (std::size_t f = 0; f < set.features.size(); ++f) {
        const auto j = set.features[f];
        at(lane, j) = set.w[f] * (X_.idf.empty() ? 1.0F : X_.idf[j]);
      }
    } else {
      for (std::int64_t j = 0; j < X_.n_features; ++j) {
        at(lane, j) = set.w[j] * (X_.idf.empty() ? 1.0F : X_.idf[j]);
      }
    }
    at(lane, X_.n_features) = set.w.back();
  }

  void close(int lane, const WorkingSet& set) {
    if (set.compact) {
      for (const auto j : set.features) at(lane, j) = 0.0F;
    } else {
      for (std::int64_t j = 0; j < X_.n_features; ++j) at(lane, j) = 0.0F;
    }
    at(lane, X_.n_features) = 0.0F;
    for (const auto r : set.rows) in_set_[r] &= static_cast<std::uint16_t>(~bit(lane));
    threshold_[lane] = std::numeric_limits<float>::infinity();
    violators_[lane].clear();
  }

  std::vector<Violator>& violators(int lane) { return violators_[lane]; }

  template <typename Stop>
  void run(const Stop& stop) {
    // Far enough for the weights of a feature to arrive from the last level of cache.
    constexpr std::int64_t kAhead = 16;
    for (auto& list : violators_) list.clear();
    const Lanes threshold = load(threshold_);
    const float* weights = weights_.data();
    const Lanes shift =
        fused(broadcast(X_.bias), load(weights + X_.n_features * kLanes), broadcast(0.0F));
    const std::int32_t* index = X_.indices.data();
    const float* value = X_.values.data();
    const auto line = [&](std::int64_t k) { return weights + index[k] * std::int64_t{kLanes}; };
    const auto last = static_cast<std::int64_t>(X_.indices.size()) - 1;
    for (std::int64_t i = 0; i < X_.size(); ++i) {
      if (i % 4096 == 0 && stop()) return;
      Lanes even = broadcast(0.0F);
      Lanes odd = broadcast(0.0F);
      std::int64_t k = X_.indptr[i];
      const std::int64_t end = X_.indptr[i + 1];
      for (; k + 2 <= end; k += 2) {
        __builtin_prefetch(line(std::min(k + kAhead, last)));
        __builtin_prefetch(line(std::min(k + kAhead + 1, last)));
        even = fused(broadcast(value[k]), load(line(k)), even);
        odd = fused(broadcast(value[k + 1]), load(line(k + 1)), odd);
      }
      if (k < end) even = fused(broadcast(value[k]), load(line(k)), even);
      const Lanes score = fused(broadcast(X_.scale[i]), add(even, odd), shift);
      std::uint32_t hits = greater(score, threshold) & ~std::uint32_t{in_set_[i]};
      if (hits == 0) continue;
      float scores[kLanes];
      store(scores, score);
      for (; hits != 0; hits &= hits - 1) {
        const int lane = __builtin_ctz(hits);
        violators_[lane].push_back({static_cast<std::int32_t>(i), scores[lane]});
      }
    }
  }

 private:
  static std::uint16_t bit(int lane) { return static_cast<std::uint16_t>(1U << lane); }
  float& at(int lane, std::int64_t feature) { return weights_[feature * kLanes + lane]; }

  static constexpr float kIdle = std::numeric_limits<float>::infinity();

  const Rows& X_;
  std::vector<float> weights_;         // (n_features + 1) × kLanes
  std::vector<std::uint16_t> in_set_;  // a bit a lane: the row is in that label's working set
  float threshold_[kLanes] = {kIdle, kIdle, kIdle, kIdle, kIdle, kIdle, kIdle, kIdle,
                              kIdle, kIdle, kIdle, kIdle, kIdle, kIdle, kIdle, kIdle};
  std::vector<Violator> violators_[kLanes];
};

}  // namespace dismec
