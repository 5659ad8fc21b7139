#include "src/model/gpt.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "src/model/branches.h"
#include "src/model/hyper_connection.h"
#include "src/model/linear.h"
#include "src/operations/attention_check.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the order of things: tokens -> embedding -> sublayers -> final norm -> head, and back */

static struct dropout embedding_dropout(const struct gpt *gpt) {
    if (!gpt->pass.dropout || gpt->config.dropout == 0.0) {
        return (struct dropout){0};
    }
    return (struct dropout){(float)gpt->config.dropout,
                            dropout_key(gpt->pass.seed, gpt->pass.iteration, "embedding"), gpt->pass.first_row};
}

/* What statistics need of streams that will not be there any more. */
static void observe(struct gpt *gpt, int64_t index) {
    const struct sublayer *sublayer = &gpt->sublayers[index];
    if (gpt->pass.observe && sublayer->gram) {
        stream_gram(&gpt->operations, gpt_tokens(gpt), sublayer->streams, sublayer->gram);
    }
}

void gpt_forward(struct gpt *gpt, struct gpt_pass pass) {
    const struct parameters *parameters = &gpt->parameters;
    gpt->pass = pass;
    embedding_forward(&gpt->operations, gpt->shape, pass.position, gpt->tokens, parameters->weights,
                      parameters->token_embedding, parameters->position_embedding, embedding_dropout(gpt),
                      gpt->sublayers[0].streams, gpt->sublayers[0].squares);
    for (int64_t index = 0; index < 2 * gpt->config.n_layer; index++) {
        hyper_connection_enter(gpt, index);
        observe(gpt, index);
        branch_forward(gpt, index);
        hyper_connection_leave(gpt, index);
    }
    final_norm_forward(&gpt->operations, gpt_tokens(gpt), gpt->top_streams, parameters->weights,
                       parameters->final_gain, parameters->final_bias, gpt->final, gpt->final_statistics);
}

/* logits [rows, V] of tokens first .. = final wte^T */
static void head_logits(struct gpt *gpt, size_t first, size_t rows) {
    const size_t width = (size_t)gpt->config.n_embd;
    linear_multiply(&gpt->operations, rows, gpt->vocabulary, width, (struct span){gpt->final, first * width},
                    (struct span){gpt->parameters.operands, gpt->parameters.token_embedding}, gpt->logits);
}

/* From d_logits: d_final, and the head's part of the token embedding's gradient. */
static void head_backward(struct gpt *gpt, size_t first, size_t rows) {
    const size_t width = (size_t)gpt->config.n_embd, vocabulary = gpt->vocabulary;
    const struct matrix d_logits = {gpt->d_logits, 0, vocabulary};
    const size_t embedding = gpt->parameters.token_embedding;
    gemm_run(gpt->compute, &(struct gemm_call){.m = rows,
                                               .n = width,
                                               .k = vocabulary,
                                               .a = d_logits,
                                               .b = {gpt->parameters.operands, embedding, width},
                                               .c = {gpt->d_final, first * width, width}});
    gemm_run(gpt->compute, &(struct gemm_call){.transpose_a = true,
                                               .m = vocabulary,
                                               .n = width,
                                               .k = rows,
                                               .a = d_logits,
                                               .b = {gpt->final, first * width, width},
                                               .c = {gpt->parameters.gradients, embedding, width},
                                               .beta = 1.0f});
}

void gpt_loss(struct gpt *gpt, float scale, bool gradient) {
    const size_t tokens = gpt_tokens(gpt);
    const float each = gpt->valid_targets ? scale / (float)gpt->valid_targets : 0.0f;
    for (size_t first = 0; first < tokens; first += gpt->logit_rows) {
        const size_t rows = tokens - first < gpt->logit_rows ? tokens - first : gpt->logit_rows;
        head_logits(gpt, first, rows);
        cross_entropy(&gpt->operations, first, rows, gpt->logits, gpt->targets, each * gpt->loss_scale.scale,
                      gradient, gpt->d_logits, gpt->losses);
        if (gradient) {
            head_backward(gpt, first, rows);
        }
    }
    sum_total(&gpt->operations, gpt->losses, tokens, each, true, gpt->loss, 0);
}

