// Columns of the chosen features, and the slack of each row → weights at which these features
// satisfy the optimality condition under the L1 penalty, by sweeps of Newton steps along single
// weights.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "solve/directions.hpp"
#include "solve/lanes.hpp"

namespace dismec::solve {

namespace sweep_limits {
inline constexpr int kSweeps = 1000;
// A step must achieve this share of the decrease that the gradient predicts.
inline constexpr double kDecrease = 0.01;
inline constexpr int kHalvings = 30;
}  // namespace sweep_limits

/// A non-zero of a chosen feature: the row's place in the set, and s_i·x_ij.
struct Entry {
  std::int32_t row;
  float value;
};

/// The chosen features, the bias last if there is one. The entries of column c are those from
/// starts[c] to starts[c + 1].
struct Columns {
  std::vector<std::int64_t> starts;
  std::vector<Entry> entries;
  std::vector<double> w, squares;  // per column: its weight, and Σ_i x_ij²
  bool has_bias = false;

  std::size_t size() const { return w.size(); }
  std::span<const Entry> operator[](std::size_t c) const {
    return {entries.data() + starts[c], entries.data() + starts[c + 1]};
  }
};

/// Buffers that live as long as their thread, so that they are allocated once.
struct SweepScratch {
  std::vector<double> old_w, old_slack, step, moved;
  std::array<Direction, kDirections> directions;  // over the chosen features
  std::vector<float> left, none;                  // slack in single precision
};

/// The distance of 0 from the subdifferential of |w| + (a function with this slope).
inline double breach(double w, double slope) {
  if (w > 0) return std::abs(slope + 1);
  if (w < 0) return std::abs(slope - 1);
  return std::max(std::abs(slope) - 1, 0.0);
}

/// Changes columns.w, keeping the slack 1 − s_i·w·x_i of each row up to date.
class Sweeps {
 public:
  Sweeps(Columns& columns, std::vector<double>& slack, double C, SweepScratch& scratch)
      : columns_(columns), slack_(slack), C_(C), s_(scratch) {}

  /// Sweeps over the chosen features until they violate the optimality condition by at most
  /// `limit`.
  template <typename Stop>
  void descend(double limit, int& sweeps, const Stop& stop) {
    using namespace sweep_limits;
    if (columns_.size() == 0) return;
    begin_steps();
    double broken = std::numeric_limits<double>::infinity();
    while (broken > limit && sweeps < kSweeps && !stop()) {
      broken = 0;
      ++sweeps;
      s_.old_w = columns_.w;
      s_.old_slack = slack_;
      for (std::size_t c = 0; c < columns_.size(); ++c) broken += move(c);
      go_on();
    }
  }

 private:
  void begin_steps() {
    const std::size_t n = columns_.size();
    const std::int64_t padded = (std::ssize(slack_) + kLanes - 1) / kLanes * kLanes;
    for (auto& direction : s_.directions) {
      direction.d.assign(n, 0.0F);
      direction.change.assign(padded, 0.0F);
    }
    s_.left.assign(padded, 0.0F);
    s_.none.assign(padded, 0.0F);
    if (!columns_.has_bias) return;
    auto& bias = s_.directions[kBias];
    bias.d[n - 1] = 1;
    for (const Entry& e : columns_[n - 1]) bias.change[e.row] = -e.value;
  }

