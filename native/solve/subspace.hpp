// One label's working set and a target accuracy → its weights there under the L2 penalty, by steps
// that are exact in small subspaces. Steps are numbered as in docs/explanation/solver.md.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "solve/directions.hpp"
#include "solve/lanes.hpp"
#include "solve/rows.hpp"
#include "solve/set_products.hpp"
#include "solve/work_sharing.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

/// How small ‖∇f(w)‖ must become.
struct Goal {
  double liblinear = 0;  // ε · max(min(pos, neg), 1)/N · ‖∇f(0)‖, divided by C
  double gap = 0;        // f(w) − min f, as a share of f(w)

  /// f is 1-strongly convex, so f(w) − min f ≤ ½‖∇f(w)‖²: this bounds the gap rigorously.
  double gradient_allowed(double objective, double C) const {
    return std::min(C * liblinear, std::sqrt(2 * gap * objective));
  }
};

namespace subspace_limits {
inline constexpr int kSteps = 1000;
// The sub-problem is solved to this share of the goal; the rest is left for the rows outside.
inline constexpr double kShare = 0.5;
// Smaller gains drown in the rounding of single precision.
inline constexpr double kStalled = 1e-9;
}  // namespace subspace_limits

/// Buffers that live as long as their thread, so that they are allocated once. Those over rows have
/// one extra entry for the mean row, and are padded to whole vectors of lanes with rows that are
/// never active.
struct SubspaceScratch {
  std::vector<float> slack;  // √(cost_i·v_i)·(1 − s_i·w·x_i), kept in step with w
  std::array<Direction, kDirections> directions;
  std::vector<float> gathered, scaled;
  std::vector<float> factors;        // factors of rows in the gradient
  std::vector<std::int32_t> active;  // rows with a non-zero factor
};

/// Minimizes f_W(w) = ½‖w‖² + C·Σ_{i in W} cost_i·v_i·max(0, 1 − s_i·w·x_i)²
///                   + C·b·V·max(0, 1 + w·mean)²
/// from set.w, where v_i is the weight of row i for this label, b the cost of negatives, V the sum
/// of the weights of all rows outside, which have no pair weights, and `mean` their weighted mean.
///
/// Scaled by √(cost_i·v_i), a row has cost 1. The mean is never formed, because mean = (Σ_all v·x −
/// Σ_W v·x)/V. Scaled by √(b·V) it is a row like the others, with slack √(b·V)·(1 + w·mean).
class SubspaceSolver {
 public:
  struct Minimum {
    double objective = 0;
    double gradient_norm = 0;
    double mean_slack = 0;      // slack of the mean row; 0 if it is not active
    std::int64_t n_active = 0;  // rows of the set inside the margin
    int steps = 0;
    bool reached = false;  // the goal was reached
  };

  SubspaceSolver(WorkingSet& set, const Transformed& X, const Summary& summary, float C,
                 SubspaceScratch& scratch, WorkSharing& sharing)
      : set_(set),
        rows_(set.rows),
        w_(set.vectors.w),
        X_(X),
        C_(C),
        factor_(set.factor(X)),
        s_(scratch),
        sharing_(sharing) {
    const double root_b = std::sqrt(set.rows.cost().negative);
    const double root_V = std::sqrt(set.weight_outside(summary));
    root_ = root_b * root_V;
    share_ = root_V > 0 ? root_b / root_V : 0.0;
    set.vectors.find_sums(summary);
  }

  /// Runs until the goal is reached, or the gradient has shrunk to `reduction` of its initial norm:
  /// more rows are about to be added and will change it again.
  template <typename Stop>
  Minimum minimize(const Goal& goal, double reduction, const Stop& stop) {
    using namespace subspace_limits;
    Direction& gradient = s_.directions[0];
    begin();
    Minimum result;
    double gain = 0;
    double far_enough = 0;
    for (;;) {
      // Step 1: the gradient over the active rows.
      const double loss = find_gradient(gradient.d);
      result.mean_slack = std::max(0.0, s_.slack[set_.size()] * share_) / rows_.cost().negative;
      const Products products = find_products();
      result.objective = 0.5 * products.of_w + C_ * loss;
      result.gradient_norm = std::sqrt(products.of_directions[0][0]);
      if (result.steps == 0) far_enough = reduction * result.gradient_norm;
      result.reached = result.gradient_norm <= kShare * goal.gradient_allowed(result.objective, C_);
      if (result.reached || result.gradient_norm <= far_enough) break;
      if (result.steps > 0 && gain <= kStalled * result.objective) break;
      if (result.steps >= kSteps || stop()) break;
      ++result.steps;
      // Step 2: how every slack changes along it.
      find_change(gradient.d, products.gradient_with_sums, gradient.change);
      // Step 3: the minimum over the gradient, the last two steps and the bias.
      const auto best = subspace(products).minimum();
      gain = best.gain;
      move(best.a);
    }
    for (std::int64_t i = 0; i < set_.size(); ++i) result.n_active += s_.slack[i] > 0;
    return result;
  }

