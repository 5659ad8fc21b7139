/* The table of the residual variants, their parameters and settings. A variant's kernels are cl/hc_<name>.cl:
 * hc_forward writes H_pre, H_post and H_res of one token from its projections z and its small parameters theta, and
 * hc_backward their gradients; the top of cl/hc_gates.cl is their contract, and CONTRIBUTING.md lists the steps. */
#include "src/variants/residual.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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

/* shc: m (m - 1) / 2 angles of a rotation of m = streams - 1 dimensions */
static int64_t angles(int64_t streams) {
    return (streams - 1) * (streams - 2) / 2;
}

/* krom: 2 logits for each of the log2(streams) factors */
static int64_t factor_logits(int64_t streams) {
    int64_t logits = 0;
    for (; streams > 1; streams /= 2) {
        logits += 2;
    }
    return logits;
}

/* go_mhc: d (d - 1) / 2 angles of a rotation of d = 2 streams dimensions */
static int64_t doubled_angles(int64_t streams) {
    return streams * (2 * streams - 1);
}

/* ohc: two quaternions */
static int64_t quaternion_pair(int64_t streams) {
    (void)streams;
    return 8;
}

static int64_t singular_values(int64_t streams) {
    return streams - 1;
}

/* ---- initial values */

float residual_zero(int64_t index, const struct residual_init *init) {
    (void)index;
    (void)init;
    return 0.0f;
}

float residual_one(int64_t index, const struct residual_init *init) {
    (void)index;
    (void)init;
    return 1.0f;
}

#define CONSTANT(name, value)                                                                                      \
    static float name(int64_t index, const struct residual_init *init) {                                           \
        (void)index;                                                                                               \
        (void)init;                                                                                                \
        return value;                                                                                              \
    }

CONSTANT(hundredth, 0.01f)
CONSTANT(saturating, 4.0f)

/* A sublayer starts by reading and writing mostly one stream: sigmoid(1) against sigmoid(-1). */
static float gate_bias(int64_t index, const struct residual_init *init) {
    return index == init->stream ? 1.0f : -1.0f;
}

/* hc: a sublayer starts by reading only one stream. */
static float one_hot(int64_t index, const struct residual_init *init) {
    return index == init->stream ? 1.0f : 0.0f;
}

static float identity_matrix(int64_t index, const struct residual_init *init) {
    return index / init->streams == index % init->streams ? 1.0f : 0.0f;
}

/* mhc: H_res starts near the identity, since its entries are exp(0) against exp(-8) before they are normalised. */
static float identity_logits(int64_t index, const struct residual_init *init) {
    return index / init->streams == index % init->streams ? 0.0f : -8.0f;
}

/* mhc_lite: a softmax gives nearly all weight to the first permutation, the identity. */
static float first_logit(int64_t index, const struct residual_init *init) {
    (void)init;
    return index == 0 ? 0.0f : -8.0f;
}

/* krom: a softmax of each factor's two logits gives nearly all weight to the first, the identity. */
static float second_logits(int64_t index, const struct residual_init *init) {
    (void)init;
    return index % 2 == 0 ? 0.0f : -8.0f;
}

/* go_mhc: not zero, since all gradients of the angles vanish there. */
static float small_angles(int64_t index, const struct residual_init *init) {
    (void)index;
    return 0.4f / (float)(2 * init->streams);
}

/* wide: the sigmoid of this is 1 / streams, so that the weights of a read sum to 1. */
static float equal_parts(int64_t index, const struct residual_init *init) {
    (void)index;
    return (float)-log((double)(init->streams - 1));
}

/* wide: -0.01 to 0.01 in equal steps, so that streams differ from the start. */
static float nearly_equal(int64_t index, const struct residual_init *init) {
    return 0.01f * (2.0f * (float)index / (float)(init->streams - 1) - 1.0f);
}

/* wide: a stream keeps 0.999 of itself, 1 - 0.1 sigmoid(-log 99). */
CONSTANT(nearly_kept, 4.5951199f)

/* ---- values with which a plain model goes on */

