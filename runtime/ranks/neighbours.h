/* Memory that ranks of one host share: each can map pieces of the others' (host_memory.h), and tells them how far it has
 * come by counts that only grow. */
#pragma once

#include "runtime/ranks/ranks.h"
#include "runtime/system/host_memory.h"

/* The order of ranks by their hosts, each named by any number below `count`: the hosts' ranks one after the other into table
 * [count]. Returns how many each host has; where that differs, each rank is alone: 1, and the table is 0, 1, 2 .. */
int neighbours_sort(const int *hosts, int count, int *table);

/* Collective, once, from job_start: finds out which ranks share memory and fills in ranks->near, ->across and ->neighbours. first_here
 * is the lowest rank of this host. HCTRAIN_RANKS_PER_HOST=N in the environment takes N ranks in a row for a host where all are on
 * one: for trials. neighbours_release frees what a failure leaves. */
int neighbours_find(struct ranks *ranks, int first_here);
void neighbours_release(struct ranks *ranks);

/* What ranks tell each other of the ranges that they work on: how many of them, since the beginning, ... */
enum neighbour_count {
    NEIGHBOUR_FILLED, /* have their addends where others can read them */
    NEIGHBOUR_SUMMED, /* have this rank's part where others can read it, or have been given it */
    NEIGHBOUR_TAKEN,  /* have been read by this rank to the end */
    NEIGHBOUR_COUNTS,
};

/* What this rank wrote before it tells is there for those who have found it reached. */
void neighbours_tell(const struct ranks *ranks, enum neighbour_count kind, uint64_t count);

/* Whether all near ranks have come so far. */
bool neighbours_reached(const struct ranks *ranks, enum neighbour_count kind, uint64_t count);

/* "rank 1 or 3": those that have not; "" if all have. */
void neighbours_name_late(const struct ranks *ranks, enum neighbour_count kind, uint64_t count, char names[128]);

/* Ranges that have been told of so far: where a new round begins to count. */
uint64_t *neighbours_ranges(const struct ranks *ranks);

/* Collective: maps each near rank's piece of the same purpose, all of one size. others [near.count], that at near.index stays
 * empty; the caller releases them (host_memory_release) also after a failure. */
int neighbours_map(const struct ranks *ranks, const struct host_memory *own, struct host_memory *others);
