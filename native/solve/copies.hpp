// Rows of X → contiguous copies whose features are renumbered in order of first use.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "huge_array.hpp"
#include "solve/rows.hpp"

namespace dismec::solve {

/// Memory for the copies of one thread's sets, in chunks that are reused from set to set: nothing
/// is zeroed, moved or returned in between.
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

/// Memory shared by the sets of one thread.
struct SetMemory {
  ChunkPool pool;
  HugeArray<std::int32_t> local_of;  // global feature → local one; all −1 between uses

  explicit SetMemory(std::int64_t n_features) : local_of(n_features) {
    std::fill_n(local_of.data(), n_features, -1);
  }
};

/// Calls change(f, x[features[f]]) for each feature, prefetching: the table may be larger than the
/// cache.
template <typename T, typename Change>
void each_entry(std::span<const std::int32_t> features, T* x, const Change& change) {
  constexpr std::size_t kAhead = 32;
  for (std::size_t f = 0; f < features.size(); ++f) {
    if (f + kAhead < features.size()) __builtin_prefetch(x + features[f + kAhead], 1);
    change(static_cast<std::int32_t>(f), x[features[f]]);
  }
}

/// Bytes per copied non-zero: its value and its index, which takes sixteen bits if those suffice.
inline std::int64_t copy_bytes(bool narrow) {
  return sizeof(float) + (narrow ? sizeof(std::uint16_t) : sizeof(std::int32_t));
}

/// Rows copied one after the other, with features renumbered in order of first use.
struct Copies {
  std::vector<Row> rows;   // views into chunks
  std::int64_t bytes = 0;  // of all rows

  /// Copies `n` rows with `nnz` non-zeros in total and at most kLongest each. Old feature numbers
  /// are below `n_features`; `features` maps new numbers to them. Values are multiplied by
  /// `factor`, one number per feature, unless it is empty.
  template <typename RowAt>
  void append(std::int64_t n, std::int64_t nnz, std::int64_t n_features,
              std::span<const float> factor, std::vector<std::int32_t>& features, SetMemory& memory,
              const RowAt& row_at) {
    auto n_local = static_cast<std::int32_t>(features.size());
    const std::int64_t most = std::min(n_local + nnz, n_features);
    const bool narrow = most <= kNarrow;
    const std::int64_t chunk = ChunkPool::kChunk / copy_bytes(narrow);  // non-zeros
    bytes += nnz * copy_bytes(narrow);
    features.resize(most + 1);
    std::int32_t* local = memory.local_of.data();
    each_entry(std::span(features).first(n_local), local,
               [](std::int32_t f, std::int32_t& to) { to = f; });
    for (std::int64_t i = 0; i < n; ++i) {
      const Row x = row_at(i);
      if (chunks_.empty() || x.size > left_ || narrow != narrow_) {
        chunks_.push_back(memory.pool.take());
        left_ = chunk;
        narrow_ = narrow;
      }
      // All values first, then all indices: both are then read as streams.
      auto* values = reinterpret_cast<float*>(chunks_.back());
      void* indices = values + chunk;
      const std::int64_t used = chunk - left_;
      left_ -= x.size;
      Row copy{values + used, nullptr, nullptr, x.size, 1.0F};
      const auto copy_to = [&](auto* index) {
        copy_row(x, factor, values + used, index, local, features.data(), n_local);
      };
      if (narrow) {
        auto* index = static_cast<std::uint16_t*>(indices) + used;
        copy_to(index);
        copy.narrow = index;
      } else {
        auto* index = static_cast<std::int32_t*>(indices) + used;
        copy_to(index);
        copy.index = index;
      }
      rows.push_back(copy);
    }
    features.resize(n_local);
    each_entry(features, local, [](std::int32_t, std::int32_t& to) { to = -1; });
  }

  /// Longer rows cannot be copied.
  static constexpr std::int64_t kLongest =
      ChunkPool::kChunk / (sizeof(float) + sizeof(std::int32_t));

  void clear(SetMemory& memory) {
    memory.pool.give_back(chunks_);
    rows.clear();
    left_ = 0;
    bytes = 0;
  }

 private:
  static constexpr std::int64_t kNarrow =
      std::int64_t{std::numeric_limits<std::uint16_t>::max()} + 1;

  /// Copies a row to `value` and `index`; `local` maps old feature numbers to new ones, and
  /// `features` new to old.
  template <typename To>
  static void copy_row(const Row& x, std::span<const float> factor, float* value, To* index,
                       std::int32_t* local, std::int32_t* features, std::int32_t& n_local) {
    // Whether a feature is new is unpredictable, so nothing branches on it.
    for (std::int64_t k = 0; k < x.size; ++k) {
      const auto j = x.index[k];
      const std::int32_t known = local[j];
      const std::int32_t number = known < 0 ? n_local : known;
      local[j] = number;
      features[n_local] = j;
      n_local += known < 0;
      index[k] = static_cast<To>(number);
      value[k] = x.value[k] * x.scale;
    }
    if (!factor.empty()) {
      for (std::int64_t k = 0; k < x.size; ++k) value[k] *= factor[x.index[k]];
    }
  }

  std::vector<std::byte*> chunks_;
  std::int64_t left_ = 0;  // non-zeros that still fit in the last chunk
  bool narrow_ = true;     // indices in that chunk take sixteen bits
};

}  // namespace dismec::solve
