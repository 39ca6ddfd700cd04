// Rows × one shard of labels → scores, and the k best labels of each row.
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

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace dismec {

/// Compressed sparse rows: entries starts[i] … starts[i + 1] belong to row i, columns ascending.
struct Csr {
  std::span<const std::int64_t> starts;
  std::span<const std::int32_t> columns;
  std::span<const float> values;

  std::int64_t size() const { return static_cast<std::int64_t>(starts.size()) - 1; }
};

/// Labels that are scored together: their numbers among these fit into sixteen bits.
inline constexpr std::int64_t kShardLabels = std::int64_t{1} << 16;

/// The weights of up to kShardLabels labels by feature. A feature that fewer than one label in
/// sixteen has a weight for lists these labels; for the others there is a bit a label, which takes
/// less room and can be walked sixteen labels at a time.
struct Shard {
  std::int64_t n_labels = 0;
  std::int64_t n_features = 0;
  struct Start {
    std::int64_t weight, place;
  };
  std::vector<Start> starts;          // of each feature, and the ends
  std::vector<std::uint16_t> places;  // labels, counted from the shard's first, or words of bits
  std::vector<float> weights;         // by label; 16 more at the end, so that whole vectors load
  std::vector<float> initial;         // scores to start from: 0, or NaN for labels that never rank
  std::vector<std::int32_t> ids;      // of the labels in the model, ascending

  std::int64_t n_words() const { return (n_labels + 15) / 16; }
  std::int64_t n_weights() const { return starts.back().weight; }
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

/// Where a label's weights are: a row of one of several matrices.
struct Source {
  std::int32_t matrix;
  std::int32_t row;
};

/// Label-major weights → a shard, by counting sort. `ids` are the labels' numbers in the model,
/// ascending; `ranks` says of each label whether it may be among the top k.
inline Shard pack(std::span<const Csr> matrices, std::span<const Source> sources,
                  std::int64_t n_features, std::span<const std::int32_t> ids,
                  std::span<const std::uint8_t> ranks) {
  for (const Csr& matrix : matrices) check_rows(matrix, n_features);
  const std::int64_t n_labels = std::ssize(sources);
  if (n_labels > kShardLabels) throw std::invalid_argument("too many labels in a shard");
  if (std::ssize(ranks) != n_labels || std::ssize(ids) != n_labels)
    throw std::invalid_argument("ids and ranks must have an entry for each label");
  for (std::int64_t i = 0; i < n_labels; ++i) {
    if (ids[i] < 0 || ids[i] == Place::empty || (i > 0 && ids[i] <= ids[i - 1]))
      throw std::invalid_argument("labels of the shard must ascend and be in range");
    const auto [matrix, row] = sources[i];
    if (matrix < 0 || matrix >= std::ssize(matrices) || row < 0 || row >= matrices[matrix].size())
      throw std::invalid_argument("a label's weights are out of range");
  }

  Shard shard;
  shard.n_labels = n_labels;
  shard.n_features = n_features;
  shard.ids.assign(ids.begin(), ids.end());
  // No comparison with NaN holds, and adding to it changes nothing.
  for (const std::uint8_t rank : ranks)
    shard.initial.push_back(rank != 0 ? 0.0f : std::numeric_limits<float>::quiet_NaN());

  const auto each = [&](auto&& visit) {
    for (std::int64_t label = 0; label < n_labels; ++label) {
      const Csr& matrix = matrices[sources[label].matrix];
      const std::int32_t row = sources[label].row;
      for (std::int64_t e = matrix.starts[row]; e < matrix.starts[row + 1]; ++e)
        visit(label, matrix.columns[e], matrix.values[e]);
    }
  };
  std::vector<std::int64_t> count(n_features, 0);
  each([&](std::int64_t, std::int32_t feature, float) { ++count[feature]; });
  shard.starts.assign(static_cast<std::size_t>(n_features) + 1, {0, 0});
  const std::int64_t n_words = shard.n_words();
  for (std::int64_t f = 0; f < n_features; ++f) {
    const auto [weight, place] = shard.starts[f];
    shard.starts[f + 1] = {weight + count[f], place + std::min(count[f], n_words)};
  }
  shard.places.assign(shard.starts.back().place, 0);
  shard.weights.assign(shard.n_weights() + 16, 0.0f);
  std::vector<std::int64_t>& done = count;  // from here on: how many have been placed
  done.assign(n_features, 0);
  each([&](std::int64_t label, std::int32_t feature, float weight) {
    const Shard::Start start = shard.starts[feature];
    const Shard::Start end = shard.starts[feature + 1];
    const std::int64_t at = done[feature]++;
    shard.weights[start.weight + at] = weight;
    if (end.weight - start.weight > n_words) {
      shard.places[start.place + label / 16] |= static_cast<std::uint16_t>(1U << (label % 16));
    } else {
      shard.places[start.place + at] = static_cast<std::uint16_t>(label);
    }
  });
  return shard;
}

/// scores += value · weight for the labels whose bit is set, sixteen of them a word.
inline void add_where(const std::uint16_t* __restrict words, std::int64_t n_words,
                      const float* __restrict weight, float value, float* __restrict scores) {
#if defined(__AVX512F__)
  const __m512 factor = _mm512_set1_ps(value);
  for (std::int64_t i = 0; i < n_words; ++i) {
    const __mmask16 word = words[i];
    const __m512 weights = _mm512_maskz_expand_ps(word, _mm512_loadu_ps(weight));
    const __m512 old = _mm512_loadu_ps(scores + i * 16);
    const __m512 sum = _mm512_mask_add_ps(old, word, old, _mm512_mul_ps(factor, weights));
    _mm512_storeu_ps(scores + i * 16, sum);
    weight += __builtin_popcount(word);
  }
#else
  for (std::int64_t i = 0; i < n_words; ++i)
    for (unsigned word = words[i]; word != 0; word &= word - 1)
      scores[i * 16 + __builtin_ctz(word)] += value * *weight++;
#endif
}

/// Scores of one row for every label of the shard; `scores` has room for whole words of labels.
inline void score_row(const Shard& shard, const Csr& rows, std::int64_t row,
                      float* __restrict scores) {
  std::copy(shard.initial.begin(), shard.initial.end(), scores);
  const std::int64_t n_words = shard.n_words();
  for (std::int64_t e = rows.starts[row]; e < rows.starts[row + 1]; ++e) {
    const float value = rows.values[e];
    const Shard::Start start = shard.starts[rows.columns[e]];
    const std::int64_t count = shard.starts[rows.columns[e] + 1].weight - start.weight;
    const std::uint16_t* __restrict place = shard.places.data() + start.place;
    const float* __restrict weight = shard.weights.data() + start.weight;
    if (count > n_words) {
      add_where(place, n_words, weight, value, scores);
      continue;
    }
#pragma GCC unroll 8
    for (std::int64_t j = 0; j < count; ++j) scores[place[j]] += value * weight[j];
  }
}

/// Room for the scores of a shard.
inline std::vector<float> score_buffer(const Shard& shard) {
  return std::vector<float>(static_cast<std::size_t>(shard.n_words()) * 16);
}

/// Whether `a` ranks before `b`: by score, ties to the smaller label.
inline bool before(const Place& a, const Place& b) {
  return a.score > b.score || (a.score == b.score && a.label < b.label);
}

/// Lets the labels of a shard compete for the places of one row. `heap` is ordered by `before`, its
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

/// Merges a shard into the running top k of every row. `labels` and `scores` are rows × k, best
/// first; empty places hold label −1 and score −inf. The order in which shards come does not
/// matter.
inline void merge_topk(const Shard& shard, const Csr& rows, std::size_t k,
                       std::span<std::int32_t> labels, std::span<float> scores) {
  std::vector<float> buffer = score_buffer(shard);
  const std::span<const float> shard_scores{buffer.data(), shard.ids.size()};
  std::vector<Place> heap(k);
  for (std::int64_t row = 0; row < rows.size(); ++row) {
    score_row(shard, rows, row, buffer.data());
    std::int32_t* row_labels = labels.data() + static_cast<std::size_t>(row) * k;
    float* row_scores = scores.data() + static_cast<std::size_t>(row) * k;
    // Best first is ascending by `before`: reversed, it is a heap.
    for (std::size_t j = 0; j < k; ++j)
      heap[k - 1 - j] = {row_scores[j], row_labels[j] < 0 ? Place::empty : row_labels[j]};
    if (!enter(shard_scores, shard.ids, heap)) continue;
    std::sort_heap(heap.begin(), heap.end(), before);
    for (std::size_t j = 0; j < k; ++j) {
      row_scores[j] = heap[j].score;
      row_labels[j] = heap[j].label == Place::empty ? -1 : heap[j].label;
    }
  }
}

/// Writes a shard's scores into its columns of a dense rows × n_labels matrix.
inline void dense_scores(const Shard& shard, const Csr& rows, std::int64_t n_labels,
                         std::span<float> out) {
  std::vector<float> buffer = score_buffer(shard);
  for (std::int64_t row = 0; row < rows.size(); ++row) {
    score_row(shard, rows, row, buffer.data());
    float* line = out.data() + row * n_labels;
    for (std::int64_t j = 0; j < shard.n_labels; ++j) line[shard.ids[j]] = buffer[j];
  }
}

}  // namespace dismec