float residual_share(int64_t index, const struct residual_init *init) {
    const bool is_main = index == init->stream;
    const double most = init->streams > 2 ? 0.5 : 2.0 / 3.0; /* of two streams one has to differ, too */
    return (float)(is_main ? most : (1.0 - most) / (double)(init->streams - 1));
}

static float logit(double share) {
    return (float)log(share / (1.0 - share));
}

float residual_share_logit(int64_t index, const struct residual_init *init) {
    return logit((double)residual_share(index, init) - init->hc_eps);
}

float residual_equal_logit(int64_t index, const struct residual_init *init) {
    (void)index;
    return logit(1.0 / (double)init->streams - init->hc_eps);
}

/* ---- leaves */

#define GATE_PROJECTIONS                                                                                           \
    {"norm.weight", LEAF_NORM, NULL, residual_one, NULL, true},                                                    \
        {"w_pre", LEAF_PROJECTION, streams_wide, residual_zero, NULL, true}, {                                     \
        "w_post", LEAF_PROJECTION, streams_wide, residual_zero, NULL, true                                         \
    }
#define GATE_BIASES                                                                                                \
    {"b_pre", LEAF_VECTOR, streams_wide, gate_bias, residual_share_logit, true},                                   \
        {"b_post", LEAF_VECTOR, streams_wide, gate_bias, residual_zero, true},                                     \
        {"alpha_pre", LEAF_SCALAR, NULL, hundredth, NULL, true}, {                                                 \
        "alpha_post", LEAF_SCALAR, NULL, hundredth, NULL, true                                                     \
    }
#define END {NULL, LEAF_SCALAR, NULL, NULL, NULL, false}

/* All leaves of a variant whose H_res is computed from alpha_res z + b_res, a vector of `width` numbers. */
#define LOGIT_LEAVES(width, initial)                                                                               \
    GATE_PROJECTIONS, {"w_res", LEAF_PROJECTION, width, residual_zero, NULL, false}, GATE_BIASES,                  \
        {"b_res", LEAF_VECTOR, width, initial, NULL, false},                                                       \
        {"alpha_res", LEAF_SCALAR, NULL, hundredth, NULL, false}, END

static const struct residual_leaf hc_leaves[] = {
    {"norm.weight", LEAF_NORM, NULL, residual_one, NULL, true},
    {"w_pre", LEAF_PROJECTION, one, residual_zero, NULL, true},
    {"w_post", LEAF_PROJECTION, one, residual_zero, NULL, true},
    {"w_res", LEAF_PROJECTION, streams_wide, residual_zero, NULL, false},
    {"b_pre", LEAF_VECTOR, streams_wide, one_hot, residual_share, true},
    {"b_post", LEAF_VECTOR, streams_wide, residual_one, NULL, true},
    {"b_res", LEAF_MATRIX, NULL, identity_matrix, NULL, false},
    {"alpha_pre", LEAF_SCALAR, NULL, hundredth, NULL, true},
    {"alpha_post", LEAF_SCALAR, NULL, hundredth, NULL, true},
    {"alpha_res", LEAF_SCALAR, NULL, hundredth, NULL, false},
    END,
};

static const struct residual_leaf identity_leaves[] = {GATE_PROJECTIONS, GATE_BIASES, END};

static const struct residual_leaf mhc_leaves[] = {
    GATE_PROJECTIONS,
    {"w_res", LEAF_PROJECTION, streams_squared, residual_zero, NULL, false},
    GATE_BIASES,
    {"b_res", LEAF_MATRIX, NULL, identity_logits, NULL, false},
    {"alpha_res", LEAF_SCALAR, NULL, hundredth, NULL, false},
    END,
};

static const struct residual_leaf mhc_lite_leaves[] = {LOGIT_LEAVES(permutations, first_logit)};

