// Shards → the same weights by classifier, and rows ranked among few labels.
//
// By feature, the weights of all classifiers for the row's features are read. Where a row may be
// given few labels, it takes less time to read all weights of just these, most of which are for
// features that the row does not have. Those above 0 come first: where no value of the row is below
// 0, they bound the score from above, for the reasons in bounded.hpp, and few classifiers have a
// bound that is high enough to read the rest.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "csr.hpp"
#include "huge_array.hpp"
#include "score/codes.hpp"
#include "score/ranking.hpp"
#include "score/shard.hpp"
#include "score/sums.hpp"
#include "score/topk.hpp"

namespace dismec::score {

/// The weights of the classifiers of some shards, one shard's after another's, in ascending order
/// of features: those above 0 first, then the others.
template <typename Code>
struct ByLabel {
  std::vector<std::int64_t> starts;  // of both parts of each classifier, and the end
  HugeArray<std::int32_t> features{0};
  HugeArray<Code> codes{0};
  std::int64_t n_features = 0;
  std::int64_t longest = 0;    // weights of a classifier, at most
  std::vector<float> reading;  // nanoseconds that it takes to add each feature's lists
  float bounding = 0;          // and to look at the sums

  std::int64_t n_rows() const { return std::ssize(starts) / 2; }
};

/// Calls visit(part of a classifier, feature, code) for the weights of a shard, by feature. The
/// shard's classifiers are numbered from `first` on.
template <typename Code, typename Visit>
inline void each_by_feature(const Shard<Code>& shard, std::int64_t first, Visit&& visit) {
  for (std::int64_t feature = 0; feature < shard.n_features(); ++feature)
    for (std::int64_t part = 0; part < shard.n_parts(); ++part)
      each(shard, shard.list(feature, part), [&](std::int64_t row, Code code) {
        if (row >= shard.n_rows()) throw std::invalid_argument("a classifier is out of range");
        visit(2 * (first + row) + (std::signbit(decode(code)) ? 1 : 0), feature, code);
      });
}

/// How long it takes to add a list by feature, in nanoseconds.
template <typename Code>
inline float adding(const Shard<Code>& shard, const typename Shard<Code>::List& list) {
  return static_cast<float>(list.dense ? shard.n_words() : std::ssize(list.weights));
}

/// Reads all weights twice, and takes no memory but for the result.
template <typename Code>
inline ByLabel<Code> by_label(std::span<const Shard<Code>> shards, std::int64_t n_features) {
  ByLabel<Code> copy;
  copy.n_features = n_features;
  copy.reading.resize(n_features + 1);
  std::int64_t n_rows = 0;
  for (const auto& shard : shards) n_rows += shard.n_rows();
  copy.starts.resize(2 * n_rows + 1);
  std::int64_t first = 0;
  for (const auto& shard : shards) {
    each_by_feature(shard, first,
                    [&](std::int64_t part, std::int64_t, Code) { ++copy.starts[part + 1]; });
    for (std::int64_t feature = 0; feature < n_features; ++feature)
      copy.reading[feature] += adding(shard, shard.list(feature, 0));
    copy.bounding += static_cast<float>(shard.n_words());
    first += shard.n_rows();
  }
  for (std::int64_t part = 0; part < 2 * n_rows; ++part) copy.starts[part + 1] += copy.starts[part];
  for (std::int64_t row = 0; row < n_rows; ++row)
    copy.longest = std::max(copy.longest, copy.starts[2 * row + 2] - copy.starts[2 * row]);

  const std::int64_t size = copy.starts.back();
  copy.features = HugeArray<std::int32_t>(size);
  copy.codes = HugeArray<Code>(size);
  std::vector<std::int64_t> next(copy.starts.begin(), copy.starts.end() - 1);
  first = 0;
  for (const auto& shard : shards) {
    each_by_feature(shard, first, [&](std::int64_t part, std::int64_t feature, Code code) {
      const std::int64_t at = next[part]++;
      // A file may change while it is read.
      if (at >= copy.starts[part + 1]) throw std::invalid_argument("weights came and went");
      copy.features[at] = static_cast<std::int32_t>(feature);
      copy.codes[at] = code;
    });
    first += shard.n_rows();
  }
  return copy;
}

/// The values of one row after another by feature: a bit for each feature that it has, and where
/// the values of each word of them begin.
class RowValues {
 public:
  explicit RowValues(std::int64_t n_features)
      : bits_(n_features / 64 + 1), first_(n_features / 64 + 1) {}

