// Arrays of a CSR matrix that somebody else owns → a view that all folders read them through.
#pragma once

#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

namespace dismec {

/// A read-only view of a matrix: the entries of row i are indptr[i] … indptr[i + 1] − 1, sorted by
/// column.
struct Csr {
  std::span<const std::int64_t> indptr;
  std::span<const std::int32_t> indices;
  std::span<const float> values;  // empty where only the positions of entries matter
  std::int64_t n_columns = 0;

  std::int64_t n_rows() const { return std::ssize(indptr) - 1; }
  std::int64_t nnz(std::int64_t row) const { return indptr[row + 1] - indptr[row]; }
  /// The columns of a row's entries.
  std::span<const std::int32_t> columns(std::int64_t row) const {
    return indices.subspan(indptr[row], nnz(row));
  }
};

/// A matrix that owns its arrays.
struct OwnedCsr {
  std::vector<std::int64_t> indptr;
  std::vector<std::int32_t> indices;
  std::vector<float> values;
};

/// Throws unless the entries can be read safely.
inline void check_entries(const Csr& matrix) {
  const auto& indptr = matrix.indptr;
  if (indptr.empty() || indptr.front() != 0)
    throw std::invalid_argument("indptr must start with 0");
  for (std::size_t i = 1; i < indptr.size(); ++i)
    if (indptr[i] < indptr[i - 1]) throw std::invalid_argument("indptr must not decrease");
  if (indptr.back() != std::ssize(matrix.indices))
    throw std::invalid_argument("indptr must end with the length of indices");
  for (const std::int32_t column : matrix.indices)
    if (column < 0 || column >= matrix.n_columns) throw std::invalid_argument("index out of range");
}

/// Throws unless the entries and their values can be read safely.
inline void check_rows(const Csr& matrix) {
  check_entries(matrix);
  if (matrix.values.size() != matrix.indices.size())
    throw std::invalid_argument("indices and values must be of one length");
}

}  // namespace dismec
