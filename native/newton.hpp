// Newton's method with conjugate gradients on one label's working set.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "rows.hpp"
#include "working_set.hpp"

namespace dismec {

/// Vectors that live as long as a thread, to be allocated once.
struct NewtonScratch {
  std::vector<float> z;   // scores of the set's rows, in step with w
  std::vector<float> dz;  // their change along the direction
  std::vector<float> gradient, direction, residual, search, product, gathered, scaled;
  std::vector<std::int32_t> active;
};

/// How small ‖∇f(w)‖ must become.
struct Goal {
  double liblinear = 0;  // ε · max(min(pos, neg), 1)/N · ‖∇f(0)‖
  double gap = 0;        // f(w) − min f, as a share of f(w)

  /// f is 1-strongly convex, so that f(w) − min f ≤ ½‖∇f(w)‖²: the gap is certain.
  double gradient_allowed(double objective) const {
    return std::min(liblinear, std::sqrt(2 * gap * objective));
  }
};

struct NewtonResult {
  double gradient_norm = 0;
  double objective = 0;
  float mean_slack = 0;  // of the row that stands in for the outside, 0 if it is not active
  int steps = 0;
  int products = 0;
  bool reached = false;  // the goal
};

namespace newton_limits {
inline constexpr int kSteps = 100;
inline constexpr int kProducts = 60;
inline constexpr int kTrials = 30;
// Conjugate gradients stop at this share of the gradient: cheaper steps beat fewer ones here,
// because the active rows change from step to step anyway.
inline constexpr double kForcing = 0.3;
// The sub-problem is solved to this share of the goal; the rest is for rows outside.
inline constexpr double kShare = 0.5;
// A set is solved until the gradient is down to this share of what it was, even if that is still
// above the tolerance: more rows are about to come in and change it again.
inline constexpr double kReduction = 0.003;
// Below this the gain drowns in the rounding of single precision.
inline constexpr double kStalled = 1e-8;
}  // namespace newton_limits

/// v ∘ factor where there is a factor, else v itself.
inline const float* times(const std::vector<float>& v, std::span<const float> factor,
                          std::vector<float>& scaled) {
  if (factor.empty()) return v.data();
  scaled = v;
  for (std::size_t j = 0; j < factor.size(); ++j) scaled[j] *= factor[j];
  return scaled.data();
}

/// out = v + gathered ∘ factor
inline void combine(const std::vector<float>& v, const std::vector<float>& gathered,
                    std::span<const float> factor, std::vector<float>& out) {
  const std::size_t n = v.size();
  out.resize(n);
  if (factor.empty()) {
    for (std::size_t j = 0; j < n; ++j) out[j] = v[j] + gathered[j];
  } else {
    for (std::size_t j = 0; j + 1 < n; ++j) out[j] = v[j] + gathered[j] * factor[j];
    out[n - 1] = v[n - 1] + gathered[n - 1];
  }
}

inline void add_scaled(float t, const std::vector<float>& v, std::vector<float>& out) {
  for (std::size_t j = 0; j < v.size(); ++j) out[j] = fused(t, v[j], out[j]);
}

/// Scores of the set's rows under a vector over its features.
inline void scores(const WorkingSet& set, const Rows& X, const std::vector<float>& v,
                   std::vector<float>& scaled, std::vector<float>& out) {
  const float* dense = times(v, set.factor(X), scaled);
  const float shift = X.bias * v.back();
  out.resize(set.size());
  for (std::int64_t i = 0; i < set.size(); ++i) out[i] = dot(set.row(X, i), dense) + shift;
}

/// φ(t) = f_W(w + t·d): convex, piecewise quadratic, O(set) a look. `change(i)` is d·x_i.
template <typename Change>
struct LineSearch {
  const WorkingSet& set;
  double C;
  const std::vector<float>& z;
  const Change& change;
  double mean_z, mean_change;
  double ww, wd, dd;  // inner products of w and d

  struct Look {
    double value, slope, curvature;
  };
  Look at(double t) const {
    double loss = 0;
    double slope = 0;
    double curvature = 0;
    const auto count = [&](double slack, double dz, double weight) {
      if (slack <= 0) return;
      loss += weight * slack * slack;
      slope += weight * slack * dz;
      curvature += weight * dz * dz;
    };
    const std::int64_t n_positive = set.n_positive;
    for (std::int64_t i = 0; i < n_positive; ++i) {
      const double dz = change(i);
      count(1 - z[i] - t * dz, -dz, 1);
    }
    for (std::int64_t i = n_positive; i < set.size(); ++i) {
      const double dz = change(i);
      count(1 + z[i] + t * dz, dz, 1);
    }
    count(1 + mean_z + t * mean_change, mean_change, set.n_outside);
    return {0.5 * (ww + 2 * t * wd + t * t * dd) + C * loss, wd + t * dd + 2 * C * slope,
            dd + 2 * C * curvature};
  }

