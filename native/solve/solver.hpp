// Labels, their positives and costs → pruned weights: for each label
//     min ½‖w‖² + C·Σ_i cost_i·max(0, 1 − s_i·w·x_i)²
// where the cost is a for positive rows and b for negative ones, times the row weight and the
// weight of the (row, label) pair; or with ‖w‖₁ in place of ½‖w‖².
//
// A label is solved in rounds on a working set. The steps of a round are numbered as in
// docs/explanation/solver.md. What depends on the penalty is in l2.hpp and l1.hpp.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "csr.hpp"
#include "solve/full_pass.hpp"
#include "solve/growth.hpp"
#include "solve/penalty.hpp"
#include "solve/rows.hpp"
#include "solve/solved_label.hpp"
#include "solve/work_sharing.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

struct SolverOptions {
  float C = 1.0F;
  double tolerance = 0.01;   // LIBLINEAR's ε
  bool soft_labels = false;  // pair weights of positives are relevances (`ListedRows`)
  Pruning pruning;
};

/// Cost factors of positive and negative rows, one pair per label.
struct Costs {
  std::span<const double> positive, negative;
  Cost of(std::int64_t label) const { return {positive[label], negative[label]}; }
};

namespace solver_limits {
inline constexpr int kPasses = 1000;
// New labels are started while the working sets of a thread are expected to take less than this,
// or than this many bytes per row and feature of X: with fewer labels per pass, each pays more.
inline constexpr std::int64_t kBytes = std::int64_t{40} << 20;
inline constexpr std::int64_t kBytesPerRowOrFeature = 40;
}  // namespace solver_limits

/// Solves labels, one per slot; an idle slot takes the next label. The weights of a label depend
/// only on X, its positives, its costs, its pair weights and the options.
template <Penalty P>
class Solver {
 public:
  /// Row l of `positives` holds the rows of X that have label l, and row l of `pairs` those with a
  /// pair weight for it; `pairs` may be empty. All solvers of a run share their work through one
  /// `sharing`.
  Solver(const Transformed& X, const Summary& summary, const FeatureTiers& tiers,
         const Csr& positives, const Csr& pairs, const Costs& costs, const SolverOptions& options,
         WorkSharing& sharing)
      : X_(X),
        positives_(positives),
        pairs_(pairs),
        costs_(costs),
        options_(options),
        penalty_(X, summary, options.tolerance, sharing),
        growth_(X, P::kHasGroups),
        pass_(X, summary, tiers, sharing),
        memory_(X.n_sparse()),
        most_bytes_(std::max(solver_limits::kBytes,
                             solver_limits::kBytesPerRowOrFeature * (X.size() + X.n_features()))) {}

  /// Starts labels and returns the finished ones, in the order in which they finished. Labels still
  /// in progress when none are waiting continue in the next call, so that slots do not run empty
  /// between calls, unless `drain` is set. `stop()` is polled; once it is true, results are
  /// incomplete.
  template <typename Stop>
  std::vector<SolvedLabel> solve(std::span<const std::int64_t> labels, bool drain,
                                 const Stop& stop) {
    std::vector<SolvedLabel> solved;
    for (;;) {
      labels = labels.subspan(fill_slots(labels, solved));
      if (running_ == 0 || stop() || (labels.empty() && !drain)) return solved;

      // Round, 1: each label is minimized on its working set.
      each_running([&](int slot, Task& task) {
        task.out.seconds += timed([&] { minimize(slot, task, stop); });
      });

      // Round, 2: all rows are scored, for all labels at once.
      const double share = timed([&] { pass_.run(stop); }) / running_;

      each_running([&](int slot, Task& task) {
        task.out.seconds += share;
        // Round, 3: a label whose bound over all rows is small enough is done.
        if (judge(slot, task)) {
          task.out.set_size = task.set.size();
          collect(task.set.vectors, X_.n_features(), options_.pruning, sorted_, task.out);
          solved.push_back(std::move(task.out));
          close(slot, task);
          return;
        }
        // Round, 4: the others take in the worst of the rows inside their margin.
        grow(slot, task);
      });
    }
  }

 private:
  /// One label in progress.
  struct Task {
    std::int64_t label = -1;  // −1: the slot is idle
    WorkingSet set;
    typename P::State state;
    Growth::State growth;
    std::int64_t bytes = 0;     // counted for the set so far
    std::int64_t expected = 0;  // when solved
    SolvedLabel out;
  };

  template <typename Work>
  void each_running(const Work& work) {
    for (int slot = 0; slot < kSlots; ++slot) {
      if (tasks_[slot].label >= 0) work(slot, tasks_[slot]);
    }
  }

  /// Gives labels to idle slots while there is memory for them; returns how many it started.
  std::int64_t fill_slots(std::span<const std::int64_t> labels, std::vector<SolvedLabel>& solved) {
    std::int64_t next = 0;
    for (int slot = 0; slot < kSlots && next < std::ssize(labels); ++slot) {
      if (tasks_[slot].label >= 0) continue;
      const auto positives = positives_.columns(labels[next]);
      if (running_ > 0 && bytes_ + expected_bytes(labels[next]) > most_bytes_) break;
      if (positives.empty()) {
        solved.push_back(SolvedLabel{.label = labels[next]});
        --slot;  // it is still free
      } else {
        start(slot, tasks_[slot], labels[next], positives);
      }
      ++next;
    }
    return next;
  }

