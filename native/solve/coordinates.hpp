// One label's working set and a target accuracy → its weights there under the L1 penalty: features
// are chosen, swept (sweeps.hpp) and chosen again, until the duality gap is small.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "solve/rows.hpp"
#include "solve/set_products.hpp"
#include "solve/sweeps.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

namespace coordinate_limits {
// At most this many violating features are added per round, or as many as have weights already,
// whichever is more.
inline constexpr std::int64_t kGrowth = 64;
// The chosen features are swept until their violation is this share of what it was over all
// features.
inline constexpr double kSweepReduction = 0.1;
inline constexpr double kLeastReduction = 1e-4;
// The sub-problem is solved to this share of the goal; the rest is left for the rows outside.
inline constexpr double kShare = 0.5;
// Or until the gap is this share of what it was: more rows are about to be added anyway.
inline constexpr double kReduction = 0.01;
// A gain of less than this share of the goal means that only rounding keeps the gap open.
inline constexpr double kStalled = 1e-3;
}  // namespace coordinate_limits

/// Buffers that live as long as their thread, so that they are allocated once. Those over rows have
/// one extra entry per mean row.
struct CoordinateScratch {
  std::vector<double> slack;  // 1 − s_i·w·x_i
  std::vector<float> gradient, scaled, sums;
  std::vector<float> factors;           // factor of each row in the gradient
  std::vector<std::int32_t> active;     // rows whose factor is not 0
  std::vector<std::int32_t> chosen;     // features
  std::vector<std::int32_t> column_of;  // index in `chosen`; −1 for the others
  Columns columns;                      // of the chosen features
  /// An entry on its way to its column.
  struct Unsorted {
    std::int32_t column;
    Entry entry;
  };
  std::vector<Unsorted> unsorted;
  std::vector<std::int64_t> next;
  SweepScratch sweeps;
};

/// Minimizes f_W(w) = ‖w‖₁ + C·Σ_{i in W} max(0, 1 − s_i·w·x_i)² + C·n_out·max(0, 1 + w·mean)²
/// starting from the set's w, where `mean` is the mean of the n_out rows outside. A group of these
/// rows can be split off: the group and the rest then have a mean row each.
class CoordinateSolver {
 public:
  struct Minimum {
    double objective = 0;
    double gap = 0;           // objective minus a lower bound of the minimum over all rows
    double gap_here = 0;      // objective minus a lower bound of the sub-problem's minimum
    double outside_loss = 0;  // C·Σ slack² of the mean rows
    int steps = 0;            // sweeps
    bool reached = false;     // the goal was reached
    bool stalled = false;     // rounding leaves nothing to gain
  };

  CoordinateSolver(WorkingSet& set, const Transformed& X, const Summary& summary, float C,
                   CoordinateScratch& scratch)
      : set_(set),
        w_(set.vectors.w),
        n_dense_(set.vectors.n_dense),
        group_sums_(set.group.sums),
        X_(X),
        summary_(summary),
        C_(C),
        factor_(set.factor(X)),
        s_(scratch) {
    const auto mean_row = [](std::int64_t n) {
      const double root = std::sqrt(static_cast<double>(n));
      return MeanRow{root, n > 0 ? 1 / root : 0.0};
    };
    rest_ = mean_row(X.size() - set.size() - set.group.size);
    group_ = mean_row(set.group.size);
    set.vectors.find_sums(summary);
    s_.sums = set.vectors.sums;
    for (std::size_t f = 0; f < w_.size(); ++f) s_.sums[f] -= group_sums_[f];
    s_.column_of.assign(w_.size(), -1);
  }

