/* An interpreter of PTX, NVIDIA's assembly language for GPUs: of as much of it as clang makes of hctrain's kernels.
 * Source: NVIDIA, "Parallel Thread Execution ISA", version 7.5.
 *
 * Work-items run in warps. The lanes of a warp need not keep in step: they may take branches apart, and by `seed`
 * they do so at random. What they must not do is a fault, and ends the launch:
 *   - touch memory outside of the buffers of the launch or of the group's local memory, or across an alignment;
 *   - race for a byte of local memory: two lanes touch it, one of them writes, and no barrier of the group (or, in
 *     one warp, no bar.warp.sync) lies between;
 *   - race for bytes of a buffer: two work-groups touch them, and one of them writes;
 *   - touch local memory to which cp.async still copies;
 *   - come to a barrier, or to an instruction of a whole warp, without the other lanes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PTX_LANES_MOST = 64, PTX_PARAMETERS_MOST = 64 };

/* The kernels of a text, for warps of `lanes` work-items (a power of two, at most PTX_LANES_MOST; NVIDIA's have
 * 32). NULL with an error text: an instruction that is not known, or a text that cannot be read. */
struct ptx_module *ptx_parse(const char *text, unsigned lanes);
void ptx_free(struct ptx_module *module);

struct ptx_kernel;

/* NULL if there is none of this name. */
const struct ptx_kernel *ptx_kernel_find(const struct ptx_module *module, const char *name);

/* Memory that a launch may touch. Addresses are the host's. `touched` has ptx_touched_size(bytes) bytes, zero at
 * first, in which launches keep who wrote and read what; NULL: races for it are not looked for. */
struct ptx_range {
    const char *first;
    size_t bytes;
    struct ptx_touched *touched;
};
size_t ptx_touched_size(size_t bytes);

/* The part that belongs to bytes from this even offset on. */
struct ptx_touched *ptx_touched_from(struct ptx_touched *touched, size_t offset);

struct ptx_launch {
    const struct ptx_kernel *kernel;
    size_t groups[3], items[3]; /* work-groups, and work-items of a group */
    const char *parameters;     /* parameter_bytes of the kernel; buffers by their host addresses */
    const struct ptx_range *ranges;
    size_t range_count;
    uint32_t number; /* of this launch, not 0; that of no other launch that touches the same memory */
    uint64_t seed;   /* 0: lanes keep in step and warps run in order; else what is open is decided at random */
};

/* Runs the launch on all processors. -1 with an error text that says which fault, where. */
int ptx_run(const struct ptx_launch *launch);
