#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "bindings.hpp"
#include "score/packing.hpp"

namespace dismec::bind {

namespace {

using score::Half;
using score::Mini;
using score::Packed;

using AnyPacked = std::variant<Packed<float>, Packed<Half>, Packed<Mini>>;

AnyPacked empty(const std::string& precision, std::int64_t n_rows, std::int64_t n_features,
                bool split) {
  if (n_rows < 0 || n_rows > score::kShardRows)
    throw std::invalid_argument("too many labels in a shard");
  if (n_features < 0 || n_features >= std::numeric_limits<std::int32_t>::max())
    throw std::invalid_argument("n_features out of range");
  if (precision == "float32") return Packed<float>(n_rows, n_features, split);
  if (precision == "float16") return Packed<Half>(n_rows, n_features, split);
  if (precision == "int8") return Packed<Mini>(n_rows, n_features, split);
  throw std::invalid_argument("precision must be float32, float16 or int8");
}

/// A shard that is being put together; Python calls `count` for all matrices, then `place`.
class Packer {
 public:
  Packer(const std::string& precision, std::int64_t n_rows, std::int64_t n_features, bool split)
      : shard_(empty(precision, n_rows, n_features, split)) {}

  void count(const Vector<std::int32_t>& to, const Vector<std::int64_t>& indptr,
             const Vector<std::int32_t>& indices, const Vector<float>& data) {
    if (placing_) throw std::invalid_argument("counting is over");
    std::visit(
        [&](auto& s) { score::count(s, view(indptr, indices, data, s.n_features + 1), view(to)); },
        shard_);
  }

  void place(const Vector<std::int32_t>& to, const Vector<std::int64_t>& indptr,
             const Vector<std::int32_t>& indices, const Vector<float>& data) {
    std::visit(
        [&](auto& s) {
          if (!placing_) score::make_room(s);
          placing_ = true;
          score::place(s, view(indptr, indices, data, s.n_features + 1), view(to));
        },
        shard_);
  }

  /// scales, bias, starts, places, weights.
  nb::tuple take() {
    return std::visit(
        [&](auto& s) {
          if (!placing_) score::make_room(s);
          score::add_ranks(s);
          return nb::make_tuple(owned(std::move(s.scales)), owned(std::move(s.bias)),
                                owned<std::uint32_t>(std::move(s.starts), s.split ? 4 : 2),
                                owned(std::move(s.places)), codes(s.weights));
        },
        shard_);
  }

 private:
  static nb::object codes(std::vector<float>& weights) { return owned(std::move(weights)); }
  static nb::object codes(std::vector<Half>& weights) {
    return owned<std::uint16_t>(std::move(weights));
  }
  static nb::object codes(std::vector<Mini>& weights) {
    return owned<std::uint8_t>(std::move(weights));
  }

  AnyPacked shard_;
  bool placing_ = false;
};

}  // namespace

void packing(nb::module_& m) {
  nb::class_<Packer>(m, "Packer")
      .def(nb::init<const std::string&, std::int64_t, std::int64_t, bool>(), "precision"_a,
           "n_rows"_a, "n_features"_a, "split"_a)
      .def("count", &Packer::count, "to"_a, "indptr"_a, "indices"_a, "data"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("place", &Packer::place, "to"_a, "indptr"_a, "indices"_a, "data"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("take", &Packer::take);
}

}  // namespace dismec::bind
