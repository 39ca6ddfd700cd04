// Rows of XMC or svmlight text ⇄ the parts of two CSR matrices, and what makes CSR parts sound.
//
// A row is `label,label feature:value feature:value`, ids counting from 0. A row without labels
// begins with a space, a row may have no features, and an empty line is a row with neither. Blanks
// are spaces and tabs; they may trail, and a line may end in CR LF.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace xmc {

/// The rows of one piece of text. Ids increase strictly within a row.
struct Rows {
  std::unique_ptr<int32_t[]> label_counts, feature_counts;  // one per row
  std::unique_ptr<int32_t[]> labels, features;
  std::unique_ptr<float[]> values;  // one per feature
  int64_t n_rows = 0, n_labels = 0, n_features = 0;
};

/// Ids run from 0 to one less than these.
struct Limits {
  int64_t features, labels;
};

/// The first bad row of a piece of text, counted from 0 within it.
struct Problem {
  int64_t row;
  std::string reason;
};

inline bool is_blank(char c) { return c == ' ' || c == '\t'; }
inline bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

/// The word at `p`, short and printable, for a message.
inline std::string excerpt(const char* p, const char* end) {
  constexpr std::size_t longest = 24;
  std::string shown = "'";
  for (; p < end && !is_blank(*p); ++p) {
    if (shown.size() > longest) return shown + "...'";
    const auto byte = static_cast<unsigned char>(*p);
    if (byte >= 0x20 && byte < 0x7f) {
      shown += *p;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      shown += escaped;
    }
  }
  return shown + "'";
}

/// Reads digits, and returns where they end: `p` itself if there are none. An id beyond any limit
/// comes out as INT64_MAX.
inline const char* parse_id(const char* p, const char* end, int64_t& id) {
  const char* start = p;
  uint64_t digits = 0;
  for (; p < end && is_digit(*p); ++p) digits = digits * 10 + static_cast<uint64_t>(*p - '0');
  id = p - start > 18 ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(digits);
  return p;
}

/// Rounds a decimal number of any length to the nearest float. `exponent` is the power of ten of
/// its first non-zero digit: it tells too large a number from too small a one.
inline bool round_decimal(const char* start, const char* end, int64_t exponent, float& value) {
#if defined(__cpp_lib_to_chars)
  const auto [stop, error] = std::from_chars(start, end, value);
  if (error == std::errc::result_out_of_range) {
    value = exponent < 0 ? 0.0F : std::numeric_limits<float>::infinity();
    return true;
  }
  return error == std::errc{} && stop == end;
#else
  static_cast<void>(exponent);
  const std::string text(start, end);  // strtof wants an end mark
  char* stop = nullptr;
  value = std::strtof(text.c_str(), &stop);
  return stop == text.c_str() + text.size();
#endif
}

