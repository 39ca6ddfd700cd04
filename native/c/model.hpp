// A model directory → its ranking of rows, one at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "c/arrays.hpp"
#include "c/json.hpp"
#include "csr.hpp"
#include "data/transform.hpp"
#include "score/topk.hpp"

namespace dismec::c {

/// Calls `make`, and prefixes errors with the path.
template <typename Make>
auto named(const std::string& path, Make&& make) {
  try {
    return make();
  } catch (const std::invalid_argument& error) {
    const std::string_view reason = error.what();
    if (reason.starts_with(path)) throw;
    throw std::invalid_argument(path + ": " + std::string(reason));
  }
}

/// The weights of some labels, on the memory of their file.
class ShardFile {
 public:
  ShardFile(const std::string& path, std::int64_t n_features) : arrays_(path) {
    of_ = {arrays_.get<std::int32_t>("label_starts", "I32"),
           arrays_.get<std::int32_t>("labels", "I32")};
    const std::string& type = arrays_.type("weights");
    if (type == "F32") {
      shard_ = view<float>("F32");
    } else if (type == "F16") {
      shard_ = view<score::Half>("F16");
    } else {
      shard_ = view<score::Mini>("U8");
    }
    visit([&](const auto& shard) {
      if (shard.bias.size() != shard.scales.size() || shard.n_rows() > score::kShardRows)
        throw std::invalid_argument("scales and bias must have an entry for each classifier");
      if (shard.n_features() != n_features)
        throw std::invalid_argument("the shard is of another number of features");
      score::check_labels(of_, shard.n_rows());
    });
  }

  std::span<const std::int32_t> labels() const { return of_.labels; }

  void merge_topk(const Csr& row, const score::Ranking& best) const {
    visit([&](const auto& shard) {
      score::merge_topk(shard, of_, row, score::kLookup, score::Allowed{}, best);
    });
  }
  void dense_scores(const Csr& row, std::span<float> scores) const {
    visit([&](const auto& shard) {
      score::dense_scores(shard, of_, row, std::ssize(scores), scores);
    });
  }

 private:
  template <typename Use>
  void visit(Use&& use) const {
    std::visit(std::forward<Use>(use), shard_);
  }
  template <typename Code>
  score::Shard<Code> view(std::string_view type) const {
    score::Shard<Code> shard = {
        arrays_.get<float>("scales", "F32"), arrays_.get<float>("bias", "F32"),
        pairs<score::Start, std::uint32_t>("starts", "U32"),
        arrays_.get<std::uint16_t>("places", "U16"), arrays_.get<Code>("weights", type)};
    if (shard.starts.empty()) throw std::invalid_argument("starts must have the ends");
    if (arrays_.has("ceilings")) {
      shard.ceilings = {pairs<score::Start, std::uint32_t>("ceiling_starts", "U32"),
                        pairs<score::Range, float>("ceiling_ranges", "F32"),
                        arrays_.get<std::uint16_t>("ceiling_places", "U16"),
                        arrays_.get<std::uint8_t>("ceilings", "U8")};
      if (shard.ceilings.starts.size() != shard.starts.size() ||
          shard.ceilings.ranges.size() + 1 != shard.starts.size())
        throw std::invalid_argument("ceilings must have starts and a range for each feature");
    }
    return shard;
  }
  /// An array of two columns.
  template <typename Pair, typename T>
  std::span<const Pair> pairs(const std::string& name, std::string_view type) const {
    const auto shape = arrays_.shape(name);
    if (shape.size() != 2 || shape[1] != 2)
      throw std::invalid_argument(name + " must have two columns");
    const auto all = arrays_.get<T>(name, type);
    return {reinterpret_cast<const Pair*>(all.data()), all.size() / 2};
  }

  ArrayFile arrays_;
  score::Labels of_;
  std::variant<score::Shard<float>, score::Shard<score::Half>, score::Shard<score::Mini>> shard_;
};

class Model {
 public:
  /// Throws std::invalid_argument with one line that names the file.
  explicit Model(const std::string& directory)
      : manifest_(read_manifest(directory)), parts_(open_parts(directory, manifest_)) {
    named(directory + "/manifest.json", [&] {
      const Json& transform = manifest_.at("transform");
      n_labels_ = manifest_.at("n_labels").integer();
      const std::int64_t n_features = transform.at("n_features").integer();
      if (std::max(n_labels_, n_features) >= std::numeric_limits<std::int32_t>::max())
        throw std::invalid_argument("too many labels or features");
      transform_.n_features = static_cast<std::int32_t>(n_features);
      transform_.sqrt = transform.at("sqrt").is_true();
      transform_.normalize = transform.at("normalize").is_true();
      transform_.bias = static_cast<float>(transform.at("bias").real());
      if (!std::isfinite(transform_.bias)) throw std::invalid_argument("the bias is not finite");
    });
    read_parts(directory);
    untrained_.assign(n_labels_, true);
    for (const Json& receipt : manifest_.at("shards").list()) {
      const std::string path = path_in(directory, receipt);
      named(path, [&] { add_shard(path); });
    }
  }

  std::int64_t n_features() const { return transform_.n_features; }
  std::int64_t n_labels() const { return n_labels_; }
  /// The name of a valid label; its data is null if labels have no names.
  std::string_view name(std::int32_t label) const {
    if (name_ends_.empty()) return {};
    const std::int64_t begin = name_ends_[label];
    return names_.substr(begin, name_ends_[label + 1] - begin);
  }

