// The lanes of lanes.hpp for any CPU, in vectors of four that compilers know.
#pragma once

#include <cstdint>
#include <cstring>

#include "solve/lanes_by_element.hpp"

namespace dismec::solve {

inline float fused(float a, float b, float c) { return a * b + c; }

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
  for (int lane = 0; lane < 16; ++lane) {
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
inline Lanes to_float(IntegerLanes a) {
  Lanes b;
  for (int lane = 0; lane < 16; ++lane) b.v[lane / 4][lane % 4] = static_cast<float>(a.v[lane]);
  return b;
}
inline int store_chosen(std::uint32_t mask, Lanes a, float* p) {
  float stored[16];
  store(stored, a);
  return store_chosen(mask, stored, p);
}
inline float sum(Lanes a) {
  float parts[16];
  store(parts, a);
  return sum_in_halves(parts);
}

class IntegerSums {
 public:
  explicit IntegerSums(const std::int32_t* sums) { std::memcpy(sums_, sums, sizeof sums_); }

  void add(const std::int16_t* a, const std::int16_t* b, std::int32_t pair) {
    std::int16_t x, y;
    std::memcpy(&x, &pair, sizeof x);
    std::memcpy(&y, reinterpret_cast<const char*>(&pair) + sizeof x, sizeof y);
    for (int slot = 0; slot < 32; ++slot) sums_[slot] += a[slot] * x + b[slot] * y;
  }
  void store(std::int32_t* sums) const { std::memcpy(sums, sums_, sizeof sums_); }
  std::uint32_t above(const std::int32_t* bounds) const {
    std::uint32_t bits = 0;
    for (int slot = 0; slot < 32; ++slot) {
      bits |= static_cast<std::uint32_t>(sums_[slot] > bounds[slot]) << slot;
    }
    return bits;
  }

 private:
  std::int32_t sums_[32];
};
inline constexpr int index_in_line(int slot) { return slot; }

}  // namespace dismec::solve
