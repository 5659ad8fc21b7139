#include "src/bench/memory_rate.h"
#include "runtime/system/distribution.h"
#include "runtime/system/error.h"
#include "runtime/system/host_memory.h"
#include "runtime/system/parallel.h"
#include "runtime/system/progress.h"

enum { PASSES = 3, PIECES = 64 };
#define ELEMENTS ((size_t)64 << 20) /* floats of both arrays together: 256 MiB */
#define PIECE    (ELEMENTS / 2 / PIECES)

static int add_piece(void *context, size_t index) {
    float *a = (float *)context + index * PIECE;
    const float *b = (const float *)context + ELEMENTS / 2 + index * PIECE;
    for (size_t i = 0; i < PIECE; i++) {
        a[i] += b[i];
    }
    return 0;
}

/* Ranks begin each pass together; the first one also brings the pages. */
static int measure(const struct ranks *ranks, float *values, double seconds[PASSES]) {
    for (int pass = -1; pass < PASSES; pass++) {
        double together = 0.0;
        if (ranks_sum(ranks, &together, 1)) {
            return -1;
        }
        const double start = progress_clock();
        parallel_run(PIECES, add_piece, values);
        if (pass >= 0) {
            seconds[pass] = progress_clock() - start;
        }
    }
    return 0;
}

int memory_rate_measure(const struct ranks *ranks, double *rate) {
    double seconds[PASSES], missing;
    struct host_memory memory;
    missing = !host_memory_create(&memory, ELEMENTS * sizeof(float), false);
    int status = ranks_sum(ranks, &missing, 1);
    if (status == 0 && missing > 0.0) {
        status = error_set("a rank has no memory to measure its speed in");
    } else if (status == 0) {
        status = measure(ranks, memory.data, seconds);
    }
    host_memory_release(&memory);
    if (status == 0) {
        percentile_sort(seconds, PASSES);
        *rate =
            1.5 * (double)ELEMENTS * sizeof(float) / percentile(seconds, PASSES, 0.5); /* reads both, writes one */
    }
    return status;
}
