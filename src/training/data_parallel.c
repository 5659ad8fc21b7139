#include "src/training/data_parallel.h"
#include "runtime/gemm/gemm_measure.h"
#include "runtime/system/error.h"
#include "runtime/system/progress.h"
#include "src/model/row_gradients.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PIECE ((uint64_t)1 << 20) /* weights moved between host and device at a time */

/* ---- making and releasing */

static void add_item(struct data_parallel *parallel, enum collective_kind kind, const struct buffer *buffer,
                     struct element_range range, int64_t complete_after) {
    parallel->items[parallel->item_count] = (struct collective_item){kind, buffer, range};
    parallel->complete_after[parallel->item_count++] = complete_after;
}

/* All buckets of an arena, or those of the token embedding only, or the others. */
enum choice { ALL_BUCKETS, TOKEN_BUCKETS, OTHER_BUCKETS };
static void add_buckets(struct data_parallel *parallel, enum collective_kind kind, const struct buffer *buffer,
                        enum choice choice) {
    for (size_t i = 0; i < parallel->buckets.count; i++) {
        const struct bucket *bucket = &parallel->buckets.table[i];
        if (choice == ALL_BUCKETS || bucket->of_tokens == (choice == TOKEN_BUCKETS)) {
            const int64_t top = BRANCHES * parallel->gpt->config.n_layer;
            add_item(parallel, kind, buffer, bucket->range, choice == TOKEN_BUCKETS ? top : bucket->complete_after);
        }
    }
}

/* The token embedding's rows that are kept apart, which every rank needs whatever it owns of that: in pieces no larger than the
 * largest bucket. */
static void add_rows(struct data_parallel *parallel) {
    const struct gpt *gpt = parallel->gpt;
    const uint64_t elements = gpt->row_gradients.count * (uint64_t)gpt->config.n_embd,
                   most = parallel->buckets.largest;
    for (uint64_t done = 0; done < elements; done += most) {
        const struct element_range range = {done, elements - done < most ? elements - done : most};
        add_item(parallel, COLLECTIVE_ALL_REDUCE, gpt->row_gradients.rows, range, -1);
    }
}

/* Of all buckets of an arena. */
static void begin_round(struct data_parallel *parallel, enum collective_kind kind, const struct buffer *buffer) {
    parallel->item_count = 0;
    add_buckets(parallel, kind, buffer, ALL_BUCKETS);
    collective_begin(parallel->collective, parallel->items, parallel->item_count);
}

/* Of gradients in a backward pass: in the order in which they will be complete. */
static void begin_gradients(struct data_parallel *parallel) {
    const enum collective_kind kind = parallel->shares_moments ? COLLECTIVE_REDUCE_SCATTER : COLLECTIVE_ALL_REDUCE;
    const struct buffer *gradients = parallel->gpt->parameters.gradients;
    if (parallel->gpt->row_gradients.count == 0) {
        begin_round(parallel, kind, gradients);
        return;
    }
    parallel->item_count = 0;
    add_buckets(parallel, kind, gradients, TOKEN_BUCKETS);
    add_buckets(parallel, kind, gradients, OTHER_BUCKETS);
    add_rows(parallel);
    collective_begin(parallel->collective, parallel->items, parallel->item_count);
}

/* Of a round, at most. */
static size_t most_items(const struct data_parallel *parallel) {
    const struct gpt *gpt = parallel->gpt;
    const uint64_t rows = gpt->row_gradients.most * (uint64_t)gpt->config.n_embd;
    return parallel->buckets.count + (size_t)(rows / parallel->buckets.largest) + 1;
}

static int create_collective(struct data_parallel *parallel) {
    const struct gpt *gpt = parallel->gpt;
    const struct buffer *buffers[3] = {gpt->parameters.gradients};
    size_t count = 1;
    if (parallel->shares_moments) {
        buffers[count++] = gpt->parameters.weights;
    }
    if (gpt->row_gradients.most) {
        buffers[count++] = gpt->row_gradients.rows;
    }
    const struct collective_settings settings = {
        .items = most_items(parallel),
        .largest = parallel->buckets.largest,
        .bf16 = parallel->bf16,
        .buffers = buffers,
        .buffer_count = count,
    };
    return collective_create(gpt->compute, parallel->ranks, &settings, &parallel->collective);
}

