// Many rows × a shard → the best labels of each, one tile of classifiers at a time.
//
// A single row spends most of its time decoding weights and reading and writing sums. Here the
// weights of some classifiers are decoded once for many rows, into a table with one line per
// feature of these rows. A tile of the table stays in the cache while all rows are scored, and the
// sums of a row stay in registers. Terms are added in the same order as elsewhere, so that scores
// are the same to the last bit.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <type_traits>
#include <vector>

#include "csr.hpp"
#include "score/ranking.hpp"
#include "score/sums.hpp"

namespace dismec::score {

inline constexpr std::int64_t kTile = 32;        // classifiers whose sums fit in registers
inline constexpr std::int64_t kTiles = 4;        // tiles decoded together
inline constexpr std::int64_t kLines = 1 << 13;  // features of all rows of a batch
inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max() / 2;
inline constexpr std::int64_t kTiledRows = 1 << 10;  // rows that share a table, at most

/// What the table holds: codes if a vector of them is decoded in one step, otherwise floats.
#if defined(DISMEC_WIDE_CODES)
template <typename Code>
using Kept = std::conditional_t<std::is_same_v<Code, Half>, Half, float>;
#else
template <typename Code>
using Kept = float;
#endif

/// A feature of a row and its value.
struct Entry {
  std::uint32_t line;
  float value;
};

/// The weights of a feature that have not been decoded yet.
template <typename Code>
struct Rest {
  const Code* weight;
  const Code* end;
  const std::uint16_t* place;
  bool dense;
};

/// Some rows and their features, prepared for a shard.
template <typename Code>
struct Batch {
  std::vector<Entry> entries;         // of all rows
  std::vector<std::int64_t> ends;     // end of each row's entries
  std::vector<float> bias, worst;     // per row: value of its bias feature, score to beat
  std::vector<Rest<Code>> features;   // by line
  std::vector<std::int32_t> line_of;  // by feature of the model; −1 if no row has it
  std::vector<std::int32_t> used;     // features of the model that have a line
  std::int64_t scanning, tiling;      // cost of either way, relative to adding a word

  std::int64_t n_rows() const { return std::ssize(ends); }
};

/// Fills a batch with rows from `begin` on, as many as can share a table. Throws if the weights of
/// their features are out of range.
template <typename Code>
inline void take_rows(const Shard<Code>& shard, const Csr& rows, std::int64_t begin,
                      Batch<Code>& batch) {
  for (const std::int32_t feature : batch.used) batch.line_of[feature] = -1;
  batch.line_of.resize(shard.n_features(), -1);
  batch.used.clear(), batch.entries.clear(), batch.ends.clear();
  batch.bias.clear(), batch.features.clear();
  batch.scanning = batch.tiling = 0;
  const std::int64_t n_words = shard.n_words();
  const std::int64_t stop = std::min(rows.n_rows(), begin + kTiledRows);
  for (std::int64_t row = begin; row < stop; ++row) {
    if (row > begin && std::ssize(batch.used) + rows.nnz(row) > kLines) break;
    float bias = 0;
    for (std::int64_t e = rows.indptr[row]; e < rows.indptr[row + 1]; ++e) {
      const std::int32_t feature = rows.indices[e];
      if (feature == shard.n_features()) {
        bias = rows.values[e];
        continue;
      }
      std::int32_t& line = batch.line_of[feature];
      if (line < 0) {
        const auto list = shard.list(feature);
        line = static_cast<std::int32_t>(batch.used.size());
        batch.used.push_back(feature);
        const Code* const first = list.weights.data();
        batch.features.push_back({first, first + list.weights.size(), list.places, list.dense});
        batch.tiling += 2 * n_words;
      }
      const auto& [weight, end, place, dense] = batch.features[line];
      if (weight == end) continue;
      // Non-finite values must not be multiplied by the zeros of missing weights.
      if (!std::isfinite(rows.values[e])) batch.tiling = kNever;
      batch.scanning += dense ? n_words : (end - weight) / 3;
      batch.tiling += n_words / 2;
      batch.entries.push_back({static_cast<std::uint32_t>(line), rows.values[e]});
    }
    batch.bias.push_back(bias);
    batch.ends.push_back(std::ssize(batch.entries));
  }
}

/// Expands a word of codes, or of the numbers they stand for; 0 where there is none.
template <typename Code>
inline void decode_word(std::uint32_t word, const Code* codes, Kept<Code>* to) {
#if defined(DISMEC_WIDE_CODES)
  if constexpr (std::is_same_v<Code, Half>) {
    for (int lane = 0; lane < kGroup; lane += 8) {
      const std::uint32_t bits = word >> lane & 0xff;
      store(to + lane, spread_codes(bits, codes));
      codes += ones(bits);
    }
  } else {
    for (int lane = 0; lane < kGroup; lane += kWide) {
      const std::uint32_t bits = word >> lane & ((1U << kWide) - 1);
      store(to + lane, decode_spread(bits, codes));
      codes += std::popcount(bits);
    }
  }
#else
  for (int lane = 0; lane < kGroup; ++lane) to[lane] = word >> lane & 1 ? decode(*codes++) : 0.0f;
#endif
}

inline void keep(Half code, Half& to) { to = code; }
template <typename Code>
inline void keep(Code code, float& to) {
  to = decode(code);
}

/// A table of kTiles tiles, each with a line of kTile weights for every feature of the batch.
template <typename Code>
struct Table {
  struct alignas(64) Line {
    Kept<Code> weights[kTile];
  };
  std::vector<Line> lines;
  std::int64_t n_features;

