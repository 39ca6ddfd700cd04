// Rows × one block of labels → scores, and the k best labels of each row.
//
// The score of a label is the sum of value·weight over the row's features in ascending order, in
// float32, from 0, each product and each sum rounded: the order in which a sparse matrix product
// adds them, so that results equal brute force bit for bit. Terms with weight 0 do not change a
// score; adding or leaving them out is a matter of speed.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

namespace dismec {

/// Compressed sparse rows: entries starts[i] … starts[i + 1] belong to row i, columns ascending.
struct Csr {
  std::span<const std::int64_t> starts;
  std::span<const std::int32_t> columns;
  std::span<const float> values;

  std::int64_t size() const { return static_cast<std::int64_t>(starts.size()) - 1; }
};

/// A block's weights by feature: entries starts[f] … starts[f + 1] are the labels, counted from the
/// block's first and ascending, that have a weight for feature f.
struct PostingLists {
  std::int64_t n_labels = 0;
  std::int64_t n_features = 0;
  std::vector<std::int64_t> starts;
  std::vector<std::int32_t> labels;
  std::vector<float> weights;
  std::vector<float> initial;     // scores to start from: 0, or NaN for labels that never rank
  std::vector<std::int32_t> ids;  // of the labels in the model, ascending
};

/// A place in a row's ranking. An empty place loses to every label, even one with score −inf.
struct Place {
  float score = -std::numeric_limits<float>::infinity();
  std::int32_t label = empty;

