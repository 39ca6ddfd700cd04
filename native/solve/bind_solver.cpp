#include <nanobind/stl/optional.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "bindings.hpp"
#include "solve/l1.hpp"
#include "solve/l2.hpp"
#include "solve/solver.hpp"
#include "solve/work_sharing.hpp"

namespace dismec::bind {

namespace {

using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using solve::L1;
using solve::L2;
using solve::SolvedLabel;
using solve::Solver;
using solve::WorkSharing;

void check_weights(const solve::Transformed& X) {
  if (X.weights.empty()) return;
  if (std::ssize(X.weights) != X.size()) {
    throw std::invalid_argument("weights: one number per row expected");
  }
  for (const float weight : X.weights) {
    if (!(weight > 0 && std::isfinite(weight))) {
      throw std::invalid_argument("weights: numbers above 0 expected");
    }
  }
}

void check_pairs(const Csr& pairs, std::int64_t n_labels) {
  if (pairs.indptr.empty()) return;
  check_rows(pairs);
  if (pairs.n_rows() != n_labels) {
    throw std::invalid_argument("pairs: the rows of every label expected");
  }
  for (const float weight : pairs.values) {
    if (!(weight >= 0 && std::isfinite(weight))) {
      throw std::invalid_argument("pairs: weights of at least 0 expected");
    }
  }
  for (std::int64_t label = 0; label < n_labels; ++label) {
    const auto rows = pairs.columns(label);
    if (std::ranges::adjacent_find(rows, std::ranges::greater_equal{}) != rows.end()) {
      throw std::invalid_argument("pairs: the rows of a label must ascend");
    }
  }
}

void check_dense(const solve::Transformed& X) {
  if (std::ssize(X.dense.values) != X.dense.width * X.size() ||
      (X.dense.width > 0 && std::ssize(X.dense.scale) != X.size())) {
    throw std::invalid_argument("dense: one row of features and one scale per row expected");
  }
}

/// X with its transform, the rows of every label, and the pairs of rows and labels that have a
/// weight of their own, by label, checked once.
class Problem {
 public:
  Problem(Vector<std::int64_t> indptr, Vector<std::int32_t> indices, Vector<float> values,
          Vector<float> scale, std::optional<Vector<float>> idf, std::int64_t n_features,
          float bias, std::optional<Vector<float>> weights, std::optional<Matrix> dense,
          std::optional<Vector<float>> dense_scale, Vector<std::int64_t> label_indptr,
          Vector<std::int32_t> label_rows, Vector<std::int64_t> pair_indptr,
          Vector<std::int32_t> pair_rows, Vector<float> pair_weights)
      : indptr_(std::move(indptr)),
        indices_(std::move(indices)),
        values_(std::move(values)),
        scale_(std::move(scale)),
        idf_(std::move(idf)),
        weights_(std::move(weights)),
        dense_(std::move(dense)),
        dense_scale_(std::move(dense_scale)),
        label_indptr_(std::move(label_indptr)),
        label_rows_(std::move(label_rows)),
        pair_indptr_(std::move(pair_indptr)),
        pair_rows_(std::move(pair_rows)),
        pair_weights_(std::move(pair_weights)) {
    X = {view(indptr_, indices_, values_, n_features), view(scale_), {}, bias};
    if (idf_) X.idf = view(*idf_);
    if (weights_) X.weights = view(*weights_);
    if (dense_ && dense_scale_) {
      X.dense = {{dense_->data(), dense_->size()},
                 view(*dense_scale_),
                 static_cast<std::int64_t>(dense_->shape(1))};
    }
    positives = {view(label_indptr_), view(label_rows_), {}, X.size()};
    pairs = {view(pair_indptr_), view(pair_rows_), view(pair_weights_), X.size()};
    const nb::gil_scoped_release release;
    check_rows(X.x);
    check_dense(X);
    if (std::ssize(X.scale) != X.size() || n_features < 0 || X.n_features() >= INT32_MAX ||
        X.size() >= INT32_MAX || (idf_ && std::ssize(X.idf) != n_features)) {
      throw std::invalid_argument("X: array sizes do not fit each other");
    }
    check_entries(positives);
    check_weights(X);
    check_pairs(pairs, positives.n_rows());
    summary = solve::summarize(X);
    tiers.emplace(X, summary);
  }

