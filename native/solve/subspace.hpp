// The minimum on one label's working set, by exact minimisation over small subspaces.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "solve/lanes.hpp"
#include "solve/rows.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

/// How small ‖∇f(w)‖ must become.
struct Goal {
  double liblinear = 0;  // ε · max(min(pos, neg), 1)/N · ‖∇f(0)‖
  double gap = 0;        // f(w) − min f, as a share of f(w)
  bool trial = false;    // LIBLINEAR's rule between a gap of this and of nine times as much

  /// f is 1-strongly convex, so that f(w) − min f ≤ ½‖∇f(w)‖²: the gap is certain.
  double gradient_allowed(double objective) const {
    const double certain = std::sqrt(2 * gap * objective);
    return trial ? std::clamp(liblinear, certain, 3 * certain) : std::min(liblinear, certain);
  }
};

struct Minimum {
  double gradient_norm = 0;  // L2
  double gap = 0;            // L1: objective less a lower bound of the least one of all rows
  double gap_here = 0;       // L1: less a lower bound of the least one of the sub-problem
  double objective = 0;
  double mean_slack = 0;  // of the row that stands in for the outside, 0 if it is not active
  int steps = 0;
  bool reached = false;     // the goal
  double outside_loss = 0;  // L1: C·Σ slack² of the rows that stand in
  bool stalled = false;     // L1: rounding leaves nothing to gain
};

namespace subspace_limits {
inline constexpr int kSteps = 1000;
inline constexpr int kRefinements = 12;
inline constexpr int kTrials = 30;
// The subspace is searched until what is left to gain is this share of what has been gained.
inline constexpr double kPrecision = 1e-2;
// The sub-problem is solved to this share of the goal; the rest is for rows outside.
inline constexpr double kShare = 0.5;
// A set is solved until the gradient is down to this share of what it was, even if that is still
// above the tolerance: more rows are about to come in and change it again.
inline constexpr double kReduction = 0.003;
// Below this the gain drowns in the rounding of single precision.
inline constexpr double kStalled = 1e-9;
}  // namespace subspace_limits

// What a step is made of: the gradient, earlier steps, and the bias by itself.
inline constexpr int kHistory = 2;
inline constexpr int kBias = 1 + kHistory;
inline constexpr int kDirections = 2 + kHistory;
using Coefficients = std::array<double, kDirections>;
using Matrix = std::array<Coefficients, kDirections>;

inline double inner(const Coefficients& a, const Coefficients& b) {
  double sum = 0;
  for (int k = 0; k < kDirections; ++k) sum += a[k] * b[k];
  return sum;
}

/// A direction d and how it changes the slack of each row of a set.
struct Direction {
  std::vector<float> d;
  std::vector<float> change;
};

/// Vectors that live as long as a thread, to be allocated once. Those over rows have one entry more
/// for the stand-in, and are filled up to whole vectors of lanes with rows that are never active.
struct SubspaceScratch {
  std::vector<float> slack;  // √cost_i·(1 − s_i·w·x_i), in step with w
  std::array<Direction, kDirections> directions;
  std::vector<float> gathered, scaled, sums;
};

/// φ(a) = f_W(w + Σ_k a_k·d_k): convex, piecewise quadratic; a look costs as much as a few scores.
struct Subspace {
  std::int64_t n_rows;  // a multiple of kLanes
  double C;
  const float* slack;
  std::array<const float*, kDirections> change;
  Coefficients along_w;  // w·d_k
  Matrix products;       // d_k·d_l

  struct Look {
    Coefficients gradient;
    Matrix hessian;
  };

