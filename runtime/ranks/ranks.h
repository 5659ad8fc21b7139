/* The processes of one job: mpirun starts `count` ranks that train together. Without mpirun there is one rank and
 * nothing here calls MPI.
 *
 * Collective functions must be called by all ranks in the same order. They return 0, or -1 with an error text. */
#pragma once

#include "runtime/system/host_memory.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A group of ranks that includes this one. */
struct rank_group {
    int index, count;
    const int *members; /* [count] ranks in the job */
};

struct ranks {
    int index, count;
    int local_index, local_count; /* among the ranks of this host */
    int hosts;
    char host[256];         /* name of this rank's host */
    double timeout_seconds; /* to wait for other ranks before that is an error; 0: forever */
    bool agreed;            /* all ranks have the current error text, see ranks_agree */
    /* The ranks form a table of node.count columns and cross_node.count rows. `node` is this rank's row, the
     * ranks that share memory with it; `cross_node` is its column, one rank of each node. If there is no shared
     * memory, or nodes differ in their number of ranks, each rank is a node of its own. */
    struct rank_group node, cross_node;
    struct neighbours *neighbours; /* shared memory of the node; NULL without a job */
};

/* A job of one rank, without MPI. */
extern const struct ranks ranks_alone;

/* ---- joining and leaving the job */

/* Whether a launcher of MPI has started this process. */
bool job_is_launched(void);

/* Joins the job that mpirun started, or sets *ranks to ranks_alone if there is none, and finds out which ranks
 * share memory. Call it once, early in main. It fails if a launcher started several processes of which MPI knows
 * only this one. HCTRAIN_RANKS_PER_HOST=N in the environment divides the ranks of a
 * single host into nodes of N, for trials. */
int job_start(struct ranks *ranks);

/* Leaves the job. Collective. */
void job_stop(struct ranks *ranks);

/* Ends the whole job, if there is one, with status 1. */
void ranks_abort(void);

/* Call after a failure. If it is this rank's alone, so that the others wait and do not know, prints the error
 * under the program's name and ends the whole job. Does nothing if all ranks have the error, or if there is one
 * rank only. Where several ranks come here at once (all wait for one that is silent), the lowest prints and ends
 * the job. */
void ranks_end_others(const struct ranks *ranks, const char *program);

/* Collective: returns 0 if the status of every rank is 0. Else all return -1 with the error text of one rank that
 * failed, headed by its rank and host unless every rank has failed, and ranks->agreed is set. `status` must be that
 * of work of this rank alone: after a failed collective function other ranks might still be inside it. Waits
 * without a time limit. */
int ranks_agree(struct ranks *ranks, int status);

/* Collective: sums of values [count] over all ranks, added in the order of the ranks; the same bits everywhere. */
int ranks_sum(const struct ranks *ranks, double *values, size_t count);

/* Collective: copies rank 0's data to all ranks. */
int ranks_broadcast(const struct ranks *ranks, void *data, size_t bytes);

/* Collective: `all` [count * bytes] becomes every rank's data [bytes], in the order of the ranks. */
int ranks_gather(const struct ranks *ranks, const void *data, size_t bytes, void *all);

/* Collective: 32-bit words [count] become the bitwise or of all ranks' words, on rank 0 or `everywhere`. For bits,
 * and for floats of which each is on one rank, and zero bits on the others: they arrive as they are, negative zeros
 * included. */
int ranks_merge(const struct ranks *ranks, void *words, size_t count, bool everywhere);

/* Measures how long other ranks have kept this one waiting. ranks_late is called at every poll, with whether
 * something moved since the last; it returns true once nothing has moved for ranks->timeout_seconds. If this rank
 * itself was stopped for a while it starts anew. Initialised to zero. */
struct ranks_watch {
    double moved, looked; /* clock */
};
bool ranks_late(const struct ranks *ranks, struct ranks_watch *watch, bool moved);

/* Waits between two polls: first yields, then sleeps 50 microseconds, and with `long_naps` a millisecond after a
 * tenth of a second of these. *turns counts the polls, from 0. */
