/* Cases of test_operations: attention, and one query over a cache. */
#include "tests/operations/operation_bench.h"

/* ---- attention */

static struct head_shape heads_of(const struct bench *bench) {
    return head_shape(&bench->operations->shape);
}

static void attention_describe(struct bench *bench) {
    const size_t n = bench->token_count;
    bench_activation(bench_input(bench, "qkv", n * (size_t)heads_of(bench).qkv_row, 0.1, bench->shape.spread));
    bench_activation(bench_output(bench, "y", n * (size_t)heads_of(bench).y_row));
    bench_byproduct(bench, "lse", n * (size_t)bench->shape.heads);
}

static void attention_reference(struct bench *bench) {
    const struct dropout dropout = case_dropout(bench);
    const struct reference_attention shape = {.batch = (size_t)bench->tokens.batch,
                                              .sequence = (size_t)bench->tokens.sequence,
                                              .heads = (size_t)bench->shape.heads,
                                              .kv_heads = (size_t)heads_of(bench).kv_heads,
                                              .head_size = (size_t)heads_of(bench).size,
                                              .scale = bench->shape.attn_scale,
                                              .dropout = dropout.rate,
                                              .key = dropout.key,
                                              .first_row = dropout.first_row};
    reference_attention(&shape, bench_values(bench, "qkv"), bench_values(bench, "y"), bench_values(bench, "lse"));
}

static const struct buffer *transposed_scratch(struct bench *bench) {
    return bench_scratch_activation(bench, (size_t)(bench->tokens.batch * heads_of(bench).kv_row) *
                                               operations_transposed(bench->operations, bench->tokens.sequence));
}

static struct attention_values attention_values(const struct bench *bench) {
    return (struct attention_values){bench_buffer(bench, "qkv"), bench_buffer(bench, "y"),
                                     bench_buffer(bench, "lse")};
}

static void run_attention_forward(struct bench *bench) {
    const struct attention_values values = attention_values(bench);
    const struct attention_scratch scratch = {.keys_t = transposed_scratch(bench)};
    attention_forward(bench->operations, bench->tokens, &values, &scratch, case_dropout(bench));
}

/* Variations of the backward pass: see take_whole_heads. */
enum { CHOSEN, BLOCKS, WHOLE_HEADS };

static void run_attention_backward(struct bench *bench) {
    const struct attention_values values = attention_values(bench);
    const struct attention_scratch scratch = {
        .keys_t = transposed_scratch(bench),
        .values_t = transposed_scratch(bench),
        .delta = bench_scratch(bench, bench->token_count * (size_t)bench->shape.heads),
        .d_queries = bench_scratch(bench, bench->token_count * (size_t)heads_of(bench).y_row)};
    const struct operations chosen = *bench->operations;
    if (bench->shape.variation != CHOSEN) {
        bench->operations->attention_matrix_cores = NULL;
        bench->operations->policy.attention_head_cores =
            bench->shape.variation == WHOLE_HEADS; /* one core is always busy */
    }
    attention_backward(bench->operations, bench->tokens, &values, &scratch, case_dropout(bench),
                       bench_derivative(bench, "y"), bench_derivative(bench, "qkv"));
    *bench->operations = chosen;
}

OPERATION(attention, "attention", "attention", attention_describe, .reference = attention_reference,
          .forward = run_attention_forward, .backward = run_attention_backward);

/* ---- queries and keys before attention: sequences that begin at position 0 */

static const double THETA = 50.0;

static size_t qkv_count(const struct bench *bench) {
    return bench->token_count * (size_t)heads_of(bench).qkv_row;
}

static void head_rows_describe(struct bench *bench) {
    bench_activation(bench_input(bench, "raw", qkv_count(bench), 0.1, bench->shape.spread));
    bench_activation(bench_output(bench, "qkv", qkv_count(bench)));
    if (bench->shape.qk_norm == QK_NORM_GAINED) {
        bench_parameter(bench, "q_gain", (size_t)heads_of(bench).size, 1.0, 0.5);
        bench_gap(bench);
        bench_parameter(bench, "k_gain", (size_t)heads_of(bench).size, 0.0, 0.5);
        bench_gap(bench);
    }
}

