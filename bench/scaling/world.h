/* Simulated machines for the program's own exchange of gradients: runtime/ranks/collective.c and range_messages.c
 * run unchanged, once for each rank. What they call of MPI, OpenCL, memory and the clock is replaced by
 * stand_ins.c, where it takes time on links and memories instead of moving data. */
#pragma once

#include "runtime/ranks/collective.h"
#include "runtime/ranks/job.h"

/* Rates in bytes a second, times in seconds. */
struct machine {
    int ranks, per_host;
    bool cpu;           /* devices use the host's memory, and the host's thread takes their time */
    double pcie;        /* of a device, each way */
    double memory;      /* of a host, reading and writing together */
    double rank_memory; /* of one rank's threads */
    double wire;        /* of a host, each way */
    double latency;     /* of a message */
    double overhead;    /* of a rank for each message */
    double nap;         /* between two looks of a rank at most; while a CPU computes: `long_nap` */
    double long_nap;
    double jitter;    /* each rank's computing takes so much longer at most, another time in each step */
    double straggler; /* one rank's always does */
};

/* A rank: what it knows of the job, and its clock. */
struct actor {
    struct compute compute; /* first: by it stand-ins find the actor */
    struct ranks ranks;
    struct collective *collective;
    double now;       /* of the host's thread */
    double seen;      /* when it looked last */
    double computed;  /* when the device is done, but for what was stolen */
    double stolen;    /* of the device's time by the host's thread */
    double next_mark; /* device time of the mark that is set next */
    double queues[3]; /* when copies each way are done: reads, writes */
    int queue_count;
    uint64_t counts[NEIGHBOUR_COUNTS], ranges;
    bool finished;
    double finish;
};

struct host {
    double out_free, in_free; /* when the wire has taken what was asked for so far */
    double sent;              /* bytes */
};

struct world {
    struct machine machine;
    struct actor *actors; /* [ranks] */
    struct host *hosts;
    struct actor *current; /* whose code runs */
    uint64_t random;
};

extern struct world world;

/* The rank looks at its exchange at this time, or as soon as it can after that. */
void world_wake(struct actor *actor, double time);

/* A number in [0, 1). */
double world_random(void);

static inline struct host *host_of(const struct actor *actor) {
    return &world.hosts[actor->ranks.index / world.machine.per_host];
}
