// The weights of many labels → for each, the negatives outside its working set that may violate the
// margin, by one pass over all rows.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "huge_array.hpp"
#include "solve/feature_tiers.hpp"
#include "solve/row_scores.hpp"
#include "solve/rows.hpp"
#include "solve/tier_scores.hpp"
#include "solve/violators.hpp"
#include "solve/work_sharing.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

/// One pass over X for all slots. Its scores are approximate: rows within the error of the margin
/// are reported too, and `rescore` computes exact scores.
class FullPass {
 public:
  FullPass(const Transformed& X, const Summary& summary, const FeatureTiers& tiers,
           WorkSharing& sharing)
      : X_(X),
        sharing_(sharing),
        scores_(scores_of(X, summary, tiers)),
        lists_(X.size()),
        exact_(X.n_features()) {}

  /// Marks rows as members of the working set of a slot's label: they are not reported.
  void join(int slot, std::span<const std::int32_t> rows) {
    std::visit(
        [&](const auto& scores) {
          for (const auto r : rows) lists_.join(slot, scores.position(r));
        },
        scores_);
  }
  /// Unmarks them.
  void leave(int slot, std::span<const std::int32_t> rows) {
    std::visit(
        [&](const auto& scores) {
          for (const auto r : rows) lists_.leave(slot, scores.position(r));
        },
        scores_);
  }

  /// Sets the weights that the next pass scores rows with. It reports at least the worst `most`
  /// violators, and all of them unless `more` is set.
  void set_weights(int slot, SetVectors& vectors, std::int64_t most) {
    const double error =
        std::visit([&](auto& scores) { return scores.set_weights(slot, vectors); }, scores_);
    biases_[slot] = X_.bias * vectors.w.back();
    lists_.begin(slot, -1.0F - static_cast<float>(error), most);
  }

  /// Makes a slot idle, whose set has these rows.
  void close(int slot, std::span<const std::int32_t> rows) {
    std::visit([&](auto& scores) { scores.close(slot); }, scores_);
    leave(slot, rows);
    lists_.close(slot);
  }

  /// Bytes used by a slot.
  std::int64_t bytes(int slot) const {
    return lists_.bytes(slot) +
           std::visit([&](const auto& scores) { return scores.bytes(slot); }, scores_);
  }

  std::vector<Violator>& violators(int slot) { return lists_.of(slot); }
  bool more(int slot) const { return lists_.more(slot); }

  /// Replaces the scores of a slot's violators by exact ones, and keeps those above −1.
  void rescore(int slot, const SetVectors& vectors) {
    constexpr std::int64_t kAhead = 8;
    constexpr std::int64_t kNext = 2;
    constexpr std::int64_t kRescored = 4096;  // rows per piece of work
    std::vector<Violator>& list = violators(slot);
    if (list.empty()) return;
    vectors.each_feature(exact_.data(), [&](std::int64_t f, float& weight) {
      const bool as_it_is = X_.idf.empty() || f < vectors.n_dense;
      weight = vectors.w[f] * (as_it_is ? 1.0F : X_.idf[vectors.feature(f)]);
    });
    const std::int64_t n = std::ssize(list);
    const Pieces pieces(n, (n + kRescored - 1) / kRescored);
    sharing_.each(pieces.n(), [&](std::int64_t piece) {
      for (std::int64_t v = pieces.begin(piece); v < pieces.end(piece); ++v) {
        if (v + kStartsAhead < n) prefetch_start(X_, list[v + kStartsAhead].row);
        if (v + kAhead < n) prefetch(row_of(X_, list[v + kAhead].row));
        if (v + kNext < n) {
          const Row next = row_of(X_, list[v + kNext].row);
          for (std::int64_t k = 0; k < next.size; ++k) {
            __builtin_prefetch(exact_.data() + next.index[k]);
          }
        }
        list[v].score = dot(row_of(X_, list[v].row), exact_.data()) + biases_[slot];
        if (X_.dense.width > 0) {
          list[v].score += dense_score(X_.dense, list[v].row, exact_.data() + X_.n_sparse());
        }
      }
    });
    std::erase_if(list, [](const Violator& v) { return v.score <= -1.0F; });
    vectors.each_feature(exact_.data(), [](std::int64_t, float& weight) { weight = 0; });
  }

  /// Reports, without a pass, the `most` rows that score highest by rare features.
  void find_near(int slot, std::int64_t most) {
    std::get<TierScores>(scores_).find_near(slot, most, lists_, violators(slot));
  }
  /// Whether `find_near` is possible.
  bool finds_near() const { return std::holds_alternative<TierScores>(scores_); }

  template <typename Stop>
  void run(const Stop& stop) {
    std::visit([&](auto& scores) { run(scores, stop); }, scores_);
    lists_.end();
  }

 private:
  using Scores = std::variant<RowScores, TierScores>;

  // With fewer rows the pass is over before other threads have joined in.
  static constexpr std::int64_t kShared = std::int64_t{1} << 16;

  /// Rows are scored in stretches by all available threads, and the lists of the stretches are then
  /// merged: which thread scored which does not matter.
  template <typename AnyScores, typename Stop>
  void run(AnyScores& scores, const Stop& stop) {
    const std::int64_t n_helpers = X_.size() < kShared ? 0 : sharing_.n_helpers();
    if (n_helpers == 0) {
      scores.run(0, X_.size(), scores.own_scratch(), biases_, lists_, stop);
      return;
    }
    struct OfThread {
      typename AnyScores::PassScratch scratch;
      ViolatorLists lists;
    };
    constexpr std::int64_t kTogether = AnyScores::kRowsTogether;
    const Pieces stretches((X_.size() + kTogether - 1) / kTogether, 2 * (n_helpers + 1));
    std::mutex mutex;
    std::vector<std::unique_ptr<OfThread>> free;
    sharing_.each(stretches.n(), [&](std::int64_t i) {
      std::unique_ptr<OfThread> own;
      {
        const std::lock_guard lock(mutex);
        if (!free.empty()) {
          own = std::move(free.back());
          free.pop_back();
        }
      }
      if (!own) own.reset(new OfThread{scores.scratch(), lists_.begin_more()});
      scores.run(stretches.begin(i) * kTogether, std::min(stretches.end(i) * kTogether, X_.size()),
                 own->scratch, biases_, own->lists, stop);
      const std::lock_guard lock(mutex);
      free.push_back(std::move(own));
    });
    for (const auto& of_thread : free) lists_.take_in(of_thread->lists);
    lists_.sort([&](std::int32_t row) { return scores.position(row); });
  }

  static Scores scores_of(const Transformed& X, const Summary& summary, const FeatureTiers& tiers) {
    if (tiers.empty()) return Scores(std::in_place_type<RowScores>, X, summary);
    return Scores(std::in_place_type<TierScores>, tiers, summary);
  }

  const Transformed& X_;
  WorkSharing& sharing_;
  Scores scores_;
  ViolatorLists lists_;
  PerSlot biases_ = {};
  HugeArray<float> exact_;  // one label's weights, zero between uses
};

}  // namespace dismec::solve