void ranks_pause(unsigned *turns, bool long_naps);

/* Adds a rank to a list for messages, which begins as "": "rank 1", then "rank 1 or 3". */
void ranks_add_name(char names[128], int rank);

/* Returns 0 if an MPI call succeeded, else -1 with an error text: `doing`, and MPI's text for the code. */
int ranks_check(int code, const char *doing);

/* ---- shared memory between the ranks of a node: each maps the others' (host_memory.h), and publishes its progress
 * as counters that only grow */

/* Sorts ranks by host: table [count] becomes the ranks of the first host, then those of the second, and so on.
 * hosts [count] names each rank's host by a number below `count`. Returns the number of ranks of each host; where
 * hosts differ in it, returns 1 and table is 0, 1, 2 ... */
int neighbours_sort(const int *hosts, int count, int *table);

/* Counters of ranges since the beginning of the job, by the progress that a rank has made with them. */
enum neighbour_count {
    NEIGHBOUR_FILLED, /* its addends are in shared memory */
    NEIGHBOUR_SUMMED, /* the sums of its shard are in shared memory, or in the others' memory */
    NEIGHBOUR_TAKEN,  /* it has read all that it needs from the others */
    NEIGHBOUR_COUNTS,
};

/* Sets this rank's counter. A release store, which pairs with the acquire load in neighbours_reached: what this
 * rank wrote before is visible to a rank that has found the counter reached. */
void neighbours_publish(const struct ranks *ranks, enum neighbour_count kind, uint64_t count);

/* Returns whether the counters of all ranks of the node have reached `count`. */
bool neighbours_reached(const struct ranks *ranks, enum neighbour_count kind, uint64_t count);

/* Writes the ranks of the node that have not: "rank 1 or 3"; "" if all have. */
void neighbours_name_late(const struct ranks *ranks, enum neighbour_count kind, uint64_t count, char names[128]);

/* The number of ranges of earlier rounds, from which a new round counts on. */
uint64_t *neighbours_ranges(const struct ranks *ranks);

/* Maps the other ranks' memory of the same purpose and size as `own` into others [node.count], whose entry of
 * this rank stays empty. Collective. */
int neighbours_map(const struct ranks *ranks, const struct host_memory *own, struct host_memory *others);

/* Unmaps what is mapped of others [node.count], and frees the array. NULL is allowed. */
void neighbours_unmap(const struct ranks *ranks, struct host_memory *others);

/* ---- which rank owns what of a range */

/* A range of a buffer, in elements. */
struct element_range {
    uint64_t offset, count;
};

/* Returns the shard of a range that the owner at `place` of `count` has. Shards are multiples of 64 elements,
 * counted from the range's beginning, so that they begin on vectors; the last ones may be empty. Place 0 has the
 * largest shard. */
static inline struct element_range range_shard(struct element_range range, int count, int place) {
    const uint64_t ranks = (uint64_t)count, index = (uint64_t)place;
    const uint64_t each = ((range.count + ranks - 1) / ranks + 63) / 64 * 64;
    const uint64_t first = index * each < range.count ? index * each : range.count;
    const uint64_t rest = range.count - first;
    return (struct element_range){range.offset + first, rest < each ? rest : each};
}

/* Returns the shard of a range that this rank owns: of its node's shard, the shard of its place across nodes. */
static inline struct element_range ranks_own_shard(const struct ranks *ranks, struct element_range range) {
    const struct element_range shard = range_shard(range, ranks->node.count, ranks->node.index);
    return range_shard(shard, ranks->cross_node.count, ranks->cross_node.index);
}

/* Returns the whole range for the owner at place `root`, and an empty range for the others. */
static inline struct element_range range_of_root(struct element_range range, int root, int place) {
    return (struct element_range){range.offset, place == root ? range.count : 0};
}

/* Returns this rank's place in the table of nodes, 0 .. count - 1: row by row, each row a node. */
static inline int ranks_index(const struct ranks *ranks) {
    return ranks->cross_node.index * ranks->node.count + ranks->node.index;
}
