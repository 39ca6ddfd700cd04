// Pairs of sixteen-bit weights of all slots, and two values → the sums of all slots, in exact
// integers.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(DISMEC_NEON)
#include "solve/integer_sums_neon.hpp"
#endif

#include "solve/lanes.hpp"

namespace dismec::solve {

/// 2·kLanes sums of products of sixteen-bit numbers, one per slot.
///
/// A line holds one factor per slot, that of `slot` at `place_in_line(slot)`.
#if defined(__AVX512BW__)

class IntegerSums {
 public:
  /// Initial sums, in slot order.
  explicit IntegerSums(const std::int32_t* sums)
      : sums_{_mm512_loadu_si512(sums), _mm512_loadu_si512(sums + 16)} {}

  /// Adds a·x + b·y for two lines a and b. `pair` holds the bits of x, then those of y.
  void add(const std::int16_t* a, const std::int16_t* b, std::int32_t pair) {
    const __m512i x = _mm512_set1_epi32(pair);
    const __m512i left = _mm512_loadu_si512(a);
    const __m512i right = _mm512_loadu_si512(b);
    const __m512i low = _mm512_madd_epi16(_mm512_unpacklo_epi16(left, right), x);
    const __m512i high = _mm512_madd_epi16(_mm512_unpackhi_epi16(left, right), x);
    sums_[0] = _mm512_add_epi32(sums_[0], low);
    sums_[1] = _mm512_add_epi32(sums_[1], high);
  }
  void store(std::int32_t* sums) const {
    _mm512_storeu_si512(sums, sums_[0]);
    _mm512_storeu_si512(sums + 16, sums_[1]);
  }
  /// A bit for each slot whose sum is above that slot's bound.
  std::uint32_t above(const std::int32_t* bounds) const {
    const std::uint32_t low = _mm512_cmpgt_epi32_mask(sums_[0], _mm512_loadu_si512(bounds));
    const std::uint32_t high = _mm512_cmpgt_epi32_mask(sums_[1], _mm512_loadu_si512(bounds + 16));
    return low | high << 16;
  }

 private:
  __m512i sums_[2];
};
inline constexpr int place_in_line(int slot) {
  return slot % 16 / 4 * 8 + slot / 16 * 4 + slot % 4;
}

#elif defined(__AVX2__)

class IntegerSums {
 public:
  explicit IntegerSums(const std::int32_t* sums) {
    for (int q = 0; q < 4; ++q) {
      sums_[q] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums) + q);
    }
  }

  void add(const std::int16_t* a, const std::int16_t* b, std::int32_t pair) {
    const __m256i x = _mm256_set1_epi32(pair);
    for (int q = 0; q < 2; ++q) {
      const __m256i left = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(a) + q);
      const __m256i right = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b) + q);
      const __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(left, right), x);
      const __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi16(left, right), x);
      sums_[2 * q] = _mm256_add_epi32(sums_[2 * q], low);
      sums_[2 * q + 1] = _mm256_add_epi32(sums_[2 * q + 1], high);
    }
  }
  void store(std::int32_t* sums) const {
    for (int q = 0; q < 4; ++q) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums) + q, sums_[q]);
    }
  }
  std::uint32_t above(const std::int32_t* bounds) const {
    std::uint32_t bits = 0;
    for (int q = 0; q < 4; ++q) {
      const __m256i bound = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bounds) + q);
      const __m256i greater = _mm256_cmpgt_epi32(sums_[q], bound);
      const int mask = _mm256_movemask_ps(_mm256_castsi256_ps(greater));
      bits |= static_cast<std::uint32_t>(mask) << 8 * q;
    }
    return bits;
  }

 private:
  __m256i sums_[4];
};
inline constexpr int place_in_line(int slot) {
  return slot / 16 * 16 + slot % 8 / 4 * 8 + slot % 16 / 8 * 4 + slot % 4;
}

#elif !defined(DISMEC_NEON)

class IntegerSums {
 public:
  explicit IntegerSums(const std::int32_t* sums) { std::memcpy(sums_, sums, sizeof sums_); }

  void add(const std::int16_t* a, const std::int16_t* b, std::int32_t pair) {
    std::int16_t x, y;
    std::memcpy(&x, &pair, sizeof x);
    std::memcpy(&y, reinterpret_cast<const char*>(&pair) + sizeof x, sizeof y);
    for (int slot = 0; slot < 2 * kLanes; ++slot) sums_[slot] += a[slot] * x + b[slot] * y;
  }
  void store(std::int32_t* sums) const { std::memcpy(sums, sums_, sizeof sums_); }
  std::uint32_t above(const std::int32_t* bounds) const {
    std::uint32_t bits = 0;
    for (int slot = 0; slot < 2 * kLanes; ++slot) {
      bits |= static_cast<std::uint32_t>(sums_[slot] > bounds[slot]) << slot;
    }
    return bits;
  }

 private:
  std::int32_t sums_[2 * kLanes];
};
inline constexpr int place_in_line(int slot) { return slot; }

#endif

}  // namespace dismec::solve
