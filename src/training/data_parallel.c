#include "src/training/data_parallel.h"
#include "runtime/files/checksum.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/progress.h"
#include "src/model/gpt.h"
#include "src/model/optimizer.h"
#include "src/model/parameters.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

/* How ranks exchange gradients. Nothing outside this file knows the order of these calls:
 *
 *   data_parallel_backward, for each micro-batch of a step, after gpt_forward:
 *       gpt_loss, gpt_backward                  write the micro-batch's gradients to the arena, and from the second
 *                                               micro-batch of the step on add them to those there
 *   and for the last one, whose backward pass completes the gradients, between gpt_loss and gpt_backward:
 *       row_gradients_mark, ranks_merge         the tokens of all ranks' last micro-batches (these two and the next
 *                                               where data_parallel_plan keeps rows apart)
 *       row_gradients_begin                     the embedding's gradients of these tokens go to rows of their own,
 *                                               so that the head's part of the token embedding is complete early
 *       collective_begin                        the list of buckets, in the order in which they become complete
 *   while gpt_backward reports each sublayer that it has launched:
 *       collective_ready                        the buckets that are complete by then are summed meanwhile
 *
 *   data_parallel_step:
 *       collective_finish                       waits for the sums
 *       row_gradients_join                      adds the rows to the token embedding's gradient
 *       optimizer_step                          or with --shard-optimizer optimizer_update of each own shard, whose
 *                                               new weights go to all ranks by another round of the collective */

#define PIECE ((uint64_t)1 << 20) /* weights that are moved between host and device at a time */

/* ---- the same on all ranks */

int same_job_digest(struct ranks *ranks, int status, const char *digest, const char *what, const char *advice) {
    char first[CHECKSUM_SIZE] = "";
    snprintf(first, sizeof first, "%s", digest);
    if (ranks_agree(ranks, status) || ranks_broadcast(ranks, first, sizeof first)) {
        return -1;
    }
    return ranks_agree(ranks, strcmp(first, digest) == 0
                                  ? 0
                                  : error_set("%s is not the same as on rank 0: %s", what, advice));
}

int same_job_program(struct ranks *ranks) {
    char digest[CHECKSUM_SIZE] = "";
    if (ranks->count == 1) {
        return 0;
    }
    const int status = checksum_file("/proc/self/exe", digest);
    return same_job_digest(ranks, status, digest, "the program", "install the same build on all hosts");
}

/* ---- cutting the arena into buckets */

#define MOST_BUCKET ((uint64_t)1 << 28) /* elements, see collective_create */

/* Tensors share a bucket only with others of their kind: what may be exchanged early, or comes last, has buckets of
 * its own, and so has each part of the arena, which begins with the lowest sublayer again. */
enum tensor_kind {
    KIND_TOKENS,
    KIND_EMBEDDINGS,
    KIND_FIRST_SUBLAYER,
    KIND_WEIGHTS,
    KIND_PROJECTIONS,
    KIND_UNDECAYED,
};

static enum tensor_kind kind_of(const struct parameter *parameter, const struct parameters *parameters) {
    if (!parameter->decayed) {
        return KIND_UNDECAYED;
    }
    if (parameter->offset == parameters->token_embedding) {
        return KIND_TOKENS;
    }
    if (parameter->sublayer <= 0) {
        return parameter->sublayer < 0 ? KIND_EMBEDDINGS : KIND_FIRST_SUBLAYER;
    }
    return parameter->lowp_only ? KIND_WEIGHTS : KIND_PROJECTIONS;
}

/* `apart`: settings of an optimizer that updates matrices whole, or NULL. */
static bool is_apart(const struct optimizer_settings *apart, const struct parameter *parameter) {
    return apart && parameter->matrices[0];
}

/* Goes through the trained tensors from their end on, where those of higher sublayers lie, which are complete
 * first. A bucket begins with a tensor; small leaves of hyper-connections, which lie without gaps, stay together. A
 * tensor of more than `most` elements becomes several buckets. */