static void tell(const struct gpt_listener *listener, int64_t sublayer) {
    if (listener) {
        listener->gradients_launched(listener->context, sublayer);
    }
}

/* A layer forward again, from its streams to all that its backward pass needs. The last layer's is still there. */
static void recompute_layer(struct gpt *gpt, int64_t layer) {
    if (layer + 1 == gpt->config.n_layer) {
        return;
    }
    hyper_connection_enter(gpt, 2 * layer);
    branch_forward(gpt, 2 * layer);
    hyper_connection_leave(gpt, 2 * layer);
    hyper_connection_enter(gpt, 2 * layer + 1);
    branch_forward(gpt, 2 * layer + 1);
}

void gpt_backward(struct gpt *gpt, const struct gpt_listener *listener) {
    const struct parameters *parameters = &gpt->parameters;
    const struct gpt_scratch *scratch = &gpt->scratch;
    final_norm_backward(&gpt->operations, gpt_tokens(gpt), gpt->top_streams, parameters->weights,
                        parameters->final_gain, parameters->final_bias, gpt->final_statistics, gpt->d_final,
                        scratch->d_streams, parameters->gradients);
    for (int64_t index = 2 * gpt->config.n_layer - 1; index >= 0; index--) {
        if (gpt->options.recompute && index % 2 == 1) {
            recompute_layer(gpt, index / 2);
        }
        const struct buffer *d_output = hyper_connection_leave_backward(gpt, index);
        branch_backward(gpt, index, d_output);
        hyper_connection_enter_backward(gpt, index);
        tell(listener, index);
    }
    const struct token_groups groups = {gpt->group_ids, gpt->group_starts, gpt->group_places, gpt->distinct_tokens};
    embedding_backward(&gpt->operations, gpt->shape, groups, embedding_dropout(gpt), scratch->d_streams,
                       scratch->d_embedding, parameters->gradients, parameters->token_embedding,
                       parameters->position_embedding);
    tell(listener, -1);
}

void gpt_zero(struct gpt *gpt) {
    if (gpt->options.mode == GPT_TRAINING) {
        buffer_zero(gpt->compute, gpt->parameters.gradients, 0, gpt->parameters.elements * sizeof(float));
    }
    gpt_zero_loss(gpt);
}

void gpt_zero_loss(struct gpt *gpt) {
    buffer_zero(gpt->compute, gpt->loss, 0, sizeof(float));
}

int gpt_read_results(struct gpt *gpt, float *loss, float *gradient_norm) {
    if (buffer_read(gpt->compute, gpt->loss, 0, loss, sizeof *loss)) {
        return -1;
    }
    return gradient_norm ? buffer_read(gpt->compute, gpt->gradient_norm, 0, gradient_norm, sizeof *gradient_norm)
                         : 0;
}

int gpt_read_losses(struct gpt *gpt, size_t first, size_t count, float *losses) {
    return buffer_read(gpt->compute, gpt->losses, first * sizeof *losses, losses, count * sizeof *losses);
}

int gpt_read_logits(struct gpt *gpt, size_t first, size_t rows, float *logits) {
    const size_t vocabulary = gpt->vocabulary;
    for (size_t done = 0; done < rows; done += gpt->logit_rows) {
        const size_t block = rows - done < gpt->logit_rows ? rows - done : gpt->logit_rows;
        head_logits(gpt, first + done, block);
        if (buffer_read(gpt->compute, gpt->logits, 0, logits + done * vocabulary,
                        block * vocabulary * sizeof *logits)) {
            return -1;
        }
    }
    return 0;
}

