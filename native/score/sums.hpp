// A row × one shard → the sums of its classifiers.
//
// The score of a classifier is the sum of value·weight over the row's features in ascending order,
// the bias last, in float32, from 0, each product and each sum rounded: the order in which a sparse
// matrix product adds them, so that results equal brute force bit for bit. Terms with weight 0 do
// not change a score; adding or leaving them out is a matter of speed.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "csr.hpp"
#include "score/codes.hpp"
#include "score/shard.hpp"
#include "score/wide.hpp"

namespace dismec::score {

/// This thread's sums: room for every classifier that sixteen bits can name, whatever a file
/// holds. All zero whenever a row is begun.
inline float* sums() {
  struct alignas(64) Line {
    float sums[kGroup] = {};
  };
  thread_local std::vector<Line> memory(kShardRows / kGroup);
  return memory.front().sums;
}

/// product = value · weight for kGroup weights.
template <typename Code>
inline void multiply_group(float value, const Code* weights, float* product) {
#if defined(__AVX2__)
  for (int l = 0; l < kGroup; l += kWide)
    store(product + l, times(value, decode_wide(weights + l)));
#else
  for (int l = 0; l < kGroup; ++l) product[l] = value * decode(weights[l]);
#endif
}

/// sums += value · weight for the classifiers in a list.
template <typename Code>
inline void add_listed(std::span<const Code> weights, const std::uint16_t* __restrict places,
                       float value, float* __restrict sums) {
  const std::int64_t count = std::ssize(weights);
  const Code* __restrict weight = weights.data();
  std::int64_t j = 0;
  for (; j + kGroup <= count; j += kGroup) {
    alignas(64) float product[kGroup];
    multiply_group(value, weight + j, product);
#pragma GCC unroll 16
    for (int l = 0; l < kGroup; ++l) sums[places[j + l]] += product[l];
  }
  for (; j < count; ++j) sums[places[j]] += value * decode(weight[j]);
}

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

/// A part of one of the row's features, and what its weights are multiplied with.
template <typename Code>
struct Term {
  typename Shard<Code>::List list;
  float value;
  bool lifts;  // whether it may have products above 0
};

/// Finds the terms of a row; returns the value of its bias feature. That is all that can fail in a
/// damaged file, and is done while the sums are still 0. The lists are fetched from memory before
/// the first is added.
template <typename Code>
inline float find_terms(const Shard<Code>& shard, const Csr& rows, std::int64_t row,
                        std::vector<Term<Code>>& terms) {
  const std::int64_t begin = rows.indptr[row];
  std::int64_t end = rows.indptr[row + 1];
  float bias = 0;
  if (end > begin && rows.indices[end - 1] == shard.n_features()) bias = rows.values[--end];
  terms.clear();
  for (std::int64_t e = begin; e < end; ++e)
    __builtin_prefetch(&shard.starts[rows.indices[e] * shard.n_parts()]);
  for (std::int64_t e = begin; e < end; ++e)
    for (std::int64_t part = 0; part < shard.n_parts(); ++part) {
      const float value = rows.values[e];
      const bool lifts = !shard.split || (part == 0) == (value >= 0);
      terms.push_back({shard.list(rows.indices[e], part), value, lifts});
      if (!lifts) continue;
      __builtin_prefetch(terms.back().list.weights.data());
      __builtin_prefetch(terms.back().list.places);
    }
  return bias;
}

template <typename Code>
inline void add_term(const Term<Code>& term, std::int64_t n_words, float* sums) {
  if (term.list.dense) {
    add_dense(term.list.weights, term.list.places, n_words, term.value, sums);
  } else {
    add_listed(term.list.weights, term.list.places, term.value, sums);
  }
}

template <typename Code>
inline void add_terms(const Shard<Code>& shard, const std::vector<Term<Code>>& terms, float* sums) {
  for (const auto& term : terms) add_term(term, shard.n_words(), sums);
}

/// The score of a classifier.
template <typename Code>
inline float score_of(const Shard<Code>& shard, float bias, float sum, std::int64_t row) {
  return sum * shard.scales[row] + bias * shard.bias[row];
}

/// The score, or +inf for a NaN.
inline float at_most(float score) { return score < HUGE_VALF ? score : HUGE_VALF; }

/// The highest score of the kGroup classifiers from `start` on; +inf if one is a NaN.
template <typename Code>
inline float highest_score(const Shard<Code>& shard, float bias, const float* sums,
                           std::int64_t start) {
  // The bits as integers of the same order: compilers find the largest of these with vectors.
  constexpr std::int32_t all = std::numeric_limits<std::int32_t>::max();
  const auto ordered = [](std::int32_t bits) { return bits ^ (bits >> 31 & all); };
  const auto among = [&](std::int64_t size) {
    std::int32_t highest = -all - 1;
    for (std::int64_t row = start; row < start + size; ++row) {
      const float score = at_most(score_of(shard, bias, sums[row], row));
      highest = std::max(highest, ordered(std::bit_cast<std::int32_t>(score)));
    }
    return std::bit_cast<float>(ordered(highest));
  };
  // Compiled for the number of all groups but the last.
  return start + kGroup <= shard.n_rows() ? among(kGroup) : among(shard.n_rows() - start);
}

}  // namespace dismec::score