  /// Runs until the gap has reached the goal (a share of the objective), or has shrunk so much that
  /// it is time to look at the other rows again.
  template <typename Stop>
  Minimum minimize(double goal, const Stop& stop) {
    using namespace coordinate_limits;
    Minimum result;
    double far_enough = 0;
    double reduction = kSweepReduction;
    double before = std::numeric_limits<double>::infinity();
    find_slack();
    for (;;) {
      find_gradient();
      measure(result);
      if (result.steps == 0) far_enough = kReduction * result.gap_here;
      result.reached = result.gap_here <= kShare * goal * result.objective;
      if (result.reached || result.gap_here <= far_enough) break;
      if (before - result.objective <= kStalled * goal * result.objective) {
        result.stalled = reduction < kLeastReduction;
        reduction *= kSweepReduction;
      }
      if (result.stalled || result.steps >= sweep_limits::kSweeps || stop()) break;
      before = result.objective;
      const double limit = reduction * choose();
      gather_entries();
      Sweeps(s_.columns, s_.slack, C_, s_.sweeps).descend(limit, result.steps, stop);
      for (std::size_t c = 0; c < s_.chosen.size(); ++c) {
        w_[s_.chosen[c]] = static_cast<float>(s_.columns.w[c]);
        s_.column_of[s_.chosen[c]] = -1;
      }
    }
    return result;
  }

 private:
  /// √n times the mean of n rows, so that its squared slack counts n times.
  struct MeanRow {
    double root;   // √n
    double share;  // 1/√n
  };

  std::int64_t n_rows() const { return set_.size() + 2; }
  std::int64_t rest() const { return set_.size(); }
  std::int64_t group() const { return set_.size() + 1; }
  double active(std::int64_t row) const { return std::max(0.0, s_.slack[row]); }

  void find_slack() {
    s_.slack.resize(n_rows());
    const double sum = each_score(set_, X_, w_, s_.scaled, [&](std::int64_t i, float score) {
      s_.slack[i] = 1 - set_.rows.signed_root(i) * score;
    });
    s_.slack[rest()] = rest_.root + rest_.share * (inner(s_.sums, w_) - sum);
    s_.slack[group()] = group_.root + group_.share * inner(group_sums_, w_);
  }

  /// 2C·X_Iᵀ(X_I w − s_I) over the active rows I.
  void find_gradient() {
    const std::size_t n = w_.size();
    const std::int64_t m = set_.size();
    const auto twoC = static_cast<float>(2 * C_);
    const auto of_rest = static_cast<float>(twoC * active(rest()) * rest_.share);
    const auto of_group = static_cast<float>(twoC * active(group()) * group_.share);
    s_.gradient.assign(n, 0.0F);
    s_.factors.assign(m, 0.0F);
    s_.active.clear();
    float* sparse = s_.gradient.data() + n_dense_;
    double total = 0;
    for (std::int64_t i = 0; i < m; ++i) {
      const auto slack = static_cast<float>(active(i));
      const float t = -twoC * set_.rows.signed_root(i) * slack - of_rest;
      if (t == 0) continue;
      add_scaled(t, set_.row(X_, i), sparse);
      total += t;
      s_.factors[i] = t;
      s_.active.push_back(static_cast<std::int32_t>(i));
    }
    for (std::size_t j = 0; j < factor_.size(); ++j) sparse[j] *= factor_[j];
    if (n_dense_ > 0) {
      const auto& active = s_.active;
      add_many_dense_rows(
          X_.dense, std::ssize(active), [&](std::int64_t k) { return set_.rows[active[k]]; },
          [&](std::int64_t k) { return s_.factors[active[k]]; }, s_.gradient.data());
    }
    s_.gradient.back() = static_cast<float>(total * X_.bias);
    const auto add = [&](float t, const std::vector<float>& sums) {
      if (t == 0) return;
      for (std::size_t j = 0; j < n; ++j) s_.gradient[j] = fused(t, sums[j], s_.gradient[j]);
    };
    add(of_rest, s_.sums);
    add(of_group, group_sums_);
  }

