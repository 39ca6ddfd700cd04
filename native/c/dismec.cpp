// The functions of dismec.h. No exception leaves them: each becomes a message that `dismec_error`
// returns.

#include "c/dismec.h"

#include <array>
#include <cstdint>
#include <exception>
#include <new>
#include <span>
#include <stdexcept>
#include <string>

#include "c/model.hpp"
#include "csr.hpp"

struct dismec_model {
  dismec::c::Model model;
};

namespace {

thread_local std::string last_error;

/// Returns the result of `work`, or `failed` if it throws.
template <typename Result, typename Work>
Result guarded(Result failed, Work&& work) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    last_error = "out of memory";
  } catch (const std::exception& error) {
    last_error = error.what();
  }
  return failed;
}

/// Calls use(row) for one row in the caller's arrays.
template <typename Use>
auto with_row(const dismec_model* model, const std::int32_t* features, const float* values,
              std::size_t n, Use&& use) {
  if (model == nullptr) throw std::invalid_argument("the model is NULL");
  if (n > 0 && (features == nullptr || values == nullptr))
    throw std::invalid_argument("features or values are NULL");
  const std::array<std::int64_t, 2> indptr = {0, static_cast<std::int64_t>(n)};
  return use(dismec::Csr{indptr, {features, n}, {values, n}, model->model.n_features()});
}

}  // namespace

dismec_model* dismec_open(const char* directory) {
  return guarded<dismec_model*>(nullptr, [&] {
    if (directory == nullptr) throw std::invalid_argument("the directory is NULL");
    return new dismec_model{dismec::c::Model(directory)};
  });
}

void dismec_close(dismec_model* model) { delete model; }

std::int64_t dismec_n_features(const dismec_model* model) { return model->model.n_features(); }
std::int64_t dismec_n_labels(const dismec_model* model) { return model->model.n_labels(); }

const char* dismec_label_name(const dismec_model* model, std::int32_t label, std::size_t* size) {
  *size = 0;
  if (label < 0 || label >= model->model.n_labels()) return nullptr;
  const auto name = model->model.name(label);
  *size = name.size();
  return name.data();
}

int dismec_predict(const dismec_model* model, const std::int32_t* features, const float* values,
                   std::size_t n, int k, std::int32_t* labels, float* scores) {
  return guarded(-1, [&] {
    if (k < 1) throw std::invalid_argument("k must be at least 1");
    if (labels == nullptr || scores == nullptr)
      throw std::invalid_argument("labels or scores are NULL");
    const auto places = static_cast<std::size_t>(k);
    return with_row(model, features, values, n, [&](const dismec::Csr& row) {
      return static_cast<int>(model->model.topk(row, {labels, places}, {scores, places}));
    });
  });
}

int dismec_scores(const dismec_model* model, const std::int32_t* features, const float* values,
                  std::size_t n, float* scores) {
  return guarded(-1, [&] {
    if (scores == nullptr) throw std::invalid_argument("scores are NULL");
    return with_row(model, features, values, n, [&](const dismec::Csr& row) {
      model->model.scores(row, {scores, static_cast<std::size_t>(model->model.n_labels())});
      return 0;
    });
  });
}

const char* dismec_error(void) { return last_error.c_str(); }
