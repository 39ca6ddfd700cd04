// What instruction sets without an instruction for it do with sixteen numbers, one after the other.
#pragma once

#include <cstdint>
#include <cstring>

namespace dismec::solve {

struct IntegerLanes {
  std::int32_t v[16];
};
inline IntegerLanes from(std::int32_t first) {
  IntegerLanes a;
  for (int lane = 0; lane < 16; ++lane) a.v[lane] = first + lane;
  return a;
}
inline IntegerLanes load_codes(const std::uint16_t* p) {
  IntegerLanes a;
  for (int lane = 0; lane < 16; ++lane) a.v[lane] = p[lane];
  return a;
}
inline IntegerLanes load_integers(const std::int32_t* p) {
  IntegerLanes a;
  std::memcpy(a.v, p, sizeof a.v);
  return a;
}
inline std::uint32_t inside(IntegerLanes a, std::int32_t first, std::int32_t end) {
  std::uint32_t mask = 0;
  for (int lane = 0; lane < 16; ++lane) {
    mask |= static_cast<std::uint32_t>(a.v[lane] >= first && a.v[lane] < end) << lane;
  }
  return mask;
}
// Which lanes are chosen is unpredictable, so nothing branches on it.
template <typename T>
inline int store_chosen(std::uint32_t mask, const T (&from)[16], T* p) {
  int n = 0;
  for (int lane = 0; lane < 16; ++lane) {
    p[n] = from[lane];
    n += static_cast<int>(mask >> lane & 1U);
  }
  return n;
}
inline int store_chosen(std::uint32_t mask, IntegerLanes a, std::int32_t* p) {
  return store_chosen(mask, a.v, p);
}
inline float sum_in_halves(float (&parts)[16]) {
  for (int half = 8; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) parts[lane] += parts[lane + half];
  }
  return parts[0];
}

}  // namespace dismec::solve
