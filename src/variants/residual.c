#include "src/variants/residual.h"
#include <string.h>

/* ---- widths */

static int64_t one(int64_t streams) {
    (void)streams;
    return 1;
}

static int64_t streams_wide(int64_t streams) {
    return streams;
}

static int64_t streams_squared(int64_t streams) {
    return streams * streams;
}

static int64_t permutations(int64_t streams) {
    int64_t count = 1;
    for (int64_t i = 2; i <= streams; i++) {
        count *= i;
    }
    return count;
}

/* entries above the diagonal of a (streams - 1)-square skew-symmetric matrix */
static int64_t angles(int64_t streams) {
    return (streams - 1) * (streams - 2) / 2;
}

static int64_t singular_values(int64_t streams) {
    return streams - 1;
}

/* ---- initial values, from index in the leaf, streams and number of the sublayer */

#define CONSTANT(name, value)                                                                                      \
    static float name(int64_t index, int64_t streams, int64_t sublayer) {                                          \
        (void)index;                                                                                               \
        (void)streams;                                                                                             \
        (void)sublayer;                                                                                            \
        return value;                                                                                              \
    }

CONSTANT(zeros, 0.0f)
CONSTANT(ones, 1.0f)
CONSTANT(hundredth, 0.01f)
CONSTANT(saturating, 4.0f)

static float gate_bias(int64_t index, int64_t streams, int64_t sublayer) {
    return index == sublayer % streams ? 1.0f : -1.0f;
}

static float one_hot(int64_t index, int64_t streams, int64_t sublayer) {
    return index == sublayer % streams ? 1.0f : 0.0f;
}

static float identity_matrix(int64_t index, int64_t streams, int64_t sublayer) {
    (void)sublayer;
    return index / streams == index % streams ? 1.0f : 0.0f;
}

static float identity_logits(int64_t index, int64_t streams, int64_t sublayer) {
    (void)sublayer;
    return index / streams == index % streams ? 0.0f : -8.0f;
}

static float first_logit(int64_t index, int64_t streams, int64_t sublayer) {
    (void)streams;
    (void)sublayer;
    return index == 0 ? 0.0f : -8.0f;
}

/* ---- the table */

#define GATE_PROJECTIONS                                                                                           \
    {"norm.weight", LEAF_NORM, NULL, ones}, {"w_pre", LEAF_PROJECTION, streams_wide, zeros}, {                     \
        "w_post", LEAF_PROJECTION, streams_wide, zeros                                                             \
    }
#define GATE_BIASES                                                                                                \
    {"b_pre", LEAF_VECTOR, streams_wide, gate_bias}, {"b_post", LEAF_VECTOR, streams_wide, gate_bias},             \
        {"alpha_pre", LEAF_SCALAR, NULL, hundredth}, {                                                             \
        "alpha_post", LEAF_SCALAR, NULL, hundredth                                                                 \
    }
#define END                                                                                                        \
    { NULL, LEAF_SCALAR, NULL, NULL }

static const struct residual_leaf hc_leaves[] = {
    {"norm.weight", LEAF_NORM, NULL, ones},
    {"w_pre", LEAF_PROJECTION, one, zeros},
    {"w_post", LEAF_PROJECTION, one, zeros},
    {"w_res", LEAF_PROJECTION, streams_wide, zeros},
    {"b_pre", LEAF_VECTOR, streams_wide, one_hot},
    {"b_post", LEAF_VECTOR, streams_wide, ones},
    {"b_res", LEAF_MATRIX, NULL, identity_matrix},
    {"alpha_pre", LEAF_SCALAR, NULL, hundredth},
    {"alpha_post", LEAF_SCALAR, NULL, hundredth},
    {"alpha_res", LEAF_SCALAR, NULL, hundredth},
    END,
};

static const struct residual_leaf identity_leaves[] = {GATE_PROJECTIONS, GATE_BIASES, END};

static const struct residual_leaf mhc_leaves[] = {
    GATE_PROJECTIONS,
    {"w_res", LEAF_PROJECTION, streams_squared, zeros},
    GATE_BIASES,
    {"b_res", LEAF_MATRIX, NULL, identity_logits},
    {"alpha_res", LEAF_SCALAR, NULL, hundredth},
    END,
};