  Look at(const Coefficients& a) const {
    std::array<Lanes, kDirections> step, slope;
    std::array<std::array<Lanes, kDirections>, kDirections> curvature;
    for (int k = 0; k < kDirections; ++k) {
      step[k] = broadcast(static_cast<float>(a[k]));
      slope[k] = broadcast(0);
      curvature[k].fill(broadcast(0));
    }
    for (std::int64_t i = 0; i < n_rows; i += kLanes) {
      std::array<Lanes, kDirections> moved;
      Lanes left = load(slack + i);
      for (int k = 0; k < kDirections; ++k) {
        moved[k] = load(change[k] + i);
        left = fused(step[k], moved[k], left);
      }
      for (int k = 0; k < kDirections; ++k) {
        const Lanes active = where_positive(left, moved[k]);
        slope[k] = fused(left, active, slope[k]);
        for (int l = k; l < kDirections; ++l) {
          curvature[k][l] = fused(active, moved[l], curvature[k][l]);
        }
      }
    }
    Look look;
    for (int k = 0; k < kDirections; ++k) {
      look.gradient[k] = along_w[k] + inner(products[k], a) + 2 * C * sum(slope[k]);
      for (int l = k; l < kDirections; ++l) {
        look.hessian[k][l] = look.hessian[l][k] = products[k][l] + 2 * C * sum(curvature[k][l]);
      }
    }
    return look;
  }

  /// −hessian⁻¹·gradient, leaving out directions that the others before them make up.
  static Coefficients newton_step(const Look& look) {
    constexpr double kDependent = 1e-6;
    Matrix left = look.hessian;
    Coefficients right, step{};
    std::array<bool, kDirections> used;
    for (int k = 0; k < kDirections; ++k) right[k] = -look.gradient[k];
    for (int k = 0; k < kDirections; ++k) {
      used[k] = left[k][k] > kDependent * look.hessian[k][k];
      if (!used[k]) continue;
      for (int i = k + 1; i < kDirections; ++i) {
        const double factor = left[i][k] / left[k][k];
        for (int j = k; j < kDirections; ++j) left[i][j] -= factor * left[k][j];
        right[i] -= factor * right[k];
      }
    }
    for (int k = kDirections - 1; k >= 0; --k) {
      if (!used[k]) continue;
      double sum = right[k];
      for (int j = k + 1; j < kDirections; ++j) sum -= left[k][j] * step[j];
      step[k] = sum / left[k][k];
    }
    return step;
  }

  struct Found {
    Coefficients a;
    double gain;  // by how much φ is smaller there than at 0
  };
  /// By Newton's method; a step that leads up again is cut back to where the slope vanishes.
  Found minimum() const {
    using namespace subspace_limits;
    Found found{};
    Look look = at(found.a);
    for (int refinement = 0; refinement < kRefinements; ++refinement) {
      const Coefficients step = newton_step(look);
      const double descent = -inner(look.gradient, step);
      if (!(descent > 0)) break;
      const auto reached = [&](double t) {
        Coefficients a = found.a;
        for (int k = 0; k < kDirections; ++k) a[k] += t * step[k];
        return a;
      };
      if (descent <= kPrecision * found.gain) {  // so little that a look would tell nothing new
        found.a = reached(1);
        break;
      }
      double t = 1;
      double low = 0;
      double high = std::numeric_limits<double>::infinity();
      for (int trial = 0; trial < kTrials; ++trial) {
        look = at(reached(t));
        const double slope = inner(look.gradient, step);
        if (std::abs(slope) <= 0.1 * descent || (slope < 0 && std::isinf(high))) break;
        (slope < 0 ? low : high) = t;
        Coefficients bent;
        for (int k = 0; k < kDirections; ++k) bent[k] = inner(look.hessian[k], step);
        t -= slope / inner(bent, step);
        if (!(t > low && t < high)) t = 0.5 * (low + high);
      }
      found.a = reached(t);
      found.gain += 0.5 * std::min(t, 1.0) * descent;
    }
    return found;
  }
};

