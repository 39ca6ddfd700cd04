// Rows × one shard → scores, and the k best labels of each row.
//
// The score of a classifier is the sum of value·weight over the row's features in ascending order,
// the bias last, in float32, from 0, each product and each sum rounded: the order in which a sparse
// matrix product adds them, so that results equal brute force bit for bit. Terms with weight 0 do
// not change a score; adding or leaving them out is a matter of speed.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "shard.hpp"

namespace dismec {

/// The labels that a shard's classifiers stand for: those of row i are labels[starts[i]] …, in
/// ascending order, and so are the first ones of the rows.
struct Labels {
  std::span<const std::int32_t> starts;
  std::span<const std::int32_t> labels;

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

/// Of each group of classifiers the largest scale and the largest bias: no score of the group is
/// above (largest sum or 0)·scale + bias.
struct Bounds {
  std::vector<float> scale, bias;
};

template <typename Code>
inline Bounds bounds_of(const Shard<Code>& shard) {
  Bounds bounds;
  for (std::int64_t start = 0; start < shard.n_rows(); start += kGroup) {
    const std::int64_t size = std::min(kGroup, shard.n_rows() - start);
    const auto largest = [&](std::span<const float> of) {
      const auto part = of.subspan(start, size);
      return *std::max_element(part.begin(), part.end());
    };
    bounds.scale.push_back(largest(shard.scales));
    bounds.bias.push_back(largest(shard.bias));
  }
  return bounds;
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

/// This thread's sums: room for every classifier that sixteen bits can name, whatever a file
/// holds. All zero whenever a row is begun.
inline float* sums() {
  struct alignas(64) Line {
    float sums[kGroup] = {};
  };
  thread_local std::vector<Line> memory(kShardRows / kGroup);
  return memory.front().sums;
}

/// sums += value · weight for the classifiers in a list.
template <typename Code>
inline void add_listed(std::span<const Code> weights, const std::uint16_t* __restrict places,
                       float value, float* __restrict sums) {
  const std::int64_t count = std::ssize(weights);
  const Code* __restrict weight = weights.data();
  std::int64_t j = 0;
  for (; j + kGroup <= count; j += kGroup) {
    float product[kGroup];
    for (int l = 0; l < kGroup; ++l) product[l] = value * decode(weight[j + l]);
#pragma GCC unroll 16
    for (int l = 0; l < kGroup; ++l) sums[places[j + l]] += product[l];
  }
  for (; j < count; ++j) sums[places[j]] += value * decode(weight[j]);
}

#if defined(__AVX2__)

/// For every byte, and each of its bits in a byte of its own: how many lower bits are set.
inline constexpr std::array<std::uint64_t, 256> kRanks = [] {
  std::array<std::uint64_t, 256> ranks{};
  for (unsigned byte = 0; byte < 256; ++byte)
    for (unsigned bit = 0; bit < 8; ++bit)
      ranks[byte] |= std::uint64_t(std::popcount(byte & ((1U << bit) - 1))) << (8 * bit);
  return ranks;
}();

#endif

// Where there are vectors: kWide weights at a time.
//
// decode_wide(p) are the numbers that p[0] … stand for. spread(bits, numbers) hands the first
// numbers, one after another, to the lanes whose bit is set, and 0 to the others.

#if defined(__AVX512F__)

inline constexpr int kWide = 16;
using Wide = __m512;

inline Wide decode_wide(const float* weights) { return _mm512_loadu_ps(weights); }
inline Wide decode_wide(const Half* weights) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights)));
}
inline Wide decode_wide(const Mini* weights) {
  const __m512i bits =
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights)));
  const __m512i magnitude =
      _mm512_slli_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(0x7f)), Mini::shift);
  const __m512i value = _mm512_add_epi32(magnitude, _mm512_set1_epi32(Mini::offset));
  const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32(INT32_MIN));
  return _mm512_castsi512_ps(_mm512_or_si512(value, sign));
}
/// That is what the expand instruction does, which takes half as long again on AMD's processors.
inline Wide spread(std::uint32_t bits, Wide numbers) {
  const std::uint64_t low = kRanks[bits & 0xff];
  const auto before = static_cast<std::uint64_t>(std::popcount(bits & 0xff));
  const std::uint64_t high = kRanks[bits >> 8] + 0x0101'0101'0101'0101U * before;
  const __m128i ranks =
      _mm_set_epi64x(static_cast<std::int64_t>(high), static_cast<std::int64_t>(low));
  return _mm512_maskz_permutexvar_ps(static_cast<__mmask16>(bits), _mm512_cvtepu8_epi32(ranks),
                                     numbers);
}
inline Wide times(float value, Wide numbers) {
  return _mm512_mul_ps(_mm512_set1_ps(value), numbers);
}
inline void add_to(float* sums, Wide numbers) {
  _mm512_store_ps(sums, _mm512_add_ps(_mm512_load_ps(sums), numbers));
}