  /// Objective and gap. The dual problem is
  ///     max_α Σ_i α_i − α_i²/4C  where α ≥ 0 and |Σ_i α_i·s_i·x_ij| ≤ 1 for every feature j,
  /// and α_i = 2C·slack_i, divided by the largest of these sums, is a feasible point. Rows outside
  /// get the slack of their mean.
  void measure(Minimum& result) const {
    double loss = 0;
    double slacks = rest_.root * active(rest()) + group_.root * active(group());
    for (std::int64_t i = 0; i < set_.size(); ++i) slacks += active(i);
    for (std::int64_t i = 0; i < n_rows(); ++i) loss += active(i) * active(i);
    double norm = 0;
    for (const float w : w_) norm += std::abs(w);
    double largest = 1;
    for (const float g : s_.gradient) largest = std::max(largest, std::abs(double{g}));
    result.objective = norm + C_ * loss;
    const auto gap = [&](double divisor) {
      return result.objective - C_ * (2 * slacks - loss / divisor) / divisor;
    };
    result.gap_here = gap(largest);
    // Features that the set does not have: this sub-problem cannot reduce their sums.
    const double outside = std::max(active(rest()) * rest_.share, active(group()) * group_.share);
    if (outside > 0 && set_.vectors.compact) {
      largest = std::max(largest, 2 * C_ * outside * largest_sum_elsewhere());
    }
    result.gap = gap(largest);
    result.outside_loss =
        C_ * (active(rest()) * active(rest()) + active(group()) * active(group()));
  }

  /// max_j Σ_i |x_ij| over the features that no row of the set has.
  double largest_sum_elsewhere() const {
    s_.scaled = summary_.magnitudes;
    for (const auto j : set_.vectors.features) s_.scaled[j] = 0;
    return s_.scaled.empty() ? 0 : *std::max_element(s_.scaled.begin(), s_.scaled.end());
  }

  /// Chooses the features that have weights, and of the others those that violate the optimality
  /// condition most; returns the violation over all features.
  double choose() {
    using namespace coordinate_limits;
    auto& chosen = s_.chosen;
    chosen.clear();
    double broken = 0;
    const auto last = static_cast<std::int32_t>(w_.size()) - 1;
    for (std::int32_t f = 0; f < last; ++f) {
      broken += breach(w_[f], s_.gradient[f]);
      if (w_[f] != 0) chosen.push_back(f);
    }
    const std::int64_t n_weights = std::ssize(chosen);
    for (std::int32_t f = 0; f < last; ++f) {
      if (w_[f] == 0 && std::abs(s_.gradient[f]) > 1) chosen.push_back(f);
    }
    const std::int64_t most = n_weights + std::max(kGrowth, n_weights);
    if (std::ssize(chosen) > most) {
      const auto steeper = [&](std::int32_t a, std::int32_t b) {
        const float left = std::abs(s_.gradient[a]);
        const float right = std::abs(s_.gradient[b]);
        return left > right || (left == right && a < b);
      };
      std::nth_element(chosen.begin() + n_weights, chosen.begin() + most, chosen.end(), steeper);
      chosen.resize(most);
    }
    std::sort(chosen.begin(), chosen.end());
    if (X_.bias != 0) {
      broken += breach(w_.back(), s_.gradient.back());
      chosen.push_back(last);
    }
    return broken;
  }

