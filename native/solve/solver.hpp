// One-vs-rest labels → pruned weights: min ½‖w‖² + C·Σ_i cost_i·max(0, 1 − s_i·w·x_i)² for each
// label, where a positive row costs a and a negative one b; or with ‖w‖₁ in place of ½‖w‖².
//
// A label is solved on a working set: minimise there (subspace.hpp, coordinates.hpp), look at all
// rows once (full_pass.hpp, kSlots labels at a time), take in the rows that are on the wrong side
// of the margin, repeat. docs/solver.md and docs/l1.md say why the result is the optimum over all
// rows.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "csr.hpp"
#include "solve/coordinates.hpp"
#include "solve/full_pass.hpp"
#include "solve/rows.hpp"
#include "solve/subspace.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

enum class Penalty { kL2, kL1 };  // ½‖w‖² or ‖w‖₁

struct SolverOptions {
  float C = 1.0F;
  double tolerance = 0.01;  // LIBLINEAR's ε
  float delta = 0.01F;      // weights below are dropped
  Penalty penalty = Penalty::kL2;
};

/// What the losses of positive and negative rows are multiplied by, one number a label.
struct Costs {
  std::span<const double> positive, negative;
  Cost of(std::int64_t label) const { return {positive[label], negative[label]}; }
};

/// Weights before pruning, by sign and size: half an octave a bin from 2⁻²⁰ outwards on both sides
/// of the middle, which is for what is smaller; the outermost are open. Zeros are not counted.
struct WeightCounts {
  static constexpr int kSide = 48;
  static constexpr int kBins = 2 * kSide + 1;
  std::array<std::int32_t, kBins> of = {};

  void add(float weight) {
    const auto bits = std::bit_cast<std::uint32_t>(std::abs(weight));
    const bool upper = (bits & 0x7FFFFFU) >= 0x3504F3U;  // the mantissa of √2
    const int half_octaves = 2 * (static_cast<int>(bits >> 23U) - (127 - 20)) + upper;
    const int place = std::clamp(half_octaves + 1, 0, kSide);
    ++of[kSide + (weight < 0 ? -place : place)];
  }
};

struct SolvedLabel {
  std::int64_t label = -1;
  std::int32_t place = 0;                   // of its C on the path
  std::vector<std::int32_t> features = {};  // ascending; n_features is the bias
  std::vector<float> weights = {};
  double objective = 0;  // before pruning
  // Upper bound of ‖∇f(w)‖ (L1: of the gap) over what the goal allows: at most 1 is solved.
  double gradient = 0;
  std::int32_t passes = 0;
  std::int32_t steps = 0;
  std::int64_t set_size = 0;
  double seconds = 0;
  WeightCounts counts = {};
};

namespace solver_limits {
inline constexpr int kPasses = 1000;
inline constexpr int kSweeps = 50000;  // under L1
// At least this many violators come in after a pass, or as many as the set has rows.
inline constexpr std::int64_t kGrowth = 256;
// Under L1 up to so many more are brought together in a group.
inline constexpr std::int64_t kGroup = std::int64_t{1} << 15;
// Under L1 a label is solved when the gap is this share of ε, as a share of the objective.
inline constexpr double kL1Gap = 0.01;
// Labels are begun while the working sets of a thread are expected to take less than this.
inline constexpr std::int64_t kBytes = std::int64_t{40} << 20;
}  // namespace solver_limits

/// LIBLINEAR's rule, ‖∇f(w)‖ ≤ ε · max(min(pos, neg), 1)/N · ‖∇f(0)‖, where
/// ∇f(0) = 2C·(b·Σ_all x − (a + b)·Σ_pos x), and a gap of at most a tenth of ε. `set` holds the
/// positives.
inline Goal goal_of(const WorkingSet& set, const Transformed& X, const Summary& summary,
                    const SolverOptions& options, float C, std::vector<float>& scratch) {
  const auto factor = set.factor(X);
  const auto pos = static_cast<double>(set.size());
  const auto neg = static_cast<double>(set.n_outside);
  scratch.assign(set.w.size(), 0.0F);
  for (std::int64_t i = 0; i < set.size(); ++i) add_scaled(1, set.row(X, i), scratch.data());
  const double b = set.cost.negative;
  const double both = set.cost.positive + b;
  double squared = b * b * summary.sums_squared;
  const auto count = [&](double all, double positive) {
    squared += both * positive * (both * positive - 2 * b * all);
  };
  for (std::size_t f = 0; f + 1 < set.w.size(); ++f) {
    count(summary.sums[set.feature(f)], scratch[f] * (factor.empty() ? 1.0 : factor[f]));
  }
  count(summary.sums.back(), pos * X.bias);
  const double at_zero = 2 * C * std::sqrt(std::max(squared, 0.0));
  const double rarer = std::max(std::min(pos, neg), 1.0);
  return {options.tolerance * rarer / (pos + neg) * at_zero, 0.1 * options.tolerance};
}

