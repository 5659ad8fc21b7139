/* The order of the model's operations: tokens -> embedding -> sublayers (enter, branch, leave) -> final norm ->
 * head -> loss, and backward. What enter, leave and the final norm do is decided by the frame (frame.h). Decided
 * elsewhere: all buffers' sizes, how many tokens have logits at a time (logit_rows), and whether the activation
 * function's outputs are kept for the backward pass (keeps_activation): gpt_plan.c, with memory; whether
 * hyper-connections are fused: frame_is_fused (operations.h); whether bias and GELU are part of a GEMM:
 * linear.c. */
#include "src/model/gpt.h"
#include "runtime/system/error.h"
#include "src/model/linear.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

const struct branch *const branches[BRANCHES] = {&branch_attention, &branch_mlp};

/* ---- a batch */

/* What a staging area holds, in this order: rows of upload_tokens numbers. */
enum staged { STAGED_TOKENS, STAGED_TARGETS, STAGED_IDS, STAGED_STARTS, STAGED_PLACES };

static void send(struct gpt *gpt, enum staged which, const struct buffer *buffer, size_t count) {
    const size_t row = gpt->upload_tokens * sizeof(int32_t);
    upload_send(&gpt->upload, (size_t)which * row, buffer, count * sizeof(int32_t));
}

/* Counts, then places: tokens grouped by id in the order of their first id, each group in the order of its places.
 */