  /// Copies the columns of the chosen features, with the mean rows as their last rows.
  void gather_entries() {
    const auto n = static_cast<std::int32_t>(s_.chosen.size());
    const std::int64_t m = set_.size();
    Columns& columns = s_.columns;
    columns.has_bias = X_.bias != 0;
    for (std::int32_t c = 0; c < n; ++c) s_.column_of[s_.chosen[c]] = c;
    // Dense features come first among the chosen ones. The entries of the others are collected row
    // by row, then sorted by feature; the bias is the last.
    const auto n_dense = static_cast<std::int32_t>(
        std::lower_bound(s_.chosen.begin(), s_.chosen.end(), n_dense_) - s_.chosen.begin());
    columns.n_dense = n_dense;
    s_.unsorted.clear();
    columns.starts.assign(n + 1, 0);
    const auto take = [&](std::int32_t column, std::int64_t i, float value) {
      s_.unsorted.push_back({column, {static_cast<std::int32_t>(i), value}});
      ++columns.starts[column + 1];
    };
    const std::int32_t* column_of = s_.column_of.data() + n_dense_;
    const auto take_row = [&](std::int64_t i, const Row& x, const auto* index) {
      const float scale = x.scale * set_.rows.signed_root(i);
      for (std::int64_t k = 0; k < x.size; ++k) {
        const std::int32_t column = column_of[index[k]];
        if (column < 0) continue;
        take(column, i, scale * x.value[k] * (factor_.empty() ? 1.0F : factor_[index[k]]));
      }
    };
    for (std::int64_t i = 0; i < m; ++i) {
      const Row x = set_.row(X_, i);
      x.narrow ? take_row(i, x, x.narrow) : take_row(i, x, x.index);
      if (columns.has_bias) take(n - 1, i, set_.rows.signed_root(i) * X_.bias);
    }
    for (std::int32_t c = n_dense; c < n; ++c)
      columns.starts[c + 1] += columns.starts[c] + 2;  // the mean rows
    columns.entries.resize(columns.starts[n]);
    s_.next.assign(columns.starts.begin(), columns.starts.end() - 1);
    for (const auto& [column, entry] : s_.unsorted) columns.entries[s_.next[column]++] = entry;
    columns.w.resize(n);
    columns.squares.resize(n);
    if (n_dense > 0) gather_dense();
    for (std::int32_t c = n_dense; c < n; ++c) {
      const auto of_set = std::span<const Entry>(columns.entries)
                              .subspan(columns.starts[c], s_.next[c] - columns.starts[c]);
      const auto [of_rest, of_group] = end_column(c, of_set);
      columns.entries[s_.next[c]] = {static_cast<std::int32_t>(rest()), of_rest};
      columns.entries[s_.next[c] + 1] = {static_cast<std::int32_t>(group()), of_group};
    }
  }

  /// Sets the weight and the sum of squares of a chosen feature, given its values in the rows of
  /// the set, and returns its values in the two mean rows.
  template <typename Numbers>
  std::array<float, 2> end_column(std::int32_t c, Numbers numbers) {
    double sum = 0;
    double squares = 0;
    each_number(numbers, [&](std::int64_t i, double x) {
      sum += set_.rows.signed_root(i) * x;
      squares += x * x;
    });
    const std::int32_t f = s_.chosen[c];
    const double of_rest = rest_.share * (s_.sums[f] - sum);
    const double of_group = group_.share * group_sums_[f];
    s_.columns.squares[c] = squares + of_rest * of_rest + of_group * of_group;
    s_.columns.w[c] = w_[f];
    return {static_cast<float>(-of_rest), static_cast<float>(-of_group)};
  }

  /// Copies the columns of the chosen dense features.
  void gather_dense() {
    Columns& columns = s_.columns;
    const auto n_dense = static_cast<std::int32_t>(columns.n_dense);
    columns.dense.resize(n_dense * n_rows());
    for (std::int64_t i = 0; i < set_.size(); ++i) {
      const std::int64_t r = set_.rows[i];
      const float* x = X_.dense.row(r);
      const float scale = X_.dense.scale[r] * set_.rows.signed_root(i);
      float* to = columns.dense.data() + i;
      for (std::int32_t c = 0; c < n_dense; ++c) to[c * n_rows()] = scale * x[s_.chosen[c]];
    }
    for (std::int32_t c = 0; c < n_dense; ++c) {
      const std::span<float> column = columns.dense_column(c);
      const auto [of_rest, of_group] = end_column(c, std::span<const float>(column.first(rest())));
      column[rest()] = of_rest;
      column[group()] = of_group;
    }
  }

  const WorkingSet& set_;
  std::vector<float>& w_;
  std::int64_t n_dense_;  // entries of vectors
  const std::vector<float>& group_sums_;
  const Transformed& X_;
  const Summary& summary_;
  double C_;
  std::span<const float> factor_;
  CoordinateScratch& s_;
  MeanRow rest_;
  MeanRow group_;
};

}  // namespace dismec::solve