 private:
  void begin() {
    const std::int64_t m = set_.size();
    n_rows_ = (m + 1 + kLanes - 1) / kLanes * kLanes;
    find_change(w_, inner(set_.vectors.sums, w_), s_.slack);
    for (std::int64_t i = 0; i < m; ++i) s_.slack[i] += rows_.root(i);
    s_.slack[m] += static_cast<float>(root_);
    n_history_ = 0;
    for (int k = 1; k <= kHistory; ++k) {
      s_.directions[k].d.resize(w_.size());
      s_.directions[k].change.assign(n_rows_, 0.0F);
    }
    auto& bias = s_.directions[kBias].change;
    bias.assign(n_rows_, 0.0F);
    for (std::int64_t i = 0; i < m; ++i) bias[i] = -rows_.signed_root(i) * X_.bias;
    bias[m] = static_cast<float>(root_ * X_.bias);
  }

  /// Step 2. How the slacks change along d: −√(cost_i·v_i)·s_i·d·x_i.
  void find_change(const std::vector<float>& d, double with_sums, std::vector<float>& change) {
    const std::int64_t m = set_.size();
    change.assign(n_rows_, 0.0F);
    const auto take = [&](std::int64_t i, float score) {
      change[i] = -rows_.signed_root(i) * score;
    };
    const double sum = is_large(set_) ? each_score_of_large(set_, X_, d, s_.scaled, sharing_, take)
                                      : each_score(set_, X_, d, s_.scaled, take);
    change[m] = static_cast<float>(share_ * (with_sums - sum));
  }

  /// Step 1. w + 2C·Σ_I cost_i·v_i·(w·x_i − s_i)·x_i over the active rows I; returns Σ_I slack².
  double find_gradient(std::vector<float>& out) {
    const std::size_t n = w_.size();
    const std::int64_t m = set_.size();
    const float twoC = 2 * C_;
    const float of_mean_row = std::max(0.0F, s_.slack[m]);
    const auto of_outside = static_cast<float>(twoC * of_mean_row * share_);
    auto& gathered = factor_.empty() ? out : s_.gathered;
    if (factor_.empty()) {
      out = w_;
    } else {
      gathered.assign(n, 0.0F);
    }
    double loss = static_cast<double>(of_mean_row) * of_mean_row;
    double total = 0;
    s_.factors.resize(m);
    float* factors = s_.factors.data();
    const float* slack = s_.slack.data();
    const auto weigh = [&](std::int64_t begin, std::int64_t end, float root) {
      const float factor = -twoC * root;
      const auto [sum, squares] = sums_of_positive(slack + begin, end - begin);
      loss += squares;
      total += factor * sum - static_cast<double>(end - begin) * of_outside;
      for (std::int64_t i = begin; i < end; ++i) {
        factors[i] = factor * std::max(0.0F, slack[i]) - of_outside;
      }
    };
    if (rows_.weighted()) {
      for (std::int64_t i = 0; i < m; ++i) {
        const float active = std::max(0.0F, slack[i]);
        const float root = rows_.row_root(i);
        factors[i] = -twoC * rows_.signed_root(i) * active - of_outside * root * root;
        loss += static_cast<double>(active) * active;
        total += factors[i];
      }
    } else {
      weigh(0, rows_.n_positive(), rows_.positive_root());
      weigh(rows_.n_positive(), m, -rows_.negative_root());
    }
    // Which rows are active is unpredictable: they are listed first, without a branch.
    s_.active.resize(m);
    std::int32_t* active = s_.active.data();
    std::int64_t n_active = 0;
    for (std::int64_t i = 0; i < m; ++i) {
      active[n_active] = static_cast<std::int32_t>(i);
      n_active += factors[i] != 0;
    }
    const std::span<const std::int32_t> listed(active, n_active);
    if (is_large(set_)) {
      sums_.add(set_, X_, listed, factors, gathered, sharing_);
    } else {
      float* sparse = gathered.data() + X_.dense.width;
      for (const auto i : listed) add_scaled(factors[i], set_.row(X_, i), sparse);
      if (X_.dense.width > 0) {
        add_dense(set_, X_, listed, factors, 0, X_.dense.width, gathered.data());
      }
    }
    if (!factor_.empty()) {
      out = w_;
      const auto n_dense = static_cast<std::size_t>(X_.dense.width);
      for (std::size_t j = 0; j < n_dense; ++j) out[j] += gathered[j];
      for (std::size_t j = n_dense; j + 1 < n; ++j) out[j] += gathered[j] * factor_[j - n_dense];
    }
    out[n - 1] += static_cast<float>(total * X_.bias);
    if (of_outside > 0) {
      for (std::size_t j = 0; j < n; ++j) out[j] = fused(of_outside, set_.vectors.sums[j], out[j]);
    }
    return loss;
  }

