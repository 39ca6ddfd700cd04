// The penalty ‖w‖₁: a label's working set and the violators of a pass → whether the label is
// solved, and if not, a better set. docs/explanation/l1.md says how it differs from L2.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "solve/coordinates.hpp"
#include "solve/full_pass.hpp"
#include "solve/group.hpp"
#include "solve/penalty.hpp"
#include "solve/rows.hpp"
#include "solve/team.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

class L1 {
 public:
  static constexpr std::int32_t kMostSteps = 50000;  // sweeps

  struct State {
    // At least this many violators are requested; those that do not fit in the set form the group.
    std::int64_t wanted = 0;
    Group group;
    CoordinateSolver::Minimum minimum;
  };

  /// A sweep updates one feature after another, each from the result of the last, so other threads
  /// cannot help.
  L1(const Transformed& X, const Summary& summary, double tolerance, Team&)
      : X_(X), summary_(summary), goal_(kGap * tolerance) {}

  void begin(State& state, const WorkingSet& set, float, bool) const {
    state.wanted = kWanted;
    state.group.size = 0;
    state.group.sums.assign(set.w.size(), 0.0F);
  }

  bool begins_near(const WorkingSet&) const { return false; }

  template <typename Stop>
  std::int32_t minimize(State& state, WorkingSet& set, float C, const Stop& stop) {
    CoordinateSolver solver(set, state.group, X_, summary_, C, scratch_);
    state.minimum = solver.minimize(goal_, stop);
    return state.minimum.steps;
  }

  std::int64_t wanted(const State& state, const WorkingSet& set) const {
    return std::max(room(set), state.wanted);
  }

  /// Whether the gap over all rows is small enough, or rounding leaves nothing to gain.
  Verdict judge(const State& state, const WorkingSet& set, float C, FullPass& pass,
                int slot) const {
    const CoordinateSolver::Minimum& minimum = state.minimum;
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
      verdict.gradient = std::max(0.0, minimum.gap + more_loss) / (goal_ * verdict.objective);
    };
    measure();
    // Exact scores are expensive where many rows are close to the margin. They are computed only
    // when the gap may be small enough, or when the rounded scores leave no violators to add.
    constexpr double kClose = 10;
    const bool some = std::any_of(violators.begin(), violators.end(),
                                  [](const Violator& v) { return v.score > -1.0F; });
    if (pass.more(slot) || !(minimum.reached || minimum.stalled) ||
        (verdict.gradient > kClose && !minimum.stalled && some)) {
      return verdict;
    }
    pass.rescore(slot, set);
    measure();
    verdict.done =
        (verdict.gradient <= 1 && minimum.reached) || (violators.empty() && minimum.stalled);
    return verdict;
  }

  /// Drops rows that turned out to be outside the margin, and makes the violators that do not fit
  /// in the set the next group.
  void grow(State& state, WorkingSet& set, FullPass& pass, int slot, SetMemory& memory) {
    std::vector<Violator>& violators = pass.violators(slot);
    std::erase_if(violators, [](const Violator& v) { return v.score <= -1.0F; });
    // So many rows are close to the margin that some inside it may not have been reported.
    if (violators.empty() && pass.more(slot)) state.wanted *= 2;
    grouped_.clear();
    if (std::ssize(violators) > room(set)) {
      const auto rest = violators.begin() + room(set);
      std::nth_element(violators.begin(), rest, violators.end(), worse);
      for (auto v = rest; v != violators.end(); ++v) grouped_.push_back(v->row);
      std::sort(grouped_.begin(), grouped_.end());
    }
    append(set, X_, worst_rows(violators, room(set), X_), memory);
    assign(state.group, grouped_, set, X_, memory);
  }

  void follow(State&, float) const {}

 private:
  // A label is solved when the gap, as a share of the objective, is at most this share of ε.
  static constexpr double kGap = 0.01;
  static constexpr std::int64_t kWanted = std::int64_t{1} << 15;

  /// How many violators the set may add.
  static std::int64_t room(const WorkingSet& set) { return std::max(kGrowth, set.size()); }

  const Transformed& X_;
  const Summary& summary_;
  double goal_;
  CoordinateScratch scratch_;
  std::vector<std::int32_t> grouped_;
};

static_assert(Penalty<L1>);

}  // namespace dismec::solve
