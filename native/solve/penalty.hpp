// What the solver requires of a penalty, and what penalties share.
//
// A penalty is one type (l2.hpp, l1.hpp) that holds everything specific to it. Its `State` is what
// it remembers about one label between rounds; the numbers below are those of a round in
// docs/explanation/solver.md.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <vector>

#include "solve/full_pass.hpp"
#include "solve/rows.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

/// What is known about a label after a pass.
struct Verdict {
  double objective = 0;  // over all rows
  double gradient = 0;   // see SolvedLabel::gradient
  bool done = false;     // solved, or rounding leaves nothing to gain
};

/// At least this many violators may be added to a working set at a time, whatever its size.
inline constexpr std::int64_t kGrowth = 256;

/// The rows of the worst violators; the others are dropped. Rows of equal length are put next to
/// each other: loops over their features then have the same trip count, which a CPU can predict.
inline std::vector<std::int32_t> worst_rows(std::vector<Violator>& violators, std::int64_t most,
                                            const Transformed& X) {
  keep_worst(violators, most);
  std::vector<std::uint64_t> keys;
  keys.reserve(violators.size());
  for (const Violator& v : violators) {
    keys.push_back(static_cast<std::uint64_t>(X.x.nnz(v.row)) << 32 |
                   static_cast<std::uint32_t>(v.row));
  }
  std::sort(keys.begin(), keys.end());
  std::vector<std::int32_t> rows(keys.size());
  std::transform(keys.begin(), keys.end(), rows.begin(),
                 [](std::uint64_t key) { return static_cast<std::int32_t>(key); });
  return rows;
}

template <typename P>
concept Penalty = requires(P penalty, typename P::State state, WorkingSet set, float C,
                           FullPass pass, int slot, SetMemory memory, bool (*stop)()) {
  // A label is given up after this many steps.
  { P::kMostSteps } -> std::convertible_to<std::int32_t>;
  // `set` holds the positives; on a path of several C the goal is less strict.
  penalty.begin(state, set, C, /*on_path=*/true);
  // Whether a label starts with negatives near its positives, so that its first pass finds fewer.
  { penalty.begins_near(set) } -> std::same_as<bool>;
  // 1. Moves set.w to the minimum of f_W, or until it is time for a pass; returns the steps taken.
  { penalty.minimize(state, set, C, stop) } -> std::same_as<std::int32_t>;
  // 2. The least number of violators that the pass should report.
  { penalty.wanted(state, set) } -> std::same_as<std::int64_t>;
  // 3. Whether w is good enough over all rows.
  { penalty.judge(state, set, C, pass, slot) } -> std::same_as<Verdict>;
  // 4. Adds violators to the set.
  penalty.grow(state, set, pass, slot, memory);
  // On a path, C has grown by this factor.
  penalty.follow(state, /*ratio=*/C);
};

}  // namespace dismec::solve
