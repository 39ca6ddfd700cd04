// The lanes of lanes.hpp in registers of eight: AVX2 with FMA.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "solve/lanes_by_element.hpp"

namespace dismec::solve {

inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

struct Four {
  __m128 v;
};
inline Four four(float a, float b, float c, float d) { return {_mm_setr_ps(a, b, c, d)}; }
inline Four load_four(const float* p) { return {_mm_loadu_ps(p)}; }
inline Four fused(Four a, Four b, Four c) { return {_mm_fmadd_ps(a.v, b.v, c.v)}; }

struct Lanes {
  __m256 lo, hi;
};
struct LanePair {
  Lanes even, odd;
};
inline Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Lanes a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
inline Lanes broadcast(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Lanes add(Lanes a, Lanes b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
inline Lanes fused(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline std::uint32_t greater(Lanes a, Lanes b) {
  const auto lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ));
  const auto hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ));
  return static_cast<std::uint32_t>(lo) | static_cast<std::uint32_t>(hi) << 8;
}
inline Lanes where_positive(Lanes a, Lanes b) {
  const __m256 zero = _mm256_setzero_ps();
  return {_mm256_and_ps(_mm256_cmp_ps(a.lo, zero, _CMP_GT_OQ), b.lo),
          _mm256_and_ps(_mm256_cmp_ps(a.hi, zero, _CMP_GT_OQ), b.hi)};
}
inline LanePair widen(const std::uint16_t* p) {
  const auto* halves = reinterpret_cast<const __m256i*>(p);
  const __m256i a = _mm256_loadu_si256(halves);
  const __m256i b = _mm256_loadu_si256(halves + 1);
  const __m256i high = _mm256_set1_epi32(-65536);
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)),
           _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(a, high)),
           _mm256_castsi256_ps(_mm256_and_si256(b, high))}};
}
inline Lanes to_float(IntegerLanes a) {
  const auto* halves = reinterpret_cast<const __m256i*>(a.v);
  return {_mm256_cvtepi32_ps(_mm256_loadu_si256(halves)),
          _mm256_cvtepi32_ps(_mm256_loadu_si256(halves + 1))};
}
inline int store_chosen(std::uint32_t mask, Lanes a, float* p) {
  float stored[16];
  store(stored, a);
  return store_chosen(mask, stored, p);
}
inline float sum(Lanes a) {
  float parts[16];
  store(parts, a);
  return sum_in_halves(parts);
}

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
inline constexpr int index_in_line(int slot) {
  return slot / 16 * 16 + slot % 8 / 4 * 8 + slot % 16 / 8 * 4 + slot % 4;
}

}  // namespace dismec::solve
