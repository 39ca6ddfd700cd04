// The arrays of a CSR matrix → the first row or value that breaks what other code relies on.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

#include "csr.hpp"

namespace dismec::data {

/// The first bad row, counted from 0 within a piece of text or a matrix.
struct Fault {
  int64_t row;
  std::string reason;
};

/// Why ids are not in range, sorted and unique within each row; nothing if they are.
inline std::optional<Fault> find_fault(const Csr& matrix) {
  const auto indptr = matrix.indptr;
  const int64_t n_ids = std::ssize(matrix.indices);
  if (indptr.empty() || indptr.front() != 0) return Fault{0, "the row pointers do not start at 0"};
  for (std::size_t row = 0; row + 1 < indptr.size(); ++row) {
    const int64_t begin = indptr[row], end = indptr[row + 1];
    const auto here = static_cast<int64_t>(row);
    if (end < begin || end > n_ids) return Fault{here, "the row pointers are out of order"};
    if (begin == end) continue;
    const int32_t* id = matrix.indices.data() + begin;
    int disorder = 0;
    for (int64_t i = 1; i < end - begin; ++i) disorder |= static_cast<int>(id[i] <= id[i - 1]);
    if (disorder != 0) return Fault{here, "ids are not sorted and unique"};
    if (id[0] < 0 || id[end - begin - 1] >= matrix.n_columns)
      return Fault{here, "an id is out of range"};
  }
  if (indptr.back() != n_ids) return Fault{0, "the row pointers do not end at the last id"};
  return std::nullopt;
}

/// The index of the first NaN or infinity, or -1.
inline int64_t first_non_finite(std::span<const float> values) {
  constexpr std::size_t step = 4096;
  constexpr uint32_t exponent = 0x7f80'0000;
  for (std::size_t begin = 0; begin < values.size(); begin += step) {
    const std::size_t end = std::min(begin + step, values.size());
    int bad = 0;
    for (std::size_t i = begin; i < end; ++i) {
      uint32_t bits;
      std::memcpy(&bits, &values[i], sizeof bits);
      bad |= static_cast<int>((bits & exponent) == exponent);
    }
    if (bad == 0) continue;
    for (std::size_t i = begin; i < end; ++i)
      if (!std::isfinite(values[i])) return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace dismec::data
