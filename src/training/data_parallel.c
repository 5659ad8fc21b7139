#include "src/training/data_parallel.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/progress.h"
#include "runtime/system/sizes.h"
#include "src/model/frozen.h"
#include "src/model/row_gradients.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define PIECE ((uint64_t)1 << 20) /* weights that are moved between host and device at a time */

/* ---- making and releasing */

static void add_item(struct data_parallel *parallel, struct collective_item item, int64_t complete_after) {
    parallel->items[parallel->item_count] = item;
    parallel->complete_after[parallel->item_count++] = complete_after;
}

/* The token embedding's rows that are kept apart, which every rank needs whatever it owns of that: in pieces no
 * larger than the largest bucket. */
static void add_rows(struct data_parallel *parallel) {
    const struct gpt *gpt = parallel->gpt;
    const uint64_t elements = gpt->row_gradients.count * (uint64_t)gpt->config.n_embd,
                   most = parallel->buckets.largest;
    for (uint64_t done = 0; done < elements; done += most) {
        const struct element_range range = {done, elements - done < most ? elements - done : most};
        add_item(parallel, (struct collective_item){COLLECTIVE_ALL_REDUCE, gpt->row_gradients.rows, range, 0}, -1);
    }
}

/* Begins to add up the gradients of all buckets, in the order of their completion. If rows of the token embedding's
 * gradient are kept apart, its buckets are first, being complete with the head, and the rows are last. With shards,
 * ranks get the sums of their own; those of matrices go to all. */