/// Minimises f_W(w) = ½‖w‖² + C·Σ_{i in W} cost_i·max(0, 1 − s_i·w·x_i)²
///                   + C·b·n_out·max(0, 1 + w·mean)²
/// from set.w, where `mean` is that of the n_out rows outside and b the cost of negatives.
///
/// Times √cost_i a row has cost 1. The mean is never formed, because mean = (Σ_all x − Σ_W
/// x)/n_out. Times √(b·n_out) it is a row like the others, of slack √(b·n_out)·(1 + w·mean).
class SubspaceSolver {
 public:
  SubspaceSolver(WorkingSet& set, const Transformed& X, const Summary& summary, float C,
                 SubspaceScratch& scratch)
      : set_(set), X_(X), C_(C), factor_(set.factor(X)), s_(scratch) {
    const double root_b = std::sqrt(set.cost.negative);
    const double root_n = std::sqrt(static_cast<double>(set.n_outside));
    root_ = root_b * root_n;
    share_ = set.n_outside > 0 ? root_b / root_n : 0.0;
    s_.sums.resize(set.w.size());
    for (std::size_t f = 0; f + 1 < set.w.size(); ++f) {
      s_.sums[f] = static_cast<float>(summary.sums[set.feature(f)]);
    }
    s_.sums.back() = static_cast<float>(summary.sums.back());
  }

  /// Until the goal is reached, or the gradient has become so much smaller that it is time to look
  /// at the other rows again.
  template <typename Stop>
  Minimum minimise(const Goal& goal, const Stop& stop) {
    using namespace subspace_limits;
    Direction& gradient = s_.directions[0];
    begin();
    Minimum result;
    double gain = 0;
    double far_enough = 0;
    for (;;) {
      const double loss = find_gradient(gradient.d);
      result.mean_slack = std::max(0.0, s_.slack[set_.size()] * share_) / set_.cost.negative;
      result.objective = 0.5 * inner(set_.w, set_.w) + C_ * loss;
      result.gradient_norm = std::sqrt(inner(gradient.d, gradient.d));
      if (result.steps == 0) far_enough = kReduction * result.gradient_norm;
      result.reached = result.gradient_norm <= kShare * goal.gradient_allowed(result.objective);
      if (result.reached || result.gradient_norm <= far_enough) break;
      if (result.steps > 0 && gain <= kStalled * result.objective) break;
      if (result.steps >= kSteps || stop()) break;
      ++result.steps;
      find_change(gradient.d, gradient.change);
      const auto found = subspace().minimum();
      gain = found.gain;
      move(found.a);
    }
    return result;
  }

 private:
  void begin() {
    const std::int64_t m = set_.size();
    n_rows_ = (m + 1 + kLanes - 1) / kLanes * kLanes;
    find_change(set_.w, s_.slack);
    for (std::int64_t i = 0; i < m; ++i) s_.slack[i] += set_.root(i);
    s_.slack[m] += static_cast<float>(root_);
    for (int k = 1; k <= kHistory; ++k) {
      s_.directions[k].d.assign(set_.w.size(), 0.0F);
      s_.directions[k].change.assign(n_rows_, 0.0F);
    }
    auto& bias = s_.directions[kBias].change;
    bias.assign(n_rows_, 0.0F);
    for (std::int64_t i = 0; i < m; ++i) bias[i] = -set_.signed_root(i) * X_.bias;
    bias[m] = static_cast<float>(root_ * X_.bias);
  }

  /// How the slacks change along d: −√cost_i·s_i·d·x_i.
  void find_change(const std::vector<float>& d, std::vector<float>& change) {
    const float* scaled = d.data();
    if (!factor_.empty()) {
      s_.scaled = d;
      for (std::size_t j = 0; j < factor_.size(); ++j) s_.scaled[j] *= factor_[j];
      scaled = s_.scaled.data();
    }
    const std::int64_t m = set_.size();
    const float shift = X_.bias * d.back();
    double sum = 0;
    change.assign(n_rows_, 0.0F);
    for (std::int64_t i = 0; i < m; ++i) {
      const float score = dot(set_.row(X_, i), scaled) + shift;
      sum += score;
      change[i] = -set_.signed_root(i) * score;
    }
    change[m] = static_cast<float>(share_ * (inner(s_.sums, d) - sum));
  }