int data_parallel_divide(int64_t steps, const struct ranks *all, int64_t *micro_steps) {
    const int64_t ranks = all->count;
    *micro_steps = steps / ranks;
    if (steps % ranks == 0) {
        return 0;
    }
    const int64_t below = steps / ranks * ranks;
    if (below == 0) {
        return error_set("gradient_accumulation_steps = %" PRId64 " counts over all ranks and there are %" PRId64
                         " of them: give %" PRId64 " or a multiple of it, or start fewer ranks",
                         steps, ranks, ranks);
    }
    return error_set("gradient_accumulation_steps = %" PRId64
                     " counts over all ranks and cannot be divided by %" PRId64 " ranks: give %" PRId64
                     " or %" PRId64,
                     steps, ranks, below, below + ranks);
}

int data_parallel_measure_rate(struct gpt *gpt, const struct ranks *ranks, double *rate) {
    /* as many rows as keep the device busy */
    const size_t width = (size_t)gpt->config.n_embd, most = gpt->compute->device.is_gpu ? 8192 : 1024;
    const size_t tokens = gpt_tokens(gpt), rows = tokens < most ? tokens : most;
    return gemm_measure_rate(gpt->compute, gpt->options.type, rows, 4 * width, width, rate) ||
                   ranks_sum(ranks, rate, 1)
               ? -1
               : 0;
}

/* The buckets are cut from a table of the parameters of their own: the model's is made with its plan. */
static int create_buckets(struct data_parallel *parallel, const struct model_config *config, double mebibytes) {
    const double elements = mebibytes * 1048576.0 / sizeof(float);
    struct parameters parameters;
    if (parameters_create(config, &parameters)) {
        return -1;
    }
    buckets_create(&parameters, elements < 1.0 ? 1 : (uint64_t)elements, parallel->ranks, &parallel->buckets);
    parameters_release(&parameters);
    return 0;
}

/* Tokens of the last micro-batches of all ranks together, if no two are the same. Where there are many more than the vocabulary has,
 * most of it can be expected among them, which is not worth keeping apart. */
static size_t most_rows(const struct train_settings *settings, const struct model_config *config,
                        const struct ranks *ranks) {
    const size_t tokens = (size_t)settings->batch_size * (size_t)config->block_size * (size_t)ranks->count;
    return tokens <= 4 * (size_t)config->vocab_size ? tokens : 0;
}

/* What is exchanged through: on the device, and on the host where that is the device's memory. */
static void count_exchange(struct data_parallel *parallel) {
    struct gpt *gpt = parallel->gpt;
    const uint64_t largest = parallel->buckets.largest;
    uint64_t bytes = collective_device_bytes(gpt->compute, largest, parallel->bf16);
    if (gpt->compute->device.shares_host_memory) {
        bytes += collective_host_bytes(gpt->compute, parallel->ranks, largest, parallel->bf16);
    }
    memory_plan_count(&gpt->plan, "exchange of gradients", bytes);
}

int data_parallel_plan_model(struct data_parallel *parallel, struct ranks *ranks,
                             const struct train_settings *settings, struct compute *compute,
                             const struct model_config *config, struct gpt *gpt) {
    *parallel = (struct data_parallel){.gpt = gpt,
                                       .ranks = ranks,
                                       .shares_moments = settings->shard_optimizer && ranks->count > 1,
                                       .bf16 = settings->allreduce_dtype == ELEMENT_BF16};
    if (create_buckets(parallel, config, settings->allreduce_bucket)) {
        return -1;
    }
    const struct gpt_options options = {
        .batch = settings->batch_size,
        .sequence = config->block_size,
        .mode = GPT_TRAINING,
        .type = (enum element_type)settings->dtype,
        .optimizer = optimizer_at((size_t)settings->optimizer.optimizer),
        .moments = parallel->shares_moments ? &parallel->buckets.share : NULL,
        .shareable = ranks->node.count > 1,
        .row_gradients = ranks->count > 1 ? most_rows(settings, config, ranks) : 0,
        .recompute = settings->recompute == RECOMPUTE_LAYER,
    };
    if (gpt_plan(compute, config, &options, gpt)) {
        return -1;
    }
    if (ranks->count > 1) {
        count_exchange(parallel);
    }
    return 0;
}

int data_parallel_create_model(struct gpt *gpt, struct ranks *ranks) {
    for (int turn = 0; turn < 2; turn++) {
        const bool mine = (ranks->local_index == 0) == (turn == 0);
        if (ranks_agree(ranks, mine ? gpt_create(gpt) : 0)) {
            return -1;
        }
    }
    return 0;
}

