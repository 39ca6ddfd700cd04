// What the bind_*.cpp files share: array types and the functions that add to the module.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>

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

void bind_solver(nb::module_& m);
void bind_topk(nb::module_& m);
void bind_text(nb::module_& m);