static void head_rows_reference(struct bench *bench) {
    const struct head_shape heads = heads_of(bench);
    const struct reference_head_rows rows = {
        .heads = (size_t)heads.heads,
        .kv_heads = (size_t)heads.kv_heads,
        .head_size = (size_t)heads.size,
        .normed = bench->shape.qk_norm != QK_NORM_NONE,
        .q_gain = bench_values_or_null(bench, "q_gain"),
        .k_gain = bench_values_or_null(bench, "k_gain"),
        .epsilon = bench->operations->shape.norm_eps,
        .theta = bench->shape.position == POSITION_ROPE ? THETA : 0.0,
        .fraction = bench->shape.rope_fraction,
    };
    for (size_t token = 0; token < bench->token_count; token++) {
        reference_head_rows(&rows, token % (size_t)bench->tokens.sequence, bench_row(bench, "raw", token),
                            bench_row(bench, "qkv", token));
    }
}

/* In place without qk_norm, as models have it. */
static struct head_rows head_rows_of(struct bench *bench) {
    const size_t scales = bench->token_count * (size_t)(heads_of(bench).heads + heads_of(bench).kv_heads);
    const struct buffer *unused = bench_buffer(bench, "raw");
    struct head_rows rows = {.raw = bench_buffer(bench, bench->shape.qk_norm ? "raw" : "qkv"),
                             .qkv = bench_buffer(bench, "qkv"),
                             .table =
                                 bench_scratch(bench, head_rows_table(bench->operations, bench->tokens.sequence)),
                             .scales = bench_scratch(bench, scales),
                             .gains = {{unused, 0}, {unused, 0}}};
    if (bench->shape.qk_norm == QK_NORM_GAINED) {
        rows.gains = (struct head_gains){case_weights(bench, "q_gain"), case_weights(bench, "k_gain")};
    }
    if (bench->shape.qk_norm == QK_NORM_NONE) {
        bench_copy_all(bench, bench_buffer(bench, "raw"), rows.qkv, qkv_count(bench));
    }
    const struct rope rope = {THETA, bench->shape.rope_fraction > 0.0 ? bench->shape.rope_fraction : 1.0};
    bench_try(bench, head_rows_fill_table(bench->operations, rope, bench->tokens.sequence, rows.table));
    head_rows_forward(bench->operations, bench->tokens, 0, &rows);
    return rows;
}

static void run_head_rows_forward(struct bench *bench) {
    head_rows_of(bench);
}

static void run_head_rows_backward(struct bench *bench) {
    const struct head_rows rows = head_rows_of(bench);
    struct head_gains gradients = {{&bench->gradients, 0}, {&bench->gradients, 0}};
    if (bench->shape.qk_norm == QK_NORM_GAINED) {
        gradients = (struct head_gains){case_gradients(bench, "q_gain"), case_gradients(bench, "k_gain")};
    }
    bench_copy_all(bench, bench_derivative(bench, "qkv"), bench_derivative(bench, "raw"), qkv_count(bench));
    head_rows_backward(bench->operations, bench->tokens, &rows, bench_derivative(bench, "raw"), gradients,
                       bench->accumulate);
}

OPERATION(head_rows, "heads before attention", "head_rows.cl", head_rows_describe, .reference = head_rows_reference,
          .forward = run_head_rows_forward, .backward = run_head_rows_backward);

/* ---- one query over a cache of `sequence` positions and some more that are not used yet */

static const size_t cache_room = 5;

static size_t cache_elements(const struct bench *bench) {
    const size_t rows = (size_t)bench->tokens.batch + 1; /* one that stays as it is */
    return rows * ((size_t)bench->tokens.sequence + cache_room) * (size_t)heads_of(bench).kv_row;
}

static struct attention_cache cache_of(const struct bench *bench) {
    return (struct attention_cache){bench_buffer(bench, "keys"), bench_buffer(bench, "values"),
                                    bench->tokens.sequence + (int64_t)cache_room};
}

/* The caches before and after; the kernels work on those after in place. */
static void cache_describe(struct bench *bench) {
    bench_activation(bench_input(bench, "old_keys", cache_elements(bench), 0.1, bench->shape.spread));
    bench_activation(bench_input(bench, "old_values", cache_elements(bench), 0.1, 1.0));
    bench_activation(bench_byproduct(bench, "keys", cache_elements(bench)));
    bench_activation(bench_byproduct(bench, "values", cache_elements(bench)));
}

