#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bit>
#include <optional>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "score/cut.hpp"
#include "score/explain.hpp"
#include "score/packing.hpp"
#include "score/topk.hpp"

namespace dismec::bind {

namespace {

/// A writable, contiguous 2-d array from Python.
template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Starts = nb::ndarray<const std::uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Ranges = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Codes = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<T> span_of(const Matrix<T>& matrix) {
  return {matrix.data(), matrix.size()};
}

// -- shards --------------------------------------------------------------------------------------

/// A shard and the labels of its classifiers, on the memory of Python's arrays.
class Handle {
 public:
  /// Calls `use` with the shard, typed by the codes of its weights.
  template <typename Use>
  auto visit(Use&& use) const {
    if (weights_.dtype() == nb::dtype<float>()) return use(shard<float>());
    if (weights_.dtype() == nb::dtype<std::uint8_t>()) return use(shard<score::Mini>());
    if (weights_.dtype() == nb::dlpack::dtype{2, 16, 1}) return use(shard<score::Half>());
    throw std::invalid_argument("weights must be float32, float16 or uint8");
  }

  Handle(Vector<std::int32_t> labels, Vector<std::int32_t> label_starts, Vector<float> scales,
         Vector<float> bias, Starts starts, Vector<std::uint16_t> places, Codes weights,
         std::optional<Starts> ceiling_starts, std::optional<Ranges> ceiling_ranges,
         std::optional<Vector<std::uint16_t>> ceiling_places,
         std::optional<Vector<std::uint8_t>> ceilings, std::optional<Vector<float>> slopes)
      : labels_(std::move(labels)),
        label_starts_(std::move(label_starts)),
        scales_(std::move(scales)),
        bias_(std::move(bias)),
        starts_(std::move(starts)),
        places_(std::move(places)),
        weights_(std::move(weights)),
        ceiling_starts_(std::move(ceiling_starts)),
        ceiling_ranges_(std::move(ceiling_ranges)),
        ceiling_places_(std::move(ceiling_places)),
        ceilings_(std::move(ceilings)),
        slopes_(std::move(slopes)) {
    if (scales_.size() != bias_.size() || std::ssize(view(scales_)) > score::kShardRows)
      throw std::invalid_argument("scales and bias must have an entry for each classifier");
    if (starts_.shape(0) < 1 || starts_.shape(1) != 2)
      throw std::invalid_argument("starts must be two for each feature, and the ends");
    const bool bounded = ceilings_.has_value();
    if (ceiling_starts_.has_value() != bounded || ceiling_ranges_.has_value() != bounded ||
        ceiling_places_.has_value() != bounded)
      throw std::invalid_argument("ceilings need all of their arrays");
    if (bounded &&
        (ceiling_starts_->shape(0) != starts_.shape(0) || ceiling_starts_->shape(1) != 2 ||
         ceiling_ranges_->shape(0) + 1 != starts_.shape(0) || ceiling_ranges_->shape(1) != 2))
      throw std::invalid_argument("ceilings must have starts and a range for each feature");
    if (slopes_ && slopes_->size() != scales_.size())
      throw std::invalid_argument("slopes must have an entry for each classifier");
    score::check_labels(this->labels(), static_cast<std::int64_t>(scales_.size()));
    for (const std::int32_t label : view(labels_)) highest_label_ = std::max(highest_label_, label);
    visit([](const auto&) {});  // throws if the type of the weights is unknown
  }

  score::Labels labels() const { return {view(label_starts_), view(labels_)}; }
  std::int32_t highest_label() const { return highest_label_; }
  std::int64_t n_features() const { return static_cast<std::int64_t>(starts_.shape(0)) - 1; }

 private:
  template <typename Code>
  score::Shard<Code> shard() const {
    score::Shard<Code> shard = {view(scales_),
                                view(bias_),
                                pairs<score::Start>(starts_),
                                view(places_),
                                {static_cast<const Code*>(weights_.data()), weights_.size()}};
    if (ceilings_)
      shard.ceilings = {pairs<score::Start>(*ceiling_starts_),
                        pairs<score::Range>(*ceiling_ranges_), view(*ceiling_places_),
                        view(*ceilings_)};
    if (slopes_) shard.slopes = view(*slopes_);
    return shard;
  }
  template <typename Pair>
  static std::span<const Pair> pairs(const auto& array) {
    return {reinterpret_cast<const Pair*>(array.data()), array.size() / 2};
  }

