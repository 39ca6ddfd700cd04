#include <nanobind/stl/vector.h>

#include <span>
#include <stdexcept>
#include <variant>
#include <vector>

#include "bindings.hpp"
#include "score/bind_shard.hpp"
#include "score/by_label.hpp"

namespace dismec::bind {

namespace {

/// A copy of the weights of some shards by classifier, in memory of its own.
class LabelWeights {
 public:
  explicit LabelWeights(const std::vector<const Handle*>& shards) {
    if (shards.empty()) throw std::invalid_argument("there must be a shard");
    nb::gil_scoped_release release;
    shards.front()->visit([&]<typename Code>(const score::Shard<Code>& shard) {
      const auto all = of_one_kind<Code>(shards);
      copy_ = score::by_label(std::span<const score::Shard<Code>>(all), shard.n_features());
    });
  }

  /// Ranks rows among few labels, and sets `ranked` to 0 for those that by feature take less time.
  void rank(const Vector<float>& scales, const Vector<float>& bias,
            const Vector<std::int64_t>& indptr, const Vector<std::int32_t>& indices,
            const Vector<float>& data, const Vector<std::int64_t>& label_starts,
            const Vector<std::int32_t>& allowed, const Vector<std::int32_t>& classifiers,
            const Matrix<std::int32_t>& labels, const Matrix<float>& scores,
            const Writable<std::uint8_t>& ranked, bool always) const {
    const score::Ranking best = ranking(labels, scores, indptr);
    if (ranked.size() != labels.shape(0))
      throw std::invalid_argument("ranked must have an entry for each row");
    nb::gil_scoped_release release;
    std::visit(
        [&](const auto& copy) {
          if (std::ssize(view(scales)) != copy.n_rows() || bias.size() != scales.size())
            throw std::invalid_argument("scales and bias must have an entry for each classifier");
          const Csr rows = view(indptr, indices, data, copy.n_features + 1);
          check_rows(rows);
          const score::FewLabels few{view(label_starts), view(allowed), view(classifiers)};
          score::check_few(few, rows.n_rows(), copy.n_rows());
          score::rank_few(copy, view(scales), view(bias), rows, few, always, best, view(ranked));
        },
        copy_);
  }

 private:
  std::variant<score::ByLabel<float>, score::ByLabel<score::Half>, score::ByLabel<score::Mini>>
      copy_;
};

}  // namespace

void label_weights(nb::module_& m) {
  nb::class_<LabelWeights>(m, "LabelWeights")
      .def(nb::init<const std::vector<const Handle*>&>(), "shards"_a)
      .def("rank", &LabelWeights::rank, "scales"_a, "bias"_a, "indptr"_a, "indices"_a, "data"_a,
           "label_starts"_a, "allowed"_a, "classifiers"_a, "labels"_a.noconvert(),
           "scores"_a.noconvert(), "ranked"_a.noconvert(), "always"_a = false);
}

}  // namespace dismec::bind
