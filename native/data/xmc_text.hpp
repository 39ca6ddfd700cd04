// Rows of XMC or svmlight text ⇄ the arrays of two CSR matrices.
//
// A row is `label,label feature:value feature:value`, with ids from 0. A row without labels begins
// with a space, a row may have no features, and an empty line is a row with neither. Blanks are
// spaces and tabs; they may trail, and a line may end in CR LF.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "csr.hpp"
#include "data/numbers.hpp"
#include "data/soundness.hpp"

namespace dismec::data {

/// The rows of one piece of text. Ids increase strictly within a row.
struct ParsedRows {
  std::unique_ptr<int32_t[]> label_counts, feature_counts;  // one per row
  std::unique_ptr<int32_t[]> labels, features;
  std::unique_ptr<float[]> values;  // one per feature
  int64_t n_rows = 0, n_labels = 0, n_features = 0;
};

/// Ids must be below these.
struct Limits {
  int64_t features, labels;
};

inline bool is_blank(char c) { return c == ' ' || c == '\t'; }

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

/// Why there is no id where one was expected.
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

/// Appends the row between `p` and `end` to `rows`. Returns the reason if it is bad, or nothing.
inline std::string parse_row(const char* p, const char* end, const Limits& limits,
                             ParsedRows& rows) {
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

/// Parses whole lines into `rows`. Only the last line of a file may lack its newline, and is then
/// accepted only if it ends in a value: otherwise the file must have been cut off.
inline std::optional<Fault> parse_rows(std::string_view text, const Limits& limits,
                                       ParsedRows& rows) {
  // Every feature has a ':', and every label but the last of a row a ',': these are the exact sizes
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
    if (!reason.empty()) return Fault{row, std::move(reason)};
    if (newline == nullptr) break;
    p = newline + 1;
  }
  return std::nullopt;
}

/// The text of rows `begin` to `end` − 1 of checked matrices.
inline std::string format_rows(const Csr& X, const Csr& Y, std::size_t begin, std::size_t end) {
  const auto n_features = static_cast<std::size_t>(X.indptr[end] - X.indptr[begin]);
  const auto n_labels = static_cast<std::size_t>(Y.indptr[end] - Y.indptr[begin]);
  // An id has at most 10 digits, and a value at most 15 characters, as in -1.17549435e-38.
  std::string text((end - begin) + n_labels * 11 + n_features * 28 + 32, '\0');
  char* p = text.data();
  for (std::size_t row = begin; row < end; ++row) {
    for (int64_t i = Y.indptr[row]; i < Y.indptr[row + 1]; ++i) {
      if (i > Y.indptr[row]) *p++ = ',';
      p = std::to_chars(p, p + 10, Y.indices[static_cast<std::size_t>(i)]).ptr;
    }
    for (int64_t i = X.indptr[row]; i < X.indptr[row + 1]; ++i) {
      *p++ = ' ';
      p = std::to_chars(p, p + 10, X.indices[static_cast<std::size_t>(i)]).ptr;
      *p++ = ':';
      p = format_value(p, X.values[static_cast<std::size_t>(i)]);
    }
    *p++ = '\n';
  }
  text.resize(static_cast<std::size_t>(p - text.data()));
  return text;
}

}  // namespace dismec::data