  Vector<std::int32_t> labels_, label_starts_;
  Vector<float> scales_, bias_;
  Starts starts_;
  Vector<std::uint16_t> places_;
  Codes weights_;
  std::optional<Starts> ceiling_starts_;
  std::optional<Ranges> ceiling_ranges_;
  std::optional<Vector<std::uint16_t>> ceiling_places_;
  std::optional<Vector<std::uint8_t>> ceilings_;
  std::optional<Vector<float>> slopes_;
  std::int32_t highest_label_ = -1;
};

/// Where the best labels of rows are to be kept.
score::Ranking ranking(const Matrix<std::int32_t>& labels, const Matrix<float>& scores,
                       const Vector<std::int64_t>& indptr) {
  const std::size_t k = labels.shape(1);
  if (k < 1) throw std::invalid_argument("k must be at least 1");
  if (scores.shape(1) != k || labels.shape(0) + 1 != indptr.size() ||
      scores.shape(0) != labels.shape(0))
    throw std::invalid_argument("labels and scores must be rows x k");
  return {k, span_of(labels), span_of(scores)};
}

/// Shards of the same features, if this is the type of their weights.
template <typename Code>
std::vector<score::Shard<Code>> of_one_kind(const std::vector<const Handle*>& shards) {
  std::vector<score::Shard<Code>> found;
  for (const Handle* one : shards)
    one->visit([&](const auto& shard) {
      if constexpr (std::is_same_v<std::decay_t<decltype(shard)>, score::Shard<Code>>) {
        if (shard.n_features() != shards.front()->n_features())
          throw std::invalid_argument("shards must be of the same features");
        found.push_back(shard);
      } else {
        throw std::invalid_argument("shards must be of one precision");
      }
    });
  return found;
}

// -- unpacking -----------------------------------------------------------------------------------

nb::tuple unpack(const Handle& handle) {
  OwnedCsr rows;
  {
    nb::gil_scoped_release release;
    rows = handle.visit([](const auto& shard) { return score::unpack(shard); });
  }
  return owned(std::move(rows));
}

/// The arrays of the ceilings of a shard's weights.
nb::tuple ceilings(const Handle& handle) {
  score::OwnedCeilings made;
  {
    nb::gil_scoped_release release;
    made = handle.visit([](const auto& shard) { return score::ceilings_of(shard); });
  }
  return nb::make_tuple(owned<std::uint32_t>(std::move(made.starts), 2),
                        owned<float>(std::move(made.ranges), 2), owned(std::move(made.places)),
                        owned(std::move(made.codes)));
}

// -- cutting -------------------------------------------------------------------------------------

/// The arrays of the shard (without labels) made of the classifiers that several shards of equal
/// precision send to it; its weights are returned as bytes.
nb::tuple cut(const std::vector<const Handle*>& shards, const std::vector<Vector<std::int32_t>>& to,
              std::int64_t n_rows) {
  if (shards.empty() || shards.size() != to.size())
    throw std::invalid_argument("every shard must say where its classifiers go");
  if (n_rows < 0 || n_rows > score::kShardRows)
    throw std::invalid_argument("a shard has no so many classifiers");
  const std::int64_t n_features = shards.front()->n_features();
  return shards.front()->visit([&]<typename Code>(const score::Shard<Code>&) {
    score::Cut<Code> made;
    {
      nb::gil_scoped_release release;
      const auto from = of_one_kind<Code>(shards);
      std::vector<score::Source<Code>> sources;
      for (std::size_t i = 0; i < from.size(); ++i) sources.emplace_back(from[i], view(to[i]));
      const std::span<const score::Source<Code>> all(sources);
      made = score::cut_shards(all, n_features, n_rows);
    }
    return nb::make_tuple(owned(std::move(made.scales)), owned(std::move(made.bias)),
                          owned<std::uint32_t>(std::move(made.starts), 2),
                          owned(std::move(made.places)),
                          owned<std::uint8_t>(std::move(made.weights)));
  });
}

// -- scoring -------------------------------------------------------------------------------------

/// The labels allowed for the rows of a call, in terms of one shard, on the memory of Python's
/// arrays.
class AllowedLabels {
 public:
  /// One set for all rows: one bit per label, and one per classifier of the shard.
  AllowedLabels(Vector<std::uint8_t> bits, Vector<std::uint16_t> open)
      : bits_(std::move(bits)), words_(std::move(open)) {
    allowed_.kind = score::Allowed::Kind::set;
    allowed_.bits = view(bits_);
    allowed_.open = {view(words_), 0};
    for (const std::uint16_t word : view(words_)) allowed_.open.count += std::popcount(word);
  }
  /// One set per row: its labels, and the classifiers of the shard that have one of these.
  AllowedLabels(Vector<std::int64_t> label_starts, Vector<std::int32_t> labels,
                Vector<std::int64_t> starts, Vector<std::uint16_t> classifiers)
      : label_starts_(std::move(label_starts)),
        starts_(std::move(starts)),
        labels_(std::move(labels)),
        words_(std::move(classifiers)) {
    allowed_.kind = score::Allowed::Kind::rows;
    allowed_.label_starts = view(label_starts_);
    allowed_.labels_of_rows = view(labels_);
    allowed_.starts = view(starts_);
    allowed_.classifiers = view(words_);
  }

  const score::Allowed& view_of() const { return allowed_; }