  /// w + 2C·Σ_I cost_i·(w·x_i − s_i)·x_i over the active rows I; returns Σ_I slack².
  double find_gradient(std::vector<float>& out) {
    const std::size_t n = set_.w.size();
    const std::int64_t m = set_.size();
    const float twoC = 2 * C_;
    const float stand_in = std::max(0.0F, s_.slack[m]);
    const auto of_outside = static_cast<float>(twoC * stand_in * share_);
    auto& gathered = factor_.empty() ? out : s_.gathered;
    if (factor_.empty()) {
      out = set_.w;
    } else {
      gathered.assign(n, 0.0F);
    }
    double loss = static_cast<double>(stand_in) * stand_in;
    double total = 0;
    for (std::int64_t i = 0; i < m; ++i) {
      const float slack = std::max(0.0F, s_.slack[i]);
      const float t = -twoC * set_.signed_root(i) * slack - of_outside;
      if (t == 0) continue;
      loss += static_cast<double>(slack) * slack;
      add_scaled(t, set_.row(X_, i), gathered.data());
      total += t;
    }
    if (!factor_.empty()) {
      out = set_.w;
      for (std::size_t j = 0; j + 1 < n; ++j) out[j] += gathered[j] * factor_[j];
    }
    out[n - 1] += static_cast<float>(total * X_.bias);
    if (of_outside > 0) {
      for (std::size_t j = 0; j < n; ++j) out[j] = fused(of_outside, s_.sums[j], out[j]);
    }
    return loss;
  }

  Subspace subspace() const {
    Subspace space{n_rows_, C_, s_.slack.data(), {}, {}, {}};
    for (int k = 0; k < kDirections; ++k) {
      const auto& d = s_.directions[k].d;
      space.change[k] = s_.directions[k].change.data();
      if (k == kBias) {
        space.along_w[k] = set_.w.back();
        space.products[k][k] = 1;
        continue;
      }
      space.along_w[k] = inner(set_.w, d);
      space.products[k][kBias] = space.products[kBias][k] = d.back();
      for (int l = 0; l <= k; ++l) {
        space.products[k][l] = space.products[l][k] = inner(d, s_.directions[l].d);
      }
    }
    return space;
  }

  /// w += Σ_k a_k·d_k, which then is the latest of the earlier steps.
  void move(const Coefficients& a) {
    auto& directions = s_.directions;
    const auto combine = [&](std::size_t n, auto part, float* sum) {
      for (std::size_t j = 0; j < n; ++j) {
        float step = 0;
        for (int k = 0; k < kBias; ++k) {
          step = fused(static_cast<float>(a[k]), part(k)[j], step);
        }
        part(kHistory)[j] = step;
        sum[j] += step;
      }
    };
    std::array<float*, kBias> d, change;
    for (int k = 0; k < kBias; ++k) {
      d[k] = directions[k].d.data();
      change[k] = directions[k].change.data();
    }
    combine(set_.w.size(), [&](int k) { return d[k]; }, set_.w.data());
    combine(n_rows_, [&](int k) { return change[k]; }, s_.slack.data());
    const auto shift = static_cast<float>(a[kBias]);
    directions[kHistory].d.back() += shift;
    set_.w.back() += shift;
    for (std::int64_t i = 0; i < n_rows_; ++i) {
      const float moved = shift * directions[kBias].change[i];
      directions[kHistory].change[i] += moved;
      s_.slack[i] += moved;
    }
    std::rotate(directions.begin() + 1, directions.begin() + kHistory, directions.begin() + kBias);
  }

  WorkingSet& set_;
  const Transformed& X_;
  float C_;
  std::span<const float> factor_;
  SubspaceScratch& s_;
  std::int64_t n_rows_ = 0;
  double root_ = 0;   // √(b·n_out)
  double share_ = 0;  // √(b/n_out)
};

}  // namespace dismec::solve