/* The part of [first, first + count) that this rank has the moments of in a bucket; count 0: none. */
static struct element_range owned_part(const struct bucket *bucket, uint64_t first, uint64_t count) {
    const uint64_t low = bucket->own.offset > first ? bucket->own.offset : first;
    const uint64_t own_end = bucket->own.offset + bucket->own.count, end = first + count;
    const uint64_t high = own_end < end ? own_end : end;
    return (struct element_range){low, high > low ? high - low : 0};
}

/* Elements [first, first + count) of a moment, as far as this rank has them: read to `into`, or written from
 * `from`. */
static int move_moments(struct gpt *gpt, const struct buffer *moments, uint64_t first, uint64_t count, float *into,
                        const float *from) {
    int status = 0;
    for (size_t i = 0; i < gpt->buckets.count && status == 0; i++) {
        const struct bucket *bucket = &gpt->buckets.table[i];
        const struct element_range part = owned_part(bucket, first, count);
        const size_t place = (bucket->moments + part.offset - bucket->own.offset) * sizeof(float);
        const size_t bytes = part.count * sizeof(float);
        if (part.count && into) {
            status = buffer_read(gpt->compute, moments, place, into + (part.offset - first), bytes);
        } else if (part.count) {
            status = buffer_write(gpt->compute, moments, place, from + (part.offset - first), bytes);
        }
    }
    return status;
}

/* On rank 0, after merging: whether a rank had to give up its part. Its bits are a NaN that no arithmetic makes. */
static int find_broken(const struct gpt *gpt, const float *values, uint64_t count) {
    for (uint64_t i = 0; gpt->options.ranks->index == 0 && i < count; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        if (bits == UINT32_MAX) {
            return error_set("another rank cannot read its part of the optimiser's moments");
        }
    }
    return 0;
}

int gpt_read_moments(struct gpt *gpt, const struct buffer *moments, uint64_t first, uint64_t count, float *values) {
    if (!gpt->options.shard_moments) {
        return buffer_read(gpt->compute, moments, first * sizeof *values, values, count * sizeof *values);
    }
    memset(values, 0, count * sizeof *values);
    const int status = move_moments(gpt, moments, first, count, values, NULL);
    if (status) { /* the others expect this rank all the same; rank 0 must not take its part for zeros */
        memset(values, 0xff, count * sizeof *values);
    }
    return ranks_merge(gpt->options.ranks, values, count) || status || find_broken(gpt, values, count) ? -1 : 0;
}

int gpt_write_moments(struct gpt *gpt, const struct buffer *moments, uint64_t first, uint64_t count,
                      const float *values) {
    return gpt->options.shard_moments
               ? move_moments(gpt, moments, first, count, NULL, values)
               : buffer_write(gpt->compute, moments, first * sizeof *values, values, count * sizeof *values);
}

double gpt_flops_per_token(const struct gpt *gpt) {
    const struct model_config *config = &gpt->config;
    const double width = (double)config->n_embd, layers = (double)config->n_layer;
    const double lookups = (double)config->block_size * width; /* positions are added, not multiplied */
    return 6.0 * ((double)gpt->parameters.total - lookups) + 12.0 * layers * width * (double)gpt->shape.sequence;
}

/* ---- batches */

/* Counts, then places: tokens grouped by id in the order of their first id, each group in the order of its places.
 */
