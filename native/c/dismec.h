/* Predictions of a dismec model from C, without Python: the best labels of one sparse row.
 *
 *     dismec_model *model = dismec_open("model");
 *     int32_t labels[5];
 *     float scores[5];
 *     int n = dismec_predict(model, features, values, n_values, 5, labels, scores);
 *
 * Labels and scores equal those of Model.predict_topk in Python, bit for bit: the exact top k of
 * all labels, ties to the smaller label. A model directory is opened as `dismec train` writes it,
 * and mapped into memory: a large model opens instantly, and processes share one copy of it.
 *
 * Not supported: refined models, and models with dense features. Texts must be turned into counts
 * elsewhere: in a text model, feature i is the i-th term of its vocabulary. Checksums are not
 * verified; a damaged file may change scores, but nothing outside the file is read.
 *
 * Several threads may use a model at once. It must not be edited while it is open.
 */
#ifndef DISMEC_H
#define DISMEC_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define DISMEC_API
#else
#define DISMEC_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dismec_model dismec_model;

/* Open a model directory. Returns NULL on failure; `dismec_error` then gives the reason. */
DISMEC_API dismec_model* dismec_open(const char* directory);

/* Close a model and free its memory. NULL is ignored. */
DISMEC_API void dismec_close(dismec_model* model);

/* Number of features of a row, without the bias, and number of labels. */
DISMEC_API int64_t dismec_n_features(const dismec_model* model);
DISMEC_API int64_t dismec_n_labels(const dismec_model* model);

/* The name of a label: `*size` bytes of UTF-8 without a terminating zero. Print it with
 * printf("%.*s", (int)size, name). NULL if labels have no names, or if there is no such label. The
 * name is valid until `dismec_close`. */
DISMEC_API const char* dismec_label_name(const dismec_model* model, int32_t label, size_t* size);

/* The best `k` labels of one row, best first.
 *
 * The row is given as in the training data, before tf-idf and normalization: `n` features in
 * strictly ascending order, from 0 to `dismec_n_features` - 1, and their finite values. `labels`
 * and `scores` must have room for `k` entries. Returns the number of labels found, which is less
 * than `k` if the model has fewer trained labels, or -1 on failure. */
DISMEC_API int dismec_predict(const dismec_model* model, const int32_t* features,
                              const float* values, size_t n, int k, int32_t* labels, float* scores);

/* The scores of all labels for one row, given as for `dismec_predict`. `scores` must have room for
 * `dismec_n_labels` entries; labels without training rows get -1. Returns 0, or -1 on failure. */
DISMEC_API int dismec_scores(const dismec_model* model, const int32_t* features,
                             const float* values, size_t n, float* scores);

/* A one-line description of the last failure in this thread. */
DISMEC_API const char* dismec_error(void);

#ifdef __cplusplus
}
#endif

#endif