static const struct residual_leaf shc_leaves[] = {
    GATE_PROJECTIONS,
    {"w_u", LEAF_PROJECTION, angles, residual_zero, NULL, false},
    {"w_v", LEAF_PROJECTION, angles, residual_zero, NULL, false},
    {"w_s", LEAF_PROJECTION, singular_values, residual_zero, NULL, false},
    GATE_BIASES,
    {"b_u", LEAF_VECTOR, angles, residual_zero, NULL, false},
    {"b_v", LEAF_VECTOR, angles, residual_zero, NULL, false},
    {"b_s", LEAF_VECTOR, singular_values, saturating, NULL, false},
    {"tau_u", LEAF_SCALAR, NULL, hundredth, NULL, false},
    {"tau_v", LEAF_SCALAR, NULL, hundredth, NULL, false},
    {"tau_s", LEAF_SCALAR, NULL, hundredth, NULL, false},
    {"gamma_u", LEAF_SCALAR, NULL, residual_one, NULL, false},
    {"gamma_v", LEAF_SCALAR, NULL, residual_one, NULL, false},
    END,
};

static const struct residual_leaf krom_leaves[] = {LOGIT_LEAVES(factor_logits, second_logits)};

static const struct residual_leaf circulant_leaves[] = {LOGIT_LEAVES(streams_wide, residual_zero)};

static const struct residual_leaf go_mhc_leaves[] = {LOGIT_LEAVES(doubled_angles, small_angles)};

static const struct residual_leaf ohc_leaves[] = {LOGIT_LEAVES(quaternion_pair, residual_zero)};

static const struct residual_leaf wide_leaves[] = {
    {"b_pre", LEAF_VECTOR, streams_wide, equal_parts, residual_share_logit, true},
    {"b_post", LEAF_VECTOR, streams_wide, nearly_equal, residual_zero, true},
    {"b_res", LEAF_VECTOR, streams_wide, nearly_kept, NULL, false},
    END,
};

static const struct residual_leaf frac_leaves[] = {
    {"norm.weight", LEAF_NORM, NULL, residual_one, NULL, true},
    {"w_pre", LEAF_PROJECTION, streams_wide, residual_zero, NULL, true},
    {"w_post", LEAF_PROJECTION, one, residual_zero, NULL, true},
    {"w_res", LEAF_PROJECTION, streams_wide, residual_zero, NULL, false},
    {"b_pre", LEAF_MATRIX, NULL, identity_matrix, NULL, true},
    {"b_post", LEAF_VECTOR, streams_wide, residual_one, NULL, true},
    {"b_res", LEAF_MATRIX, NULL, identity_matrix, NULL, false},
    {"alpha_mix", LEAF_SCALAR, NULL, hundredth, NULL, true},
    {"alpha_post", LEAF_SCALAR, NULL, hundredth, NULL, true},
    END,
};

/* ---- the table */

/* Bits of residual_variant.streams: all numbers from the first to the last. */
#define STREAMS(first, last) ((2u << (last)) - (1u << (first)))