static void group_tokens(struct gpt *gpt, const int32_t *x, int32_t *staging) {
    const size_t tokens = gpt_tokens(gpt), vocabulary = (size_t)gpt->config.vocab_size;
    int32_t *counts = gpt->token_counts, *ids = staging + STAGED_IDS * gpt->upload_tokens;
    int32_t *starts = ids + gpt->upload_tokens, *places = starts + gpt->upload_tokens;
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
    gpt->groups.distinct = distinct;
    send(gpt, STAGED_IDS, gpt->groups.ids, distinct);
    send(gpt, STAGED_STARTS, gpt->groups.starts, distinct + 1);
    send(gpt, STAGED_PLACES, gpt->groups.places, tokens);
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

int64_t gpt_batch_capacity(const struct gpt *gpt, int64_t sequence) {
    const struct gpt_options *options = &gpt->options;
    if (options->mode == GPT_GENERATION) {
        return sequence == 1 ? options->batch : 1;
    }
    const int64_t by_tokens = options->batch * options->sequence / sequence;
    const int64_t by_keys = options->batch * (int64_t)operations_padded(&gpt->operations, options->sequence) /
                            (int64_t)operations_padded(&gpt->operations, sequence);
    return by_tokens < by_keys ? by_tokens : by_keys;
}

int gpt_set_batch(struct gpt *gpt, struct token_shape shape, const int32_t *x, const int32_t *y) {
    if (shape.batch < 1 || shape.sequence < 1 || shape.sequence > gpt->options.sequence ||
        shape.batch > gpt_batch_capacity(gpt, shape.sequence)) {
        return error_set("a batch of %" PRId64 " x %" PRId64 " does not fit into %" PRId64 " x %" PRId64,
                         shape.batch, shape.sequence, gpt->options.batch, gpt->options.sequence);
    }
    gpt->shape = shape;
    compute_set_module(gpt->compute, "upload");
    const size_t tokens = gpt_tokens(gpt);
    if (check_ids(gpt, x, 0, gpt->config.vocab_size, "x") ||
        (y && check_ids(gpt, y, -1, (int64_t)gpt->vocabulary, "y"))) {
        return -1;
    }
    int32_t *staging = upload_begin(&gpt->upload);
    memcpy(staging, x, tokens * sizeof *x);
    send(gpt, STAGED_TOKENS, gpt->tokens, tokens);
    gpt->valid_targets = 0;
    for (size_t i = 0; y && i < tokens; i++) {
        gpt->valid_targets += y[i] >= 0;
    }
    if (y) {
        memcpy(staging + STAGED_TARGETS * gpt->upload_tokens, y, tokens * sizeof *y);
        send(gpt, STAGED_TARGETS, gpt->targets, tokens);
    }
    if (gpt->options.mode == GPT_TRAINING) {
        group_tokens(gpt, x, staging);
    }
    return compute_check(gpt->compute);
}

/* ---- passes */

static struct dropout dropout_of(const struct gpt *gpt, double rate, int64_t sublayer, const char *place) {
    char name[64];
    if (!gpt->pass.dropout || rate <= 0.0) {
        return (struct dropout){0};
    }
    if (sublayer < 0) {
        snprintf(name, sizeof name, "%s", place);
    } else {
        snprintf(name, sizeof name, "%" PRId64 " %s", sublayer, place);
    }
    return (struct dropout){
        .rate = (float)rate,
        .key = dropout_key(gpt->pass.seed, gpt->pass.iteration, name),
        .first_row = gpt->pass.first_row,
    };
}

struct dropout gpt_dropout(const struct gpt *gpt, int64_t sublayer, const char *place) {
    return dropout_of(gpt, gpt->config.dropout, sublayer, place);
}

struct dropout gpt_adapter_dropout(const struct gpt *gpt, int64_t sublayer, const char *projection) {
    char place[32];
    snprintf(place, sizeof place, "adapter %s", projection);
    return dropout_of(gpt, gpt->config.lora.dropout, sublayer, place);
}

/* Weights or gradients; `tables` are those of the embeddings. */
static struct embedding embedding_of(const struct gpt *gpt, const struct buffer *tables,
                                     const struct buffer *others) {
    return (struct embedding){{tables, gpt->parameters.token_embedding},
                              {tables, gpt->parameters.position_embedding},
                              {others, gpt->parameters.stream_scale},
                              {others, gpt->parameters.embed_gain}};
}

static struct embedding embedding_weights(const struct gpt *gpt) {
    return embedding_of(gpt, gpt_tables(gpt), gpt->parameters.weights);
}

static struct embedding_input embedding_input_of(const struct gpt *gpt) {
    return (struct embedding_input){gpt->shape, gpt->tokens, gpt_dropout(gpt, -1, "embedding"),
                                    gpt->scratch.embedding_scales};
}

/* The dropout of a branch's output [N, C], or of its gradient, in place. */
static void drop(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *output) {
    compute_set_module(gpt->compute, "dropout");
    dropout_apply(&gpt->operations, gpt_tokens(gpt), (size_t)gpt->config.n_embd,
                  gpt_dropout(gpt, sublayer->index, "output"), output);
}

/* normed [N, C] -> output [N, C] of a branch */
static void branch_forward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct linear_input input = {0, sublayer->at->out.out, sublayer->out_proj_in, NULL,
                                       gpt_adapter_dropout(gpt, sublayer->index, "out")};
    sublayer->branch->forward(gpt, sublayer);
    linear_forward(&gpt->operations, &gpt->parameters, &sublayer->at->out, gpt_tokens(gpt), &input, 1,
                   sublayer->mix.output, NULL);
    drop(gpt, sublayer, sublayer->mix.output);
}

static struct span lambdas_of(const struct buffer *arena, const struct sublayer *sublayer) {
    return (struct span){arena, sublayer->at->lambdas};
}

/* What a layer begins with, from what arrives. */
static void weigh_streams(struct gpt *gpt, const struct sublayer *sublayer) {
    frame_set_module(gpt);
    lambdas_forward(&gpt->operations, gpt_tokens(gpt), sublayer->arriving, gpt->first_streams,
                    lambdas_of(gpt->parameters.weights, sublayer), sublayer->mix.streams, sublayer->mix.squares);
    if (gpt->frame->weighed) {
        gpt->frame->weighed(gpt, sublayer);
    }
}

static void weigh_streams_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    const struct lambda_gradients gradients = {gpt->scratch.d_streams, gpt->scratch.d_first,
                                               lambdas_of(gpt->parameters.gradients, sublayer)};
    frame_set_module(gpt);
    lambdas_backward(&gpt->operations, gpt_tokens(gpt), sublayer->arriving, gpt->first_streams,
                     lambdas_of(gpt->parameters.weights, sublayer), &gradients, gpt->parameters.accumulate);
}

