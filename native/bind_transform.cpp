#include <nanobind/stl/optional.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>
#include <vector>

#include "bindings.hpp"
#include "transform.hpp"

namespace {

using Idf = std::optional<Vector<float>>;

dismec::Transform transform_of(const Idf& idf, bool normalize, float bias,
                               std::int64_t n_features) {
  if (n_features < 0 || n_features >= std::numeric_limits<std::int32_t>::max())
    throw std::invalid_argument("n_features out of range");
  if (idf && static_cast<std::int64_t>(idf->size()) != n_features)
    throw std::invalid_argument("idf must have an entry for each feature");
  return {idf ? view(*idf) : std::span<const float>{}, normalize, bias,
          static_cast<std::int32_t>(n_features)};
}

nb::object row_scale(const Vector<std::int64_t>& indptr, const Vector<std::int32_t>& indices,
                     const Vector<float>& data, const Idf& idf, std::int64_t n_features) {
  const dismec::Csr rows{view(indptr), view(indices), view(data)};
  std::vector<float> scales;
  {
    nb::gil_scoped_release release;
    dismec::check_rows(rows, n_features);
    const dismec::Transform transform = transform_of(idf, true, 0, n_features);
    for (std::int64_t row = 0; row < rows.size(); ++row)
      scales.push_back(dismec::row_scale(transform, rows, row));
  }
  return owned<float>(std::move(scales));
}

nb::tuple apply(const Vector<std::int64_t>& indptr, const Vector<std::int32_t>& indices,
                const Vector<float>& data, const Idf& idf, bool normalize, float bias,
                std::int64_t n_features, std::int64_t begin, std::int64_t end) {
  const dismec::Csr rows{view(indptr), view(indices), view(data)};
  dismec::Rows result;
  {
    nb::gil_scoped_release release;
    // Only the rows that are asked for: others are the concern of other threads.
    if (begin < 0 || begin > end || end > rows.size() || rows.starts[begin] < 0 ||
        rows.starts[end] > std::min(std::ssize(rows.columns), std::ssize(rows.values)))
      throw std::invalid_argument("no such rows");
    for (std::int64_t row = begin; row < end; ++row)
      if (rows.starts[row + 1] < rows.starts[row])
        throw std::invalid_argument("indptr must not decrease");
    for (std::int64_t e = rows.starts[begin]; e < rows.starts[end]; ++e)
      if (rows.columns[e] < 0 || rows.columns[e] >= n_features)
        throw std::invalid_argument("index out of range");
    result = dismec::apply(transform_of(idf, normalize, bias, n_features), rows, begin, end);
  }
  return nb::make_tuple(owned<std::int64_t>(std::move(result.starts)),
                        owned<std::int32_t>(std::move(result.columns)),
                        owned<float>(std::move(result.values)));
}

}  // namespace

void bind_transform(nb::module_& m) {
  m.def("row_scale", &row_scale, "indptr"_a, "indices"_a, "data"_a, "idf"_a.none(), "n_features"_a);
  m.def("apply", &apply, "indptr"_a, "indices"_a, "data"_a, "idf"_a.none(), "normalize"_a, "bias"_a,
        "n_features"_a, "begin"_a, "end"_a);
}
