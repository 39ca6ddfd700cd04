// Bit masks → byte shuffles that move consecutive numbers to the lanes whose bits are set.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace dismec::score {

/// For every mask: the shuffle that moves the first numbers to the lanes whose bits are set. The
/// other indices are out of range, for which a shuffle yields 0.
template <unsigned bits, unsigned bytes>
consteval auto shuffles() {
  std::array<std::array<std::uint8_t, bits * bytes>, 1U << bits> all{};
  for (unsigned set = 0; set < all.size(); ++set)
    for (unsigned bit = 0; bit < bits; ++bit) {
      const auto rank = static_cast<unsigned>(std::popcount(set & ((1U << bit) - 1)));
      const bool is_set = (set >> bit & 1) != 0;
      for (unsigned byte = 0; byte < bytes; ++byte)
        all[set][bytes * bit + byte] =
            static_cast<std::uint8_t>(is_set ? bytes * rank + byte : 0x80);
    }
  return all;
}

/// Eight codes of sixteen bits.
alignas(16) inline constexpr auto kCodeShuffles = shuffles<8, 2>();

/// Four floats.
alignas(16) inline constexpr auto kFloatShuffles = shuffles<4, 4>();

}  // namespace dismec::score