static const struct residual_variant variants[] = {
    {.name = "rc",
     .summary = "plain residual connection, x + branch(norm(x))",
     .source = "He et al. 2016, arXiv 1512.03385",
     .frame = "plain",
     .streams = STREAMS(1, 1)},
    {.name = "identity",
     .summary = "streams that only the branches mix: H_res is the identity",
     .source = "Identity HC (iHC), arXiv 2607.28611",
     .streams = STREAMS(2, 8),
     .invariants = INVARIANTS_DOUBLY_STOCHASTIC,
     .leaves = identity_leaves},
    {.name = "hc",
     .summary = "dynamic hyper-connections, unconstrained",
     .source = "Zhu et al. 2024, arXiv 2409.19606",
     .streams = STREAMS(2, 8),
     .norm_per_stream = true,
     .own_gates = true,
     .leaves = hc_leaves},
    {.name = "mhc",
     .summary = "nearly doubly stochastic by Sinkhorn's iterations",
     .source = "Xie et al. 2025, arXiv 2512.24880",
     .streams = STREAMS(2, 8),
     .invariants = INVARIANT_ROW_SUMS | INVARIANT_SIGN,
     .eps_in_rows = true,
     .leaves = mhc_leaves,
     .settings = {{"sinkhorn_iters", RESIDUAL_INT, "20", 1, 100, "iterations of mhc's normalisation",
                   "SINKHORN_ITERATIONS", false, NULL}}},
    {.name = "mhc_lite",
     .summary = "doubly stochastic: a mixture of all permutations",
     .source = "Yang and Gao 2026, arXiv 2601.05732",
     .streams = STREAMS(2, 8),
     .invariants = INVARIANTS_DOUBLY_STOCHASTIC,
     .leaves = mhc_lite_leaves},
    {.name = "shc",
     .summary = "on the spectral sphere: norm 1, rows and columns sum to 1 (not Sparse Selective SHC)",
     .source = "Liu, Zhang and Li, Spectral-Sphere-Constrained Hyper-Connections (s2HC), NeurIPS 2026",
     .streams = STREAMS(2, 8),
     .invariants = INVARIANT_ROW_SUMS | INVARIANT_COLUMN_SUMS | INVARIANT_SPECTRAL_NORM,
     .litgpt_projections = true,
     .leaves = shc_leaves,
     .settings = {{"freeze_gamma", RESIDUAL_BOOL, "false", 0, 0,
                   "shc: keep the rotation gates gamma_u, gamma_v as they are", "FREEZE_GAMMA", true, NULL}}},
    {.name = "krom",
     .summary = "doubly stochastic: a Kronecker product of 2 x 2 matrices",
     .source = "KromHC, arXiv 2601.21579",
     .streams = STREAMS(2, 2) | STREAMS(4, 4) | STREAMS(8, 8),
     .invariants = INVARIANTS_DOUBLY_STOCHASTIC,
     .leaves = krom_leaves},
    {.name = "circulant",
     .summary = "doubly stochastic: a mixture of rotations, of which products do not collapse with depth",
     .source = "C-mHC, contactsebi/circulant-hyper-connections",
     .streams = STREAMS(2, 8),
     .invariants = INVARIANTS_DOUBLY_STOCHASTIC,
     .uses_depth = true,
     .leaves = circulant_leaves,
     .settings = {{"circulant_beta", RESIDUAL_FLOAT, "4", 0, 1000,
                   "circulant: rotations but the identity have at most beta / (2 * number of sublayers) of H_res",
                   "CIRCULANT_BETA", false, NULL}}},
    {.name = "go_mhc",
     .summary = "doubly stochastic: squares of a rotation of twice as many dimensions",
     .source = "go-mHC, arXiv 2604.02309",
     .streams = STREAMS(2, 8),
     .invariants = INVARIANTS_DOUBLY_STOCHASTIC,
     .leaves = go_mhc_leaves},
    {.name = "ohc",
     .summary = "orthogonal: a rotation of four streams, from two quaternions",
     .source = "oHC, arXiv 2609.02672",
     .streams = STREAMS(4, 4),
     .invariants = INVARIANT_SPECTRAL_NORM | INVARIANT_ORTHOGONAL,
     .leaves = ohc_leaves},
    {.name = "gated",
     .summary = "streams are read through a gate for each channel, which depends on the token",
     .source = "Qwen3.8-Flash-Next, arXiv 2608.30320",
     .frame = "gated",
     .streams = STREAMS(2, 8),
     .settings = {{"gated_rank", RESIDUAL_INT, "0", 0, 65536,
                   "gated: inner size of the gates' matrices (0: n_embd / 8, rounded up)", NULL, false, NULL}}},
    {.name = "attnres",
     .summary = "attention residuals: branches read a mixture of earlier states (blocks: block attention "
                "residuals)",
     .source = "Kimi Team, arXiv 2603.15031",
     .frame = "attnres",
     .streams = STREAMS(1, 1),
     .invariants = INVARIANT_ROW_SUMS | INVARIANT_SIGN,
     .settings = {{"attnres_block", RESIDUAL_INT, "1", 1, 2048,
                   "attnres, dar: sublayers whose outputs make one state", NULL, false, NULL},
                  {"attnres_heads", RESIDUAL_INT, "1", 1, DEPTH_MAX_HEADS,
                   "attnres, dar: heads of the attention over depth, which divide n_embd", NULL, false, NULL}}},
    {.name = "mudd",
     .summary = "multiway dense connections: queries, keys, values and the stream mix all earlier layers",
     .source = "MUDDFormer, arXiv 2502.12170",
     .frame = "mudd",
     .streams = STREAMS(1, 1),
     .settings = {{"mudd_round", RESIDUAL_INT, "64", 0, 65536,
                   "mudd: hidden channels of the MLP that weighs a layer's mixtures are the next larger multiple "
                   "of it (0: not "
                   "rounded)",
                   NULL, false, NULL},
                  {"mudd_norm", RESIDUAL_CHOICE, "none", 0, 0,
                   "mudd: RMSNorms of the states that are mixed, and of the mixture of the stream", NULL, false,
                   MUDD_NORM_WORDS}}},
    {.name = "wide",
     .summary = "a wide residual stream: learned weights that no token changes, and no mixing",
     .source = "Megatron-LM, pull request 6716",
     .streams = STREAMS(2, 8),
     .invariants = INVARIANT_SIGN | INVARIANT_CONTRACTION,
     .leaves = wide_leaves,
     .settings = {{"wide_retention", RESIDUAL_BOOL, "false", 0, 0,
                   "wide: a stream loses a learned part of itself in each sublayer, at most a tenth", NULL, false,
                   NULL}},
     .optional_leaf = "b_res",
     .optional_with = "wide_retention",
     .own_gates = true},
    {.name = "dense",
     .summary = "DenseFormer: after each layer the stream becomes a learned sum of all layers' outputs",
     .source = "Pagliardini et al. 2024, arXiv 2402.02622",
     .frame = "mudd",
     .fixed_ways = true,
     .streams = STREAMS(1, 1)},
    {.name = "laurel",
     .summary = "learned weights of branch and stream, and a product of low rank added to the stream",
     .source = "LAuReL, arXiv 2411.07501",
     .frame = "laurel",
     .streams = STREAMS(1, 1),
     .settings =
         {{"laurel_form", RESIDUAL_CHOICE, "rw_lr", 0, 0,
           "laurel: rw_lr: weights of branch and stream, and the low-rank product; rw: the weights alone; lr: the "
           "product alone",
           NULL, false, LAUREL_FORM_WORDS},
          {"laurel_rank", RESIDUAL_INT, "16", 1, 65536, "laurel: rank of the product", NULL, false, NULL}}},
    {.name = "dar",
     .summary = "branches read the stream and, through a gate, a mixture of earlier states",
     .source = "Delta Attention Residuals, arXiv 2605.18855",
     .frame = "dar",
     .streams = STREAMS(1, 1),
     .invariants = INVARIANT_ROW_SUMS | INVARIANT_SIGN,
     .settings = {{"dar_gate", RESIDUAL_CHOICE, "zero", 0, 0,
                   "dar: the gate. zero: learned, zero at first; none: it is 1", NULL, false, DAR_GATE_WORDS}}},
    {.name = "frac",
     .summary = "fractions of the channels in place of streams, mixed as hc mixes streams",
     .source = "Frac-Connections, arXiv 2503.14125",
     .streams = STREAMS(2, 8),
     .has_fractions = true,
     .norm_per_stream = true,
     .own_gates = true,
     .leaves = frac_leaves},
};
#define VARIANTS (sizeof variants / sizeof *variants)

