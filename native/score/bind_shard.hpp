// Shards as Python hands them over, and where their best labels go: what bindings of scoring share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "score/ranking.hpp"
#include "score/shard.hpp"
#include "score/topk.hpp"

namespace dismec::bind {

/// A writable, contiguous 2-d array from Python.
template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Starts = nb::ndarray<const std::uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Codes = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <typename T>
std::span<T> span_of(const Matrix<T>& matrix) {
  return {matrix.data(), matrix.size()};
}

/// A shard and the labels that its classifiers stand for, on the memory of Python's arrays.
class Handle {
 public:
  /// Calls `use` with the shard as the type of its weights.
  template <typename Use>
  auto visit(Use&& use) const {
    if (weights_.dtype() == nb::dtype<float>()) return use(shard<float>());
    if (weights_.dtype() == nb::dtype<std::uint8_t>()) return use(shard<score::Mini>());
    if (weights_.dtype() == nb::dlpack::dtype{2, 16, 1}) return use(shard<score::Half>());
    throw std::invalid_argument("weights must be float32, float16 or uint8");
  }

  Handle(Vector<std::int32_t> labels, Vector<std::int32_t> label_starts, Vector<float> scales,
         Vector<float> bias, Starts starts, Vector<std::uint16_t> places, Codes weights)
      : labels_(std::move(labels)),
        label_starts_(std::move(label_starts)),
        scales_(std::move(scales)),
        bias_(std::move(bias)),
        starts_(std::move(starts)),
        places_(std::move(places)),
        weights_(std::move(weights)) {
    if (scales_.size() != bias_.size() || std::ssize(view(scales_)) > score::kShardRows)
      throw std::invalid_argument("scales and bias must have an entry for each classifier");
    if (starts_.shape(0) < 1 || (starts_.shape(1) != 2 && starts_.shape(1) != 4))
      throw std::invalid_argument("starts must be two or four for each feature, and the ends");
    score::check_labels(this->labels(), static_cast<std::int64_t>(scales_.size()));
    for (const std::int32_t label : view(labels_)) highest_label_ = std::max(highest_label_, label);
    visit([](const auto&) {});  // refuses weights of another type
  }

  score::Labels labels() const { return {view(label_starts_), view(labels_)}; }
  std::int32_t highest_label() const { return highest_label_; }
  std::int64_t n_features() const { return static_cast<std::int64_t>(starts_.shape(0)) - 1; }

 private:
  template <typename Code>
  score::Shard<Code> shard() const {
    const auto* starts = reinterpret_cast<const score::Start*>(starts_.data());
    return {view(scales_),
            view(bias_),
            {starts, starts_.size() / 2},
            view(places_),
            {static_cast<const Code*>(weights_.data()), weights_.size()},
            starts_.shape(1) == 4};
  }

  Vector<std::int32_t> labels_, label_starts_;
  Vector<float> scales_, bias_;
  Starts starts_;
  Vector<std::uint16_t> places_;
  Codes weights_;
  std::int32_t highest_label_ = -1;
};

/// Where the best labels of rows are to be kept.
inline score::Ranking ranking(const Matrix<std::int32_t>& labels, const Matrix<float>& scores,
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

}  // namespace dismec::bind
