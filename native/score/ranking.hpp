// Scores of a shard's classifiers → places of their labels in the ranking of a row.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

namespace dismec::score {

/// Which labels may be ranked: all of them, those whose bit is set, or those of an ascending list.
struct Permit {
  enum class Kind : std::uint8_t { all, bits, list };

  Kind kind = Kind::all;
  std::span<const std::uint8_t> bits = {};
  std::span<const std::int32_t> list = {};

  bool operator()(std::int32_t label) const {
    if (kind == Kind::all) return true;
    if (kind == Kind::bits) return (bits[label / 8] >> (label % 8) & 1) != 0;
    return std::ranges::binary_search(list, label);
  }
};

/// The labels of a shard's classifiers: those of row i are labels[starts[i]] … in ascending order.
/// The first labels of the rows ascend as well.
struct Labels {
  std::span<const std::int32_t> starts;
  std::span<const std::int32_t> labels;
  Permit permit = {};  // the labels that may compete

  std::int32_t first(std::int64_t row) const { return labels[starts[row]]; }
};

inline void check_labels(const Labels& of, std::int64_t n_rows) {
  if (std::ssize(of.starts) != n_rows + 1 || of.starts.front() != 0 ||
      of.starts.back() != std::ssize(of.labels))
    throw std::invalid_argument("label_starts must lead from 0 to the number of labels");
  for (std::int64_t row = 0; row < n_rows; ++row) {
    if (of.starts[row + 1] <= of.starts[row])
      throw std::invalid_argument("a classifier is of no label");
    if (row > 0 && of.first(row) <= of.first(row - 1))
      throw std::invalid_argument("classifiers must be in the order of their first labels");
    for (std::int32_t i = of.starts[row]; i < of.starts[row + 1]; ++i)
      if (of.labels[i] < 0 || of.labels[i] == std::numeric_limits<std::int32_t>::max() ||
          (i > of.starts[row] && of.labels[i] <= of.labels[i - 1]))
        throw std::invalid_argument("labels of a classifier must ascend and be in range");
  }
}

/// A place in a row's ranking. An empty place loses to every label, even one with score −inf.
struct Place {
  float score = -std::numeric_limits<float>::infinity();
  std::int32_t label = empty;

  static constexpr std::int32_t empty = std::numeric_limits<std::int32_t>::max();
};

/// Whether `a` ranks before `b`: by score, ties to the smaller label.
inline bool before(const Place& a, const Place& b) {
  return a.score > b.score || (a.score == b.score && a.label < b.label);
}

/// Lets the labels of a classifier compete for places; returns whether any entered. `heap` is
/// ordered by `before`, with the worst place in front. The permit is checked last, since few labels
/// score high enough.
inline bool compete(const Labels& of, std::int64_t row, float score, std::span<Place> heap) {
  bool entered = false;
  for (std::int32_t i = of.starts[row]; i < of.starts[row + 1]; ++i) {
    const Place candidate{score, of.labels[i]};
    if (!before(candidate, heap.front())) break;
    if (!of.permit(candidate.label)) continue;
    std::pop_heap(heap.begin(), heap.end(), before);
    heap.back() = candidate;
    std::push_heap(heap.begin(), heap.end(), before);
    entered = true;
  }
  return entered;
}

}  // namespace dismec::score
