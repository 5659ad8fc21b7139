#include "runtime/gemm/gemm_verify.h"
#include "runtime/device/self_test.h"
#include "runtime/gemm/gemm_backend.h"
#include "runtime/gemm/gemm_check.h"
#include <stdio.h>

/* Sizes around the blocks of the portable GEMM on GPUs: `groups` is how many work-groups it is to aim at, which decides on blocks and on
 * k in parts. Rows of whole vectors but for one. */
static const struct {
    struct gemm_case gemm;
    size_t groups;
} classes[] = {
    {{.m = 128, .n = 120, .k = 64, .transpose_b = true}, 1},
    {{.m = 60, .n = 64, .k = 36}, 1},
    {{.m = 32, .n = 92, .k = 100, .transpose_a = true, .pads = {4, 0, 8}, .offsets = {4, 8, 16}, .beta = 1}, 9},
    {{.m = 33, .n = 31, .k = 65, .transpose_b = true, .pads = {1, 7, 5}, .offsets = {1, 0, 2}}, 1},
    {{.m = 20, .n = 12, .k = 516, .transpose_a = true, .beta = 1}, 99},
};
#define CLASSES (sizeof(classes) / sizeof *(classes))

/* As a layer has them: gradients of weights are fp32. */
static int check_class(struct compute *compute, size_t number, enum element_type type) {
    struct gemm_state *state = gemm_state(compute);
    const struct gemm_runner runner = gemm_runner_of(compute);
    struct gemm_case wanted = classes[number].gemm;
    wanted.types[0] = wanted.types[1] = type;
    wanted.types[2] = wanted.transpose_a ? ELEMENT_FP32 : type;
    state->blocks.groups_expected = classes[number].groups;
    const int status = gemm_check(&runner, &wanted);
    state->blocks.groups_expected = 0;
    return status;
}

static int check_classes(struct compute *compute, enum element_type type) {
    for (size_t i = 0; i < CLASSES; i++) {
        if (check_class(compute, i, ELEMENT_FP32) || (type != ELEMENT_FP32 && check_class(compute, i, type))) {
            return -1;
        }
    }
    return 0;
}

/* The forms of a layer by what the backend has for large fp32 matrices, in squares of this many rows. They begin where oneDNN takes
 * none, which has a test of its own and leaves them to that backend. */
static int check_large(struct compute *compute, size_t edge) {
    const struct gemm_runner runner = gemm_runner_of(compute);
    for (int form = 0; form < 3; form++) {
        const struct gemm_case wanted = {.transpose_a = form == 2,
                                         .transpose_b = form == 0,
                                         .m = edge,
                                         .n = edge,
                                         .k = edge,
                                         .offsets = {1, 1, 1},
                                         .beta = form == 2 ? 1.0f : 0.0f,
                                         .sample = edge > 128 ? 61 : 1};
        if (gemm_check(&runner, &wanted)) {
            return -1;
        }
    }
    return 0;
}

/* A device that cannot launch the kernels for large matrices, for want of local memory, computes nothing wrong; a run that needs them
 * reports that itself. */
static int check_all(struct compute *compute, enum element_type type) {
    const struct gemm_backend *backend = gemm_state(compute)->backend;
    const size_t edge = backend->take_large ? backend->take_large(compute, true) : 0;
    const bool is_wrong = edge && check_large(compute, edge) && !compute->failure;
    if (edge) {
        compute_forget(compute);
        backend->take_large(compute, false);
    }
    return is_wrong || check_classes(compute, type) ? -1 : 0;
}

int gemm_verify(struct compute *compute, enum element_type type) {
    const struct gemm_state *state = gemm_state(compute);
    char what[sizeof state->description + CHECKSUM_SIZE + 16], key[CHECKSUM_SIZE];
    snprintf(what, sizeof what, "%s %s %s", element_name(type), state->identity, state->description);
    if (self_test_passed(compute, what, key)) {
        return 0;
    }
    if (check_all(compute, type)) {
        return compute->failure ? -1 : 1;
    }
    self_test_keep(compute, key);
    return 0;
}
