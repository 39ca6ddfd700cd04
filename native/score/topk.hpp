// Rows × one shard → scores, and the k best labels of each row.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "score/allowed.hpp"
#include "score/bounded.hpp"
#include "score/ranking.hpp"
#include "score/sums.hpp"
#include "score/tiles.hpp"

namespace dismec::score {

/// Fewer rows than this share too few features for a table.
inline constexpr std::int64_t kFewRows = 32;

/// Lets the labels of a shard compete for the places of one row, and resets the sums to 0. `heap`
/// is ordered by `before`, with the worst place in front; returns whether any label entered.
template <typename Code>
inline bool enter(const Shard<Code>& shard, const Labels& of, float bias, float* sums,
                  std::span<Place> heap) {
  bool entered = false;
  const auto enter_each = [&](std::int64_t start, std::int64_t stop) {
    for (std::int64_t row = start; row < stop; ++row)
      entered |= compete(of, row, score_of(shard, bias, sums[row], row), heap);
  };
  std::int64_t start = 0;
  for (; start + kGroup <= shard.n_rows(); start += kGroup) {
    const float worst = heap.front().score;
    Mask may_enter{};
    for (std::int64_t row = start; row < start + kGroup; row += kWide)
      may_enter |= scores_of(shard, bias, sums, row) >= worst;
    // Labels only grow from here on: if the first one loses a tie, the whole group does.
    if (any(may_enter) &&
        before({highest_score(shard, bias, sums, start), of.first(start)}, heap.front()))
      enter_each(start, start + kGroup);
    std::fill_n(sums + start, kGroup, 0.0f);
  }
  enter_each(start, shard.n_rows());
  std::fill_n(sums + start, shard.n_words() * kGroup - start, 0.0f);
  return entered;
}

/// The best labels of rows: rows × k, best first; empty places hold label −1 and score −inf.
struct Ranking {
  std::size_t k;
  std::span<std::int32_t> labels;
  std::span<float> scores;

  /// The places of a row as a heap, with the worst place in front.
  void read(std::int64_t row, std::span<Place> heap) const {
    // Best first is ascending by `before`; reversed, that is a heap.
    for (std::size_t j = 0; j < k; ++j) {
      const std::int32_t label = labels[row * k + j];
      heap[k - 1 - j] = {scores[row * k + j], label < 0 ? Place::empty : label};
    }
  }
  void write(std::int64_t row, std::span<Place> heap) const {
    std::sort_heap(heap.begin(), heap.end(), before);
    for (std::size_t j = 0; j < k; ++j) {
      scores[row * k + j] = heap[j].score;
      labels[row * k + j] = heap[j].label == Place::empty ? -1 : heap[j].label;
    }
  }
};

/// Merges a shard into the ranking of some rows, one row at a time. `among` gives the labels
/// allowed.
template <typename Code>
inline void merge_rows(const Shard<Code>& shard, const Labels& of, const Csr& rows,
                       std::int64_t begin, std::int64_t stop, std::int64_t lookup,
                       const Allowed& among, const Ranking& best) {
  float* const buffer = sums(shard.n_words());
  std::vector<Term<Code>> terms, next;
  Scratch<Code> scratch;
  std::vector<Place> heap(best.k);
  OpenWords words(among, shard.n_rows());
  // The next row's lists are prefetched while this row's are added.
  const bool bounded = !shard.ceilings.empty();
  const auto prepare = [&](std::int64_t row) {
    const float bias = find_terms(shard, rows, row, next);
    if (bounded)
      find_rises(shard, rows.columns(row), std::span<const Term<Code>>(next), scratch.next);
    return bias;
  };
  float next_bias = begin < stop ? prepare(begin) : 0.0f;
  for (std::int64_t row = begin; row < stop; ++row) {
    const float bias = next_bias;
    std::swap(terms, next);
    std::swap(scratch.rises, scratch.next);
    next.clear();
    if (row + 1 < stop) next_bias = prepare(row + 1);
    const std::span<const Term<Code>> own(terms);
    const Ahead<Code> ahead(next, shard.n_words());
    best.read(row, heap);
    const Labels allowed = among.labels(of, row);
    const Open open = words.of(row);
    if (!open.all() && few_open(shard, own, open, lookup, best.k)) {
      enter_few(shard, allowed, own, bias, open, buffer, std::span(heap), scratch);
    } else if (!bounded || !enter_by_bounds(shard, allowed, own, bias, open, lookup,
                                            std::span(heap), scratch)) {
      if (bounded) best.read(row, heap);
      add_terms(shard, own, buffer, ahead);
      if (!enter(shard, allowed, bias, buffer, std::span(heap))) continue;
    }
    best.write(row, heap);
  }
}

/// Merges a shard into the ranking of every row. The order of shards does not matter. `lookup` is
/// as for `enter_by_bounds`, and `among` gives the labels allowed for each row.
template <typename Code>
inline void merge_topk(const Shard<Code>& shard, const Labels& of, const Csr& rows,
                       std::int64_t lookup, const Allowed& among, const Ranking& best) {
  if (!shard.ceilings.empty() || rows.n_rows() < kFewRows) {
    merge_rows(shard, of, rows, 0, rows.n_rows(), lookup, among, best);
    return;
  }
  Batch<Code> batch;
  Table<Code> table;
  std::vector<Place> heaps;
  for (std::int64_t begin = 0; begin < rows.n_rows(); begin += batch.n_rows()) {
    take_rows(shard, rows, begin, batch);
    const std::int64_t size = batch.n_rows();
    if (batch.scanning <= batch.tiling) {
      merge_rows(shard, of, rows, begin, begin + size, lookup, among, best);
      continue;
    }
    heaps.resize(size * best.k);
    const auto heap = [&](std::int64_t row) {
      return std::span(heaps).subspan(row * best.k, best.k);
    };
    for (std::int64_t row = 0; row < size; ++row) best.read(begin + row, heap(row));
    if (among.kind == Allowed::Kind::all) {
      enter_tiled(shard, EveryLabel{of}, batch, table, best.k, std::span(heaps));
    } else {
      const SomeLabels some(among, of, begin, size, shard.n_rows());
      enter_tiled(shard, some, batch, table, best.k, std::span(heaps));
    }
    for (std::int64_t row = 0; row < size; ++row) best.write(begin + row, heap(row));
  }
}

/// Writes a shard's scores into its columns of a dense rows × n_labels matrix.
template <typename Code>
inline void dense_scores(const Shard<Code>& shard, const Labels& of, const Csr& rows,
                         std::int64_t n_labels, std::span<float> out) {
  float* const buffer = sums(shard.n_words());
  std::vector<Term<Code>> terms;
  for (std::int64_t i = 0; i < rows.n_rows(); ++i) {
    const float bias = find_terms(shard, rows, i, terms);
    add_terms(shard, std::span<const Term<Code>>(terms), buffer);
    float* line = out.data() + i * n_labels;
    for (std::int64_t row = 0; row < shard.n_rows(); ++row) {
      const float score = score_of(shard, bias, buffer[row], row);
      for (std::int32_t j = of.starts[row]; j < of.starts[row + 1]; ++j) line[of.labels[j]] = score;
    }
    std::fill_n(buffer, shard.n_words() * kGroup, 0.0f);
  }
}

}  // namespace dismec::score