/* A sublayer, up to its frame's leave unless the caller needs no streams behind it. */
static void sublayer_forward(struct gpt *gpt, const struct sublayer *sublayer, bool leaves) {
    frame_set_module(gpt);
    gpt->frame->enter(gpt, sublayer);
    /* with --recompute streams are overwritten later */
    if (gpt->pass.observe && sublayer->gram && !gpt->recomputes) {
        stream_gram(&gpt->operations, gpt_tokens(gpt), sublayer->mix.streams, sublayer->gram);
    }
    branch_forward(gpt, sublayer);
    if (leaves && gpt->frame->leave) {
        frame_set_module(gpt);
        gpt->frame->leave(gpt, sublayer);
    }
}

void gpt_forward(struct gpt *gpt, struct gpt_pass pass) {
    const struct sublayer *sublayer = gpt->sublayers;
    gpt->pass = pass;
    compute_set_module(gpt->compute, "embedding");
    const struct embedding_input input = embedding_input_of(gpt);
    embedding_forward(&gpt->operations, &input, pass.position, embedding_weights(gpt), gpt->first_streams,
                      sublayer->mix.squares);
    if (gpt->frame->begin) {
        frame_set_module(gpt);
        gpt->frame->begin(gpt);
    }
    for (; sublayer->branch; sublayer++) {
        if (sublayer->arriving) {
            weigh_streams(gpt, sublayer);
        }
        sublayer_forward(gpt, sublayer, true);
    }
    compute_set_module(gpt->compute, "head");
    gpt->frame->top(gpt);
}

/* logits [rows, V] of tokens first .. = final W^T + bias, before they are capped; W is wte or lm_head */
static void head_logits(struct gpt *gpt, size_t first, size_t rows) {
    const struct parameters *parameters = &gpt->parameters;
    const size_t width = (size_t)gpt->config.n_embd, vocabulary = gpt->vocabulary;
    linear_multiply(&gpt->operations, matrix_of(gpt->final, first * width, rows, width),
                    matrix_of(parameters->weights_lowp, parameters->head, vocabulary, width),
                    matrix_of(gpt->logits, 0, rows, vocabulary));
    if (gpt->config.head_bias) {
        head_bias_forward(&gpt->operations, rows, (struct span){parameters->weights, parameters->head_bias},
                          gpt->logits);
    }
}

/* Computes d_final from d_logits, and the gradients of the head's bias and weights, which may be those of the token
 * embedding. */
static void head_backward(struct gpt *gpt, size_t first, size_t rows) {
    const struct parameters *parameters = &gpt->parameters;
    const size_t width = (size_t)gpt->config.n_embd, vocabulary = gpt->vocabulary, head = parameters->head;
    const struct matrix d_logits = matrix_of(gpt->d_logits, 0, rows, vocabulary);
    const bool adds = first > 0 || parameters->accumulate;
    linear_input_backward(gpt->compute, d_logits, matrix_of(parameters->weights_lowp, head, vocabulary, width),
                          matrix_of(gpt->d_final, first * width, rows, width), false);
    if (parameters_train(parameters, head)) {
        linear_matrix_backward(gpt->compute, d_logits, matrix_of(gpt->final, first * width, rows, width),
                               matrix_of(parameters->gradients, head, vocabulary, width), adds);
    }
    if (gpt->config.head_bias) {
        head_bias_backward(&gpt->operations, rows, gpt->d_logits,
                           (struct span){parameters->gradients, parameters->head_bias}, adds);
    }
}

/* Sets rows [first, rows) of an embedding's gradient to zero, if it has one. */
static void clear_rows(struct gpt *gpt, uint64_t embedding, size_t first, int64_t rows) {
    const size_t row = (size_t)gpt->config.n_embd * sizeof(float);
    if (parameters_train(&gpt->parameters, embedding)) {
        buffer_zero(gpt->compute, gpt->parameters.gradients, embedding * sizeof(float) + first * row,
                    ((size_t)rows - first) * row);
    }
}

/* Sets to zero the gradients that a first backward pass does not write: rows of the head's weights for ids >= V,
 * which are not scored, and its bias for these; of the token embedding if its weights are others; and of the
 * position embedding for positions past the batch's sequences. */