static int group_tokens(struct gpt *gpt, const int32_t *x) {
    const size_t tokens = gpt_tokens(gpt), vocabulary = (size_t)gpt->config.vocab_size;
    int32_t *counts = gpt->token_scratch, *ids = counts + vocabulary, *starts = ids + tokens;
    int32_t *places = starts + tokens + 1;
    memset(counts, 0, vocabulary * sizeof *counts);
    for (size_t i = 0; i < tokens; i++) {
        counts[x[i]]++;
    }
    size_t distinct = 0;
    int32_t start = 0;
    for (size_t id = 0; id < vocabulary; id++) {
        if (counts[id] > 0) {
            ids[distinct] = (int32_t)id;
            starts[distinct++] = start;
            start += counts[id];
            counts[id] = start - counts[id]; /* from here on: where its next place goes */
        }
    }
    starts[distinct] = start;
    for (size_t i = 0; i < tokens; i++) {
        places[counts[x[i]]++] = (int32_t)i;
    }
    gpt->distinct_tokens = distinct;
    return buffer_write(gpt->compute, gpt->group_ids, 0, ids, distinct * sizeof *ids) ||
                   buffer_write(gpt->compute, gpt->group_starts, 0, starts, (distinct + 1) * sizeof *starts) ||
                   buffer_write(gpt->compute, gpt->group_places, 0, places, tokens * sizeof *places)
               ? -1
               : 0;
}

static int check_ids(const struct gpt *gpt, const int32_t *ids, int32_t lowest, int64_t count, const char *name) {
    for (size_t i = 0; i < gpt_tokens(gpt); i++) {
        if (ids[i] < lowest || ids[i] >= count) {
            return error_set("%s[%zu] = %" PRId32 " is not a token of this model (%s %" PRId64 ")", name, i, ids[i],
                             count == gpt->config.vocab_size ? "vocab_size" : "it is scored over the first", count);
        }
    }
    return 0;
}

/* Transposed keys are stored in whole tiles. */
static int64_t padded_keys(const struct gpt *gpt, int64_t sequence) {
    const int64_t tile = (int64_t)operations_key_tile(gpt->compute);
    return (sequence + tile - 1) / tile * tile;
}

int64_t gpt_batch_room(const struct gpt *gpt, int64_t sequence) {
    const struct gpt_options *options = &gpt->options;
    if (options->mode == GPT_GENERATION) {
        return sequence == 1 ? options->batch : 1;
    }
    const int64_t by_tokens = options->batch * options->sequence / sequence;
    const int64_t by_keys = options->batch * padded_keys(gpt, options->sequence) / padded_keys(gpt, sequence);
    return by_tokens < by_keys ? by_tokens : by_keys;
}

int gpt_set_batch(struct gpt *gpt, struct token_shape shape, const int32_t *x, const int32_t *y) {
    if (shape.batch < 1 || shape.sequence < 1 || shape.sequence > gpt->options.sequence ||
        shape.batch > gpt_batch_room(gpt, shape.sequence)) {
        return error_set("a batch of %" PRId64 " x %" PRId64 " does not fit into %" PRId64 " x %" PRId64,
                         shape.batch, shape.sequence, gpt->options.batch, gpt->options.sequence);
    }
    gpt->shape = shape;
    const size_t tokens = gpt_tokens(gpt);
    if (check_ids(gpt, x, 0, gpt->config.vocab_size, "x") ||
        (y && check_ids(gpt, y, -1, (int64_t)gpt->vocabulary, "y")) ||
        buffer_write(gpt->compute, gpt->tokens, 0, x, tokens * sizeof *x)) {
        return -1;
    }
    gpt->valid_targets = 0;
    for (size_t i = 0; y && i < tokens; i++) {
        gpt->valid_targets += y[i] >= 0;
    }
    if (y && buffer_write(gpt->compute, gpt->targets, 0, y, tokens * sizeof *y)) {
        return -1;
    }
    return gpt->options.mode == GPT_TRAINING ? group_tokens(gpt, x) : 0;
}

/* ---- memory */

/* `per_token` floats for every token. */
static struct buffer *add(struct gpt *gpt, const char *group, uint64_t per_token) {
    return memory_plan_add(&gpt->plan, group, per_token * gpt_tokens(gpt), sizeof(float));
}

/* `elements` of the activations' type. */
static struct buffer *add_stored(struct gpt *gpt, const char *group, uint64_t elements) {
    return memory_plan_add_typed(&gpt->plan, group, elements, gpt->options.type);
}