/* ---- what follows from the table */

const struct residual_variant *residual_find(const char *name) {
    for (size_t i = 0; i < VARIANTS; i++) {
        if (strcmp(variants[i].name, name) == 0) {
            return &variants[i];
        }
    }
    return NULL;
}

const struct residual_variant *residual_at(size_t number) {
    return number < VARIANTS ? &variants[number] : NULL;
}

size_t residual_number(const struct residual_variant *variant) {
    return (size_t)(variant - variants);
}

const char *residual_names(void) {
    static char names[VARIANTS * 32];
    for (size_t i = 0, length = 0; i < VARIANTS; i++) {
        length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", i ? "|" : "", variants[i].name);
    }
    return names;
}

unsigned residual_invariants(const struct residual_variant *variant, bool transposed) {
    unsigned invariants = variant->invariants;
    if (transposed && !(invariants & INVARIANT_ROW_SUMS) != !(invariants & INVARIANT_COLUMN_SUMS)) {
        invariants ^= INVARIANT_ROW_SUMS | INVARIANT_COLUMN_SUMS; /* it has one of them, and then the other */
    }
    return invariants;
}

enum residual_invariant residual_invariant_at(size_t number, const char **name) {
    static const struct {
        enum residual_invariant invariant;
        const char *name;
    } all[] = {{INVARIANT_ROW_SUMS, "row sums"},
               {INVARIANT_COLUMN_SUMS, "column sums"},
               {INVARIANT_SPECTRAL_NORM, "spectral norms"},
               {INVARIANT_SIGN, "signs"},
               {INVARIANT_ORTHOGONAL, "singular values"},
               {INVARIANT_CONTRACTION, "norms of at most 1"}};
    if (number >= sizeof all / sizeof *all) {
        return 0;
    }
    *name = all[number].name;
    return all[number].invariant;
}