static void clear_unreached(struct gpt *gpt) {
    const struct parameters *parameters = &gpt->parameters;
    clear_rows(gpt, parameters->head, gpt->vocabulary, gpt->config.vocab_size);
    if (!gpt->config.tie_embeddings) {
        clear_rows(gpt, parameters->token_embedding, 0, gpt->config.vocab_size);
    }
    if (gpt->config.head_bias) {
        buffer_zero(gpt->compute, parameters->gradients, (parameters->head_bias + gpt->vocabulary) * sizeof(float),
                    ((size_t)gpt->config.vocab_size - gpt->vocabulary) * sizeof(float));
    }
    if (gpt->config.position == POSITION_LEARNED) {
        clear_rows(gpt, parameters->position_embedding, (size_t)gpt->shape.sequence, gpt->config.block_size);
    }
}

void gpt_loss(struct gpt *gpt, float scale, bool gradient) {
    const size_t tokens = gpt_tokens(gpt);
    compute_set_module(gpt->compute, "head");
    if (gradient && !gpt->parameters.accumulate) {
        clear_unreached(gpt);
    }
    /* the loss is `scale` times the mean over all targets that are not -1 */
    const float weight_per_target = gpt->valid_targets ? scale / (float)gpt->valid_targets : 0.0f;
    for (size_t first = 0; first < tokens; first += gpt->logit_rows) {
        const size_t rows = tokens - first < gpt->logit_rows ? tokens - first : gpt->logit_rows;
        head_logits(gpt, first, rows);
        cross_entropy(&gpt->operations, first, rows, gpt->logits, gpt->targets,
                      weight_per_target * gpt->loss_scale.scale, gradient ? gpt->d_logits : NULL, gpt->losses);
        if (gradient) {
            head_backward(gpt, first, rows);
        }
    }
    sum_total(&gpt->operations, gpt->losses, tokens, weight_per_target, true, (struct span){gpt->loss, 0});
}

/* Gradients of this sublayer are complete, as a listener learns. */
static void notify(const struct gpt *gpt, const struct gpt_listener *listener, int64_t sublayer) {
    if (listener) {
        frozen_clear(gpt->compute, &gpt->parameters, sublayer);
        listener->gradients_launched(listener->context, sublayer);
    }
}

/* Completes the gradients of a sublayer, or with NULL of all. */
static void finish_backward(struct gpt *gpt, const struct sublayer *sublayer) {
    if (gpt->frame->finish_backward) {
        frame_set_module(gpt);
        gpt->frame->finish_backward(gpt, sublayer);
    }
}

/* The same for a listener; without one gpt_backward completes all together. */
static void complete(struct gpt *gpt, const struct sublayer *sublayer, const struct gpt_listener *listener) {
    if (listener && sublayer->branch) {
        finish_backward(gpt, sublayer);
        notify(gpt, listener, sublayer->index);
    }
}

static void layer_backward(struct gpt *gpt, const struct sublayer layer[BRANCHES],
                           const struct gpt_listener *listener) {
    const bool completes_next = gpt->frame->completes_next;
    for (int i = BRANCHES - 1; i >= 0; i--) {
        frame_set_module(gpt);
        const struct buffer *d_output = gpt->frame->leave_backward(gpt, &layer[i]);
        if (completes_next) {
            complete(gpt, &layer[i + 1], listener);
        }
        drop(gpt, &layer[i], d_output);
        layer[i].branch->backward(gpt, &layer[i], d_output);
        frame_set_module(gpt);
        gpt->frame->enter_backward(gpt, &layer[i]);
        if (i == 0 && layer->arriving) {
            weigh_streams_backward(gpt, layer);
        }
        if (!completes_next || layer[i].index == 0) {
            complete(gpt, &layer[i], listener);
        }
    }
}

/* The backward pass of the embedding. Its rows are added to the token embedding's gradient, which the head or
 * clear_unreached has begun; or, if row_gradients_begin was called before this pass and has room for them, to a
 * zeroed buffer of their own, so that several ranks can sum the head's part meanwhile. */