/* What this rank does by itself. */
static int create_buffers(struct data_parallel *parallel) {
    const size_t buckets = parallel->buckets.count, items = most_items(parallel);
    parallel->items = calloc(items, sizeof *parallel->items);
    parallel->complete_after = calloc(items, sizeof *parallel->complete_after);
    parallel->tokens = calloc(row_gradients_words(parallel->gpt), sizeof *parallel->tokens);
    parallel->host_squares = calloc(buckets + 1, sizeof *parallel->host_squares);
    if (!parallel->items || !parallel->complete_after || !parallel->tokens || !parallel->host_squares) {
        return error_set("out of memory for the buckets of gradients");
    }
    return parallel->shares_moments
               ? buffer_create(parallel->gpt->compute, &parallel->squares, buckets * sizeof(float))
               : 0;
}

int data_parallel_create(struct data_parallel *parallel) {
    if (parallel->ranks->count == 1) {
        return 0;
    }
    return ranks_agree(parallel->ranks, create_buffers(parallel)) || create_collective(parallel) ? -1 : 0;
}

void data_parallel_release(struct data_parallel *parallel) {
    collective_release(parallel->collective);
    if (parallel->gpt) {
        buffer_release(parallel->gpt->compute, &parallel->squares);
    }
    free(parallel->host_squares);
    free(parallel->items);
    free(parallel->complete_after);
    free(parallel->tokens);
    buckets_release(&parallel->buckets);
    memset(parallel, 0, sizeof *parallel);
}

/* ---- a step */

/* The first items up to those that this sublayer completes. */
static void send_complete(void *context, int64_t sublayer) {
    struct data_parallel *parallel = context;
    size_t complete = 0;
    while (complete < parallel->item_count && parallel->complete_after[complete] >= sublayer) {
        complete++;
    }
    collective_ready(parallel->collective, complete);
}

/* The tokens of all ranks' batches, whose rows go by themselves. */
static int separate_rows(struct data_parallel *parallel) {
    struct gpt *gpt = parallel->gpt;
    const size_t words = row_gradients_words(gpt);
    if (gpt->row_gradients.most == 0) {
        return 0;
    }
    compute_flush(gpt->compute); /* the device goes on while ranks wait for each other */
    memset(parallel->tokens, 0, words * sizeof *parallel->tokens);
    row_gradients_mark(gpt, parallel->tokens);
    if (ranks_unite(parallel->ranks, parallel->tokens, words)) {
        return -1;
    }
    row_gradients_begin(gpt, parallel->tokens);
    return 0;
}

int data_parallel_backward(struct data_parallel *parallel, bool last) {
    const struct gpt_listener listener = {send_complete, parallel};
    if (!parallel->collective || !last) {
        gpt_backward(parallel->gpt, last && parallel->watcher.gradients_launched ? &parallel->watcher : NULL);
        return compute_check(parallel->gpt->compute);
    }
    if (separate_rows(parallel)) {
        return -1;
    }
    begin_gradients(parallel);
    gpt_backward(parallel->gpt, &listener);
    return compute_check(parallel->gpt->compute);
}

/* gradient_norm from the squares of all ranks' parts. */
static int share_norm(struct data_parallel *parallel) {
    struct gpt *gpt = parallel->gpt;
    const size_t count = parallel->buckets.count;
    double square = 0.0;
    for (size_t i = 0; i < count; i++) {
        const struct element_range own = parallel->buckets.table[i].own;
        square_total(&gpt->operations, (struct span){gpt->parameters.gradients, own.offset}, own.count,
                     (struct span){&parallel->squares, i});
    }
    if (buffer_read(gpt->compute, &parallel->squares, 0, parallel->host_squares, count * sizeof(float))) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        square += (double)parallel->host_squares[i];
    }
    if (ranks_sum(parallel->ranks, &square, 1)) {
        return -1;
    }
    const float norm = (float)(sqrt(square) / (double)gpt->loss_scale.scale);
    return buffer_write(gpt->compute, gpt->gradient_norm, 0, &norm, sizeof norm);
}

