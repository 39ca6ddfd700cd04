// Rows outside a working set → their sum, from which the L1 penalty makes its second stand-in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "solve/rows.hpp"
#include "solve/working_set.hpp"

namespace dismec::solve {

/// Some of the rows outside a set, with a stand-in of their own.
struct Group {
  std::int64_t size = 0;
  std::vector<float> sums;  // Σ x over these rows, for the entries of set.w
};

/// Makes these rows the group, replacing the previous ones.
inline void assign(Group& group, std::span<const std::int32_t> rows, const WorkingSet& set,
                   const Transformed& X, SetMemory& memory) {
  group.size = std::ssize(rows);
  group.sums.assign(set.w.size(), 0.0F);
  if (rows.empty()) return;
  float* sums = group.sums.data() + set.n_dense;  // of sparse features
  std::int32_t* local_of = memory.local_of.data();
  if (!set.compact) {
    for (const auto r : rows) add_scaled(1, row_of(X, r), sums);
    for (std::size_t j = 0; j < X.idf.size(); ++j) sums[j] *= X.idf[j];
  } else {
    // Features that the set does not have go to the entry of the bias.
    const auto last = static_cast<std::int32_t>(set.copies.features.size());
    for (std::int32_t f = 0; f < last; ++f) local_of[set.copies.features[f]] = f;
    for (const auto r : rows) {
      const Row x = row_of(X, r);
      for (std::int64_t k = 0; k < x.size; ++k) {
        const std::int32_t f = local_of[x.index[k]];
        sums[f < 0 ? last : f] += x.scale * x.value[k];
      }
    }
    for (std::int32_t f = 0; f < last; ++f) {
      local_of[set.copies.features[f]] = -1;
      if (!X.idf.empty()) sums[f] *= X.idf[set.copies.features[f]];
    }
  }
  if (X.dense.width > 0) {
    add_many_dense_rows(
        X.dense, group.size, [&](std::int64_t i) { return rows[i]; },
        [](std::int64_t) { return 1.0F; }, group.sums.data());
  }
  group.sums.back() = X.bias * static_cast<float>(group.size);
}

}  // namespace dismec::solve
