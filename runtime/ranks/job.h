/* The MPI job of this process: joining and leaving it, and shared memory between the ranks of a node: each maps the
 * others' (host_memory.h), and publishes its progress as counters that only grow. */
#pragma once

#include "runtime/ranks/ranks.h"
#include "runtime/system/host_memory.h"

/* Whether a launcher of MPI has started this process. */
bool job_is_launched(void);

/* Joins the job that mpirun started, or sets *ranks to ranks_alone if there is none, and finds out which ranks
 * share memory. Call it once, early in main. It fails if a launcher started several processes of which MPI knows
 * only this one. HCTRAIN_RANKS_PER_HOST=N in the environment divides the ranks of a
 * single host into nodes of N, for trials. */
int job_start(struct ranks *ranks);

/* Leaves the job. Collective. */
void job_stop(struct ranks *ranks);

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
