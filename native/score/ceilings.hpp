// Eight-bit numbers that are not below the weights of a shard's classifiers, by feature.
//
// The ceiling of a weight is least + step·code. A feature for which many classifiers have a weight
// has a code for every classifier, in a column. Another one lists the classifiers with a positive
// weight, and the others have the ceiling 0. Ceilings include the scale of the classifier.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

namespace dismec::score {

/// Where the weights or codes of a feature and their places begin.
struct Start {
  std::uint32_t weight, place;
};

/// The least ceiling of a feature, and the step between ceilings.
struct Range {
  float least, step;
};

/// Views of the arrays. Like those of a shard, they may come from a damaged file.
struct Ceilings {
  std::span<const Start> starts;  // one per feature, and the ends
  std::span<const Range> ranges;  // one per feature
  std::span<const std::uint16_t> places;
  std::span<const std::uint8_t> codes;

  bool empty() const { return starts.empty(); }

  /// The codes of a feature. Without places, there is one for each classifier.
  struct List {
    std::span<const std::uint8_t> codes;
    const std::uint16_t* places;
    bool column;
    Range range;
  };
  List list(std::int64_t feature, std::int64_t n_rows) const {
    const Start begin = starts[feature], end = starts[feature + 1];
    const std::int64_t count = std::int64_t{end.weight} - begin.weight;
    const std::int64_t n_places = std::int64_t{end.place} - begin.place;
    const bool column = n_places == 0 && count > 0;
    if (count < 0 || end.weight > codes.size() || end.place > places.size() ||
        n_places != (column ? 0 : count) || (column && count != n_rows))
      throw std::invalid_argument("the ceilings of a feature are out of range");
    return {codes.subspan(begin.weight, count), places.data() + begin.place, column,
            ranges[feature]};
  }
};

/// Ceilings that own their memory.
struct OwnedCeilings {
  std::vector<Start> starts;
  std::vector<Range> ranges;
  std::vector<std::uint16_t> places;
  std::vector<std::uint8_t> codes;
};

inline constexpr int kSteps = 255;

/// The range for weights from `least` to `highest`, so that none is above the highest code.
inline Range range_of(double least, double highest) {
  constexpr float most = std::numeric_limits<float>::max();
  const auto from = static_cast<float>(least);
  const double step = (highest - double{from}) / kSteps;
  return {from, std::nextafter(static_cast<float>(step), most)};
}

/// The smallest code whose ceiling is not below the weight.
inline std::uint8_t ceiling_of(double weight, Range range) {
  const double steps = std::ceil((weight - double{range.least}) / double{range.step});
  if (!(steps > 0)) return 0;  // also if the range is not finite: such a range is never used
  return static_cast<std::uint8_t>(std::min(steps, double{kSteps}));
}

}  // namespace dismec::score
