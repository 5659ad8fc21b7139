/* The processes of one job: mpirun starts `count` ranks that train together. Without mpirun there is one rank and
 * nothing here calls MPI.
 *
 * Collective functions must be called by all ranks in the same order. They return 0, or -1 with an error text. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Some ranks of the job, one of which is this one. */
struct rank_group {
    int index, count;
    const int *members; /* [count] their numbers in the job */
};

struct ranks {
    int index, count;
    int local_index, local_count; /* among the ranks on this host */
    int hosts;
    char host[256];  /* this rank's */
    double patience; /* seconds to wait for others before that is an error; 0: for ever */
    bool agreed;     /* the error text is one that all ranks have, see ranks_agree */
    /* The ranks as a table, near.count times across.count: those that share memory with this one, and those of the same place
     * among theirs. Without shared memory, or where hosts have different numbers of ranks, each is the only one near. */
    struct rank_group near, across;
    struct neighbours *neighbours; /* what near ranks share, see neighbours.h; NULL: there is no job */
};

/* For what is done without a job: one rank, alone. */
extern const struct ranks ranks_alone;

/* Whether this process is in a job of MPI's now. */
bool ranks_are_joined(void);

/* After a failure: where it is this rank's alone, so that the others wait and know nothing, says it under the
 * program's name and ends the whole job. Does nothing if all ranks have the error, or if there is one only. Where
 * several ranks come here at once (all wait for one that is silent), the lowest is first and ends the rest. */
void ranks_end_others(const struct ranks *ranks, const char *program);

/* Ends the whole job because of this rank: does not return unless it is alone. */
void ranks_abort(const struct ranks *ranks, int status);

/* Collective: whether all ranks are well. `status` must come from work of this rank alone: were it that of a
 * collective function, some ranks might still be in that one. If one has a status other than 0, all return -1 with
 * that rank's error text, headed by its number and host unless every rank has failed; ranks->agreed is set. Waits
 * as long as it takes. */
int ranks_agree(struct ranks *ranks, int status);

/* Collective: sums of values [count] over all ranks, added in the order of the ranks; the same bits everywhere. */
int ranks_sum(const struct ranks *ranks, double *values, size_t count);

/* Collective: rank 0's data to all. */
int ranks_broadcast(const struct ranks *ranks, void *data, size_t bytes);

/* Collective: everybody's `bytes` at data, in the order of the ranks, to all [count * bytes]. */
int ranks_gather(const struct ranks *ranks, const void *data, size_t bytes, void *all);

/* Collective: words [count] become the bitwise or of all ranks' words, everywhere. */
int ranks_unite(const struct ranks *ranks, uint32_t *words, size_t count);

/* Collective: on rank 0 values [count] become the bitwise or of all ranks' values. For numbers of which each is on
 * one rank, and zero bits on the others: they arrive as they are, negative zeros included. */
int ranks_merge(const struct ranks *ranks, float *values, size_t count);

/* Whether others have kept this rank waiting for more than ranks->patience: asked at every look, and told whether
 * something moved. A rank that was itself stopped for a while starts anew. Begins zeroed. */
struct ranks_watch {
    double moved, looked; /* clock */
};
bool ranks_late(const struct ranks *ranks, struct ranks_watch *watch, bool moved);

/* Waits between two looks at something that others bring about: a yield at first, then naps of 50 microseconds, and
 * after a tenth of a second of them, if `patient`, of a millisecond. *turns counts the looks, from 0. */
void ranks_rest(unsigned *turns, bool patient);

/* Adds a rank to a list in words: "rank 1", then "rank 1 or 3". Begins as "". */
void ranks_add_name(char names[128], int rank);

/* -1 with an error text made of what was being done and MPI's name of the error; 0 for success. */
int ranks_check(int code, const char *doing);

/* ---- which rank owns what of a range */

/* In elements of a buffer. */
struct element_range {
    uint64_t offset, count;
};

/* The part of a range that one of `count` ranks owns: multiples of 64 elements from its beginning, so that parts
 * begin where vectors do; maybe none. Place 0's is the largest. */
static inline struct element_range range_part(struct element_range range, int count, int place) {
    const uint64_t ranks = (uint64_t)count, index = (uint64_t)place;
    const uint64_t each = ((range.count + ranks - 1) / ranks + 63) / 64 * 64;
    const uint64_t first = index * each < range.count ? index * each : range.count;
    const uint64_t rest = range.count - first;
    return (struct element_range){range.offset + first, rest < each ? rest : each};
}

/* The place in a range of the part of the group's rank `index`. Where the group's size is a power of two its bits are
 * turned round, so that those whose numbers agree in the last bits own what lies together (range_messages.h). */
static inline int range_place(int count, int index) {
    int place = 0;
    if (count & (count - 1)) {
        return index;
    }
    for (int bit = 1; bit < count; bit *= 2) {
        place = 2 * place + ((index & bit) != 0);
    }
    return place;
}

/* The part of a range that this rank owns: of the near ranks' parts its own, of that the one that it has across. */
static inline struct element_range ranks_own_part(const struct ranks *ranks, struct element_range range) {
    const struct element_range near = range_part(range, ranks->near.count, ranks->near.index);
    return range_part(near, ranks->across.count, range_place(ranks->across.count, ranks->across.index));
}

/* Elements of the largest part that a rank owns. */
static inline uint64_t ranks_largest_part(const struct ranks *ranks, struct element_range range) {
    return range_part(range_part(range, ranks->near.count, 0), ranks->across.count, 0).count;
}
