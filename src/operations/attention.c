/* Attention: the table of algorithms, their launches, and the choice among them. */
#include "src/operations/attention.h"
#include "runtime/device/self_test.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/message.h"
#include <string.h>

static struct attention_pass make_pass(const struct operations *operations, struct token_shape tokens,
                                       const struct attention_values *values,
                                       const struct attention_scratch *scratch, struct dropout dropout) {
    const struct head_shape heads = head_shape(&operations->shape);
    const size_t count = token_count(tokens);
    const size_t padded = operations_padded(operations, tokens.sequence);
    return (struct attention_pass){.tokens = tokens,
                                   .values = values,
                                   .scratch = scratch,
                                   .dropout = dropout,
                                   .heads = heads,
                                   .padded = padded,
                                   .y_elements = count * (size_t)heads.y_row,
                                   .kv_elements = count * (size_t)heads.kv_row,
                                   .qkv_elements = count * (size_t)heads.qkv_row,
                                   .transposed_elements = (size_t)(tokens.batch * heads.kv_row) * padded,
                                   .score_rows = count * (size_t)heads.heads};
}

/* Number of blocks of so many positions in so many heads of each sequence. */
static size_t block_count(const struct attention_pass *pass, int64_t heads, size_t positions) {
    return (size_t)(pass->tokens.batch * heads) * groups_for((size_t)pass->tokens.sequence, positions);
}

struct launch attention_launch(const struct kernel *kernel, const struct attention_pass *pass, size_t groups,
                               size_t local, int gemms) {
    const double pairs = 0.5 * (double)pass->tokens.sequence * ((double)pass->tokens.sequence + 1.0);
    return (struct launch){.kernel = kernel,
                           .groups = groups,
                           .local = local,
                           .flops = 2.0 * gemms * pairs * (double)(pass->tokens.batch * pass->heads.y_row)};
}

/* ---- cpu and cpu_bf16: cl/attention_cpu.cl. A work-item computes rows of one head. */

/* Copies keys (which = 1) or values (2) of qkv [N, (H + 2 K) D] to transposed tiles, in which a vector
 * holds one channel of neighbouring positions. */
static void transpose(struct operations *operations, const struct attention_pass *pass, int which,
                      const struct buffer *transposed) {
    const size_t per_item =
        operations->policy.attention_key_vector * (attention_is(operations, "cpu_bf16") ? 2 : 1);
    RUN_ELEMENTS(attention_transpose, pass->transposed_elements, per_item,
                 ARG_IN(pass->values->qkv, pass->kv_elements), ARG_I32(which), ARG_I32(pass->tokens.batch),
                 ARG_I32(pass->tokens.sequence), ARG_I32(pass->padded),
                 ARG_OUT(transposed, pass->transposed_elements));
}

static struct launch launch_cpu(const struct operations *operations, const struct kernel *kernel,
                                const struct attention_pass *pass, size_t items, int gemms) {
    const size_t group = operations->policy.item_group;
    return attention_launch(kernel, pass, groups_for(items, group), group, gemms);
}

#define ARG_TOKENS(pass)                                                                                           \
    ARG_I32((pass)->tokens.batch), ARG_I32((pass)->tokens.sequence), ARG_I32((pass)->padded),                      \
        ARG_DROPOUT((pass)->dropout)

/* Work-items that have a block of queries each. */
static size_t query_items_cpu(const struct operations *operations, const struct attention_pass *pass) {
    return block_count(pass, pass->heads.heads,
                       operations->policy.attention_queries[attention_is(operations, "cpu_bf16")]);
}

static void forward_cpu(struct operations *operations, const struct attention_pass *pass) {
    const struct launch launch =
        launch_cpu(operations, &operations->kernels->attention_forward, pass, query_items_cpu(operations, pass), 2);
    transpose(operations, pass, 1, pass->scratch->keys_t);
    KERNEL_LAUNCH(operations->compute, &launch, ARG_IN(pass->values->qkv, pass->qkv_elements),
                  ARG_IN(pass->scratch->keys_t, pass->transposed_elements), ARG_TOKENS(pass),
                  ARG_OUT(pass->values->y, pass->y_elements), ARG_OUT(pass->values->lse, pass->score_rows));
}

/* Whether each work-item of the backward pass computes a whole key head of a sequence (5 matrix multiplications)
 * instead of a block of queries or keys (7). True if there are so many of them that at most a tenth of the cores'
 * time would be idle. */
static bool computes_whole_heads(const struct operations *operations, const struct attention_pass *pass) {
    const size_t cores = operations->policy.attention_head_cores;
    const size_t heads = (size_t)(pass->tokens.batch * pass->heads.kv_heads);
    return cores && 10 * heads >= 9 * groups_for(heads, cores) * cores;
}

