// The weights of many labels → their scores of all rows: frequent features row by row for all
// labels at once, rare features only where a label has weights.
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
        coded_lines_(tiers.n_codes() * kSlots),
        near_(tiers.n_rows()),
        sums_(kPart * kSlots) {}

  /// Where a pass looks at a row.
  std::int64_t place(std::int64_t row) const { return tiers_.place(row); }

  /// What rows are scored with, bias apart; returns by how much a score may be too low.
  double set_weights(int slot, WorkingSet& set) {
    find_codes(set);
    clear(slot);
    const double error = set_weights(slot, set, tiers_.n_frequent() + 1);
    if (n_entries(slot) <= tiers_.n_rows() / kHeavy) return error;
    clear(slot);
    heavy_[slot] = true;
    return set_weights(slot, set, tiers_.n_codes());
  }

  /// What a slot's lists take of memory.
  std::int64_t bytes(int slot) const {
    return static_cast<std::int64_t>(used_[slot].capacity() * sizeof(std::uint16_t) +
                                     rare_[slot].capacity() * sizeof(Rare) +
                                     sorted_[slot].numbers.capacity() * sizeof(std::int32_t));
  }

  void clear(int slot) {
    for (const auto code : used_[slot]) at(slot, code) = 0;
    used_[slot].clear();
    rare_[slot].clear();
    heavy_[slot] = false;
  }

  /// Finds `most` rows that score highest by a slot's rare features, without those that are in its
  /// set. Where lists have more than kEntriesPerRow entries for each of them, only the lists of the
  /// largest weights per entry are read.
  void find_near(int slot, std::int64_t most, const ViolatorLists& lists,
                 std::vector<Violator>& found) {
    constexpr std::int64_t kEntriesPerRow = 16;
    constexpr std::size_t kAhead = 16;
    if (n_entries(slot) > kEntriesPerRow * most) {
      std::sort(rare_[slot].begin(), rare_[slot].end(), [](const Rare& a, const Rare& b) {
        const auto size = [](const Rare& list) { return static_cast<float>(list.rows.size()); };
        return a.weight * size(b) > b.weight * size(a);
      });
      std::int64_t n = 0;
      std::size_t f = 0;
      while (f < rare_[slot].size() && n < kEntriesPerRow * most) {
        n += std::ssize(rare_[slot][f++].rows);
      }
      rare_[slot].resize(f);
    }
    for (const Rare& list : rare_[slot]) {
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

  template <typename Stop>
  void run(const PerSlot& biases, ViolatorLists& violators, const Stop& stop) {
    for (int slot = 0; slot < kSlots; ++slot) find_bound(slot, biases, violators);
    std::int64_t n_rare = 0;
    for (int slot = 0; slot < kSlots; ++slot) n_rare += n_entries(slot);
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
  static constexpr std::int32_t kRowBits = kPart - 1;
  // A label whose lists have more entries than one for so many rows has middle features scored row
  // by row.
  static constexpr std::int64_t kHeavy = 4;
  // Numbers that rare features may add to the rows of a stretch.
  static constexpr std::int64_t kMostSorted = std::int64_t{1} << 21;

  /// The rows that have a feature, and a slot's weight for it in steps.
  struct Rare {
    std::span<const Tiers::RareEntry> rows;
    float weight;
  };
  /// A weight, and which frequent feature or entry of a set's vectors it is for.
  struct Weighted {
    std::int32_t feature;
    float weight;
  };
  /// What a slot's rare features add to rows, part after part, and where parts end. A number has a
  /// row of its part in its lowest bits, and is rounded up to what the others can hold.
  struct Sorted {
    std::vector<std::int32_t> numbers;
    std::vector<std::int64_t> ends;
  };

  std::int16_t& at(int slot, std::int64_t code) {
    return coded_lines_[code * kSlots + place_in_line(slot)];
  }

  /// Of all lists that are read for a slot.
  std::int64_t n_entries(int slot) const {
    std::int64_t n = 0;
    for (const Rare& list : rare_[slot]) n += std::ssize(list.rows);
    return n;
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
    unit_[slot] = step * tiers_.unit();
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
        rare_[slot].push_back({tiers_.list(set.feature(f)), w * steps_per_unit});
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

  /// Sets what the sum of a row has to be above for it to be listed.
  void find_bound(int slot, const PerSlot& biases, const ViolatorLists& violators) {
    constexpr double kMost = std::numeric_limits<std::int32_t>::max();
    const double threshold = violators.threshold(slot);
    if (std::isinf(threshold)) {
      bounds_[slot] = std::numeric_limits<std::int32_t>::max();
      return;
    }
    const double bound = std::floor((threshold - biases[slot]) / unit_[slot]) - 1;
    bounds_[slot] = static_cast<std::int32_t>(std::clamp(bound, -kMost, kMost));
  }

  /// Sorts what the rare features of a slot add to rows from `begin` on by parts of kPart rows.
  void sort_rare(int slot, std::int64_t begin, std::int64_t end) {
    constexpr std::size_t kAhead = 8;
    auto& lists = rare_[slot];
    if (lists.empty()) return;
    auto& [numbers, ends] = sorted_[slot];
    ends.assign((end - begin + kPart - 1) / kPart + 1, 0);
    heads_.clear();
    for (std::size_t f = 0; f < lists.size(); ++f) {
      if (f + kAhead < lists.size()) __builtin_prefetch(lists[f + kAhead].rows.data());
      auto& rows = lists[f].rows;
      const auto inside =
          rows.empty() || rows.back().place < end
              ? rows.end()
              : std::partition_point(
                    rows.begin(), rows.end(), [&](const auto& e) { return e.place < end; });
      heads_.push_back({rows.first(inside - rows.begin()), lists[f].weight});
      rows = rows.subspan(heads_.back().rows.size());
      for (const auto& entry : heads_.back().rows) ++ends[(entry.place - begin) / kPart + 1];
    }
    for (std::size_t part = 1; part < ends.size(); ++part) ends[part] += ends[part - 1];
    numbers.resize(ends.back());
    // Where a part begins becomes where it ends.
    for (const auto& [rows, weight] : heads_) {
      for (const auto& entry : rows) {
        const auto row = static_cast<std::int32_t>(entry.place - begin);
        const auto sum = static_cast<std::int32_t>(weight * static_cast<float>(entry.value));
        numbers[ends[row / kPart]++] = ((sum + kRowBits + 1) & ~kRowBits) | (row & kRowBits);
      }
    }
  }

  /// Adds what `sort_rare` has sorted for a part to its sums.
  void add_rare(std::int64_t part) {
    for (int slot = 0; slot < kSlots; ++slot) {
      if (rare_[slot].empty()) continue;
      const auto& [numbers, ends] = sorted_[slot];
      std::int32_t* sums = sums_.data() + slot;
      for (auto k = part == 0 ? 0 : ends[part - 1]; k < ends[part]; ++k) {
        sums[std::int64_t{numbers[k] & kRowBits} * kSlots] += numbers[k] & ~kRowBits;
      }
    }
  }

  /// Adds the frequent features of some rows to their sums, and the middle ones if some label is to
  /// have them, looks at the sums, and leaves zeros.
  void add_frequent(std::int64_t begin, std::int64_t end, const PerSlot& biases,
                    ViolatorLists& violators) {
    const bool any_heavy = std::find(heavy_.begin(), heavy_.end(), true) != heavy_.end();
    const std::int16_t* lines = coded_lines_.data();
    const auto line = [&](std::uint16_t code) { return lines + code * std::int64_t{kSlots}; };
    for (const Tiers::Group& group : tiers_.groups()) {
      const std::int64_t last = std::min(end, group.end);
      std::int64_t place = std::max(begin, group.begin);
      if (place >= last) continue;
      const Tiers::CodedPair* pair = tiers_.frequent(group, place);
      for (; place < last; ++place) {
        std::int32_t* sums = sums_.data() + (place - begin) * kSlots;
        IntegerSums integers(sums);
        std::fill_n(sums, kSlots, 0);
        for (std::int64_t k = 0; k < group.n_pairs; ++k, ++pair) {
          const auto& [codes, values] = *pair;
          integers.add(line(codes[0]), line(codes[1]), std::bit_cast<std::int32_t>(values));
        }
        if (any_heavy) {
          for (const auto& [codes, values] : tiers_.middle(place)) {
            integers.add(line(codes[0]), line(codes[1]), std::bit_cast<std::int32_t>(values));
          }
        }
        const std::uint32_t hits = integers.above(bounds_.data()) & ~violators.joined(place);
        if (hits != 0) report(hits, tiers_.row(place), integers, biases, violators);
      }
    }
  }

  /// Lists a row for the slots of `hits`.
  void report(std::uint32_t hits, std::int32_t row, const IntegerSums& integers,
              const PerSlot& biases, ViolatorLists& violators) {
    std::array<std::int32_t, kSlots> sums;
    integers.store(sums.data());
    for (; hits != 0; hits &= hits - 1) {
      const int slot = __builtin_ctz(hits);
      const auto score = static_cast<float>(biases[slot] + unit_[slot] * sums[slot]);
      if (violators.add(slot, {row, score})) find_bound(slot, biases, violators);
    }
  }

  const Tiers& tiers_;
  const Summary& summary_;
  HugeArray<std::int16_t> coded_lines_;   // kSlots weights per frequent or middle feature, in steps
  std::array<bool, kSlots> heavy_ = {};   // whether middle features are scored row by row
  std::array<double, kSlots> unit_ = {};  // of sums
  std::array<std::int32_t, kSlots> bounds_ = {};         // of the sums of rows that are listed
  std::array<std::vector<std::uint16_t>, kSlots> used_;  // codes
  std::array<std::vector<Rare>, kSlots> rare_;  // without the rows that a pass is done with
  std::vector<Weighted> coded_, uncoded_;       // memory
  std::vector<Rare> heads_;
  std::array<Sorted, kSlots> sorted_;
  HugeArray<float> near_;         // scores of rows; zeros between uses
  HugeArray<std::int32_t> sums_;  // of kPart rows; zeros between parts
};

}  // namespace dismec::solve