  solve::Transformed X;
  Csr positives;  // by label
  Csr pairs;      // by label; without any the arrays are empty
  solve::Summary summary;
  std::optional<solve::FeatureTiers> tiers;

 private:
  // The arrays are kept alive here; X, positives and pairs look into them.
  Vector<std::int64_t> indptr_;
  Vector<std::int32_t> indices_;
  Vector<float> values_;
  Vector<float> scale_;
  std::optional<Vector<float>> idf_;
  std::optional<Vector<float>> weights_;
  std::optional<Matrix> dense_;
  std::optional<Vector<float>> dense_scale_;
  Vector<std::int64_t> label_indptr_;
  Vector<std::int32_t> label_rows_;
  Vector<std::int64_t> pair_indptr_;
  Vector<std::int32_t> pair_rows_;
  Vector<float> pair_weights_;
};

void check_costs(std::span<const double> costs, std::int64_t n_labels) {
  if (std::ssize(costs) != n_labels)
    throw std::invalid_argument("costs: one number per label expected");
  // Their roots, and their products with C, must be finite in single precision.
  for (const double cost : costs) {
    if (!(cost >= 1e-30 && cost <= 1e30)) throw std::invalid_argument("costs: out of range");
  }
}

/// One thread's solver, which the threads in `sharing` may help. `cancel` is one byte that another
/// thread may set; results are then incomplete.
class Worker {
 public:
  Worker(const Problem& problem, float C, double tolerance, float delta, std::int64_t first,
         float delta_from_first, bool l1, bool soft_labels, Vector<double> positive_costs,
         Vector<double> negative_costs, Vector<std::uint8_t> cancel, WorkSharing& sharing)
      : problem_(problem),
        positive_costs_(std::move(positive_costs)),
        negative_costs_(std::move(negative_costs)),
        cancel_(std::move(cancel)),
        sharing_(sharing),
        solver_(l1 ? solver_of<L1>({C, tolerance, false, {delta, first, delta_from_first}})
                   : solver_of<L2>({C, tolerance, soft_labels, {delta, first, delta_from_first}})) {
    if (cancel_.size() != 1) throw std::invalid_argument("cancel: one byte expected");
    if (l1 && !(problem.X.weights.empty() && problem.pairs.indptr.empty())) {
      throw std::invalid_argument("weights: not supported under L1");
    }
    for (const auto& costs : {positive_costs_, negative_costs_}) {
      check_costs(view(costs), problem.positives.n_rows());
    }
  }
  Worker(const Worker&) = delete;

  /// Returns the finished labels, the end of each label's weights, and their statistics as columns,
  /// the last of which has kBins entries per label. `take` returns the weights themselves.
  nb::tuple solve(const Vector<std::int64_t>& labels, bool drain) {
    const auto wanted = view(labels);
    {
      const nb::gil_scoped_release release;
      for (const auto label : wanted) {
        if (label < 0 || label >= problem_.positives.n_rows()) {
          throw std::invalid_argument("labels: id out of range");
        }
      }
      // Python sets the byte while this runs.
      const volatile std::uint8_t* flag = cancel_.data();
      const auto stop = [flag] { return *flag != 0; };
      solved_ =
          std::visit([&](auto& solver) { return solver.solve(wanted, drain, stop); }, solver_);
    }
    std::vector<std::int64_t> ends{0};
    std::vector<std::int32_t> counts;
    for (const SolvedLabel& label : solved_) {
      ends.push_back(ends.back() + std::ssize(label.features));
      counts.insert(counts.end(), label.counts.of.begin(), label.counts.of.end());
    }
    return nb::make_tuple(
        column(&SolvedLabel::label), owned(std::move(ends)), column(&SolvedLabel::objective),
        column(&SolvedLabel::stop_ratio), column(&SolvedLabel::passes), column(&SolvedLabel::steps),
        column(&SolvedLabel::set_size), column(&SolvedLabel::seconds), owned(std::move(counts)));
  }

