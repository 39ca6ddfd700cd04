#include "bindings.hpp"
#include "data/copy_rows.hpp"

namespace dismec::bind {

namespace {

void copy_rows(const Vector<std::int64_t>& rows, const Vector<std::int64_t>& to,
               const Vector<std::int64_t>& indptr, const Vector<std::int32_t>& indices,
               const Vector<float>& data, const Vector<std::int64_t>& target_indptr,
               const Writable<std::int32_t>& target_indices, const Writable<float>& target_data) {
  data::copy_rows(view(indptr, indices, data, 0), view(rows), view(to),
                  {view(target_indptr), view(target_indices), view(target_data)});
}

nb::object same_rows(const Vector<std::int32_t>& left, const Vector<std::int32_t>& right,
                     const Vector<std::int64_t>& indptr, const Vector<std::int32_t>& indices,
                     const Vector<float>& data) {
  std::vector<std::uint8_t> same;
  {
    const nb::gil_scoped_release release;
    same = data::same_rows(view(indptr, indices, data, 0), view(left), view(right));
  }
  return owned(std::move(same));
}

}  // namespace

void rows(nb::module_& m) {
  m.def("copy_rows", &copy_rows, "rows"_a, "to"_a, "indptr"_a, "indices"_a, "data"_a,
        "target_indptr"_a, "target_indices"_a, "target_data"_a,
        nb::call_guard<nb::gil_scoped_release>());
  m.def("same_rows", &same_rows, "left"_a, "right"_a, "indptr"_a, "indices"_a, "data"_a);
}

}  // namespace dismec::bind