static void embedding_part_backward(struct gpt *gpt) {
    const struct row_gradients *rows = &gpt->row_gradients;
    struct embedding gradients = embedding_of(gpt, gpt->parameters.gradients, gpt->parameters.gradients);
    struct token_groups groups = gpt->groups;
    if (rows->count) {
        gradients.tokens = (struct span){rows->rows, 0};
        groups.ids = rows->places;
    } else if (!parameters_train(&gpt->parameters, gradients.tokens.offset)) {
        gradients.tokens.buffer = NULL;
    }
    if (!parameters_train(&gpt->parameters, gradients.positions.offset)) {
        gradients.positions.buffer = NULL;
    }
    const struct embedding weights = embedding_weights(gpt);
    const struct embedding_input input = embedding_input_of(gpt);
    embedding_backward(&gpt->operations, &input, groups, weights, gpt->scratch.d_first, gpt->scratch.d_embedding,
                       gradients, gpt->parameters.accumulate);
}

void gpt_backward(struct gpt *gpt, const struct gpt_listener *listener) {
    const int64_t last = gpt->config.n_layer - 1;
    compute_set_module(gpt->compute, "head");
    gpt->frame->top_backward(gpt);
    if (gpt->config.x0_lambdas) {
        buffer_zero(gpt->compute, gpt->scratch.d_first, 0, gpt_activation_bytes(gpt, gpt_stream_row(gpt)));
    }
    notify(gpt, listener, BRANCHES * gpt->config.n_layer);
    for (int64_t layer = last; layer >= 0; layer--) {
        const struct sublayer *first = &gpt->sublayers[BRANCHES * layer];
        /* Runs the layer forward again, from its input streams to all buffers that its backward pass reads. They
         * still hold the last layer's values. */
        gpt->recomputes = gpt->options.recompute && layer < last;
        for (int i = 0; gpt->recomputes && i < BRANCHES; i++) {
            sublayer_forward(gpt, &first[i], i + 1 < BRANCHES);
        }
        gpt->recomputes = false;
        layer_backward(gpt, first, listener);
    }
    if (!listener) {
        finish_backward(gpt, NULL);
    }
    compute_set_module(gpt->compute, "embedding");
    embedding_part_backward(gpt);
    gpt->parameters.accumulate = true; /* later micro-batches of the step add; gpt_zero starts anew */
    if (!listener) {
        frozen_clear(gpt->compute, &gpt->parameters, FROZEN_ALL);
    }
    notify(gpt, listener, -1);
}

void gpt_zero(struct gpt *gpt) {
    gpt->parameters.accumulate = false;
    compute_set_module(gpt->compute, "head");
    buffer_zero(gpt->compute, gpt->loss, 0, sizeof(float));
}

/* ---- results */

int gpt_read_results(struct gpt *gpt, float *loss, float *gradient_norm) {
    if (buffer_read(gpt->compute, gpt->loss, 0, loss, sizeof *loss)) {
        return -1;
    }
    return gradient_norm ? buffer_read(gpt->compute, gpt->gradient_norm, 0, gradient_norm, sizeof *gradient_norm)
                         : 0;
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
    const float cap = (float)gpt->config.logit_softcap;
    const bool by_tanh = gpt->config.softcap_kind == SOFTCAP_TANH;
    for (size_t i = 0; cap > 0.0f && i < rows * vocabulary; i++) {
        const float ratio = logits[i] / cap;
        logits[i] = cap * (by_tanh ? tanhf(ratio) : ratio / hypotf(ratio, 1.0f));
    }
    return 0;
}

/* ---- rows of token gradients that are kept apart */

size_t row_gradients_words(const struct gpt *gpt) {
    return ((size_t)gpt->config.vocab_size + 31) / 32;
}

/* The batch's counts are those of its groups by now: an end of each group, zero where there is none. */
static bool is_in_batch(const struct gpt *gpt, size_t id) {
    return gpt->token_counts[id] > 0;
}

void row_gradients_mark(const struct gpt *gpt, uint32_t *words) {
    for (size_t id = 0; id < (size_t)gpt->config.vocab_size; id++) {
        words[id / 32] |= (uint32_t)is_in_batch(gpt, id) << id % 32;
    }
}

