// Codes → floats, sixteen or eight at a time where the processor has vectors for them; and floats
// that follow one another → the lanes whose bit is set.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "score/codes.hpp"

namespace dismec::score {

#if defined(__AVX2__)

/// For every byte, and each of its bits in a byte of its own: how many lower bits are set.
inline constexpr std::array<std::uint64_t, 256> kRanks = [] {
  std::array<std::uint64_t, 256> ranks{};
  for (unsigned byte = 0; byte < 256; ++byte)
    for (unsigned bit = 0; bit < 8; ++bit)
      ranks[byte] |= std::uint64_t(std::popcount(byte & ((1U << bit) - 1))) << (8 * bit);
  return ranks;
}();

#endif

// Where there are vectors: kWide weights at a time.
//
// decode_wide(p) are the numbers that p[0] … stand for. spread(bits, numbers) hands the first
// numbers, one after another, to the lanes whose bit is set, and 0 to the others.

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
/// That is what the expand instruction does, which takes half as long again on AMD's processors.
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

#endif

}  // namespace dismec::score