  static constexpr std::int32_t empty = std::numeric_limits<std::int32_t>::max();
};

/// Throws unless `rows` can be walked safely and all columns are below `n_columns`.
inline void check_rows(const Csr& rows, std::int64_t n_columns) {
  if (rows.starts.empty() || rows.starts.front() != 0)
    throw std::invalid_argument("indptr must start with 0");
  for (std::size_t i = 1; i < rows.starts.size(); ++i)
    if (rows.starts[i] < rows.starts[i - 1])
      throw std::invalid_argument("indptr must not decrease");
  if (rows.starts.back() != static_cast<std::int64_t>(rows.columns.size()) ||
      rows.columns.size() != rows.values.size())
    throw std::invalid_argument("indptr must end with the length of indices and data");
  for (const std::int32_t column : rows.columns)
    if (column < 0 || column >= n_columns) throw std::invalid_argument("index out of range");
}

/// Label-major weights → posting lists, by counting sort. `ids` are the labels' numbers in the
/// model, ascending; `ranks` says of each label whether it may be among the top k.
inline PostingLists post(const Csr& weights, std::int64_t n_features,
                         std::span<const std::int32_t> ids, std::span<const std::uint8_t> ranks) {
  check_rows(weights, n_features);
  const std::int64_t n_labels = weights.size();
  if (n_labels > std::numeric_limits<std::int32_t>::max())
    throw std::invalid_argument("too many labels in a block");
  if (std::ssize(ranks) != n_labels || std::ssize(ids) != n_labels)
    throw std::invalid_argument("ids and ranks must have an entry for each label");
  for (std::int64_t i = 0; i < n_labels; ++i)
    if (ids[i] < 0 || ids[i] == Place::empty || (i > 0 && ids[i] <= ids[i - 1]))
      throw std::invalid_argument("labels of the block must ascend and be in range");

  PostingLists lists;
  lists.n_labels = n_labels;
  lists.n_features = n_features;
  lists.ids.assign(ids.begin(), ids.end());
  lists.starts.assign(static_cast<std::size_t>(n_features) + 1, 0);
  lists.labels.resize(weights.columns.size());
  lists.weights.resize(weights.columns.size());
  // No comparison with NaN holds, and adding to it changes nothing.
  for (const std::uint8_t rank : ranks)
    lists.initial.push_back(rank != 0 ? 0.0f : std::numeric_limits<float>::quiet_NaN());

  for (const std::int32_t feature : weights.columns) ++lists.starts[feature + 1];
  for (std::int64_t f = 0; f < n_features; ++f) lists.starts[f + 1] += lists.starts[f];
  std::vector<std::int64_t> next(lists.starts.begin(), lists.starts.end() - 1);
  for (std::int64_t label = 0; label < n_labels; ++label)
    for (std::int64_t e = weights.starts[label]; e < weights.starts[label + 1]; ++e) {
      const std::int64_t slot = next[weights.columns[e]]++;
      lists.labels[slot] = static_cast<std::int32_t>(label);
      lists.weights[slot] = weights.values[e];
    }
  return lists;
}

/// Scores of one row for every label of the block.
inline void score_row(const PostingLists& lists, const Csr& rows, std::int64_t row,
                      float* __restrict scores) {
  std::copy(lists.initial.begin(), lists.initial.end(), scores);
  for (std::int64_t e = rows.starts[row]; e < rows.starts[row + 1]; ++e) {
    const float value = rows.values[e];
    const std::int64_t first = lists.starts[rows.columns[e]];
    const std::int64_t count = lists.starts[rows.columns[e] + 1] - first;
    const std::int32_t* __restrict label = lists.labels.data() + first;
    const float* __restrict weight = lists.weights.data() + first;
#pragma GCC unroll 8
    for (std::int64_t j = 0; j < count; ++j) scores[label[j]] += value * weight[j];
  }
}

/// Whether `a` ranks before `b`: by score, ties to the smaller label.
inline bool before(const Place& a, const Place& b) {
  return a.score > b.score || (a.score == b.score && a.label < b.label);
}

/// Lets the labels of a block compete for the places of one row. `heap` is ordered by `before`, its
/// worst place in front; returns whether anything entered.
inline bool enter(std::span<const float> scores, std::span<const std::int32_t> ids,
                  std::span<Place> heap) {
  constexpr std::size_t group = 16;
  bool entered = false;
  for (std::size_t start = 0; start < scores.size(); start += group) {
    const std::size_t stop = std::min(start + group, scores.size());
    // The smallest score that may enter. Labels only grow from here, so a tie with the worst place
    // is lost for the whole group as soon as it is for the group's first label.
    const Place& worst = heap.front();
    const bool tie_wins = ids[start] < worst.label;
    const float enough = tie_wins
                             ? worst.score
                             : std::nextafter(worst.score, std::numeric_limits<float>::infinity());
    int any = 0;
    if (stop - start == group) {
      for (std::size_t j = 0; j < group; ++j) any |= scores[start + j] >= enough;
    } else {
      any = 1;
    }
    if (!any) continue;
    for (std::size_t j = start; j < stop; ++j) {
      const Place candidate{scores[j], ids[j]};
      if (!before(candidate, heap.front())) continue;
      std::pop_heap(heap.begin(), heap.end(), before);
      heap.back() = candidate;
      std::push_heap(heap.begin(), heap.end(), before);
      entered = true;
    }
  }
  return entered;
}

/// Merges a block into the running top k of every row. `labels` and `scores` are rows × k, best
/// first; empty places hold label −1 and score −inf. The order in which blocks come does not
/// matter.
inline void merge_topk(const PostingLists& lists, const Csr& rows, std::size_t k,
                       std::span<std::int32_t> labels, std::span<float> scores) {
  std::vector<float> block_scores(static_cast<std::size_t>(lists.n_labels));
  std::vector<Place> heap(k);
  for (std::int64_t row = 0; row < rows.size(); ++row) {
    score_row(lists, rows, row, block_scores.data());
    std::int32_t* row_labels = labels.data() + static_cast<std::size_t>(row) * k;
    float* row_scores = scores.data() + static_cast<std::size_t>(row) * k;
    // Best first is ascending by `before`: reversed, it is a heap.
    for (std::size_t j = 0; j < k; ++j)
      heap[k - 1 - j] = {row_scores[j], row_labels[j] < 0 ? Place::empty : row_labels[j]};
    if (!enter(block_scores, lists.ids, heap)) continue;
    std::sort_heap(heap.begin(), heap.end(), before);
    for (std::size_t j = 0; j < k; ++j) {
      row_scores[j] = heap[j].score;
      row_labels[j] = heap[j].label == Place::empty ? -1 : heap[j].label;
    }
  }
}

/// Writes a block's scores into its columns of a dense rows × n_labels matrix.
inline void dense_scores(const PostingLists& lists, const Csr& rows, std::int64_t n_labels,
                         std::span<float> out) {
  std::vector<float> block_scores(static_cast<std::size_t>(lists.n_labels));
  for (std::int64_t row = 0; row < rows.size(); ++row) {
    score_row(lists, rows, row, block_scores.data());
    float* line = out.data() + row * n_labels;
    for (std::int64_t j = 0; j < lists.n_labels; ++j) line[lists.ids[j]] = block_scores[j];
  }
}

}  // namespace dismec
