// The weights of many labels → what a pass in tiers scores rows with.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "solve/huge_array.hpp"
#include "solve/lanes.hpp"
#include "solve/rows.hpp"
#include "solve/tier_pass.hpp"
#include "solve/tiers.hpp"
#include "solve/violators.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

/// Scores may be too high, because weights that can only lower them are left out. They are
/// integers, multiples of a unit of each slot.
class TierScores {
 public:
  TierScores(const Tiers& tiers, const Summary& summary)
      : tiers_(tiers),
        summary_(summary),
        weights_(tiers.n_codes()),
        near_(tiers.n_rows()),
        own_desk_(tiers, weights_) {}
  TierScores(const TierScores&) = delete;

  /// Where a pass looks at a row.
  std::int64_t place(std::int64_t row) const { return tiers_.place(row); }

  /// What rows are scored with, bias apart; returns by how much a score may be too low.
  double set_weights(int slot, WorkingSet& set) {
    find_codes(set);
    clear(slot);
    const double error = set_weights(slot, set, tiers_.n_frequent() + 1);
    if (weights_.n_entries(slot) <= tiers_.n_rows() / kHeavy) return error;
    clear(slot);
    weights_.heavy[slot] = true;
    return set_weights(slot, set, tiers_.n_codes());
  }

  /// What a slot's lists take of memory.
  std::int64_t bytes(int slot) const {
    return bytes_of(used_[slot]) + bytes_of(weights_.rare[slot]) + own_desk_.bytes(slot);
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
    own_desk_.close(slot);
  }