  /// Until `clear`. Features ascend.
  void set(std::span<const std::int32_t> features, const float* values) {
    features_ = features, values_ = values;
    for (std::size_t e = 0; e < features.size(); ++e) {
      const std::uint32_t feature = features[e], word = feature / 64;
      if (bits_[word] == 0) first_[word] = static_cast<std::uint32_t>(e);
      bits_[word] |= std::uint64_t{1} << feature % 64;
    }
  }
  void clear() {
    for (const std::uint32_t feature : features_) bits_[feature / 64] = 0;
    features_ = {};
  }

  std::uint64_t has(std::uint32_t feature) const { return bits_[feature / 64] >> feature % 64 & 1; }
  /// Of a feature that it has.
  float operator[](std::uint32_t feature) const {
    const std::uint64_t before = bits_[feature / 64] & ((std::uint64_t{1} << feature % 64) - 1);
    return values_[first_[feature / 64] + std::popcount(before)];
  }

 private:
  std::vector<std::uint64_t> bits_;
  std::vector<std::uint32_t> first_;
  std::span<const std::int32_t> features_;
  const float* values_ = nullptr;
};

/// This thread's: all its bits are 0 whenever a row is begun.
inline RowValues& row_values(std::int64_t n_features) {
  thread_local std::int64_t size = -1;
  thread_local RowValues memory(0);
  if (size < n_features) memory = RowValues(n_features), size = n_features;
  return memory;
}

/// Sums of products of one row after another.
template <typename Code>
class Products {
 public:
  Products(const ByLabel<Code>& copy, const RowValues& values)
      : copy_(copy), values_(values), found_(new std::int64_t[copy.longest + 1]) {}

  /// Asks for what `above` reads, or for what `all` does.
  void fetch(std::int64_t row, bool all) const {
    const std::int64_t* const at = &copy_.starts[2 * row];
    for (std::int64_t i = at[0]; i < at[all ? 2 : 1]; i += 64 / sizeof(std::int32_t))
      __builtin_prefetch(&copy_.features[i]);
  }
  /// What weights above 0 add.
  float above(std::int64_t row) {
    const std::int64_t* const at = &copy_.starts[2 * row];
    return add(found_.get(), find(at[0], at[1], found_.get()), 0.0f);
  }
  /// All of it, added in the order of features.
  float all(std::int64_t row) {
    const std::int64_t* const at = &copy_.starts[2 * row];
    const std::int64_t* one = found_.get();
    const std::int64_t* const one_end = find(at[0], at[1], found_.get());
    const std::int64_t* two = one_end;
    const std::int64_t* const end = find(at[1], at[2], found_.get() + (one_end - one));
    float sum = 0;
    while (one < one_end && two < end)
      sum += product(copy_.features[*one] < copy_.features[*two] ? *one++ : *two++);
    return add(two, end, add(one, one_end, sum));
  }

 private:
  /// Where the features of the row are among some: whether one is there cannot be guessed.
  std::int64_t* find(std::int64_t begin, std::int64_t end, std::int64_t* found) const {
    const std::int32_t* const features = copy_.features.data();
    for (std::int64_t at = begin; at < end; ++at) {
      *found = at;
      found += values_.has(features[at]);
    }
    return found;
  }
  float product(std::int64_t at) const {
    return values_[copy_.features[at]] * decode(copy_.codes[at]);
  }
  float add(const std::int64_t* one, const std::int64_t* end, float sum) const {
    for (; one < end; ++one) sum += product(*one);
    return sum;
  }

  const ByLabel<Code>& copy_;
  const RowValues& values_;
  std::unique_ptr<std::int64_t[]> found_;
};

/// Labels that rows may be given, ascending in each row: of row i those from starts[i] on, or the
/// same for all rows if there are two starts. The classifier of a label is −1 if it has none.
struct FewLabels {
  std::span<const std::int64_t> starts;
  std::span<const std::int32_t> labels;
  std::span<const std::int32_t> classifiers;  // of all labels of the model

