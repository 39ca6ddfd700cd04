// The floats and integers of lanes.hpp in registers of four, for every 64-bit ARM CPU. Sums are
// fused, and added in the same order as by the other instruction sets, so that weights agree with
// theirs to the last bit.
#pragma once

#include <arm_neon.h>

#include <array>
#include <cstdint>

namespace dismec::solve {

inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

struct Four {
  float32x4_t v;
};
inline Four four(float a, float b, float c, float d) {
  const float32x4_t v = {a, b, c, d};
  return {v};
}
inline Four load_four(const float* p) { return {vld1q_f32(p)}; }
inline Four fused(Four a, Four b, Four c) { return {vfmaq_f32(c.v, a.v, b.v)}; }

struct Lanes {
  float32x4_t v[4];
};
struct IntegerLanes {
  int32x4_t v[4];
};
struct LanePair {
  Lanes even, odd;
};

inline Lanes load(const float* p) {
  return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}
inline void store(float* p, Lanes a) {
  for (int q = 0; q < 4; ++q) vst1q_f32(p + 4 * q, a.v[q]);
}
inline Lanes broadcast(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {{v, v, v, v}};
}
inline Lanes add(Lanes a, Lanes b) {
  for (int q = 0; q < 4; ++q) a.v[q] = vaddq_f32(a.v[q], b.v[q]);
  return a;
}
inline Lanes fused(Lanes a, Lanes b, Lanes c) {
  for (int q = 0; q < 4; ++q) c.v[q] = vfmaq_f32(c.v[q], a.v[q], b.v[q]);
  return c;
}
inline float sum(Lanes a) {
  const float32x4_t four = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

/// One bit for each of sixteen lanes, which are all ones or all zeros.
inline std::uint32_t bits_of(const uint32x4_t (&lanes)[4]) {
  const uint16x8_t low =
      vuzp1q_u16(vreinterpretq_u16_u32(lanes[0]), vreinterpretq_u16_u32(lanes[1]));
  const uint16x8_t high =
      vuzp1q_u16(vreinterpretq_u16_u32(lanes[2]), vreinterpretq_u16_u32(lanes[3]));
  const uint8x16_t bytes = vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
  const uint8x16_t of_lane = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
  const uint8x16_t bits = vandq_u8(bytes, of_lane);
  return vaddv_u8(vget_low_u8(bits)) | static_cast<std::uint32_t>(vaddv_u8(vget_high_u8(bits)))
                                           << 8;
}
inline std::uint32_t greater(Lanes a, Lanes b) {
  uint32x4_t lanes[4];
  for (int q = 0; q < 4; ++q) lanes[q] = vcgtq_f32(a.v[q], b.v[q]);
  return bits_of(lanes);
}
inline Lanes where_positive(Lanes a, Lanes b) {
  for (int q = 0; q < 4; ++q) {
    const uint32x4_t kept = vandq_u32(vcgtzq_f32(a.v[q]), vreinterpretq_u32_f32(b.v[q]));
    b.v[q] = vreinterpretq_f32_u32(kept);
  }
  return b;
}

inline LanePair widen(const std::uint16_t* p) {
  LanePair pair;
  for (int q = 0; q < 4; ++q) {
    const uint32x4_t both = vreinterpretq_u32_u16(vld1q_u16(p + 8 * q));
    pair.even.v[q] = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
    pair.odd.v[q] = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xFFFF0000U)));
  }
  return pair;
}

inline IntegerLanes from(std::int32_t first) {
  const int32x4_t steps = {0, 1, 2, 3};
  IntegerLanes a;
  for (int q = 0; q < 4; ++q) a.v[q] = vaddq_s32(vdupq_n_s32(first + 4 * q), steps);
  return a;
}
inline IntegerLanes load_codes(const std::uint16_t* p) {
  IntegerLanes a;
  for (int q = 0; q < 4; ++q) a.v[q] = vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p + 4 * q)));
  return a;
}
inline IntegerLanes load_integers(const std::int32_t* p) {
  return {{vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)}};
}
inline Lanes to_float(IntegerLanes a) {
  return {
      {vcvtq_f32_s32(a.v[0]), vcvtq_f32_s32(a.v[1]), vcvtq_f32_s32(a.v[2]), vcvtq_f32_s32(a.v[3])}};
}
inline std::uint32_t inside(IntegerLanes a, std::int32_t first, std::int32_t end) {
  const uint32x4_t size = vdupq_n_u32(static_cast<std::uint32_t>(end - first));
  uint32x4_t lanes[4];
  for (int q = 0; q < 4; ++q) {
    const int32x4_t from_first = vsubq_s32(a.v[q], vdupq_n_s32(first));
    lanes[q] = vcltq_u32(vreinterpretq_u32_s32(from_first), size);
  }
  return bits_of(lanes);
}