/* An activation: `per_token` of them for every token. */
static struct buffer *add_activation(struct gpt *gpt, const char *group, uint64_t per_token) {
    return add_stored(gpt, group, per_token * gpt_tokens(gpt));
}

static void plan_parameters(struct gpt *gpt) {
    struct parameters *parameters = &gpt->parameters;
    struct memory_plan *plan = &gpt->plan;
    parameters->weights = memory_plan_add(plan, "weights", parameters->elements, sizeof(float));
    parameters->operands = gpt->options.type == ELEMENT_FP32
                               ? parameters->weights
                               : add_stored(gpt, "weights in 16 bits", parameters->elements);
    if (gpt->options.mode == GPT_TRAINING) {
        parameters->gradients = memory_plan_add(plan, "gradients", parameters->elements, sizeof(float));
        const uint64_t moments = gpt->options.shard_moments ? gpt->buckets.moments : parameters->elements;
        parameters->first_moments = memory_plan_add(plan, "optimiser moments", moments, sizeof(float));
        parameters->second_moments = memory_plan_add(plan, "optimiser moments", moments, sizeof(float));
    }
}

static bool shares_streams(const struct gpt *gpt) {
    return gpt->options.mode == GPT_INFERENCE || gpt->options.mode == GPT_GENERATION;
}

/* What the frame keeps of a sublayer; shared by sublayers two apart unless the mode keeps streams. */
static void plan_frame(struct gpt *gpt, int64_t index) {
    struct sublayer *sublayer = &gpt->sublayers[index];
    const struct sublayer *older = index >= 2 && shares_streams(gpt) ? sublayer - 2 : NULL;
    const uint64_t streams = (uint64_t)gpt->config.n_streams, width = (uint64_t)gpt->config.n_embd;
    const bool plain = residual_is_plain(gpt->config.residual);
    const uint64_t projections = residual_columns(gpt->config.residual, gpt->config.n_streams) *
                                 residual_norm_groups(gpt->config.residual, gpt->config.n_streams);
    if (older) {
        sublayer->streams = older->streams;
        sublayer->squares = older->squares;
        sublayer->z = older->z;
        sublayer->h = older->h;
        return;
    }
    const bool inside = gpt->options.recompute && index % 2 == 1; /* a layer */
    sublayer->streams =
        inside && index > 1 ? sublayer[-2].streams : add_activation(gpt, "streams", streams * width);
    sublayer->squares = add(gpt, "streams", streams);
    sublayer->gram =
        gpt->options.recompute && !plain ? add(gpt, "hyper-connection matrices", streams * streams) : NULL;
    /* without a map these are handed to kernels that do not read them */
    sublayer->z = plain ? sublayer->squares : add(gpt, "hyper-connection matrices", projections);
    sublayer->h = plain ? sublayer->squares : add(gpt, "hyper-connection matrices", streams * (streams + 2));
}

/* What a branch keeps; shared by all layers unless training without recomputing. */
static void plan_branch(struct gpt *gpt, int64_t index) {
    struct sublayer *sublayer = &gpt->sublayers[index];
    const bool training = gpt->options.mode == GPT_TRAINING;
    const bool plain = residual_is_plain(gpt->config.residual);
    const struct sublayer *older = index >= 2 ? sublayer - 2 : NULL, *first = index >= 1 ? gpt->sublayers : NULL;
    const uint64_t width = (uint64_t)gpt->config.n_embd;
    const bool attention = index % 2 == 0;
    const bool shared = older && (!training || gpt->options.recompute);
    sublayer->normed = shared ? older->normed : add_activation(gpt, "branch activations", width);
    sublayer->statistics = shared ? older->statistics : add(gpt, "branch activations", 2);
    sublayer->wide = shared ? older->wide : add_activation(gpt, "branch activations", (attention ? 3 : 4) * width);
    /* the output of GELU is computed again in the backward pass, so one buffer serves all layers */
    sublayer->inner = shared || (older && !attention)
                          ? older->inner
                          : add_activation(gpt, "branch activations", (attention ? 1 : 4) * width);
    sublayer->lse = !attention ? NULL
                    : shared   ? older->lse
                               : add(gpt, "branch activations", (uint64_t)gpt->config.n_head);
    sublayer->output = first && (plain || !training) ? first->output
                       : shared                      ? older->output
                                                     : add_activation(gpt, "branch activations", width);
}

