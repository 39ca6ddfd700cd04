// Arrays from Python → spans, vectors → arrays for Python: what the bind_*.cpp files share, and the
// functions with which they add to the module.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "csr.hpp"

namespace dismec::bind {

namespace nb = nanobind;
using namespace nb::literals;

/// A read-only, contiguous 1-d array from Python.
template <typename T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// A contiguous 1-d array from Python to write into.
template <typename T>
using Writable = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<const T> view(const Vector<T>& array) {
  return {array.data(), array.size()};
}

template <typename T>
std::span<T> view(const Writable<T>& array) {
  return {array.data(), array.size()};
}

inline Csr view(const Vector<std::int64_t>& indptr, const Vector<std::int32_t>& indices,
                const Vector<float>& values, std::int64_t n_columns) {
  return {view(indptr), view(indices), view(values), n_columns};
}

/// A vector as a NumPy array that owns it; an array of T if the vector's elements consist of T.
template <typename T, typename Element>
nb::object owned(std::vector<Element>&& vector, std::size_t columns = 0) {
  auto* kept = new std::vector<Element>(std::move(vector));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<Element>*>(p); });
  auto* data = reinterpret_cast<T*>(kept->data());
  const std::size_t size = kept->size() * sizeof(Element) / sizeof(T);
  const std::size_t shape[2] = {columns ? size / columns : size, columns};
  return nb::ndarray<nb::numpy, T>(data, columns ? 2 : 1, shape, owner).cast();
}
template <typename T>
nb::object owned(std::vector<T>&& vector) {
  return owned<T, T>(std::move(vector));
}

inline nb::tuple owned(OwnedCsr&& rows) {
  return nb::make_tuple(owned(std::move(rows.indptr)), owned(std::move(rows.indices)),
                        owned(std::move(rows.values)));
}

/// Raises ValueError(number, reason): which item is bad, and why.
[[noreturn]] inline void raise_at(std::int64_t number, const char* reason) {
  const nb::tuple where = nb::make_tuple(number, reason);
  PyErr_SetObject(PyExc_ValueError, where.ptr());
  throw nb::python_error();
}

void mapped_memory(nb::module_& m);
void aims(nb::module_& m);
void packing(nb::module_& m);
void rows(nb::module_& m);
void shards(nb::module_& m);
void solver(nb::module_& m);
void transform(nb::module_& m);
void vocabulary(nb::module_& m);
void xmc_text(nb::module_& m);

}  // namespace dismec::bind
