// Hashes of terms → numbers of terms.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "text/terms.hpp"

namespace dismec::text {

/// Whether `stored` is the written form of the term.
inline bool is_term(std::string_view stored, const Term& term, const char* bytes) {
  const std::size_t sign = term.is_gram;
  return stored.size() == term.size + sign && (!sign || stored[0] == kGramSign) &&
         std::memcmp(stored.data() + sign, bytes + term.begin, term.size) == 0;
}

/// An open-addressing hash table of numbers from 0. The keys are stored elsewhere and compared
/// there; a slot holds half of a hash, which rules out most other keys.
class Slots {
 public:
  explicit Slots(std::size_t size = 0) {
    std::size_t n_slots = 64;
    while (n_slots < 2 * size) n_slots *= 2;
    slots_.resize(n_slots);
  }

  void prefetch(std::uint64_t hash) const {
    __builtin_prefetch(&slots_[hash & (slots_.size() - 1)]);
  }

  /// The number for which same(number) holds, or −1.
  template <typename Same>
  std::int64_t find(std::uint64_t hash, Same&& same) const {
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t i = hash & mask; slots_[i].next != 0; i = (i + 1) & mask)
      if (slots_[i].tag == hash >> 32 && same(slots_[i].next - 1)) return slots_[i].next - 1;
    return -1;
  }

  /// Adds the next number, whose hash is hashes.back(); `hashes` holds those of all numbers.
  void add(std::span<const std::uint64_t> hashes) {
    if (hashes.size() >= std::numeric_limits<std::uint32_t>::max())
      throw std::length_error("more terms than 32 bits can number");
    if (2 * hashes.size() > slots_.size()) {
      slots_.assign(2 * slots_.size(), {});
      for (std::size_t number = 0; number + 1 < hashes.size(); ++number)
        place(hashes[number], number);
    }
    place(hashes.back(), hashes.size() - 1);
  }

 private:
  struct Slot {
    std::uint32_t tag = 0;
    std::uint32_t next = 0;  // the number plus 1; 0 is free
  };

  void place(std::uint64_t hash, std::size_t number) {
    const std::size_t mask = slots_.size() - 1;
    std::size_t i = hash & mask;
    while (slots_[i].next != 0) i = (i + 1) & mask;
    slots_[i] = {static_cast<std::uint32_t>(hash >> 32), static_cast<std::uint32_t>(number + 1)};
  }

  std::vector<Slot> slots_;
};

}  // namespace dismec::text