  /// Inner products of w and the available directions.
  struct Products {
    double of_w = 0;
    double gradient_with_sums = 0;
    Coefficients with_w = {};
    Matrix of_directions = {};
  };
  Products find_products() const {
    switch (n_history_) {
      case 0:
        return find_products<0>();
      case 1:
        return find_products<1>();
      default:
        return find_products<kHistory>();
    }
  }
  template <int history>
  Products find_products() const {
    // The sums, w, the gradient, and earlier steps.
    constexpr auto pairs = [] {
      constexpr int n = 2 + history;
      Pairs<1 + n*(n + 1) / 2> all = {{{0, 2}}};
      for (int a = 1, p = 1; a <= n; ++a) {
        for (int b = a; b <= n; ++b) all[p++] = {a, b};
      }
      return all;
    }();
    std::array<const float*, 3 + history> vectors = {set_.vectors.sums.data(), w_.data()};
    for (int k = 0; k <= history; ++k) vectors[2 + k] = s_.directions[k].d.data();
    const auto values = inner_products_of_set<pairs>(set_, vectors, sharing_);
    Products products;
    products.gradient_with_sums = values[0];
    products.of_w = values[1];
    for (std::size_t p = 2; p < pairs.size(); ++p) {
      const int k = pairs[p][0] - 2;
      const int l = pairs[p][1] - 2;
      if (k < 0) {
        products.with_w[l] = values[p];
      } else {
        products.of_directions[k][l] = products.of_directions[l][k] = values[p];
      }
    }
    return products;
  }

  /// Step 3. All that is needed to minimize over the directions without reading X.
  Subspace subspace(const Products& products) const {
    Subspace space{n_rows_, C_, s_.slack.data(), {}, products.with_w, products.of_directions};
    for (int k = 0; k < kDirections; ++k) space.change[k] = s_.directions[k].change.data();
    space.along_w[kBias] = w_.back();
    space.products[kBias][kBias] = 1;
    for (int k = 0; k <= n_history_; ++k) {
      space.products[k][kBias] = space.products[kBias][k] = s_.directions[k].d.back();
    }
    return space;
  }

  /// The end of step 3: w += Σ_k a_k·d_k, which becomes the latest of the earlier steps.
  void move(const Coefficients& a) {
    switch (n_history_) {
      case 0:
        move<0>(a);
        break;
      case 1:
        move<1>(a);
        break;
      default:
        move<kHistory>(a);
    }
    n_history_ = std::min(n_history_ + 1, kHistory);
  }
  template <int history>
  void move(const Coefficients& a) {
    auto& directions = s_.directions;
    std::array<float, 1 + history> along;
    std::array<const float*, 1 + history> d, change;
    for (int k = 0; k <= history; ++k) {
      along[k] = static_cast<float>(a[k]);
      d[k] = directions[k].d.data();
      change[k] = directions[k].change.data();
    }
    // The latest step replaces the oldest one, which it may be built from.
    Direction& oldest = directions[kHistory];
    const auto n = std::ssize(w_);
    const std::int64_t whole = n / kLanes * kLanes;
    for (std::int64_t j = 0; j < whole; j += kLanes) {
      Lanes step = broadcast(0);
      for (int k = 0; k <= history; ++k) step = fused(broadcast(along[k]), load(d[k] + j), step);
      store(oldest.d.data() + j, step);
      store(w_.data() + j, add(load(w_.data() + j), step));
    }
    for (std::int64_t j = whole; j < n; ++j) {
      float step = 0;
      for (int k = 0; k <= history; ++k) step = fused(along[k], d[k][j], step);
      oldest.d[j] = step;
      w_[j] += step;
    }
    const auto shift = static_cast<float>(a[kBias]);
    oldest.d.back() += shift;
    w_.back() += shift;
    const float* by_bias = directions[kBias].change.data();
    for (std::int64_t i = 0; i < n_rows_; i += kLanes) {
      Lanes step = fused(broadcast(shift), load(by_bias + i), broadcast(0));
      for (int k = 0; k <= history; ++k) {
        step = fused(broadcast(along[k]), load(change[k] + i), step);
      }
      store(oldest.change.data() + i, step);
      store(s_.slack.data() + i, add(load(s_.slack.data() + i), step));
    }
    std::rotate(directions.begin() + 1, directions.begin() + kHistory, directions.begin() + kBias);
  }

  const WorkingSet& set_;
  const SetRows& rows_;
  std::vector<float>& w_;
  const Transformed& X_;
  float C_;
  std::span<const float> factor_;
  SubspaceScratch& s_;
  WorkSharing& sharing_;
  RowSums sums_;  // for large sets
  std::int64_t n_rows_ = 0;
  int n_history_ = 0;  // number of earlier steps available
  double root_ = 0;    // √(b·V)
  double share_ = 0;   // √(b/V)
};

}  // namespace dismec::solve
