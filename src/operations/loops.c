#include "runtime/device/self_test.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "src/operations/kernels.h"

enum {
    MANY = 1 << 15, /* loop iterations of a work-item that any device makes */
    OUTER = 256,
    INNER = 512,                /* of the self-test, 2^17 together */
    ITERATIONS_PER_COLUMN = 32, /* of a token's map, at most: mhc_lite makes 18 to 22 a permutation */
    ITERATIONS_PER_VECTOR = 4,  /* of a row, at most: kernels walk it a few times */
    ITERATIONS_PER_CHANNEL = 4, /* of a head and position, about: attention with a work-item for a block of keys */
};

/* The most loop iterations that a single work-item makes. */
static size_t most_iterations(const struct operations *operations, struct token_shape batch, size_t parameters) {
    const size_t tokens = token_count(batch);
    const struct compute *compute = operations->compute;
    const struct operation_shape *shape = &operations->shape;
    const struct head_shape heads = head_shape(shape);
    const size_t step = (size_t)compute->vector * compute->lanes; /* elements of a row in an iteration */
    const size_t row = groups_for((size_t)(shape->streams * shape->channels), step);
    const size_t map = chunk_rows(tokens, operations->policy.map_chunks).per_chunk * operations->columns;
    const size_t mix = chunk_rows(tokens, operations->policy.row_chunks).per_chunk * row;
    const size_t logits = groups_for((size_t)shape->vocabulary, step);
    /* a CPU's work-item goes over all positions of a head */
    const size_t attention = attention_is(operations, "gpu")
                                 ? 0
                                 : (size_t)(batch.sequence * heads.size * (heads.heads / heads.kv_heads));
    /* sums of GEMMs: gradients of weights go over tokens, that of the head's input over the vocabulary */
    const size_t widest = size_larger((size_t)shape->streams, 4) * (size_t)shape->channels;
    const size_t most_k = size_larger(size_larger(tokens, (size_t)shape->vocabulary), widest);
    const size_t each[] = {map * ITERATIONS_PER_COLUMN,
                           mix * ITERATIONS_PER_VECTOR,
                           logits * ITERATIONS_PER_VECTOR,
                           groups_for(parameters, operations->policy.square_chunks * step),
                           attention * ITERATIONS_PER_CHANNEL,
                           gemm_iterations(compute, most_k)};
    size_t most = 0;
    for (size_t i = 0; i < COUNT(each); i++) {
        most = size_larger(most, each[i]);
    }
    return most;
}

/* 0; 1: the loop gave a wrong result; -1: it could not run. */
static int check(struct compute *compute) {
    const char *const files[] = {"loops.cl", NULL};
    uint32_t drawn[5] = {0, 1, 22, 333, 4444}, sum = 0, found = 0;
    struct buffer sums = {0};
    for (int i = 0; i < OUTER * INNER; i++) {
        sum = 1664525U * sum + drawn[1 + (sum & 3U)];
    }
    int status =
        buffer_create(compute, &sums, sizeof drawn) || buffer_write(compute, &sums, 0, drawn, sizeof drawn);
    if (status == 0) {
        KERNEL_RUN(compute, kernel_find(compute, files, "", "loop_turns"), 1, 1, ARG_U32(OUTER), ARG_U32(INNER),
                   ARG_IN_OUT(&sums, 5));
        status = buffer_read(compute, &sums, 0, &found, sizeof found);
    }
    buffer_release(compute, &sums);
    return status ? -1 : found != sum;
}

int operations_check_loops(struct operations *operations, struct token_shape tokens, size_t parameters) {
    struct compute *compute = operations->compute;
    const size_t iterations = most_iterations(operations, tokens, parameters);
    char key[CHECKSUM_SIZE];
    if (iterations < MANY || self_test_passed(compute, "loops", key)) {
        return 0;
    }
    const int status = check(compute);
    if (status == 0) {
        self_test_keep(compute, key);
    } else if (status > 0) {
        error_set("a work-item of this model needs up to %zu loop iterations, and the device computes wrong after "
                  "%d: Mesa's "
                  "llvmpipe and lavapipe of release 22.3 end all loops of a work-item after 65535",
                  iterations, OUTER * INNER);
        return self_test_refuse(compute, "a long loop", "a smaller model or batch, ");
    }
    return status;
}