static const struct residual_leaf mhc_lite_leaves[] = {
    GATE_PROJECTIONS,
    {"w_res", LEAF_PROJECTION, permutations, zeros},
    GATE_BIASES,
    {"b_res", LEAF_VECTOR, permutations, first_logit},
    {"alpha_res", LEAF_SCALAR, NULL, hundredth},
    END,
};

static const struct residual_leaf shc_leaves[] = {
    GATE_PROJECTIONS,
    {"w_u", LEAF_PROJECTION, angles, zeros},
    {"w_v", LEAF_PROJECTION, angles, zeros},
    {"w_s", LEAF_PROJECTION, singular_values, zeros},
    GATE_BIASES,
    {"b_u", LEAF_VECTOR, angles, zeros},
    {"b_v", LEAF_VECTOR, angles, zeros},
    {"b_s", LEAF_VECTOR, singular_values, saturating},
    {"tau_u", LEAF_SCALAR, NULL, hundredth},
    {"tau_v", LEAF_SCALAR, NULL, hundredth},
    {"tau_s", LEAF_SCALAR, NULL, hundredth},
    {"gamma_u", LEAF_SCALAR, NULL, ones},
    {"gamma_v", LEAF_SCALAR, NULL, ones},
    END,
};

static const struct residual_variant variants[] = {
    {"rc", NULL, false},        {"identity", identity_leaves, false}, {"hc", hc_leaves, true},
    {"mhc", mhc_leaves, false}, {"mhc_lite", mhc_lite_leaves, false}, {"shc", shc_leaves, false},
    {NULL, NULL, false},
};

const char *residual_names(void) {
    return "rc|identity|hc|mhc|mhc_lite|shc";
}

/* ---- what follows from the table */

const struct residual_variant *residual_find(const char *name) {
    for (const struct residual_variant *variant = variants; variant->name; variant++) {
        if (strcmp(variant->name, name) == 0) {
            return variant;
        }
    }
    return NULL;
}

const struct residual_variant *residual_at(size_t number) {
    return number < sizeof variants / sizeof *variants - 1 ? &variants[number] : NULL;
}

bool residual_is_plain(const struct residual_variant *variant) {
    return variant->leaves == NULL;
}

int64_t residual_norm_groups(const struct residual_variant *variant, int64_t streams) {
    return variant->norm_per_stream ? streams : 1;
}

bool residual_leaf_is_small(const struct residual_leaf *leaf) {
    return leaf->kind == LEAF_VECTOR || leaf->kind == LEAF_MATRIX || leaf->kind == LEAF_SCALAR;
}

unsigned residual_leaf_shape(const struct residual_leaf *leaf, int64_t streams, int64_t row_length,
                             uint64_t shape[2]) {
    shape[0] = shape[1] = 1;
    switch (leaf->kind) {
    case LEAF_NORM:
        shape[0] = (uint64_t)row_length;
        return 1;
    case LEAF_PROJECTION:
        shape[0] = (uint64_t)row_length;
        shape[1] = (uint64_t)leaf->width(streams);
        return 2;
    case LEAF_VECTOR:
        shape[0] = (uint64_t)leaf->width(streams);
        return 1;
    case LEAF_MATRIX:
        shape[0] = shape[1] = (uint64_t)streams;
        return 2;
    default:
        return 0;
    }
}

int64_t residual_leaf_elements(const struct residual_leaf *leaf, int64_t streams, int64_t row_length) {
    uint64_t shape[2];
    residual_leaf_shape(leaf, streams, row_length, shape);
    return (int64_t)(shape[0] * shape[1]);
}

int64_t residual_columns(const struct residual_variant *variant, int64_t streams) {
    int64_t columns = 0;
    for (const struct residual_leaf *leaf = variant->leaves; leaf && leaf->name; leaf++) {
        columns += leaf->kind == LEAF_PROJECTION ? leaf->width(streams) : 0;
    }
    return columns;
}

int64_t residual_theta(const struct residual_variant *variant, int64_t streams) {
    int64_t elements = 0;
    for (const struct residual_leaf *leaf = variant->leaves; leaf && leaf->name; leaf++) {
        elements += residual_leaf_is_small(leaf) ? residual_leaf_elements(leaf, streams, 0) : 0;
    }
    return elements;
}
