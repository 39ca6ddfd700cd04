// The weights of many labels → the tables that a pass in tiers scores rows with.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "huge_array.hpp"
#include "solve/feature_tiers.hpp"
#include "solve/lanes.hpp"
#include "solve/rows.hpp"
#include "solve/tier_pass.hpp"
#include "solve/violators.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

/// Scores may be too high, because some weights that can only lower them are left out. They are
/// integer multiples of one unit per slot.
class TierScores {
 public:
  TierScores(const FeatureTiers& tiers, const Summary& summary)
      : tiers_(tiers),
        summary_(summary),
        weights_(tiers.n_codes()),
        near_(tiers.n_rows()),
        own_scratch_(tiers, weights_) {}
  TierScores(const TierScores&) = delete;

  /// The position of a row in the order of a pass.
  std::int64_t position(std::int64_t row) const { return tiers_.position(row); }

  /// Sets the weights that rows are scored with, except the bias; returns a bound on how much too
  /// low a score can be.
  double set_weights(int slot, SetVectors& vectors) {
    find_codes(vectors);
    clear(slot);
    const double error = set_weights(slot, vectors, tiers_.n_frequent() + 1);
    if (weights_.n_entries(slot) <= tiers_.n_rows() / kHeavy) return error;
    clear(slot);
    weights_.heavy[slot] = true;
    return set_weights(slot, vectors, tiers_.n_codes());
  }

  /// Bytes used by the lists of a slot.
  std::int64_t bytes(int slot) const {
    return bytes_of(used_[slot]) + bytes_of(weights_.rare[slot]) + own_scratch_.bytes(slot);
  }

  void clear(int slot) {
    for (const auto code : used_[slot]) at(slot, code) = 0;
    used_[slot].clear();
    weights_.rare[slot].clear();
    weights_.heavy[slot] = false;
  }

  /// Makes a slot idle.
  void close(int slot) {
    clear(slot);
    empty(used_[slot]);
    empty(weights_.rare[slot]);
    own_scratch_.close(slot);
  }

  /// Finds the `most` rows that score highest by a slot's rare features, except those in its set.
  /// If the lists have more than kEntriesPerRow entries per requested row, only those with the
  /// largest weight per entry are read.
  void find_near(int slot, std::int64_t most, const ViolatorLists& lists,
                 std::vector<Violator>& near) {
    constexpr std::int64_t kEntriesPerRow = 16;
    constexpr std::size_t kAhead = 16;
    if (weights_.n_entries(slot) > kEntriesPerRow * most) {
      std::sort(weights_.rare[slot].begin(), weights_.rare[slot].end(),
                [](const RareList& a, const RareList& b) {
                  const auto size = [](const RareList& list) {
                    return static_cast<float>(list.rows.size());
                  };
                  return a.weight * size(b) > b.weight * size(a);
                });
      std::int64_t n = 0;
      std::size_t f = 0;
      while (f < weights_.rare[slot].size() && n < kEntriesPerRow * most) {
        n += std::ssize(weights_.rare[slot][f++].rows);
      }
      weights_.rare[slot].resize(f);
    }
    for (const RareList& list : weights_.rare[slot]) {
      for (std::size_t k = 0; k < list.rows.size(); ++k) {
        if (k + kAhead < list.rows.size()) {
          __builtin_prefetch(near_.data() + list.rows[k + kAhead].position, 1);
        }
        const auto [position, value] = list.rows[k];
        float& sum = near_[position];
        if (sum == 0) near.push_back({position, 0});
        sum += list.weight * static_cast<float>(value);
      }
    }
    for (Violator& v : near) {
      std::swap(v.score, near_[v.row]);
      // Rows of the set are not wanted.
      if ((lists.joined(v.row) >> slot & 1U) != 0) v.score = 0;
    }
    // If a sum returned to 0 in between, its row is listed twice, the second time with 0.
    std::erase_if(near, [&](const Violator& v) { return v.score == 0; });
    keep_worst(near, most);
    for (Violator& v : near) v.row = tiers_.row(v.row);
  }

  /// What a thread needs to score rows, a multiple of this many at a time.
  using PassScratch = TierPass;
  static constexpr std::int64_t kRowsTogether = TierPass::kPart;
  PassScratch scratch() const { return {tiers_, weights_}; }
  PassScratch& own_scratch() { return own_scratch_; }

  /// Lists the violators among the rows at a range of positions.
  template <typename Stop>
  void run(std::int64_t first, std::int64_t last, PassScratch& scratch, const PerSlot& biases,
           ViolatorLists& violators, const Stop& stop) const {
    std::int64_t n_rare = 0;
    for (int slot = 0; slot < kSlots; ++slot) n_rare += weights_.n_entries(slot);
    const std::int64_t rows = std::max<std::int64_t>(tiers_.n_rows(), 1);
    scratch.run(first, last, n_rare * (last - first) / rows, biases, violators, stop);
  }