/// For every four-bit mask: the shuffle that packs the numbers whose bits are set, and how many
/// these are.
struct Chosen {
  std::array<std::uint8_t, 16> bytes;
  int count;
};
inline constexpr std::array<Chosen, 16> kChosen = [] {
  std::array<Chosen, 16> all{};
  for (unsigned bits = 0; bits < 16; ++bits) {
    for (unsigned lane = 0; lane < 4; ++lane) {
      if ((bits >> lane & 1U) == 0) continue;
      for (unsigned byte = 0; byte < 4; ++byte) {
        all[bits].bytes[4 * all[bits].count + byte] = static_cast<std::uint8_t>(4 * lane + byte);
      }
      ++all[bits].count;
    }
  }
  return all;
}();
inline int store_chosen(std::uint32_t mask, IntegerLanes a, std::int32_t* p) {
  int n = 0;
  for (int q = 0; q < 4; ++q) {
    const Chosen& chosen = kChosen[mask >> 4 * q & 15U];
    const uint8x16_t bytes = vreinterpretq_u8_s32(a.v[q]);
    vst1q_s32(p + n, vreinterpretq_s32_u8(vqtbl1q_u8(bytes, vld1q_u8(chosen.bytes.data()))));
    n += chosen.count;
  }
  return n;
}
inline int store_chosen(std::uint32_t mask, Lanes a, float* p) {
  int n = 0;
  for (int q = 0; q < 4; ++q) {
    const Chosen& chosen = kChosen[mask >> 4 * q & 15U];
    const uint8x16_t bytes = vreinterpretq_u8_f32(a.v[q]);
    vst1q_f32(p + n, vreinterpretq_f32_u8(vqtbl1q_u8(bytes, vld1q_u8(chosen.bytes.data()))));
    n += chosen.count;
  }
  return n;
}

class IntegerSums {
 public:
  explicit IntegerSums(const std::int32_t* sums) {
    for (int q = 0; q < 8; ++q) sums_[q] = vld1q_s32(sums + 4 * q);
  }

  void add(const std::int16_t* a, const std::int16_t* b, std::int32_t pair) {
    const int16x4_t xy = vreinterpret_s16_s32(vdup_n_s32(pair));
    for (int q = 0; q < 4; ++q) {
      const int16x8_t left = vld1q_s16(a + 8 * q);
      const int16x8_t right = vld1q_s16(b + 8 * q);
      const int32x4_t low = vmlal_lane_s16(sums_[2 * q], vget_low_s16(left), xy, 0);
      const int32x4_t high = vmlal_high_lane_s16(sums_[2 * q + 1], left, xy, 0);
      sums_[2 * q] = vmlal_lane_s16(low, vget_low_s16(right), xy, 1);
      sums_[2 * q + 1] = vmlal_high_lane_s16(high, right, xy, 1);
    }
  }
  void store(std::int32_t* sums) const {
    for (int q = 0; q < 8; ++q) vst1q_s32(sums + 4 * q, sums_[q]);
  }
  std::uint32_t above(const std::int32_t* bounds) const {
    return above(bounds, 0) | above(bounds + 16, 4) << 16;
  }

 private:
  /// A bit for each of sixteen slots, the first of them in register `first`.
  std::uint32_t above(const std::int32_t* bounds, int first) const {
    uint32x4_t lanes[4];
    for (int q = 0; q < 4; ++q) lanes[q] = vcgtq_s32(sums_[first + q], vld1q_s32(bounds + 4 * q));
    return bits_of(lanes);
  }

  int32x4_t sums_[8];
};
inline constexpr int index_in_line(int slot) { return slot; }

}  // namespace dismec::solve
