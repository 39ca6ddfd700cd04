// The minimum on one label's working set under an L1 penalty, by descent along single weights.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "solve/rows.hpp"
#include "solve/subspace.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

namespace coordinate_limits {
inline constexpr int kSweeps = 1000;
// So many features that break the optimality condition come in at a time, or as many as have
// weights.
inline constexpr std::int64_t kGrowth = 64;
// Chosen features are swept until what they break the condition by is this share of what all did.
inline constexpr double kSweepReduction = 0.1;
inline constexpr double kLeastReduction = 1e-4;
// The sub-problem is solved to this share of the goal; the rest is for rows outside.
inline constexpr double kShare = 0.5;
// Or until the gap is this share of what it was: more rows are about to come in.
inline constexpr double kReduction = 0.01;
// A step has to gain this share of what the gradient promises.
inline constexpr double kDecrease = 0.01;
inline constexpr int kHalvings = 30;
// With a gain of less than this share of the goal it is the rounding that keeps the gap open.
inline constexpr double kStalled = 1e-3;
}  // namespace coordinate_limits

/// A non-zero of a chosen feature: the row's place in the set, and s_i·x_ij.
struct Entry {
  std::int32_t row;
  float value;
};

/// The same with the place of the feature among those chosen.
struct Found {
  std::int32_t place;
  Entry entry;
};

/// Vectors that live as long as a thread, to be allocated once. Those over rows have one entry more
/// for the stand-in.
struct CoordinateScratch {
  std::vector<double> slack;  // 1 − s_i·w·x_i
  std::vector<float> gradient, gathered, scaled, sums;
  std::vector<std::int32_t> chosen;    // features
  std::vector<std::int32_t> place_of;  // in `chosen`, −1 for others
  std::vector<std::int64_t> starts;    // of each chosen feature's entries
  std::vector<std::int64_t> next;
  std::vector<Found> found;
  std::vector<Entry> entries;
  std::vector<double> w, squares;  // of the chosen
  std::vector<double> old_w, old_slack, step, moved;
  std::array<Direction, kDirections> directions;  // over the chosen
  std::vector<float> left, none;                  // slack, in single precision
};

/// By how much 0 misses the subdifferential of |w| + (a function of this slope).
inline double breach(double w, double slope) {
  if (w > 0) return std::abs(slope + 1);
  if (w < 0) return std::abs(slope - 1);
  return std::max(std::abs(slope) - 1, 0.0);
}

/// Minimises f_W(w) = ‖w‖₁ + C·Σ_{i in W} max(0, 1 − s_i·w·x_i)² + C·n_out·max(0, 1 + w·mean)²
/// from set.w, where `mean` is that of the n_out rows outside.
class CoordinateSolver {
 public:
  CoordinateSolver(WorkingSet& set, const Transformed& X, const Summary& summary, float C,
                   CoordinateScratch& scratch)
      : set_(set), X_(X), summary_(summary), C_(C), factor_(set.factor(X)), s_(scratch) {
    const auto stand_in = [](std::int64_t n) {
      const double root = std::sqrt(static_cast<double>(n));
      return StandIn{root, n > 0 ? 1 / root : 0.0};
    };
    rest_ = stand_in(set.n_outside - set.n_group);
    group_ = stand_in(set.n_group);
    if (set.n_group == 0) set.group_sums.assign(set.w.size(), 0.0F);
    s_.sums.resize(set.w.size());
    for (std::size_t f = 0; f + 1 < set.w.size(); ++f) {
      s_.sums[f] = static_cast<float>(summary.sums[set.feature(f)]) - set.group_sums[f];
    }
    s_.sums.back() = static_cast<float>(summary.sums.back()) - set.group_sums.back();
    s_.place_of.assign(set.w.size(), -1);
  }

