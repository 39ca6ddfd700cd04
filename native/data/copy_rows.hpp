// Rows of a CSR matrix → copies in another matrix; and which rows are equal.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "csr.hpp"

namespace dismec::data {

/// The range of a row's entries; throws if there is no such row, or it exceeds the arrays.
inline std::pair<std::int64_t, std::int64_t> entries_of(const Csr& matrix, std::int64_t row) {
  if (row < 0 || row >= matrix.n_rows()) throw std::invalid_argument("no such row");
  const std::int64_t begin = matrix.indptr[row], end = matrix.indptr[row + 1];
  if (begin < 0 || end < begin ||
      end > std::min(std::ssize(matrix.indices), std::ssize(matrix.values)))
    throw std::invalid_argument("indptr must ascend to the length of indices");
  return {begin, end};
}

/// Arrays of a CSR matrix under construction, with known row starts.
struct Target {
  std::span<const std::int64_t> indptr;
  std::span<std::int32_t> indices;
  std::span<float> values;
};

/// Copies row rows[i] of a matrix to row to[i] of another one, which has exactly the room for it.
inline void copy_rows(const Csr& matrix, std::span<const std::int64_t> rows,
                      std::span<const std::int64_t> to, const Target& target) {
  const Csr other{target.indptr, target.indices, target.values, matrix.n_columns};
  if (rows.size() != to.size()) throw std::invalid_argument("every row needs a place to go to");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto [begin, end] = entries_of(matrix, rows[i]);
    const auto [first, last] = entries_of(other, to[i]);
    if (end - begin != last - first) throw std::invalid_argument("rows are not of one length");
    std::copy_n(matrix.indices.data() + begin, end - begin, target.indices.data() + first);
    std::copy_n(matrix.values.data() + begin, end - begin, target.values.data() + first);
  }
}

/// For each i: 1 if rows left[i] and right[i] are equal bit by bit, else 0.
inline std::vector<std::uint8_t> same_rows(const Csr& matrix, std::span<const std::int32_t> left,
                                           std::span<const std::int32_t> right) {
  if (left.size() != right.size()) throw std::invalid_argument("rows come in pairs");
  const auto same = [](const auto* a, const auto* b, std::int64_t n) {
    return n == 0 || std::memcmp(a, b, n * sizeof(*a)) == 0;
  };
  std::vector<std::uint8_t> result(left.size());
  for (std::size_t i = 0; i < left.size(); ++i) {
    const auto [begin, end] = entries_of(matrix, left[i]);
    const auto [first, last] = entries_of(matrix, right[i]);
    const std::int64_t size = end - begin;
    result[i] = size == last - first &&
                same(matrix.indices.data() + begin, matrix.indices.data() + first, size) &&
                same(matrix.values.data() + begin, matrix.values.data() + first, size);
  }
  return result;
}

}  // namespace dismec::data
