#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>
#include <variant>

#include "bindings.hpp"
#include "score/aims.hpp"

namespace dismec::bind {

namespace {

template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using AnyAim = std::variant<score::Aim<score::MacroF1>, score::Aim<score::Coverage>>;

/// A choice of labels, on the memory of Python's arrays.
class Batch {
 public:
  Batch(const std::string& aim, Matrix<const std::int32_t> labels, Matrix<const float> p,
        Matrix<std::int32_t> places, std::int64_t n_labels)
      : labels_(std::move(labels)),
        p_(std::move(p)),
        places_(std::move(places)),
        aim_(opened(aim, n_labels)) {}

  double round() {
    nb::gil_scoped_release release;
    return std::visit([](auto& aim) { return aim.round(); }, aim_);
  }

 private:
  AnyAim opened(const std::string& name, std::int64_t n_labels) {
    if (name == "macro-f1") return opened<score::MacroF1>(n_labels);
    if (name == "coverage") return opened<score::Coverage>(n_labels);
    throw std::invalid_argument("aim must be macro-f1 or coverage");
  }
  template <typename Metric>
  score::Aim<Metric> opened(std::int64_t n_labels) {
    return {{labels_.data(), labels_.size()},
            {p_.data(), p_.size()},
            static_cast<std::int64_t>(labels_.shape(1)),
            {places_.data(), places_.size()},
            static_cast<std::int64_t>(places_.shape(1)),
            n_labels};
  }

  Matrix<const std::int32_t> labels_;
  Matrix<const float> p_;
  Matrix<std::int32_t> places_;
  AnyAim aim_;
};

}  // namespace

void aims(nb::module_& m) {
  nb::class_<Batch>(m, "Aim")
      .def(nb::init<const std::string&, Matrix<const std::int32_t>, Matrix<const float>,
                    Matrix<std::int32_t>, std::int64_t>(),
           "aim"_a, "labels"_a.noconvert(), "probabilities"_a.noconvert(), "places"_a.noconvert(),
           "n_labels"_a)
      .def("round", &Batch::round);
}

}  // namespace dismec::bind