  /// Finds `most` rows that score highest by a slot's rare features, without those that are in its
  /// set. Where lists have more than kEntriesPerRow entries for each of them, only the lists of the
  /// largest weights per entry are read.
  void find_near(int slot, std::int64_t most, const ViolatorLists& lists,
                 std::vector<Violator>& found) {
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
          __builtin_prefetch(near_.data() + list.rows[k + kAhead].place, 1);
        }
        const auto [place, value] = list.rows[k];
        float& sum = near_[place];
        if (sum == 0) found.push_back({place, 0});
        sum += list.weight * static_cast<float>(value);
      }
    }
    for (Violator& v : found) {
      std::swap(v.score, near_[v.row]);
      // A row of the set is none to be found.
      if ((lists.joined(v.row) >> slot & 1U) != 0) v.score = 0;
    }
    // A sum that was 0 in between has its row twice, and 0 the second time.
    std::erase_if(found, [&](const Violator& v) { return v.score == 0; });
    keep_worst(found, most);
    for (Violator& v : found) v.row = tiers_.row(v.row);
  }

  /// What a thread needs to look at rows; it looks at a multiple of so many.
  using Desk = TierPass;
  static constexpr std::int64_t kRowsTogether = TierPass::kPart;
  Desk desk() const { return {tiers_, weights_}; }
  Desk& own_desk() { return own_desk_; }

  /// Lists the violators among the rows from one place to another.
  template <typename Stop>
  void run(std::int64_t first, std::int64_t last, Desk& desk, const PerSlot& biases,
           ViolatorLists& violators, const Stop& stop) const {
    std::int64_t n_rare = 0;
    for (int slot = 0; slot < kSlots; ++slot) n_rare += weights_.n_entries(slot);
    const std::int64_t rows = std::max<std::int64_t>(tiers_.n_rows(), 1);
    desk.run(first, last, n_rare * (last - first) / rows, biases, violators, stop);
  }

 private:
  // A label whose lists have more entries than one for so many rows has middle features scored row
  // by row.
  static constexpr std::int64_t kHeavy = 4;

  /// A weight, and which frequent feature or entry of a set's vectors it is for.
  struct Weighted {
    std::int32_t feature;
    float weight;
  };

  std::int16_t& at(int slot, std::int64_t code) {
    return weights_.lines[code * kSlots + place_in_line(slot)];
  }

  /// The same, with features of codes below `n_codes` scored row by row and lists read for the
  /// others.
  double set_weights(int slot, const WorkingSet& set, std::int64_t n_codes) {
    const std::size_t n = set.w.size() - 1;
    if (coded_.size() <= n) {
      coded_.resize(n + 1);
      uncoded_.resize(n + 1);
    }
    // If no value is negative, negative weights of features that lists are read for can only lower
    // scores.
    const bool both_signs = !summary_.nonnegative;
    // Which of the two a feature is cannot be guessed, so nothing branches on it.
    std::size_t n_coded = 0;
    std::size_t n_uncoded = 0;
    for (std::size_t f = 0; f < n; ++f) {
      const float w = set.w[f];
      const std::uint16_t code = set.codes[f];
      const bool is_coded = (code != 0) & (code < n_codes);
      coded_[n_coded] = {code, w};
      uncoded_[n_uncoded] = {static_cast<std::int32_t>(f), w};
      n_coded += is_coded & (w != 0);
      n_uncoded += (!is_coded) & ((w > 0) | (both_signs & (w < 0)));
    }
    const std::span<const Weighted> coded(coded_.data(), n_coded);
    const std::span<const Weighted> uncoded(uncoded_.data(), n_uncoded);
    const Size of_coded = size_of(coded);
    const double squared = of_coded.squared + size_of(uncoded).squared;
    const float largest = of_coded.largest;
    // Weights of frequent features have to fit into sixteen bits, and sums into 32.
    const double length = std::sqrt(squared);
    const double step =
        std::max({largest / 32766.0, length * tiers_.largest_score() / (1 << 30), 1e-30});
    const auto steps_per_unit = static_cast<float>(1 / step);
    double lost = find_lists(slot, set, uncoded, steps_per_unit);
    for (const auto& [code, w] : coded) {
      const auto rounded = static_cast<std::int16_t>(w * steps_per_unit + std::copysign(0.5F, w));
      at(slot, code) = rounded;
      used_[slot].push_back(static_cast<std::uint16_t>(code));
      lost += (w - rounded * step) * (w - rounded * step);
    }
    weights_.unit[slot] = step * tiers_.unit();
    // Σ_j |w_j·x_j| ≤ ‖w‖·‖x‖, for the weights as for what rounding changes of them and of rows.
    return summary_.longest_features * (std::sqrt(lost) + 1e-6 * length) + tiers_.error() * length;
  }

  struct Size {
    double squared = 0;  // Σw²
    float largest = 0;   // |w|
  };
  /// Four sums at a time, so that no addition waits for the one before.
  static Size size_of(std::span<const Weighted> weights) {
    std::array<Size, 4> parts;
    const auto count = [](Size& size, float w) {
      size.squared += static_cast<double>(w) * w;
      size.largest = std::max(size.largest, std::abs(w));
    };
    std::size_t k = 0;
    for (; k + 4 <= weights.size(); k += 4) {
      for (std::size_t q = 0; q < 4; ++q) count(parts[q], weights[k + q].weight);
    }
    for (; k < weights.size(); ++k) count(parts[0], weights[k].weight);
    Size size;
    for (const auto& [squared, largest] : parts) {
      size.squared += squared;
      size.largest = std::max(size.largest, largest);
    }
    return size;
  }

  /// Looks up what is missing in set.codes.
  void find_codes(WorkingSet& set) const {
    constexpr std::int64_t kAhead = 16;
    const std::int64_t n = set.n_features();
    std::int64_t f = std::ssize(set.codes);
    set.codes.resize(n);
    for (; f < n; ++f) {
      if (f + kAhead < n) tiers_.prefetch_code(set.feature(f + kAhead));
      set.codes[f] = tiers_.code(set.feature(f));
    }
  }

  /// Finds the lists of a slot's rare features, without those whose weights may be left out;
  /// returns Σw² over these.
  double find_lists(int slot, const WorkingSet& set, std::span<const Weighted> rare,
                    float steps_per_unit) {
    constexpr std::size_t kAhead = 16;
    const float least = negligible(rare);
    double lost = 0;
    for (std::size_t k = 0; k < rare.size(); ++k) {
      if (k + kAhead < rare.size()) {
        tiers_.prefetch_list(set.feature(rare[k + kAhead].feature));
      }
      const auto& [f, w] = rare[k];
      if (std::abs(w) < least) {
        lost += static_cast<double>(w) * w;
      } else {
        weights_.rare[slot].push_back({tiers_.list(set.feature(f)), w * steps_per_unit});
      }
    }
    return lost;
  }

  /// Weights of rare features below this may be left out: all of them together move no score by
  /// more than kNegligible.
  float negligible(std::span<const Weighted> rare) const {
    constexpr double kNegligible = 0.004;
    constexpr int kOctaves = 20;
    std::array<double, kOctaves> squares = {};  // of weights of 2⁻ᵏ⁻¹ … 2⁻ᵏ; the last for all below
    for (const auto& [f, w] : rare) {
      const int exponent = static_cast<int>(std::bit_cast<std::uint32_t>(w) >> 23 & 0xFFU) - 127;
      squares[std::clamp(-exponent - 1, 0, kOctaves - 1)] += static_cast<double>(w) * w;
    }
    const double most = kNegligible / std::max(summary_.longest_features, 1e-30);
    double sum = 0;
    int octave = kOctaves;
    while (octave > 0 && sum + squares[octave - 1] <= most * most) sum += squares[--octave];
    return octave == kOctaves ? 0.0F : std::ldexp(1.0F, -octave);
  }

  const Tiers& tiers_;
  const Summary& summary_;
  TierWeights weights_;
  std::array<std::vector<std::uint16_t>, kSlots> used_;  // codes
  std::vector<Weighted> coded_, uncoded_;                // memory
  HugeArray<float> near_;                                // scores of rows; zeros between uses
  Desk own_desk_;
};

}  // namespace dismec::solve
