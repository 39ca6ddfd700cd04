// The labels allowed for rows → the open classifiers of a shard, and a search restricted to them.
//
// Classifiers that are not open are scored with the rest; the permit of a label is checked only
// when its score is good enough for a place. Bounds skip closed classifiers, and tiles without open
// ones are skipped. If few classifiers are open, only these are looked up.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <vector>

#include "score/bounded.hpp"
#include "score/ranking.hpp"
#include "score/sums.hpp"
#include "score/tiles.hpp"

namespace dismec::score {

/// The labels allowed for the rows of a call, in terms of one shard: all labels, one set for all
/// rows, or one set per row.
struct Allowed {
  enum class Kind : std::uint8_t { all, set, rows };

  Kind kind = Kind::all;
  // One set: one bit per label of the model, and one per classifier that has an allowed label.
  std::span<const std::uint8_t> bits = {};
  Open open = {{}, 0};
  // One set per row: its labels, ascending, and the classifiers that have one of these.
  std::span<const std::int64_t> label_starts = {};
  std::span<const std::int32_t> labels_of_rows = {};
  std::span<const std::int64_t> starts = {};
  std::span<const std::uint16_t> classifiers = {};

  Labels labels(const Labels& of, std::int64_t row) const {
    if (kind == Kind::all) return of;
    if (kind == Kind::set) return {of.starts, of.labels, {Permit::Kind::bits, bits, {}}};
    const std::int64_t begin = label_starts[row], size = label_starts[row + 1] - begin;
    return {of.starts, of.labels, {Permit::Kind::list, {}, labels_of_rows.subspan(begin, size)}};
  }
  std::span<const std::uint16_t> classifiers_of(std::int64_t row) const {
    return classifiers.subspan(starts[row], starts[row + 1] - starts[row]);
  }
};

/// Throws if `among` does not match the rows, or a shard with this many classifiers whose highest
/// label is `highest_label` (−1 if it has none).
inline void check_allowed(const Allowed& among, std::int32_t highest_label, std::int64_t n_rows,
                          std::int64_t n_classifiers) {
  if (among.kind == Allowed::Kind::set) {
    const std::int64_t n_words = (n_classifiers + kGroup - 1) / kGroup;
    if (highest_label / 8 >= std::ssize(among.bits))
      throw std::invalid_argument("allowed labels must have a bit for each label");
    const auto words = among.open.words;
    if (std::ssize(words) != n_words ||
        (n_classifiers % kGroup != 0 && words.back() >> n_classifiers % kGroup != 0))
      throw std::invalid_argument("open classifiers must have a bit for each classifier");
  }
  if (among.kind != Allowed::Kind::rows) return;
  const auto leads = [n_rows](std::span<const std::int64_t> starts, std::int64_t end) {
    return std::ssize(starts) == n_rows + 1 && starts.front() == 0 && starts.back() == end &&
           std::ranges::is_sorted(starts);
  };
  if (!leads(among.label_starts, std::ssize(among.labels_of_rows)) ||
      !leads(among.starts, std::ssize(among.classifiers)))
    throw std::invalid_argument("allowed labels must be those of the rows");
  for (const std::uint16_t classifier : among.classifiers)
    if (classifier >= n_classifiers) throw std::invalid_argument("an open classifier is not there");
}

/// The open classifiers of one row after another, as words of bits.
class OpenWords {
 public:
  OpenWords(const Allowed& among, std::int64_t n_rows) : among_(among), n_rows_(n_rows) {
    if (among.kind == Allowed::Kind::rows) words_.resize((n_rows + kGroup - 1) / kGroup);
  }

  Open of(std::int64_t row) {
    if (among_.kind == Allowed::Kind::all) return {{}, n_rows_};
    if (among_.kind == Allowed::Kind::set) return among_.open;
    for (const std::uint16_t classifier : last_) words_[classifier / kGroup] = 0;
    last_ = among_.classifiers_of(row);
    std::int64_t count = 0;
    for (const std::uint16_t classifier :
         last_) {  // a classifier shared by several labels occurs repeatedly
      std::uint16_t& word = words_[classifier / kGroup];
      const unsigned bit = 1U << classifier % kGroup;
      count += (word & bit) == 0 ? 1 : 0;
      word = static_cast<std::uint16_t>(word | bit);
    }
    return {words_, count};
  }

 private:
  const Allowed& among_;
  std::int64_t n_rows_;
  std::vector<std::uint16_t> words_;
  std::span<const std::uint16_t> last_;
};

/// The labels allowed for the rows of a batch, in the form that tiles need.
class SomeLabels {
 public:
  SomeLabels(const Allowed& among, const Labels& of, std::int64_t begin, std::int64_t n_rows,
             std::int64_t n_classifiers)
      : n_tiles_((n_classifiers + kTile - 1) / kTile) {
    OpenWords words(among, n_classifiers);
    shared_ = among.kind == Allowed::Kind::set;
    for (std::int64_t row = 0; row < n_rows; ++row) {
      if (!shared_ || row == 0) {
        labels_.push_back(among.labels(of, begin + row));
        add_tiles(words.of(begin + row).words);
      }
    }
  }

