// The weights of many labels → their scores of all rows: frequent features row by row for all
// labels at once, rare features only where a label has weights.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "solve/huge_array.hpp"
#include "solve/lanes.hpp"
#include "solve/rows.hpp"
#include "solve/tiers.hpp"
#include "solve/violators.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

/// Scores may be too high, because weights that can only lower them are left out.
class TierScores {
 public:
  TierScores(const Tiers& tiers, const Summary& summary)
      : tiers_(tiers),
        summary_(summary),
        frequent_(tiers.n_codes() * kSlots),
        near_(tiers.n_rows()),
        sums_(kPart * kSlots, 0.0F) {}

  /// What rows are scored with, bias apart; returns by how much a score may be too low.
  double set_weights(int slot, const WorkingSet& set) {
    clear(slot);
    double squared = 0;
    double frequent = 0;
    float largest = 0;
    coded_.clear();
    uncoded_.clear();
    for (std::size_t f = 0; f + 1 < set.w.size(); ++f) {
      const float w = set.w[f];
      if (w == 0) continue;
      const auto j = static_cast<std::int32_t>(set.feature(f));
      const std::uint16_t code = tiers_.code(j);
      // If no value is negative, these can only lower scores.
      if (w < 0 && code == 0 && summary_.nonnegative) continue;
      squared += static_cast<double>(w) * w;
      if (code == 0) {
        uncoded_.push_back({j, w});
      } else {
        coded_.push_back({code, w});
        frequent += static_cast<double>(w) * w;
        largest = std::max(largest, std::abs(w));
      }
    }
    double lost = 0;
    const float least = negligible();
    for (const auto& [j, w] : uncoded_) {
      if (std::abs(w) < least) {
        lost += static_cast<double>(w) * w;
      } else {
        rare_[slot].push_back({tiers_.list(j), w * tiers_.unit()});
      }
    }
    // Weights have to fit into sixteen bits, and sums into 32.
    const double step =
        std::max(largest / 32766.0, std::sqrt(frequent) * tiers_.largest_score() / (1 << 30));
    const double steps_per_unit = step > 0 ? 1 / step : 0.0;
    for (const auto& [code, w] : coded_) {
      const auto rounded = static_cast<std::int16_t>(w * steps_per_unit + std::copysign(0.5, w));
      at(slot, code) = rounded;
      used_[slot].push_back(code);
      lost += (w - rounded * step) * (w - rounded * step);
    }
    step_[slot] = static_cast<float>(step * tiers_.unit());
    // Σ_j |w_j·x_j| ≤ ‖w‖·‖x‖, for the weights as for what rounding changes of them.
    return summary_.longest_features * (std::sqrt(lost) + kSumError * std::sqrt(squared)) +
           tiers_.error() * std::sqrt(squared);
  }

  void clear(int slot) {
    for (const auto code : used_[slot]) at(slot, code) = 0;
    used_[slot].clear();
    rare_[slot].clear();
  }

  /// Finds the `most` rows that a slot's rare features score highest, rows for which `leave_out` is
  /// true apart; false, and nothing found, if they have so many entries that a pass is worth it.
  template <typename LeaveOut>
  bool find_near(int slot, std::int64_t most, const LeaveOut& leave_out,
                 std::vector<Violator>& found) {
    constexpr std::int64_t kShare = 4;
    std::int64_t n = 0;
    for (const Rare& list : rare_[slot]) n += std::ssize(list.rows);
    if (n > tiers_.n_rows() / kShare) return false;
    for (const Rare& list : rare_[slot]) {
      for (const Tiers::RareEntry& entry : list.rows) {
        float& sum = near_[entry.row];
        if (sum == 0) found.push_back({entry.row, 0});
        sum += list.weight * static_cast<float>(entry.value);
      }
    }
    for (Violator& v : found) std::swap(v.score, near_[v.row]);
    // A sum that was 0 in between has its row twice, and 0 the second time.
    std::erase_if(found, [&](const Violator& v) { return v.score == 0 || leave_out(v.row); });
    keep_worst(found, most);
    return true;
  }

  template <typename Stop>
  void run(const PerSlot& biases, ViolatorLists& violators, const Stop& stop) {
    std::int64_t n_rare = 0;
    for (const auto& lists : rare_) {
      for (const Rare& list : lists) n_rare += std::ssize(list.rows);
    }
    // As few stretches of rows as memory for what is sorted allows: each begins with a look into
    // every list.
    const std::int64_t n_rows = tiers_.n_rows();
    const std::int64_t n_parts = (n_rows + kPart - 1) / kPart;
    const std::int64_t n_stretches = std::clamp<std::int64_t>(n_rare / kMostSorted + 1, 1, n_parts);
    const std::int64_t stretch = (n_parts + n_stretches - 1) / n_stretches * kPart;
    for (std::int64_t begin = 0; begin < n_rows; begin += stretch) {
      const std::int64_t end = std::min(begin + stretch, n_rows);
      for (int slot = 0; slot < kSlots; ++slot) sort_rare(slot, begin, end);
      for (std::int64_t first = begin; first < end; first += kPart) {
        if (stop()) return;
        add_rare((first - begin) / kPart);
        add_frequent(first, std::min(first + kPart, end), biases, violators);
      }
    }
  }

 private:
  // Rows whose scores are summed up together.
  static constexpr std::int64_t kPart = 1024;
  static constexpr std::uint32_t kRowBits = kPart - 1;
  // Numbers that rare features may add to the rows of a stretch.
  static constexpr std::int64_t kMostSorted = std::int64_t{1} << 22;
  // By how much sums may be off, as a share of ‖w‖·‖x‖: what rare features add has thirteen bits.
  static constexpr double kSumError = 1.5e-4;

