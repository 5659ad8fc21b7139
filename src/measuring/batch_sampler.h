/* Which tokens a batch is made of. A row depends on the seed and on its number in the run only, so that any number
 * of ranks and micro-steps trains on the same data in the same order, and a run that goes on with other batches
 * reads the rows that come next.
 *
 * Random rows begin at places that the seed chooses. Sequential rows follow one another: an iteration takes the
 * next tokens of a shard (train.bin counts as one shard), as modded-nanogpt does. The end of a shard that is too
 * short for an iteration is left out. After the last shard comes the first one again.
 *
 * Rows of documents have as many whole documents as fit, in the order of the file, and are padded at their end; a
 * document that is longer than a row goes on in the next. Every row is read once in a pass, in an order that the
 * seed and the pass choose.
 *
 * A mixture takes each row from one of several sources, which a random number of the row chooses by their shares; a
 * row of documents then is any of its source's. Targets are -1 where there is none: in prompts and padding. */
#pragma once

#include "runtime/files/token_file.h"
#include "runtime/ranks/ranks.h"
#include "runtime/system/progress.h"
#include "src/measuring/score_windows.h"

/* Tokens that rows are taken from. */
struct batch_source {
    const struct token_file *file;
    double end;        /* of the part of [0, 1) that random numbers of its rows are in */
    uint64_t *windows; /* of rows of documents, else NULL: [window_count + 1] where each begins; last: the tokens */
    uint64_t window_count;
    uint64_t *orders[2], passes[2]; /* [window_count] the windows in the order of these passes: even, odd */
};

struct batch_sampler {
    struct batch_source *sources; /* [source_count] */
    size_t source_count;
    uint64_t key, choice_key, order_key; /* of seed and purpose */
    bool masked;                         /* some targets may be -1 */
    struct token_shape shape;            /* of the batches that are read */
    int64_t global_rows;                 /* rows in the batch of one iteration over all ranks and micro-steps */
    int64_t resumed_at;                  /* iteration from which on batches have so many rows */
    uint64_t rows_before;                /* that the iterations before it have read */
    uint32_t vocab_size;
    /* of sequential rows, else NULL: [shards] the number of iterations that the shards before each one have */
    uint64_t *before;
    uint64_t pass;             /* iterations that all shards have */
    int64_t counted_iteration; /* whose targets are `counted`; -1: none */
    uint64_t counted;
    int32_t *x, *y; /* [batch, sequence] what was read last; y is x one later. One piece of memory, x's */
};

/* purpose: "train", "evaluate train", ... Then add the files to take rows from. */
void batch_sampler_create(struct batch_sampler *sampler, uint64_t seed, const char *purpose,
                          struct token_shape shape, int64_t global_rows, uint32_t vocab_size);

/* Adds a file that rows are taken from: its share of them is above 0, and all add up to 1. Fails if the file is
 * shorter than sequence + 1 tokens. */
int batch_sampler_add(struct batch_sampler *sampler, const struct token_file *file, double share);

/* Makes rows of documents instead of random ones. Fails where the documents of a file are not known. */
int batch_sampler_set_documents(struct batch_sampler *sampler);

/* Counts the windows of a source that have no target: all their tokens are prompts. */
uint64_t batch_sampler_count_empty(const struct batch_sampler *sampler, size_t index);

/* The run goes on at an iteration, before which it has read so many rows, in batches of any size. Sequential rows
 * do not depend on it. */
void batch_sampler_resume(struct batch_sampler *sampler, int64_t iteration, uint64_t rows);

/* Makes the rows of a single source sequential instead of random. Fails where no shard has the tokens of an
 * iteration and one more. */
int batch_sampler_set_sequential(struct batch_sampler *sampler);
void batch_sampler_release(struct batch_sampler *sampler);

/* Fills x and y with the rows of the iteration's global batch from `first` on; iterations are counted from
 * `resumed_at`. Fails on tokens outside of the vocabulary, and where the random rows of a run would be more than
 * 2^64. */
int batch_sampler_read(struct batch_sampler *sampler, int64_t iteration, int64_t first);

/* What the mean loss of the batch that was read last, of this iteration, counts for in the iteration's: its part of
 * all targets of the global batch that are not -1. */
float batch_sampler_weight(struct batch_sampler *sampler, int64_t iteration);

/* Whether the global batch of the iteration that batch_sampler_weight was asked about last has a target. */
bool batch_sampler_has_targets(const struct batch_sampler *sampler);

/* ---- the loss of a model over random batches, as nanoGPT estimates it */

/* The sampler's purpose for estimates on "train" or "val", and its seed: with these every run and hc_eval estimate
 * on the same batches of a token file. A run with eval_batches = by_seed gives the sampler the run's seed instead.
 */
#define ESTIMATE_PURPOSE(split) "evaluate " split
enum { ESTIMATE_SEED = 0 };

/* Sets *all to sums over the targets of `batches` of the sampler's, always the same ones, without dropout.
 * token_bytes [vocab_size] is as in loss_sums_add_targets, or NULL. Fails if there is no target. The ranks share
 * the batches; the sums do not depend on the number of ranks. progress shows where it is. Collective. Stops early,
 * with the error "interrupted" on all ranks, when one of them is interrupted. */
int estimate_loss(struct gpt *gpt, const struct ranks *ranks, struct batch_sampler *sampler, int64_t batches,
                  struct progress *progress, const uint16_t *token_bytes, struct loss_sums *all);
