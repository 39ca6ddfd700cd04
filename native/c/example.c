/* Prints the best labels of rows read from standard input, one row per line, as feature:value pairs
 * in ascending order of features:
 *
 *     echo "3:1 17:0.5" | build/c/example MODEL 5
 */
#include <stdio.h>
#include <stdlib.h>

#include "dismec.h"

#define MOST_VALUES 100000

static int32_t features[MOST_VALUES];
static float values[MOST_VALUES];

/* Reads one row; returns the number of its features, -1 at the end of the input, and -2 if a line
 * is not a row. */
static int read_row(void) {
  int n = 0;
  for (;;) {
    int c = getchar();
    if (c == EOF) return n > 0 ? n : -1;
    if (c == '\n') return n;
    if (c == ' ') continue;
    ungetc(c, stdin);
    if (n == MOST_VALUES || scanf("%d:%f", &features[n], &values[n]) != 2) return -2;
    ++n;
  }
}

static int fail(const char* reason) {
  fprintf(stderr, "example: %s\n", reason);
  return EXIT_FAILURE;
}

int main(int argc, char** argv) {
  const int k = argc > 2 ? atoi(argv[2]) : 5;
  dismec_model* model;
  int32_t* labels;
  float* scores;
  int n, status = EXIT_SUCCESS;

  if (argc < 2 || k < 1) return fail("usage: example MODEL [K] < ROWS");
  model = dismec_open(argv[1]);
  if (model == NULL) return fail(dismec_error());
  labels = malloc(k * sizeof *labels);
  scores = malloc(k * sizeof *scores);
  if (labels == NULL || scores == NULL) return fail("out of memory");

  while (status == EXIT_SUCCESS && (n = read_row()) != -1) {
    const int found = n < 0 ? -1 : dismec_predict(model, features, values, n, k, labels, scores);
    if (found < 0) status = fail(n < 0 ? "a line is not feature:value pairs" : dismec_error());
    for (int i = 0; i < found; ++i) {
      size_t size;
      const char* name = dismec_label_name(model, labels[i], &size);
      if (name != NULL)
        printf("%.*s", (int)size, name);
      else
        printf("%d", labels[i]);
      printf(" %.9g%c", scores[i], i + 1 < found ? '\t' : '\n');
    }
  }
  free(labels);
  free(scores);
  dismec_close(model);
  return status;
}
