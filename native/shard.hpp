// The weights of up to 65,536 classifiers, by feature, as files hold them and as rows are scored.
//
// Classifiers are numbered within the shard, so that sixteen bits name one. A feature either lists
// those that have a weight for it or, where these are more than one in sixteen, has a bit for each,
// which takes less room and can be walked sixteen classifiers at a time.
//
// In a large shard the weights of a feature are split by their sign into two such parts. Most of
// them are negative, and bounded.hpp tells how to find the best labels without reading those.
//
// A stored weight is a code times its classifier's scale, a power of two: as the scaling of a sum
// of products by a power of two is exact, it is done once for the sum. A view of a shard that ranks
// by probability has other scales, all above 0. The bias is kept apart, in float32: it is the
// largest term of nearly every score.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace dismec {

inline constexpr std::int64_t kShardRows = std::int64_t{1} << 16;
inline constexpr std::int64_t kGroup = 16;           // classifiers that share a word of bits
inline constexpr std::int64_t kSplitRows = 1 << 14;  // a larger shard is split
inline constexpr std::int64_t kRankWords = 32;       // words of a split shard that share a rank

/// Compressed sparse rows: entries starts[i] … starts[i + 1] belong to row i, columns ascending.
struct Csr {
  std::span<const std::int64_t> starts;
  std::span<const std::int32_t> columns;
  std::span<const float> values;

  std::int64_t size() const { return static_cast<std::int64_t>(starts.size()) - 1; }
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

// -- codes ---------------------------------------------------------------------------------------
//
// A code is a small float of at most 1 in magnitude: sign, exponent and mantissa. Which number it
// stands for follows from its bits by moving them to where a float32 has them.

struct Half {  // IEEE binary16, finite
  std::uint16_t bits;
};
struct Mini {  // three bits of exponent, four of mantissa; no zero
  std::uint8_t bits;

  static constexpr int mantissa = 4, least_exponent = -8;
  static constexpr int shift = 23 - mantissa;
  static constexpr std::uint32_t offset = (127U + least_exponent) << 23;
};

/// 2^exponent.
inline float power(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23);
}

inline float decode(float weight) { return weight; }
inline float decode(Half code) {
  const std::uint32_t bits = code.bits;
  const float value = std::bit_cast<float>((bits & 0x7fff) << 13) * power(112);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | bits >> 15 << 31);
}
inline float decode(Mini code) {
  const std::uint32_t bits = code.bits;
  return std::bit_cast<float>(((bits & 0x7f) << Mini::shift) + Mini::offset | bits >> 7 << 31);
}

/// How often 2^(exponent − mantissa) goes into a number: ties to even.
inline std::uint32_t steps(float number, int exponent, int mantissa) {
  return static_cast<std::uint32_t>(std::nearbyint(std::fabs(number) * power(mantissa - exponent)));
}

inline int exponent_of(float number) {
  return static_cast<int>(std::bit_cast<std::uint32_t>(number) >> 23 & 0xff) - 127;
}

/// The code nearest to a number; nothing if that is 0. Numbers have at most the magnitude 1, or 2
/// where no scale is large enough.
template <typename Code>
inline std::optional<Code> encode(float number);

template <>
inline std::optional<float> encode(float number) {
  return number == 0 ? std::nullopt : std::optional(number);
}
template <>
inline std::optional<Half> encode(float number) {
  constexpr int mantissa = 10, least_exponent = -14;
  const int exponent = std::max(exponent_of(number), least_exponent);
  // The count carries the implied bit, and into the exponent where it is rounded up to there.
  const std::uint32_t magnitude =
      (static_cast<std::uint32_t>(exponent - least_exponent) << mantissa) +
      steps(number, exponent, mantissa);
  if (magnitude == 0) return std::nullopt;
  return Half{static_cast<std::uint16_t>(magnitude | (std::signbit(number) ? 0x8000U : 0U))};
}
template <>
inline std::optional<Mini> encode(float number) {
  const float least = power(Mini::least_exponent);
  if (std::fabs(number) <= least / 2) return std::nullopt;
  const float lifted = std::max(std::fabs(number), least);
  const int exponent = exponent_of(lifted);
  const auto of_exponent = static_cast<std::uint32_t>(exponent - Mini::least_exponent)
                           << Mini::mantissa;
  const std::uint32_t magnitude =
      of_exponent + steps(lifted, exponent, Mini::mantissa) - (1U << Mini::mantissa);
  return Mini{
      static_cast<std::uint8_t>(std::min(magnitude, 0x7fU) | (std::signbit(number) ? 0x80U : 0U))};
}

/// A power of two above every weight of a classifier, so that codes use their range; float32 has
/// range enough.
template <typename Code>
inline float scale_of(float largest) {
  if (largest == 0) return 1.0f;
  const int exponent = static_cast<int>(std::bit_cast<std::uint32_t>(largest) >> 23) - 127 + 1;
  return power(std::clamp(exponent, -126, 127));
}
template <>
inline float scale_of<float>(float) {
  return 1.0f;
}

