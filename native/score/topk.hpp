// Rows × one shard → scores, and the k best labels of each row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "score/bounded.hpp"
#include "score/ranking.hpp"
#include "score/sums.hpp"

namespace dismec::score {

/// Lets the labels of a shard compete for the places of one row, and sets the sums back to 0.
/// `heap` is ordered by `before`, its worst place in front; returns whether anything entered.
template <typename Code>
inline bool enter(const Shard<Code>& shard, const Labels& of, float bias, float* sums,
                  std::span<Place> heap) {
  bool entered = false;
  for (std::int64_t start = 0; start < shard.n_rows(); start += kGroup) {
    const float highest = highest_score(shard, bias, sums, start);
    // Labels only grow from here: a tie that is lost for the first one is lost for the group.
    if (highest >= heap.front().score && before({highest, of.first(start)}, heap.front())) {
      const std::int64_t stop = std::min(start + kGroup, shard.n_rows());
      for (std::int64_t row = start; row < stop; ++row)
        entered |= compete(of, row, score_of(shard, bias, sums[row], row), heap);
    }
    std::fill_n(sums + start, kGroup, 0.0f);
  }
  return entered;
}

/// Merges a shard into the running top k of every row. `labels` and `scores` are rows × k, best
/// first; empty places hold label −1 and score −inf. The order in which shards come does not
/// matter. `lookup` is as for `enter_by_bounds`.
template <typename Code>
inline void merge_topk(const Shard<Code>& shard, const Labels& of, const Csr& rows, std::size_t k,
                       std::int64_t lookup, std::span<std::int32_t> labels,
                       std::span<float> scores) {
  float* const buffer = sums();
  std::vector<Term<Code>> terms;
  Scratch<Code> scratch;
  std::vector<Place> heap(k);
  for (std::int64_t row = 0; row < rows.n_rows(); ++row) {
    const float bias = find_terms(shard, rows, row, terms);
    std::int32_t* row_labels = labels.data() + static_cast<std::size_t>(row) * k;
    float* row_scores = scores.data() + static_cast<std::size_t>(row) * k;
    const auto begin = [&] {
      // Best first is ascending by `before`: reversed, it is a heap.
      for (std::size_t j = 0; j < k; ++j)
        heap[k - 1 - j] = {row_scores[j], row_labels[j] < 0 ? Place::empty : row_labels[j]};
    };
    begin();
    if (!shard.split || !enter_by_bounds(shard, of, std::span<const Term<Code>>(terms), bias,
                                         lookup, buffer, std::span(heap), scratch)) {
      if (shard.split) begin();
      add_terms(shard, terms, buffer);
      if (!enter(shard, of, bias, buffer, std::span(heap))) continue;
    }
    std::sort_heap(heap.begin(), heap.end(), before);
    for (std::size_t j = 0; j < k; ++j) {
      row_scores[j] = heap[j].score;
      row_labels[j] = heap[j].label == Place::empty ? -1 : heap[j].label;
    }
  }
}

/// Writes a shard's scores into its columns of a dense rows × n_labels matrix.
template <typename Code>
inline void dense_scores(const Shard<Code>& shard, const Labels& of, const Csr& rows,
                         std::int64_t n_labels, std::span<float> out) {
  float* const buffer = sums();
  std::vector<Term<Code>> terms;
  for (std::int64_t i = 0; i < rows.n_rows(); ++i) {
    const float bias = find_terms(shard, rows, i, terms);
    add_terms(shard, terms, buffer);
    float* line = out.data() + i * n_labels;
    for (std::int64_t row = 0; row < shard.n_rows(); ++row) {
      const float score = score_of(shard, bias, buffer[row], row);
      for (std::int32_t j = of.starts[row]; j < of.starts[row + 1]; ++j) line[of.labels[j]] = score;
    }
    std::fill_n(buffer, shard.n_words() * kGroup, 0.0f);
  }
}

}  // namespace dismec::score