static void cut_arena(const struct parameters *parameters, uint64_t most, const struct optimizer_settings *apart,
                      struct buckets *buckets) {
    uint64_t end = parameters->gradients_end; /* of the next bucket */
    double cost = 0.0;                        /* of its matrices */
    for (size_t i = parameters->count; i-- > 0;) {
        const struct parameter *first = &parameters->table[parameters->in_arena[i]];
        if (first->without_gradient) {
            continue;
        }
        const struct parameter *below = i > 0 ? &parameters->table[parameters->in_arena[i - 1]] : NULL;
        const enum tensor_kind kind = kind_of(first, parameters);
        const uint64_t with_below = below ? end - below->offset : 0;
        for (int k = 0; apart && k < PARAMETER_MOST_MATRICES && first->matrices[k]; k++) {
            const struct optimizer *optimizer = optimizer_at((size_t)apart->optimizer);
            cost += optimizer->matrices->cost(apart, first->matrices[k], first->shape[1]);
        }
        const bool must_end = !below || kind_of(below, parameters) != kind || is_apart(apart, first) ||
                              is_apart(apart, below) || with_below > most;
        if (first->offset % 64 != 0 || !must_end) {
            continue;
        }
        while (end > first->offset) {
            const uint64_t count = size_smaller(end - first->offset, most);
            end -= count;
            buckets->table = memory_resize(buckets->table, buckets->count + 1, sizeof *buckets->table);
            buckets->table[buckets->count++] = (struct bucket){.range = {end, count},
                                                               .complete_after = first->sublayer,
                                                               .is_matrices = is_apart(apart, first),
                                                               .is_embedding = kind == KIND_TOKENS,
                                                               .tensor = first->offset,
                                                               .cost = cost};
        }
        cost = 0.0;
    }
}

/* Those of one sublayer in the order of the arena, so that the order is total. */
static int by_completion(const void *a, const void *b) {
    const struct bucket *first = a, *second = b;
    if (first->complete_after != second->complete_after) {
        return first->complete_after < second->complete_after ? 1 : -1;
    }
    return first->range.offset < second->range.offset ? -1 : 1;
}

/* Matrices first, the most expensive tensors first; those of one cost from the arena's end on, so that the order is
 * total and buckets of a tensor stay together. */
static int by_cost(const void *a, const void *b) {
    const struct bucket *first = a, *second = b;
    if (first->is_matrices != second->is_matrices) {
        return first->is_matrices ? -1 : 1;
    }
    if (first->cost > second->cost || first->cost < second->cost) {
        return first->cost > second->cost ? -1 : 1;
    }
    return first->range.offset > second->range.offset ? -1 : 1;
}

/* Gives each tensor of matrices to the rank that has least to do so far, the most expensive tensors first. Returns
 * the most elements that a rank owns. */
static uint64_t choose_owners(struct buckets *buckets, const struct ranks *ranks) {
    double *costs = memory_zeroed((size_t)ranks->count, sizeof *costs);
    uint64_t *elements = memory_zeroed((size_t)ranks->count, sizeof *elements), most = 0;
    int owner = 0;
    qsort(buckets->table, buckets->count, sizeof *buckets->table, by_cost);
    for (size_t i = 0; i < buckets->count && buckets->table[i].is_matrices; i++) {
        struct bucket *bucket = &buckets->table[i];
        if (i == 0 || bucket->tensor != bucket[-1].tensor) {
            owner = 0;
            for (int rank = 1; rank < ranks->count; rank++) {
                owner = costs[rank] < costs[owner] ? rank : owner;
            }
            costs[owner] += bucket->cost;
        }
        bucket->owner_rank = owner;
        elements[owner] += bucket->range.count;
        most = size_larger(most, elements[owner]);
    }
    free(costs);
    free(elements);
    return most;
}

/* Space for the largest shard, and for the matrices of the rank with most of them, is enough on all ranks. */
static void share(struct buckets *buckets, uint64_t most_matrices, const struct ranks *ranks) {
    uint64_t next[2] = {0}, matrices = 0;
    for (size_t i = 0; i < buckets->count; i++) {
        struct bucket *bucket = &buckets->table[i];
        bucket->shard = bucket->is_matrices ? range_of_root(bucket->range, bucket->owner_rank, ranks_index(ranks))
                                            : ranks_own_shard(ranks, bucket->range);
        const struct element_range largest =
            range_shard(range_shard(bucket->range, ranks->node.count, 0), ranks->cross_node.count, 0);
        const uint64_t kept = bucket->is_matrices ? bucket->shard.count : largest.count;
        matrices += bucket->is_matrices ? kept : 0;
        for (size_t state = 0; state < COUNT(next); state++) {
            bucket->states_first[state] = next[state];
            next[state] += bucket->is_matrices && state > 0 ? 0 : kept;
        }
        buckets->largest = size_larger(buckets->largest, bucket->range.count);
    }
    buckets->share.elements[0] = next[0] - matrices + most_matrices;
    buckets->share.elements[1] = next[1];
}

