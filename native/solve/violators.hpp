// Rows and scores, as passes find them → for each label, the negatives outside its working set that
// may violate the margin, or the worst of them if there are too many.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "solve/lanes.hpp"

namespace dismec::solve {

/// Labels scored together.
inline constexpr int kSlots = 2 * kLanes;
using PerSlot = std::array<float, kSlots>;

/// Empties a slot's buffer, and frees it if it has grown to a size that only frequent labels need.
template <typename T>
void empty(std::vector<T>& of_slot) {
  constexpr std::size_t kUsual = std::size_t{1} << 18;  // bytes
  of_slot.clear();
  if (of_slot.capacity() * sizeof(T) > kUsual) of_slot = {};
}
template <typename T>
std::int64_t bytes_of(const std::vector<T>& of_slot) {
  return std::ssize(of_slot) * static_cast<std::int64_t>(sizeof(T));
}

/// A negative row outside the working set whose score is, or may be, above −1.
struct Violator {
  std::int32_t row;
  float score;
};

/// Moves the worst `n`, those of the highest scores, to the front, unordered. Ties are broken by
/// row number, and rows must be distinct, so the order is total.
///
/// Quickselect on integer keys in this order. Whether a row is worse than another is
/// unpredictable, so nothing branches on it: what is above a pivot is compacted in position, and
/// the rest is copied.
inline void bring_worst(std::span<Violator> violators, std::int64_t n) {
  if (std::ssize(violators) <= n) return;
  const auto key = [](const Violator& v) {
    const auto bits = std::bit_cast<std::uint32_t>(v.score + 0.0F);  // −0 becomes 0
    const std::uint32_t ordered = bits ^ ((0U - (bits >> 31)) | 0x80000000U);
    return std::uint64_t{ordered} << 32 | ~static_cast<std::uint32_t>(v.row);
  };
  thread_local std::vector<std::uint64_t> kept, rest;
  kept.resize(violators.size());
  std::transform(violators.begin(), violators.end(), kept.begin(), key);
  std::int64_t begin = 0;  // everything before is certainly worse than everything after
  std::int64_t end = std::ssize(kept);
  while (begin < n && n < end) {
    const std::uint64_t a = kept[begin], b = kept[(begin + end) / 2], c = kept[end - 1];
    const std::uint64_t pivot = std::max(std::min(a, b), std::min(std::max(a, b), c));
    rest.resize(end - begin);
    std::int64_t above = begin;
    std::int64_t below = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const std::uint64_t k = kept[i];
      kept[above] = k;
      rest[below] = k;
      above += k > pivot;
      below += k < pivot;
    }
    kept[above] = pivot;
    std::copy_n(rest.begin(), below, kept.begin() + above + 1);
    if (above > n) {
      end = above;
    } else {
      begin = above + 1;
    }
  }
  std::transform(kept.begin(), kept.end(), violators.begin(), [](std::uint64_t k) {
    const auto ordered = static_cast<std::uint32_t>(k >> 32);
    const std::uint32_t bits = ordered ^ (((ordered >> 31) - 1U) | 0x80000000U);
    return Violator{static_cast<std::int32_t>(~static_cast<std::uint32_t>(k)),
                    std::bit_cast<float>(bits)};
  });
}

/// Keeps the worst `n`, unordered.
inline void keep_worst(std::vector<Violator>& violators, std::int64_t n) {
  if (std::ssize(violators) <= n) return;
  bring_worst(violators, n);
  violators.resize(n);
}

/// A list of violators per slot.
class ViolatorLists {
 public:
  explicit ViolatorLists(std::int64_t n_rows) : own_(n_rows, 0), in_set_(own_.data()) {
    thresholds_.fill(kIdle);
  }
  ViolatorLists(const ViolatorLists&) = delete;
  ViolatorLists(ViolatorLists&&) = default;

  /// Lists for another thread, which scores some of the rows; merge them with `take_in` before the
  /// next pass.
  ViolatorLists begin_more() const { return ViolatorLists(*this, in_set_); }
  void take_in(const ViolatorLists& others) {
    for (int slot = 0; slot < kSlots; ++slot) {
      auto& list = lists_[slot];
      list.insert(list.end(), others.lists_[slot].begin(), others.lists_[slot].end());
      more_[slot] = more_[slot] || others.more_[slot];
    }
  }

