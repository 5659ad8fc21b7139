/* Compares attention on the device with sums on the host in double. Causal attention of sequences of T positions, H
 * query heads of D channels, of which H / K neighbours read the same of K key and value heads:
 *
 *   p = softmax(scale q k^T), y = (f p) v, dropout's factors f (0 or 1 / (1 - rate)), lse = log sum exp
 *   dv = (f p)^T dy, ds = scale p (f dy v^T - sum_d dy y), dq = ds k, dk = ds^T q
 *
 * scale is 1 / sqrt(D), or the attn_scale of the model. */
#include "runtime/device/self_test.h"
#include "runtime/system/memory.h"
#include "runtime/system/random.h"
#include "src/operations/attention.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DROPOUT_KEY 0x9e3779b97f4a7c15U

/* How far the device may be from the sums on the host. Both start from the same numbers, and the backward passes
 * from the same y, so that only roundings tell them apart. With u the unit roundoff of a 16-bit type:
 *
 * A row of y, dq, dk or dv is a sum of rows of v, k, q or dy, with factors P or dS that matrix cores round to 16
 * bits and the portable kernels do not. What is summed was drawn independently around zero, so the squares of a
 * row's terms add up to about the square of the row's length; and a rounding changes a term by a part of at most u,
 * evenly spread, u / sqrt(3) in the mean of squares. Roundings are as independent: those of the factors change the
 * row by about u / sqrt(3) of its length, and that of the result as much again; together sqrt(2 / 3) u times the
 * length. A row can be shorter than its terms by chance, or vanish where they cancel, as ds of a first token does.
 * Hence four times u, of the row's length and the mean row's together; of that the emulation uses a quarter in its
 * worst row.
 *
 * lse is a float. Its scores are sums of D products of numbers below 2 (for a spread of 1), scaled by 1 / sqrt(D).
 * Matrix cores add these products exactly; the portable kernels scale one factor first, so that each addition
 * rounds, by 2^-24 (D + 8) 4 sqrt(D) at most, which is 2^-11 for D = 128. That is 2^-13 of the mean lse, about 4,
 * and less than a missing key changes. A probability is as precise as its score: where all else is fp32, too, rows
 * may be 2^-11 of their length off. */
#define PARTS_OF_ROUNDOFF 4.0
#define PART_OF_LSE       0x1p-13
#define PART_IN_FP32      0x1p-11

enum { QKV, D_Y, Y, LSE, D_QKV, KEYS_T, VALUES_T, DELTA, D_QUERIES, MATRICES };

struct trial {
    struct operations *operations;
    struct token_shape tokens;
    struct dropout dropout;
    double scale; /* of scores */
    size_t sequence, heads, kv_heads, head_size;
    size_t rows;             /* of all heads, in y */
    const double *qkv, *d_y; /* drawn: [N, H + 2 K, D], [N, H, D] */
    double *y, *lse, *d_qkv; /* the sums on the host: [N, H, D], [batch, H, T], [N, H + 2 K, D] */
    double *p, *factor;      /* of a query and the keys up to it [T]: the softmax, and dropout's factors */
    struct self_test_matrix matrices[MATRICES]; /* on the device */
};

/* ---- sums on the host */

/* Where the row of a query head begins in y, and row 0 (q), 1 (k) or 2 (v) that it reads in qkv. */
static size_t row_at(const struct trial *trial, size_t token, size_t head) {
    return (token * trial->heads + head) * trial->head_size;
}

static size_t qkv_at(const struct trial *trial, size_t token, size_t which, size_t head) {
    const size_t key_head = trial->heads + (which - 1) * trial->kv_heads + head * trial->kv_heads / trial->heads;
    const size_t in_token = which == 0 ? head : key_head;
    return (token * (trial->heads + 2 * trial->kv_heads) + in_token) * trial->head_size;
}

static double dot(const double *a, const double *b, size_t count) {
    double sum = 0.0;
    for (size_t d = 0; d < count; d++) {
        sum += a[d] * b[d];
    }
    return sum;
}

static void add(double factor, const double *row, size_t count, double *sum) {
    for (size_t d = 0; d < count; d++) {
        sum[d] += factor * row[d];
    }
}

/* The weights of a query, for the keys of tokens first .. query, and dropout's factors, as cl/random.cl draws them;
 * returns its lse. */
