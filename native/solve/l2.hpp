// The penalty ½‖w‖²: a label's working set and the violators of a pass → whether the label is
// solved, and if not, a better set. docs/explanation/solver.md explains why the result is the
// optimum over all rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "solve/full_pass.hpp"
#include "solve/penalty.hpp"
#include "solve/rows.hpp"
#include "solve/subspace.hpp"
#include "solve/team.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

class L2 {
 public:
  static constexpr std::int32_t kMostSteps = std::numeric_limits<std::int32_t>::max();

  struct State {
    Goal goal;
    SubspaceSolver::Minimum minimum;
    std::int64_t n_active = 0;       // rows of the set inside the margin
    std::vector<std::int32_t> kept;  // places of the rows inside the margin or near it
    int rounds = 0;
    std::int64_t wider = 1;  // multiplies the number of violators requested
  };

  L2(const Transformed& X, const Summary& summary, double tolerance, Team& team)
      : X_(X),
        summary_(summary),
        tolerance_(tolerance),
        team_(team),
        growth_(growth_of(std::ssize(X.x.indices) + std::ssize(X.dense.values))) {}

  void begin(State& state, const WorkingSet& set, float C, bool on_path) {
    state.goal = goal_of(set, C);
    state.goal.trial = on_path;
  }

  /// Whether passes are so expensive that starting with rows near the positives pays off.
  bool begins_near(const WorkingSet& set) const {
    return is_large_data() || (growth_ >= kMedium && set.n_positive <= kFew);
  }

  template <typename Stop>
  std::int32_t minimize(State& state, WorkingSet& set, float C, const Stop& stop) {
    state.goal.reduction = is_large_data() && set.size() <= kMany ? 0.001 : 0.003;
    SubspaceSolver solver(set, X_, summary_, C, scratch_, team_);
    state.minimum = solver.minimize(state.goal, stop);
    ++state.rounds;
    sift(state, set);
    return state.minimum.steps;
  }

  /// Near the margin of a frequent label there are many rows that only rounding puts inside it:
  /// these must not crowd out real violators.
  std::int64_t wanted(const State& state, const WorkingSet&) const {
    return state.wider * room(state) * (state.n_active > kMany ? 2 : 1);
  }

  /// Whether the gradient over all rows is small enough, or rounding leaves nothing to gain.
  Verdict judge(const State& state, const WorkingSet& set, float C, FullPass& pass,
                int slot) const {
    const SubspaceSolver::Minimum& minimum = state.minimum;
    // With more violators than the set can add, the label is not solved, and their approximate
    // order is good enough unless they are many.
    const bool more = pass.more(slot);
    if (!more || state.n_active > kMany) pass.rescore(slot, set);
    const std::vector<Violator>& violators = pass.violators(slot);
    double violation = 0;
    double loss = 0;
    for (const Violator& v : violators) {
      const double slack = std::max(0.0, 1.0 + v.score);
      violation += X_.weight(v.row) * slack;
      loss += X_.weight(v.row) * slack * slack;
    }
    violation *= set.cost.negative;
    loss *= set.cost.negative;
    // ∇f and ∇f_W differ by the rows outside, which only ∇f counts, and by their stand-in, which
    // only ∇f_W counts.
    const double stand_in = minimum.mean_slack * weight_outside(set, summary_) * set.cost.negative;
    const double bound =
        minimum.gradient_norm + 2.0 * C * summary_.longest * (violation + stand_in);
    const double stand_in_loss = minimum.mean_slack * stand_in;
    Verdict verdict;
    verdict.objective = minimum.objective + C * (loss - stand_in_loss);
    const double allowed = state.goal.gradient_allowed(verdict.objective);
    verdict.gradient = bound == 0 ? 0.0 : bound / allowed;
    // No step was possible: rounding leaves nothing to gain.
    const bool stuck = violators.empty() && !more && minimum.steps == 0;
    verdict.done = (verdict.gradient <= 1 && !more) || stuck;
    return verdict;
  }

  /// Adds the worst violators, and drops the rows far outside the margin if there are many.
  void grow(State& state, WorkingSet& set, FullPass& pass, int slot, SetMemory& memory) const {
    // So many rows are close to the margin that some inside it may not have been reported.
    const bool crowded = std::ssize(pass.violators(slot)) < room(state);
    if (crowded && pass.more(slot)) state.wider *= 4;
    const auto added = worst_rows(pass.violators(slot), room(state), X_);
    if (static_cast<double>(state.kept.size()) < kNear * static_cast<double>(set.size()) &&
        state.rounds < kDroppingRounds) {
      replace_rows(set, X_, state.kept, added, memory);
    } else {
      append(set, X_, added, memory);
    }
  }

  void follow(State& state, float ratio) const { state.goal.liblinear *= ratio; }

