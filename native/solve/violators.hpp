// Rows and their scores, as passes find them → for each label, the negatives outside its working
// set that may violate the margin, the worst of them if they are too many.
#pragma once

#include <algorithm>
#include <array>
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

/// A list of violators per slot.
class ViolatorLists {
 public:
  explicit ViolatorLists(std::int64_t n_rows) : own_(n_rows, 0), in_set_(own_.data()) {
    thresholds_.fill(kIdle);
  }
  ViolatorLists(const ViolatorLists&) = delete;
  ViolatorLists(ViolatorLists&&) = default;

  /// Lists for another thread, which looks at some of the rows; to be brought back by `take_in`
  /// before the next pass.
  ViolatorLists begin_more() const { return ViolatorLists(*this, in_set_); }
  void take_in(const ViolatorLists& others) {
    for (int slot = 0; slot < kSlots; ++slot) {
      auto& list = lists_[slot];
      list.insert(list.end(), others.lists_[slot].begin(), others.lists_[slot].end());
      more_[slot] = more_[slot] || others.more_[slot];
    }
  }

  /// Puts the rows of lists that are not too long into the order of `place`, which is that of a
  /// pass by one thread.
  template <typename Place>
  void sort(const Place& place) {
    for (int slot = 0; slot < kSlots; ++slot) {
      if (more_[slot] || is_full(slot)) continue;
      std::sort(lists_[slot].begin(), lists_[slot].end(),
                [&](const Violator& a, const Violator& b) { return place(a.row) < place(b.row); });
    }
  }

  /// The end of a pass. A list that was too long is cut down to the worst rows: these are the same
  /// whatever order rows came in, and whoever had a list of its own.
  void end() {
    for (int slot = 0; slot < kSlots; ++slot) {
      if (thresholds_[slot] == kIdle) continue;
      more_[slot] = more_[slot] || is_full(slot);
      if (more_[slot]) keep_worst(lists_[slot], most_[slot]);
    }
  }

  /// Says that a row is in the working set of a slot's label, and not to be listed. Rows are known
  /// by their places in the order in which passes look at them.
  void join(int slot, std::int64_t place) { in_set_[place] |= bit(slot); }
  void leave(int slot, std::int64_t place) { in_set_[place] &= ~bit(slot); }
  /// A bit for each slot in whose working set a row is.
  std::uint32_t joined(std::int64_t place) const { return in_set_[place]; }

  /// Begins a list: of the worst `most` rows above the threshold at least, and of all of them
  /// unless there are `more`.
  void begin(int slot, float threshold, std::int64_t most) {
    thresholds_[slot] = threshold;
    most_[slot] = most;
    more_[slot] = false;
    lists_[slot].clear();
  }
  /// No row is listed until the next `begin`.
  void close(int slot) {
    thresholds_[slot] = kIdle;
    lists_[slot] = {};
  }

  std::vector<Violator>& of(int slot) { return lists_[slot]; }
  bool more(int slot) const { return more_[slot]; }
  /// What a row has to score more than.
  float threshold(int slot) const { return thresholds_[slot]; }

  /// Lists a row that scores more than the threshold; says whether this is higher now.
  bool add(int slot, Violator violator) {
    std::vector<Violator>& list = lists_[slot];
    list.push_back(violator);
    if (!is_full(slot)) return false;
    // Only what is worse than the least of the worst so far can still matter, or a row of a smaller
    // number that scores the same.
    keep_worst(list, most_[slot]);
    thresholds_[slot] =
        std::nextafter(std::max_element(list.begin(), list.end(), worse)->score, -kIdle);
    more_[slot] = true;
    return true;
  }

  /// Lists a row, at the place of its number, for the slots for which it scores enough; `scores`
  /// are those of the first and the second half of the slots.
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
  std::uint32_t* in_set_;  // a bit per slot: the row at a place is in its set
  PerSlot thresholds_;     // kIdle where no label is at work
  std::array<std::int64_t, kSlots> most_ = {};
  std::array<bool, kSlots> more_ = {};
  std::array<std::vector<Violator>, kSlots> lists_;
};

}  // namespace dismec::solve
