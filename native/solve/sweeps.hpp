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

/// A non-zero of a chosen feature: the row's index in the set, and s_i·x_ij.
struct Entry {
  std::int32_t row;
  float value;
};

/// The columns of the chosen features, the bias last if there is one. The first `n_dense` columns
/// have a value per row; another column c has the entries starts[c] … starts[c + 1] − 1.
struct Columns {
  std::vector<std::int64_t> starts;
  std::vector<Entry> entries;
  std::vector<float> dense;        // column after column
  std::size_t n_dense = 0;         // columns
  std::vector<double> w, squares;  // per column: its weight, and Σ_i x_ij²
  bool has_bias = false;

  std::size_t size() const { return w.size(); }
  std::span<const Entry> operator[](std::size_t c) const {
    return {entries.data() + starts[c], entries.data() + starts[c + 1]};
  }
  std::span<float> dense_column(std::size_t c) {
    const std::size_t n_rows = dense.size() / n_dense;
    return std::span(dense).subspan(c * n_rows, n_rows);
  }
  /// Calls use(column) with the entries of a column or, if it is dense, with its values.
  template <typename Use>
  auto visit(std::size_t c, const Use& use) {
    if (c < n_dense) return use(std::span<const float>(dense_column(c)));
    return use((*this)[c]);
  }
};

/// Calls take(row, value) for each value of a column.
template <typename Take>
void each_number(std::span<const Entry> column, const Take& take) {
  for (const Entry& e : column) take(e.row, e.value);
}
template <typename Take>
void each_number(std::span<const float> column, const Take& take) {
  for (std::int64_t i = 0; i < std::ssize(column); ++i) take(i, column[i]);
}

/// Sums the two numbers that term(row, value) returns over a column.
template <typename Term>
std::array<double, 2> sum_over(std::span<const Entry> column, const Term& term) {
  std::array<double, 2> sums = {};
  for (const Entry& e : column) {
    const auto terms = term(e.row, e.value);
    sums[0] += terms[0];
    sums[1] += terms[1];
  }
  return sums;
}
/// The same for a dense column, in independent chains that the compiler can vectorize.
template <typename Term>
std::array<double, 2> sum_over(std::span<const float> column, const Term& term) {
  constexpr std::int64_t kChains = 8;
  std::array<double, kChains> first = {};
  std::array<double, kChains> second = {};
  const std::int64_t n = std::ssize(column);
  const std::int64_t whole = n / kChains * kChains;
  for (std::int64_t i = 0; i < whole; i += kChains) {
    for (std::int64_t q = 0; q < kChains; ++q) {
      const auto terms = term(i + q, column[i + q]);
      first[q] += terms[0];
      second[q] += terms[1];
    }
  }
  for (std::int64_t i = whole; i < n; ++i) {
    const auto terms = term(i, column[i]);
    first[i - whole] += terms[0];
    second[i - whole] += terms[1];
  }
  std::array<double, 2> sums = {};
  for (std::int64_t q = 0; q < kChains; ++q) {
    sums[0] += first[q];
    sums[1] += second[q];
  }
  return sums;
}

/// Vectors that are allocated once per thread and reused.
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
      columns_.visit(c, [&](auto column) {
        double* moved = s_.moved.data();
        each_number(column, [&, step = s_.step[c]](auto i, double x) { moved[i] -= step * x; });
      });
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
      columns_.visit(c, [&, factor = d[c], to = change.data()](auto column) {
        each_number(column, [&](auto i, float x) { to[i] += factor * x; });
      });
      d[c] = 0;
    }
  }

  /// One Newton step along a weight; returns its violation of the optimality condition before.
  double move(std::size_t c) {
    return columns_.visit(c, [&](auto column) { return move(c, column); });
  }
  template <typename Column>
  double move(std::size_t c, Column column) {
    using namespace sweep_limits;
    double* slacks = slack_.data();
    const auto [steepness, bend] = sum_over(column, [slacks](auto i, double value) {
      const double slack = slacks[i];
      const double x = slack > 0 ? value : 0.0;
      return std::array{x * slack, x * x};
    });
    const double twoC = 2 * C_;
    const double slope = -steepness * twoC;
    const double curvature = std::max(bend * twoC, 1e-12);
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
        growth = C_ * sum_over(column, [slacks, step](auto i, double x) {
                   const double old = std::max(0.0, slacks[i]);
                   const double now = std::max(0.0, slacks[i] - step * x);
                   return std::array{(now - old) * (now + old), 0.0};
                 })[0];
      }
      if (penalty + growth <= asked) {
        w += step;
        each_number(column, [slacks, step](auto i, double x) { slacks[i] -= step * x; });
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
