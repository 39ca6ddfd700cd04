// Characters ⇄ ids and values, rounded to the nearest float.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <system_error>

namespace dismec::data {

inline bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

/// Reads digits, and returns where they end: `p` itself if there are none. An id beyond any limit
/// is returned as INT64_MAX.
inline const char* parse_id(const char* p, const char* end, int64_t& id) {
  const char* start = p;
  uint64_t digits = 0;
  for (; p < end && is_digit(*p); ++p) digits = digits * 10 + static_cast<uint64_t>(*p - '0');
  id = p - start > 18 ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(digits);
  return p;
}

/// Rounds a decimal number of any length to the nearest float. `exponent` is the power of ten of
/// its first non-zero digit: it distinguishes overflow from underflow.
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
  const std::string text(start, end);  // strtof needs a terminator
  char* stop = nullptr;
  value = std::strtof(text.c_str(), &stop);
  return stop == text.c_str() + text.size();
#endif
}

/// Reads `[+-]digits[.digits][e[+-]digits]`, rounded to the nearest float, and returns where it
/// ends; nullptr if that is not a number. Numbers that are too large become infinite.
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
    power = std::min<int64_t>(power, 1'000'000'000'000'000);  // keeps sums in range
    exponent += down ? -power : power;
  }

  // Integers up to 2^53 and powers up to 10^22 are exact doubles, so one operation rounds once.
  // Rounding the double to a float is then correct too, unless the double lies exactly between two
  // floats: the exact number may lie on either side of it.
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

/// Appends the shortest text that parses back to the same float.
inline char* format_value(char* p, float value) {
#if defined(__cpp_lib_to_chars)
  return std::to_chars(p, p + 32, value).ptr;
#else
  return p + std::snprintf(p, 32, "%.9g", static_cast<double>(value));
#endif
}

}  // namespace dismec::data