  Line& line(std::int64_t tile, std::int64_t feature) { return lines[tile * n_features + feature]; }
};

/// Decodes the weights of the kTiles tiles from classifier `start` on.
template <typename Code>
inline void fill_table(std::int64_t start, std::int64_t n_words, Batch<Code>& batch,
                       Table<Code>& table) {
  const std::int64_t stop = start + kTiles * kTile;
  const std::int64_t words = std::min(kTiles * kTile, n_words * kGroup - start) / kGroup;
  for (std::int64_t f = 0; f < table.n_features; ++f) {
    if (f + 4 < table.n_features) {
      const auto& later = batch.features[f + 4];
      for (int line = 0; line < 4; ++line)
        __builtin_prefetch(reinterpret_cast<const char*>(later.weight) + 64 * line);
      __builtin_prefetch(later.place);
    }
    auto& [weight, end, place, dense] = batch.features[f];
    if (!dense) {
      for (std::int64_t tile = 0; tile < kTiles; ++tile) table.line(tile, f) = {};
      for (; weight < end && *place < stop; ++weight, ++place) {
        const std::int64_t row = *place - start;
        // In a damaged file places may not ascend.
        if (row >= 0) keep(*weight, table.line(row / kTile, f).weights[row % kTile]);
      }
      continue;
    }
    for (std::int64_t i = 0; i < words; ++i, ++place) {
      Kept<Code>* const to = table.line(i * kGroup / kTile, f).weights + i * kGroup % kTile;
      // Bits that claim more weights than there are read at most kGroup codes beyond them.
      const std::uint32_t word = weight < end ? *place : 0;
      decode_word(word, weight, to);
      weight += std::popcount(word);
    }
  }
}

// Narrow is a vector of kNarrow numbers, at most eight: converting sixteen codes in one step takes
// longer than in two (Zen 4: a fifth of the total time).
#if defined(__AVX512F__)
inline constexpr int kNarrow = 8;
using Narrow = __m256;
inline bool any(decltype(Narrow{} < Narrow{}) mask) {
  return _mm256_testz_si256(std::bit_cast<__m256i>(mask), std::bit_cast<__m256i>(mask)) == 0;
}
#else
inline constexpr int kNarrow = kWide;
using Narrow = Wide;
#endif

inline Narrow decode_kept(const float* weights) {
  Narrow numbers;
  std::memcpy(&numbers, weights, sizeof(Narrow));
  return numbers;
}
#if defined(__AVX2__)
inline Narrow decode_kept(const Half* codes) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
}
#elif defined(DISMEC_NEON)
inline Narrow decode_kept(const Half* codes) { return decode_wide(codes); }
#endif