/* Each rank steps its parts; the new weights of a bucket go out while the next one's are computed. */
static int step_parts(struct data_parallel *parallel, const struct optimizer_settings *settings,
                      int64_t iteration) {
    struct gpt *gpt = parallel->gpt;
    if (share_norm(parallel)) {
        return -1;
    }
    begin_round(parallel, COLLECTIVE_ALL_GATHER, gpt->parameters.weights);
    for (size_t i = 0; i < parallel->buckets.count; i++) {
        const struct bucket *bucket = &parallel->buckets.table[i];
        optimizer_update(gpt, settings, iteration,
                         (struct optimizer_range){bucket->own.offset, bucket->own.count, bucket->moments});
        collective_ready(parallel->collective, i + 1);
    }
    const int status = collective_finish(parallel->collective, &parallel->times);
    parameters_round(gpt->compute, &gpt->parameters); /* those that came from other ranks */
    return status;
}

int data_parallel_step(struct data_parallel *parallel, const struct optimizer_settings *settings,
                       int64_t iteration) {
    struct collective_times *times = &parallel->gradient_times;
    *times = (struct collective_times){0};
    if (parallel->collective && collective_finish(parallel->collective, times)) {
        return -1;
    }
    row_gradients_join(parallel->gpt);
    parallel->times.active += times->active;
    parallel->times.exposed += times->exposed;
    parallel->times.sent += times->sent;
    parallel->times.moved += times->moved;
    parallel->gradients_at = progress_clock();
    if (parallel->collective && parallel->shares_moments) {
        return step_parts(parallel, settings, iteration);
    }
    optimizer_step(parallel->gpt, settings, iteration);
    return 0;
}

int data_parallel_exchange(struct data_parallel *parallel, struct collective_times *times) {
    begin_round(parallel, COLLECTIVE_ALL_REDUCE, parallel->gpt->parameters.gradients);
    return collective_finish(parallel->collective, times);
}

/* ---- weights */

static uint64_t piece_at(const struct gpt *gpt, uint64_t done) {
    const uint64_t left = gpt->parameters.elements - done;
    return left < PIECE ? left : PIECE;
}

int data_parallel_share_weights(struct gpt *gpt, const struct ranks *ranks) {
    if (ranks->count == 1) {
        return 0;
    }
    float *piece = malloc(PIECE * sizeof *piece);
    int status = piece ? 0 : error_set("out of memory");
    for (uint64_t done = 0; status == 0 && done < gpt->parameters.elements; done += PIECE) {
        const uint64_t count = piece_at(gpt, done);
        const size_t bytes = count * sizeof *piece, offset = done * sizeof *piece;
        status = (ranks->index == 0 && buffer_read(gpt->compute, gpt->parameters.weights, offset, piece, bytes)) ||
                 ranks_broadcast(ranks, piece, bytes) ||
                 (ranks->index != 0 && buffer_write(gpt->compute, gpt->parameters.weights, offset, piece, bytes));
    }
    free(piece);
    parameters_round(gpt->compute, &gpt->parameters);
    return status ? -1 : 0;
}

/* FNV-1a over 32-bit words: a slip of a bit is what is looked for, not an enemy. */
static uint64_t mix_piece(uint64_t hash, const float *piece, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, piece + i, sizeof bits);
        hash = (hash ^ bits) * 0x100000001b3U;
    }
    return hash;
}

static int hash_weights(struct gpt *gpt, uint64_t *hash) {
    float *piece = malloc(PIECE * sizeof *piece);
    int status = piece ? 0 : error_set("out of memory");
    *hash = 0xcbf29ce484222325U;
    for (uint64_t done = 0; status == 0 && done < gpt->parameters.elements; done += PIECE) {
        const uint64_t count = piece_at(gpt, done);
        status =
            buffer_read(gpt->compute, gpt->parameters.weights, done * sizeof *piece, piece, count * sizeof *piece);
        *hash = status ? 0 : mix_piece(*hash, piece, count);
    }
    free(piece);
    return status;
}

int data_parallel_check_weights(const struct data_parallel *parallel) {
    struct ranks *ranks = parallel->ranks;
    uint64_t own = 0, first;
    if (ranks->count == 1) {
        return 0;
    }
    int status = hash_weights(parallel->gpt, &own);
    first = own;
    if (ranks_broadcast(ranks, &first, sizeof first)) {
        return -1;
    }
    if (status == 0 && own != first) {
        status =
            error_set("the weights of rank %d are no longer those of rank 0: do all ranks have the same kind of "
                      "device and driver? --shard-optimizer keeps different devices together",
                      ranks->index);
    }
    return ranks_agree(ranks, status); /* which names the first that differs, or could not read them: rank 0 */
}