static void begin_sums(struct data_parallel *parallel, bool shards, bool rows_apart) {
    const struct buffer *gradients = parallel->gpt->parameters.gradients;
    const int64_t top = BRANCHES * parallel->gpt->config.n_layer;
    parallel->item_count = 0;
    for (int pass = rows_apart ? 0 : 1; pass < 2; pass++) {
        for (size_t i = 0; i < parallel->buckets.count; i++) {
            const struct bucket *bucket = &parallel->buckets.table[i];
            const bool is_first = rows_apart && bucket->is_embedding;
            const struct collective_item item = {shards && !bucket->is_matrices ? COLLECTIVE_REDUCE_SCATTER
                                                                                : COLLECTIVE_ALL_REDUCE,
                                                 gradients, bucket->range, 0};
            if (is_first == (pass == 0)) {
                add_item(parallel, item, is_first ? top : bucket->complete_after);
            }
        }
    }
    if (rows_apart) {
        add_rows(parallel);
    }
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
    if (parallel->shards_states) {
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
    return steps % ranks == 0 ? 0
                              : error_set("gradient_accumulation_steps = %" PRId64
                                          " counts over all ranks and cannot be divided by %" PRId64
                                          " ranks: give %" PRId64 " or a multiple of it, or start fewer ranks",
                                          steps, ranks, ranks);
}

/* Returns the number of tokens in the last micro-batches of all ranks together. If that is many more than the
 * vocabulary has, most of the vocabulary can be expected among them, which is not worth keeping apart: 0. If the
 * head has weights of its own, nothing else is in the token embedding's gradient; if it is frozen, nothing: 0. */
static size_t most_rows(const struct train_settings *settings, const struct model_config *config,
                        const struct ranks *ranks, const struct parameters *parameters) {
    const size_t tokens = (size_t)settings->batch_size * (size_t)config->block_size * (size_t)ranks->count;
    return ranks->count > 1 && config->tie_embeddings && parameters_train(parameters, parameters->head) &&
                   tokens <= 4 * (size_t)config->vocab_size
               ? tokens
               : 0;
}

int data_parallel_plan(struct data_parallel *parallel, struct ranks *ranks, const struct train_settings *settings,
                       const struct model_config *config, struct compute *compute, struct gpt *gpt) {
    *parallel = (struct data_parallel){.ranks = ranks,
                                       .shards_states = settings->shard_optimizer && ranks->count > 1,
                                       .bf16 = settings->allreduce_dtype == ELEMENT_BF16};
    const double elements = settings->allreduce_bucket * 1048576.0 / sizeof(float);
    struct parameters parameters; /* of the buckets: the model's are made with its plan, which needs these */
    parameters_create(config, &parameters);
    if (frozen_mark(&parameters, settings->optimizer.freeze)) {
        parameters_release(&parameters);
        return -1;
    }
    const size_t rows = most_rows(settings, config, ranks, &parameters);
    buckets_create(&parameters, elements < 1.0 ? 1 : (uint64_t)elements,
                   parallel->shards_states ? &settings->optimizer : NULL, ranks, &parallel->buckets);
    parameters_release(&parameters);
    const struct gpt_options options = {
        .batch = settings->batch_size,
        .sequence = config->block_size,
        .mode = GPT_TRAINING,
        .type = (enum element_type)settings->dtype,
        .optimizer = settings->optimizer,
        .state_share = parallel->shards_states ? &parallel->buckets.share : NULL,
        .row_gradients = rows,
        .shareable = ranks->node.count > 1,
        .recompute = settings->recompute == RECOMPUTE_LAYER,
    };
    if (gpt_plan(compute, config, &options, gpt)) {
        return -1;
    }
    parallel->gpt = gpt;
    if (ranks->count > 1) {
        const uint64_t largest = parallel->buckets.largest;
        const bool on_host = compute->device.shares_host_memory;
        memory_plan_count(&gpt->plan, "exchange of gradients",
                          collective_device_bytes(compute, largest, parallel->bf16) +
                              (on_host ? collective_host_bytes(compute, ranks, largest, parallel->bf16) : 0));
    }
    return 0;
}

int data_parallel_create_model(struct gpt *gpt, struct ranks *ranks) {
    const bool is_first = ranks->local_index == 0; /* on its host: the others then find its programs in the cache */
    return ranks_agree(ranks, is_first ? gpt_create(gpt) : 0) || ranks_agree(ranks, is_first ? 0 : gpt_create(gpt))
               ? -1
               : 0;
}

int data_parallel_create(struct data_parallel *parallel) {
    const size_t buckets = parallel->buckets.count, bytes = buckets * sizeof *parallel->host_squares;
    if (parallel->ranks->count == 1) {
        return 0;
    }
    parallel->items = memory_zeroed(most_items(parallel), sizeof *parallel->items);
    parallel->complete_after = memory_zeroed(most_items(parallel), sizeof *parallel->complete_after);
    parallel->tokens = memory_zeroed(row_gradients_words(parallel->gpt), sizeof *parallel->tokens);
    parallel->host_squares = memory_zeroed(buckets, sizeof *parallel->host_squares);
    const int status =
        parallel->shards_states ? buffer_create(parallel->gpt->compute, &parallel->squares, bytes) : 0;
    return ranks_agree(parallel->ranks, status) || create_collective(parallel) ? -1 : 0;
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
    if (ranks_merge(parallel->ranks, parallel->tokens, words, true)) {
        return -1;
    }
    row_gradients_begin(gpt, parallel->tokens);
    return 0;
}

int data_parallel_backward(struct data_parallel *parallel, bool last) {
    const struct gpt_listener listener = {send_complete, parallel};
    if (!parallel->collective || !last) {
        gpt_backward(parallel->gpt, NULL);
        return compute_check(parallel->gpt->compute);
    }
    if (separate_rows(parallel)) {
        return -1;
    }
    begin_sums(parallel, parallel->shards_states, parallel->gpt->row_gradients.count > 0);
    gpt_backward(parallel->gpt, &listener);
    return compute_check(parallel->gpt->compute);
}

/* gradient_norm from the squares of all ranks' shards. */
static int share_norm(struct data_parallel *parallel) {
    struct gpt *gpt = parallel->gpt;
    const size_t count = parallel->buckets.count;
    double square = 0.0;
    for (size_t i = 0; i < count; i++) {
        const struct element_range own = ranks_own_shard(parallel->ranks, parallel->buckets.table[i].range);
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

/* Begins to send the new weights of all buckets, in the order of their steps. */
static void begin_weights(struct data_parallel *parallel) {
    const struct buffer *weights = parallel->gpt->parameters.weights;
    parallel->item_count = 0;
    for (size_t i = 0; i < parallel->buckets.count; i++) {
        const struct bucket *bucket = parallel->buckets.steps[i];
        add_item(parallel,
                 (struct collective_item){bucket->is_matrices ? COLLECTIVE_BROADCAST : COLLECTIVE_ALL_GATHER,
                                          weights, bucket->range, bucket->owner_rank},
                 bucket->complete_after);
    }
    collective_begin(parallel->collective, parallel->items, parallel->item_count);
}

/* Each rank steps its shards and the matrices that it owns; the new weights of a bucket go out while the next one's
 * are computed. */
static int step_shards(struct data_parallel *parallel, const struct optimizer_settings *settings,
                       int64_t iteration) {
    struct gpt *gpt = parallel->gpt;
    if (share_norm(parallel)) {
        return -1;
    }
    begin_weights(parallel);
    for (size_t i = 0; i < parallel->buckets.count; i++) {
        const struct bucket *bucket = parallel->buckets.steps[i];
        const uint64_t *states = bucket->states_first;
        optimizer_update(gpt, settings, iteration,
                         (struct optimizer_range){bucket->shard.offset,
                                                  bucket->shard.count,
                                                  {states[0], states[1]}});
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
    collective_times_add(&parallel->times, times);
    parallel->gradients_at = progress_clock();
    if (parallel->collective && parallel->shards_states) {
        return step_shards(parallel, settings, iteration);
    }
    optimizer_step(parallel->gpt, settings, iteration);
    return 0;
}

int data_parallel_exchange(struct data_parallel *parallel, struct collective_times *times) {
    begin_sums(parallel, false, false);
    return collective_finish(parallel->collective, times);
}

/* ---- weights */

int data_parallel_share_weights(struct gpt *gpt, const struct ranks *ranks) {
    if (ranks->count == 1) {
        return 0;
    }
    const struct parameters *parameters = &gpt->parameters;
    float *piece = memory_allocate(PIECE, sizeof *piece);
    int status = 0;
    for (uint64_t done = 0, count; status == 0 && done < parameters->elements; done += count) {
        count = size_smaller(parameters->elements - done, PIECE);
        status = (ranks->index == 0 && parameters_read(gpt->compute, parameters, done, count, piece)) ||
                 ranks_broadcast(ranks, piece, count * sizeof *piece) ||
                 (ranks->index != 0 && parameters_write(gpt->compute, parameters, done, count, piece));
    }
    free(piece);
    parameters_round(gpt->compute, parameters);
    return status ? -1 : 0;
}

/* A CRC: a slip of a bit is what is looked for, not an enemy. */
static int check_sum(struct gpt *gpt, uLong *sum) {
    float *piece = memory_allocate(PIECE, sizeof *piece);
    int status = 0;
    for (uint64_t done = 0, count; status == 0 && done < gpt->parameters.elements; done += count) {
        count = size_smaller(gpt->parameters.elements - done, PIECE);
        status = parameters_read(gpt->compute, &gpt->parameters, done, count, piece);
        *sum = status ? 0 : crc32_z(*sum, (const Bytef *)piece, count * sizeof *piece);
    }
    free(piece);
    return status;
}

int data_parallel_check_weights(const struct data_parallel *parallel) {
    struct ranks *ranks = parallel->ranks;
    uLong own = 0, first;
    if (ranks->count == 1) {
        return 0;
    }
    int status = check_sum(parallel->gpt, &own);
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

int data_parallel_measure_rate(struct gpt *gpt, const struct ranks *ranks, double *rate) {
    const size_t width = (size_t)gpt->config.n_embd, tokens = gpt_tokens(gpt);
    const size_t hidden = (size_t)gpt->config.mlp_width;
    const size_t most = gpt->compute->device.is_gpu ? 8192 : 1024; /* enough to keep the device busy */
    return gemm_measure_rate(gpt->compute, gpt->options.type, tokens < most ? tokens : most, hidden, width, rate) ||
                   ranks_sum(ranks, rate, 1)
               ? -1
               : 0;
}