#define ARG_BACKWARD(pass)                                                                                         \
    ARG_IN((pass)->values->qkv, (pass)->qkv_elements),                                                             \
        ARG_IN((pass)->scratch->keys_t, (pass)->transposed_elements),                                              \
        ARG_IN((pass)->scratch->values_t, (pass)->transposed_elements),                                            \
        ARG_IN((pass)->values->y, (pass)->y_elements), ARG_IN((pass)->d_y, (pass)->y_elements),                    \
        ARG_IN((pass)->values->lse, (pass)->score_rows), ARG_TOKENS(pass)

static void backward_cpu(struct operations *operations, const struct attention_pass *pass) {
    const struct operation_kernels *kernels = operations->kernels;
    const struct attention_scratch *scratch = pass->scratch;
    const bool heads = computes_whole_heads(operations, pass);
    const bool in_fp32 = operations->shape.type == ELEMENT_FP32;
    const size_t keys = heads ? (size_t)pass->tokens.sequence : operations->policy.attention_keys_backward;
    const struct launch to_keys = launch_cpu(operations, &kernels->attention_backward_keys, pass,
                                             block_count(pass, pass->heads.kv_heads, keys), heads ? 5 : 4);
    transpose(operations, pass, 1, scratch->keys_t);
    transpose(operations, pass, 2, scratch->values_t);
    if (!heads) {
        const struct launch to_queries = launch_cpu(operations, &kernels->attention_backward_queries, pass,
                                                    query_items_cpu(operations, pass), 3);
        KERNEL_LAUNCH(operations->compute, &to_queries, ARG_BACKWARD(pass), ARG_OUT(pass->d_qkv, pass->y_elements),
                      ARG_OUT(scratch->delta, pass->score_rows));
    }
    /* with whole heads this kernel computes dq and delta, too; else it reads the delta of the one before */
    KERNEL_LAUNCH(operations->compute, &to_keys, ARG_BACKWARD(pass), ARG_I32(heads),
                  ARG_OUT(pass->d_qkv, heads ? pass->qkv_elements : 2 * pass->kv_elements),
                  ARG_MEMORY_(scratch->delta, 0, pass->score_rows, !heads, heads),
                  heads && !in_fp32 ? ARG_IN_OUT(scratch->d_queries, pass->y_elements) : ARG_UNUSED(pass->d_qkv));
}

/* ---- gpu: cl/attention_gpu.cl. A work-group computes a block of rows of a query head,
 * or of a key head. */

static struct launch launch_gpu(const struct kernel *kernel, const struct attention_pass *pass,
                                struct attention_gpu_group group, int64_t heads, int gemms) {
    return attention_launch(kernel, pass, block_count(pass, heads, 4 * group.down),
                            (size_t)group.across * group.down, gemms);
}

static void forward_gpu(struct operations *operations, const struct attention_pass *pass) {
    const struct attention_gpu_group group = operations->policy.attention_gpu[0];
    const struct launch launch =
        launch_gpu(&operations->kernels->attention_forward, pass, group, pass->heads.heads, 2);
    KERNEL_LAUNCH(operations->compute, &launch, ARG_IN(pass->values->qkv, pass->qkv_elements),
                  ARG_I32(pass->tokens.sequence), ARG_DROPOUT(pass->dropout),
                  ARG_OUT(pass->values->y, pass->y_elements), ARG_OUT(pass->values->lse, pass->score_rows));
}

static void backward_gpu(struct operations *operations, const struct attention_pass *pass) {
    const struct attention_values *values = pass->values;
    const struct operation_kernels *kernels = operations->kernels;
    const struct attention_gpu_group queries = operations->policy.attention_gpu[0];
    const struct attention_gpu_group keys = operations->policy.attention_gpu[1];
    const struct launch to_queries =
        launch_gpu(&kernels->attention_backward_queries, pass, queries, pass->heads.heads, 3);
    const struct launch to_keys =
        launch_gpu(&kernels->attention_backward_keys, pass, keys, pass->heads.kv_heads, 4);
    KERNEL_LAUNCH(operations->compute, &to_queries, ARG_IN(values->qkv, pass->qkv_elements),
                  ARG_IN(values->y, pass->y_elements), ARG_IN(pass->d_y, pass->y_elements),
                  ARG_IN(values->lse, pass->score_rows), ARG_I32(pass->tokens.sequence), ARG_DROPOUT(pass->dropout),
                  ARG_OUT(pass->d_qkv, pass->y_elements), ARG_OUT(pass->scratch->delta, pass->score_rows));
    KERNEL_LAUNCH(operations->compute, &to_keys, ARG_IN(values->qkv, pass->qkv_elements),
                  ARG_IN(pass->d_y, pass->y_elements), ARG_IN(values->lse, pass->score_rows),
                  ARG_IN(pass->scratch->delta, pass->score_rows), ARG_I32(pass->tokens.sequence),
                  ARG_DROPOUT(pass->dropout), ARG_OUT(pass->d_qkv, 2 * pass->kv_elements));
}