/* ---- states of own shards (ZeRO stage 1) */

/* state_share.copy. Of a state that is read, rank 0 gets the sum of what each rank has, and zeros elsewhere. */
static int copy_states(const void *context, const struct gpt *gpt, size_t state, uint64_t first, uint64_t count,
                       float *values, bool to_device) {
    const struct buckets *buckets = context;
    const struct buffer *buffer = gpt->parameters.states[state];
    int status = 0;
    if (!to_device) {
        memset(values, 0, count * sizeof *values);
    }
    for (size_t i = 0; i < buckets->count && status == 0; i++) {
        const struct bucket *bucket = &buckets->table[i];
        const uint64_t begin = size_larger(bucket->shard.offset, first);
        const uint64_t end = size_smaller(bucket->shard.offset + bucket->shard.count, first + count);
        const uint64_t place = bucket->states_first[state] + begin - bucket->shard.offset;
        if (begin < end && to_device) {
            status = buffer_write_floats(gpt->compute, buffer, place, values + (begin - first), end - begin);
        } else if (begin < end) {
            status = buffer_read_floats(gpt->compute, buffer, place, values + (begin - first), end - begin);
        }
    }
    if (to_device) {
        return status;
    }
    if (status) { /* the others expect this rank all the same; rank 0 must not take its shard for zeros */
        memset(values, 0xff, count * sizeof *values);
    }
    if (ranks_merge(buckets->ranks, values, count, false) || status) {
        return -1;
    }
    for (uint64_t i = 0; buckets->ranks->index == 0 && i < count; i++) {
        uint32_t bits; /* of a NaN that no arithmetic makes */
        memcpy(&bits, values + i, sizeof bits);
        if (bits == UINT32_MAX) {
            return error_set("another rank cannot read its shard of the optimizer's states");
        }
    }
    return 0;
}

/* ---- making and releasing buckets */

void buckets_create(const struct parameters *parameters, uint64_t elements,
                    const struct optimizer_settings *sharing, const struct ranks *ranks, struct buckets *buckets) {
    *buckets = (struct buckets){.share = {.context = buckets, .copy = copy_states}, .ranks = ranks};
    const uint64_t most = elements && elements < MOST_BUCKET ? (elements + 63) / 64 * 64 : MOST_BUCKET;
    const bool has_matrices = sharing && optimizer_at((size_t)sharing->optimizer)->matrices;
    cut_arena(parameters, most, has_matrices ? sharing : NULL, buckets);
    const uint64_t most_matrices = choose_owners(buckets, ranks);
    qsort(buckets->table, buckets->count, sizeof *buckets->table, by_completion);
    share(buckets, most_matrices, ranks);
    buckets->steps = memory_allocate(buckets->count, sizeof(const struct bucket *));
    size_t matrices = buckets->count, others = 0;
    for (size_t i = 0; i < buckets->count; i++) {
        matrices -= buckets->table[i].is_matrices;
    }
    for (size_t i = 0; i < buckets->count; i++) {
        buckets->steps[buckets->table[i].is_matrices ? matrices++ : others++] = &buckets->table[i];
    }
}

void buckets_release(struct buckets *buckets) {
    free(buckets->table);
    free(buckets->steps);
    memset(buckets, 0, sizeof *buckets);
}

/* ---- making and releasing data_parallel */

static void add_item(struct data_parallel *parallel, struct collective_item item, int64_t complete_after) {
    parallel->items[parallel->item_count] = item;
    parallel->complete_after[parallel->item_count++] = complete_after;
}

/* Begins to add up the gradients of all buckets, in the order of their completion. If rows of the token embedding's
 * gradient are kept apart, its buckets are first, being complete with the head, and the rows are last. With shards,
 * ranks get the sums of their own; those of matrices go to all. */
static void begin_sums(struct data_parallel *parallel, bool shards, bool rows_apart) {
    const struct gpt *gpt = parallel->gpt;
    const struct buffer *gradients = gpt->parameters.gradients;
    const uint64_t elements = rows_apart ? gpt->row_gradients.count * (uint64_t)gpt->config.n_embd : 0;
    const uint64_t most = parallel->buckets.largest;
    const int64_t top = BRANCHES * gpt->config.n_layer;
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
    for (uint64_t done = 0; done < elements; done += most) { /* every rank needs all rows, whatever it owns */
        const struct element_range range = {done, size_smaller(elements - done, most)};
        add_item(parallel, (struct collective_item){COLLECTIVE_ALL_REDUCE, gpt->row_gradients.rows, range, 0}, -1);
    }
    collective_begin(parallel->collective, parallel->items, parallel->item_count);
}

