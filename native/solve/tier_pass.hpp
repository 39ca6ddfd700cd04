// Weights of many labels, in tiers → their scores for some rows: frequent features pattern by
// pattern for all labels at once, rare features only where a label has weights.
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
#include "solve/violators.hpp"

namespace dismec::solve {

/// The rows that have a feature, and a slot's weight for it, in steps.
struct RareList {
  std::span<const FeatureTiers::RareEntry> rows;
  float weight;
};

/// The weights that rows are scored with.
struct TierWeights {
  HugeArray<std::int16_t> lines;         // kSlots weights per frequent or middle feature, in steps
  std::array<bool, kSlots> heavy = {};   // whether middle features are scored row by row
  std::array<double, kSlots> unit = {};  // of each slot's sums
  std::array<std::vector<RareList>, kSlots> rare;

  explicit TierWeights(std::int64_t n_codes) : lines(n_codes * kSlots) {}

  /// Total size of the lists that are read for a slot.
  std::int64_t n_entries(int slot) const {
    std::int64_t n = 0;
    for (const RareList& list : rare[slot]) n += std::ssize(list.rows);
    return n;
  }
};

/// Scores rows on one thread. The score of a row is that of its pattern times the row's scale, plus
/// the sum over its other features. Both are sums of integers, so the order and the stretches in
/// which they are taken do not matter.
class TierPass {
 public:
  // Rows whose scores are summed together.
  static constexpr std::int64_t kPart = FeatureTiers::kTogether;

  TierPass(const FeatureTiers& tiers, const TierWeights& weights)
      : tiers_(tiers), weights_(weights), sums_(kPart * kSlots) {}

  /// Bytes kept for a slot.
  std::int64_t bytes(int slot) const {
    return bytes_of(sorted_[slot].numbers) + bytes_of(sorted_[slot].crowded);
  }
  void close(int slot) {
    empty(sorted_[slot].numbers);
    empty(sorted_[slot].crowded);
  }

  /// Lists the violators among the rows at positions `first` to `last`, both multiples of kPart or
  /// the end. All lists together have at most about `n_rare` entries for these rows.
  template <typename Stop>
  void run(std::int64_t first, std::int64_t last, std::int64_t n_rare, const PerSlot& biases,
           ViolatorLists& violators, const Stop& stop) {
    for (int slot = 0; slot < kSlots; ++slot) find_bound(slot, biases, violators);
    // As few stretches as the memory for sorting allows: each starts with a lookup in every list.
    const std::int64_t n_parts = (last - first + kPart - 1) / kPart;
    const std::int64_t n_stretches = std::clamp<std::int64_t>(n_rare / kMostSorted + 1, 1, n_parts);
    const std::int64_t stretch = (n_parts + n_stretches - 1) / n_stretches * kPart;
    for (std::int64_t begin = first; begin < last; begin += stretch) {
      const std::int64_t end = std::min(begin + stretch, last);
      for (int slot = 0; slot < kSlots; ++slot) sort_rare(slot, begin, end);
      for (std::int64_t part = begin; part < end; part += kPart) {
        if (stop()) return;
        add_rare((part - begin) / kPart);
        add_frequent(part, std::min(part + kPart, end), biases, violators);
      }
    }
  }

 private:
  static constexpr std::int32_t kRowBits = kPart - 1;
  // Bound on the contributions of rare features to the rows of a stretch.
  static constexpr std::int64_t kMostSorted = std::int64_t{1} << 21;

  /// Contributions of a slot's rare features to rows, grouped by part. The lowest bits of a number
  /// hold the row within its part, and the contribution is rounded up to fit the other bits.
  struct Sorted {
    std::vector<std::int32_t> numbers;
    struct Part {
      std::int32_t begin, end, room;  // range of its numbers, and the end of its room
    };
    std::vector<Part> parts;
    // Numbers of parts that ran out of room, with their parts, in ascending order.
    struct Crowded {
      std::int32_t part, number;
    };
    std::vector<Crowded> crowded;
    std::size_t next_crowded = 0;
  };

  /// Sets the bound that a row's sum must exceed to be listed.
  void find_bound(int slot, const PerSlot& biases, const ViolatorLists& violators) {
    constexpr double kMost = std::numeric_limits<std::int32_t>::max();
    const double threshold = violators.threshold(slot);
    const double bound = std::floor((threshold - biases[slot]) / weights_.unit[slot]) - 1;
    bounds_[slot] = std::isinf(threshold)
                        ? std::numeric_limits<std::int32_t>::max()
                        : static_cast<std::int32_t>(std::clamp(bound, -kMost, kMost));
    float_bounds_[slot] = static_cast<float>(bounds_[slot]);
  }