/* ---- the table */

/* The gpu kernels need work-groups of at least 64 work-items; on CPUs lanes is 1. */
static bool gpu_takes(const struct operations *operations) {
    return operations->compute->lanes > 1 && operations->compute->device.max_work_group >= 64;
}

/* Whether the CPU has the instructions for bf16: the kernels multiply vectors of 16 pairs. */
static bool cpu_bf16_takes(const struct operations *operations) {
    const struct compute *compute = operations->compute;
    if (operations->emulates_bf16) {
        return true;
    }
    return compute->device.native_kernels && operations->shape.type == ELEMENT_BF16 &&
           head_shape(&operations->shape).size % 16 == 0 && compute->vector == 16 &&
           strstr(compute->device.matrix_cores.names[ELEMENT_BF16], ATTENTION_BF16_INSTRUCTIONS);
}

/* The algorithms of attention. attention_next chooses the first row whose `takes` accepts device and shape. If the
 * kernels of cpu_bf16 do not compile or fail attention_check, the next row replaces it. The last row, matrix_cores,
 * is not chosen in this way: attention_open adds it if its kernels pass attention_check. It then computes the
 * forward and backward passes of whole sequences, while generation (attention_fill and attention_step) stays with
 * the row that was chosen before. If compute->verify is set, gpu and cpu are checked, too; nothing replaces them,
 * so attention_open fails if they are wrong. */
static const struct attention_algorithm {
    const char *name; /* `attention` of its programs in kernels.c; matrix_cores builds its own */
    bool (*takes)(const struct operations *operations); /* NULL: all; matrix_cores: never asked */
    bool transposes; /* it, or a row that may replace it, reads keys_t and values_t */
    void (*forward)(struct operations *operations, const struct attention_pass *pass);
    void (*backward)(struct operations *operations, const struct attention_pass *pass);
} algorithms[] = {
    {"gpu", gpu_takes, false, forward_gpu, backward_gpu},
    {"cpu_bf16", cpu_bf16_takes, true, forward_cpu, backward_cpu},
    {"cpu", NULL, true, forward_cpu, backward_cpu},
    {"matrix_cores", NULL, false, attention_matrix_cores_forward, attention_matrix_cores_backward},
};
#define MATRIX_CORES (&algorithms[COUNT(algorithms) - 1])

int attention_next(struct operations *operations) {
    const struct attention_algorithm *next = operations->attention ? operations->attention + 1 : algorithms;
    while (next < MATRIX_CORES && next->takes && !next->takes(operations)) {
        next++;
    }
    if (next == MATRIX_CORES) {
        return -1;
    }
    operations_release_attention(operations);
    operations->attention = next;
    return 0;
}

bool attention_is(const struct operations *operations, const char *name) {
    return strcmp(operations->attention->name, name) == 0;
}

size_t operations_padded(const struct operations *operations, int64_t sequence) {
    const size_t tile = operations->policy.attention_keys;
    return groups_for((size_t)sequence, tile) * tile;
}

size_t operations_transposed(const struct operations *operations, int64_t sequence) {
    return operations->attention->transposes ? operations_padded(operations, sequence) : 0;
}

static const struct attention_algorithm *algorithm_for(const struct operations *operations,
                                                       struct token_shape tokens) {
    return attention_matrix_cores_take(operations, tokens) ? MATRIX_CORES : operations->attention;
}

void attention_forward(struct operations *operations, struct token_shape tokens,
                       const struct attention_values *values, const struct attention_scratch *scratch,
                       struct dropout dropout) {
    const struct attention_pass pass = make_pass(operations, tokens, values, scratch, dropout);
    algorithm_for(operations, tokens)->forward(operations, &pass);
}

void attention_backward(struct operations *operations, struct token_shape tokens,
                        const struct attention_values *values, const struct attention_scratch *scratch,
                        struct dropout dropout, const struct buffer *d_y, const struct buffer *d_qkv) {
    struct attention_pass pass = make_pass(operations, tokens, values, scratch, dropout);
    pass.d_y = d_y;
    pass.d_qkv = d_qkv;
    algorithm_for(operations, tokens)->backward(operations, &pass);
}

/* ---- generation */

