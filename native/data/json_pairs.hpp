// JSON pairs [id, value], which make up most of a request → ids and values.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <system_error>
#include <vector>

#include "data/numbers.hpp"

namespace dismec::data {

struct Pairs {
  std::vector<int32_t> ids;
  std::vector<float> values;
  const char* end;  // one past the list
};

inline const char* skip_blanks(const char* p, const char* end) {
  while (p < end && (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r')) ++p;
  return p;
}

/// Reads a number and returns where it ends, or nullptr. It is rounded to a double first, as JSON
/// parsers do: rounding directly to a float may give a different result.
inline const char* parse_number(const char* p, const char* end, double& value) {
#if defined(__cpp_lib_to_chars)
  const auto [stop, error] = std::from_chars(p, end, value);
  return error == std::errc{} ? stop : nullptr;
#else
  static_cast<void>(p), static_cast<void>(end), static_cast<void>(value);
  return nullptr;
#endif
}

/// Whether JSON allows a number, already parsed, to be written this way.
inline bool is_strict(const char* p, const char* end) {
  if (*p == '-') ++p;
  if (!is_digit(*p) || (*p == '0' && p + 1 < end && is_digit(p[1]))) return false;
  while (p < end && *p != '.') ++p;
  return p == end || (p + 1 < end && is_digit(p[1]));
}

/// Reads `[[id, value], …]` at `p` if it is JSON with ascending ids below `n_features` and finite
/// values. Everything else, including other orders and error messages, is left to a slower parser.
inline std::optional<Pairs> parse_pairs(const char* p, const char* end, int64_t n_features) {
  constexpr double kMost = std::numeric_limits<float>::max();
  Pairs pairs{};
  const auto take = [&](char wanted) {
    p = skip_blanks(p, end);
    if (p == end || *p != wanted) return false;
    p = skip_blanks(p + 1, end);
    return true;
  };
  if (!take('[')) return std::nullopt;
  if (p < end && *p == ']') {
    pairs.end = p + 1;
    return pairs;
  }
  int64_t last = -1;
  do {
    if (!take('[')) return std::nullopt;
    int64_t id = 0;
    const char* stop = parse_id(p, end, id);
    if (stop == p || !is_strict(p, stop) || id <= last || id >= n_features) return std::nullopt;
    last = id;
    p = stop;
    if (!take(',')) return std::nullopt;
    double value = 0;
    stop = parse_number(p, end, value);
    if (stop == nullptr || !is_strict(p, stop) || !(std::abs(value) <= kMost)) return std::nullopt;
    p = stop;
    if (!take(']')) return std::nullopt;
    pairs.ids.push_back(static_cast<int32_t>(id));
    pairs.values.push_back(static_cast<float>(value));
  } while (take(','));
  if (p == end || *p != ']') return std::nullopt;
  pairs.end = p + 1;
  return pairs;
}

}  // namespace dismec::data
