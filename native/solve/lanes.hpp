// Sixteen floats side by side, one per label or row: one cache line, with element-wise arithmetic.
//
// There is a header for each instruction set. Each defines
//
//     float fused(a, b, c)            a·b + c, fused where the instruction set has it; also of
//                                     Four and Lanes
//     Four                            four floats: four(a, b, c, d), load_four(p), v[i]
//     Lanes                           sixteen floats: load, store, broadcast, add, sum
//     mask greater(a, b)              one bit per lane, set where a > b
//     Lanes where_positive(a, b)      b where a > 0, else 0
//     LanePair widen(p)               loads 32 sixteen-bit numbers (see `narrow`), those at even
//                                     indices separately from those at odd ones: on a little-endian
//                                     machine a shift and a mask
//     IntegerLanes                    sixteen 32-bit integers: from(n), which is n, n + 1, …;
//                                     load_codes, of 16-bit numbers; load_integers
//     Lanes to_float(a)               the same numbers, rounded to nearest
//     mask inside(a, first, end)      one bit per lane, set where first ≤ a < end
//     int store_chosen(mask, a, p)    stores the lanes whose bits are set contiguously at p and
//                                     returns their number; the rest of the sixteen numbers at p is
//                                     unspecified
//     IntegerSums                     exact 32-bit sums of products of 16-bit numbers, one for each
//                                     of 32 slots. `add(a, b, pair)` adds a·x + b·y for two lines a
//                                     and b, which hold a factor per slot; `pair` holds the bits of
//                                     x, then those of y. `above(bounds)` has a bit for each slot
//                                     whose sum is above that slot's bound
//     int index_in_line(slot)         where a line has the factor of a slot
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include "solve/lanes_avx512.hpp"
#elif defined(__AVX2__)
#include "solve/lanes_avx2.hpp"
#elif defined(DISMEC_NEON)
#include "solve/lanes_neon.hpp"
#else
#include "solve/lanes_portable.hpp"
#endif

namespace dismec::solve {

inline constexpr int kLanes = sizeof(Lanes) / sizeof(float);
static_assert(kLanes == 16);

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

}  // namespace dismec::solve