int data_parallel_divide(int64_t steps, const struct ranks *all, int64_t *micro_steps) {
    const int64_t ranks = all->count;
    *micro_steps = steps / ranks;
    if (steps % ranks != 0) {
        return error_set("gradient_accumulation_steps = %" PRId64
                         " counts over all ranks and cannot be divided by %" PRId64 " ranks: give %" PRId64
                         " or a multiple of it, or start fewer ranks",
                         steps, ranks, ranks);
    }
    return 0;
}

int data_parallel_plan(struct data_parallel *parallel, struct ranks *ranks, const struct train_settings *settings,
                       struct compute *compute, struct gpt *gpt) {
    const struct model_config *config = &settings->model;
    *parallel = (struct data_parallel){.ranks = ranks,
                                       .shards_states = settings->shard_optimizer && ranks->count > 1,
                                       .bf16 = settings->allreduce_dtype == ELEMENT_BF16};
    const double elements = settings->allreduce_bucket * 1048576.0 / sizeof(float);
    const struct parameters *parameters = settings->parameters ? settings->parameters : &parallel->parameters;
    if (!settings->parameters && frozen_create(config, &settings->optimizer, true, &parallel->parameters)) {
        return -1;
    }
    /* Rows of the token embedding's gradient are kept apart from the head's part of it, where both exist. The last
     * micro-batches have so many tokens; if these are many more than the vocabulary, most of the vocabulary is
     * among them, which is not worth it. */
    const size_t tokens = (size_t)settings->batch_size * (size_t)config->block_size * (size_t)ranks->count;
    const bool keeps_rows = ranks->count > 1 && config->tie_embeddings &&
                            parameters_train(parameters, parameters->head) &&
                            tokens <= 4 * (size_t)config->vocab_size;
    buckets_create(parameters, elements < 1.0 ? 1 : (uint64_t)elements,
                   parallel->shards_states ? &settings->optimizer : NULL, ranks, &parallel->buckets);
    const struct gpt_options options = {
        .batch = settings->batch_size,
        .sequence = config->block_size,
        .mode = GPT_TRAINING,
        .type = (enum element_type)settings->dtype,
        .optimizer = settings->optimizer,
        .parameters = parameters,
        .state_share = parallel->shards_states ? &parallel->buckets.share : NULL,
        .row_gradients = keeps_rows ? tokens : 0,
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
    struct gpt *gpt = parallel->gpt;
    const struct buckets *buckets = &parallel->buckets;
    const uint64_t row_elements = gpt->row_gradients.most * (uint64_t)gpt->config.n_embd;
    if (data_parallel_create_model(gpt, parallel->ranks)) {
        return -1;
    }
    if (parallel->ranks->count == 1) {
        return 0;
    }
    const size_t items = buckets->count + (size_t)(row_elements / buckets->largest) + 1; /* most of a round */
    parallel->items = memory_zeroed(items, sizeof *parallel->items);
    parallel->complete_after = memory_zeroed(items, sizeof *parallel->complete_after);
    parallel->tokens = memory_zeroed(row_gradients_words(gpt), sizeof *parallel->tokens);
    parallel->host_squares = memory_zeroed(buckets->count, sizeof *parallel->host_squares);
    const struct buffer *buffers[3] = {gpt->parameters.gradients};
    struct collective_settings settings = {
        .items = items, .largest = buckets->largest, .bf16 = parallel->bf16, .buffers = buffers, .buffer_count = 1};
    int status = 0;
    if (parallel->shards_states) {
        buffers[settings.buffer_count++] = gpt->parameters.weights;
        status = buffer_create(gpt->compute, &parallel->squares, buckets->count * sizeof *parallel->host_squares);
    }
    if (gpt->row_gradients.most) {
        buffers[settings.buffer_count++] = gpt->row_gradients.rows;
    }
    return ranks_agree(parallel->ranks, status)
               ? -1
               : collective_create(gpt->compute, parallel->ranks, &settings, &parallel->collective);
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
    parameters_release(&parallel->parameters);
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

int data_parallel_backward(struct data_parallel *parallel, float scale, bool is_last) {
    struct gpt *gpt = parallel->gpt;
    gpt_loss(gpt, scale, true);
    if (!parallel->collective || !is_last) {
        gpt_backward(gpt, NULL);
        return compute_check(gpt->compute);
    }
    if (gpt->row_gradients.most > 0) {
        const size_t words = row_gradients_words(gpt);
        compute_flush(gpt->compute); /* the device goes on while ranks wait for each other */
        memset(parallel->tokens, 0, words * sizeof *parallel->tokens);
        row_gradients_mark(gpt, parallel->tokens);
        if (ranks_merge(parallel->ranks, parallel->tokens, words, true)) {
            return -1;
        }
        row_gradients_begin(gpt, parallel->tokens);
    }
    begin_sums(parallel, parallel->shards_states, gpt->row_gradients.count > 0);
    gpt_backward(gpt, &(struct gpt_listener){send_complete, parallel});
    return compute_check(gpt->compute);
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

/* Each rank steps its shards and the matrices that it owns; the new weights of a bucket go out while the next one's
 * are computed. */
static int step_shards(struct data_parallel *parallel, const struct optimizer_settings *settings,
                       int64_t iteration) {
    struct gpt *gpt = parallel->gpt;
    const struct buckets *buckets = &parallel->buckets;
    if (share_norm(parallel)) {
        return -1;
    }
    parallel->item_count = 0;
    for (size_t i = 0; i < buckets->count; i++) {
        const struct bucket *bucket = buckets->steps[i];
        const enum collective_kind kind = bucket->is_matrices ? COLLECTIVE_BROADCAST : COLLECTIVE_ALL_GATHER;
        add_item(parallel,
                 (struct collective_item){kind, gpt->parameters.weights, bucket->range, bucket->owner_rank},
                 bucket->complete_after);
    }
    collective_begin(parallel->collective, parallel->items, parallel->item_count);
    for (size_t i = 0; i < buckets->count; i++) {
        const struct bucket *bucket = buckets->steps[i];
        const struct optimizer_range range = {bucket->shard.offset,
                                              bucket->shard.count,
                                              {bucket->states_first[0], bucket->states_first[1]}};
        optimizer_update(gpt, settings, iteration, range);
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

/* Rank 0's bytes of a buffer from `first` on go to all ranks. NULL: none. */
static int share_buffer(struct compute *compute, const struct ranks *ranks, const struct buffer *buffer,
                        size_t first) {
    const size_t bytes = buffer ? buffer->bytes : 0;
    char *piece = memory_allocate(PIECE, 1);
    int status = 0;
    for (size_t done = first, count; status == 0 && done < bytes; done += count) {
        count = size_smaller(bytes - done, PIECE);
        status = (ranks->index == 0 && buffer_read(compute, buffer, done, piece, count)) ||
                 ranks_broadcast(ranks, piece, count) ||
                 (ranks->index != 0 && buffer_write(compute, buffer, done, piece, count));
    }
    free(piece);
    return status;
}

int data_parallel_share_weights(struct gpt *gpt, const struct ranks *ranks) {
    if (ranks->count == 1) {
        return 0;
    }
    const struct parameters *parameters = &gpt->parameters;
    const size_t rounded = parameters->fp32_elements * element_size(parameters->weights_lowp->type);
    const int status = share_buffer(gpt->compute, ranks, parameters->weights, 0) ||
                       share_buffer(gpt->compute, ranks, parameters->weights_lowp, rounded) ||
                       share_buffer(gpt->compute, ranks, parameters->narrow.codes, 0) ||
                       share_buffer(gpt->compute, ranks, parameters->narrow.scales, 0);
    parameters_round(gpt->compute, parameters);
    return status ? -1 : 0;
}

int data_parallel_check_weights(const struct data_parallel *parallel) {
    struct ranks *ranks = parallel->ranks;
    const struct gpt *gpt = parallel->gpt;
    if (ranks->count == 1) {
        return 0;
    }
    float *piece = memory_allocate(PIECE, sizeof *piece);
    uLong own = 0; /* a CRC: a slip of a bit is what is looked for, not an enemy */
    int status = 0;
    for (uint64_t done = 0, count; status == 0 && done < gpt->parameters.narrow_from; done += count) {
        count = size_smaller(gpt->parameters.narrow_from - done, PIECE);
        status = parameters_read(gpt->compute, &gpt->parameters, done, count, piece);
        own = status ? 0 : crc32_z(own, (const Bytef *)piece, count * sizeof *piece);
    }
    free(piece);
    uLong first = own;
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
