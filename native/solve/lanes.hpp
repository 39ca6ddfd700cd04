// Sixteen floats side by side, of as many labels or rows: one cache line, and arithmetic on all at
// once.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace dismec::solve {

inline constexpr int kLanes = 16;

/// a·b + c, fused where the instruction set has it.
inline float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// Lanes where_positive(a, b) is b where a > 0, else 0.
//
// LanePair widen(p) takes 2·kLanes numbers of sixteen bits (see `narrow`), those at even places
// apart from those at odd ones: on a little-endian machine a shift and a mask.

#if defined(__AVX512F__)

struct Lanes {
  __m512 v;
};
struct LanePair {
  Lanes even, odd;
};
inline Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Lanes a) { _mm512_storeu_ps(p, a.v); }
inline Lanes broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes fused(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline std::uint32_t greater(Lanes a, Lanes b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
inline Lanes where_positive(Lanes a, Lanes b) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, _mm512_setzero_ps(), _CMP_GT_OQ), b.v)};
}
inline LanePair widen(const std::uint16_t* p) {
  const __m512i both = _mm512_loadu_si512(p);
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(both, 16))},
          {_mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(-65536)))}};
}

#elif defined(__AVX2__)

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

#else

typedef float Vector4 __attribute__((vector_size(16)));
typedef std::uint32_t Bits4 __attribute__((vector_size(16)));
struct Lanes {
  Vector4 v[4];
};
struct LanePair {
  Lanes even, odd;
};
inline Lanes load(const float* p) {
  Lanes a;
  std::memcpy(&a, p, sizeof a);
  return a;
}
inline void store(float* p, Lanes a) { std::memcpy(p, &a, sizeof a); }
inline Lanes broadcast(float x) {
  const Vector4 v = {x, x, x, x};
  return {{v, v, v, v}};
}
inline Lanes add(Lanes a, Lanes b) {
  for (int q = 0; q < 4; ++q) a.v[q] += b.v[q];
  return a;
}
inline Lanes fused(Lanes a, Lanes b, Lanes c) {
  for (int q = 0; q < 4; ++q) c.v[q] += a.v[q] * b.v[q];
  return c;
}
inline std::uint32_t greater(Lanes a, Lanes b) {
  std::uint32_t mask = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    mask |= static_cast<std::uint32_t>(a.v[lane / 4][lane % 4] > b.v[lane / 4][lane % 4]) << lane;
  }
  return mask;
}
inline Lanes where_positive(Lanes a, Lanes b) {
  const Vector4 zero = {0, 0, 0, 0};
  for (int q = 0; q < 4; ++q) b.v[q] = a.v[q] > zero ? b.v[q] : zero;
  return b;
}
inline LanePair widen(const std::uint16_t* p) {
  LanePair pair;
  for (int q = 0; q < 4; ++q) {
    Bits4 both;
    std::memcpy(&both, p + q * 8, sizeof both);
    const Bits4 even = both << 16;
    const Bits4 odd = both & 0xFFFF0000U;
    std::memcpy(&pair.even.v[q], &even, sizeof even);
    std::memcpy(&pair.odd.v[q], &odd, sizeof odd);
  }
  return pair;
}

#endif

/// The upper half of a float, rounded to nearest: eight significant bits.
inline std::uint16_t narrow(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}
// What rounding may change: |narrow(x) − x| ≤ kNarrowError·|x|.
inline constexpr float kNarrowError = 1.0F / 256;

/// The sum of all lanes.
inline float sum(Lanes a) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(a.v);
#else
  float parts[kLanes];
  store(parts, a);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) parts[lane] += parts[lane + half];
  }
  return parts[0];
#endif
}

}  // namespace dismec::solve