/// One label on its way through rounds of sub-problem and pass.
struct Task {
  std::int64_t label = -1;  // −1: the slot is idle
  float C = 0;
  WorkingSet set;
  Minimum minimum;
  Goal goal;
  std::int64_t bytes = 0;  // counted for the set
  std::int64_t group = 0;  // L1: so many violators are asked for at least
  SolvedLabel out;
  // On a path of several C the weights at the first, for the features that the set then had.
  std::vector<float> first = {};
  bool first_compact = true;
};

/// Solves labels one slot each; an idle slot takes the next label. What a label's weights become
/// depends on nothing but X, its positives, its costs and the options.
class Solver {
 public:
  /// Row l of `positives` are the rows of X that have label l.
  Solver(const Transformed& X, const Summary& summary, const Csr& positives, const Costs& costs,
         const SolverOptions& options)
      : X_(X),
        summary_(summary),
        positives_(positives),
        costs_(costs),
        options_(options),
        pass_(X, summary),
        local_of_(X.n_features(), -1) {}

  /// Solves every label at these C one after the other instead of at the one C of the options, each
  /// from the solution at the first or at the last before it, whichever C is nearer. They are above
  /// 0; to be called before the first label. It is enough here that the gap is certain, or that it
  /// is nearly so and LIBLINEAR's rule holds.
  void follow(std::span<const float> path) { path_.assign(path.begin(), path.end()); }

  /// Takes labels in and returns what is done, in the order in which it was. Labels that are still
  /// on their way when no more wait stay for the next call, unless `drain` is set: so that slots do
  /// not run empty between calls. `stop()` is asked often; once it is true results are incomplete.
  template <typename Stop>
  std::vector<SolvedLabel> solve(std::span<const std::int64_t> labels, bool drain,
                                 const Stop& stop) {
    std::vector<SolvedLabel> solved;
    std::int64_t next = 0;
    for (;;) {
      for (int slot = 0; slot < kSlots && next < std::ssize(labels); ++slot) {
        if (tasks_[slot].label >= 0) continue;
        const auto rows = positives_.columns(labels[next]);
        if (running_ > 0 && bytes_ + expected_bytes(rows) > solver_limits::kBytes) break;
        if (rows.empty()) {
          solved.push_back(SolvedLabel{.label = labels[next]});
          --slot;  // it is still free
        } else {
          start(slot, labels[next], rows);
        }
        ++next;
      }
      if (running_ == 0 || stop() || (next == std::ssize(labels) && !drain)) return solved;
      for (int slot = 0; slot < kSlots; ++slot) {
        if (tasks_[slot].label < 0) continue;
        tasks_[slot].out.seconds += timed([&] { solve_set(slot, stop); });
      }
      const double share = timed([&] { pass_.run(stop); }) / running_;
      for (Task& task : tasks_) task.out.seconds += share;
      for (int slot = 0; slot < kSlots; ++slot) {
        Task& task = tasks_[slot];
        if (task.label < 0 || !close_or_grow(slot)) continue;
        solved.push_back(std::move(task.out));
        if (!advance(slot, solved.back().place + 1)) close(slot);
      }
    }
  }

 private:
  void start(int slot, std::int64_t label, std::span<const std::int32_t> positives) {
    Task& task = tasks_[slot];
    task.label = label;
    task.C = path_.empty() ? options_.C : path_.front();
    ++running_;
    count_bytes(task, expected_bytes(positives));
    task.out = SolvedLabel{.label = label};
    begin(task.set, X_, positives, costs_.of(label), local_of_, pool_);
    task.goal = l1() ? Goal{.gap = solver_limits::kL1Gap * options_.tolerance}
                     : goal_of(task.set, X_, summary_, options_, task.C, scratch_.gathered);
    task.goal.trial = !path_.empty();
    task.group = solver_limits::kGroup;
    pass_.join(slot, positives);
  }

  void count_bytes(Task& task, std::int64_t bytes) {
    bytes_ += bytes - task.bytes;
    task.bytes = bytes;
  }