  std::span<const std::int32_t> of(std::int64_t row) const {
    const std::int64_t at = std::ssize(starts) == 2 ? 0 : row;
    return labels.subspan(starts[at], starts[at + 1] - starts[at]);
  }
};

inline void check_few(const FewLabels& few, std::int64_t n_rows, std::int64_t n_classifiers) {
  const auto starts = few.starts;
  if ((std::ssize(starts) != n_rows + 1 && std::ssize(starts) != 2) || starts.front() != 0 ||
      starts.back() != std::ssize(few.labels) || !std::ranges::is_sorted(starts))
    throw std::invalid_argument("allowed labels must be those of the rows");
  for (const std::int32_t label : few.labels)
    if (label < 0 || label >= std::ssize(few.classifiers) ||
        few.classifiers[label] >= n_classifiers)
      throw std::invalid_argument("an allowed label or its classifier is not there");
}

/// A label, its classifier, and what its score is at most.
struct Candidate {
  Place bound;
  std::int32_t row;
};

/// The weights that candidates have: those above 0, and all.
struct Sizes {
  std::int64_t above = 0, all = 0;
};

// Nanoseconds, measured with a generated model of 100,000 labels that have 480 weights each.

/// To look at a label, and at one of its weights.
inline constexpr float kLabel = 40, kWeight = 2.2f;
/// Labels for each place that are read in full, as their bounds are high enough.
inline constexpr float kReadInFull = 1.5f;

/// How long it takes to rank candidates for k places.
inline float ranking_time(std::size_t n_candidates, Sizes sizes, bool bounded, std::size_t k) {
  const auto count = static_cast<float>(std::max<std::size_t>(n_candidates, 1));
  const float in_full = std::min(1.0f, kReadInFull * static_cast<float>(k) / count);
  const auto all = static_cast<float>(sizes.all);
  const float read = bounded ? static_cast<float>(sizes.above) + in_full * all : all;
  return kLabel * count + kWeight * read;
}

/// Lets candidates compete for the places of a row: score(sum, classifier) is the score of a sum of
/// products. If they are `bounded`, no value of the row is below 0.
template <typename Code, typename Score>
inline void enter_candidates(Products<Code>& products, Score&& score, bool bounded,
                             std::span<Candidate> candidates, std::span<Place> heap) {
  const auto later = [](const Candidate& a, const Candidate& b) {
    return before(b.bound, a.bound);
  };
  constexpr std::size_t ahead = 8;
  if (bounded) {
    for (std::size_t j = 0; j < candidates.size(); ++j) {
      if (j + ahead < candidates.size()) products.fetch(candidates[j + ahead].row, false);
      auto& [bound, row] = candidates[j];
      bound.score = at_most(score(products.above(row), row));
    }
    std::ranges::make_heap(candidates, later);
  }
  // The one with the highest bound is on its way from memory while another is scored.
  const auto take = [&]() -> const Candidate* {
    if (candidates.empty()) return nullptr;
    if (bounded) std::ranges::pop_heap(candidates, later);
    const Candidate& taken = candidates.back();
    candidates = candidates.first(candidates.size() - 1);
    products.fetch(taken.row, true);
    return &taken;
  };
  for (const Candidate* next = take(); next != nullptr;) {
    const auto [bound, row] = *next;
    if (bounded && !before(bound, heap.front())) break;
    next = take();
    const Place own{score(products.all(row), row), bound.label};
    if (!before(own, heap.front())) continue;
    std::pop_heap(heap.begin(), heap.end(), before);
    heap.back() = own;
    std::push_heap(heap.begin(), heap.end(), before);
  }
}

/// Ranks those rows for which it takes less time than by feature, and tells which. The scores of
/// classifiers are scaled and have a bias as in their shards. With `always`, ranks all.
template <typename Code>
inline void rank_few(const ByLabel<Code>& copy, std::span<const float> scales,
                     std::span<const float> biases, const Csr& rows, const FewLabels& few,
                     bool always, const Ranking& best, std::span<std::uint8_t> ranked) {
  RowValues& values = row_values(copy.n_features);
  Products<Code> products(copy, values);
  std::vector<Candidate> candidates;
  std::vector<Place> heap(best.k);
  for (std::int64_t i = 0; i < rows.n_rows(); ++i) {
    auto features = rows.columns(i);
    const float* const numbers = rows.values.data() + rows.indptr[i];
    float bias = 0;
    if (!features.empty() && features.back() == copy.n_features) {
      bias = numbers[features.size() - 1];
      features = features.first(features.size() - 1);
    }
    const auto allowed = few.of(i);
    bool bounded = allowed.size() > best.k;
    float by_feature = copy.bounding;
    for (std::size_t e = 0; e < features.size(); ++e) {
      bounded &= numbers[e] >= 0;
      by_feature += copy.reading[features[e]];
    }
    candidates.clear();
    Sizes sizes;
    for (const std::int32_t label : allowed) {
      const std::int32_t row = few.classifiers[label];
      if (row < 0) continue;
      const std::int64_t* const at = &copy.starts[2 * row];
      sizes.above += at[1] - at[0], sizes.all += at[2] - at[0];
      candidates.push_back({{HUGE_VALF, label}, row});
    }
    ranked[i] =
        always || ranking_time(candidates.size(), sizes, bounded, best.k) < by_feature ? 1 : 0;
    if (ranked[i] == 0) continue;
    const auto score = [&](float sum, std::int32_t row) {
      return sum * scales[row] + bias * biases[row];
    };
    best.read(i, heap);
    values.set(features, numbers);
    enter_candidates(products, score, bounded, std::span(candidates), std::span(heap));
    values.clear();
    best.write(i, heap);
  }
}

}  // namespace dismec::score
