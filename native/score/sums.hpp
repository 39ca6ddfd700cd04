// A row × one shard → the sums of its classifiers.
//
// The score of a classifier is the sum of value·weight over the row's features in ascending order,
// the bias last, in float32, starting from 0, with each product and each sum rounded. A sparse
// matrix product adds in this order, so results equal brute force bit for bit. Terms with weight 0
// do not change a score: whether they are added is a matter of speed.
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

/// This thread's sums, with room for every classifier that sixteen bits can identify, whatever a
/// file holds. Those of a shard's words are 0 whenever a row is started. Others may not be, if a
/// damaged list names classifiers that the shard does not have: they are zeroed for the first shard
/// that has them.
inline float* sums(std::int64_t n_words) {
  struct alignas(64) Line {
    float sums[kGroup] = {};
  };
  thread_local std::vector<Line> memory(kShardRows / kGroup);
  thread_local std::int64_t clean = kShardRows / kGroup;
  if (n_words > clean) std::fill_n(memory.begin() + clean, n_words - clean, Line{});
  clean = n_words;
  return memory.front().sums;
}

/// One of the row's features, and the value that its weights are multiplied by.
template <typename Code>
struct Term {
  typename Shard<Code>::List list;
  float value;
};

/// How far ahead codes are prefetched: hardware prefetchers stop at the end of a page.
inline constexpr std::int64_t kAhead = 512;

/// Prefetches the lists that are added next, one cache line at a time: the loops request a line
/// whenever they have little to wait for. Requested all at once, the lines would delay one another.
template <typename Code>
class Ahead {
 public:
  Ahead() = default;
  /// Lists of bits have `n_words` words.
  Ahead(std::span<const Term<Code>> terms, std::int64_t n_words)
      : terms_(terms), n_words_(n_words) {}

  void fetch() {
    if (at_ >= end_ && !turn()) return;
    __builtin_prefetch(at_, 0, 2);
    at_ += 64;
  }

 private:
  /// Continues with the places of the list, or with the weights of the next one.
  bool turn() {
    while (!terms_.empty()) {
      const auto& list = terms_.front().list;
      const std::int64_t count = std::ssize(list.weights);
      places_ = !places_;
      if (places_) {
        // Those beyond kAhead are prefetched while the list is added.
        set(list.weights.data(), list.dense ? std::min(count, kAhead) : count);
      } else {
        terms_ = terms_.subspan(1);
        set(list.places, list.dense ? n_words_ : count);
      }
      if (at_ < end_) return true;
    }
    return false;
  }
  template <typename T>
  void set(const T* from, std::int64_t count) {
    at_ = reinterpret_cast<const char*>(from);
    end_ = at_ + count * static_cast<std::int64_t>(sizeof(T));
  }

  std::span<const Term<Code>> terms_;
  std::int64_t n_words_ = 0;
  bool places_ = false;  // whether those of the first term come next
  const char *at_ = nullptr, *end_ = nullptr;
};

/// product = value · weight for kGroup weights.
template <typename Code>
inline void multiply_group(float value, const Code* weights, float* product) {
#if defined(DISMEC_WIDE_CODES)
  for (int l = 0; l < kGroup; l += kWide)
    store(product + l, times(value, decode_wide(weights + l)));
#else
  for (int l = 0; l < kGroup; ++l) product[l] = value * decode(weights[l]);
#endif
}

/// sums += value · weight for the classifiers in a list.
template <typename Code>
inline void add_listed(std::span<const Code> weights, const std::uint16_t* __restrict places,
                       float value, float* __restrict sums, Ahead<Code>& ahead) {
  const std::int64_t count = std::ssize(weights);
  const Code* __restrict weight = weights.data();
  std::int64_t j = 0;
  for (; j + kGroup <= count; j += kGroup) {
    alignas(64) float product[kGroup];
    multiply_group(value, weight + j, product);
    ahead.fetch();
#pragma GCC unroll 16
    for (int l = 0; l < kGroup; ++l) sums[places[j + l]] += product[l];
  }
  for (; j < count; ++j) sums[places[j]] += value * decode(weight[j]);
}

