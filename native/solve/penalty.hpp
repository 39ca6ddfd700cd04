// What the solver requires of a penalty.
//
// A penalty is one type (l2.hpp, l1.hpp) that holds everything specific to it. Its `State` is what
// it remembers about one label between rounds; the numbers below are those of a round in
// docs/explanation/solver.md. How working sets grow is in growth.hpp.
#pragma once

#include <concepts>
#include <cstdint>

#include "solve/full_pass.hpp"
#include "solve/growth.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

/// What is known about a label after a pass.
struct Verdict {
  double objective = 0;   // over all rows
  double stop_ratio = 0;  // see SolvedLabel::stop_ratio
  bool done = false;      // solved, or rounding leaves nothing to gain
};

template <typename P>
concept Penalty = requires(P penalty, typename P::State state, WorkingSet set, float C,
                           FullPass pass, int slot, bool (*stop)()) {
  // A label is given up after this many steps.
  { P::kMostSteps } -> std::convertible_to<std::int32_t>;
  // Whether working sets have groups.
  { P::kHasGroups } -> std::convertible_to<bool>;
  // `set` holds the positives.
  { penalty.begin(set) } -> std::same_as<typename P::State>;
  // 1. Moves set.vectors.w to the minimum of f_W, or until it is time for a pass.
  { penalty.minimize(state, set, C, stop) } -> std::same_as<Minimized>;
  // 3. Whether w is good enough over all rows.
  { penalty.judge(state, set, C, pass, slot) } -> std::same_as<Verdict>;
};

}  // namespace dismec::solve