#elif defined(__AVX2__)

inline constexpr int kWide = 8;
using Wide = __m256;

inline Wide decode_wide(const float* weights) { return _mm256_loadu_ps(weights); }
inline Wide decode_wide(const Half* weights) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights)));
}
inline Wide decode_wide(const Mini* weights) {
  const __m256i bits =
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(weights)));
  const __m256i magnitude =
      _mm256_slli_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7f)), Mini::shift);
  const __m256i value = _mm256_add_epi32(magnitude, _mm256_set1_epi32(Mini::offset));
  const __m256i sign = _mm256_and_si256(bits, _mm256_set1_epi32(INT32_MIN));
  return _mm256_castsi256_ps(_mm256_or_si256(value, sign));
}
inline Wide spread(std::uint32_t bits, Wide numbers) {
  const __m256i ranks =
      _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<std::int64_t>(kRanks[bits])));
  const __m256i of_lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), of_lane);
  const __m256 mask = _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, of_lane));
  return _mm256_and_ps(_mm256_permutevar8x32_ps(numbers, ranks), mask);
}
inline Wide times(float value, Wide numbers) {
  return _mm256_mul_ps(_mm256_set1_ps(value), numbers);
}
inline void add_to(float* sums, Wide numbers) {
  _mm256_store_ps(sums, _mm256_add_ps(_mm256_load_ps(sums), numbers));
}

#endif

/// sums += value · weight for the classifiers whose bit is set, a word of them at a time.
template <typename Code>
inline void add_dense(std::span<const Code> weights, const std::uint16_t* __restrict words,
                      std::int64_t n_words, float value, float* __restrict sums) {
  const Code* __restrict weight = weights.data();
  // Bits that stand for more weights than there are, in a damaged file, lead no further than here.
  const Code* const end = weight + weights.size();
#if defined(__AVX2__)
  for (std::int64_t i = 0; i < n_words && weight < end; ++i) {
    const std::uint32_t word = words[i];
    for (int lane = 0; lane < kGroup; lane += kWide) {
      const std::uint32_t bits = word >> lane & ((1U << kWide) - 1);
      const Code* const first = weight + std::popcount(word & ((1U << lane) - 1));
      add_to(sums + i * kGroup + lane, spread(bits, times(value, decode_wide(first))));
    }
    weight += std::popcount(word);
  }
#else
  for (std::int64_t i = 0; i < n_words; ++i)
    for (unsigned word = words[i]; word != 0 && weight < end; word &= word - 1)
      sums[i * kGroup + __builtin_ctz(word)] += value * decode(*weight++);
#endif
}

/// Adds a row's features to the sums of every classifier; returns the value of its bias feature.
template <typename Code>
inline float add_row(const Shard<Code>& shard, const Csr& rows, std::int64_t row,
                     std::vector<typename Shard<Code>::List>& lists, float* __restrict sums) {
  const std::int64_t begin = rows.starts[row];
  std::int64_t end = rows.starts[row + 1];
  float bias = 0;
  if (end > begin && rows.columns[end - 1] == shard.n_features()) bias = rows.values[--end];
  // All lists are found, and fetched from memory, before the first is added; and one that is
  // damaged is noticed while the sums are still 0.
  lists.clear();
  for (std::int64_t e = begin; e < end; ++e) {
    lists.push_back(shard.list(rows.columns[e]));
    __builtin_prefetch(lists.back().weights.data());
    __builtin_prefetch(lists.back().places);
  }
  for (std::int64_t e = begin; e < end; ++e) {
    const auto& list = lists[e - begin];
    if (list.dense) {
      add_dense(list.weights, list.places, shard.n_words(), rows.values[e], sums);
    } else {
      add_listed(list.weights, list.places, rows.values[e], sums);
    }
  }
  return bias;
}