  /// Sorts the lists that are not too long by `position`, the order in which a single thread finds
  /// rows.
  template <typename Position>
  void sort(const Position& position) {
    for (int slot = 0; slot < kSlots; ++slot) {
      if (more_[slot] || is_full(slot)) continue;
      std::sort(
          lists_[slot].begin(), lists_[slot].end(),
          [&](const Violator& a, const Violator& b) { return position(a.row) < position(b.row); });
    }
  }

  /// Ends a pass. A list that is too long is cut down to the worst rows: these do not depend on the
  /// order of rows, or on which thread listed them.
  void end() {
    for (int slot = 0; slot < kSlots; ++slot) {
      if (thresholds_[slot] == kIdle) continue;
      more_[slot] = more_[slot] || is_full(slot);
      if (more_[slot]) keep_worst(lists_[slot], most_[slot]);
    }
  }

  /// Marks a row as a member of the working set of a slot's label: it is not listed. Rows are
  /// identified by their positions in the order of passes.
  void join(int slot, std::int64_t position) { in_set_[position] |= bit(slot); }
  void leave(int slot, std::int64_t position) { in_set_[position] &= ~bit(slot); }
  /// One bit per slot: set if the row is in the slot's working set.
  std::uint32_t joined(std::int64_t position) const { return in_set_[position]; }

  /// Begins a list of at least the worst `most` rows above the threshold, and of all of them unless
  /// `more` is set.
  void begin(int slot, float threshold, std::int64_t most) {
    thresholds_[slot] = threshold;
    most_[slot] = most;
    more_[slot] = false;
    lists_[slot].clear();
  }
  /// Lists no rows until the next `begin`.
  void close(int slot) {
    thresholds_[slot] = kIdle;
    empty(lists_[slot]);
  }

  std::vector<Violator>& of(int slot) { return lists_[slot]; }
  std::int64_t bytes(int slot) const { return bytes_of(lists_[slot]); }
  bool more(int slot) const { return more_[slot]; }
  /// The score that a row must exceed.
  float threshold(int slot) const { return thresholds_[slot]; }

  /// Lists a row that scores above the threshold; returns whether the threshold has risen.
  bool add(int slot, Violator violator) {
    std::vector<Violator>& list = lists_[slot];
    list.push_back(violator);
    if (!is_full(slot)) return false;
    // From now on, only rows can matter that are worse than the least bad row kept, or score the
    // same and have a smaller number.
    keep_worst(list, most_[slot]);
    float least = kIdle;
    for (const Violator& v : list) least = std::min(least, v.score);
    thresholds_[slot] = std::nextafter(least, -kIdle);
    more_[slot] = true;
    return true;
  }

  /// Lists a row, whose position is its number, for the slots for which it scores above the
  /// threshold; `scores` holds those of the first and of the second half of the slots.
  void look(std::int64_t row, const std::array<Lanes, 2>& scores) {
    std::uint32_t hits = greater(scores[0], load(thresholds_.data())) |
                         greater(scores[1], load(thresholds_.data() + kLanes)) << kLanes;
    hits &= ~in_set_[row];
    if (hits == 0) return;
    PerSlot stored;
    store(stored.data(), scores[0]);
    store(stored.data() + kLanes, scores[1]);
    for (; hits != 0; hits &= hits - 1) {
      const int slot = __builtin_ctz(hits);
      add(slot, {static_cast<std::int32_t>(row), stored[slot]});
    }
  }

 private:
  static constexpr float kIdle = std::numeric_limits<float>::infinity();

  ViolatorLists(const ViolatorLists& first, std::uint32_t* in_set)
      : in_set_(in_set), thresholds_(first.thresholds_), most_(first.most_) {}

  static std::uint32_t bit(int slot) { return std::uint32_t{1} << slot; }
  bool is_full(int slot) const { return std::ssize(lists_[slot]) >= 2 * most_[slot]; }

  std::vector<std::uint32_t> own_;
  std::uint32_t* in_set_;  // one bit per slot: the row at this position is in its set
  PerSlot thresholds_;     // kIdle where the slot is idle
  std::array<std::int64_t, kSlots> most_ = {};
  std::array<bool, kSlots> more_ = {};
  std::array<std::vector<Violator>, kSlots> lists_;
};

}  // namespace dismec::solve
