#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "bindings.hpp"
#include "topk.hpp"

namespace {

/// A writable, contiguous 2-d array from Python.
template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<T> span_of(const Matrix<T>& matrix) {
  return {matrix.data(), matrix.size()};
}

dismec::Csr csr_of(const Vector<std::int64_t>& indptr, const Vector<std::int32_t>& indices,
                   const Vector<float>& data) {
  return {view(indptr), view(indices), view(data)};
}

using Arrays = std::tuple<Vector<std::int64_t>, Vector<std::int32_t>, Vector<float>>;

dismec::Shard pack(const std::vector<Arrays>& matrices, const Vector<std::int32_t>& matrix,
                   const Vector<std::int32_t>& row, std::int64_t n_features,
                   const Vector<std::int32_t>& ids, const Vector<std::uint8_t>& ranks) {
  if (n_features < 0 || n_features > std::numeric_limits<std::int32_t>::max())
    throw std::invalid_argument("n_features out of range");
  if (matrix.size() != row.size())
    throw std::invalid_argument("matrix and row must have an entry for each label");
  nb::gil_scoped_release release;
  std::vector<dismec::Csr> views;
  for (const auto& [indptr, indices, data] : matrices)
    views.push_back(csr_of(indptr, indices, data));
  std::vector<dismec::Source> sources;
  for (std::size_t i = 0; i < row.size(); ++i) sources.push_back({matrix.data()[i], row.data()[i]});
  return dismec::pack(views, sources, n_features, view(ids), view(ranks));
}

void merge_topk(const dismec::Shard& shard, const Vector<std::int64_t>& indptr,
                const Vector<std::int32_t>& indices, const Vector<float>& data,
                const Matrix<std::int32_t>& labels, const Matrix<float>& scores) {
  const dismec::Csr rows = csr_of(indptr, indices, data);
  const std::size_t k = labels.shape(1);
  if (k < 1) throw std::invalid_argument("k must be at least 1");
  if (scores.shape(1) != k || labels.shape(0) + 1 != indptr.size() ||
      scores.shape(0) != labels.shape(0))
    throw std::invalid_argument("labels and scores must be rows x k");
  nb::gil_scoped_release release;
  dismec::check_rows(rows, shard.n_features);
  dismec::merge_topk(shard, rows, k, span_of(labels), span_of(scores));
}

void dense_scores(const dismec::Shard& shard, const Vector<std::int64_t>& indptr,
                  const Vector<std::int32_t>& indices, const Vector<float>& data,
                  const Matrix<float>& out) {
  const dismec::Csr rows = csr_of(indptr, indices, data);
  const auto n_labels = static_cast<std::int64_t>(out.shape(1));
  if (out.shape(0) + 1 != indptr.size())
    throw std::invalid_argument("out must have as many rows as indptr names");
  if (!shard.ids.empty() && shard.ids.back() >= n_labels)
    throw std::invalid_argument("labels of the shard out of range");
  nb::gil_scoped_release release;
  dismec::check_rows(rows, shard.n_features);
  dismec::dense_scores(shard, rows, n_labels, span_of(out));
}

}  // namespace

void bind_topk(nb::module_& m) {
  nb::class_<dismec::Shard>(m, "Shard")
      .def_ro("n_labels", &dismec::Shard::n_labels)
      .def_ro("n_features", &dismec::Shard::n_features)
      .def_prop_ro("nnz", &dismec::Shard::n_weights);
  m.attr("shard_labels") = dismec::kShardLabels;
  m.def("pack", &pack, "matrices"_a, "matrix"_a, "row"_a, "n_features"_a, "ids"_a, "ranks"_a);
  m.def("merge_topk", &merge_topk, "shard"_a, "indptr"_a, "indices"_a, "data"_a,
        "labels"_a.noconvert(), "scores"_a.noconvert());
  m.def("dense_scores", &dense_scores, "shard"_a, "indptr"_a, "indices"_a, "data"_a,
        "out"_a.noconvert());
}