/* What generation keeps from token to token. */
static void plan_cache(struct gpt *gpt, int64_t index) {
    const struct model_config *config = &gpt->config;
    struct sublayer *sublayer = &gpt->sublayers[index];
    const uint64_t width = (uint64_t)config->n_embd, streams = (uint64_t)config->n_streams;
    const uint64_t elements = (uint64_t)(gpt->options.batch * gpt->options.sequence) * width;
    const uint64_t packed = (uint64_t)residual_columns(config->residual, config->n_streams) * streams * width /
                            (uint64_t)residual_norm_groups(config->residual, config->n_streams);
    sublayer->packed = add_stored(gpt, "weights", packed);
    if (index % 2 == 0) {
        sublayer->keys = add_stored(gpt, "keys and values", elements);
        sublayer->values = add_stored(gpt, "keys and values", elements);
    }
}

static void plan_scratch(struct gpt *gpt) {
    const struct model_config *config = &gpt->config;
    struct gpt_scratch *scratch = &gpt->scratch;
    const uint64_t streams = (uint64_t)config->n_streams, width = (uint64_t)config->n_embd;
    const uint64_t groups = (uint64_t)residual_norm_groups(config->residual, config->n_streams);
    const uint64_t columns = (uint64_t)residual_columns(config->residual, config->n_streams);
    const uint64_t packed = streams * width / groups * columns;
    const bool training = gpt->options.mode == GPT_TRAINING;
    const uint64_t padded = (uint64_t)padded_keys(gpt, gpt->options.sequence);
    const uint64_t keys = (uint64_t)gpt->shape.batch * width * padded;
    struct memory_plan *plan = &gpt->plan;
    scratch->packed = add_stored(gpt, "scratch", packed);
    scratch->keys_t = add_stored(gpt, "scratch", keys);
    if (gpt->options.mode == GPT_GENERATION) {
        scratch->scores =
            memory_plan_add(plan, "scratch", (uint64_t)gpt->options.batch * (uint64_t)config->n_head * padded,
                            sizeof(float));
    }
    if (!shares_streams(gpt)) {
        scratch->d_h = add(gpt, "scratch", streams * (streams + 2));
    }
    if (!training) {
        return;
    }
    scratch->d_packed = memory_plan_add(plan, "scratch", packed, sizeof(float));
    scratch->values_t = add_stored(gpt, "scratch", keys);
    scratch->delta = add(gpt, "scratch", (uint64_t)config->n_head);
    scratch->d_streams = add_activation(gpt, "scratch", streams * width);
    scratch->d_output = add_activation(gpt, "scratch", width);
    scratch->d_normed = add_activation(gpt, "scratch", width);
    scratch->d_inner = add_activation(gpt, "scratch", 4 * width);
    scratch->d_wide = add_activation(gpt, "scratch", 3 * width);
    scratch->d_z = add(gpt, "scratch", groups * columns);
    scratch->d_z_operand =
        gpt->options.type == ELEMENT_FP32 ? scratch->d_z : add_activation(gpt, "scratch", groups * columns);
    scratch->rms_scale = add(gpt, "scratch", groups);
    scratch->d_embedding = add(gpt, "scratch", width);
}