/// Lets the labels of a shard compete for the places of one row, and sets the sums back to 0.
/// `heap` is ordered by `before`, its worst place in front; returns whether anything entered.
template <typename Code>
inline bool enter(const Shard<Code>& shard, const Labels& of, const Bounds& bounds, float bias,
                  float* __restrict sums, std::span<Place> heap) {
  bool entered = false;
  std::int64_t start = 0;
  for (std::size_t group = 0; group < bounds.scale.size(); ++group, start += kGroup) {
    // The smallest score that may enter. Labels only grow from here, so a tie with the worst place
    // is lost for the whole group as soon as it is for the group's first label.
    const Place& worst = heap.front();
    const bool tie_wins = of.first(start) < worst.label;
    const float enough = tie_wins
                             ? worst.score
                             : std::nextafter(worst.score, std::numeric_limits<float>::infinity());
    // Rounding keeps the order of what is rounded, so the bound holds for rounded scores.
    const float scale = bounds.scale[group];
    const float most_bias = bias >= 0 ? bounds.bias[group] * bias : HUGE_VALF;
    float sum[kGroup];
    int any = 0;
    for (int j = 0; j < kGroup; ++j) {
      sum[j] = sums[start + j];
      sums[start + j] = 0;
      any |= (sum[j] > 0 ? sum[j] : 0.0f) * scale + most_bias >= enough;
    }
    if (!any) continue;
    const std::int64_t stop = std::min(start + kGroup, shard.n_rows());
    for (std::int64_t row = start; row < stop; ++row) {
      const float score = sum[row - start] * shard.scales[row] + bias * shard.bias[row];
      for (std::int32_t i = of.starts[row]; i < of.starts[row + 1]; ++i) {
        const Place candidate{score, of.labels[i]};
        if (!before(candidate, heap.front())) break;
        std::pop_heap(heap.begin(), heap.end(), before);
        heap.back() = candidate;
        std::push_heap(heap.begin(), heap.end(), before);
        entered = true;
      }
    }
  }
  return entered;
}

/// Merges a shard into the running top k of every row. `labels` and `scores` are rows × k, best
/// first; empty places hold label −1 and score −inf. The order in which shards come does not
/// matter.
template <typename Code>
inline void merge_topk(const Shard<Code>& shard, const Labels& of, const Bounds& bounds,
                       const Csr& rows, std::size_t k, std::span<std::int32_t> labels,
                       std::span<float> scores) {
  float* const buffer = sums();
  std::vector<typename Shard<Code>::List> lists;
  std::vector<Place> heap(k);
  for (std::int64_t row = 0; row < rows.size(); ++row) {
    const float bias = add_row(shard, rows, row, lists, buffer);
    std::int32_t* row_labels = labels.data() + static_cast<std::size_t>(row) * k;
    float* row_scores = scores.data() + static_cast<std::size_t>(row) * k;
    // Best first is ascending by `before`: reversed, it is a heap.
    for (std::size_t j = 0; j < k; ++j)
      heap[k - 1 - j] = {row_scores[j], row_labels[j] < 0 ? Place::empty : row_labels[j]};
    if (!enter(shard, of, bounds, bias, buffer, heap)) continue;
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
  std::vector<typename Shard<Code>::List> lists;
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const float bias = add_row(shard, rows, i, lists, buffer);
    float* line = out.data() + i * n_labels;
    for (std::int64_t row = 0; row < shard.n_rows(); ++row) {
      const float score = buffer[row] * shard.scales[row] + bias * shard.bias[row];
      for (std::int32_t j = of.starts[row]; j < of.starts[row + 1]; ++j) line[of.labels[j]] = score;
    }
    std::fill_n(buffer, shard.n_words() * kGroup, 0.0f);
  }
}

}  // namespace dismec
