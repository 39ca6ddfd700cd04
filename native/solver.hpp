// One-vs-rest labels → pruned weights: min ½‖w‖² + C·Σ_i max(0, 1 − s_i·w·x_i)² for each label.
//
// A label is solved on a working set: minimise there (newton.hpp), look at all rows once
// (full_pass.hpp, sixteen labels at a time), take in the rows that are on the wrong side of the
// margin, repeat. docs/solver.md says why the result is the optimum over all rows.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "full_pass.hpp"
#include "newton.hpp"
#include "rows.hpp"
#include "working_set.hpp"

namespace dismec {

struct SolverOptions {
  float C = 1.0F;
  double tolerance = 0.01;  // LIBLINEAR's ε
  float delta = 0.01F;      // weights below are dropped
};

/// The row numbers of each label's positives.
struct Positives {
  std::span<const std::int64_t> indptr;
  std::span<const std::int32_t> rows;
  std::span<const std::int32_t> of(std::int64_t label) const {
    return rows.subspan(indptr[label], indptr[label + 1] - indptr[label]);
  }
};

struct SolvedLabel {
  std::vector<std::int32_t> features;  // ascending; n_features is the bias
  std::vector<float> weights;
  double objective = 0;  // before pruning
  double gradient = 0;   // upper bound of ‖∇f(w)‖ over what the stopping rule allows: ≤ 1 is solved
  std::int32_t passes = 0;
  std::int32_t steps = 0;
  std::int32_t products = 0;
  std::int64_t set_size = 0;
};

namespace solver_limits {
inline constexpr int kPasses = 1000;
// At least this many violators come in after a pass, or as many as the set has rows.
inline constexpr std::int64_t kGrowth = 192;
// The sub-problem is solved to this share of the tolerance; the rest is for rows outside.
inline constexpr double kInnerShare = 0.15;
}  // namespace solver_limits

/// LIBLINEAR's rule: the largest ‖∇f(w)‖ allowed, ε · max(min(pos, neg), 1)/N · ‖∇f(0)‖, where
/// ∇f(0) = 2C·(Σ_all x − 2·Σ_pos x). `set` holds the positives only.
inline double gradient_allowed(const WorkingSet& set, const Summary& summary,
                               const SolverOptions& options) {
  const auto& sums = summary.sums;
  double squared = summary.sums_squared;
  for (std::size_t f = 0; f < set.w.size(); ++f) {
    const bool bias = f + 1 == set.w.size();
    const double all = sums[bias ? sums.size() - 1 : set.compact ? set.features[f] : f];
    const double positive = all - set.outside[f];
    squared += 4 * positive * (positive - all);
  }
  const double n = set.n_outside + static_cast<double>(set.size());
  const double rarer = std::min(static_cast<double>(set.size()), set.n_outside);
  return options.tolerance * std::max(rarer, 1.0) / n * 2 * options.C *
         std::sqrt(std::max(squared, 0.0));
}

/// One label on its way through rounds of sub-problem and pass.
struct Task {
  std::int64_t job = -1;  // which of the labels asked for; −1: the lane is idle
  WorkingSet set;
  NewtonResult newton;
  double allowed = 0;
  SolvedLabel out;
};

/// Solves labels one lane each; an idle lane takes the next label. What a label's weights become
/// depends on nothing but X, its positives and the options.
class Solver {
 public:
  Solver(const Rows& X, const Summary& summary, const SolverOptions& options)
      : X_(X), summary_(summary), options_(options), pass_(X), local_of_(X.n_features, -1) {}

  /// One result a label; `stop()` is asked often, and once it is true the results are incomplete.
  template <typename Stop>
  std::vector<SolvedLabel> solve(const Positives& positives, std::span<const std::int64_t> labels,
                                 const Stop& stop) {
    std::vector<SolvedLabel> solved(labels.size());
    std::int64_t next = 0;
    int busy = 0;
    const auto refill = [&](int lane) {
      Task& task = tasks_[lane];
      task.job = -1;
      while (next < std::ssize(labels) && task.job < 0) {
        const auto rows = positives.of(labels[next]);
        if (!rows.empty()) start(lane, next, rows);
        ++next;
      }
      busy += task.job >= 0;
    };
    for (int lane = 0; lane < kLanes; ++lane) refill(lane);
    while (busy > 0 && !stop()) {
      for (int lane = 0; lane < kLanes; ++lane) {
        if (tasks_[lane].job >= 0) solve_set(lane, stop);
      }
      pass_.run(stop);
      for (int lane = 0; lane < kLanes; ++lane) {
        Task& task = tasks_[lane];
        if (task.job < 0 || !close_or_grow(lane)) continue;
        solved[task.job] = std::move(task.out);
        --busy;
        refill(lane);
      }
    }
    return solved;
  }