 private:
  Vector<std::uint8_t> bits_;
  Vector<std::int64_t> label_starts_, starts_;
  Vector<std::int32_t> labels_;
  Vector<std::uint16_t> words_;
  score::Allowed allowed_;
};

void merge_topk(const Handle& handle, const Vector<std::int64_t>& indptr,
                const Vector<std::int32_t>& indices, const Vector<float>& data,
                const Matrix<std::int32_t>& labels, const Matrix<float>& scores,
                std::int64_t lookup, const AllowedLabels* allowed) {
  const Csr rows = view(indptr, indices, data, handle.n_features() + 1);
  const score::Ranking best = ranking(labels, scores, indptr);
  if (lookup < 0 || lookup > score::kShardRows) throw std::invalid_argument("lookup out of range");
  const score::Allowed among = allowed ? allowed->view_of() : score::Allowed{};
  nb::gil_scoped_release release;
  check_rows(rows);
  handle.visit([&](const auto& shard) {
    score::check_allowed(among, handle.highest_label(), rows.n_rows(), shard.n_rows());
    score::merge_topk(shard, handle.labels(), rows, lookup, among, best);
  });
}

void dense_scores(const Handle& handle, const Vector<std::int64_t>& indptr,
                  const Vector<std::int32_t>& indices, const Vector<float>& data,
                  const Matrix<float>& out) {
  const Csr rows = view(indptr, indices, data, handle.n_features() + 1);
  const auto n_labels = static_cast<std::int64_t>(out.shape(1));
  if (out.shape(0) + 1 != indptr.size())
    throw std::invalid_argument("out must have as many rows as indptr names");
  if (handle.highest_label() >= n_labels)
    throw std::invalid_argument("labels of the shard out of range");
  nb::gil_scoped_release release;
  check_rows(rows);
  handle.visit([&](const auto& shard) {
    score::dense_scores(shard, handle.labels(), rows, n_labels, span_of(out));
  });
}

nb::tuple explain(const Handle& handle, std::int64_t classifier, const Vector<std::int64_t>& indptr,
                  const Vector<std::int32_t>& indices, const Vector<float>& data) {
  const Csr rows = view(indptr, indices, data, handle.n_features() + 1);
  if (indptr.size() != 2) throw std::invalid_argument("one row is explained at a time");
  std::vector<float> weights(data.size());
  float score = 0;
  {
    nb::gil_scoped_release release;
    check_rows(rows);
    score = handle.visit([&](const auto& shard) {
      if (classifier < 0 || classifier >= shard.n_rows())
        throw std::invalid_argument("classifier out of range");
      return score::explain(shard, rows, classifier, std::span(weights));
    });
  }
  return nb::make_tuple(score, owned(std::move(weights)));
}

}  // namespace

void shards(nb::module_& m) {
  nb::class_<Handle>(m, "Shard")
      .def(nb::init<Vector<std::int32_t>, Vector<std::int32_t>, Vector<float>, Vector<float>,
                    Starts, Vector<std::uint16_t>, Codes, std::optional<Starts>,
                    std::optional<Ranges>, std::optional<Vector<std::uint16_t>>,
                    std::optional<Vector<std::uint8_t>>, std::optional<Vector<float>>>(),
           "labels"_a.noconvert(), "label_starts"_a.noconvert(), "scales"_a.noconvert(),
           "bias"_a.noconvert(), "starts"_a.noconvert(), "places"_a.noconvert(),
           "weights"_a.noconvert(), "ceiling_starts"_a.noconvert() = nb::none(),
           "ceiling_ranges"_a.noconvert() = nb::none(), "ceiling_places"_a.noconvert() = nb::none(),
           "ceilings"_a.noconvert() = nb::none(), "slopes"_a.noconvert() = nb::none());
  nb::class_<AllowedLabels>(m, "AllowedLabels")
      .def(nb::init<Vector<std::uint8_t>, Vector<std::uint16_t>>(), "bits"_a.noconvert(),
           "open"_a.noconvert())
      .def(nb::init<Vector<std::int64_t>, Vector<std::int32_t>, Vector<std::int64_t>,
                    Vector<std::uint16_t>>(),
           "label_starts"_a.noconvert(), "labels"_a.noconvert(), "starts"_a.noconvert(),
           "classifiers"_a.noconvert());
  m.attr("shard_rows") = score::kShardRows;
  m.attr("bounded_rows") = score::kBoundedRows;
  m.def("unpack", &unpack, "shard"_a);
  m.def("merge_topk", &merge_topk, "shard"_a, "indptr"_a, "indices"_a, "data"_a,
        "labels"_a.noconvert(), "scores"_a.noconvert(), "lookup"_a = score::kLookup,
        "allowed"_a = nb::none());
  m.def("ceilings", &ceilings, "shard"_a);
  m.def("cut", &cut, "shards"_a, "to"_a, "n_rows"_a);
  m.def("explain", &explain, "shard"_a, "classifier"_a, "indptr"_a, "indices"_a, "data"_a);
  m.def("dense_scores", &dense_scores, "shard"_a, "indptr"_a, "indices"_a, "data"_a,
        "out"_a.noconvert());
}

}  // namespace dismec::bind