  /// Makes room for the `n` entries of a slot in a stretch: for each part what it should need by
  /// its share of all lists, plus a margin.
  void make_room(Sorted& sorted, std::int64_t n, std::int64_t begin, std::int64_t end) const {
    const std::int64_t all = tiers_.entries_below(end) - tiers_.entries_below(begin);
    const double per_entry =
        static_cast<double>(n) / static_cast<double>(std::max<std::int64_t>(all, 1));
    std::int32_t room = 0;
    sorted.parts.clear();
    for (std::int64_t part = begin; part < end; part += kPart) {
      const std::int64_t of_part =
          tiers_.entries_below(std::min(part + kPart, end)) - tiers_.entries_below(part);
      const double expected = per_entry * static_cast<double>(of_part);
      const std::int32_t first = room;
      room += static_cast<std::int32_t>(1.25 * expected + 4 * std::sqrt(expected)) + 4;
      sorted.parts.push_back({first, first, room});
    }
    if (std::ssize(sorted.numbers) < room) sorted.numbers.resize(room);
    sorted.crowded.clear();
    sorted.next_crowded = 0;
  }

  /// Sorts the contributions of a slot's rare features to a stretch by parts of kPart rows.
  void sort_rare(int slot, std::int64_t begin, std::int64_t end) {
    constexpr std::size_t kAhead = 8;
    const auto& lists = weights_.rare[slot];
    if (lists.empty()) return;
    inside_.clear();
    std::int64_t n = 0;
    for (const RareList& list : lists) {
      const auto& rows = list.rows;
      // Most passes have a single stretch and need no search.
      const auto position_below = [&](std::int64_t bound) {
        return std::partition_point(rows.begin(), rows.end(),
                                    [&](const auto& e) { return e.position < bound; });
      };
      const auto first = begin == 0 ? rows.begin() : position_below(begin);
      const auto last = end == tiers_.n_rows() ? rows.end() : position_below(end);
      inside_.push_back({{first, last}, list.weight});
      n += last - first;
    }
    Sorted& sorted = sorted_[slot];
    make_room(sorted, n, begin, end);
    std::int32_t* numbers = sorted.numbers.data();
    for (std::size_t f = 0; f < inside_.size(); ++f) {
      if (f + kAhead < inside_.size()) __builtin_prefetch(inside_[f + kAhead].rows.data());
      const auto& [rows, weight] = inside_[f];
      const float half = 0.5F * std::abs(weight);  // values may be rounded down by this much
      for (const auto& entry : rows) {
        const auto row = static_cast<std::int32_t>(entry.position - begin);
        const auto sum = static_cast<std::int32_t>(weight * static_cast<float>(entry.value) + half);
        const std::int32_t number = ((sum + kRowBits + 1) & ~kRowBits) | (row & kRowBits);
        auto& part = sorted.parts[row / kPart];
        if (part.end < part.room) {
          numbers[part.end++] = number;
        } else {
          sorted.crowded.push_back({static_cast<std::int32_t>(row / kPart), number});
        }
      }
    }
    std::sort(sorted.crowded.begin(), sorted.crowded.end(),
              [](const auto& a, const auto& b) { return a.part < b.part; });
  }

  /// Adds the sorted contributions to the sums of a part; parts must come in ascending order.
  void add_rare(std::int64_t part) {
    tiers_.has_patterns() ? add_rare<true>(part) : add_rare<false>(part);
  }
  template <bool touch>
  void add_rare(std::int64_t part) {
    for (int slot = 0; slot < kSlots; ++slot) {
      if (weights_.rare[slot].empty()) continue;
      std::int32_t* sums = sums_.data() + slot;
      const auto add = [&](std::int32_t number) {
        sums[std::int64_t{number & kRowBits} * kSlots] += number & ~kRowBits;
        if constexpr (touch) touched_[number & kRowBits] = 1;
      };
      auto& [numbers, parts, crowded, next] = sorted_[slot];
      for (auto k = parts[part].begin; k < parts[part].end; ++k) add(numbers[k]);
      for (; next < crowded.size() && crowded[next].part == part; ++next) add(crowded[next].number);
    }
  }

  /// Adds the frequent features of some rows to their sums over other features; reports rows above
  /// their bounds, and leaves the sums zeroed.
  void add_frequent(std::int64_t begin, std::int64_t end, const PerSlot& biases,
                    ViolatorLists& violators) {
    any_heavy_ =
        std::find(weights_.heavy.begin(), weights_.heavy.end(), true) != weights_.heavy.end();
    for (const FeatureTiers::Group& group : tiers_.groups()) {
      const std::int64_t last = std::min(end, group.end);
      std::int64_t position = std::max(begin, group.begin);
      if (position >= last) continue;
      if (!group.patterns.empty()) {
        auto after = std::upper_bound(group.patterns.begin(), group.patterns.end(), position);
        const FeatureTiers::CodedPair* pair =
            tiers_.frequent(group, after - group.patterns.begin() - 1);
        for (; position < last; ++after, pair += group.n_pairs) {
          const std::int64_t next = std::min<std::int64_t>(last, *after);
          look_at_pattern({pair, pair + group.n_pairs}, begin, position, next, biases, violators);
          position = next;
        }
      } else {
        const FeatureTiers::CodedPair* pair = tiers_.frequent(group, position - group.begin);
        for (; position < last; ++position) {
          IntegerSums integers = take_others(begin, position);
          for (std::int64_t k = 0; k < group.n_pairs; ++k, ++pair) add(*pair, integers);
          const std::uint32_t hits = integers.above(bounds_.data()) & ~violators.joined(position);
          if (hits != 0) report(hits, tiers_.row(position), scores(integers), biases, violators);
        }
      }
    }
    if (tiers_.has_patterns()) touched_.fill(0);
  }

