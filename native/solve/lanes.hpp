// Sixteen floats side by side, one per label or row: one cache line, with element-wise arithmetic.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(DISMEC_NEON)
#include "solve/lanes_neon.hpp"
#endif

namespace dismec::solve {

inline constexpr int kLanes = 16;

/// a·b + c, fused where the instruction set has it.
inline float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(DISMEC_NEON)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

/// Four floats side by side.
#if defined(__FMA__)

struct Four {
  __m128 v;
};
inline Four four(float a, float b, float c, float d) { return {_mm_setr_ps(a, b, c, d)}; }
inline Four load_four(const float* p) { return {_mm_loadu_ps(p)}; }
inline Four fused(Four a, Four b, Four c) { return {_mm_fmadd_ps(a.v, b.v, c.v)}; }

#elif !defined(DISMEC_NEON)

typedef float Vector4 __attribute__((vector_size(16)));
struct Four {
  Vector4 v;
};
inline Four four(float a, float b, float c, float d) {
  const Vector4 v = {a, b, c, d};
  return {v};
}
inline Four load_four(const float* p) {
  Four a;
  std::memcpy(&a, p, sizeof a);
  return a;
}
inline Four fused(Four a, Four b, Four c) {
  const Vector4 v = a.v * b.v + c.v;
  return {v};
}

#endif

// Lanes where_positive(a, b): b where a > 0, else 0.
//
// int store_chosen(mask, a, p): stores the lanes of a whose mask bits are set contiguously at p and
// returns their number; the rest of the kLanes numbers at p is unspecified.
//
// LanePair widen(p): loads 2·kLanes sixteen-bit numbers (see `narrow`), those at even places
// separately from those at odd ones: on a little-endian machine a shift and a mask.

#if defined(__AVX512F__)

struct Lanes {
  __m512 v;
};
struct IntegerLanes {
  __m512i v;
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
inline IntegerLanes from(std::int32_t first) {
  const __m512i steps = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return {_mm512_add_epi32(_mm512_set1_epi32(first), steps)};
}
inline IntegerLanes load_codes(const std::uint16_t* p) {
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline IntegerLanes load_integers(const std::int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline std::uint32_t inside(IntegerLanes a, std::int32_t first, std::int32_t end) {
  const __m512i from_first = _mm512_sub_epi32(a.v, _mm512_set1_epi32(first));
  return _mm512_cmplt_epu32_mask(from_first, _mm512_set1_epi32(end - first));
}
inline int store_chosen(std::uint32_t mask, Lanes a, float* p) {
  _mm512_storeu_ps(p, _mm512_maskz_compress_ps(static_cast<__mmask16>(mask), a.v));
  return __builtin_popcount(mask);
}
inline int store_chosen(std::uint32_t mask, IntegerLanes a, std::int32_t* p) {
  _mm512_storeu_si512(p, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), a.v));
  return __builtin_popcount(mask);
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

#elif !defined(DISMEC_NEON)

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

#if !defined(__AVX512F__) && !defined(DISMEC_NEON)

struct IntegerLanes {
  std::int32_t v[kLanes];
};
/// first, first + 1, first + 2, …
inline IntegerLanes from(std::int32_t first) {
  IntegerLanes a;
  for (int lane = 0; lane < kLanes; ++lane) a.v[lane] = first + lane;
  return a;
}
inline IntegerLanes load_codes(const std::uint16_t* p) {
  IntegerLanes a;
  for (int lane = 0; lane < kLanes; ++lane) a.v[lane] = p[lane];
  return a;
}
inline IntegerLanes load_integers(const std::int32_t* p) {
  IntegerLanes a;
  std::memcpy(a.v, p, sizeof a.v);
  return a;
}
/// One bit per lane, set where first ≤ lane < end.
inline std::uint32_t inside(IntegerLanes a, std::int32_t first, std::int32_t end) {
  std::uint32_t mask = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    mask |= static_cast<std::uint32_t>(a.v[lane] >= first && a.v[lane] < end) << lane;
  }
  return mask;
}
// Which lanes are chosen is unpredictable, so nothing branches on it.
template <typename T>
inline int store_chosen_of(std::uint32_t mask, const T (&from)[kLanes], T* p) {
  int n = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    p[n] = from[lane];
    n += static_cast<int>(mask >> lane & 1U);
  }
  return n;
}
inline int store_chosen(std::uint32_t mask, Lanes a, float* p) {
  float stored[kLanes];
  store(stored, a);
  return store_chosen_of(mask, stored, p);
}
inline int store_chosen(std::uint32_t mask, IntegerLanes a, std::int32_t* p) {
  return store_chosen_of(mask, a.v, p);
}

#endif

/// The upper half of a float, rounded to nearest: eight significant bits.
inline std::uint16_t narrow(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}
/// The float that a sixteen-bit number represents.
inline float widen(std::uint16_t x) {
  const std::uint32_t bits = static_cast<std::uint32_t>(x) << 16;
  float y;
  std::memcpy(&y, &bits, sizeof y);
  return y;
}
#if !defined(DISMEC_NEON)

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

#endif

}  // namespace dismec::solve