  /// Until the goal is reached, or the gap has become so much smaller that it is time to look at
  /// the other rows again.
  template <typename Stop>
  Minimum minimise(const Goal& goal, const Stop& stop) {
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
      result.reached = result.gap_here <= kShare * goal.gap * result.objective;
      if (result.reached || result.gap_here <= far_enough) break;
      if (before - result.objective <= kStalled * goal.gap * result.objective) {
        result.stalled = reduction < kLeastReduction;
        reduction *= kSweepReduction;
      }
      if (result.stalled || result.steps >= kSweeps || stop()) break;
      before = result.objective;
      const double limit = reduction * choose();
      gather_entries();
      descend(limit, result.steps, stop);
      for (std::size_t c = 0; c < s_.chosen.size(); ++c) {
        set_.w[s_.chosen[c]] = static_cast<float>(s_.w[c]);
        s_.place_of[s_.chosen[c]] = -1;
      }
    }
    return result;
  }

 private:
  /// A row for n others: √n times their mean, so that its squared slack counts n times.
  struct StandIn {
    double root;   // √n
    double share;  // 1/√n
  };

  std::int64_t n_rows() const { return set_.size() + 2; }
  std::int64_t rest() const { return set_.size(); }
  std::int64_t group() const { return set_.size() + 1; }
  std::span<const Entry> column(std::size_t c) const {
    return {s_.entries.data() + s_.starts[c], s_.entries.data() + s_.starts[c + 1]};
  }
  double active(std::int64_t row) const { return std::max(0.0, s_.slack[row]); }

  void find_slack() {
    const float* scaled = set_.w.data();
    if (!factor_.empty()) {
      s_.scaled = set_.w;
      for (std::size_t j = 0; j < factor_.size(); ++j) s_.scaled[j] *= factor_[j];
      scaled = s_.scaled.data();
    }
    const std::int64_t m = set_.size();
    const float shift = X_.bias * set_.w.back();
    double sum = 0;
    s_.slack.resize(n_rows());
    for (std::int64_t i = 0; i < m; ++i) {
      const float score = dot(set_.row(X_, i), scaled) + shift;
      sum += score;
      s_.slack[i] = 1 - set_.signed_root(i) * score;
    }
    s_.slack[rest()] = rest_.root + rest_.share * (inner(s_.sums, set_.w) - sum);
    s_.slack[group()] = group_.root + group_.share * inner(set_.group_sums, set_.w);
  }

  /// 2C·X_Iᵀ(X_I w − s_I) over the active rows I.
  void find_gradient() {
    const std::size_t n = set_.w.size();
    const std::int64_t m = set_.size();
    const auto twoC = static_cast<float>(2 * C_);
    const auto of_rest = static_cast<float>(twoC * active(rest()) * rest_.share);
    const auto of_group = static_cast<float>(twoC * active(group()) * group_.share);
    s_.gradient.assign(n, 0.0F);
    double total = 0;
    for (std::int64_t i = 0; i < m; ++i) {
      const auto slack = static_cast<float>(active(i));
      const float t = -twoC * set_.signed_root(i) * slack - of_rest;
      if (t == 0) continue;
      add_scaled(t, set_.row(X_, i), s_.gradient.data());
      total += t;
    }
    for (std::size_t j = 0; j < factor_.size(); ++j) s_.gradient[j] *= factor_[j];
    s_.gradient.back() = static_cast<float>(total * X_.bias);
    const auto add = [&](float t, const std::vector<float>& sums) {
      if (t == 0) return;
      for (std::size_t j = 0; j < n; ++j) s_.gradient[j] = fused(t, sums[j], s_.gradient[j]);
    };
    add(of_rest, s_.sums);
    add(of_group, set_.group_sums);
  }

  /// Objective and gap. The dual problem is
  ///     max_α Σ_i α_i − α_i²/4C  where α ≥ 0 and |Σ_i α_i·s_i·x_ij| ≤ 1 for every feature j,
  /// and α_i = 2C·slack_i, divided by the largest of these sums, is one of its points. Rows outside
  /// have the slack of their mean.
  void measure(Minimum& result) const {
    double loss = 0;
    double slacks = rest_.root * active(rest()) + group_.root * active(group());
    for (std::int64_t i = 0; i < set_.size(); ++i) slacks += active(i);
    for (std::int64_t i = 0; i < n_rows(); ++i) loss += active(i) * active(i);
    double norm = 0;
    for (const float w : set_.w) norm += std::abs(w);
    double largest = 1;
    for (const float g : s_.gradient) largest = std::max(largest, std::abs(double{g}));
    result.objective = norm + C_ * loss;
    const auto gap = [&](double divisor) {
      return result.objective - C_ * (2 * slacks - loss / divisor) / divisor;
    };
    result.gap_here = gap(largest);
    // Features that the set has not: not for this sub-problem to mend.
    const double outside = std::max(active(rest()) * rest_.share, active(group()) * group_.share);
    if (outside > 0 && set_.compact) {
      largest = std::max(largest, 2 * C_ * outside * largest_sum_elsewhere());
    }
    result.gap = gap(largest);
    result.outside_loss =
        C_ * (active(rest()) * active(rest()) + active(group()) * active(group()));
  }

  /// max_j Σ_i |x_ij| over the features that no row of the set has.
  double largest_sum_elsewhere() const {
    s_.scaled = summary_.magnitudes;
    for (const auto j : set_.features) s_.scaled[j] = 0;
    return s_.scaled.empty() ? 0 : *std::max_element(s_.scaled.begin(), s_.scaled.end());
  }

  /// Chooses the features that have weights, and those of the others that break the optimality
  /// condition most; returns by how much all features break it.
  double choose() {
    using namespace coordinate_limits;
    auto& chosen = s_.chosen;
    chosen.clear();
    double broken = 0;
    const auto last = static_cast<std::int32_t>(set_.w.size()) - 1;
    for (std::int32_t f = 0; f < last; ++f) {
      broken += breach(set_.w[f], s_.gradient[f]);
      if (set_.w[f] != 0) chosen.push_back(f);
    }
    const std::int64_t n_weights = std::ssize(chosen);
    for (std::int32_t f = 0; f < last; ++f) {
      if (set_.w[f] == 0 && std::abs(s_.gradient[f]) > 1) chosen.push_back(f);
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
      broken += breach(set_.w.back(), s_.gradient.back());
      chosen.push_back(last);
    }
    return broken;
  }

  /// Copies the columns of the chosen features, with the stand-in as their last row.
  void gather_entries() {
    const auto n = static_cast<std::int32_t>(s_.chosen.size());
    const std::int64_t m = set_.size();
    for (std::int32_t c = 0; c < n; ++c) s_.place_of[s_.chosen[c]] = c;
    // Row by row first, then put in order of the features; the bias is the last of them.
    s_.found.clear();
    s_.starts.assign(n + 1, 0);
    const auto take = [&](std::int32_t place, std::int64_t i, float value) {
      s_.found.push_back({place, {static_cast<std::int32_t>(i), value}});
      ++s_.starts[place + 1];
    };
    const std::int32_t* place_of = s_.place_of.data();
    const auto take_row = [&](std::int64_t i, const Row& x, const auto* index) {
      const float scale = x.scale * set_.signed_root(i);
      for (std::int64_t k = 0; k < x.size; ++k) {
        const std::int32_t place = place_of[index[k]];
        if (place < 0) continue;
        take(place, i, scale * x.value[k] * (factor_.empty() ? 1.0F : factor_[index[k]]));
      }
    };
    for (std::int64_t i = 0; i < m; ++i) {
      const Row x = set_.row(X_, i);
      x.narrow ? take_row(i, x, x.narrow) : take_row(i, x, x.index);
      if (X_.bias != 0) take(n - 1, i, set_.signed_root(i) * X_.bias);
    }
    for (std::int32_t c = 0; c < n; ++c) s_.starts[c + 1] += s_.starts[c] + 2;  // the stand-ins
    s_.entries.resize(s_.starts[n]);
    s_.next.assign(s_.starts.begin(), s_.starts.end() - 1);
    for (const Found& found : s_.found) s_.entries[s_.next[found.place]++] = found.entry;
    s_.w.resize(n);
    s_.squares.resize(n);
    for (std::int32_t c = 0; c < n; ++c) {
      double sum = 0;
      double squares = 0;
      for (std::int64_t k = s_.starts[c]; k < s_.next[c]; ++k) {
        const double x = s_.entries[k].value;
        sum += set_.signed_root(s_.entries[k].row) * x;
        squares += x * x;
      }
      const std::int32_t f = s_.chosen[c];
      const double of_rest = rest_.share * (s_.sums[f] - sum);
      const double of_group = group_.share * set_.group_sums[f];
      s_.entries[s_.next[c]] = {static_cast<std::int32_t>(rest()), static_cast<float>(-of_rest)};
      s_.entries[s_.next[c] + 1] = {static_cast<std::int32_t>(group()),
                                    static_cast<float>(-of_group)};
      s_.squares[c] = squares + of_rest * of_rest + of_group * of_group;
      s_.w[c] = set_.w[s_.chosen[c]];
    }
  }

  /// Sweeps over the chosen features until they break the optimality condition by at most `limit`.
  template <typename Stop>
  void descend(double limit, int& sweeps, const Stop& stop) {
    using namespace coordinate_limits;
    if (s_.chosen.empty()) return;
    begin_steps();
    double broken = std::numeric_limits<double>::infinity();
    while (broken > limit && sweeps < kSweeps && !stop()) {
      broken = 0;
      ++sweeps;
      s_.old_w = s_.w;
      s_.old_slack = s_.slack;
      for (std::size_t c = 0; c < s_.chosen.size(); ++c) broken += move(c);
      go_on();
    }
  }

  void begin_steps() {
    const std::size_t n = s_.chosen.size();
    const std::int64_t padded = (n_rows() + kLanes - 1) / kLanes * kLanes;
    for (auto& direction : s_.directions) {
      direction.d.assign(n, 0.0F);
      direction.change.assign(padded, 0.0F);
    }
    s_.left.assign(padded, 0.0F);
    s_.none.assign(padded, 0.0F);
    if (X_.bias == 0) return;
    auto& bias = s_.directions[kBias];
    bias.d[n - 1] = 1;
    for (const Entry& e : column(n - 1)) bias.change[e.row] = -e.value;
  }

  /// Goes to the minimum over the sweep's step, the last two and the bias, where all weights keep
  /// their signs, so that the penalty is linear.
  void go_on() {
    const std::size_t n = s_.chosen.size();
    auto& directions = s_.directions;
    const auto sign = [](double w) { return w > 0 ? 1 : w < 0 ? -1 : 0; };
    const auto remember = [&](Direction& direction) {
      for (std::size_t c = 0; c < n; ++c) {
        direction.d[c] = static_cast<float>(s_.w[c] - s_.old_w[c]);
      }
      for (std::int64_t i = 0; i < n_rows(); ++i) {
        direction.change[i] = static_cast<float>(s_.slack[i] - s_.old_slack[i]);
      }
    };
    remember(directions[0]);
    for (std::size_t c = 0; c < n; ++c) {
      if (s_.w[c] == 0) leave_out(c);
    }
    for (std::int64_t i = 0; i < n_rows(); ++i) s_.left[i] = static_cast<float>(s_.slack[i]);
    Subspace space{std::ssize(s_.left), C_, s_.left.data(), {}, {}, {}};
    for (int k = 0; k < kDirections; ++k) {
      space.change[k] = directions[k].change.data();
      for (std::size_t c = 0; c < n; ++c) space.along_w[k] += sign(s_.w[c]) * directions[k].d[c];
    }
    if (s_.w[n - 1] == 0) {  // the bias, if there is one
      space.change[kBias] = s_.none.data();
      space.along_w[kBias] = 0;
    }
    const Coefficients a = space.minimum().a;
    double length = 1;
    std::size_t first = n;  // to reach 0
    s_.step.assign(n, 0.0);
    for (std::size_t c = 0; c < n; ++c) {
      for (int k = 0; k < kDirections; ++k) s_.step[c] += a[k] * directions[k].d[c];
      if (s_.w[c] * (s_.w[c] + length * s_.step[c]) < 0) {
        length = -s_.w[c] / s_.step[c];
        first = c;
      }
    }
    // From the features: the changes are in single precision, and coefficients may be large.
    s_.moved = s_.slack;
    double growth = 0;
    for (std::size_t c = 0; c < n; ++c) {
      s_.step[c] = c == first ? -s_.w[c] : length * s_.step[c];
      if (s_.step[c] == 0) continue;
      growth += sign(s_.w[c]) * s_.step[c];
      for (const Entry& e : column(c)) s_.moved[e.row] -= s_.step[c] * e.value;
    }
    for (std::int64_t i = 0; i < n_rows(); ++i) {
      const double now = std::max(0.0, s_.moved[i]);
      growth += C_ * (now - active(i)) * (now + active(i));
    }
    if (growth < 0) {
      std::swap(s_.slack, s_.moved);
      for (std::size_t c = 0; c < n; ++c) s_.w[c] += s_.step[c];
    }
    remember(directions[kHistory]);
    std::rotate(directions.begin() + 1, directions.begin() + kHistory, directions.begin() + kBias);
  }

  /// Takes a weight out of the steps.
  void leave_out(std::size_t c) {
    for (int k = 0; k < kBias; ++k) {
      auto& [d, change] = s_.directions[k];
      if (d[c] == 0) continue;
      for (const Entry& e : column(c)) change[e.row] += d[c] * e.value;
      d[c] = 0;
    }
  }

  /// One Newton step along a weight; returns by how much it broke the optimality condition.
  double move(std::size_t c) {
    using namespace coordinate_limits;
    const auto column = this->column(c);
    double slope = 0;
    double curvature = 0;
    for (const Entry& e : column) {
      const double slack = s_.slack[e.row];
      const double x = slack > 0 ? e.value : 0.0;
      slope -= x * slack;
      curvature += x * x;
    }
    const double twoC = 2 * C_;
    slope *= twoC;
    curvature = std::max(curvature * twoC, 1e-12);
    double& w = s_.w[c];
    const double broken = breach(w, slope);
    if (broken == 0) return 0;
    double step = -w;
    if (slope + 1 < curvature * w) {
      step = -(slope + 1) / curvature;
    } else if (slope - 1 > curvature * w) {
      step = -(slope - 1) / curvature;
    }
    const double promised = slope * step + std::abs(w + step) - std::abs(w);
    for (int halving = 0; halving < kHalvings; ++halving) {
      const double penalty = std::abs(w + step) - std::abs(w);
      const double asked = kDecrease * std::ldexp(promised, -halving);
      // If every row were active, the loss would grow by no less.
      double growth = slope * step + C_ * s_.squares[c] * step * step;
      if (penalty + growth > asked) {
        growth = 0;
        for (const Entry& e : column) {
          const double old = std::max(0.0, s_.slack[e.row]);
          const double now = std::max(0.0, s_.slack[e.row] - step * e.value);
          growth += (now - old) * (now + old);
        }
        growth *= C_;
      }
      if (penalty + growth <= asked) {
        w += step;
        for (const Entry& e : column) s_.slack[e.row] -= step * e.value;
        break;
      }
      step /= 2;
    }
    return broken;
  }

  WorkingSet& set_;
  const Transformed& X_;
  const Summary& summary_;
  double C_;
  std::span<const float> factor_;
  CoordinateScratch& s_;
  StandIn rest_;
  StandIn group_;
};

}  // namespace dismec::solve
