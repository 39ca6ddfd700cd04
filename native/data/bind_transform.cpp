#include <nanobind/stl/optional.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <vector>

#include "bindings.hpp"
#include "data/transform.hpp"
#include "data/widen.hpp"

namespace dismec::bind {

namespace {

using Idf = std::optional<Vector<float>>;

data::Transform transform_of(const Idf& idf, bool sqrt, bool normalize, float bias,
                             std::int64_t n_features) {
  if (n_features < 0 || n_features >= std::numeric_limits<std::int32_t>::max())
    throw std::invalid_argument("n_features out of range");
  if (idf && static_cast<std::int64_t>(idf->size()) != n_features)
    throw std::invalid_argument("idf must have an entry for each feature");
  return {idf ? view(*idf) : std::span<const float>{}, sqrt, normalize, bias,
          static_cast<std::int32_t>(n_features)};
}

nb::object row_scale(const Vector<std::int64_t>& indptr, const Vector<std::int32_t>& indices,
                     const Vector<float>& data, const Idf& idf, bool sqrt,
                     std::int64_t n_features) {
  const Csr rows = view(indptr, indices, data, n_features);
  std::vector<float> scales;
  {
    nb::gil_scoped_release release;
    check_rows(rows);
    const data::Transform transform = transform_of(idf, sqrt, true, 0, n_features);
    for (std::int64_t row = 0; row < rows.n_rows(); ++row)
      scales.push_back(data::row_scale(transform, rows, row));
  }
  return owned(std::move(scales));
}

nb::tuple apply(const Vector<std::int64_t>& indptr, const Vector<std::int32_t>& indices,
                const Vector<float>& data, const Idf& idf, bool sqrt, bool normalize, float bias,
                std::int64_t n_features, std::int64_t begin, std::int64_t end) {
  const Csr rows = view(indptr, indices, data, n_features);
  OwnedCsr result;
  {
    nb::gil_scoped_release release;
    // Checks only the requested rows: other threads check the others.
    if (begin < 0 || begin > end || end > rows.n_rows() || rows.indptr[begin] < 0 ||
        rows.indptr[end] > std::min(std::ssize(rows.indices), std::ssize(rows.values)))
      throw std::invalid_argument("no such rows");
    for (std::int64_t row = begin; row < end; ++row)
      if (rows.indptr[row + 1] < rows.indptr[row])
        throw std::invalid_argument("indptr must not decrease");
    for (std::int64_t e = rows.indptr[begin]; e < rows.indptr[end]; ++e)
      if (rows.indices[e] < 0 || rows.indices[e] >= n_features)
        throw std::invalid_argument("index out of range");
    result = data::apply(transform_of(idf, sqrt, normalize, bias, n_features), rows, begin, end);
  }
  return owned(std::move(result));
}

nb::tuple widen(const Vector<std::int64_t>& indptr, const Vector<std::int32_t>& indices,
                const Vector<float>& data, bool has_bias, const Vector<std::int32_t>& labels,
                const Vector<float>& scores, const Vector<std::int32_t>& column, double scale,
                double slope, float bias, std::int64_t n_features, std::int64_t n_columns,
                std::int64_t n_dense) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  if (n_features < 0 || n_dense < 0 || n_columns < n_features || n_dense >= most ||
      n_columns >= most - n_dense)
    throw std::invalid_argument("n_features out of range");
  const Csr rows = view(indptr, indices, data, n_features + n_dense + (has_bias ? 1 : 0));
  OwnedCsr result;
  {
    nb::gil_scoped_release release;
    check_rows(rows);
    const std::int64_t n_rows = rows.n_rows();
    const auto n_places = static_cast<std::int64_t>(labels.size());
    const std::int64_t k = n_rows > 0 ? n_places / n_rows : 0;
    if (scores.size() != labels.size() || k * n_rows != n_places)
      throw std::invalid_argument("every row needs as many labels, and every label a score");
    for (std::int64_t row = 0; row < n_rows; ++row)
      if (rows.nnz(row) < n_dense + (has_bias ? 1 : 0))
        throw std::invalid_argument("a row has no bias, or too few dense features");
    for (const std::int32_t label : view(labels))
      if (label >= static_cast<std::int64_t>(column.size()))
        throw std::invalid_argument("label out of range");
    for (const std::int32_t place : view(column))
      if (place >= n_columns - n_features) throw std::invalid_argument("column out of range");
    const data::Widening widening{static_cast<std::int32_t>(n_features),
                                  static_cast<std::int32_t>(n_columns),
                                  static_cast<std::int32_t>(n_dense),
                                  has_bias,
                                  view(column),
                                  scale,
                                  slope,
                                  bias};
    result = data::widen(widening, rows, view(labels), view(scores), k);
  }
  return owned(std::move(result));
}

}  // namespace

void transform(nb::module_& m) {
  m.def("widen", &widen, "indptr"_a, "indices"_a, "data"_a, "has_bias"_a, "labels"_a, "scores"_a,
        "column"_a, "scale"_a, "slope"_a, "bias"_a, "n_features"_a, "n_columns"_a, "n_dense"_a = 0);
  m.def("row_scale", &row_scale, "indptr"_a, "indices"_a, "data"_a, "idf"_a.none(), "sqrt"_a,
        "n_features"_a);
  m.def("apply", &apply, "indptr"_a, "indices"_a, "data"_a, "idf"_a.none(), "sqrt"_a, "normalize"_a,
        "bias"_a, "n_features"_a, "begin"_a, "end"_a);
}

}  // namespace dismec::bind
