// A label's positives, and the negatives that come in pass after pass → the rows that its
// sub-problem is solved on.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "solve/rows.hpp"

namespace dismec::solve {

/// Memory for the copies of one thread's sets, in chunks that go from set to set: nothing is
/// zeroed, moved or given back in between.
class ChunkPool {
 public:
  static constexpr std::int64_t kChunk = std::int64_t{1} << 16;

  std::byte* take() {
    if (free_.empty()) {
      constexpr std::int64_t kAtATime = 16;
      slabs_.push_back(std::make_unique_for_overwrite<std::byte[]>(kAtATime * kChunk));
      for (std::int64_t i = 0; i < kAtATime; ++i) free_.push_back(slabs_.back().get() + i * kChunk);
    }
    std::byte* chunk = free_.back();
    free_.pop_back();
    return chunk;
  }
  void give_back(std::vector<std::byte*>& chunks) {
    free_.insert(free_.end(), chunks.begin(), chunks.end());
    chunks.clear();
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> slabs_;
  std::vector<std::byte*> free_;
};

/// What one thread's sets share.
struct SetMemory {
  ChunkPool pool;
  std::vector<std::int32_t> local_of;  // global feature → local one; all −1 between uses

  explicit SetMemory(std::int64_t n_features) : local_of(n_features, -1) {}
};

/// What the losses of a label's positive and negative rows are multiplied by.
struct Cost {
  double positive = 1;
  double negative = 1;
};

/// A label's working set: its positives, then the negatives taken in so far. Vectors over features
/// hold the bias last.
///
/// Rows are copied, with features renumbered by first use, so that every vector is as short as the
/// set is and stays in cache. A set of more than kCompactBytes is read from X in place, with
/// vectors over all features.
struct WorkingSet {
  std::vector<std::int32_t> rows;
  std::int64_t n_positive = 0;
  std::int64_t n_outside = 0;  // the other rows, all of them negatives
  Cost cost;
  float positive_root = 1;  // √cost
  float negative_root = 1;
  std::vector<float> w;

  bool compact = true;
  std::vector<std::int32_t> features;  // compact: local → global
  std::vector<Row> copies;             // compact: they look into chunks
  std::vector<std::byte*> chunks;
  std::int64_t left = 0;   // non-zeros that still fit into the last chunk
  bool narrow = true;      // places are of sixteen bits there
  std::int64_t bytes = 0;  // of all copies