/// Reads `[+-]digits[.digits][e[+-]digits]`, rounded to the nearest float, and returns where it
/// ends; nullptr if that is no number. Too large a number comes out infinite.
inline const char* parse_value(const char* p, const char* end, float& value) {
  static constexpr double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                      1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                      1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
  const bool negative = p < end && *p == '-';
  if (p < end && (*p == '-' || *p == '+')) ++p;
  const char* start = p;

  uint64_t digits = 0;
  for (; p < end && is_digit(*p); ++p) digits = digits * 10 + static_cast<uint64_t>(*p - '0');
  int64_t n_digits = p - start;
  int64_t exponent = 0;
  if (p < end && *p == '.') {
    const char* fraction = ++p;
    for (; p < end && is_digit(*p); ++p) digits = digits * 10 + static_cast<uint64_t>(*p - '0');
    exponent = fraction - p;
    n_digits -= exponent;
  }
  if (n_digits == 0) return nullptr;
  if (p < end && (*p == 'e' || *p == 'E')) {
    ++p;
    const bool down = p < end && *p == '-';
    if (p < end && (*p == '-' || *p == '+')) ++p;
    int64_t power = 0;
    const char* stop = parse_id(p, end, power);
    if (stop == p) return nullptr;
    p = stop;
    power = std::min<int64_t>(power, 1'000'000'000'000'000);  // sums stay in range
    exponent += down ? -power : power;
  }

  // Up to 2^53 and 10^22 are exact doubles, so one operation rounds once. Rounding the double to a
  // float is then right too unless the double lies just between two floats: the exact number may
  // lie on either side of it.
  if (n_digits <= 19 && digits <= (uint64_t{1} << 53) && exponent >= -22 && exponent <= 22) {
    double wide = static_cast<double>(digits);
    wide = exponent < 0 ? wide / powers[-exponent] : wide * powers[exponent];
    uint64_t bits;
    std::memcpy(&bits, &wide, sizeof bits);
    const bool between = (bits & 0x1fff'ffff) == 0x1000'0000;
    if (digits == 0 || (!between && wide >= std::numeric_limits<float>::min() &&
                        wide <= std::numeric_limits<float>::max())) {
      value = static_cast<float>(negative ? -wide : wide);
      return p;
    }
  }
  const char* first = std::find_if(start, p, [](char c) { return c != '0' && c != '.'; });
  const int64_t leading_zeros = std::count(start, first, '0');
  if (!round_decimal(start, p, n_digits - leading_zeros + exponent - 1, value)) return nullptr;
  if (negative) value = -value;
  return p;
}

/// Why there is no id where one should be.
inline std::string no_id(const char* what, const char* p, const char* end) {
  if (p < end && *p == '{') return "this is not XMC or svmlight text: a row begins with '{'";
  if (std::memchr(p, '\0', static_cast<std::size_t>(end - p)) != nullptr)
    return "NUL byte: this is not text";
  if (end - p > 1 && *p == '-' && is_digit(p[1]))
    return std::string("negative ") + what + " id " + excerpt(p, end);
  return std::string("expected a ") + what + " id, not " + excerpt(p, end);
}

inline std::string out_of_range(const char* what, const char* p, const char* stop, int64_t limit) {
  const std::string range = limit > 0 ? " (0 to " + std::to_string(limit - 1) + ")"
                                      : std::string(" (there are no ") + what + "s)";
  return std::string(what) + " id " + excerpt(p, stop) + " is out of range" + range;
}

/// Sorts the ids of a row, with their values if it has any. Returns an id that occurs twice, or -1.
inline int64_t sort_row(std::span<int32_t> ids, float* values) {
  if (values == nullptr) {
    std::sort(ids.begin(), ids.end());
  } else {
    std::vector<std::pair<int32_t, float>> pairs(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) pairs[i] = {ids[i], values[i]};
    std::sort(pairs.begin(), pairs.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t i = 0; i < ids.size(); ++i) std::tie(ids[i], values[i]) = pairs[i];
  }
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  return twice == ids.end() ? -1 : *twice;
}

/// Appends the row between `p` and `end` to `rows`. Returns why it cannot be, or nothing.
inline std::string parse_row(const char* p, const char* end, const Limits& limits, Rows& rows) {
  int32_t* const labels = rows.labels.get() + rows.n_labels;
  int32_t* const features = rows.features.get() + rows.n_features;
  float* const values = rows.values.get() + rows.n_features;
  int32_t n_labels = 0, n_features = 0;
  int64_t previous = -1;
  bool sorted = true;

  while (p < end && !is_blank(*p)) {
    int64_t label;
    const char* stop = parse_id(p, end, label);
    if (stop == p) return no_id("label", p, end);
    if (stop < end && *stop == ':' && n_labels == 0)
      return "the row begins with a feature: a row without labels begins with a space";
    if (stop < end && *stop != ',' && !is_blank(*stop)) return no_id("label", p, end);
    if (label >= limits.labels) return out_of_range("label", p, stop, limits.labels);
    labels[n_labels++] = static_cast<int32_t>(label);
    sorted &= label > previous;
    previous = label;
    p = stop;
    if (p < end && *p == ',') {
      if (++p == end || is_blank(*p)) return "a label is missing after ','";
    }
  }
  if (!sorted) {
    const int64_t twice = sort_row({labels, static_cast<std::size_t>(n_labels)}, nullptr);
    if (twice >= 0) return "label " + std::to_string(twice) + " occurs twice in this row";
  }

  previous = -1;
  sorted = true;
  for (;;) {
    while (p < end && is_blank(*p)) ++p;
    if (p == end) break;
    int64_t feature;
    const char* stop = parse_id(p, end, feature);
    if (stop == p) return no_id("feature", p, end);
    if (stop == end || *stop != ':') return "expected feature:value, not " + excerpt(p, end);
    if (feature >= limits.features) return out_of_range("feature", p, stop, limits.features);
    float value;
    const char* word = p;
    p = parse_value(stop + 1, end, value);
    if (p == nullptr || (p < end && !is_blank(*p))) {
      const char* sign = stop + 1;
      if (sign < end && (*sign == '-' || *sign == '+')) ++sign;
      if (sign < end && (*sign == 'n' || *sign == 'N' || *sign == 'i' || *sign == 'I'))
        return "the value in " + excerpt(word, end) + " is not finite";
      return "the value in " + excerpt(word, end) + " is not a number";
    }
    if (!std::isfinite(value)) return "the value in " + excerpt(word, end) + " is too large";
    features[n_features] = static_cast<int32_t>(feature);
    values[n_features++] = value;
    sorted &= feature > previous;
    previous = feature;
  }
  if (!sorted) {
    const int64_t twice = sort_row({features, static_cast<std::size_t>(n_features)}, values);
    if (twice >= 0) return "feature " + std::to_string(twice) + " occurs twice in this row";
  }

  rows.label_counts[rows.n_rows] = n_labels;
  rows.feature_counts[rows.n_rows] = n_features;
  ++rows.n_rows;
  rows.n_labels += n_labels;
  rows.n_features += n_features;
  return {};
}

/// Parses whole lines into `rows`. Only the last line of a file may lack its newline, and it is
/// then taken only if it ends in a value: elsewhere the file must have been cut off.
inline std::optional<Problem> parse_rows(std::string_view text, const Limits& limits, Rows& rows) {
  // Every feature has its ':', every label but the last of a row its ',': so these are the sizes,
  // unless a row is bad or has no label.
  const auto lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n')) + 1;
  const auto colons = static_cast<std::size_t>(std::count(text.begin(), text.end(), ':'));
  const auto commas = static_cast<std::size_t>(std::count(text.begin(), text.end(), ','));
  rows.label_counts = std::make_unique_for_overwrite<int32_t[]>(lines);
  rows.feature_counts = std::make_unique_for_overwrite<int32_t[]>(lines);
  rows.labels = std::make_unique_for_overwrite<int32_t[]>(commas + lines);
  rows.features = std::make_unique_for_overwrite<int32_t[]>(colons);
  rows.values = std::make_unique_for_overwrite<float[]>(colons);

  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    const auto* newline =
        static_cast<const char*>(std::memchr(p, '\n', static_cast<std::size_t>(end - p)));
    const char* stop = newline != nullptr ? newline : end;
    if (newline != nullptr && stop > p && stop[-1] == '\r') --stop;
    const int64_t row = rows.n_rows, features_before = rows.n_features;
    std::string reason = parse_row(p, stop, limits, rows);
    if (newline == nullptr) {
      if (!reason.empty()) {
        reason += " (the file ends within this line: is it cut off?)";
      } else if (rows.n_features == features_before || is_blank(stop[-1])) {
        reason = "the file ends within this line: it is cut off";
      }
    }
    if (!reason.empty()) return Problem{row, std::move(reason)};
    if (newline == nullptr) break;
    p = newline + 1;
  }
  return std::nullopt;
}

/// Appends the shortest text that parses back to the same float.
inline char* format_value(char* p, float value) {
#if defined(__cpp_lib_to_chars)
  return std::to_chars(p, p + 32, value).ptr;
#else
  return p + std::snprintf(p, 32, "%.9g", static_cast<double>(value));
#endif
}

/// The text of rows `begin` to `end` of two sound CSR matrices.
inline std::string format_rows(std::span<const int64_t> x_indptr, std::span<const int32_t> features,
                               std::span<const float> values, std::span<const int64_t> y_indptr,
                               std::span<const int32_t> labels, std::size_t begin,
                               std::size_t end) {
  const auto n_features = static_cast<std::size_t>(x_indptr[end] - x_indptr[begin]);
  const auto n_labels = static_cast<std::size_t>(y_indptr[end] - y_indptr[begin]);
  // An id has at most 10 digits and a value, at its longest like -1.17549435e-38, 15 characters.
  std::string text((end - begin) + n_labels * 11 + n_features * 28 + 32, '\0');
  char* p = text.data();
  for (std::size_t row = begin; row < end; ++row) {
    for (int64_t i = y_indptr[row]; i < y_indptr[row + 1]; ++i) {
      if (i > y_indptr[row]) *p++ = ',';
      p = std::to_chars(p, p + 10, labels[static_cast<std::size_t>(i)]).ptr;
    }
    for (int64_t i = x_indptr[row]; i < x_indptr[row + 1]; ++i) {
      *p++ = ' ';
      p = std::to_chars(p, p + 10, features[static_cast<std::size_t>(i)]).ptr;
      *p++ = ':';
      p = format_value(p, values[static_cast<std::size_t>(i)]);
    }
    *p++ = '\n';
  }
  text.resize(static_cast<std::size_t>(p - text.data()));
  return text;
}

/// Why these are not the rows of a CSR matrix with sorted, unique ids; nothing if they are.
inline std::optional<Problem> check_rows(std::span<const int64_t> indptr,
                                         std::span<const int32_t> ids, int64_t n_columns) {
  const auto n_ids = static_cast<int64_t>(ids.size());
  if (indptr.empty() || indptr.front() != 0)
    return Problem{0, "the row pointers do not start at 0"};
  for (std::size_t row = 0; row + 1 < indptr.size(); ++row) {
    const int64_t begin = indptr[row], end = indptr[row + 1];
    const auto here = static_cast<int64_t>(row);
    if (end < begin || end > n_ids) return Problem{here, "the row pointers are out of order"};
    if (begin == end) continue;
    const int32_t* id = ids.data() + begin;
    int disorder = 0;
    for (int64_t i = 1; i < end - begin; ++i) disorder |= static_cast<int>(id[i] <= id[i - 1]);
    if (disorder != 0) return Problem{here, "ids are not sorted and unique"};
    if (id[0] < 0 || id[end - begin - 1] >= n_columns)
      return Problem{here, "an id is out of range"};
  }
  if (indptr.back() != n_ids) return Problem{0, "the row pointers do not end at the last id"};
  return std::nullopt;
}

/// The place of the first NaN or infinity, or -1.
inline int64_t first_non_finite(std::span<const float> values) {
  constexpr std::size_t step = 4096;
  constexpr uint32_t exponent = 0x7f80'0000;
  for (std::size_t begin = 0; begin < values.size(); begin += step) {
    const std::size_t end = std::min(begin + step, values.size());
    int bad = 0;
    for (std::size_t i = begin; i < end; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &values[i], sizeof bits);
      bad |= static_cast<int>((bits & exponent) == exponent);
    }
    if (bad == 0) continue;
    for (std::size_t i = begin; i < end; ++i)
      if (!std::isfinite(values[i])) return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace xmc