  /// Ranks the labels for one row; returns how many places are filled.
  std::int64_t topk(const Csr& row, std::span<std::int32_t> labels, std::span<float> scores) const {
    const OwnedCsr own = transformed(row);
    std::ranges::fill(labels, -1);
    std::ranges::fill(scores, -std::numeric_limits<float>::infinity());
    const auto places = std::min<std::size_t>(labels.size(), n_labels_);
    if (places == 0) return 0;
    const score::Ranking best{places, labels.first(places), scores.first(places)};
    for (const ShardFile& shard : shards_) shard.merge_topk(view(own), best);
    return std::ranges::find(labels, -1) - labels.begin();
  }

  /// The scores of all labels; −1 for labels without training rows.
  void scores(const Csr& row, std::span<float> scores) const {
    const OwnedCsr own = transformed(row);
    for (const ShardFile& shard : shards_) shard.dense_scores(view(own), scores);
    for (std::int64_t label = 0; label < n_labels_; ++label)
      if (untrained_[label]) scores[label] = -1.0f;
  }

 private:
  static constexpr std::int64_t kVersion = 1;

  static Json read_manifest(const std::string& directory) {
    const std::string path = directory + "/manifest.json";
    return named(path, [&] {
      const MappedFile file(path);
      Json manifest = JsonParser::parse(file.bytes());
      if (manifest.at("format").kind != Json::Kind::text ||
          manifest.at("format").text() != "dismec-model")
        throw std::invalid_argument("not a model of dismec");
      const std::int64_t version = manifest.at("version").integer();
      if (version != kVersion)
        throw std::invalid_argument("model format " + std::to_string(version) +
                                    ", but this library reads format " + std::to_string(kVersion));
      if (manifest.at("refined").kind != Json::Kind::null)
        throw std::invalid_argument("refined models cannot be used from C");
      if (manifest.at("transform").at("dense").kind != Json::Kind::null)
        throw std::invalid_argument("models with dense features cannot be used from C");
      if (!manifest.at("complete").is_true() || manifest.at("shards").kind != Json::Kind::list)
        throw std::invalid_argument("training of this model has not finished");
      return manifest;
    });
  }

  /// The path of a file that an entry of the manifest names.
  static std::string path_in(const std::string& directory, const Json& entry) {
    return named(directory + "/manifest.json", [&] {
      const std::string& name = entry.at("file").text();
      if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos ||
          name.find('\0') != std::string::npos)
        throw std::invalid_argument("a file has an impossible name");
      return directory + "/" + name;
    });
  }
  static ArrayFile open_parts(const std::string& directory, const Json& manifest) {
    const std::string path = path_in(directory, manifest.at("parts").at("labels"));
    return named(path, [&] { return ArrayFile(path); });
  }

  void read_parts(const std::string& directory) {
    const std::string path = path_in(directory, manifest_.at("parts").at("labels"));
    named(path, [&] {
      if (manifest_.at("transform").at("tfidf").is_true()) {
        transform_.idf = parts_.get<float>("idf", "F32");
        if (std::ssize(transform_.idf) != n_features())
          throw std::invalid_argument("idf must have an entry for each feature");
      }
      if (!parts_.has("names.offsets")) return;
      name_ends_ = parts_.get<std::int64_t>("names.offsets", "I64");
      const auto bytes = parts_.get<char>("names.bytes", "U8");
      names_ = {bytes.data(), bytes.size()};
      if (std::ssize(name_ends_) != n_labels_ + 1 || name_ends_.front() != 0 ||
          name_ends_.back() != std::ssize(names_) || !std::ranges::is_sorted(name_ends_))
        throw std::invalid_argument("the names do not fit the labels");
    });
  }

  void add_shard(const std::string& path) {
    const ShardFile& shard = shards_.emplace_back(path, n_features());
    for (const std::int32_t label : shard.labels()) {
      if (label >= n_labels_) throw std::invalid_argument("a label is out of range");
      if (!untrained_[label]) throw std::invalid_argument("a label is in two shards");
      untrained_[label] = false;
    }
  }

  OwnedCsr transformed(const Csr& row) const {
    check_rows(row);
    for (std::size_t e = 0; e < row.indices.size(); ++e) {
      if (e > 0 && row.indices[e] <= row.indices[e - 1])
        throw std::invalid_argument("features must be in strictly ascending order");
      if (!std::isfinite(row.values[e]))
        throw std::invalid_argument("a value is not a finite number");
    }
    OwnedCsr own = data::apply(transform_, row, 0, 1);
    for (const float value : own.values)
      if (!std::isfinite(value))
        throw std::invalid_argument("a value times its idf is too large for float32");
    return own;
  }
  Csr view(const OwnedCsr& own) const {
    return {own.indptr, own.indices, own.values, n_features() + 1};
  }

  Json manifest_;
  ArrayFile parts_;
  std::int64_t n_labels_ = 0;
  data::Transform transform_ = {};
  std::span<const std::int64_t> name_ends_;
  std::string_view names_;
  std::vector<ShardFile> shards_;
  std::vector<bool> untrained_;
};

}  // namespace dismec::c