  std::int64_t size() const { return static_cast<std::int64_t>(rows.size()); }
  /// √cost of a row: times this, its slack counts with cost 1.
  float root(std::int64_t i) const { return i < n_positive ? positive_root : negative_root; }
  /// s_i·√cost.
  float signed_root(std::int64_t i) const {
    return i < n_positive ? positive_root : -negative_root;
  }
  Row row(const Transformed& X, std::int64_t i) const {
    return compact ? copies[i] : row_of(X, rows[i]);
  }
  /// The feature that entry f of a vector is about; not for the last entry, the bias.
  std::int64_t feature(std::size_t f) const {
    return compact ? features[f] : static_cast<std::int64_t>(f);
  }
  /// What a row's features are still to be multiplied by; empty for ones.
  std::span<const float> factor(const Transformed& X) const {
    return compact ? std::span<const float>{} : X.idf;
  }
};

/// Calls take(i, d·x_i) for each row of a set, and returns the sum of these scores. `scaled` is
/// memory.
template <typename Take>
double each_score(const WorkingSet& set, const Transformed& X, const std::vector<float>& d,
                  std::vector<float>& scaled, const Take& take) {
  const std::span<const float> factor = set.factor(X);
  const float* along = d.data();
  if (!factor.empty()) {
    scaled = d;
    for (std::size_t j = 0; j < factor.size(); ++j) scaled[j] *= factor[j];
    along = scaled.data();
  }
  const float shift = X.bias * d.back();
  double sum = 0;
  for (std::int64_t i = 0; i < set.size(); ++i) {
    const float score = dot(set.row(X, i), along) + shift;
    sum += score;
    take(i, score);
  }
  return sum;
}

inline constexpr std::int64_t kCompactBytes = std::int64_t{32} << 20;

/// What a copied non-zero takes: its value, and its place in sixteen bits if that many suffice.
inline std::int64_t copy_bytes(bool narrow) {
  return sizeof(float) + (narrow ? sizeof(std::uint16_t) : sizeof(std::int32_t));
}

/// Turns a compact set into one that reads X in place.
inline void spread(WorkingSet& set, const Transformed& X, SetMemory& memory) {
  std::vector<float> w(X.n_features() + 1, 0.0F);
  for (std::size_t f = 0; f < set.features.size(); ++f) w[set.features[f]] = set.w[f];
  w.back() = set.w.back();
  set.w = std::move(w);
  set.features = {};
  set.copies = {};
  memory.pool.give_back(set.chunks);
  set.bytes = 0;
  set.compact = false;
}

/// Copies a row to `value` and `index`; `local` maps global features to local ones.
template <typename Index>
void copy_row(const Transformed& X, const Row& x, float* value, Index* index, std::int32_t* local,
              std::int32_t* features, std::int32_t& n_local) {
  for (std::int64_t k = 0; k < x.size; ++k) {
    const auto j = x.index[k];
    auto place = local[j];
    if (place < 0) {
      features[n_local] = j;
      place = local[j] = n_local++;
    }
    index[k] = static_cast<Index>(place);
    value[k] = x.value[k] * x.scale;
  }
  if (!X.idf.empty()) {
    for (std::int64_t k = 0; k < x.size; ++k) value[k] *= X.idf[x.index[k]];
  }
}

/// Adds rows.
inline void append(WorkingSet& set, const Transformed& X, std::span<const std::int32_t> added,
                   SetMemory& memory) {
  set.rows.insert(set.rows.end(), added.begin(), added.end());
  set.n_outside = X.size() - set.size();
  if (!set.compact) return;
  std::int64_t nnz = 0;
  std::int64_t longest = 0;
  for (const auto r : added) {
    nnz += X.x.nnz(r);
    longest = std::max(longest, X.x.nnz(r));
  }
  auto n_local = static_cast<std::int32_t>(set.features.size());
  const std::int64_t most = std::min(n_local + nnz, X.n_features());
  const bool narrow = most <= std::int64_t{std::numeric_limits<std::uint16_t>::max()} + 1;
  const std::int64_t chunk = ChunkPool::kChunk / copy_bytes(narrow);  // non-zeros
  set.bytes += nnz * copy_bytes(narrow);
  if (set.bytes > kCompactBytes || longest > chunk) {
    spread(set, X, memory);
    return;
  }
  set.features.resize(most);
  std::int32_t* features = set.features.data();
  std::int32_t* local = memory.local_of.data();
  for (std::int32_t f = 0; f < n_local; ++f) local[features[f]] = f;
  for (const auto r : added) {
    const Row x = row_of(X, r);
    if (set.chunks.empty() || x.size > set.left || narrow != set.narrow) {
      set.chunks.push_back(memory.pool.take());
      set.left = chunk;
      set.narrow = narrow;
    }
    // All values first, then all places: whoever walks the rows reads both as streams.
    auto* values = reinterpret_cast<float*>(set.chunks.back());
    void* places = values + chunk;
    const std::int64_t used = chunk - set.left;
    set.left -= x.size;
    Row copy{values + used, nullptr, nullptr, x.size, 1.0F};
    if (narrow) {
      auto* index = static_cast<std::uint16_t*>(places) + used;
      copy_row(X, x, values + used, index, local, features, n_local);
      copy.narrow = index;
    } else {
      auto* index = static_cast<std::int32_t*>(places) + used;
      copy_row(X, x, values + used, index, local, features, n_local);
      copy.index = index;
    }
    set.copies.push_back(copy);
  }
  for (std::int32_t f = 0; f < n_local; ++f) local[features[f]] = -1;
  set.features.resize(n_local);
  const float bias = set.w.back();
  set.w.back() = 0;
  set.w.resize(n_local + 1, 0.0F);
  set.w.back() = bias;
}

/// Empties a set, and gives back the memory that only a large one needs.
inline void end(WorkingSet& set, SetMemory& memory) {
  constexpr std::size_t kUsual = 2048;
  memory.pool.give_back(set.chunks);
  if (set.rows.capacity() > kUsual || !set.compact) set = WorkingSet{};
}

/// The set of a label's positives, at the solution that holds where there is no positive at all.
inline void begin(WorkingSet& set, const Transformed& X, std::span<const std::int32_t> positives,
                  const Cost& cost, SetMemory& memory) {
  set.rows.clear();
  set.n_positive = std::ssize(positives);
  set.cost = cost;
  set.positive_root = static_cast<float>(std::sqrt(cost.positive));
  set.negative_root = static_cast<float>(std::sqrt(cost.negative));
  set.w.assign(1, X.bias != 0 ? -1 / X.bias : 0.0F);
  set.compact = true;
  set.features.clear();
  set.copies.clear();
  set.left = 0;
  set.bytes = 0;
  append(set, X, positives, memory);
}

}  // namespace dismec::solve
