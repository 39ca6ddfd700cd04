// Codes → floats, sixteen or eight at a time where the CPU has vectors for them; and consecutive
// floats → the lanes whose bits are set.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(DISMEC_NEON)
#include "score/wide_neon.hpp"
#endif

#include "score/codes.hpp"
#include "score/shuffles.hpp"

#if defined(__AVX2__) || defined(DISMEC_NEON)
#define DISMEC_WIDE_CODES  // there are vectors of codes as well
#endif

namespace dismec::score {

#if defined(__AVX2__)

/// For every byte: one byte per bit, holding the number of lower bits that are set.
inline constexpr std::array<std::uint64_t, 256> kRanks = [] {
  std::array<std::uint64_t, 256> ranks{};
  for (unsigned byte = 0; byte < 256; ++byte)
    for (unsigned bit = 0; bit < 8; ++bit)
      ranks[byte] |= std::uint64_t(std::popcount(byte & ((1U << bit) - 1))) << (8 * bit);
  return ranks;
}();

/// Eight codes: consecutive ones in the lanes whose bits are set, 0 in the others.
inline __m128i spread_codes(std::uint32_t bits, const Half* codes) {
  return _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)),
                          _mm_load_si128(reinterpret_cast<const __m128i*>(&kCodeShuffles[bits])));
}
inline void store(Half* to, __m128i codes) {
  _mm_store_si128(reinterpret_cast<__m128i*>(to), codes);
}
/// The number of set bits.
inline int ones(std::uint32_t bits) { return std::popcount(bits); }

#endif

// Wide is a vector of kWide numbers. Where there are vectors of codes as well, decode_wide(p) is
// the vector of numbers that p[0] … stand for. spread(bits, numbers) moves the first numbers, in
// order, to the lanes whose bits are set, and puts 0 in the others.

#if defined(__AVX512F__)

inline constexpr int kWide = 16;
using Wide = __m512;

inline Wide decode_wide(const float* weights) { return _mm512_loadu_ps(weights); }
inline Wide decode_wide(const Half* weights) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(weights)));
}
inline Wide decode_wide(const Mini* weights) {
  const __m512i bits =
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights)));
  const __m512i magnitude =
      _mm512_slli_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(0x7f)), Mini::shift);
  const __m512i value = _mm512_add_epi32(magnitude, _mm512_set1_epi32(Mini::offset));
  const __m512i sign = _mm512_and_si512(bits, _mm512_set1_epi32(INT32_MIN));
  return _mm512_castsi512_ps(_mm512_or_si512(value, sign));
}
/// This is what the expand instruction does, which takes 1.5 times as long on AMD CPUs.
inline Wide spread(std::uint32_t bits, Wide numbers) {
  const std::uint64_t low = kRanks[bits & 0xff];
  const auto before = static_cast<std::uint64_t>(std::popcount(bits & 0xff));
  const std::uint64_t high = kRanks[bits >> 8] + 0x0101'0101'0101'0101U * before;
  const __m128i ranks =
      _mm_set_epi64x(static_cast<std::int64_t>(high), static_cast<std::int64_t>(low));
  return _mm512_maskz_permutexvar_ps(static_cast<__mmask16>(bits), _mm512_cvtepu8_epi32(ranks),
                                     numbers);
}
inline Wide times(float value, Wide numbers) {
  return _mm512_mul_ps(_mm512_set1_ps(value), numbers);
}
inline void store(float* to, Wide numbers) { _mm512_store_ps(to, numbers); }
inline void add_to(float* sums, Wide numbers) {
  _mm512_store_ps(sums, _mm512_add_ps(_mm512_load_ps(sums), numbers));
}

#elif defined(__AVX2__)

inline constexpr int kWide = 8;
using Wide = __m256;

inline Wide decode_wide(const float* weights) { return _mm256_loadu_ps(weights); }
inline Wide decode_wide(const Half* weights) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(weights)));
}
inline Wide decode_wide(const Mini* weights) {
  const __m256i bits =
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(weights)));
  const __m256i magnitude =
      _mm256_slli_epi32(_mm256_and_si256(bits, _mm256_set1_epi32(0x7f)), Mini::shift);
  const __m256i value = _mm256_add_epi32(magnitude, _mm256_set1_epi32(Mini::offset));
  const __m256i sign = _mm256_and_si256(bits, _mm256_set1_epi32(INT32_MIN));
  return _mm256_castsi256_ps(_mm256_or_si256(value, sign));
}
inline Wide spread(std::uint32_t bits, Wide numbers) {
  const __m256i ranks =
      _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<std::int64_t>(kRanks[bits])));
  const __m256i of_lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i set = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), of_lane);
  const __m256 mask = _mm256_castsi256_ps(_mm256_cmpeq_epi32(set, of_lane));
  return _mm256_and_ps(_mm256_permutevar8x32_ps(numbers, ranks), mask);
}
inline Wide times(float value, Wide numbers) {
  return _mm256_mul_ps(_mm256_set1_ps(value), numbers);
}
inline void store(float* to, Wide numbers) { _mm256_store_ps(to, numbers); }
inline void add_to(float* sums, Wide numbers) {
  _mm256_store_ps(sums, _mm256_add_ps(_mm256_load_ps(sums), numbers));
}