  void start(int slot, Task& task, std::int64_t label, std::span<const std::int32_t> positives) {
    task.label = label;
    ++running_;
    task.expected = expected_bytes(label);
    count_bytes(task, task.expected);
    task.out = SolvedLabel{.label = label};
    task.set.begin(X_, positives, listed(label), costs_.of(label), memory_);
    task.state = penalty_.begin(task.set);
    task.growth = growth_.begin(task.set, memory_);
    pass_.join(slot, task.set.rows.all());
    if (pass_.finds_near() && growth_.begins_near(task.set)) {
      task.out.seconds += timed([&] { begin_near(slot, task); });
    }
  }

  /// Rows near the positives are mostly the ones that a first pass would find.
  void begin_near(int slot, Task& task) {
    const std::int64_t wanted = minimize(slot, task, [] { return false; });
    pass_.find_near(slot, wanted);
    grow(slot, task);
  }

  /// Minimizes f_W and sets the weights of the next pass; returns how many violators it should
  /// list.
  template <typename Stop>
  std::int64_t minimize(int slot, Task& task, const Stop& stop) {
    const Minimized minimized = penalty_.minimize(task.state, task.set, options_.C, stop);
    task.out.steps += minimized.steps;
    const std::int64_t wanted = growth_.sift(task.growth, task.set, minimized);
    pass_.set_weights(slot, task.set.vectors, wanted);
    return wanted;
  }

  /// Whether the label is solved or given up.
  bool judge(int slot, Task& task) {
    const Verdict verdict = penalty_.judge(task.state, task.set, options_.C, pass_, slot);
    task.out.objective = verdict.objective;
    task.out.stop_ratio = verdict.stop_ratio;
    ++task.out.passes;
    return verdict.done || task.out.passes >= solver_limits::kPasses ||
           task.out.steps >= P::kMostSteps;
  }

  void grow(int slot, Task& task) {
    growth_.grow(task.growth, task.set, pass_, slot, memory_);
    count_bytes(task, std::max(task.expected, all_bytes(slot, task)));
  }

  /// Makes the slot idle.
  void close(int slot, Task& task) {
    const auto plain = static_cast<double>(plain_bytes(task.label));
    if (task.set.vectors.compact) {
      usual_ += 0.1 * (static_cast<double>(all_bytes(slot, task)) / plain - usual_);
    }
    pass_.close(slot, task.set.rows.all());
    task.set.end(memory_);
    task.state = {};
    task.label = -1;
    --running_;
    count_bytes(task, 0);
  }

  void count_bytes(Task& task, std::int64_t bytes) {
    bytes_ += bytes - task.bytes;
    task.bytes = bytes;
  }

  std::int64_t all_bytes(int slot, const Task& task) const {
    return task.set.bytes() + pass_.bytes(slot);
  }

  /// Memory that a label's working set is expected to take, corrected by the sets of earlier
  /// labels: the negatives that are added may be fewer or longer than assumed.
  std::int64_t expected_bytes(std::int64_t label) const {
    const double bytes = usual_ * static_cast<double>(plain_bytes(label));
    return std::min(static_cast<std::int64_t>(bytes), 2 * WorkingSet::kCompactBytes);
  }
  /// The uncorrected estimate: about six rows per positive if there are many, far more if few.
  std::int64_t plain_bytes(std::int64_t label) const {
    const std::int64_t nnz = std::ssize(X_.x.indices) / std::max<std::int64_t>(X_.size(), 1) + 1;
    const auto n = static_cast<double>(positives_.nnz(label));
    const auto rows = static_cast<std::int64_t>(6 * n + 200 * std::sqrt(n));
    return (rows + growth_limits::kAdded + std::ssize(listed(label).rows)) * nnz * copy_bytes(true);
  }

  /// The rows with a pair weight for a label.
  ListedRows listed(std::int64_t label) const {
    if (pairs_.indices.empty()) return {};
    return {pairs_.columns(label), pairs_.values.subspan(pairs_.indptr[label], pairs_.nnz(label)),
            options_.soft_labels};
  }

  template <typename Work>
  static double timed(const Work& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  const Transformed& X_;
  Csr positives_;
  Csr pairs_;
  Costs costs_;
  SolverOptions options_;
  P penalty_;
  Growth growth_;
  FullPass pass_;
  SetMemory memory_;
  std::array<Task, kSlots> tasks_;
  int running_ = 0;  // number of tasks in progress
  std::int64_t most_bytes_;
  std::int64_t bytes_ = 0;  // of all their sets
  double usual_ = 1.5;      // size of a set relative to plain_bytes
  SortedWeights sorted_;
};

}  // namespace dismec::solve