static void cache_begin(struct bench *bench) {
    bench_copy_all(bench, bench_buffer(bench, "old_keys"), bench_buffer(bench, "keys"), cache_elements(bench));
    bench_copy_all(bench, bench_buffer(bench, "old_values"), bench_buffer(bench, "values"), cache_elements(bench));
}

static void step_describe(struct bench *bench) {
    cache_describe(bench);
    bench_activation(bench_input(bench, "qkv", (size_t)(bench->tokens.batch * heads_of(bench).qkv_row), 0.1,
                                 bench->shape.spread));
    bench_activation(bench_output(bench, "y", (size_t)(bench->tokens.batch * heads_of(bench).y_row)));
}

static struct reference_cache reference_cache_of(const struct bench *bench) {
    memcpy(bench_values(bench, "keys"), bench_values(bench, "old_keys"), cache_elements(bench) * sizeof(double));
    memcpy(bench_values(bench, "values"), bench_values(bench, "old_values"),
           cache_elements(bench) * sizeof(double));
    return (struct reference_cache){.heads = (size_t)bench->shape.heads,
                                    .kv_heads = (size_t)heads_of(bench).kv_heads,
                                    .head_size = (size_t)heads_of(bench).size,
                                    .scale = bench->shape.attn_scale,
                                    .capacity = (size_t)bench->tokens.sequence + cache_room,
                                    .keys = bench_values(bench, "keys"),
                                    .values = bench_values(bench, "values")};
}

static void step_reference(struct bench *bench) {
    const struct reference_cache cache = reference_cache_of(bench);
    const size_t position = (size_t)bench->tokens.sequence - 1;
    for (size_t row = 0; row < (size_t)bench->tokens.batch; row++) {
        const double *qkv = bench_values(bench, "qkv") + row * (size_t)heads_of(bench).qkv_row;
        reference_cache_put(&cache, row, position, qkv);
        reference_cache_attend(&cache, row, position, qkv,
                               bench_values(bench, "y") + row * (size_t)heads_of(bench).y_row);
    }
}

static void run_step(struct bench *bench) {
    const size_t padded = operations_padded(bench->operations, bench->tokens.sequence + (int64_t)cache_room);
    cache_begin(bench);
    attention_step(bench->operations, bench->tokens.batch, bench->tokens.sequence - 1, bench_buffer(bench, "qkv"),
                   cache_of(bench),
                   bench_scratch(bench, (size_t)(bench->tokens.batch * bench->shape.heads) * padded),
                   bench_buffer(bench, "y"));
}

OPERATION(attention_one, "attention, step", "attention", step_describe, .reference = step_reference,
          .forward = run_step);

static void fill_describe(struct bench *bench) {
    cache_describe(bench);
    bench_activation(bench_input(bench, "qkv", bench->token_count * (size_t)heads_of(bench).qkv_row, 0.0, 1.0));
}

static void fill_reference(struct bench *bench) {
    const struct reference_cache cache = reference_cache_of(bench);
    const size_t sequence = (size_t)bench->tokens.sequence;
    for (size_t token = 0; token < bench->token_count; token++) {
        reference_cache_put(&cache, 1 + token / sequence, token % sequence, bench_row(bench, "qkv", token));
    }
}

static void run_fill(struct bench *bench) {
    cache_begin(bench);
    attention_fill(bench->operations, bench->tokens, bench_buffer(bench, "qkv"), 1, 0, cache_of(bench));
}

OPERATION(cache_fill, "attention, fill", "attention", fill_describe, .reference = fill_reference,
          .forward = run_fill);

/* ---- cases */