  const Labels& labels(std::int64_t row) const { return labels_[shared_ ? 0 : row]; }
  std::uint32_t open(std::int64_t row, std::int64_t tile) const {
    return tiles_[(shared_ ? 0 : row * n_tiles_) + tile];
  }

 private:
  void add_tiles(std::span<const std::uint16_t> words) {
    static_assert(kTile == 2 * kGroup);
    for (std::size_t i = 0; i < words.size(); i += 2) {
      const std::uint32_t next = i + 1 < words.size() ? words[i + 1] : 0;
      tiles_.push_back(words[i] | next << kGroup);
    }
  }

  std::int64_t n_tiles_;
  bool shared_;
  std::vector<Labels> labels_;
  std::vector<std::uint32_t> tiles_;
};

/// Whether looking up all open classifiers is faster than finding the `k` best in another way.
/// `lookup` is as for `enter_by_bounds`; if it is 0, bounds are always tried.
template <typename Code>
inline bool few_open(const Shard<Code>& shard, std::span<const Term<Code>> terms, Open open,
                     std::int64_t lookup, std::size_t k) {
  const std::int64_t n_open = open.count, n_words = shard.n_words();
  if (n_open == 0) return true;
  if (lookup == 0) return false;
  std::int64_t looking = 0, adding = 0;
  const bool bounded = !shard.ceilings.empty();
  for (const auto& [list, value] : terms) {
    const std::int64_t count = std::ssize(list.weights);
    if (count == 0) continue;
    const bool walked = list.dense && !bounded;
    looking += walked ? n_words / 8 + 4 * n_open : n_open * lookup;
    adding += (list.dense ? n_words : count / 3) / (bounded ? 8 : 1);
  }
  // Bounds are computed for all groups, and about as many classifiers looked up as there are
  // places.
  if (bounded) adding += n_words + lookup * std::ssize(terms) * static_cast<std::int64_t>(k);
  return looking <= adding;
}

/// Calls visit(classifier) for the open classifiers, in ascending order.
template <typename Visit>
inline void each_open(Open open, Visit&& visit) {
  for (std::int64_t i = 0; i < std::ssize(open.words); ++i)
    for (unsigned word = open.words[i]; word != 0; word &= word - 1)
      visit(i * kGroup + __builtin_ctz(word));
}

/// The number of set bits.
inline std::int64_t count_bits(const std::uint16_t* words, std::int64_t n_words) {
  std::int64_t count = 0, i = 0;
  for (; i + 4 <= n_words; i += 4) {
    std::uint64_t four;
    std::memcpy(&four, words + i, sizeof(four));
    count += std::popcount(four);
  }
  for (; i < n_words; ++i) count += std::popcount(words[i]);
  return count;
}

/// sums += value · weight for the given classifiers, ascending, of a shard without ceilings.
template <typename Code>
inline void add_some(const Shard<Code>& shard, const Term<Code>& term,
                     std::span<const std::int64_t> rows, float* sums) {
  const auto& [weights, places, dense] = term.list;
  const std::int64_t count = std::ssize(weights);
  if (count == 0) return;
  const float share = static_cast<float>(count) / static_cast<float>(shard.n_rows());
  std::int64_t words = 0, before = 0;  // words passed so far, and the bits set in them
  for (const std::int64_t row : rows) {
    std::int64_t at = count;
    if (!dense) {
      at = find_listed(places, count, share, row);
    } else if (const unsigned bit = 1U << row % kGroup; (places[row / kGroup] & bit) != 0) {
      before += count_bits(places + words, row / kGroup - words);
      words = row / kGroup;
      at = before + std::popcount(places[words] & (bit - 1));
    }
    if (at < count) sums[row] += term.value * decode(weights[at]);
  }
}

/// Lets the labels of the open classifiers compete for the places of one row, looking up only these
/// classifiers. The sums are 0 before and after.
template <typename Code>
inline void enter_few(const Shard<Code>& shard, const Labels& of, std::span<const Term<Code>> terms,
                      float bias, Open open, float* sums, std::span<Place> heap,
                      Scratch<Code>& scratch) {
  if (shard.ceilings.empty()) {
    auto& rows = scratch.rows;
    rows.clear();
    each_open(open, [&](std::int64_t row) { rows.push_back(row); });
    for (const auto& term : terms) add_some(shard, term, std::span<const std::int64_t>(rows), sums);
    for (const std::int64_t row : rows) {
      compete(of, row, score_of(shard, bias, sums[row], row), heap);
      sums[row] = 0;
    }
    return;
  }
  std::array<std::int64_t, kAtOnce> candidates;
  std::array<float, kAtOnce> exact;
  std::size_t size = 0;
  const auto look = [&] {
    const std::span<const std::int64_t> some(candidates.data(), size);
    look_up(shard, terms, some, exact.data(), scratch.found);
    for (std::size_t j = 0; j < size; ++j)
      compete(of, some[j], score_of(shard, bias, exact[j], some[j]), heap);
    size = 0;
  };
  each_open(open, [&](std::int64_t row) {
    candidates[size++] = row;
    if (size == kAtOnce) look();
  });
  if (size > 0) look();
}

}  // namespace dismec::score
