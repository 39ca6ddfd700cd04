// What comes out for a label: its pruned weights, how exact they are, and what they took.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "solve/working_set.hpp"

namespace dismec::solve {

/// Weights before pruning, by sign and size: half an octave per bin from 2⁻²⁰ outwards on both
/// sides of the middle, which is for what is smaller; the outermost are open. Zeros are not
/// counted.
struct WeightCounts {
  static constexpr int kSide = 48;
  static constexpr int kBins = 2 * kSide + 1;
  std::array<std::int32_t, kBins> of = {};

  void add(float weight) {
    const auto bits = std::bit_cast<std::uint32_t>(std::abs(weight));
    const bool upper = (bits & 0x7FFFFFU) >= 0x3504F3U;  // the mantissa of √2
    const int half_octaves = 2 * (static_cast<int>(bits >> 23U) - (127 - 20)) + upper;
    const int place = std::clamp(half_octaves + 1, 0, kSide);
    ++of[kSide + (weight < 0 ? -place : place)];
  }
};

struct SolvedLabel {
  std::int64_t label = -1;
  std::int32_t place = 0;                   // of its C on the path
  std::vector<std::int32_t> features = {};  // ascending; n_features is the bias
  std::vector<float> weights = {};
  double objective = 0;  // before pruning
  // Upper bound of ‖∇f(w)‖ (L1: of the gap) over what the goal allows: at most 1 is solved.
  double gradient = 0;
  std::int32_t passes = 0;
  std::int32_t steps = 0;
  std::int64_t set_size = 0;
  double seconds = 0;
  WeightCounts counts = {};
};

/// Takes the weights of at least `delta` out of a set; `order` is memory for one label after
/// another.
inline void collect(const WorkingSet& set, std::int64_t n_features, float delta,
                    std::vector<Weight>& order, SolvedLabel& out) {
  out.set_size = set.size();
  order.clear();
  for (std::size_t f = 0; f < set.w.size(); ++f) {
    if (set.w[f] == 0) continue;
    out.counts.add(set.w[f]);
    if (std::abs(set.w[f]) >= delta) {
      const std::int64_t feature = f + 1 == set.w.size() ? n_features : set.feature(f);
      order.push_back({static_cast<std::int32_t>(feature), set.w[f]});
    }
  }
  std::sort(order.begin(), order.end(),
            [](const Weight& a, const Weight& b) { return a.feature < b.feature; });
  for (const Weight& weight : order) {
    out.features.push_back(weight.feature);
    out.weights.push_back(weight.value);
  }
}

}  // namespace dismec::solve
