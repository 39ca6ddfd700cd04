// The weights of up to 65,536 classifiers, by feature, as files hold them and as rows are scored.
//
// Classifiers are numbered within the shard, so that sixteen bits name one. A feature either lists
// those that have a weight for it or, where these are more than one in sixteen, has a bit for each,
// which takes less room and can be walked sixteen classifiers at a time.
//
// A stored weight is a code times its classifier's scale, a power of two: as the scaling of a sum
// of products by a power of two is exact, it is done once for the sum. The bias is kept apart, in
// float32: it is the largest term of nearly every score.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <string_view>
#include <unordered_map>
#include <vector>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace dismec {

inline constexpr std::int64_t kShardRows = std::int64_t{1} << 16;
inline constexpr std::int64_t kGroup = 16;  // classifiers that share a word of bits

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

/// Views of a shard's arrays. They may come straight from a damaged file: `list` checks what it
/// hands out, and whatever `places` holds stays within kShardRows.
template <typename Code>
struct Shard {
  std::span<const float> scales;
  std::span<const float> bias;
  std::span<const Start> starts;          // of each feature, and the ends
  std::span<const std::uint16_t> places;  // classifiers, or words of bits
  std::span<const Code> weights;          // kGroup more than there are, so that whole vectors load

  std::int64_t n_rows() const { return std::ssize(scales); }
  std::int64_t n_words() const { return (n_rows() + kGroup - 1) / kGroup; }
  std::int64_t n_features() const { return std::ssize(starts) - 1; }
  std::int64_t n_weights() const { return starts.back().weight; }

