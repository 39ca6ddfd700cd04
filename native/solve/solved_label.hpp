// The result for a label: its pruned weights, how exact they are, and what they cost.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "solve/working_set.hpp"

namespace dismec::solve {

/// Histogram of weights before pruning, by sign and size: bins of half an octave from 2⁻²⁰ outwards
/// on both sides of the middle bin, which counts everything smaller; the outermost bins are open.
/// Zeros are not counted.
struct WeightCounts {
  static constexpr int kSide = 48;
  static constexpr int kBins = 2 * kSide + 1;
  std::array<std::int32_t, kBins> of = {};

  void add(float weight) {
    const auto bits = std::bit_cast<std::uint32_t>(std::abs(weight));
    const bool upper = (bits & 0x7FFFFFU) >= 0x3504F3U;  // the mantissa of √2
    const int half_octaves = 2 * (static_cast<int>(bits >> 23U) - (127 - 20)) + upper;
    const int bin = std::clamp(half_octaves + 1, 0, kSide);
    const int negative = -static_cast<int>(weight < 0);  // all ones, or 0
    ++of[kSide + ((bin ^ negative) - negative)];
  }
};

struct SolvedLabel {
  std::int64_t label = -1;
  std::vector<std::int32_t> features = {};  // ascending; n_features is the bias
  std::vector<float> weights = {};
  double objective = 0;  // before pruning
  // Upper bound of ‖∇f(w)‖ (L1: of the gap) divided by what the goal allows: solved if at most 1.
  double stop_ratio = 0;
  std::int32_t passes = 0;
  std::int32_t steps = 0;
  std::int64_t set_size = 0;
  double seconds = 0;
  WeightCounts counts = {};
};

/// Buffers for sorting the weights of one label after another.
struct SortedWeights {
  std::vector<Weight> all;
  std::vector<Weight> other;

  /// Radix sort of `all` by feature (below `n`): no comparisons that a CPU would mispredict.
  void sort(std::int64_t n) {
    constexpr int kBits = 11;
    constexpr std::int32_t kDigit = (1 << kBits) - 1;
    other.resize(all.size());
    for (int shift = 0; n >> shift > 0; shift += kBits) {
      std::array<std::int32_t, kDigit + 2> starts = {};
      for (const Weight& weight : all) ++starts[(weight.feature >> shift & kDigit) + 1];
      for (std::int32_t digit = 0; digit < kDigit; ++digit) starts[digit + 1] += starts[digit];
      for (const Weight& weight : all) other[starts[weight.feature >> shift & kDigit]++] = weight;
      all.swap(other);
    }
  }
};

/// Weights of smaller magnitude are dropped; those of sparse features from `first` on have a limit
/// of their own, and those of dense features are all kept.
struct Pruning {
  float delta = 0.01F;
  std::int64_t first = std::numeric_limits<std::int32_t>::max();
  float delta_from_first = 0.01F;
};

/// Collects the weights that survive pruning; `sorted` is scratch memory.
inline void collect(const SetVectors& vectors, std::int64_t n_features, const Pruning& pruning,
                    SortedWeights& sorted, SolvedLabel& out) {
  sorted.all.resize(vectors.size());
  std::size_t n = 0;
  for (std::int64_t f = 0; f < vectors.size(); ++f) {
    const float w = vectors.w[f];
    if (w == 0) continue;
    out.counts.add(w);
    const std::int64_t feature = f == vectors.n_features() ? n_features : vectors.feature(f);
    sorted.all[n] = {static_cast<std::int32_t>(feature), w};
    const bool later = feature >= pruning.first && feature < n_features;
    const bool is_dense = f < vectors.n_dense;
    n += is_dense || std::abs(w) >= (later ? pruning.delta_from_first : pruning.delta);
  }
  sorted.all.resize(n);
  sorted.sort(n_features);
  out.features.resize(n);
  out.weights.resize(n);
  for (std::size_t k = 0; k < n; ++k) {
    out.features[k] = sorted.all[k].feature;
    out.weights[k] = sorted.all[k].value;
  }
}

}  // namespace dismec::solve
