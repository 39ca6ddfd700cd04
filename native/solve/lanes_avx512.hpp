// The lanes of lanes.hpp in registers of sixteen: AVX-512 with F, BW, DQ and VL.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace dismec::solve {

inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

struct Four {
  __m128 v;
};
inline Four four(float a, float b, float c, float d) { return {_mm_setr_ps(a, b, c, d)}; }
inline Four load_four(const float* p) { return {_mm_loadu_ps(p)}; }
inline Four fused(Four a, Four b, Four c) { return {_mm_fmadd_ps(a.v, b.v, c.v)}; }

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
inline Lanes to_float(IntegerLanes a) { return {_mm512_cvtepi32_ps(a.v)}; }
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
inline float sum(Lanes a) { return _mm512_reduce_add_ps(a.v); }

class IntegerSums {
 public:
  explicit IntegerSums(const std::int32_t* sums)
      : sums_{_mm512_loadu_si512(sums), _mm512_loadu_si512(sums + 16)} {}

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
  std::uint32_t above(const std::int32_t* bounds) const {
    const std::uint32_t low = _mm512_cmpgt_epi32_mask(sums_[0], _mm512_loadu_si512(bounds));
    const std::uint32_t high = _mm512_cmpgt_epi32_mask(sums_[1], _mm512_loadu_si512(bounds + 16));
    return low | high << 16;
  }

 private:
  __m512i sums_[2];
};
inline constexpr int index_in_line(int slot) {
  return slot % 16 / 4 * 8 + slot / 16 * 4 + slot % 4;
}

}  // namespace dismec::solve
