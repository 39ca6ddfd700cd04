#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "bindings.hpp"
#include "data/json_pairs.hpp"
#include "data/soundness.hpp"
#include "data/xmc_text.hpp"

namespace dismec::bind {

namespace {

using Place = std::optional<std::pair<int64_t, std::string>>;

/// The first `size` values of an array, as a NumPy array that owns it.
template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> owned_array(std::unique_ptr<T[]> values, int64_t size) {
  T* const data = values.get();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  values.release();
  return {data, {static_cast<std::size_t>(size)}, owner};
}

/// Raises ValueError(row, reason) at the first bad row.
nb::tuple parse_rows(const Vector<uint8_t>& text, int64_t n_features, int64_t n_labels) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  if (n_features < 0 || n_features > most || n_labels < 0 || n_labels > most)
    throw std::out_of_range("n_features or n_labels beyond the range of a 32-bit id");
  data::ParsedRows rows;
  std::optional<data::Fault> fault;
  {
    const nb::gil_scoped_release release;
    const std::string_view characters(reinterpret_cast<const char*>(text.data()), text.size());
    fault = data::parse_rows(characters, {n_features, n_labels}, rows);
  }
  if (fault) raise_at(fault->row, fault->reason.c_str());
  return nb::make_tuple(owned_array(std::move(rows.label_counts), rows.n_rows),
                        owned_array(std::move(rows.labels), rows.n_labels),
                        owned_array(std::move(rows.feature_counts), rows.n_rows),
                        owned_array(std::move(rows.features), rows.n_features),
                        owned_array(std::move(rows.values), rows.n_features));
}

/// The matrices must have passed check_rows.
nb::bytes format_rows(const Vector<int64_t>& x_indptr, const Vector<int32_t>& features,
                      const Vector<float>& values, const Vector<int64_t>& y_indptr,
                      const Vector<int32_t>& labels, std::size_t begin, std::size_t end) {
  if (begin > end || end >= x_indptr.size() || end >= y_indptr.size())
    throw std::out_of_range("no such rows");
  const auto inside = [&](const Vector<int64_t>& indptr, std::size_t size) {
    const int64_t* at = indptr.data();
    bool ordered = at[begin] >= 0 && at[end] <= static_cast<int64_t>(size);
    for (std::size_t row = begin; row < end; ++row) ordered &= at[row] <= at[row + 1];
    return ordered;
  };
  if (features.size() != values.size() || !inside(x_indptr, features.size()) ||
      !inside(y_indptr, labels.size()))
    throw std::out_of_range("row pointers beyond the ids");
  std::string text;
  {
    const nb::gil_scoped_release release;
    text = data::format_rows({view(x_indptr), view(features), view(values)},
                             {view(y_indptr), view(labels), {}}, begin, end);
  }
  return nb::bytes(text.data(), text.size());
}

Place check_rows(const Vector<int64_t>& indptr, const Vector<int32_t>& ids, int64_t n_columns) {
  auto fault = data::find_fault({view(indptr), view(ids), {}, n_columns});
  if (!fault) return std::nullopt;
  return std::pair(fault->row, std::move(fault->reason));
}

int64_t first_non_finite(const Vector<float>& values) {
  return data::first_non_finite(view(values));
}

/// Ids, values and where the list ends in `body`; None for input that needs the slower parser.
nb::object parse_pairs(const nb::bytes& body, std::size_t begin, int64_t n_features) {
  if (begin > body.size()) throw std::out_of_range("begin is behind the body");
  const char* const text = body.c_str();
  auto pairs = data::parse_pairs(text + begin, text + body.size(), n_features);
  if (!pairs) return nb::none();
  return nb::make_tuple(owned(std::move(pairs->ids)), owned(std::move(pairs->values)),
                        pairs->end - text);
}

}  // namespace

void xmc_text(nb::module_& m) {
  m.def("parse_rows", &parse_rows, "text"_a, "n_features"_a, "n_labels"_a);
  m.def("format_rows", &format_rows, "x_indptr"_a, "features"_a, "values"_a, "y_indptr"_a,
        "labels"_a, "begin"_a, "end"_a);
  m.def("check_rows", &check_rows, "indptr"_a, "ids"_a, "n_columns"_a,
        nb::call_guard<nb::gil_scoped_release>());
  m.def("parse_pairs", &parse_pairs, "body"_a, "begin"_a, "n_features"_a);
  m.def("first_non_finite", &first_non_finite, "values"_a,
        nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace dismec::bind