 private:
  static constexpr double kHalf = 0.501;  // a weight is rounded by at most this many steps
  // A label with more than one list entry per this many rows has its middle features scored row by
  // row.
  static constexpr std::int64_t kHeavy = 4;

  /// Weights, with the codes or the set entries that they belong to. There is room for a whole
  /// vector of lanes behind the last.
  struct Weighted {
    std::vector<std::int32_t> of;
    std::vector<float> weights;
    std::int64_t size = 0;

    void make_room(std::int64_t n) {
      size = 0;
      if (std::ssize(of) >= n + kLanes) return;
      of.resize(n + kLanes);
      weights.resize(n + kLanes);
    }
    void add(std::uint32_t chosen, IntegerLanes some_of, Lanes some_weights) {
      store_chosen(chosen, some_of, of.data() + size);
      size += store_chosen(chosen, some_weights, weights.data() + size);
    }
    /// Zeroes the padding behind the last weight.
    void end() { std::fill_n(weights.data() + size, kLanes, 0.0F); }
    double squared() const { return inner_product(weights.data(), weights.data(), size); }
    /// The largest |weight|. The bit patterns of positive floats are ordered like the floats.
    float largest() const {
      std::uint32_t bits = 0;
      for (std::int64_t k = 0; k < size; ++k) {
        bits = std::max(bits, std::bit_cast<std::uint32_t>(weights[k]) & 0x7FFFFFFFU);
      }
      return std::bit_cast<float>(bits);
    }
  };

  std::int16_t& at(int slot, std::int64_t code) {
    return weights_.lines[code * kSlots + index_in_line(slot)];
  }

  /// The same, where features with codes below `n_codes` are scored row by row and the others by
  /// their lists.
  double set_weights(int slot, const SetVectors& vectors, std::int64_t n_codes) {
    split(vectors, static_cast<std::int32_t>(n_codes));
    const double squared = coded_.squared() + uncoded_.squared();
    // Weights of frequent features must fit in sixteen bits, and sums in 32.
    const double length = std::sqrt(squared);
    const double step =
        std::max({coded_.largest() / 32766.0, length * tiers_.largest_score() / (1 << 30), 1e-30});
    const double lost = find_lists(slot, vectors, static_cast<float>(1 / step));
    const double off = round_coded(slot, static_cast<float>(step));
    weights_.unit[slot] = step * tiers_.unit();
    // Σ_j |w_j·x_j| ≤ ‖w‖·‖x‖ bounds scores, and likewise the effect of omitting weights and of
    // rounding rows. The effect of rounding weights is also at most max|w_j|·Σ_j |x_j|, which is
    // less if the label has weights for far more features than a row has.
    const double longest = summary_.longest_features;
    const double rounding = std::min(longest * std::sqrt(off), kHalf * step * tiers_.most());
    return longest * (std::sqrt(lost) + 1e-6 * length) + rounding +
           tiers_.error() * std::sqrt(coded_.squared());
  }

  /// Separates the weights of features with codes below `n_codes` from the others.
  void split(const SetVectors& vectors, std::int32_t n_codes) {
    const std::int64_t n = vectors.n_features();
    coded_.make_room(n);
    uncoded_.make_room(n);
    // If no value is negative, negative weights of features scored by lists can only lower scores.
    const bool both_signs = !summary_.nonnegative;
    const Lanes zero = broadcast(0);
    const auto take = [&](IntegerLanes f, IntegerLanes codes, Lanes w) {
      const std::uint32_t is_coded = inside(codes, 1, n_codes);
      const std::uint32_t positive = greater(w, zero);
      const std::uint32_t negative = greater(zero, w);
      coded_.add((positive | negative) & is_coded, codes, w);
      uncoded_.add((positive | (both_signs ? negative : 0U)) & ~is_coded, f, w);
    };
    const std::int64_t whole = n / kLanes * kLanes;
    for (std::int64_t f = 0; f < whole; f += kLanes) {
      take(from(static_cast<std::int32_t>(f)), load_codes(vectors.codes.data() + f),
           load(vectors.w.data() + f));
    }
    if (whole < n) {
      std::array<std::uint16_t, kLanes> codes = {};
      std::array<float, kLanes> w = {};
      std::copy(vectors.codes.begin() + whole, vectors.codes.end(), codes.begin());
      std::copy(vectors.w.begin() + whole, vectors.w.end() - 1, w.begin());
      take(from(static_cast<std::int32_t>(whole)), load_codes(codes.data()), load(w.data()));
    }
    coded_.end();
    uncoded_.end();
  }