void attention_fill(struct operations *operations, struct token_shape tokens, const struct buffer *qkv, int64_t row,
                    int64_t position, struct attention_cache cache) {
    const size_t elements = token_count(tokens) * (size_t)head_shape(&operations->shape).kv_row;
    RUN_ELEMENTS(attention_fill, elements, operations->policy.head_vector, ARG_IN(qkv, 2 * elements),
                 ARG_I32(tokens.batch), ARG_I32(tokens.sequence), ARG_I32(row), ARG_I32(position),
                 ARG_I32(cache.capacity), ARG_OUT(cache.keys, elements), ARG_OUT(cache.values, elements));
}

/* A work-group of the kernel stores the newest key itself, unless those of other query heads read it, too. */
void attention_step(struct operations *operations, int64_t batch, int64_t position, const struct buffer *qkv,
                    struct attention_cache cache, const struct buffer *scores, const struct buffer *y) {
    const struct head_shape heads = head_shape(&operations->shape);
    const bool shared = heads.kv_heads != heads.heads;
    const size_t rows = (size_t)(batch * heads.heads), known = (size_t)position + 1;
    const size_t kept = known * (size_t)(batch * heads.kv_row);
    if (shared) {
        attention_fill(operations, (struct token_shape){batch, 1}, qkv, 0, position, cache);
    }
    RUN_ROWS(attention_step, rows, ARG_IN(qkv, (size_t)(batch * (shared ? heads.y_row : heads.qkv_row))),
             ARG_I32(position), ARG_I32(cache.capacity), ARG_I32(operations_padded(operations, cache.capacity)),
             ARG_MEMORY_(cache.keys, 0, kept, 1, !shared), ARG_MEMORY_(cache.values, 0, kept, 1, !shared),
             ARG_IN_OUT(scores, known * rows), ARG_OUT(y, (size_t)(batch * heads.y_row)));
}

/* ---- choosing */

/* attention_check, unless it passed in an earlier run, or the device is simulated (device.model, which a dry
 * compute needs), where results mean nothing: 0 if they are right, 1 if wrong, -1 if the check cannot run. */
static int check_once(struct operations *operations, const char *kernels) {
    const struct head_shape heads = head_shape(&operations->shape);
    char what[sizeof operations->attention_by + 112], key[CHECKSUM_SIZE];
    snprintf(what, sizeof what, "attention by %s%s, %s, %s, %s, %s", kernels,
             operations->shape.forward_only ? ", forward" : "", message_count(heads.heads, "head").text,
             message_count(heads.kv_heads, "key head").text, message_count(heads.size, "channel").text,
             element_name(operations->shape.type));
    if (operations->shape.attn_scale > 0.0) {
        snprintf(what + strlen(what), sizeof what - strlen(what), ", scale %.9g", operations->shape.attn_scale);
    }
    if (operations->compute->device.model || self_test_passed(operations->compute, what, key)) {
        return 0;
    }
    const int status = attention_check(operations);
    if (status == 0) {
        self_test_keep(operations->compute, key);
    }
    return status;
}

/* Tries the fast kernels: those for bf16 instructions if cpu_bf16 was chosen, else those for matrix cores. On
 * success attention_by is their name, else "portable kernels" with the reason. */
static bool open_fast(struct operations *operations) {
    char *text = operations->attention_by;
    const size_t size = sizeof operations->attention_by;
    const char *name = "the CPU's " ATTENTION_BF16_INSTRUCTIONS;
    bool works;
    if (attention_is(operations, "cpu_bf16")) {
        works = check_once(operations, name) == 0;
    } else if (operations->shape.type == ELEMENT_FP32 || !gemm_facts(operations->compute).uses_matrix_cores) {
        snprintf(text, size, "portable kernels");
        return false;
    } else {
        works = attention_matrix_cores_open(operations, NULL) == 0;
        name = works ? operations->attention_matrix_cores->unit.name : "";
        if (works && check_once(operations, name)) {
            works = false;
            error_prefix("%s", name);
            attention_matrix_cores_close(operations);
        }
    }
    if (works) {
        snprintf(text, size, "%s", name);
    } else {
        snprintf(text, size, "portable kernels (%s)", error_text());
        for (char *end; (end = strchr(text, '\n'));) { /* a compiler's log is cut, but says why */
            *end = ' ';
        }
        error_clear();
    }
    return works;
}

int attention_open(struct operations *operations) {
    struct compute *compute = operations->compute;
    if (open_fast(operations)) {
        return 0;
    }
    if (attention_is(operations, "cpu_bf16") &&
        (attention_next(operations) || operations_build(operations, "attention"))) {
        return -1;
    }
    const int status = compute->verify ? check_once(operations, operations->attention_by) : 0;
    return status > 0 ? self_test_refuse(compute, "attention",
                                         operations->shape.type == ELEMENT_FP32 ? "" : "--dtype fp32, ")
                      : status;
}