/// For rows that may get every label. `SomeLabels` has the same interface: the labels with the
/// row's permit, and one bit per classifier of a tile that has a permitted label.
struct EveryLabel {
  Labels of;

  const Labels& labels(std::int64_t) const { return of; }
  static constexpr std::uint32_t open(std::int64_t, std::int64_t) { return ~0U; }
};

/// Lets the classifiers of a tile, from `start` on, compete for the places of all rows, `k` each.
template <typename Code, typename Among>
inline void enter_tile(const Shard<Code>& shard, const Among& among, std::int64_t start,
                       const typename Table<Code>::Line* lines, Batch<Code>& batch, std::size_t k,
                       std::span<Place> heaps) {
  constexpr int vectors = kTile / kNarrow;
  const std::int64_t size = std::min(kTile, shard.n_rows() - start);
  alignas(64) float scales[kTile] = {}, biases[kTile] = {}, scores[kTile];
  std::copy_n(&shard.scales[start], size, scales);
  std::copy_n(&shard.bias[start], size, biases);
  const Entry* entry = batch.entries.data();
  for (std::int64_t row = 0; row < batch.n_rows(); ++row) {
    const Entry* const end = batch.entries.data() + batch.ends[row];
    const std::uint32_t open = among.open(row, start / kTile);
    if (open == 0) {
      entry = end;
      continue;
    }
    Narrow sums[vectors] = {};
    for (; entry < end; ++entry) {
      const auto* const weights = lines[entry->line].weights;
#pragma GCC unroll 8
      for (int v = 0; v < vectors; ++v)
        sums[v] += entry->value * decode_kept(weights + v * kNarrow);
    }
    decltype(Narrow{} < Narrow{}) may_enter{};
#pragma GCC unroll 8
    for (int v = 0; v < vectors; ++v) {
      const Narrow some = sums[v] * decode_kept(scales + v * kNarrow) +
                          batch.bias[row] * decode_kept(biases + v * kNarrow);
      std::memcpy(scores + v * kNarrow, &some, sizeof(Narrow));
      may_enter |= some >= batch.worst[row];
    }
    if (!any(may_enter)) continue;
    const auto heap = heaps.subspan(row * k, k);
    const Labels& of = among.labels(row);
    for (std::int64_t i = 0; i < size; ++i)
      if ((open >> i & 1) != 0 && scores[i] >= heap.front().score)
        compete(of, start + i, scores[i], heap);
    batch.worst[row] = heap.front().score;
  }
}

/// Lets the labels of a shard compete for the places of a batch's rows. `heaps`
/// holds one heap of `k` places per row, ordered as for `compete`. `among` gives the labels allowed
/// for each row.
template <typename Code, typename Among>
inline void enter_tiled(const Shard<Code>& shard, const Among& among, Batch<Code>& batch,
                        Table<Code>& table, std::size_t k, std::span<Place> heaps) {
  batch.worst.clear();
  for (std::int64_t row = 0; row < batch.n_rows(); ++row)
    batch.worst.push_back(heaps[row * k].score);
  table.n_features = std::ssize(batch.features);
  table.lines.resize(kTiles * table.n_features);
  for (std::int64_t start = 0; start < shard.n_rows(); start += kTile) {
    const std::int64_t tile = start / kTile % kTiles;
    if (tile == 0) fill_table(start, shard.n_words(), batch, table);
    enter_tile(shard, among, start, table.lines.data() + tile * table.n_features, batch, k, heaps);
  }
}

}  // namespace dismec::score