  /// Moves the weights of the labels that `solve` has just returned into arrays of that size.
  void take(Writable<std::int32_t> features, Writable<float> weights) {
    std::size_t nnz = 0;
    for (const auto& label : solved_) nnz += label.features.size();
    if (features.size() != nnz || weights.size() != nnz) {
      throw std::invalid_argument("take: the arrays do not have the size of the weights");
    }
    const nb::gil_scoped_release release;
    std::int32_t* feature = features.data();
    float* weight = weights.data();
    for (auto& label : solved_) {
      feature = std::copy(label.features.begin(), label.features.end(), feature);
      weight = std::copy(label.weights.begin(), label.weights.end(), weight);
      label = SolvedLabel{};
    }
    solved_.clear();
  }

 private:
  template <typename T>
  nb::object column(T SolvedLabel::* field) const {
    std::vector<T> values;
    for (const SolvedLabel& label : solved_) values.push_back(label.*field);
    return owned(std::move(values));
  }

  using AnySolver = std::variant<Solver<L2>, Solver<L1>>;

  template <typename Penalty>
  AnySolver solver_of(const solve::SolverOptions& options) const {
    const solve::Costs costs{view(positive_costs_), view(negative_costs_)};
    return AnySolver(std::in_place_type<Solver<Penalty>>, problem_.X, problem_.summary,
                     *problem_.tiers, problem_.positives, problem_.pairs, costs, options, sharing_);
  }

  const Problem& problem_;
  // The solver refers to these.
  Vector<double> positive_costs_;
  Vector<double> negative_costs_;
  Vector<std::uint8_t> cancel_;
  WorkSharing& sharing_;
  AnySolver solver_;
  std::vector<SolvedLabel> solved_;
};

/// Returns to the system what threads have freed but the C library keeps for them.
void release_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace

void solver(nb::module_& m) {
  m.def("release_memory", &release_memory);
  m.attr("features_per_non_zero") = solve::FeatureTiers::kFeaturesPerNonZero;
  nb::class_<Problem>(m, "Problem")
      .def(nb::init<Vector<std::int64_t>, Vector<std::int32_t>, Vector<float>, Vector<float>,
                    std::optional<Vector<float>>, std::int64_t, float, std::optional<Vector<float>>,
                    std::optional<Matrix>, std::optional<Vector<float>>, Vector<std::int64_t>,
                    Vector<std::int32_t>, Vector<std::int64_t>, Vector<std::int32_t>,
                    Vector<float>>(),
           "indptr"_a, "indices"_a, "values"_a, "scale"_a, "idf"_a.none(), "n_features"_a, "bias"_a,
           "weights"_a.none(), "dense"_a.none(), "dense_scale"_a.none(), "label_indptr"_a,
           "label_rows"_a, "pair_indptr"_a, "pair_rows"_a, "pair_weights"_a)
      .def_prop_ro("weight", [](const Problem& problem) { return problem.summary.weight; })
      .def_prop_ro("squares", [](const Problem& problem) { return problem.summary.squares; })
      .def_prop_ro("longest", [](const Problem& problem) { return problem.summary.longest; });
  nb::class_<WorkSharing>(m, "WorkSharing")
      .def(nb::init<>())
      .def_prop_ro("calls", &WorkSharing::calls)
      .def_prop_ro("n_helped", &WorkSharing::n_helped)
      .def_prop_ro("seconds", &WorkSharing::seconds)
      .def("help", &WorkSharing::help, "known"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("call_back", &WorkSharing::call_back);
  nb::class_<Worker>(m, "Worker")
      .def(nb::init<const Problem&, float, double, float, std::int64_t, float, bool, bool,
                    Vector<double>, Vector<double>, Vector<std::uint8_t>, WorkSharing&>(),
           "problem"_a, "C"_a, "tolerance"_a, "delta"_a, "first"_a, "delta_from_first"_a, "l1"_a,
           "soft_labels"_a, "positive_costs"_a, "negative_costs"_a, "cancel"_a, "sharing"_a,
           nb::keep_alive<1, 2>(), nb::keep_alive<1, 13>())
      .def("solve", &Worker::solve, "labels"_a, "drain"_a)
      .def("take", &Worker::take, "features"_a, "weights"_a);
}

}  // namespace dismec::bind
