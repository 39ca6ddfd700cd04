#include <nanobind/stl/optional.h>

#include <atomic>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <utility>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "bindings.hpp"
#include "solver.hpp"

namespace {

using dismec::Rows;
using dismec::SolvedLabel;

/// Hands a vector over to NumPy.
template <typename T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> to_numpy(std::vector<T>&& data) {
  auto* owned = new std::vector<T>(std::move(data));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner);
}

/// Row numbers or feature ids that start at indptr[i] and end at indptr[i + 1].
void check_indptr(std::span<const std::int64_t> indptr, std::size_t size, const char* what) {
  bool good =
      !indptr.empty() && indptr.front() == 0 && indptr.back() == static_cast<std::int64_t>(size);
  for (std::size_t i = 1; good && i < indptr.size(); ++i) good = indptr[i - 1] <= indptr[i];
  if (!good) throw std::invalid_argument(std::string(what) + ": indptr does not fit the indices");
}

void check_ids(std::span<const std::int32_t> ids, std::int64_t limit, const char* what) {
  for (const auto id : ids) {
    if (id < 0 || id >= limit) throw std::invalid_argument(std::string(what) + ": id out of range");
  }
}

/// X with its transform and the rows of every label, checked once.
class Problem {
 public:
  Problem(Vector<std::int64_t> indptr, Vector<std::int32_t> indices, Vector<float> values,
          Vector<float> scale, std::optional<Vector<float>> idf, std::int64_t n_features,
          float bias, Vector<std::int64_t> label_indptr, Vector<std::int32_t> label_rows)
      : indptr_(std::move(indptr)),
        indices_(std::move(indices)),
        values_(std::move(values)),
        scale_(std::move(scale)),
        idf_(std::move(idf)),
        label_indptr_(std::move(label_indptr)),
        label_rows_(std::move(label_rows)) {
    X = {view(indptr_), view(indices_), view(values_), view(scale_), {}, n_features, bias};
    if (idf_) X.idf = view(*idf_);
    positives = {view(label_indptr_), view(label_rows_)};
    const nb::gil_scoped_release release;
    check_indptr(X.indptr, X.indices.size(), "X");
    if (X.values.size() != X.indices.size() ||
        static_cast<std::int64_t>(X.scale.size()) != X.size() || n_features < 0 ||
        n_features >= INT32_MAX || X.size() >= INT32_MAX ||
        (idf_ && static_cast<std::int64_t>(X.idf.size()) != n_features)) {
      throw std::invalid_argument("X: array sizes do not fit each other");
    }
    check_ids(X.indices, n_features, "X");
    check_indptr(positives.indptr, positives.rows.size(), "labels");
    check_ids(positives.rows, X.size(), "labels");
    summary = dismec::summarise(X);
  }

  Rows X;
  dismec::Positives positives;
  dismec::Summary summary;

 private:
  // The arrays are kept alive here; X and positives look into them.
  Vector<std::int64_t> indptr_;
  Vector<std::int32_t> indices_;
  Vector<float> values_;
  Vector<float> scale_;
  std::optional<Vector<float>> idf_;
  Vector<std::int64_t> label_indptr_;
  Vector<std::int32_t> label_rows_;
};

void check_costs(std::span<const double> costs, std::size_t n_labels) {
  if (costs.size() != n_labels) throw std::invalid_argument("costs: one number a label expected");
  // Their roots and what they make of C have to be numbers of single precision.
  for (const double cost : costs) {
    if (!(cost >= 1e-30 && cost <= 1e30)) throw std::invalid_argument("costs: out of range");
  }
}

/// One thread's solver. `cancel` is one byte that another thread may set; answers are then
/// incomplete.
class Worker {
 public:
  Worker(const Problem& problem, float C, double tolerance, float delta, bool l1,
         Vector<double> positive_costs, Vector<double> negative_costs, Vector<std::uint8_t> cancel)
      : problem_(problem),
        positive_costs_(std::move(positive_costs)),
        negative_costs_(std::move(negative_costs)),
        cancel_(std::move(cancel)),
        solver_(problem.X, problem.summary, problem.positives,
                {view(positive_costs_), view(negative_costs_)},
                {C, tolerance, delta, l1 ? dismec::Penalty::kL1 : dismec::Penalty::kL2}) {
    if (cancel_.size() != 1) throw std::invalid_argument("cancel: one byte expected");
    for (const auto& costs : {positive_costs_, negative_costs_}) {
      check_costs(view(costs), problem.positives.indptr.size() - 1);
    }
  }
  Worker(const Worker&) = delete;

