// The penalty ‖w‖₁: a label's working set → its weights there, and with the violators of a pass →
// whether the label is solved. docs/explanation/l1.md says how it differs from L2.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "solve/coordinates.hpp"
#include "solve/full_pass.hpp"
#include "solve/growth.hpp"
#include "solve/penalty.hpp"
#include "solve/rows.hpp"
#include "solve/work_sharing.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

class L1 {
 public:
  static constexpr std::int32_t kMostSteps = 50000;  // sweeps
  static constexpr bool kHasGroups = true;

  using State = CoordinateSolver::Minimum;  // of the last round

  /// A sweep updates one feature after another, each from the result of the last, so other threads
  /// cannot help.
  L1(const Transformed& X, const Summary& summary, double tolerance, WorkSharing&)
      : X_(X), summary_(summary), goal_(kGap * tolerance) {}

  State begin(const WorkingSet&) const { return {}; }

  template <typename Stop>
  Minimized minimize(State& minimum, WorkingSet& set, float C, const Stop& stop) {
    minimum = CoordinateSolver(set, X_, summary_, C, scratch_).minimize(goal_, stop);
    return {minimum.steps, set.size()};
  }

  /// Whether the gap over all rows is small enough, or rounding leaves nothing to gain.
  Verdict judge(const State& minimum, const WorkingSet& set, float C, FullPass& pass,
                int slot) const {
    const std::vector<Violator>& violators = pass.violators(slot);
    Verdict verdict;
    const auto measure = [&] {
      double loss = 0;
      for (const Violator& v : violators) {
        const double slack = std::max(0.0, 1.0 + v.score);
        loss += slack * slack;
      }
      const double more_loss = C * loss - minimum.outside_loss;
      verdict.objective = minimum.objective + more_loss;
      verdict.stop_ratio = std::max(0.0, minimum.gap + more_loss) / (goal_ * verdict.objective);
    };
    measure();
    // Exact scores are expensive where many rows are close to the margin. They are computed only
    // when the gap may be small enough, or when the rounded scores leave no violators to add.
    constexpr double kClose = 10;
    const bool some = std::any_of(violators.begin(), violators.end(),
                                  [](const Violator& v) { return v.score > -1.0F; });
    if (pass.more(slot) || !(minimum.reached || minimum.stalled) ||
        (verdict.stop_ratio > kClose && !minimum.stalled && some)) {
      return verdict;
    }
    pass.rescore(slot, set.vectors);
    measure();
    verdict.done =
        (verdict.stop_ratio <= 1 && minimum.reached) || (violators.empty() && minimum.stalled);
    return verdict;
  }

 private:
  // A label is solved when the gap, as a share of the objective, is at most this share of ε.
  static constexpr double kGap = 0.01;

  const Transformed& X_;
  const Summary& summary_;
  double goal_;
  CoordinateScratch scratch_;
};

static_assert(Penalty<L1>);

}  // namespace dismec::solve