/* As many tokens' logits at a time as fit into 64 MiB, or some 16. */
static size_t logit_rows(const struct gpt *gpt) {
    if (gpt->options.mode == GPT_GENERATION) {
        return (size_t)gpt->options.batch;
    }
    const size_t most = ((size_t)64 << 20) / sizeof(float) / gpt->vocabulary;
    const size_t fitting = most < 16 ? 16 : most;
    const size_t tokens = gpt_tokens(gpt), blocks = (tokens + fitting - 1) / fitting;
    return (tokens + blocks - 1) / blocks; /* of one size: a small last block would be slow */
}

static void plan_head(struct gpt *gpt) {
    const uint64_t streams = (uint64_t)gpt->config.n_streams, width = (uint64_t)gpt->config.n_embd;
    struct memory_plan *plan = &gpt->plan;
    gpt->top_streams = add_activation(gpt, "streams", streams * width);
    gpt->top_squares = add(gpt, "streams", streams);
    gpt->final = add_activation(gpt, "head", width);
    gpt->final_statistics = add(gpt, "head", 2 * streams);
    gpt->losses = add(gpt, "head", 1);
    gpt->logit_rows = logit_rows(gpt);
    gpt->logits = memory_plan_add(plan, "head", gpt->logit_rows * gpt->vocabulary, sizeof(float));
    gpt->d_logits = gpt->logits;
    gpt->loss = memory_plan_add(plan, "head", 1, sizeof(float));
    gpt->gradient_norm = memory_plan_add(plan, "head", 1, sizeof(float));
    gpt->tokens = add(gpt, "head", 1);
    gpt->targets = add(gpt, "head", 1);
    if (gpt->options.mode == GPT_TRAINING) {
        if (gpt->options.type != ELEMENT_FP32) {
            gpt->d_logits = add_stored(gpt, "head", gpt->logit_rows * gpt->vocabulary);
        }
        gpt->d_final = add_activation(gpt, "head", width);
        gpt->group_ids = add(gpt, "head", 1);
        gpt->group_starts = add(gpt, "head", 2);
        gpt->group_places = add(gpt, "head", 1);
    }
}

static struct operation_shape operation_shape(const struct gpt *gpt) {
    const struct model_config *config = &gpt->config;
    return (struct operation_shape){
        .streams = config->n_streams,
        .channels = config->n_embd,
        .heads = config->n_head,
        .vocabulary = (int64_t)gpt->vocabulary,
        .bias = config->bias,
        .norm_sum = config->norm_sum,
        .gelu_tanh = config->gelu_tanh,
        .type = gpt->options.type,
        .residual = config->residual,
        .settings = config->settings,
    };
}

static uint64_t larger(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* The fp32 copies of matrix products' operands, where the backend needs them: the largest A, B and C of all
 * products. */
static void plan_copies(struct gpt *gpt) {
    const struct model_config *config = &gpt->config;
    const uint64_t tokens = gpt_tokens(gpt), width = (uint64_t)config->n_embd, vocabulary = gpt->vocabulary;
    const uint64_t streams = tokens * (uint64_t)config->n_streams * width, wide = tokens * 4 * width;
    const uint64_t packed = (uint64_t)residual_columns(config->residual, config->n_streams) *
                            (uint64_t)config->n_streams * width /
                            (uint64_t)residual_norm_groups(config->residual, config->n_streams);
    if (!gemm_copies(gpt->compute, gpt->options.type)) {
        return;
    }
    uint64_t a = wide, b = larger(larger(vocabulary * width, 4 * width * width), packed), c = wide;
    if (!residual_is_plain(config->residual)) {
        a = larger(a, streams);
    }
    if (gpt->options.mode == GPT_TRAINING) {
        a = larger(a, gpt->logit_rows * vocabulary); /* d_logits */
        b = larger(larger(b, wide), residual_is_plain(config->residual) ? 0 : streams);
        c = larger(c, residual_is_plain(config->residual) ? 0 : streams);
    }
    const uint64_t sizes[] = {a, b, c};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memory_plan_count_buffer(&gpt->plan, "fp32 copies for products", sizes[i], sizeof(float));
    }
}