int residual_list(FILE *file) {
    for (const struct residual_variant *variant = variants; variant < variants + VARIANTS; variant++) {
        const char *name, *before = "; exact";
        enum residual_invariant invariant;
        char streams[64];
        fprintf(file, "%-10s  %-10s  %s", variant->name, residual_streams_text(variant, streams, sizeof streams),
                variant->summary);
        if (variant->source) {
            fprintf(file, " (%s)", variant->source);
        }
        for (size_t i = 0; (invariant = residual_invariant_at(i, &name)); i++) {
            if (variant->invariants & invariant) {
                fprintf(file, "%s %s", before, name);
                before = ",";
            }
        }
        for (size_t i = 0; i < RESIDUAL_OWN_SETTINGS && variant->settings[i].name; i++) {
            fprintf(file, "%s %s", i == 0 ? "; settings:" : ",", variant->settings[i].name);
        }
        fputc('\n', file);
    }
    return fflush(file) || ferror(file) ? -1 : 0;
}

bool residual_has_matrices(const struct residual_variant *variant) {
    return variant->leaves != NULL;
}

bool residual_has_frame(const struct residual_variant *variant, const char *name) {
    return variant->frame && strcmp(variant->frame, name) == 0;
}

bool residual_is_fixed(const struct residual_variant *variant) {
    return residual_has_matrices(variant) && residual_sizes(variant, RESIDUAL_MAX_STREAMS, NULL).columns == 0;
}

bool residual_reads_early(const struct residual_variant *variant, bool is_static) {
    return residual_is_fixed(variant) || (is_static && !variant->has_fractions);
}

const struct residual_variant *residual_map(const struct residual_variant *variant,
                                            const struct residual_settings *settings) {
    return settings->is_unmixed && residual_has_matrices(variant) && !variant->own_gates ? residual_find("identity")
                                                                                         : variant;
}

bool residual_reads_depth(const struct residual_variant *variant) {
    return residual_has_frame(variant, "attnres") || residual_has_frame(variant, "dar");
}

bool residual_is_single(const struct residual_variant *variant) {
    return variant->streams == STREAMS(1, 1);
}

bool residual_takes(const struct residual_variant *variant, int64_t streams) {
    return streams >= 1 && streams <= RESIDUAL_MAX_STREAMS && (variant->streams >> streams & 1) == 1;
}

const char *residual_streams_text(const struct residual_variant *variant, char *text, size_t size) {
    int64_t taken[RESIDUAL_MAX_STREAMS];
    size_t count = 0, length = 0;
    for (int64_t n = 1; n <= RESIDUAL_MAX_STREAMS; n++) {
        if (residual_takes(variant, n)) {
            taken[count++] = n;
        }
    }
    if (count > 2 && taken[count - 1] - taken[0] == (int64_t)count - 1) {
        snprintf(text, size, "%" PRId64 " to %" PRId64, taken[0], taken[count - 1]);
        return text;
    }
    for (size_t i = 0; i < count && length < size; i++) {
        const char *before = i + 1 < count ? ", " : " or ";
        length += (size_t)snprintf(text + length, size - length, "%s%" PRId64, i > 0 ? before : "", taken[i]);
    }
    return text;
}

/* ---- settings of all variants */

const struct residual_setting *residual_setting_at(size_t number, const struct residual_variant **owner) {
    for (const struct residual_variant *variant = variants; variant < variants + VARIANTS; variant++) {
        for (size_t i = 0; i < RESIDUAL_OWN_SETTINGS && variant->settings[i].name; i++) {
            if (number-- == 0) {
                if (owner) {
                    *owner = variant;
                }
                return &variant->settings[i];
            }
        }
    }
    return NULL;
}

