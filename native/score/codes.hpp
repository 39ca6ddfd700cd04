// A weight divided by its classifier's scale ⇄ the code stored for it.
//
// A code is a small float of magnitude at most 1: sign, exponent and mantissa. Moving its bits to
// where a float32 has them yields the number.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>

namespace dismec::score {

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
  const std::uint32_t magnitude = ((bits & 0x7f) << Mini::shift) + Mini::offset;
  return std::bit_cast<float>(magnitude | bits >> 7 << 31);
}

/// The number in multiples of 2^(exponent − mantissa), rounded to nearest, ties to even.
inline std::uint32_t steps(float number, int exponent, int mantissa) {
  return static_cast<std::uint32_t>(std::nearbyint(std::fabs(number) * power(mantissa - exponent)));
}

inline int exponent_of(float number) {
  return static_cast<int>(std::bit_cast<std::uint32_t>(number) >> 23 & 0xff) - 127;
}

/// The code nearest to a number; nothing if that is 0. Magnitudes are at most 1, or 2 where no
/// scale is large enough.
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
  // `steps` includes the implied bit, and carries into the exponent when it is rounded up that far.
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

/// A power of two above the magnitude of every weight of a classifier, so that codes use their
/// range; float32 has enough range without it.
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

}  // namespace dismec::score
