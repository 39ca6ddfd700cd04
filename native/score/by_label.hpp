// Shards → a copy of their weights by classifier; rows with few allowed labels → top k.
//
// Ranking by feature reads the weights of all classifiers for the features of the row. If few
// labels are allowed, it is faster to read all weights of these labels, though most are for
// features that the row does not have. Positive weights are stored first: if no value of the row is
// negative, they give an upper bound of the score (see bounded.hpp), and only the few classifiers
// whose bound is high enough are read in full.
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

/// The weights of the classifiers of some shards, shard after shard. Each classifier has two parts,
/// its positive weights and then its negative ones, both in ascending order of features.
template <typename Code>
struct ByLabel {
  std::vector<std::int64_t> starts;  // of the two parts of each classifier, and the end
  HugeArray<std::int32_t> features{0};
  HugeArray<Code> codes{0};
  std::int64_t n_features = 0;
  std::int64_t longest = 0;    // most weights of any classifier
  std::vector<float> reading;  // nanoseconds to add the lists of each feature, by feature
  float bounding = 0;          // nanoseconds to compare the sums of a row, by feature

  std::int64_t n_rows() const { return std::ssize(starts) / 2; }
};

/// Calls visit(part, feature, code) for each weight of a shard, feature by feature. The classifiers
/// of the shard are numbered from `first`; classifier i has the parts 2i and 2i + 1.
template <typename Code, typename Visit>
inline void each_by_feature(const Shard<Code>& shard, std::int64_t first, Visit&& visit) {
  for (std::int64_t feature = 0; feature < shard.n_features(); ++feature)
    for (std::int64_t part = 0; part < shard.n_parts(); ++part)
      each(shard, shard.list(feature, part), [&](std::int64_t row, Code code) {
        if (row >= shard.n_rows()) throw std::invalid_argument("a classifier is out of range");
        visit(2 * (first + row) + (std::signbit(decode(code)) ? 1 : 0), feature, code);
      });
}

/// Estimates the nanoseconds needed to add a list when ranking by feature.
template <typename Code>
inline float adding(const Shard<Code>& shard, const typename Shard<Code>::List& list) {
  return static_cast<float>(list.dense ? shard.n_words() : std::ssize(list.weights));
}

/// Copies the weights of shards by classifier. Reads them twice, first to count, so that no
/// memory is needed besides the result.
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
      // The mapped file may change between the two readings.
      if (at >= copy.starts[part + 1]) throw std::invalid_argument("weights came and went");
      copy.features[at] = static_cast<std::int32_t>(feature);
      copy.codes[at] = code;
    });
    first += shard.n_rows();
  }
  return copy;
}

/// A row for lookups by feature: one bit per feature, and the position of the first value of each
/// word of 64 features. Reused for one row after another.
class RowValues {
 public:
  explicit RowValues(std::int64_t n_features)
      : bits_(n_features / 64 + 1), first_(n_features / 64 + 1) {}

  /// Sets the row until `clear`. Features ascend.
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
  /// The value of a feature that the row has.
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

/// Returns the calling thread's lookup table, which is empty between rows.
inline RowValues& row_values(std::int64_t n_features) {
  thread_local std::int64_t size = -1;
  thread_local RowValues memory(0);
  if (size < n_features) memory = RowValues(n_features), size = n_features;
  return memory;
}

/// The sums of products of a row's values and the weights of classifiers.
template <typename Code>
class Products {
 public:
  Products(const ByLabel<Code>& copy, const RowValues& values)
      : copy_(copy), values_(values), found_(new std::int64_t[copy.longest + 1]) {}

  /// Prefetches what `above` reads or, with `all`, what `all` reads.
  void fetch(std::int64_t row, bool all) const {
    const std::int64_t* const at = &copy_.starts[2 * row];
    for (std::int64_t i = at[0]; i < at[all ? 2 : 1]; i += 64 / sizeof(std::int32_t))
      __builtin_prefetch(&copy_.features[i]);
  }
  /// The sum over positive weights.
  float above(std::int64_t row) {
    const std::int64_t* const at = &copy_.starts[2 * row];
    return add(found_.get(), find(at[0], at[1], found_.get()), 0.0f);
  }
  /// The sum over all weights, added in the order of features.
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
  /// Writes the positions of weights whose features the row has. Without branches, which would be
  /// mispredicted.
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

/// The allowed labels of rows, ascending in each row: those of row i start at starts[i]. If there
/// are only two starts, all rows share one set. The classifier of an untrained label is −1.
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

/// A label with an upper bound of its score, and its classifier.
struct Candidate {
  Place bound;
  std::int32_t row;
};

/// Number of positive weights of the candidates, and of all their weights.
struct Sizes {
  std::int64_t above = 0, all = 0;
};

// Nanoseconds, measured on a generated model of 100,000 labels with 480 weights each.

/// Per label, and per weight read.
inline constexpr float kLabel = 40, kWeight = 2.2f;
/// Labels per place whose bounds are high enough to be read in full.
inline constexpr float kReadInFull = 1.5f;

/// Estimates the nanoseconds needed to rank candidates for k places.
inline float ranking_time(std::size_t n_candidates, Sizes sizes, bool bounded, std::size_t k) {
  const auto count = static_cast<float>(std::max<std::size_t>(n_candidates, 1));
  const float in_full = std::min(1.0f, kReadInFull * static_cast<float>(k) / count);
  const auto all = static_cast<float>(sizes.all);
  const float read = bounded ? static_cast<float>(sizes.above) + in_full * all : all;
  return kLabel * count + kWeight * read;
}

/// Enters candidates into the places of a row, where score(sum, classifier) turns a sum of products
/// into a score. Bounds are used if `bounded`, which requires that no value of the row is negative.
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
  // The candidate with the next highest bound is prefetched while the current one is scored.
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

/// Ranks the rows for which this is estimated to be faster than by feature, or all with `always`,
/// and marks them in `ranked`. Scales and biases are those of the classifiers in their shards.
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
