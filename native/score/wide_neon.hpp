// The numbers of wide.hpp in registers of four, for every 64-bit ARM CPU.
#pragma once

#include <arm_neon.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "score/codes.hpp"
#include "score/shuffles.hpp"

namespace dismec::score {

inline constexpr int kWide = 4;
using Wide = float32x4_t;

/// The number of set bits of a byte: only vectors have an instruction for that.
inline constexpr auto kOnes = [] {
  std::array<std::uint8_t, 256> ones{};
  for (unsigned bits = 0; bits < ones.size(); ++bits)
    ones[bits] = static_cast<std::uint8_t>(std::popcount(bits));
  return ones;
}();
inline int ones(std::uint32_t bits) { return kOnes[bits]; }

inline const std::uint8_t* bytes_of(const Half* codes) {
  return reinterpret_cast<const std::uint8_t*>(codes);
}
inline uint8x16_t spread_codes(std::uint32_t bits, const Half* codes) {
  return vqtbl1q_u8(vld1q_u8(bytes_of(codes)), vld1q_u8(kCodeShuffles[bits].data()));
}
inline void store(Half* to, uint8x16_t codes) {
  vst1q_u8(reinterpret_cast<std::uint8_t*>(to), codes);
}

inline Wide decode_wide(const float* weights) { return vld1q_f32(weights); }
inline Wide decode_wide(const Half* weights) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(bytes_of(weights))));
}
inline Wide decode_wide(const Mini* weights) {
  std::uint32_t four;
  std::memcpy(&four, weights, sizeof four);
  const int32x4_t bits = vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four))));
  const int32x4_t magnitude = vshlq_n_s32(vandq_s32(bits, vdupq_n_s32(0x7f)), Mini::shift);
  const int32x4_t value = vaddq_s32(magnitude, vdupq_n_s32(Mini::offset));
  const int32x4_t sign = vandq_s32(bits, vdupq_n_s32(INT32_MIN));
  return vreinterpretq_f32_s32(vorrq_s32(value, sign));
}
inline Wide spread(std::uint32_t bits, Wide numbers) {
  const uint8x16_t shuffle = vld1q_u8(kFloatShuffles[bits].data());
  return vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(numbers), shuffle));
}
inline Wide times(float value, Wide numbers) { return vmulq_n_f32(numbers, value); }
inline void store(float* to, Wide numbers) { vst1q_f32(to, numbers); }
inline void add_to(float* sums, Wide numbers) {
  vst1q_f32(sums, vaddq_f32(vld1q_f32(sums), numbers));
}

}  // namespace dismec::score
