#include <limits>
#include <stdexcept>

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

dismec::PostingLists post(const Vector<std::int64_t>& indptr, const Vector<std::int32_t>& indices,
                          const Vector<float>& data, std::int64_t n_features,
                          const Vector<std::int32_t>& ids, const Vector<std::uint8_t>& ranks) {
  if (n_features < 0 || n_features > std::numeric_limits<std::int32_t>::max())
    throw std::invalid_argument("n_features out of range");
  nb::gil_scoped_release release;
  return dismec::post(csr_of(indptr, indices, data), n_features, view(ids), view(ranks));
}

void merge_topk(const dismec::PostingLists& lists, const Vector<std::int64_t>& indptr,
                const Vector<std::int32_t>& indices, const Vector<float>& data,
                const Matrix<std::int32_t>& labels, const Matrix<float>& scores) {
  const dismec::Csr rows = csr_of(indptr, indices, data);
  const std::size_t k = labels.shape(1);
  if (k < 1) throw std::invalid_argument("k must be at least 1");
  if (scores.shape(1) != k || labels.shape(0) + 1 != indptr.size() ||
      scores.shape(0) != labels.shape(0))
    throw std::invalid_argument("labels and scores must be rows x k");
  nb::gil_scoped_release release;
  dismec::check_rows(rows, lists.n_features);
  dismec::merge_topk(lists, rows, k, span_of(labels), span_of(scores));
}

void dense_scores(const dismec::PostingLists& lists, const Vector<std::int64_t>& indptr,
                  const Vector<std::int32_t>& indices, const Vector<float>& data,
                  const Matrix<float>& out) {
  const dismec::Csr rows = csr_of(indptr, indices, data);
  const auto n_labels = static_cast<std::int64_t>(out.shape(1));
  if (out.shape(0) + 1 != indptr.size())
    throw std::invalid_argument("out must have as many rows as indptr names");
  if (!lists.ids.empty() && lists.ids.back() >= n_labels)
    throw std::invalid_argument("labels of the block out of range");
  nb::gil_scoped_release release;
  dismec::check_rows(rows, lists.n_features);
  dismec::dense_scores(lists, rows, n_labels, span_of(out));
}

}  // namespace

void bind_topk(nb::module_& m) {
  nb::class_<dismec::PostingLists>(m, "PostingLists")
      .def_ro("n_labels", &dismec::PostingLists::n_labels)
      .def_ro("n_features", &dismec::PostingLists::n_features)
      .def_prop_ro("nnz", [](const dismec::PostingLists& lists) { return lists.labels.size(); });
  m.def("post", &post, "indptr"_a, "indices"_a, "data"_a, "n_features"_a, "ids"_a, "ranks"_a);
  m.def("merge_topk", &merge_topk, "lists"_a, "indptr"_a, "indices"_a, "data"_a,
        "labels"_a.noconvert(), "scores"_a.noconvert());
  m.def("dense_scores", &dense_scores, "lists"_a, "indptr"_a, "indices"_a, "data"_a,
        "out"_a.noconvert());
}