const struct operation_case cases_attention[] = {
    TINY(attention, "mhc", 2, 3, TINY_MHC),
    TINY(attention, "hc, dropout", 2, 3, TINY_HC, .dropout = 0.25f),
    TINY(attention, "mhc, two tiles", 1, 19, TINY_MHC),
    TINY(attention, "mhc, two tiles, heads", 1, 19, TINY_MHC, .variation = WHOLE_HEADS),
    TINY(attention, "rc, K=1, scale", 1, 19, TINY_RC, .kv_heads = 1, .attn_scale = 0.8),
    TINY(attention, "rc, K=1, scale, heads", 1, 19, TINY_RC, .kv_heads = 1, .attn_scale = 0.8,
         .variation = WHOLE_HEADS),
    TINY(head_rows, "rope", 2, 3, TINY_RC, .position = POSITION_ROPE, .kv_heads = 1),
    TINY(head_rows, "rope, qk_norm", 2, 3, TINY_RC, .position = POSITION_ROPE, .kv_heads = 1,
         .qk_norm = QK_NORM_GAINED),
    TINY(head_rows, "rope, plain qk_norm", 2, 3, TINY_RC, .position = POSITION_ROPE, .kv_heads = 1,
         .qk_norm = QK_NORM_PLAIN),
    TINY(attention_one, "mhc", 2, 3, TINY_MHC),
    TINY(attention_one, "rc, K=1, scale", 2, 19, TINY_RC, .kv_heads = 1, .attn_scale = 0.8),
    TINY(cache_fill, "rc, K=1", 2, 3, TINY_RC, .kv_heads = 1),
    TINY(attention_one, "hc, more keys than lanes", 1, 19, TINY_HC),
    TINY(cache_fill, "mhc", 2, 3, TINY_MHC),
    CASE(attention, "T=1", .bias = true, .sequence = 1),
    CASE(attention, "T=1, heads", .bias = true, .sequence = 1, .variation = WHOLE_HEADS),
    CASE(attention, "D=1", .channels = 5, .heads = 5, .batch = 2, .sequence = 37),
    CASE(attention, "D=5, dropout", .channels = 20, .heads = 4, .sequence = 33, .dropout = 0.2f),
    CASE(attention, "D=8", .heads = 3, .batch = 3, .sequence = 70),
    CASE(attention, "D=8, dropout, blocks", .heads = 3, .batch = 2, .sequence = 130, .dropout = 0.1f,
         .variation = BLOCKS),
    CASE(attention, "D=8, dropout, heads", .heads = 3, .batch = 2, .sequence = 130, .dropout = 0.1f,
         .variation = WHOLE_HEADS),
    CASE(attention, "D=64, blocks", .channels = 128, .heads = 2, .batch = 2, .sequence = 67, .variation = BLOCKS),
    CASE(attention, "D=64, heads", .channels = 128, .heads = 2, .batch = 2, .sequence = 67,
         .variation = WHOLE_HEADS),
    CASE(attention, "D=64 T=64", .channels = 128, .heads = 2, .sequence = 64),
    CASE(attention, "D=3", .channels = 9, .heads = 3, .batch = 2, .sequence = 66),
    CASE(attention, "D=20, dropout T=129", .channels = 40, .heads = 2, .sequence = 129, .dropout = 0.2f),
    CASE(attention, "D=33 T=100", .channels = 66, .heads = 2, .sequence = 100),
    CASE(attention, "D=96, dropout", .channels = 96, .heads = 1, .batch = 2, .sequence = 65, .dropout = 0.1f),
    CASE(attention, "D=128 T=131", .channels = 256, .heads = 2, .sequence = 131),
    CASE(attention, "D=160", .channels = 160, .heads = 1, .sequence = 33),
    CASE(attention, "D=8 K=2, dropout, blocks", .heads = 6, .kv_heads = 2, .head_size = 8, .batch = 2,
         .sequence = 130, .dropout = 0.1f, .variation = BLOCKS),
    CASE(attention, "D=8 K=2, dropout, heads", .heads = 6, .kv_heads = 2, .head_size = 8, .batch = 2,
         .sequence = 70, .dropout = 0.1f, .variation = WHOLE_HEADS),
    CASE(attention, "D=6 K=1", .heads = 4, .kv_heads = 1, .head_size = 6, .batch = 2, .sequence = 37),
    CASE(attention, "D=10 K=3, dropout", .heads = 6, .kv_heads = 3, .head_size = 10, .sequence = 66,
         .dropout = 0.2f),
    CASE(attention, "D=64 K=1 T=131", .heads = 3, .kv_heads = 1, .head_size = 64, .sequence = 131),
    CASE(attention, "D=96 K=2", .heads = 4, .kv_heads = 2, .head_size = 96, .sequence = 65),
    /* where a softmax is almost one-hot, dp - delta is the difference of numbers that y's rounding has moved apart
     */
    {.test = &attention,
     .what = "D=8, large scores",
     .shape = {.heads = 3, .sequence = 40, .spread = 6.0},
     .slack = 10,
     .rounded_slack = 40},
    CASE(attention_one, "T=1", .bias = true, .sequence = 1),
    CASE(attention_one, "D=1", .channels = 5, .heads = 5, .batch = 2, .sequence = 37),
    CASE(attention_one, "D=5", .channels = 20, .heads = 4, .sequence = 33),
    CASE(attention_one, "D=8", .heads = 3, .batch = 3, .sequence = 70),
    CASE(attention_one, "D=24 T=16", .batch = 2, .sequence = 16),
    CASE(attention_one, "D=64 T=64", .channels = 128, .heads = 2, .sequence = 64),
    CASE(attention_one, "D=64 T=1000", .channels = 128, .heads = 2, .batch = 2, .sequence = 1000),
    CASE(attention_one, "D=256", .channels = 768, .heads = 3, .sequence = 65),
    LOOSE(attention_one, "D=8, large scores", 10, 0, .heads = 3, .sequence = 40, .spread = 6.0),
    CASE(head_rows, "rope D=8", .heads = 3, .batch = 2, .sequence = 37, .position = POSITION_ROPE),
    CASE(head_rows, "rope D=6 K=2", .heads = 4, .kv_heads = 2, .head_size = 6, .batch = 2, .sequence = 37,
         .position = POSITION_ROPE),
    CASE(head_rows, "rope D=8, half of it", .heads = 3, .batch = 2, .sequence = 37, .position = POSITION_ROPE,
         .rope_fraction = 0.5),
    CASE(head_rows, "rope D=6 K=2, one pair", .heads = 4, .kv_heads = 2, .head_size = 6, .batch = 2, .sequence = 37,
         .position = POSITION_ROPE, .rope_fraction = 0.333333),
    CASE(head_rows, "rope D=64 K=1", .heads = 3, .kv_heads = 1, .head_size = 64, .batch = 2, .sequence = 300,
         .position = POSITION_ROPE),
    CASE(head_rows, "qk_norm D=5 K=2", .heads = 4, .kv_heads = 2, .head_size = 5, .batch = 2, .sequence = 37,
         .position = POSITION_NONE, .qk_norm = QK_NORM_GAINED),
    CASE(head_rows, "plain qk_norm D=5 K=2", .heads = 4, .kv_heads = 2, .head_size = 5, .batch = 2, .sequence = 37,
         .position = POSITION_NONE, .qk_norm = QK_NORM_PLAIN),
    CASE(head_rows, "qk_norm D=1", .heads = 3, .head_size = 1, .sequence = 37, .qk_norm = QK_NORM_GAINED,
         .norm_eps = 0.1),
    CASE(head_rows, "rope, qk_norm D=10 K=1", .heads = 4, .kv_heads = 1, .head_size = 10, .batch = 2,
         .sequence = 37, .position = POSITION_ROPE, .qk_norm = QK_NORM_GAINED),
    CASE(head_rows, "rope, qk_norm D=64 K=2", .heads = 6, .kv_heads = 2, .head_size = 64, .batch = 2,
         .sequence = 70, .position = POSITION_ROPE, .qk_norm = QK_NORM_GAINED),
    CASE(attention_one, "D=6 K=1", .heads = 4, .kv_heads = 1, .head_size = 6, .batch = 3, .sequence = 37),
    CASE(attention_one, "D=64 K=2", .heads = 6, .kv_heads = 2, .head_size = 64, .batch = 2, .sequence = 100),
    CASE(attention_one, "D=8 K=1 T=1", .heads = 3, .kv_heads = 1, .head_size = 8, .sequence = 1),
    CASE(cache_fill, "D=6 K=2", .heads = 4, .kv_heads = 2, .head_size = 6, .batch = 2, .sequence = 37),
    CASE(cache_fill, "D=1", .channels = 5, .heads = 5, .batch = 2, .sequence = 37),
    CASE(cache_fill, "D=8", .heads = 3, .batch = 3, .sequence = 70),
    CASE(cache_fill, "D=64", .channels = 128, .heads = 2, .sequence = 64),
    {.test = NULL},
};
