// Some classifiers of some shards → a shard of just these, with the same codes, scales and biases.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "score/codes.hpp"
#include "score/shard.hpp"

namespace dismec::score {

/// A shard and where its classifiers go: to[i] is the new number of classifier i, −1 if it is left
/// out.
template <typename Code>
struct Source {
  Shard<Code> shard;
  std::span<const std::int32_t> to;
  std::vector<std::uint16_t> open;  // one bit per number that `places` can hold: set if it is kept

  Source(const Shard<Code>& from, std::span<const std::int32_t> targets)
      : shard(from), to(targets), open(kShardRows / kGroup) {
    if (std::ssize(to) != from.n_rows())
      throw std::invalid_argument("every classifier must go somewhere or stay out");
    for (std::size_t row = 0; row < to.size(); ++row)
      if (to[row] >= 0) open[row / kGroup] |= static_cast<std::uint16_t>(1U << row % kGroup);
  }
};

/// The arrays of a new shard.
template <typename Code>
struct Cut {
  std::vector<float> scales, bias;
  std::vector<Start> starts;
  std::vector<std::uint16_t> places;
  std::vector<Code> weights;
};

/// A classifier of the new shard, and its weight for one feature.
template <typename Code>
struct NewWeight {
  std::int32_t row;
  Code code;
};

/// Adds the weights of a list that are kept in the new shard.
template <typename Code>
inline void collect(const Source<Code>& source, const typename Shard<Code>::List& list,
                    std::vector<NewWeight<Code>>& found) {
  const std::int64_t count = std::ssize(list.weights);
  if (!list.dense) {
    for (std::int64_t j = 0; j < count; ++j) {
      const std::uint16_t row = list.places[j];
      if ((source.open[row / kGroup] >> row % kGroup & 1) != 0)
        found.push_back({source.to[row], list.weights[j]});
    }
    return;
  }
  std::int64_t before = 0;
  for (std::int64_t i = 0; i < source.shard.n_words(); ++i) {
    const unsigned all = list.places[i];
    for (unsigned word = all & source.open[i]; word != 0; word &= word - 1) {
      const std::int64_t at = before + std::popcount(all & ((word & -word) - 1));
      if (at < count)
        found.push_back({source.to[i * kGroup + __builtin_ctz(word)], list.weights[at]});
    }
    before += std::popcount(all);
  }
}

/// Appends the weights of a feature, in the order of their classifiers.
template <typename Code>
inline void append_feature(std::span<const NewWeight<Code>> found, const Layout& layout,
                           Cut<Code>& cut) {
  for (const auto& [row, code] : found) cut.weights.push_back(code);
  const auto begin = cut.places.size();
  cut.places.resize(begin + layout.n_places(std::ssize(found)));
  std::uint16_t* const places = cut.places.data() + begin;
  if (!layout.dense(std::ssize(found))) {
    for (std::size_t j = 0; j < found.size(); ++j)
      places[j] = static_cast<std::uint16_t>(found[j].row);
  } else {
    for (const auto& [row, code] : found)
      places[row / kGroup] |= static_cast<std::uint16_t>(1U << row % kGroup);
    add_ranks(layout, places);
  }
  if (std::max(cut.weights.size(), cut.places.size()) > std::numeric_limits<std::uint32_t>::max())
    throw std::invalid_argument("too many weights in a shard");
  cut.starts.push_back({static_cast<std::uint32_t>(cut.weights.size()),
                        static_cast<std::uint32_t>(cut.places.size())});
}

/// The shard of `n_rows` classifiers made of those that the sources, all with the same features,
/// send to it. Each must be sent exactly once.
template <typename Code>
inline Cut<Code> cut_shards(std::span<const Source<Code>> sources, std::int64_t n_features,
                            std::int64_t n_rows) {
  const Layout layout(n_rows);
  Cut<Code> cut;
  cut.scales.resize(n_rows);
  cut.bias.resize(n_rows);
  std::vector<bool> sent(n_rows);
  for (const auto& source : sources)
    for (std::size_t row = 0; row < source.to.size(); ++row) {
      const std::int32_t to = source.to[row];
      if (to < 0) continue;
      if (to >= n_rows || sent[to])
        throw std::invalid_argument("every classifier of a shard must come from one other");
      sent[to] = true;
      cut.scales[to] = source.shard.scales[row];
      cut.bias[to] = source.shard.bias[row];
    }
  if (std::ranges::find(sent, false) != sent.end())
    throw std::invalid_argument("every classifier of a shard must come from one other");

  const auto by_row = [](const auto& a, const auto& b) { return a.row < b.row; };
  std::vector<NewWeight<Code>> found;
  cut.starts.reserve(n_features + 1);
  cut.starts.push_back({0, 0});
  for (std::int64_t feature = 0; feature < n_features; ++feature) {
    found.clear();
    for (const auto& source : sources) collect(source, source.shard.list(feature), found);
    if (!std::ranges::is_sorted(found, by_row)) std::ranges::sort(found, by_row);
    append_feature(std::span<const NewWeight<Code>>(found), layout, cut);
  }
  cut.weights.resize(cut.weights.size() + kGroup);
  return cut;
}

}  // namespace dismec::score
