// The violators of a pass → which of them join a label's working set, and which rows leave it.
// docs/explanation/solver.md says why.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "solve/full_pass.hpp"
#include "solve/rows.hpp"
#include "solve/violators.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

namespace growth_limits {
// Near the margin of a label with more rows than this inside it, there are many rows that only
// rounding puts inside: violators get exact scores before they are added.
inline constexpr std::int64_t kMany = 4096;
// Rows this far outside the margin are dropped if no more than this share of the set is nearer,
// but only in this many rounds, so that every label terminates.
inline constexpr float kFar = 0.1F;
inline constexpr double kNear = 0.7;
inline constexpr int kDroppingRounds = 50;
// If more than kLarge rows may be added per round, a pass is so expensive that labels start near
// their positives; from kMedium on, that pays off for labels of at most kFew rows.
inline constexpr std::int64_t kLarge = 512;
inline constexpr std::int64_t kMedium = 256;
inline constexpr std::int64_t kFew = 32;
// Of a set that has a group: the least number of rows added per round, and of violators listed.
inline constexpr std::int64_t kAdded = 256;
inline constexpr std::int64_t kListed = std::int64_t{1} << 15;
}  // namespace growth_limits

/// The least number of rows that may be added per round. It grows with X, because a pass then costs
/// more and a set does not.
inline std::int64_t rows_per_round(const Transformed& X) {
  const std::int64_t n_nonzeros = std::ssize(X.x.indices) + std::ssize(X.dense.values);
  const std::int64_t some = std::clamp<std::int64_t>(n_nonzeros >> 14, 160, 256);
  return std::clamp<std::int64_t>(n_nonzeros >> 15, some, 1024);
}
inline bool passes_are_expensive(const Transformed& X) {
  return rows_per_round(X) > growth_limits::kLarge;
}

/// What a minimization says about the rows of a set.
struct Minimized {
  std::int32_t steps = 0;
  std::int64_t n_active = 0;  // rows that are, or may be, inside the margin
  // Slack of each row, times the root of its cost and weight; empty if no row may leave the set.
  std::span<const float> slack = {};
};

/// The rows of the worst violators; the others are dropped. Rows of equal length are put next to
/// each other: loops over their features then have the same trip count, which a CPU can predict.
inline std::vector<std::int32_t> worst_rows(std::vector<Violator>& violators, std::int64_t most,
                                            const Transformed& X) {
  keep_worst(violators, most);
  std::vector<std::uint64_t> keys;
  keys.reserve(violators.size());
  for (const Violator& v : violators) {
    keys.push_back(static_cast<std::uint64_t>(X.x.nnz(v.row)) << 32 |
                   static_cast<std::uint32_t>(v.row));
  }
  std::sort(keys.begin(), keys.end());
  std::vector<std::int32_t> rows(keys.size());
  std::transform(keys.begin(), keys.end(), rows.begin(),
                 [](std::uint64_t key) { return static_cast<std::int32_t>(key); });
  return rows;
}

/// Makes these rows the group of a set, replacing the previous ones.
inline void assign_group(WorkingSet& set, std::span<const std::int32_t> rows, const Transformed& X,
                         SetMemory& memory) {
  Group& group = set.group;
  const std::vector<std::int32_t>& features = set.vectors.features;
  group.size = std::ssize(rows);
  group.sums.assign(set.vectors.size(), 0.0F);
  if (rows.empty()) return;
  float* sums = group.sums.data() + set.vectors.n_dense;  // of sparse features
  if (!set.vectors.compact) {
    for (const auto r : rows) add_scaled(1, row_of(X, r), sums);
    for (std::size_t j = 0; j < X.idf.size(); ++j) sums[j] *= X.idf[j];
  } else {
    // Features that the set does not have go to the entry of the bias.
    std::int32_t* local_of = memory.local_of.data();
    const auto last = static_cast<std::int32_t>(features.size());
    for (std::int32_t f = 0; f < last; ++f) local_of[features[f]] = f;
    for (const auto r : rows) {
      const Row x = row_of(X, r);
      for (std::int64_t k = 0; k < x.size; ++k) {
        const std::int32_t f = local_of[x.index[k]];
        sums[f < 0 ? last : f] += x.scale * x.value[k];
      }
    }
    for (std::int32_t f = 0; f < last; ++f) {
      local_of[features[f]] = -1;
      if (!X.idf.empty()) sums[f] *= X.idf[features[f]];
    }
  }
  if (X.dense.width > 0) {
    add_many_dense_rows(
        X.dense, group.size, [&](std::int64_t i) { return rows[i]; },
        [](std::int64_t) { return 1.0F; }, group.sums.data());
  }
  group.sums.back() = X.bias * static_cast<float>(group.size);
}