 private:
  // Larger sets are solved less exactly in early rounds; with more rows inside the margin than
  // this, violators get exact scores before they are added.
  static constexpr std::int64_t kMany = 4096;
  // Rows this far outside the margin are dropped if no more than this share of the set is nearer,
  // but only in this many rounds, so that every label terminates.
  static constexpr float kFar = 0.1F;
  static constexpr double kNear = 0.7;
  static constexpr int kDroppingRounds = 50;
  // If more than kLarge rows may be added per round, a pass is so expensive that labels start near
  // their positives; from kMedium on, that pays off for labels of at most kFew rows.
  static constexpr std::int64_t kLarge = 512;
  static constexpr std::int64_t kMedium = 256;
  static constexpr std::int64_t kFew = 32;

  bool is_large_data() const { return growth_ > kLarge; }

  /// The least number of rows that may be added per round. It grows with X, because a pass then
  /// costs more and a set does not.
  static std::int64_t growth_of(std::int64_t n_nonzeros) {
    const std::int64_t some = std::clamp<std::int64_t>(n_nonzeros >> 14, 160, 256);
    return std::clamp<std::int64_t>(n_nonzeros >> 15, some, 1024);
  }

  /// How many rows may be added in this round.
  std::int64_t room(const State& state) const { return std::max(growth_, state.n_active); }

  /// Records which rows of the set are inside the margin, and which are not far outside.
  void sift(State& state, const WorkingSet& set) const {
    state.kept.clear();
    state.n_active = 0;
    const float far = -kFar * set.negative_root;
    for (std::int64_t i = 0; i < set.size(); ++i) {
      state.n_active += scratch_.slack[i] > 0;
      if (i < set.n_fixed() || scratch_.slack[i] > far * set.weight_root(i)) {
        state.kept.push_back(static_cast<std::int32_t>(i));
      }
    }
  }

  /// LIBLINEAR's rule, ‖∇f(w)‖ ≤ ε · max(min(pos, neg), 1)/N · ‖∇f(0)‖, where
  /// ∇f(0) = 2C·(b·Σ_all v·x − (a + b)·Σ_pos v·x), and a gap of at most a tenth of ε. With pair
  /// weights u, (a + b)·Σ_pos v·x becomes Σ_pos (a·u + b)·v·x + b·Σ_neg (1 − u)·v·x, and rows with
  /// u = 0 are not counted. `set` holds the positives and the rows with a pair weight.
  Goal goal_of(const WorkingSet& set, float C) {
    const auto factor = set.factor(X_);
    const auto n_left_out = std::ranges::count(set.pair_weights, 0.0F);
    const auto pos = static_cast<double>(set.n_positive);
    const auto neg = static_cast<double>(X_.size() - set.n_positive - n_left_out);
    const double b = set.cost.negative;
    const double both = set.cost.positive + b;
    // The factor of a row in the second sum, divided by (a + b).
    const auto weight_at = [&](std::int64_t i) {
      const float v = X_.weight(set.rows[i]);
      if (!set.has_pair_weights()) return v;
      const double u = set.pair_weights[i];
      const double share = i < set.n_positive ? set.cost.positive * u + b : b * (1 - u);
      return static_cast<float>(v * share / both);
    };
    double weight = set.has_pair_weights() ? 0.0 : set.weight_inside;
    std::vector<float>& sums = scratch_.gathered;
    sums.assign(set.w.size(), 0.0F);
    for (std::int64_t i = 0; i < set.size(); ++i) {
      add_scaled(weight_at(i), set.row(X_, i), sums.data() + X_.dense.width);
      if (set.has_pair_weights()) weight += weight_at(i);
    }
    if (X_.dense.width > 0) {
      const auto row_at = [&](std::int64_t i) { return set.rows[i]; };
      add_dense_rows(X_.dense, 0, set.size(), row_at, weight_at, 0, X_.dense.width, sums.data());
    }
    double squared = b * b * summary_.sums_squared;
    const auto count = [&](double all, double positive) {
      squared += both * positive * (both * positive - 2 * b * all);
    };
    const auto n_dense = static_cast<std::size_t>(set.n_dense);
    for (std::size_t f = 0; f + 1 < set.w.size(); ++f) {
      const bool as_it_is = factor.empty() || f < n_dense;
      count(summary_.sums[set.feature(f)], sums[f] * (as_it_is ? 1.0 : factor[f - n_dense]));
    }
    count(summary_.sums.back(), weight * X_.bias);
    const double at_zero = 2 * C * std::sqrt(std::max(squared, 0.0));
    const double rarer = std::max(std::min(pos, neg), 1.0);
    return {tolerance_ * rarer / (pos + neg) * at_zero, 0.1 * tolerance_};
  }

  const Transformed& X_;
  const Summary& summary_;
  double tolerance_;
  Team& team_;
  std::int64_t growth_;  // least number of rows that may be added per round
  SubspaceScratch scratch_;
};

static_assert(Penalty<L2>);

}  // namespace dismec::solve
