// What the bind_*.cpp files share: array types and the functions that add to the module.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

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

/// A vector as a NumPy array that owns it, of T where the vector's elements are made of T.
template <typename T, typename Element>
nb::object owned(std::vector<Element>&& vector, std::size_t columns = 0) {
  auto* kept = new std::vector<Element>(std::move(vector));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<Element>*>(p); });
  auto* data = reinterpret_cast<T*>(kept->data());
  const std::size_t size = kept->size() * sizeof(Element) / sizeof(T);
  const std::size_t shape[2] = {columns ? size / columns : size, columns};
  return nb::ndarray<nb::numpy, T>(data, columns ? 2 : 1, shape, owner).cast();
}

void bind_packing(nb::module_& m);
void bind_solver(nb::module_& m);
void bind_topk(nb::module_& m);
void bind_text(nb::module_& m);
void bind_transform(nb::module_& m);
void bind_vocabulary(nb::module_& m);