  /// What a label's working set will take, judging by those before: the negatives that come in may
  /// be longer or fewer than others.
  std::int64_t expected_bytes(std::span<const std::int32_t> positives) const {
    const double bytes = usual_ * static_cast<double>(plain_bytes(std::ssize(positives)));
    return std::min(static_cast<std::int64_t>(bytes), kCompactBytes);
  }
  std::int64_t plain_bytes(std::int64_t n_positive) const {
    const std::int64_t nnz = std::ssize(X_.x.indices) / std::max<std::int64_t>(X_.size(), 1) + 1;
    return (6 * n_positive + 2 * solver_limits::kGrowth) * nnz * copy_bytes(true);
  }

  template <typename Stop>
  void solve_set(int slot, const Stop& stop) {
    Task& task = tasks_[slot];
    const auto minimise = [&](auto solver) { return solver.minimise(task.goal, stop); };
    task.minimum =
        l1() ? minimise(CoordinateSolver(task.set, X_, summary_, task.C, coordinate_scratch_))
             : minimise(SubspaceSolver(task.set, X_, summary_, task.C, scratch_));
    task.out.steps += task.minimum.steps;
    pass_.set_weights(slot, task.set, l1() ? std::max(room(task), task.group) : room(task));
  }

  bool l1() const { return options_.penalty == Penalty::kL1; }

  /// How many violators the working set may take in.
  static std::int64_t room(const Task& task) {
    return std::max(solver_limits::kGrowth, task.set.size());
  }

  /// Finishes the label if it is solved, else takes in violators.
  bool close_or_grow(int slot) {
    Task& task = tasks_[slot];
    ++task.out.passes;
    const bool done = l1() ? gap_is_closed(slot) : gradient_is_small(slot);
    const bool given_up = task.out.passes >= solver_limits::kPasses ||
                          (l1() && task.out.steps >= solver_limits::kSweeps);
    if (done || given_up) {
      collect(task);
      return true;
    }
    grow(slot);
    return false;
  }

  /// Takes in violators.
  void grow(int slot) {
    Task& task = tasks_[slot];
    std::vector<Violator>& violators = pass_.violators(slot);
    if (l1()) set_apart(task, violators, pass_.more(slot));
    keep_worst(violators, room(task));
    added_.clear();
    for (const Violator& v : violators) added_.push_back(v.row);
    std::sort(added_.begin(), added_.end());
    append(task.set, X_, added_, local_of_, pool_);
    if (l1()) set_group(task.set, X_, grouped_, local_of_);
    count_bytes(task, std::max(task.bytes, task.set.bytes));
    pass_.join(slot, added_);
  }

  /// Drops rows that are outside the margin after all, and makes those that the set has no room for
  /// the next group.
  void set_apart(Task& task, std::vector<Violator>& violators, bool more) {
    std::erase_if(violators, [](const Violator& v) { return v.score <= -1.0F; });
    // So many rows are close to the margin that some may be inside it and were not reported.
    if (violators.empty() && more) task.group *= 2;
    grouped_.clear();
    if (std::ssize(violators) <= room(task)) return;
    const auto rest = violators.begin() + room(task);
    std::nth_element(violators.begin(), rest, violators.end(), worse);
    for (auto v = rest; v != violators.end(); ++v) grouped_.push_back(v->row);
    std::sort(grouped_.begin(), grouped_.end());
  }

  /// Whether the gradient over all rows is small enough, or rounding leaves nothing to gain.
  bool gradient_is_small(int slot) {
    Task& task = tasks_[slot];
    std::vector<Violator>& violators = pass_.violators(slot);
    // With more violators than can be taken in the label is not done, and which are worst is known
    // well enough.
    const bool more = pass_.more(slot);
    if (!more) pass_.rescore(slot, task.set);
    double violation = 0;
    double loss = 0;
    for (const Violator& v : violators) {
      const double slack = std::max(0.0, 1.0 + v.score);
      violation += slack;
      loss += slack * slack;
    }
    violation *= task.set.cost.negative;
    loss *= task.set.cost.negative;
    // ∇f and ∇f_W differ by the rows outside, which count in the one and not in the other, and by
    // their stand-in, which counts in the other only.
    const double stand_in =
        task.minimum.mean_slack * static_cast<double>(task.set.n_outside) * task.set.cost.negative;
    const double bound =
        task.minimum.gradient_norm + 2.0 * task.C * summary_.longest * (violation + stand_in);
    const double stand_in_loss = task.minimum.mean_slack * stand_in;
    task.out.objective = task.minimum.objective + task.C * (loss - stand_in_loss);
    const double allowed = task.goal.gradient_allowed(task.out.objective);
    task.out.gradient = bound == 0 ? 0.0 : bound / allowed;
    // A step is impossible where rounding leaves nothing to gain.
    const bool stuck = violators.empty() && task.minimum.steps == 0;
    return (task.out.gradient <= 1 && task.minimum.reached && !more) || stuck;
  }

