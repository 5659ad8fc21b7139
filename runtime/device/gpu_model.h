/* Devices known by their data sheets, for the roofline estimate of a step on a device that is not there. */
#pragma once

#include "runtime/device/device.h"

/* The innermost loop of a kernel on matrix cores, as ci/assembly.py counts it: all instructions of a warp for each
 * matrix instruction, and the bytes that it moves through local memory. */
struct matrix_loop {
    const char *kernel;
    double instructions, local_bytes;
};

/* Cycles that a lane takes for a connection's map from projections to H with four streams, and back. */
struct lane_map {
    const char *connection;
    double forward, backward;
};

struct gpu_model {
    const char *name;                /* for --as */
    const char *title;               /* the product */
    const char *match;               /* a part of the driver's name of the device, NULL for none */
    const char *matrix_cores;        /* their name in runtime/gemm/matrix_cores.c, NULL for none */
    unsigned cores;                  /* multiprocessors, compute units or Xe cores: what runs work-groups */
    double bandwidth;                /* of memory, bytes/s */
    double rate;                     /* fp32 FLOP/s without matrix cores */
    double matrix_core_rate;         /* dense 16-bit FLOP/s of the matrix cores */
    double clock;                    /* cycles/s */
    double issued;                   /* instructions of warps that a core begins in a cycle */
    double matrix_flops;             /* of a matrix instruction of a warp */
    const struct matrix_loop *loops; /* up to a kernel of NULL; NULL: not counted */
    const struct lane_map *maps;     /* up to a connection of NULL; NULL: not counted */
    struct device device;            /* what its OpenCL driver reports, as far as shapes depend on it */
};

/* The model of this name, or with NULL the one that matches the device's name and memory. NULL with an error that
 * lists the names. */
const struct gpu_model *gpu_model_find(const char *name, const struct device *device);

/* Gives an open device the shape of the model, so that kernels get the model's lanes, tiles and chunks. Memory and
 * the largest buffer stay the device's. */
void gpu_model_apply(const struct gpu_model *model, struct device *device);

/* Seconds of a launch by the roofline of this model, see docs/notes/gpu.md:
 *
 *   memory        bytes / (0.85 bandwidth min(1, groups / (2 cores)))
 *   arithmetic    padded FLOPs / (0.75 rate filled)
 *   issue         instructions of warps / (instructions a cycle, clock, cores, filled)
 *   local memory  its bytes / (128 bytes a cycle, clock, cores, filled)
 *
 * the largest of these, plus 2.5 microseconds. `filled` is the share of the waves' slots that have a group. The
 * last two are only of kernels on matrix cores whose loops were counted. Groups with maps also wait map_cycles,
 * each by itself, in which a core's other groups go on.
 *
 * groups == 0: a copy or a library's GEMM, which fill the device. */
struct gpu_work {
    double groups, local; /* work-groups and their work-items */
    double bytes;         /* read and written */
    double padded_flops;  /* with the padding of tiles */
    bool on_matrix_cores; /* its flops are the matrix cores' */
    const char *kernel;
    double map_cycles; /* that a group waits for lanes that map tokens to H, one after another */
};
struct gpu_time {
    double seconds;
    const char *limit; /* the largest of these, by its name above; or "maps", or "launch": the 2.5 microseconds */
};
struct gpu_time gpu_model_time(const struct gpu_model *model, const struct gpu_work *work);

/* Of a token of this connection with four streams; 0 where they were not counted. */
double gpu_model_map_cycles(const struct gpu_model *model, const char *connection, bool backward);