  /// Some rows of a pattern, whose score they have in common except for their scales.
  void look_at_pattern(std::span<const FeatureTiers::CodedPair> features, std::int64_t begin,
                       std::int64_t first, std::int64_t last, const PerSlot& biases,
                       ViolatorLists& violators) {
    const std::array<std::int32_t, kSlots> zeros = {};
    IntegerSums integers(zeros.data());
    for (const auto& pair : features) add(pair, integers);
    const Scores of_pattern = scores(integers);
    const Scores none = {broadcast(0), broadcast(0)};
    // Scores are linear in the scale: if neither end exceeds a bound, no row in between does.
    const bool some = (above(scaled(tiers_.scale(first), of_pattern, none)) |
                       above(scaled(tiers_.scale(last - 1), of_pattern, none))) != 0;
    for (std::int64_t position = first; position < last; ++position) {
      const bool has_others = any_heavy_ || touched_[position - begin] != 0;
      if (!some && !has_others) continue;
      const Scores others = has_others ? scores(take_others(begin, position)) : none;
      const Scores row = scaled(tiers_.scale(position), of_pattern, others);
      const std::uint32_t hits = above(row) & ~violators.joined(position);
      if (hits != 0) report(hits, tiers_.row(position), row, biases, violators);
    }
  }

  /// Scores for all slots, in units.
  using Scores = std::array<Lanes, 2>;
  static Scores scores(const IntegerSums& integers) {
    std::array<std::int32_t, kSlots> sums;
    integers.store(sums.data());
    return {to_float(load_integers(sums.data())), to_float(load_integers(sums.data() + kLanes))};
  }
  static Scores scaled(float scale, const Scores& a, const Scores& b) {
    return {fused(broadcast(scale), a[0], b[0]), fused(broadcast(scale), a[1], b[1])};
  }
  /// One bit for each slot whose bound is exceeded.
  std::uint32_t above(const Scores& row) const {
    return greater(row[0], load(float_bounds_.data())) |
           greater(row[1], load(float_bounds_.data() + kLanes)) << kLanes;
  }

  void add(const FeatureTiers::CodedPair& pair, IntegerSums& integers) const {
    const auto line = [&](std::uint16_t code) {
      return weights_.lines.data() + code * std::int64_t{kSlots};
    };
    integers.add(line(pair.codes[0]), line(pair.codes[1]),
                 std::bit_cast<std::int32_t>(pair.values));
  }

  /// The sums over the other features of a row, which are then zeroed, and its middle features if
  /// some slot needs them.
  IntegerSums take_others(std::int64_t begin, std::int64_t position) {
    std::int32_t* sums = sums_.data() + (position - begin) * kSlots;
    IntegerSums integers(sums);
    std::fill_n(sums, kSlots, 0);
    if (any_heavy_) {
      for (const auto& pair : tiers_.middle(position)) add(pair, integers);
    }
    return integers;
  }

  /// Lists a row for the slots of `hits`.
  void report(std::uint32_t hits, std::int32_t row, const Scores& of_row, const PerSlot& biases,
              ViolatorLists& violators) {
    PerSlot in_units;
    store(in_units.data(), of_row[0]);
    store(in_units.data() + kLanes, of_row[1]);
    for (; hits != 0; hits &= hits - 1) {
      const int slot = __builtin_ctz(hits);
      const auto score = static_cast<float>(biases[slot] + weights_.unit[slot] * in_units[slot]);
      if (violators.add(slot, {row, score})) find_bound(slot, biases, violators);
    }
  }

  const FeatureTiers& tiers_;
  const TierWeights& weights_;
  std::array<std::int32_t, kSlots> bounds_ = {};  // that sums of listed rows must exceed
  PerSlot float_bounds_ = {};                     // the same
  std::vector<RareList> inside_;                  // the lists within a stretch, for one slot
  std::array<Sorted, kSlots> sorted_;
  HugeArray<std::int32_t> sums_;  // of kPart rows over other features; zero between parts
  std::array<std::uint8_t, kPart> touched_ = {};  // whether such a sum may not be zero
  bool any_heavy_ = false;                        // whether some slot has its middle features added
};

}  // namespace dismec::solve
