/* What goes into a compute's queue, row by row, as it is put there: what hc_bench's ledger adds up. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct record {
    char name[64];    /* of the kernel, or buffer_write and the like */
    const char *part; /* of the model, as the compute said then; never NULL */
    size_t groups;    /* work-groups; 0: a copy, a fill, or nothing but a wait */
    size_t local;     /* work-items of each */
    double read,
        written;  /* bytes of memory: what the launch needs to have, each byte once or as often as it is told */
    double flops; /* of products */
    double padded_flops; /* with those at the edges of tiles */
    bool on_unit;        /* on the matrix unit */
    bool launches;       /* the device does something; false: the host only waits */
    bool waits;          /* the host waits for it */
};

struct recorder {
    struct record *records;
    size_t count, capacity;
};

void recorder_release(struct recorder *recorder);
void recorder_clear(struct recorder *recorder);

/* -1 out of memory. */
int recorder_add(struct recorder *recorder, const struct record *record);
