// How slacks change along a few directions → the step along each that minimizes f_W exactly.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "solve/lanes.hpp"

namespace dismec::solve {

namespace search_limits {
inline constexpr int kRefinements = 12;
inline constexpr int kTrials = 30;
// The search stops when the remaining gain is this share of the gain so far.
inline constexpr double kPrecision = 1e-2;
}  // namespace search_limits

// A step combines the gradient, this many earlier steps, and the bias by itself.
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

/// A direction d, and how it changes the slack of each row of a set.
struct Direction {
  std::vector<float> d;
  std::vector<float> change;
};

/// φ(a) = f_W(w + Σ_k a_k·d_k): convex and piecewise quadratic. Evaluating it costs as much as
/// scoring a few rows.
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

  /// −hessian⁻¹·gradient, skipping directions that depend linearly on earlier ones.
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

  struct Point {
    Coefficients a;
    double gain;  // φ(0) minus φ there
  };
  /// Newton's method; a step that goes uphill is cut back to where the slope vanishes.
  Point minimum() const {
    using namespace search_limits;
    Point best{};
    Look look = at(best.a);
    for (int refinement = 0; refinement < kRefinements; ++refinement) {
      const Coefficients step = newton_step(look);
      const double descent = -inner(look.gradient, step);
      if (!(descent > 0)) break;
      const auto reached = [&](double t) {
        Coefficients a = best.a;
        for (int k = 0; k < kDirections; ++k) a[k] += t * step[k];
        return a;
      };
      if (descent <= kPrecision * best.gain) {  // too little for another evaluation to matter
        best.a = reached(1);
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
      best.a = reached(t);
      best.gain += 0.5 * std::min(t, 1.0) * descent;
    }
    return best;
  }
};

}  // namespace dismec::solve
