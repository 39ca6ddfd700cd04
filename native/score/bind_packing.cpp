#include <nanobind/stl/string.h>

#include <optional>
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

AnyPacked empty(const std::string& precision, std::int64_t n_rows, std::int64_t n_features) {
  if (n_rows < 0 || n_rows > score::kShardRows)
    throw std::invalid_argument("too many labels in a shard");
  if (n_features < 0 || n_features >= std::numeric_limits<std::int32_t>::max())
    throw std::invalid_argument("n_features out of range");
  if (precision == "float32") return Packed<float>(n_rows, n_features);
  if (precision == "float16") return Packed<Half>(n_rows, n_features);
  if (precision == "float8") return Packed<Mini>(n_rows, n_features);
  throw std::invalid_argument("precision must be float32, float16 or float8");
}

/// A shard under construction. Python passes it in pieces: for each piece it calls `begin`,
/// `take_in`, and `count` for all features; then it provides the arrays, and the pieces are placed.
class Packer {
 public:
  Packer(const std::string& precision, std::int64_t n_rows, std::int64_t n_features)
      : shard_(empty(precision, n_rows, n_features)) {}

  void begin(std::int64_t first, const Vector<std::int64_t>& sizes) {
    std::visit([&](auto& s) { score::begin_piece(s, first, view(sizes)); }, shard_);
  }

  void take_in(const Vector<std::int32_t>& to, const Vector<std::int32_t>& rows,
               const Vector<std::int64_t>& indptr, const Vector<std::int32_t>& indices,
               const Vector<float>& data) {
    std::visit(
        [&](auto& s) {
          score::take_in(s, view(indptr, indices, data, s.n_features + 1), view(rows), view(to));
        },
        shard_);
  }

  void count(std::int64_t begin, std::int64_t end) {
    if (room_) throw std::invalid_argument("counting is over");
    std::visit([&](auto& s) { score::count(s, begin, end); }, shard_);
  }

  /// Ends counting; returns the number of places and the bytes of weights.
  nb::tuple measure() {
    if (room_) throw std::invalid_argument("counting is over");
    room_ = std::visit([](auto& s) { return score::measure(s); }, shard_);
    return nb::make_tuple(room_->n_places, room_->weight_bytes);
  }

  /// Accepts zeroed arrays of these sizes to write to.
  void give(Writable<std::uint16_t> places, Writable<std::uint8_t> weights) {
    if (!room_ || std::ssize(view(places)) != room_->n_places ||
        std::ssize(view(weights)) != room_->weight_bytes)
      throw std::invalid_argument("the arrays do not have the sizes that were measured");
    std::visit([&](auto& s) { score::give(s, view(places), view(weights)); }, shard_);
    arrays_.emplace(std::move(places), std::move(weights));
  }

  void place(std::int64_t begin, std::int64_t end) {
    if (!arrays_) throw std::invalid_argument("there is no room yet");
    std::visit([&](auto& s) { score::place(s, begin, end); }, shard_);
  }

  /// Returns scales, bias and starts; the arrays that were given are now complete.
  nb::tuple take() {
    if (!arrays_) throw std::invalid_argument("there is no room yet");
    nb::tuple result = std::visit(
        [&](auto& s) {
          score::add_ranks(s);
          s.piece = {};
          return nb::make_tuple(owned(std::move(s.scales)), owned(std::move(s.bias)),
                                owned<std::uint32_t>(std::move(s.starts), 2));
        },
        shard_);
    arrays_.reset();
    return result;
  }

 private:
  AnyPacked shard_;
  std::optional<score::Room> room_;
  // Keeps alive the arrays that the shard refers to.
  std::optional<std::pair<Writable<std::uint16_t>, Writable<std::uint8_t>>> arrays_;
};

}  // namespace

void packing(nb::module_& m) {
  nb::class_<Packer>(m, "Packer")
      .def(nb::init<const std::string&, std::int64_t, std::int64_t>(), "precision"_a, "n_rows"_a,
           "n_features"_a)
      .def("begin", &Packer::begin, "first"_a, "sizes"_a)
      .def("take_in", &Packer::take_in, "to"_a, "rows"_a, "indptr"_a, "indices"_a, "data"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("count", &Packer::count, "begin"_a, "end"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("measure", &Packer::measure)
      .def("give", &Packer::give, "places"_a, "weights"_a)
      .def("place", &Packer::place, "begin"_a, "end"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("take", &Packer::take);
}

}  // namespace dismec::bind