static double weigh(struct trial *trial, size_t head, size_t first, size_t query) {
    const double *q = trial->qkv + qkv_at(trial, query, 0, head);
    const struct dropout *dropout = &trial->dropout;
    const uint64_t row = dropout->first_row + query;
    const uint32_t seed[2] = {(uint32_t)dropout->key, (uint32_t)(dropout->key >> 32)};
    const size_t keys = query - first + 1;
    double highest = -INFINITY, total = 0.0;
    for (size_t key = 0; key < keys; key++) {
        trial->p[key] = trial->scale * dot(q, trial->qkv + qkv_at(trial, first + key, 1, head), trial->head_size);
        highest = fmax(highest, trial->p[key]);
    }
    for (size_t key = 0; key < keys; key++) {
        total += exp(trial->p[key] - highest);
    }
    for (size_t key = 0; key < keys; key++) {
        const uint32_t element = (uint32_t)(head * trial->sequence + key);
        const uint32_t counter[4] = {element / 4, 0, (uint32_t)row, (uint32_t)(row >> 32)};
        uint32_t words[4];
        trial->p[key] = exp(trial->p[key] - highest) / total;
        trial->factor[key] = 1.0;
        if (dropout->rate > 0.0f) {
            random_philox(counter, seed, words);
            const bool is_dropped = (words[element % 4] >> 8) * 0x1p-24 < (double)dropout->rate;
            trial->factor[key] = is_dropped ? 0.0 : 1.0 / (1.0 - (double)dropout->rate);
        }
    }
    return highest + log(total);
}

/* y and lse; or d_qkv by them. */
static void sum(struct trial *trial, bool is_backward) {
    const size_t count = trial->head_size;
    double *sums = is_backward ? trial->d_qkv : trial->y;
    memset(sums, 0, trial->matrices[is_backward ? D_QKV : Y].rows * count * sizeof *sums);
    for (size_t i = 0; i < trial->rows; i++) {
        const size_t head = i / trial->sequence % trial->heads;
        const size_t first = i / trial->sequence / trial->heads * trial->sequence;
        const size_t query = first + i % trial->sequence, q = qkv_at(trial, query, 0, head);
        double *y = trial->y + row_at(trial, query, head);
        const double *d_y = trial->d_y + row_at(trial, query, head);
        const double delta = is_backward ? dot(d_y, y, count) : 0.0;
        trial->lse[i] = weigh(trial, head, first, query);
        for (size_t key = first; key <= query; key++) {
            const size_t k = qkv_at(trial, key, 1, head), v = qkv_at(trial, key, 2, head);
            const double p = trial->p[key - first], factor = trial->factor[key - first];
            if (!is_backward) {
                add(factor * p, trial->qkv + v, count, y);
                continue;
            }
            const double d_s = trial->scale * p * (factor * dot(d_y, trial->qkv + v, count) - delta);
            add(d_s, trial->qkv + k, count, trial->d_qkv + q);
            add(d_s, trial->qkv + q, count, trial->d_qkv + k);
            add(factor * p, d_y, count, trial->d_qkv + v);
        }
    }
}

/* ---- comparing */

/* Compares a result on the device, row by row, with the sums on the host. */
static int compare(const struct trial *trial, const char *name, size_t result, const double *expected) {
    const enum element_type type = trial->operations->shape.type;
    const struct self_test_matrix *matrix = &trial->matrices[result];
    const size_t rows = matrix->rows, width = matrix->columns;
    const double mean = sqrt(dot(expected, expected, rows * width) / (double)rows);
    double part = type == ELEMENT_FP32 ? PART_IN_FP32 : PARTS_OF_ROUNDOFF * element_roundoff(type);
    if (result == LSE) {
        part = PART_OF_LSE;
    }
    double *found = memory_allocate(rows * width, sizeof *found);
    int status = self_test_read(trial->operations->compute, matrix, name, found);
    for (size_t row = 0; row < rows && status == 0; row++) {
        const double *wanted = expected + row * width;
        status = self_test_compare(found + row * width, wanted, width,
                                   part * (sqrt(dot(wanted, wanted, width)) + mean), "row %zu of %s", row, name);
    }
    free(found);
    return status;
}

/* ---- the passes */

/* The backward pass goes from the device's y, so that an error of the forward pass is not looked for there. */
static int run(struct trial *trial) {
    struct operations *operations = trial->operations;
    const struct self_test_matrix *m = trial->matrices;
    const struct attention_values values = {&m[QKV].buffer, &m[Y].buffer, &m[LSE].buffer};
    const struct attention_scratch scratch = {&m[KEYS_T].buffer, &m[VALUES_T].buffer, &m[DELTA].buffer,
                                              &m[D_QUERIES].buffer};
    attention_forward(operations, trial->tokens, &values, &scratch, trial->dropout);
    sum(trial, false);
    if (compare(trial, "y", Y, trial->y) || compare(trial, "lse", LSE, trial->lse)) {
        return -1;
    }
    if (operations->shape.forward_only) {
        return 0;
    }
    attention_backward(operations, trial->tokens, &values, &scratch, trial->dropout, &m[D_Y].buffer,
                       &m[D_QKV].buffer);
    if (self_test_read(operations->compute, &m[Y], "y", trial->y)) {
        return -1;
    }
    sum(trial, true);
    return compare(trial, "d_qkv", D_QKV, trial->d_qkv);
}