  /// The rows that have a feature, and a slot's weight for it.
  struct Rare {
    std::span<const Tiers::RareEntry> rows;
    float weight;
  };
  /// A weight, and which feature or frequent feature it is for.
  struct Weighted {
    std::int32_t feature;
    float weight;
  };
  /// A row of a stretch, and what is added to its score.
  struct Added {
    std::uint32_t row;
    float score;
  };
  /// The same part after part, a row in the lowest bits of each number, and where parts end.
  struct Sorted {
    std::vector<std::uint32_t> added;
    std::vector<std::int64_t> ends;
  };

  std::int16_t& at(int slot, std::int64_t code) {
    return frequent_[code * kSlots + place_in_line(slot)];
  }

  /// Weights of rare features below this may be left out: all of them together move no score by
  /// more than kNegligible.
  float negligible() const {
    constexpr double kNegligible = 0.004;
    constexpr int kOctaves = 20;
    std::array<double, kOctaves> squares = {};  // of weights of 2⁻ᵏ⁻¹ … 2⁻ᵏ; the last for all below
    for (const auto& [j, w] : uncoded_) {
      const int exponent = static_cast<int>(std::bit_cast<std::uint32_t>(w) >> 23 & 0xFFU) - 127;
      squares[std::clamp(-exponent - 1, 0, kOctaves - 1)] += static_cast<double>(w) * w;
    }
    const double most = kNegligible / std::max(summary_.longest_features, 1e-30);
    double sum = 0;
    int octave = kOctaves;
    while (octave > 0 && sum + squares[octave - 1] <= most * most) sum += squares[--octave];
    return octave == kOctaves ? 0.0F : std::ldexp(1.0F, -octave);
  }

  /// Sorts what the rare features of a slot add to rows from `begin` on by parts of kPart rows.
  void sort_rare(int slot, std::int64_t begin, std::int64_t end) {
    constexpr std::size_t kAhead = 8;
    auto& lists = rare_[slot];
    if (lists.empty()) return;
    auto& [added, ends] = sorted_[slot];
    unsorted_.clear();
    ends.assign((end - begin + kPart - 1) / kPart + 1, 0);
    for (std::size_t f = 0; f < lists.size(); ++f) {
      if (f + kAhead < lists.size()) __builtin_prefetch(lists[f + kAhead].rows.data());
      Rare& list = lists[f];
      std::size_t k = 0;
      for (; k < list.rows.size() && list.rows[k].row < end; ++k) {
        const auto row = static_cast<std::uint32_t>(list.rows[k].row - begin);
        unsorted_.push_back({row, list.weight * static_cast<float>(list.rows[k].value)});
        ++ends[row / kPart + 1];
      }
      list.rows = list.rows.subspan(k);
    }
    for (std::size_t part = 1; part < ends.size(); ++part) ends[part] += ends[part - 1];
    added.resize(unsorted_.size());
    // Where a part begins becomes where it ends.
    for (const auto& [row, score] : unsorted_) {
      added[ends[row / kPart]++] =
          (std::bit_cast<std::uint32_t>(score) & ~kRowBits) | (row & kRowBits);
    }
  }

  /// Adds what `sort_rare` has sorted for a part to its sums.
  void add_rare(std::int64_t part) {
    for (int slot = 0; slot < kSlots; ++slot) {
      if (rare_[slot].empty()) continue;
      const auto& [added, ends] = sorted_[slot];
      float* sums = sums_.data() + slot;
      for (auto k = part == 0 ? 0 : ends[part - 1]; k < ends[part]; ++k) {
        sums[std::int64_t{added[k] & kRowBits} * kSlots] +=
            std::bit_cast<float>(added[k] & ~kRowBits);
      }
    }
  }

  /// Adds the frequent features of some rows to their sums, looks at the scores, and leaves zeros.
  void add_frequent(std::int64_t begin, std::int64_t end, const PerSlot& biases,
                    ViolatorLists& violators) {
    const Tiers::FrequentPair* pairs = tiers_.frequent();
    const std::int64_t* starts = tiers_.row_starts();
    const std::int16_t* lines = frequent_.data();
    const auto line = [&](std::uint16_t code) { return lines + code * std::int64_t{kSlots}; };
    for (std::int64_t i = begin; i < end; ++i) {
      IntegerSums integers;
      for (std::int64_t k = starts[i]; k < starts[i + 1]; ++k) {
        const auto& [codes, values] = pairs[k];
        integers.add(line(codes[0]), line(codes[1]), std::bit_cast<std::int32_t>(values));
      }
      float* sums = sums_.data() + (i - begin) * kSlots;
      std::array<Lanes, 2> scores;
      for (int half = 0; half < 2; ++half) {
        const int first = half * kLanes;
        const Lanes others = add(load(biases.data() + first), load(sums + first));
        scores[half] = fused(load(step_.data() + first), integers.half(half), others);
        store(sums + first, broadcast(0.0F));
      }
      violators.look(i, scores);
    }
  }

  const Tiers& tiers_;
  const Summary& summary_;
  HugeArray<std::int16_t> frequent_;  // a line of kSlots weights per frequent feature, in steps
  PerSlot step_ = {};
  std::array<std::vector<std::uint16_t>, kSlots> used_;  // codes
  std::array<std::vector<Rare>, kSlots> rare_;  // without the rows that a pass is done with
  std::vector<Weighted> coded_, uncoded_;
  std::vector<Added> unsorted_;
  std::array<Sorted, kSlots> sorted_;
  HugeArray<float> near_;    // scores of rows; zeros between uses
  std::vector<float> sums_;  // of kPart rows; zeros between parts
};

}  // namespace dismec::solve