  /// Sets the weights of the features scored row by row, as multiples of `step`; returns the sum of
  /// squared rounding errors.
  double round_coded(int slot, float step) {
    const std::int64_t n = coded_.size;
    const float steps_per_unit = 1 / step;
    rounded_.resize(n);
    off_.resize(n);
    for (std::int64_t k = 0; k < n; ++k) {
      const float w = coded_.weights[k];
      const auto rounded = static_cast<std::int32_t>(w * steps_per_unit + std::copysign(0.5F, w));
      rounded_[k] = static_cast<std::int16_t>(rounded);
      off_[k] = w - static_cast<float>(rounded) * step;
    }
    used_[slot].resize(n);
    for (std::int64_t k = 0; k < n; ++k) {
      at(slot, coded_.of[k]) = rounded_[k];
      used_[slot][k] = static_cast<std::uint16_t>(coded_.of[k]);
    }
    return inner(off_, off_);
  }

  /// Fills in the missing entries of vectors.codes.
  void find_codes(SetVectors& vectors) const {
    constexpr std::int64_t kAhead = 16;
    const std::int64_t n = vectors.n_features();
    std::int64_t f = std::ssize(vectors.codes);
    vectors.codes.resize(n);
    for (; f < n; ++f) {
      if (f + kAhead < n) tiers_.prefetch_code(vectors.feature(f + kAhead));
      vectors.codes[f] = tiers_.code(vectors.feature(f));
    }
  }

  /// Finds the lists of a slot's rare features, except those with negligible weights; returns Σw²
  /// over the latter.
  double find_lists(int slot, const SetVectors& vectors, float steps_per_unit) {
    constexpr std::int64_t kAhead = 16;
    const auto [least_squared, lost] = negligible();
    Weighted& rare = uncoded_;
    std::int64_t n = 0;
    for (std::int64_t k = 0; k < rare.size; k += kLanes) {
      const Lanes w = load(rare.weights.data() + k);
      const std::uint32_t left_out = greater(broadcast(least_squared), squares(w));
      const std::uint32_t all = (1U << std::min<std::int64_t>(rare.size - k, kLanes)) - 1;
      store_chosen(all & ~left_out, load_integers(rare.of.data() + k), rare.of.data() + n);
      n += store_chosen(all & ~left_out, w, rare.weights.data() + n);
    }
    auto& lists = weights_.rare[slot];
    lists.resize(n);
    for (std::int64_t k = 0; k < n; ++k) {
      if (k + kAhead < n) tiers_.prefetch_list(vectors.feature(rare.of[k + kAhead]));
      lists[k] = {tiers_.list(vectors.feature(rare.of[k])), rare.weights[k] * steps_per_unit};
    }
    return lost;
  }

  struct Negligible {
    float below;  // this w²
    double lost;  // Σw² over the negligible weights, or slightly more
  };
  /// Which weights of rare features are negligible: together they change no score by more than
  /// kNegligible.
  Negligible negligible() const {
    constexpr double kNegligible = 0.004;
    constexpr int kOctaves = 8;
    const double most = kNegligible / std::max(summary_.longest_features, 1e-30);
    std::array<float, kOctaves> bounds;
    std::array<Lanes, kOctaves> sums;
    for (int k = 0; k < kOctaves; ++k) {
      bounds[k] = static_cast<float>(std::ldexp(most * most, -2 * k));
      sums[k] = broadcast(0);
    }
    const Lanes minus = broadcast(-1);
    for (std::int64_t i = 0; i < uncoded_.size; i += kLanes) {
      const Lanes squared = squares(load(uncoded_.weights.data() + i));
      for (int k = 0; k < kOctaves; ++k) {
        const Lanes below = fused(minus, squared, broadcast(bounds[k]));
        sums[k] = add(sums[k], where_positive(below, squared));
      }
    }
    constexpr double kRounding = 1.001;
    for (int k = 0; k < kOctaves; ++k) {
      const double lost = kRounding * sum(sums[k]);
      if (lost <= most * most) return {bounds[k], lost};
    }
    return {0, 0};
  }
  static Lanes squares(Lanes w) { return fused(w, w, broadcast(0)); }

  const FeatureTiers& tiers_;
  const Summary& summary_;
  TierWeights weights_;
  std::array<std::vector<std::uint16_t>, kSlots> used_;  // codes in use
  Weighted coded_, uncoded_;                             // scratch
  std::vector<std::int16_t> rounded_;                    // scratch
  std::vector<float> off_;                               // scratch
  HugeArray<float> near_;                                // scores of rows; zero between uses
  PassScratch own_scratch_;
};

}  // namespace dismec::solve
