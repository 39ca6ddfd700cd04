// The instruction sets that the CPU and the operating system support. This asks the CPU itself,
// because compilers differ in the feature names that they know (clang 14 has no "f16c").
#pragma once

#if defined(__x86_64__) || defined(_M_X64)
#define DISMEC_X86_64 1

#include <cstdint>

#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif

namespace dismec {

struct CpuAnswer {
  std::uint32_t a = 0, b = 0, c = 0, d = 0;
};

/// The answer of the cpuid instruction for a leaf; all zero if the CPU does not know the leaf.
inline CpuAnswer ask_cpu(std::uint32_t leaf) {
  CpuAnswer answer;
#if defined(_MSC_VER)
  int words[4];
  __cpuid(words, 0);
  if (leaf > static_cast<std::uint32_t>(words[0])) return answer;
  __cpuidex(words, static_cast<int>(leaf), 0);
  answer = {static_cast<std::uint32_t>(words[0]), static_cast<std::uint32_t>(words[1]),
            static_cast<std::uint32_t>(words[2]), static_cast<std::uint32_t>(words[3])};
#else
  __get_cpuid_count(leaf, 0, &answer.a, &answer.b, &answer.c, &answer.d);
#endif
  return answer;
}

/// Registers that the operating system saves when it switches threads; needs OSXSAVE.
inline std::uint64_t saved_registers() {
#if defined(_MSC_VER) && !defined(__clang__)
  return _xgetbv(0);
#else
  // Not _xgetbv: it would have to be compiled for CPUs that support it.
  std::uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return std::uint64_t{high} << 32 | low;
#endif
}

/// The instruction sets that extension modules are compiled for.
struct CpuFeatures {
  bool avx2 = false;    // with FMA, BMI1, BMI2, F16C and POPCNT
  bool avx512 = false;  // F, BW, DQ and VL, with all of the above
};

inline CpuFeatures cpu_features() {
  const auto all = [](std::uint32_t word, auto... bits) {
    return (((word >> bits & 1U) != 0) && ...);
  };
  const CpuAnswer basic = ask_cpu(1), extended = ask_cpu(7);
  CpuFeatures supported;
  if (!all(basic.c, 27)) return supported;  // OSXSAVE
  const std::uint64_t saved = saved_registers();
  constexpr std::uint64_t kYmm = 0x06, kZmm = 0xe6;
  // FMA, POPCNT, AVX, F16C; BMI1, AVX2, BMI2.
  supported.avx2 =
      (saved & kYmm) == kYmm && all(basic.c, 12, 23, 28, 29) && all(extended.b, 3, 5, 8);
  // AVX512F, DQ, BW, VL.
  supported.avx512 = supported.avx2 && (saved & kZmm) == kZmm && all(extended.b, 16, 17, 30, 31);
  return supported;
}

}  // namespace dismec

#endif