bool residual_uses_settings(const struct residual_variant *variant, const struct residual_variant *owner) {
    return variant == owner || (residual_has_frame(owner, "attnres") && residual_reads_depth(variant));
}

size_t residual_setting_find(const char *name) {
    size_t number = 0;
    const struct residual_setting *setting;
    while ((setting = residual_setting_at(number, NULL)) && strcmp(setting->name, name) != 0) {
        number++;
    }
    return number;
}

union residual_value residual_setting_value(const struct residual_settings *settings, const char *name) {
    return settings->values[residual_setting_find(name)];
}

struct residual_settings residual_settings_default(void) {
    struct residual_settings settings = {0};
    const struct residual_setting *setting;
    for (size_t i = 0; (setting = residual_setting_at(i, NULL)); i++) {
        union residual_value *value = &settings.values[i];
        if (setting->type == RESIDUAL_INT) {
            value->number = strtoll(setting->initial, NULL, 10);
        } else if (setting->type == RESIDUAL_FLOAT) {
            value->real = strtod(setting->initial, NULL);
        } else if (setting->type == RESIDUAL_BOOL) {
            value->flag = strcmp(setting->initial, "true") == 0;
        } /* the default of a CHOICE is its first word */
    }
    return settings;
}

void residual_settings_define(const struct residual_variant *variant, const struct residual_settings *settings,
                              FILE *file) {
    const struct residual_setting *setting;
    const struct residual_variant *owner;
    for (size_t i = 0; (setting = residual_setting_at(i, &owner)); i++) {
        const union residual_value value = settings->values[i];
        if (owner != variant || !setting->constant) {
            continue;
        }
        if (setting->type == RESIDUAL_FLOAT) {
            fprintf(file, " -D%s=%.9ef", setting->constant, value.real);
        } else {
            fprintf(file, " -D%s=%" PRId64, setting->constant,
                    setting->type == RESIDUAL_BOOL ? value.flag : value.number);
        }
    }
}

/* ---- sizes */

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

bool residual_leaf_exists(const struct residual_variant *variant, const struct residual_leaf *leaf,
                          const struct residual_settings *settings) {
    if (!settings) {
        return true;
    }
    if ((settings->is_static && strncmp(leaf->name, "b_", 2) != 0) || (settings->is_unmixed && !leaf->of_gates)) {
        return false;
    }
    return !variant->optional_leaf || strcmp(leaf->name, variant->optional_leaf) != 0 ||
           residual_setting_value(settings, variant->optional_with).flag;
}

bool residual_mixes(const struct residual_variant *variant, const struct residual_settings *settings) {
    bool found = false;
    for (const struct residual_leaf *leaf = variant->leaves; leaf && leaf->name; leaf++) {
        found |= !leaf->of_gates && residual_leaf_exists(variant, leaf, settings);
    }
    return found;
}

struct residual_sizes residual_sizes(const struct residual_variant *variant, int64_t streams,
                                     const struct residual_settings *settings) {
    struct residual_sizes sizes = {.norm_groups = variant->norm_per_stream ? (size_t)streams : 1};
    struct residual_settings dynamic = settings ? *settings : (struct residual_settings){.is_static = false};
    dynamic.is_static = false;
    for (const struct residual_leaf *leaf = variant->leaves; leaf && leaf->name; leaf++) {
        if (leaf->kind == LEAF_PROJECTION) {
            const size_t width = (size_t)leaf->width(streams);
            const bool exists = residual_leaf_exists(variant, leaf, settings);
            sizes.z_columns += residual_leaf_exists(variant, leaf, &dynamic) ? width : 0;
            sizes.columns += exists ? width : 0;
            sizes.matrices += exists && width > 0;
        } else if (residual_leaf_is_small(leaf) && residual_leaf_exists(variant, leaf, settings)) {
            sizes.theta += (size_t)residual_leaf_elements(leaf, streams, 0);
        }
    }
    return sizes;
}