/* What ranks exchange through is allocated on the host, which counts where the device works there too. */
static void plan_exchange(struct gpt *gpt) {
    if (gpt->options.ranks->count > 1 && gpt->compute->device.shares_host_memory) {
        memory_plan_count(&gpt->plan, "exchange of gradients",
                          collective_staging_bytes(gpt->compute, gpt->options.ranks, gpt->buckets.largest,
                                                   gpt->options.bf16_exchange));
    }
}

int gpt_plan(struct compute *compute, const struct model_config *config, const struct gpt_options *options,
             struct gpt *gpt) {
    *gpt = (struct gpt){.compute = compute,
                        .config = *config,
                        .options = *options,
                        .shape = {options->batch, options->sequence}};
    gpt->options.ranks = options->ranks ? options->ranks : &ranks_alone;
    gpt->vocabulary = (size_t)(options->vocabulary ? options->vocabulary : config->vocab_size);
    if (gpt->vocabulary > (size_t)config->vocab_size) {
        return error_set("the model's vocabulary of %" PRId64 " tokens has no %zu of them to score",
                         config->vocab_size, gpt->vocabulary);
    }
    if (options->batch < 1 || options->batch > 1 << 20 || options->sequence < 1 ||
        options->sequence > config->block_size || options->batch * options->sequence > INT32_MAX / 2) {
        return error_set("a batch of %" PRId64 " sequences of %" PRId64
                         " tokens is out of range (block_size %" PRId64 ")",
                         options->batch, options->sequence, config->block_size);
    }
    if (options->mode == GPT_GENERATION) { /* one sequence, or a token of each */
        const int64_t tokens = options->batch > options->sequence ? options->batch : options->sequence;
        gpt->shape = (struct token_shape){1, tokens};
    }
    if (parameters_create(config, &gpt->parameters) ||
        buckets_create(&gpt->parameters, options->bucket_elements, gpt->options.ranks, &gpt->buckets)) {
        gpt_release(gpt);
        return -1;
    }
    gpt->sublayers = calloc(2 * (size_t)config->n_layer, sizeof *gpt->sublayers);
    gpt->token_scratch = calloc((size_t)config->vocab_size + 3 * gpt_tokens(gpt) + 1, sizeof *gpt->token_scratch);
    if (!gpt->sublayers || !gpt->token_scratch) {
        gpt_release(gpt);
        return error_set("out of memory for the model's tables");
    }
    plan_parameters(gpt);
    for (int64_t index = 0; index < 2 * config->n_layer; index++) {
        plan_frame(gpt, index);
        plan_branch(gpt, index);
        if (options->mode == GPT_GENERATION) {
            plan_cache(gpt, index);
        }
    }
    plan_head(gpt);
    plan_scratch(gpt);
    const struct operation_shape shape = operation_shape(gpt);
    memory_plan_count(&gpt->plan, "scratch", operations_scratch_bytes(compute, &shape));
    plan_copies(gpt);
    plan_exchange(gpt);
    gpt->loss_scale = loss_scale_begin(options->type);
    return 0;
}

int gpt_create(struct gpt *gpt) {
    const struct operation_shape shape = operation_shape(gpt);
    if (memory_plan_check(&gpt->plan, &gpt->compute->device) || memory_plan_allocate(&gpt->plan, gpt->compute) ||
        operations_create(gpt->compute, &shape, &gpt->operations)) {
        return -1;
    }
    attention_open_units(&gpt->operations);
    return 0;
}

void gpt_release(struct gpt *gpt) {
    if (gpt->compute && !compute_settle(gpt->compute)) {
        return;
    }
    operations_release(&gpt->operations);
    memory_plan_release(&gpt->plan, gpt->compute);
    buckets_release(&gpt->buckets);
    parameters_release(&gpt->parameters);
    free(gpt->sublayers);
    free(gpt->token_scratch);
    memset(gpt, 0, sizeof *gpt);
}