#elif !defined(DISMEC_NEON)

inline constexpr int kWide = 4;
using Wide = float __attribute__((vector_size(4 * kWide)));

#endif

/// Per lane: −1 where a comparison holds, else 0.
using Mask = decltype(Wide{} < Wide{});

/// Whether it holds in any lane.
inline bool any(Mask mask) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask(std::bit_cast<__m512i>(mask), std::bit_cast<__m512i>(mask)) != 0;
#elif defined(__AVX2__)
  return _mm256_testz_si256(std::bit_cast<__m256i>(mask), std::bit_cast<__m256i>(mask)) == 0;
#elif defined(DISMEC_NEON)
  return vmaxvq_u32(std::bit_cast<uint32x4_t>(mask)) != 0;
#else
  return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
#endif
}

/// The maximum of numbers without NaNs.
inline float highest_of(Wide numbers) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(numbers);
#elif defined(__AVX2__)
  const __m128 halves =
      _mm_max_ps(_mm256_castps256_ps128(numbers), _mm256_extractf128_ps(numbers, 1));
  const __m128 pairs = _mm_max_ps(halves, _mm_movehl_ps(halves, halves));
  return _mm_cvtss_f32(_mm_max_ss(pairs, _mm_movehdup_ps(pairs)));
#elif defined(DISMEC_NEON)
  return vmaxvq_f32(numbers);
#else
  return std::max(std::max(numbers[0], numbers[1]), std::max(numbers[2], numbers[3]));
#endif
}

/// The numbers of the lanes whose bits are set, and −inf in the others.
inline Wide only(std::uint32_t bits, Wide numbers) {
#if defined(__AVX512F__)
  const Wide none = _mm512_set1_ps(-HUGE_VALF);
  return _mm512_mask_blend_ps(static_cast<__mmask16>(bits), none, numbers);
#elif defined(DISMEC_NEON)
  const uint32x4_t of_lane = {1, 2, 4, 8};
  return vbslq_f32(vtstq_u32(vdupq_n_u32(bits), of_lane), numbers, vdupq_n_f32(-HUGE_VALF));
#else
  for (int lane = 0; lane < kWide; ++lane)
    if ((bits >> lane & 1) == 0) numbers[lane] = -HUGE_VALF;
  return numbers;
#endif
}

inline Wide load(const float* from) {  // unaligned
  Wide numbers;
  std::memcpy(&numbers, from, sizeof(Wide));
  return numbers;
}

/// Whole numbers as floats.
inline Wide widen(const std::uint16_t* from) {
  std::uint16_t numbers __attribute__((vector_size(2 * kWide)));
  std::memcpy(&numbers, from, sizeof(numbers));
  using Integers = std::int32_t __attribute__((vector_size(4 * kWide)));
  return std::bit_cast<Wide>(
      __builtin_convertvector(__builtin_convertvector(numbers, Integers), Wide));
}

#if defined(DISMEC_WIDE_CODES)

/// spread(bits, decode_wide(codes)).
template <typename Code>
inline Wide decode_spread(std::uint32_t bits, const Code* codes) {
  return spread(bits, decode_wide(codes));
}
/// Codes are half as wide as floats, and byte shuffles are faster than float shuffles.
inline Wide decode_spread(std::uint32_t bits, const Half* codes) {
#if defined(__AVX512F__)
  const __m128i low = spread_codes(bits & 0xff, codes);
  const __m128i high = spread_codes(bits >> 8, codes + std::popcount(bits & 0xff));
  return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1));
#elif defined(DISMEC_NEON)
  const uint8x8_t shuffle = vld1_u8(kCodeShuffles[bits].data());
  return vcvt_f32_f16(vreinterpret_f16_u8(vtbl1_u8(vld1_u8(bytes_of(codes)), shuffle)));
#else
  return _mm256_cvtph_ps(spread_codes(bits, codes));
#endif
}

#endif

}  // namespace dismec::score
