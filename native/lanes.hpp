// Sixteen labels side by side: one float of each is one cache line.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace dismec {

inline constexpr int kLanes = 16;

/// a·b + c, fused where the instruction set has it.
inline float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

#if defined(__AVX512F__)

struct Lanes {
  __m512 v;
};
inline Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Lanes a) { _mm512_storeu_ps(p, a.v); }
inline Lanes broadcast(float x) { return {_mm512_set1_ps(x)}; }
inline Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Lanes fused(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline std::uint32_t greater(Lanes a, Lanes b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }

#elif defined(__AVX2__)

struct Lanes {
  __m256 lo, hi;
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

#else

typedef float Vector4 __attribute__((vector_size(16)));
struct Lanes {
  Vector4 v[4];
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

#endif

}  // namespace dismec
