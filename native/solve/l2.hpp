// The penalty ½‖w‖²: a label's working set → its weights there, and with the violators of a pass →
// whether the label is solved. docs/explanation/solver.md explains why the result is the optimum
// over all rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "solve/full_pass.hpp"
#include "solve/growth.hpp"
#include "solve/penalty.hpp"
#include "solve/rows.hpp"
#include "solve/subspace.hpp"
#include "solve/work_sharing.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

class L2 {
 public:
  static constexpr std::int32_t kMostSteps = std::numeric_limits<std::int32_t>::max();
  static constexpr bool kHasGroups = false;

  struct State {
    Goal goal;
    SubspaceSolver::Minimum minimum;  // of the last round
  };

  L2(const Transformed& X, const Summary& summary, double tolerance, WorkSharing& sharing)
      : X_(X), summary_(summary), tolerance_(tolerance), sharing_(sharing) {}

  State begin(const WorkingSet& set) { return {goal_of(set), {}}; }

  template <typename Stop>
  Minimized minimize(State& state, WorkingSet& set, float C, const Stop& stop) {
    const bool further = passes_are_expensive(X_) && set.size() <= growth_limits::kMany;
    SubspaceSolver solver(set, X_, summary_, C, scratch_, sharing_);
    state.minimum = solver.minimize(state.goal, further ? 0.001 : 0.003, stop);
    return {state.minimum.steps, state.minimum.n_active, scratch_.slack};
  }

  /// Whether the gradient over all rows is small enough, or rounding leaves nothing to gain.
  Verdict judge(const State& state, const WorkingSet& set, float C, FullPass& pass,
                int slot) const {
    const SubspaceSolver::Minimum& minimum = state.minimum;
    // With more violators than the set can add, the label is not solved, and their approximate
    // order is good enough unless they are many.
    const bool more = pass.more(slot);
    if (!more || minimum.n_active > growth_limits::kMany) pass.rescore(slot, set.vectors);
    const std::vector<Violator>& violators = pass.violators(slot);
    double violation = 0;
    double loss = 0;
    for (const Violator& v : violators) {
      const double slack = std::max(0.0, 1.0 + v.score);
      violation += X_.weight(v.row) * slack;
      loss += X_.weight(v.row) * slack * slack;
    }
    const double b = set.rows.cost().negative;
    violation *= b;
    loss *= b;
    // ∇f and ∇f_W differ by the rows outside, which only ∇f counts, and by their mean row, which
    // only ∇f_W counts.
    const double of_mean_row = minimum.mean_slack * set.weight_outside(summary_) * b;
    const double bound =
        minimum.gradient_norm + 2.0 * C * summary_.longest * (violation + of_mean_row);
    Verdict verdict;
    verdict.objective = minimum.objective + C * (loss - minimum.mean_slack * of_mean_row);
    const double allowed = state.goal.gradient_allowed(verdict.objective, C);
    verdict.stop_ratio = bound == 0 ? 0.0 : bound / allowed;
    // No step was possible: rounding leaves nothing to gain.
    const bool stuck = violators.empty() && !more && minimum.steps == 0;
    verdict.done = (verdict.stop_ratio <= 1 && !more) || stuck;
    return verdict;
  }

 private:
  /// LIBLINEAR's rule, ‖∇f(w)‖ ≤ ε · max(min(pos, neg), 1)/N · ‖∇f(0)‖, where
  /// ∇f(0) = 2C·(b·Σ_all v·x − (a + b)·Σ_pos v·x), and a gap of at most a tenth of ε. With pair
  /// weights u, (a + b)·Σ_pos v·x becomes Σ_pos (a·u + b)·v·x + b·Σ_neg (1 − u)·v·x, and rows with
  /// u = 0 are not counted; a soft positive adds −b·(1 − u)·v·x. `set` holds the positives and the
  /// rows with a pair weight.
  Goal goal_of(const WorkingSet& set) {
    const SetRows& rows = set.rows;
    const auto factor = set.factor(X_);
    std::int64_t n_left_out = 0;
    for (std::int64_t i = 0; i < rows.size(); ++i) n_left_out += rows.pair_weight(i) == 0;
    const auto pos = static_cast<double>(rows.n_positive());
    const auto neg = static_cast<double>(X_.size() - rows.n_positive() - n_left_out);
    const auto [a, b] = rows.cost();
    const double both = a + b;
    // The factor of a row in the second sum, divided by (a + b).
    const auto weight_at = [&](std::int64_t i) {
      const float v = X_.weight(rows[i]);
      if (!rows.has_pair_weights()) return v;
      const double u = rows.pair_weight(i);
      const double share = i < rows.n_positive() ? a * u + b : b * ((rows.is_again(i) ? 0 : 1) - u);
      return static_cast<float>(v * share / both);
    };
    double weight = rows.has_pair_weights() ? 0.0 : rows.weight();
    std::vector<float>& sums = scratch_.gathered;
    sums.assign(set.vectors.size(), 0.0F);
    for (std::int64_t i = 0; i < set.size(); ++i) {
      add_scaled(weight_at(i), set.row(X_, i), sums.data() + X_.dense.width);
      if (rows.has_pair_weights()) weight += weight_at(i);
    }
    if (X_.dense.width > 0) {
      const auto row_at = [&](std::int64_t i) { return rows[i]; };
      add_dense_rows(X_.dense, 0, set.size(), row_at, weight_at, 0, X_.dense.width, sums.data());
    }
    double squared = b * b * summary_.sums_squared;
    const auto count = [&](double all, double positive) {
      squared += both * positive * (both * positive - 2 * b * all);
    };
    const std::int64_t n_dense = set.vectors.n_dense;
    for (std::int64_t f = 0; f < set.vectors.n_features(); ++f) {
      const bool as_it_is = factor.empty() || f < n_dense;
      count(summary_.sums[set.vectors.feature(f)],
            sums[f] * (as_it_is ? 1.0 : factor[f - n_dense]));
    }
    count(summary_.sums.back(), weight * X_.bias);
    const double at_zero = 2 * std::sqrt(std::max(squared, 0.0));  // divided by C
    const double rarer = std::max(std::min(pos, neg), 1.0);
    return {tolerance_ * rarer / (pos + neg) * at_zero, 0.1 * tolerance_};
  }

  const Transformed& X_;
  const Summary& summary_;
  double tolerance_;
  WorkSharing& sharing_;
  SubspaceScratch scratch_;
};

static_assert(Penalty<L2>);

}  // namespace dismec::solve