/// sums += value · weight for the classifiers whose bit is set, one word of bits at a time.
template <typename Code>
inline void add_dense(std::span<const Code> weights, const std::uint16_t* __restrict words,
                      std::int64_t n_words, float value, float* __restrict sums) {
  const Code* __restrict weight = weights.data();
  // In a damaged file the bits may claim more weights than there are: never read beyond this.
  const Code* const end = weight + weights.size();
#if defined(DISMEC_WIDE_CODES)
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

/// Finds the terms of a row; returns the value of its bias feature. This is the only step that can
/// fail on a damaged file, and it happens while the sums are still 0. The lists are fetched from
/// memory before the first one is added, or the ceilings if there are any.
template <typename Code>
inline float find_terms(const Shard<Code>& shard, const Csr& rows, std::int64_t row,
                        std::vector<Term<Code>>& terms) {
  const std::int64_t begin = rows.indptr[row];
  std::int64_t end = rows.indptr[row + 1];
  float bias = 0;
  if (end > begin && rows.indices[end - 1] == shard.n_features()) bias = rows.values[--end];
  terms.clear();
  const bool bounded = !shard.ceilings.empty();
  for (std::int64_t e = begin; e < end; ++e) {
    __builtin_prefetch(&shard.starts[rows.indices[e]]);
    if (!bounded) continue;
    __builtin_prefetch(&shard.ceilings.starts[rows.indices[e]]);
    __builtin_prefetch(&shard.ceilings.ranges[rows.indices[e]]);
  }
  for (std::int64_t e = begin; e < end; ++e) {
    terms.push_back({shard.list(rows.indices[e]), rows.values[e]});
    if (bounded) continue;
    __builtin_prefetch(terms.back().list.weights.data());
    __builtin_prefetch(terms.back().list.places);
  }
  return bias;
}

template <typename Code>
inline void add_term(const Term<Code>& term, std::int64_t n_words, float* sums,
                     Ahead<Code>& ahead) {
  if (term.list.dense) {
    add_dense(term.list.weights, term.list.places, n_words, term.value, sums);
  } else {
    add_listed(term.list.weights, term.list.places, term.value, sums, ahead);
  }
}

#if defined(DISMEC_WIDE_CODES)

/// The same as `add_term` for several dense terms in turn, but reads and writes the sums only once.
/// The array must hold as many codes as a feature can have bits, whatever the bits say.
template <int n, typename Code>
inline void add_dense_together(const Term<Code>* const* terms, std::int64_t n_words,
                               float* __restrict sums, Ahead<Code>& ahead) {
  const Code* weights[n];
  const std::uint16_t* words[n];
  Wide values[n];
  for (int t = 0; t < n; ++t) {
    weights[t] = terms[t]->list.weights.data();
    words[t] = terms[t]->list.places;
    values[t] = Wide{} + terms[t]->value;
  }
  constexpr int vectors = kGroup / kWide;
  constexpr std::uint32_t all = (1U << kWide) - 1;
  for (std::int64_t i = 0; i < n_words; ++i) {
    ahead.fetch();
    Wide own[vectors];
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) own[v] = load(sums + i * kGroup + v * kWide);
#pragma GCC unroll 4
    for (int t = 0; t < n; ++t) {
      const std::uint32_t word = words[t][i];
      __builtin_prefetch(weights[t] + kAhead);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) {
        const std::uint32_t bits = word >> v * kWide & all;
        own[v] += values[t] * decode_spread(bits, weights[t]);
        weights[t] += ones(bits);
      }
    }
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) store(sums + i * kGroup + v * kWide, own[v]);
  }
}

#endif

/// sums += value · weight for all terms, in order. `ahead` prefetches what is needed later.
template <typename Code>
inline void add_terms(const Shard<Code>& shard, std::span<const Term<Code>> terms, float* sums,
                      Ahead<Code> ahead = {}) {
  const std::int64_t n_words = shard.n_words();
#if defined(DISMEC_WIDE_CODES)
  constexpr std::size_t together = 4;
  const Term<Code>* dense[together];
  std::size_t n = 0;
  const auto add_waiting = [&] {
    if (n == 1) add_dense_together<1>(dense, n_words, sums, ahead);
    if (n == 2) add_dense_together<2>(dense, n_words, sums, ahead);
    if (n == 3) add_dense_together<3>(dense, n_words, sums, ahead);
    if (n == 4) add_dense_together<4>(dense, n_words, sums, ahead);
    n = 0;
  };
  for (const auto& term : terms) {
    if (term.list.weights.empty()) continue;
    const auto behind = shard.weights.data() + shard.weights.size() - term.list.weights.data();
    // Non-finite values must not be multiplied by the zeros of missing weights.
    if (term.list.dense && behind >= (n_words + 1) * kGroup && std::isfinite(term.value)) {
      dense[n++] = &term;
      if (n == together) add_waiting();
    } else {
      add_waiting();
      add_term(term, n_words, sums, ahead);
    }
  }
  add_waiting();
#else
  for (const auto& term : terms) add_term(term, n_words, sums, ahead);
#endif
}

/// The score of a classifier.
template <typename Code>
inline float score_of(const Shard<Code>& shard, float bias, float sum, std::int64_t row) {
  return sum * shard.scales[row] + bias * shard.bias[row];
}

/// The scores of kWide classifiers from `row` on.
template <typename Code>
inline Wide scores_of(const Shard<Code>& shard, float bias, const float* sums, std::int64_t row) {
  return load(sums + row) * load(&shard.scales[row]) + bias * load(&shard.bias[row]);
}

/// The score, or +inf if it is NaN.
inline float at_most(float score) { return score < HUGE_VALF ? score : HUGE_VALF; }

/// The highest score of the kGroup classifiers from `start` on; +inf if one is NaN.
template <typename Code>
inline float highest_score(const Shard<Code>& shard, float bias, const float* sums,
                           std::int64_t start) {
  float highest = -HUGE_VALF;
  if (start + kGroup > shard.n_rows()) {
    for (std::int64_t row = start; row < shard.n_rows(); ++row)
      highest = std::max(highest, at_most(score_of(shard, bias, sums[row], row)));
    return highest;
  }
  Wide best = Wide{} - HUGE_VALF;
  for (std::int64_t row = start; row < start + kGroup; row += kWide) {
    const Wide scores = scores_of(shard, bias, sums, row);
    const Wide known = scores < HUGE_VALF ? scores : Wide{} + HUGE_VALF;
    best = best > known ? best : known;
  }
  return highest_of(best);
}

}  // namespace dismec::score
