// The sums of integer_sums.hpp in registers of four, with widening multiply-add.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "solve/lanes_neon.hpp"

namespace dismec::solve {

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
inline constexpr int place_in_line(int slot) { return slot; }

}  // namespace dismec::solve