  struct Minimum {
    double t, gain;
  };
  /// By Newton in one dimension from t, kept inside a bracket of where the slope changes sign.
  Minimum find(double t, double precision) const {
    double low = -std::numeric_limits<double>::infinity();
    double high = std::numeric_limits<double>::infinity();
    for (int trial = 0; trial < newton_limits::kTrials; ++trial) {
      const Look look = at(t);
      (look.slope < 0 ? low : high) = t;
      const double next = t - look.slope / look.curvature;
      const double step = std::abs(next - t);
      if (step <= precision) {
        t = next;
        break;
      }
      t = next > low && next < high ? next
          : std::isinf(high)        ? t + 2 * step
          : std::isinf(low)         ? t - 2 * step
                                    : 0.5 * (low + high);
    }
    return {t, at(0).value - at(t).value};
  }
};

/// Minimises f_W(w) = ½‖w‖² + C·Σ_{i in W} max(0, 1 − s_i·w·x_i)² + C·n_out·max(0, 1 + w·mean)²
/// from set.w, until the goal is reached, or the gradient has become so much smaller that it is
/// time to look at the other rows again.
template <typename Stop>
NewtonResult minimise(WorkingSet& set, const Rows& X, float C, const Goal& goal, NewtonScratch& s,
                      const Stop& stop) {
  using namespace newton_limits;
  const std::size_t n = set.w.size();
  const std::int64_t m = set.size();
  const float twoC = 2 * C;
  const auto weight_of_mean = static_cast<float>(twoC * set.n_outside);
  const auto factor = set.factor(X);
  NewtonResult result;

  scores(set, X, set.w, s.scaled, s.z);
  double mean_z = inner(set.mean, set.w);
  double gain = 0;
  double far_enough = 0;
  for (;;) {
    // 1. The gradient w + 2C·X_Iᵀ(X_I w − s_I) over the active rows I.
    s.active.clear();
    s.gathered.assign(n, 0.0F);
    double loss = 0;
    for (std::int64_t i = 0; i < m; ++i) {
      const float slack = 1 - set.sign(i) * s.z[i];
      if (slack <= 0) continue;
      s.active.push_back(static_cast<std::int32_t>(i));
      loss += static_cast<double>(slack) * slack;
      const float t = -twoC * set.sign(i) * slack;
      add_scaled(t, set.row(X, i), s.gathered.data());
      s.gathered[n - 1] += t * X.bias;
    }
    combine(set.w, s.gathered, factor, s.gradient);
    result.mean_slack = set.n_outside > 0 ? std::max(0.0F, static_cast<float>(1 + mean_z)) : 0.0F;
    if (result.mean_slack > 0) {
      loss += set.n_outside * result.mean_slack * result.mean_slack;
      add_scaled(weight_of_mean * result.mean_slack, set.mean, s.gradient);
    }
    const double ww = inner(set.w, set.w);
    result.objective = 0.5 * ww + C * loss;
    result.gradient_norm = std::sqrt(inner(s.gradient, s.gradient));
    if (result.steps == 0) far_enough = kReduction * result.gradient_norm;
    result.reached = result.gradient_norm <= kShare * goal.gradient_allowed(result.objective);
    if (result.reached || result.gradient_norm <= far_enough) break;
    if (result.steps >= kSteps || (result.steps > 0 && gain <= kStalled * result.objective)) break;
    if (stop()) break;
    ++result.steps;

    // 2. The direction: H·d = −gradient with H = I + 2C·X_IᵀX_I, by conjugate gradients.
    s.direction.assign(n, 0.0F);
    s.residual.resize(n);
    for (std::size_t j = 0; j < n; ++j) s.residual[j] = -s.gradient[j];
    s.search = s.residual;
    double rho = result.gradient_norm * result.gradient_norm;
    const double enough = kForcing * kForcing * rho;
    for (int k = 0; k < kProducts && rho > enough; ++k) {
      ++result.products;
      s.gathered.assign(n, 0.0F);
      const float* search = times(s.search, factor, s.scaled);
      const float shift = X.bias * s.search[n - 1];
      float total = 0;
      for (const auto i : s.active) {
        const Row x = set.row(X, i);
        const float t = twoC * (dot(x, search) + shift);
        add_scaled(t, x, s.gathered.data());
        total += t;
      }
      s.gathered[n - 1] += total * X.bias;
      combine(s.search, s.gathered, factor, s.product);
      if (result.mean_slack > 0) {
        const auto t = static_cast<float>(weight_of_mean * inner(set.mean, s.search));
        add_scaled(t, set.mean, s.product);
      }
      const auto alpha = static_cast<float>(rho / inner(s.search, s.product));
      add_scaled(alpha, s.search, s.direction);
      add_scaled(-alpha, s.product, s.residual);
      const double rho_next = inner(s.residual, s.residual);
      const auto beta = static_cast<float>(rho_next / rho);
      rho = rho_next;
      for (std::size_t j = 0; j < n; ++j) s.search[j] = fused(beta, s.search[j], s.residual[j]);
    }

    // 3. The step: the exact minimum along the direction.
    scores(set, X, s.direction, s.scaled, s.dz);
    const double mean_dz = inner(set.mean, s.direction);
    const auto change = [&](std::int64_t i) { return s.dz[i]; };
    const LineSearch along{set,
                           C,
                           s.z,
                           change,
                           mean_z,
                           mean_dz,
                           ww,
                           inner(set.w, s.direction),
                           inner(s.direction, s.direction)};
    const auto step = along.find(1.0, 1e-3);
    const auto t = static_cast<float>(step.t);
    add_scaled(t, s.direction, set.w);
    add_scaled(t, s.dz, s.z);
    mean_z += step.t * mean_dz;
    gain = step.gain;
    if (X.bias == 0) continue;

    // 4. The bias by itself: it moves every score alike, so that its exact minimum costs no product
    // with X, and settles which rows are active.
    const double bias = X.bias;
    const auto same = [&](std::int64_t) { return bias; };
    const LineSearch up{set, C, s.z, same, mean_z, bias, inner(set.w, set.w), set.w[n - 1], 1.0};
    const auto shift = up.find(0.0, 1e-4);
    set.w[n - 1] += static_cast<float>(shift.t);
    for (float& z : s.z) z += static_cast<float>(shift.t * bias);
    mean_z += shift.t * bias;
    gain += shift.gain;
  }
  return result;
}

}  // namespace dismec
