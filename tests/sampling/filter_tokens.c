/* The probabilities that hc_sample draws tokens with, for tests in Python.
 *
 *   filter_tokens VOCABULARY TEMPERATURE TOP_K TOP_P MIN_P PENALTY < CASES > PROBABILITIES
 *
 * Each case is a float [VOCABULARY] of logits and a byte [VOCABULARY]: 1 if the token is present in the text. For
 * each there is a double [VOCABULARY], 0 for tokens that are left out. */
#include "runtime/system/memory.h"
#include "src/sampling/sample.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int filter(float *logits, const bool *present, const struct choice_settings *settings, double penalty,
                  struct choice_scratch *scratch, double *probabilities) {
    sample_penalize(logits, present, scratch->vocabulary, penalty);
    if (sample_filter(logits, settings, scratch)) {
        return -1;
    }
    memset(probabilities, 0, scratch->vocabulary * sizeof *probabilities);
    for (size_t i = 0; i < scratch->count; i++) {
        const size_t token = scratch->tokens ? (size_t)scratch->tokens[i] : i;
        probabilities[token] = scratch->weights[token] / scratch->sum;
    }
    return 0;
}

int main(int argc, char **argv) {
    const size_t count = argc == 7 ? strtoul(argv[1], NULL, 10) : 0;
    if (count == 0) {
        return 2;
    }
    const struct choice_settings settings = {strtod(argv[2], NULL), strtol(argv[3], NULL, 10),
                                             strtod(argv[4], NULL), strtod(argv[5], NULL)};
    float *logits = memory_allocate(count, sizeof *logits);
    bool *present = memory_allocate(count, sizeof *present);
    double *probabilities = memory_allocate(count, sizeof *probabilities);
    struct choice_scratch scratch;
    int status = 0;
    choice_scratch_create(count, &scratch);
    while (status == 0 && fread(logits, sizeof *logits, count, stdin) == count) {
        status = fread(present, sizeof *present, count, stdin) != count ||
                 filter(logits, present, &settings, strtod(argv[6], NULL), &scratch, probabilities) ||
                 fwrite(probabilities, sizeof *probabilities, count, stdout) != count;
    }
    choice_scratch_free(&scratch);
    free(logits);
    free(present);
    free(probabilities);
    return status || fflush(stdout);
}