 private:
  void start(int lane, std::int64_t job, std::span<const std::int32_t> positives) {
    Task& task = tasks_[lane];
    task.job = job;
    task.out = SolvedLabel{};
    begin(task.set, X_, summary_.sums, positives, local_of_);
    task.allowed = gradient_allowed(task.set, summary_, options_);
    pass_.open(lane, positives);
  }

  template <typename Stop>
  void solve_set(int lane, const Stop& stop) {
    Task& task = tasks_[lane];
    task.newton = minimise(task.set, X_, options_.C, solver_limits::kInnerShare * task.allowed,
                           scratch_, stop);
    task.out.steps += task.newton.steps;
    task.out.products += task.newton.products;
    pass_.set_weights(lane, task.set);
  }

  /// Finishes the label if the gradient over all rows is small enough, else takes in violators.
  bool close_or_grow(int lane) {
    Task& task = tasks_[lane];
    std::vector<Violator>& violators = pass_.violators(lane);
    double violation = 0;
    double loss = 0;
    for (const Violator& v : violators) {
      const double slack = 1.0 + v.score;
      violation += slack;
      loss += slack * slack;
    }
    // ∇f and ∇f_W differ by the rows outside, which count in the one and not in the other, and by
    // their stand-in, which counts in the other only.
    const double stand_in = static_cast<double>(task.newton.mean_slack) * task.set.n_outside;
    const double bound =
        task.newton.gradient_norm + 2.0 * options_.C * summary_.longest * (violation + stand_in);
    ++task.out.passes;
    task.out.gradient = task.allowed > 0 ? bound / task.allowed : bound > 0 ? INFINITY : 0.0;
    const bool stuck = violators.empty() && stand_in == 0 && !task.newton.reached;
    if (task.out.gradient <= 1 || stuck || task.out.passes >= solver_limits::kPasses ||
        (violators.empty() && task.newton.reached)) {
      finish(lane, loss);
      return true;
    }
    const std::int64_t room = std::max(solver_limits::kGrowth, task.set.size());
    if (std::ssize(violators) > room) {
      // The worst first; equals by row number, so that the choice is unique.
      std::nth_element(violators.begin(), violators.begin() + room, violators.end(),
                       [](const Violator& a, const Violator& b) {
                         return a.score > b.score || (a.score == b.score && a.row < b.row);
                       });
      violators.resize(room);
    }
    added_.clear();
    for (const Violator& v : violators) added_.push_back(v.row);
    std::sort(added_.begin(), added_.end());
    append(task.set, X_, summary_.sums, added_, local_of_);
    pass_.join(lane, added_);
    return false;
  }

  void finish(int lane, double outside_loss) {
    Task& task = tasks_[lane];
    const WorkingSet& set = task.set;
    const double stand_in = static_cast<double>(task.newton.mean_slack) * task.newton.mean_slack;
    task.out.objective =
        task.newton.objective + options_.C * (outside_loss - set.n_outside * stand_in);
    task.out.set_size = set.size();
    order_.clear();
    for (std::size_t f = 0; f < set.w.size(); ++f) {
      if (set.w[f] != 0 && std::abs(set.w[f]) >= options_.delta) {
        const bool bias = f + 1 == set.w.size();
        const std::int64_t feature = bias ? X_.n_features : set.compact ? set.features[f] : f;
        order_.push_back({static_cast<std::int32_t>(feature), set.w[f]});
      }
    }
    std::sort(order_.begin(), order_.end(),
              [](const Weight& a, const Weight& b) { return a.feature < b.feature; });
    for (const Weight& weight : order_) {
      task.out.features.push_back(weight.feature);
      task.out.weights.push_back(weight.value);
    }
    pass_.close(lane, set);
  }

  struct Weight {
    std::int32_t feature;
    float value;
  };

  const Rows& X_;
  const Summary& summary_;
  SolverOptions options_;
  FullPass pass_;
  std::array<Task, kLanes> tasks_;
  NewtonScratch scratch_;
  std::vector<std::int32_t> local_of_;
  std::vector<std::int32_t> added_;
  std::vector<Weight> order_;
};

}  // namespace dismec