// -- the shard -----------------------------------------------------------------------------------

struct Start {
  std::uint32_t weight, place;
};

/// How many parts the weights of a feature are in. With two, the first has those above 0.
inline std::int64_t parts_of(bool split) { return split ? 2 : 1; }

/// How the weights of a part are placed: as a list, or as bits where that takes less room.
struct Layout {
  std::int64_t n_words;  // of bits
  std::int64_t n_ranks;  // behind them: how many bits are set before each kRankWords-th word

  Layout(std::int64_t n_rows, bool split)
      : n_words((n_rows + kGroup - 1) / kGroup),
        n_ranks(split ? (n_words + kRankWords - 1) / kRankWords : 0) {}

  bool dense(std::int64_t count) const { return count > n_words; }
  std::int64_t n_places(std::int64_t count) const {
    return dense(count) ? n_words + n_ranks : count;
  }
};

/// Views of a shard's arrays. They may come straight from a damaged file: `list` checks what it
/// hands out, and whatever `places` holds stays within kShardRows.
template <typename Code>
struct Shard {
  std::span<const float> scales;
  std::span<const float> bias;
  std::span<const Start> starts;          // of each part of each feature, and as many ends
  std::span<const std::uint16_t> places;  // classifiers, or words of bits
  std::span<const Code> weights;          // kGroup more than there are, so that whole vectors load
  bool split;

  std::int64_t n_rows() const { return std::ssize(scales); }
  std::int64_t n_words() const { return layout().n_words; }
  std::int64_t n_parts() const { return parts_of(split); }
  std::int64_t n_features() const { return std::ssize(starts) / n_parts() - 1; }
  Layout layout() const { return {n_rows(), split}; }

  /// The weights of one part of a feature, and whose they are.
  struct List {
    std::span<const Code> weights;
    const std::uint16_t* places;
    bool dense;  // whether `places` are words of bits, and their ranks
  };
  List list(std::int64_t feature, std::int64_t part) const {
    const std::int64_t at = feature * n_parts() + part;
    const Start begin = starts[at], end = starts[at + 1];
    const std::int64_t count = std::int64_t{end.weight} - begin.weight;
    const std::int64_t n_places = std::int64_t{end.place} - begin.place;
    if (count < 0 || n_places != layout().n_places(count) || end.place > places.size() ||
        end.weight + static_cast<std::size_t>(kGroup) > weights.size())
      throw std::invalid_argument("the weights of a feature are out of range");
    return {weights.subspan(begin.weight, count), places.data() + begin.place,
            layout().dense(count)};
  }
};

/// Calls visit(row, weight code) for the classifiers that have a weight in the list.
template <typename Code, typename Visit>
inline void each(const Shard<Code>& shard, const typename Shard<Code>::List& list, Visit&& visit) {
  const std::int64_t count = std::ssize(list.weights);
  if (!list.dense) {
    for (std::int64_t j = 0; j < count; ++j) visit(list.places[j], list.weights[j]);
    return;
  }
  std::int64_t j = 0;
  for (std::int64_t i = 0; i < shard.n_words(); ++i)
    for (unsigned word = list.places[i]; word != 0 && j < count; word &= word - 1, ++j)
      visit(i * kGroup + __builtin_ctz(word), list.weights[j]);
}

// -- shard → weights by label ---------------------------------------------------------------------

/// The weights of a shard by classifier, bias last: what `pack` was given, rounded.
struct Unpacked {
  std::vector<std::int64_t> starts;
  std::vector<std::int32_t> columns;
  std::vector<float> values;
};

template <typename Code>
inline Unpacked unpack(const Shard<Code>& shard) {
  const std::int64_t n_rows = shard.n_rows();
  std::vector<std::int64_t> fill(kShardRows + 1, 0);
  const auto each_weight = [&](auto&& visit) {
    for (std::int64_t f = 0; f < shard.n_features(); ++f)
      for (std::int64_t part = 0; part < shard.n_parts(); ++part)
        each(shard, shard.list(f, part), [&](std::int64_t row, Code code) {
          if (row >= n_rows) throw std::invalid_argument("a classifier is out of range");
          visit(row, f, decode(code) * shard.scales[row]);
        });
    for (std::int64_t row = 0; row < n_rows; ++row)
      if (shard.bias[row] != 0) visit(row, shard.n_features(), shard.bias[row]);
  };
  Unpacked result;
  each_weight([&](std::int64_t row, std::int64_t, float) { ++fill[row + 1]; });
  for (std::int64_t row = 0; row < n_rows; ++row) fill[row + 1] += fill[row];
  result.starts.assign(fill.begin(), fill.begin() + n_rows + 1);
  result.columns.resize(result.starts.back());
  result.values.resize(result.starts.back());
  each_weight([&](std::int64_t row, std::int64_t feature, float weight) {
    const std::int64_t at = fill[row]++;
    result.columns[at] = static_cast<std::int32_t>(feature);
    result.values[at] = weight;
  });
  return result;
}

}  // namespace dismec