int attention_check_case(struct operations *operations, struct token_shape tokens, struct dropout dropout,
                         float spread) {
    struct compute *compute = operations->compute;
    const enum element_type type = operations->shape.type;
    const struct head_shape heads = head_shape(&operations->shape);
    const size_t sequence = (size_t)tokens.sequence, size = (size_t)heads.size;
    const size_t rows = token_count(tokens) * (size_t)heads.heads;
    const size_t qkv_rows = token_count(tokens) * (size_t)heads.qkv_row / size;
    const size_t transposed =
        (size_t)tokens.batch * (size_t)heads.kv_heads * operations_transposed(operations, (int64_t)sequence);
    double *numbers = memory_allocate((rows + qkv_rows) * size + rows + 2 * sequence, sizeof *numbers);
    struct trial trial = {
        .operations = operations,
        .tokens = tokens,
        .dropout = dropout,
        .scale = attention_scale(&operations->shape),
        .sequence = sequence,
        .heads = (size_t)heads.heads,
        .kv_heads = (size_t)heads.kv_heads,
        .head_size = size,
        .rows = rows,
        .y = numbers,
        .d_qkv = numbers + rows * size,
        .lse = numbers + (rows + qkv_rows) * size,
        .p = numbers + (rows + qkv_rows) * size + rows,
        .factor = numbers + (rows + qkv_rows) * size + rows + sequence,
        .matrices =
            {
                [QKV] = {.rows = qkv_rows, .columns = size},
                [D_Y] = {.rows = rows, .columns = size},
                [Y] = {.rows = rows, .columns = size},
                [LSE] = {.rows = rows, .columns = 1},
                [D_QKV] = {.rows = qkv_rows, .columns = size},
                [KEYS_T] = {.rows = transposed, .columns = size},
                [VALUES_T] = {.rows = transposed, .columns = size},
                [DELTA] = {.rows = rows, .columns = 1},
                [D_QUERIES] = {.rows = rows, .columns = size},
            },
    };
    int status = 0;
    for (size_t i = 0; i < MATRICES && status == 0; i++) {
        const bool is_fp32 = i == LSE || i == DELTA || i == D_QUERIES;
        status = self_test_create(compute, &trial.matrices[i], is_fp32 ? ELEMENT_FP32 : type, i <= D_Y ? i + 1 : 0,
                                  i == QKV ? spread : 1.0f);
    }
    trial.qkv = trial.matrices[QKV].numbers;
    trial.d_y = trial.matrices[D_Y].numbers;
    if (status == 0 && run(&trial)) {
        status = compute->failure ? -1 : 1;
    }
    for (size_t i = 0; i < MATRICES; i++) {
        self_test_release(compute, &trial.matrices[i]);
    }
    compute_forget(compute);
    free(numbers);
    return status;
}

/* Forward there may be a kernel with dropout and one without; backward a CPU's work-items take blocks of a head, or
 * a whole one where heads are enough for its cores. Several blocks of rows, the last one not full. */
int attention_check(struct operations *operations) {
    size_t *cores = &operations->policy.attention_head_cores;
    const struct token_shape tokens = {1, 83};
    const struct dropout dropout = {0.25f, DROPOUT_KEY, UINT32_MAX - 5U};
    const size_t chosen = *cores;
    /* with another scale than 1 / sqrt(D), q and k get a power of two that brings the scores, and so the roundings
     * of their sums, near to what they are with that one */
    const double usual = 1.0 / sqrt((double)head_shape(&operations->shape).size);
    const double excess = 0.5 * log2(usual / attention_scale(&operations->shape));
    const float spread = (float)exp2(fmax(-4.0, fmin(4.0, round(excess))));
    int status = attention_check_case(operations, tokens, (struct dropout){0}, spread);
    for (size_t i = 0; i <= (chosen ? 1 : 0) && status == 0 && !operations->shape.forward_only &&
                       (operations->shape.drops || !operations->attention_matrix_cores);
         i++) {
        *cores = i;
        status = attention_check_case(operations, tokens, dropout, spread);
    }
    *cores = chosen;
    return status;
}