  /// Whether the gap over all rows is small enough, or rounding leaves nothing to gain.
  bool gap_is_closed(int slot) {
    Task& task = tasks_[slot];
    const Minimum& minimum = task.minimum;
    std::vector<Violator>& violators = pass_.violators(slot);
    const auto judge = [&] {
      double loss = 0;
      for (const Violator& v : violators) {
        const double slack = std::max(0.0, 1.0 + v.score);
        loss += slack * slack;
      }
      const double more_loss = task.C * loss - minimum.outside_loss;
      task.out.objective = minimum.objective + more_loss;
      task.out.gradient =
          std::max(0.0, minimum.gap + more_loss) / (task.goal.gap * task.out.objective);
    };
    judge();
    // Exact scores are dear where many rows are close to the margin: not before they may be good
    // enough.
    constexpr double kClose = 10;
    if (pass_.more(slot) || !(minimum.reached || minimum.stalled) ||
        (task.out.gradient > kClose && !minimum.stalled)) {
      return false;
    }
    pass_.rescore(slot, task.set);
    judge();
    return (task.out.gradient <= 1 && minimum.reached) || (violators.empty() && minimum.stalled);
  }

  /// Goes on with the label at the C of that place on the path, if there is one.
  bool advance(int slot, std::int32_t place) {
    if (place >= std::ssize(path_)) return false;
    Task& task = tasks_[slot];
    grow(slot);
    const auto distance = [&](float C) { return std::abs(std::log(path_[place] / C)); };
    if (place == 1) {
      task.first = task.set.w;
      task.first_compact = task.set.compact;
    } else if (distance(path_[0]) < distance(task.C) && task.first_compact == task.set.compact) {
      // New features come after those that a set has.
      std::vector<float>& w = task.set.w;
      std::fill(std::copy(task.first.begin(), task.first.end() - 1, w.begin()), w.end(), 0.0F);
      w.back() = task.first.back();
    }
    task.goal.liblinear *= path_[place] / task.C;
    task.C = path_[place];
    task.out = SolvedLabel{.label = task.label, .place = place};
    return true;
  }

  /// Takes the weights that are kept out of the set.
  void collect(Task& task) {
    WorkingSet& set = task.set;
    task.out.set_size = set.size();
    order_.clear();
    for (std::size_t f = 0; f < set.w.size(); ++f) {
      if (set.w[f] == 0) continue;
      task.out.counts.add(set.w[f]);
      if (std::abs(set.w[f]) >= options_.delta) {
        const bool bias = f + 1 == set.w.size();
        const std::int64_t feature = bias ? X_.n_features() : set.compact ? set.features[f] : f;
        order_.push_back({static_cast<std::int32_t>(feature), set.w[f]});
      }
    }
    std::sort(order_.begin(), order_.end(),
              [](const Weight& a, const Weight& b) { return a.feature < b.feature; });
    for (const Weight& weight : order_) {
      task.out.features.push_back(weight.feature);
      task.out.weights.push_back(weight.value);
    }
  }

  /// Makes the slot idle.
  void close(int slot) {
    Task& task = tasks_[slot];
    WorkingSet& set = task.set;
    pass_.close(slot, set);
    const auto plain = static_cast<double>(plain_bytes(set.n_positive));
    if (set.compact) usual_ += 0.1 * (static_cast<double>(set.bytes) / plain - usual_);
    end(set, pool_);
    task.label = -1;
    task.first = {};
    --running_;
    count_bytes(task, 0);
  }

  template <typename Work>
  static double timed(const Work& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  struct Weight {
    std::int32_t feature;
    float value;
  };

  const Transformed& X_;
  const Summary& summary_;
  Csr positives_;
  Costs costs_;
  SolverOptions options_;
  std::vector<float> path_;
  FullPass pass_;
  ChunkPool pool_;
  std::array<Task, kSlots> tasks_;
  SubspaceScratch scratch_;
  CoordinateScratch coordinate_scratch_;
  int running_ = 0;         // tasks
  std::int64_t bytes_ = 0;  // of all of them
  double usual_ = 1.5;      // bytes of a set, in plain_bytes
  std::vector<std::int32_t> local_of_;
  std::vector<std::int32_t> added_;
  std::vector<std::int32_t> grouped_;
  std::vector<Weight> order_;
};

}  // namespace dismec::solve