  void follow(const Vector<float>& path) {
    for (const float C : view(path)) {
      if (!(C > 0 && std::isfinite(C))) throw std::invalid_argument("path: C out of range");
    }
    solver_.follow(view(path));
  }

  /// Labels that are done, where the weights of each end, and their statistics as columns, of which
  /// the last has kBins entries a label. The weights themselves are for `take`.
  nb::tuple solve(const Vector<std::int64_t>& labels, bool drain) {
    const auto wanted = view(labels);
    std::vector<std::int64_t> done, ends{0}, set_size;
    std::vector<std::int32_t> passes, steps, place, counts;
    std::vector<double> objective, gradient, seconds;
    {
      const nb::gil_scoped_release release;
      for (const auto label : wanted) {
        if (label < 0 || label + 1 >= std::ssize(problem_.positives.indptr)) {
          throw std::invalid_argument("labels: id out of range");
        }
      }
      // Python sets the byte while this runs.
      const volatile std::uint8_t* flag = cancel_.data();
      solved_ = solver_.solve(wanted, drain, [flag] { return *flag != 0; });
      for (const auto& label : solved_) {
        done.push_back(label.label);
        ends.push_back(ends.back() + std::ssize(label.features));
        objective.push_back(label.objective);
        gradient.push_back(label.gradient);
        passes.push_back(label.passes);
        steps.push_back(label.steps);
        set_size.push_back(label.set_size);
        place.push_back(label.place);
        seconds.push_back(label.seconds);
        counts.insert(counts.end(), label.counts.of.begin(), label.counts.of.end());
      }
    }
    return nb::make_tuple(to_numpy(std::move(done)), to_numpy(std::move(ends)),
                          to_numpy(std::move(objective)), to_numpy(std::move(gradient)),
                          to_numpy(std::move(passes)), to_numpy(std::move(steps)),
                          to_numpy(std::move(set_size)), to_numpy(std::move(place)),
                          to_numpy(std::move(seconds)), to_numpy(std::move(counts)));
  }

  /// Moves the weights of the labels that `solve` has just returned into arrays of their size.
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
  const Problem& problem_;
  // The solver looks into them.
  Vector<double> positive_costs_;
  Vector<double> negative_costs_;
  Vector<std::uint8_t> cancel_;
  dismec::Solver solver_;
  std::vector<SolvedLabel> solved_;
};

/// Gives back to the system what threads have freed and the C library keeps for them.
void release_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace

void bind_solver(nb::module_& m) {
  m.def("release_memory", &release_memory);
  nb::class_<Problem>(m, "Problem")
      .def(nb::init<Vector<std::int64_t>, Vector<std::int32_t>, Vector<float>, Vector<float>,
                    std::optional<Vector<float>>, std::int64_t, float, Vector<std::int64_t>,
                    Vector<std::int32_t>>(),
           "indptr"_a, "indices"_a, "values"_a, "scale"_a, "idf"_a.none(), "n_features"_a, "bias"_a,
           "label_indptr"_a, "label_rows"_a);
  nb::class_<Worker>(m, "Worker")
      .def(nb::init<const Problem&, float, double, float, bool, Vector<double>, Vector<double>,
                    Vector<std::uint8_t>>(),
           "problem"_a, "C"_a, "tolerance"_a, "delta"_a, "l1"_a, "positive_costs"_a,
           "negative_costs"_a, "cancel"_a, nb::keep_alive<1, 2>())
      .def("follow", &Worker::follow, "path"_a)
      .def("solve", &Worker::solve, "labels"_a, "drain"_a)
      .def("take", &Worker::take, "features"_a, "weights"_a);
}