void row_gradients_begin(struct gpt *gpt, const uint32_t *words) {
    struct row_gradients *rows = &gpt->row_gradients;
    const size_t row = (size_t)gpt->config.n_embd * sizeof(float);
    size_t count = 0;
    for (size_t i = 0; i < row_gradients_words(gpt); i++) {
        count += (size_t)__builtin_popcount(words[i]);
    }
    rows->count = 0;
    if (count > rows->most) {
        return;
    }
    compute_set_module(gpt->compute, "embedding");
    int32_t *ids = upload_begin(&rows->upload), *places = ids + rows->most;
    size_t distinct = 0;
    for (size_t id = 0; id < (size_t)gpt->config.vocab_size; id++) {
        if (words[id / 32] >> id % 32 & 1) {
            if (is_in_batch(gpt, id)) {
                places[distinct++] = (int32_t)rows->count;
            }
            ids[rows->count++] = (int32_t)id;
        }
    }
    upload_send(&rows->upload, 0, rows->ids, count * sizeof *ids);
    upload_send(&rows->upload, rows->most * sizeof *ids, rows->places, distinct * sizeof *places);
    buffer_zero(gpt->compute, rows->rows, 0, count * row);
}

void row_gradients_join(struct gpt *gpt) {
    struct row_gradients *rows = &gpt->row_gradients;
    if (rows->count) {
        const struct parameters *parameters = &gpt->parameters;
        compute_set_module(gpt->compute, "embedding");
        embedding_add_rows(&gpt->operations, rows->count, rows->rows, rows->ids, rows->numbers,
                           (struct span){parameters->gradients, parameters->token_embedding});
        rows->count = 0;
    }
}

/* ---- generation */

/* A pass over the batch, and the logits of the last `rows` tokens. */
static int run(struct gpt *gpt, struct token_shape shape, const int32_t *tokens, struct gpt_pass pass, size_t rows,
               float *logits) {
    if (gpt->options.mode != GPT_GENERATION) {
        return error_set("the model is not planned for generation");
    }
    if (gpt_set_batch(gpt, shape, tokens, NULL)) {
        return -1;
    }
    gpt_forward(gpt, pass);
    return gpt_read_logits(gpt, gpt_tokens(gpt) - rows, rows, logits);
}

int generation_prefill(struct gpt *gpt, int64_t row, const int32_t *tokens, size_t count, float *logits) {
    if (row < 0 || row >= gpt->options.batch || count < 1 || count > (size_t)gpt->options.sequence) {
        return error_set("%zu tokens for row %" PRId64 " do not fit into %" PRId64 " rows of %" PRId64, count, row,
                         gpt->options.batch, gpt->options.sequence);
    }
    return run(gpt, (struct token_shape){1, (int64_t)count}, tokens,
               (struct gpt_pass){.cache = CACHE_FILL, .cache_row = row}, 1, logits);
}

int generation_step(struct gpt *gpt, int64_t rows, int64_t position, const int32_t *tokens, float *logits) {
    if (rows < 1 || rows > gpt->options.batch || position < 1 || position >= gpt->options.sequence) {
        return error_set("position %" PRId64 " of %" PRId64 " rows does not fit into %" PRId64 " rows of %" PRId64,
                         position, rows, gpt->options.batch, gpt->options.sequence);
    }
    return run(gpt, (struct token_shape){rows, 1}, tokens,
               (struct gpt_pass){.cache = CACHE_STEP, .position = position}, (size_t)rows, logits);
}

void generation_copy(struct gpt *gpt, int64_t from, int64_t to) {
    const size_t bytes = (size_t)(head_shape(&gpt->operations.shape).kv_row * gpt->options.sequence) *
                         element_size(gpt->options.type); /* of a row */
    if (from == to) {
        return;
    }
    for (const struct sublayer *sublayer = gpt->sublayers; sublayer->branch; sublayer++) {
        const struct buffer *const caches[] = {sublayer->keys, sublayer->values};
        for (size_t i = 0; sublayer->keys && i < 2; i++) {
            buffer_copy(gpt->compute, caches[i], (size_t)from * bytes, caches[i], (size_t)to * bytes, bytes);
        }
    }
}