  /// The weights of one feature, and whose they are.
  struct List {
    std::span<const Code> weights;
    const std::uint16_t* places;
    bool dense;  // whether `places` are n_words words of bits
  };
  List list(std::int64_t feature) const {
    const Start begin = starts[feature], end = starts[feature + 1];
    const std::int64_t count = std::int64_t{end.weight} - begin.weight;
    const std::int64_t n_places = std::int64_t{end.place} - begin.place;
    if (count < 0 || n_places != std::min(count, n_words()) || end.place > places.size() ||
        end.weight + static_cast<std::size_t>(kGroup) > weights.size())
      throw std::invalid_argument("the weights of a feature are out of range");
    return {weights.subspan(begin.weight, count), places.data() + begin.place, count > n_words()};
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

// -- label-major weights → shard -----------------------------------------------------------------

/// Where a classifier's weights are: a row of one of several matrices, bias last.
struct Source {
  std::int32_t matrix;
  std::int32_t row;
};

inline void check_sources(std::span<const Csr> matrices, std::span<const Source> sources) {
  for (const auto [matrix, row] : sources)
    if (matrix < 0 || matrix >= std::ssize(matrices) || row < 0 || row >= matrices[matrix].size())
      throw std::invalid_argument("a label's weights are out of range");
}

/// For each source the first one that has the very same weights.
inline std::vector<std::int64_t> leaders(std::span<const Csr> matrices,
                                         std::span<const Source> sources) {
  const auto bytes_of = [&](auto member, Source source) {
    const Csr& matrix = matrices[source.matrix];
    const std::int64_t begin = matrix.starts[source.row], end = matrix.starts[source.row + 1];
    const auto part = (matrix.*member).subspan(begin, end - begin);
    return std::string_view(reinterpret_cast<const char*>(part.data()), part.size_bytes());
  };
  const auto hash = [&](Source source) {
    const std::hash<std::string_view> of;
    return of(bytes_of(&Csr::columns, source)) * 31 + of(bytes_of(&Csr::values, source));
  };
  const auto same = [&](Source a, Source b) {
    return bytes_of(&Csr::columns, a) == bytes_of(&Csr::columns, b) &&
           bytes_of(&Csr::values, a) == bytes_of(&Csr::values, b);
  };
  std::unordered_multimap<std::size_t, std::int64_t> seen;
  std::vector<std::int64_t> result(sources.size());
  for (std::int64_t i = 0; i < std::ssize(sources); ++i) {
    const std::size_t key = hash(sources[i]);
    const auto [begin, end] = seen.equal_range(key);
    const auto found = std::find_if(
        begin, end, [&](auto& entry) { return same(sources[entry.second], sources[i]); });
    result[i] = found != end ? found->second : i;
    if (found == end) seen.emplace(key, i);
  }
  return result;
}

/// The arrays of a shard in memory of its own.
template <typename Code>
struct Packed {
  std::vector<float> scales, bias;
  std::vector<Start> starts;
  std::vector<std::uint16_t> places;
  std::vector<Code> weights;
};

/// By counting sort. A weight that rounds to 0 is dropped.
template <typename Code>
inline Packed<Code> pack(std::span<const Csr> matrices, std::span<const Source> sources,
                         std::int64_t n_features) {
  const std::int64_t n_rows = std::ssize(sources);
  if (n_rows > kShardRows) throw std::invalid_argument("too many labels in a shard");
  Packed<Code> shard;
  shard.scales.assign(n_rows, 1.0f);
  shard.bias.assign(n_rows, 0.0f);
  for (std::int64_t row = 0; row < n_rows; ++row) {
    const Csr& matrix = matrices[sources[row].matrix];
    float largest = 0;
    for (std::int64_t e = matrix.starts[sources[row].row]; e < matrix.starts[sources[row].row + 1];
         ++e) {
      if (matrix.columns[e] == n_features) {
        shard.bias[row] = matrix.values[e];
      } else {
        largest = std::max(largest, std::fabs(matrix.values[e]));
      }
    }
    shard.scales[row] = scale_of<Code>(largest);
  }
  const auto each_weight = [&](auto&& visit) {
    for (std::int64_t row = 0; row < n_rows; ++row) {
      const Csr& matrix = matrices[sources[row].matrix];
      const float unscale = 1.0f / shard.scales[row];
      const std::int64_t end = matrix.starts[sources[row].row + 1];
      for (std::int64_t e = matrix.starts[sources[row].row]; e < end; ++e) {
        if (matrix.columns[e] == n_features) continue;
        const auto code = encode<Code>(matrix.values[e] * unscale);
        if (code) visit(row, matrix.columns[e], *code);
      }
    }
  };
  std::vector<std::int64_t> count(n_features, 0);
  each_weight([&](std::int64_t, std::int32_t feature, Code) { ++count[feature]; });
  const std::int64_t n_words = (n_rows + kGroup - 1) / kGroup;
  shard.starts.push_back({0, 0});
  std::int64_t weights = 0, places = 0;
  for (std::int64_t f = 0; f < n_features; ++f) {
    weights += count[f];
    places += std::min(count[f], n_words);
    if (weights > std::numeric_limits<std::uint32_t>::max())
      throw std::invalid_argument("too many weights in a shard");
    shard.starts.push_back(
        {static_cast<std::uint32_t>(weights), static_cast<std::uint32_t>(places)});
  }
  shard.places.assign(places, 0);
  shard.weights.assign(weights + kGroup, Code{});
  std::vector<std::int64_t>& done = count;  // from here on: how many have been placed
  done.assign(n_features, 0);
  each_weight([&](std::int64_t row, std::int32_t feature, Code code) {
    const Start begin = shard.starts[feature], end = shard.starts[feature + 1];
    const std::int64_t at = done[feature]++;
    shard.weights[begin.weight + at] = code;
    if (end.weight - begin.weight > n_words) {
      shard.places[begin.place + row / kGroup] |= static_cast<std::uint16_t>(1U << (row % kGroup));
    } else {
      shard.places[begin.place + at] = static_cast<std::uint16_t>(row);
    }
  });
  return shard;
}

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
      each(shard, shard.list(f), [&](std::int64_t row, Code code) {
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
