// Candidate labels of many rows, with their probabilities → the k of each row with which a metric
// of all rows together is expected to be largest.
//
// Block-coordinate ascent, as in Schultheis et al., "Generalized test utilities for long-tail
// performance in extreme multi-label classification" (NeurIPS 2023): the labels of one row after
// another are taken back, and the k that add most are chosen. The metric never falls.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace dismec::score {

/// The mean F1 of the labels that are true or chosen in at least one row, as expected: with n rows
/// chosen for a label that is expected to be true in t rows, each chosen row adds 2p/(n + 1 + t −
/// p), because the label is true in 1 + t − p rows if it is true in this one. The mean is maximized
/// as Σ (F1 − λ·[the label is true or chosen]), where λ is the mean so far (Dinkelbach).
class MacroF1 {
 public:
  explicit MacroF1(std::int64_t n_labels) : of_(n_labels) {}

  void see(std::int32_t label, double p) {
    of_[label].is_true += p;
    of_[label].absent += std::log1p(-std::min(p, kMostSure));
  }
  void choose(std::int32_t label, double p, int times) { of_[label].add(p, times); }
  double gain(std::int32_t label, double p) const {
    Sums after = of_[label];
    after.add(p, 1);
    return after.f1() - of_[label].f1() - mean_ * (1 - of_[label].counted());
  }
  double total() {
    double f1 = 0;
    double counted = 0;
    for (const Sums& sums : of_) {
      f1 += sums.f1();
      counted += sums.counted();
    }
    mean_ = counted > 0 ? f1 / counted : 0;
    return mean_;
  }

 private:
  struct Sums {
    double hits = 0, squares = 0, chosen = 0;  // Σp, Σp² and number of the rows chosen
    double is_true = 0, absent = 0;            // Σp and Σlog(1 − p) of all rows

    void add(double p, int times) {
      hits += times * p;
      squares += times * p * p;
      chosen += times;
    }
    double f1() const {
      return chosen > 0 && hits > 0 ? 2 * hits / (chosen + 1 + is_true - squares / hits) : 0;
    }
    /// The probability that the label is true or chosen in some row.
    double counted() const { return chosen > 0 ? 1 : -std::expm1(absent); }
  };
  static constexpr double kMostSure = 1 - 1e-6;
  std::vector<Sums> of_;
  double mean_ = 0;
};

/// The number of labels that are right in at least one row, as expected.
class Coverage {
 public:
  explicit Coverage(std::int64_t n_labels) : missed_(n_labels) {}

  void see(std::int32_t, double) {}
  void choose(std::int32_t label, double p, int times) {
    missed_[label] += times * std::log1p(-std::min(p, kMostSure));
  }
  double gain(std::int32_t label, double p) const { return p * std::exp(missed_[label]); }
  double total() const {
    double total = 0;
    for (const double missed : missed_) total -= std::expm1(missed);
    return total;
  }

 private:
  static constexpr double kMostSure = 1 - 1e-6;
  std::vector<double> missed_;  // log of the probability that the label is never right
};

/// A batch of rows whose labels are chosen for a metric.
template <typename Metric>
class Aim {
 public:
  /// Row i has `width` candidates, labels[i·width] …, the most probable first; −1 is an empty
  /// place. `places` are the k chosen of each row: at the start, the most probable.
  Aim(std::span<const std::int32_t> labels, std::span<const float> p, std::int64_t width,
      std::span<std::int32_t> places, std::int64_t k, std::int64_t n_labels)
      : labels_(labels), p_(p), places_(places), width_(width), k_(k), metric_(n_labels) {
    if (width < 1 || k < 1 || k > width || std::ssize(labels) % width != 0 ||
        p.size() != labels.size() || std::ssize(places) != std::ssize(labels) / width * k)
      throw std::invalid_argument("arrays must have an entry for each row and place");
    for (std::size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] >= n_labels) throw std::invalid_argument("label out of range");
      if (labels[i] < 0) continue;
      if (!(p[i] >= 0 && p[i] <= 1)) throw std::invalid_argument("not a probability");
      metric_.see(labels[i], p[i]);
    }
    for (std::int64_t row = 0; row < n_rows(); ++row) {
      for (std::int64_t place = 0; place < k_; ++place)
        chosen(row)[place] = static_cast<std::int32_t>(place);
      count(row, 1);
    }
  }

  /// Chooses the labels of every row again; returns the metric, up to a factor.
  double round() {
    metric_.total();
    for (std::int64_t row = 0; row < n_rows(); ++row) {
      count(row, -1);
      gains_.clear();
      for (std::int64_t place = 0; place < width_; ++place) {
        const std::int64_t at = row * width_ + place;
        if (labels_[at] < 0) continue;
        gains_.push_back({metric_.gain(labels_[at], p_[at]), static_cast<std::int32_t>(place)});
      }
      const auto n = std::min<std::int64_t>(k_, std::ssize(gains_));
      std::partial_sort(gains_.begin(), gains_.begin() + n, gains_.end(), [](auto a, auto b) {
        return a.gain > b.gain || (a.gain == b.gain && a.place < b.place);
      });
      for (std::int64_t i = 0; i < n; ++i) chosen(row)[i] = gains_[i].place;
      std::sort(chosen(row).begin(), chosen(row).begin() + n);
      count(row, 1);
    }
    return metric_.total();
  }

 private:
  struct Gain {
    double gain;
    std::int32_t place;
  };

  std::int64_t n_rows() const { return std::ssize(labels_) / width_; }
  std::span<std::int32_t> chosen(std::int64_t row) { return places_.subspan(row * k_, k_); }

  void count(std::int64_t row, int times) {
    for (const std::int32_t place : chosen(row)) {
      const std::int64_t at = row * width_ + place;
      if (labels_[at] >= 0) metric_.choose(labels_[at], p_[at], times);
    }
  }

  std::span<const std::int32_t> labels_;
  std::span<const float> p_;
  std::span<std::int32_t> places_;
  std::int64_t width_, k_;
  Metric metric_;
  std::vector<Gain> gains_;
};

}  // namespace dismec::score