/// How the sets of one penalty grow. If sets have groups, violators that do not fit in a set form
/// its group.
class Growth {
 public:
  /// What is remembered about one label between rounds.
  struct State {
    std::int64_t n_active = 0;
    std::vector<std::int32_t> kept;  // indices in the set of the rows that stay
    int rounds = 0;
    std::int64_t wider = 1;  // multiplies the number of violators listed
  };

  Growth(const Transformed& X, bool has_groups)
      : X_(X),
        has_groups_(has_groups),
        least_(has_groups ? growth_limits::kAdded : rows_per_round(X)) {}

  State begin(WorkingSet& set, SetMemory& memory) const {
    if (has_groups_) assign_group(set, {}, X_, memory);
    return {};
  }

  /// Whether a label starts with negatives near its positives, so that its first pass finds fewer.
  bool begins_near(const WorkingSet& set) const {
    using namespace growth_limits;
    return !has_groups_ &&
           (passes_are_expensive(X_) || (least_ >= kMedium && set.rows.n_positive() <= kFew));
  }

  /// Records which rows of the set are not far outside the margin; returns the least number of
  /// violators that the pass should list.
  std::int64_t sift(State& state, const WorkingSet& set, const Minimized& minimized) const {
    using namespace growth_limits;
    ++state.rounds;
    state.n_active = minimized.n_active;
    state.kept.clear();
    const float far = -kFar * set.rows.negative_root();
    for (std::int64_t i = 0; i < set.size(); ++i) {
      if (minimized.slack.empty() || i < set.rows.n_fixed() ||
          minimized.slack[i] > far * set.rows.weight_root(i)) {
        state.kept.push_back(static_cast<std::int32_t>(i));
      }
    }
    if (has_groups_) return std::max(room(state), state.wider * kListed);
    // Rows that only rounding puts inside the margin must not crowd out real violators.
    return state.wider * room(state) * (state.n_active > kMany ? 2 : 1);
  }

  /// Adds the worst violators, and drops the rows far outside the margin if there are many.
  void grow(State& state, WorkingSet& set, FullPass& pass, int slot, SetMemory& memory) {
    using namespace growth_limits;
    std::vector<Violator>& violators = pass.violators(slot);
    const std::int64_t most = room(state);
    if (has_groups_) std::erase_if(violators, [](const Violator& v) { return v.score <= -1.0F; });
    // So many rows are close to the margin that some inside it may not have been reported.
    const bool crowded = std::ssize(violators) < (has_groups_ ? 1 : most);
    if (crowded && pass.more(slot)) state.wider *= has_groups_ ? 2 : 4;
    left_over_.clear();
    if (has_groups_ && std::ssize(violators) > most) {
      bring_worst(violators, most);
      for (const Violator& v : std::span(violators).subspan(most)) left_over_.push_back(v.row);
      std::sort(left_over_.begin(), left_over_.end());
    }
    const auto added = worst_rows(violators, most, X_);
    if (static_cast<double>(state.kept.size()) < kNear * static_cast<double>(set.size()) &&
        state.rounds < kDroppingRounds) {
      pass.leave(slot, set.rows.all());
      set.replace_rows(X_, state.kept, added, memory);
      pass.join(slot, set.rows.all());
    } else {
      set.append(X_, added, memory);
      pass.join(slot, added);
    }
    if (has_groups_) assign_group(set, left_over_, X_, memory);
  }

 private:
  /// How many rows may be added in this round.
  std::int64_t room(const State& state) const { return std::max(least_, state.n_active); }

  const Transformed& X_;
  bool has_groups_;
  std::int64_t least_;                   // rows that may be added per round
  std::vector<std::int32_t> left_over_;  // scratch
};

}  // namespace dismec::solve