  /// Moves to the minimum over the sweep's step, the last two steps and the bias, among the points
  /// where all weights keep their signs, so that the penalty is linear.
  void go_on() {
    const std::size_t n = columns_.size();
    auto& directions = s_.directions;
    const auto sign = [](double w) { return w > 0 ? 1 : w < 0 ? -1 : 0; };
    const auto remember = [&](Direction& direction) {
      for (std::size_t c = 0; c < n; ++c) {
        direction.d[c] = static_cast<float>(columns_.w[c] - s_.old_w[c]);
      }
      for (std::int64_t i = 0; i < std::ssize(slack_); ++i) {
        direction.change[i] = static_cast<float>(slack_[i] - s_.old_slack[i]);
      }
    };
    remember(directions[0]);
    for (std::size_t c = 0; c < n; ++c) {
      if (columns_.w[c] == 0) leave_out(c);
    }
    for (std::int64_t i = 0; i < std::ssize(slack_); ++i)
      s_.left[i] = static_cast<float>(slack_[i]);
    Subspace space{std::ssize(s_.left), C_, s_.left.data(), {}, {}, {}};
    for (int k = 0; k < kDirections; ++k) {
      space.change[k] = directions[k].change.data();
      for (std::size_t c = 0; c < n; ++c)
        space.along_w[k] += static_cast<float>(sign(columns_.w[c])) * directions[k].d[c];
    }
    if (columns_.w[n - 1] == 0) {  // the bias, if there is one
      space.change[kBias] = s_.none.data();
      space.along_w[kBias] = 0;
    }
    const Coefficients a = space.minimum().a;
    double length = 1;
    std::size_t first = n;  // the first weight to reach 0
    s_.step.assign(n, 0.0);
    for (std::size_t c = 0; c < n; ++c) {
      for (int k = 0; k < kDirections; ++k) s_.step[c] += a[k] * directions[k].d[c];
      if (columns_.w[c] * (columns_.w[c] + length * s_.step[c]) < 0) {
        length = -columns_.w[c] / s_.step[c];
        first = c;
      }
    }
    // Recomputed from the features: the changes are in single precision, and coefficients may be
    // large.
    s_.moved = slack_;
    double growth = 0;
    for (std::size_t c = 0; c < n; ++c) {
      s_.step[c] = c == first ? -columns_.w[c] : length * s_.step[c];
      if (s_.step[c] == 0) continue;
      growth += sign(columns_.w[c]) * s_.step[c];
      for (const Entry& e : columns_[c]) s_.moved[e.row] -= s_.step[c] * e.value;
    }
    for (std::int64_t i = 0; i < std::ssize(slack_); ++i) {
      const double now = std::max(0.0, s_.moved[i]);
      growth += C_ * (now - active(i)) * (now + active(i));
    }
    if (growth < 0) {
      std::swap(slack_, s_.moved);
      for (std::size_t c = 0; c < n; ++c) columns_.w[c] += s_.step[c];
    }
    remember(directions[kHistory]);
    std::rotate(directions.begin() + 1, directions.begin() + kHistory, directions.begin() + kBias);
  }

  /// Removes a weight from the directions.
  void leave_out(std::size_t c) {
    for (int k = 0; k < kBias; ++k) {
      auto& [d, change] = s_.directions[k];
      if (d[c] == 0) continue;
      for (const Entry& e : columns_[c]) change[e.row] += d[c] * e.value;
      d[c] = 0;
    }
  }

  /// One Newton step along a weight; returns its violation of the optimality condition before.
  double move(std::size_t c) {
    using namespace sweep_limits;
    const auto column = columns_[c];
    double slope = 0;
    double curvature = 0;
    for (const Entry& e : column) {
      const double slack = slack_[e.row];
      const double x = slack > 0 ? e.value : 0.0;
      slope -= x * slack;
      curvature += x * x;
    }
    const double twoC = 2 * C_;
    slope *= twoC;
    curvature = std::max(curvature * twoC, 1e-12);
    double& w = columns_.w[c];
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
      // The loss grows by at most what it would if every row were active.
      double growth = slope * step + C_ * columns_.squares[c] * step * step;
      if (penalty + growth > asked) {
        growth = 0;
        for (const Entry& e : column) {
          const double old = std::max(0.0, slack_[e.row]);
          const double now = std::max(0.0, slack_[e.row] - step * e.value);
          growth += (now - old) * (now + old);
        }
        growth *= C_;
      }
      if (penalty + growth <= asked) {
        w += step;
        for (const Entry& e : column) slack_[e.row] -= step * e.value;
        break;
      }
      step /= 2;
    }
    return broken;
  }

  double active(std::int64_t row) const { return std::max(0.0, slack_[row]); }

  Columns& columns_;
  std::vector<double>& slack_;
  double C_;
  SweepScratch& s_;
};

}  // namespace dismec::solve
