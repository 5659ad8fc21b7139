#include "runtime/ranks/range_memory.h"
#include "runtime/ranks/job.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <stdlib.h>

uint64_t range_memory_largest_shard(const struct ranks *ranks, uint64_t largest) {
    return range_shard((struct element_range){0, largest}, ranks->node.count, 0).count;
}

/* ---- creation */

static struct shared_memory make_shared(const struct ranks *ranks, const struct buffer *buffer) {
    return (struct shared_memory){buffer, memory_zeroed((size_t)ranks->node.count, sizeof(struct host_memory))};
}

static void release_shared(const struct ranks *ranks, struct shared_memory *shared) {
    for (int i = 0; shared->others && i < ranks->node.count; i++) {
        host_memory_release(&shared->others[i]);
    }
    free(shared->others);
}

/* Allocates what ranges in bfloat16 need. */
static int make_packed(struct range_memory *memory, struct range_slot *slot) {
    const uint64_t largest = memory->largest, shard = range_memory_largest_shard(memory->ranks, largest);
    if (buffer_create(memory->compute, &slot->packed, largest * sizeof(uint16_t))) {
        return -1;
    }
    slot->packed.type = ELEMENT_BF16;
    /* builds the kernels now, not while ranks wait */
    const struct span any = {memory->buffers[0].buffer, 0}, packed = {&slot->packed, 0};
    transfer_convert(&memory->reads, any, packed, 1);
    slot->sums = memory_allocate(shard, sizeof *slot->sums);
    return compute_check(memory->compute);
}

/* Allocates a slot's host memory: the driver's pinned memory if no other rank reads it, else shared memory. */
static int make_data(struct range_memory *memory, struct range_slot *slot) {
    const size_t bytes = memory->largest * sizeof(float), node_count = (size_t)memory->ranks->node.count;
    slot->pinned = memory_zeroed(node_count, sizeof *slot->pinned);
    if (node_count > 1 && !host_memory_create(&slot->memory, bytes, true)) {
        memory_refused(bytes);
    }
    if (node_count == 1 && transfer_allocate(&memory->writes, &slot->pinned[0], bytes)) {
        return -1;
    }
    slot->data = node_count == 1 ? slot->pinned[0].host : slot->memory.data;
    return 0;
}

static int make_slot(struct range_memory *memory, struct range_slot *slot) {
    if (memory->bf16 && make_packed(memory, slot)) {
        return -1;
    }
    slot->shared = make_shared(memory->ranks, NULL);
    return make_data(memory, slot);
}

int range_memory_make(struct range_memory *memory, const struct buffer *const *buffers, size_t count) {
    memory->buffer_count = count;
    memory->buffers = memory_zeroed(count, sizeof *memory->buffers);
    int status =
        transfer_create(memory->compute, &memory->reads) || transfer_create(memory->compute, &memory->writes);
    for (size_t i = 0; i < count; i++) {
        memory->buffers[i] = make_shared(memory->ranks, buffers[i]);
    }
    for (size_t i = 0; memory->staged && i < RANGE_SLOTS && status == 0; i++) {
        status = make_slot(memory, &memory->slots[i]);
    }
    return status;
}

/* Maps the slots of the node's other ranks. */
static int map(struct range_memory *memory) {
    const struct ranks *ranks = memory->ranks;
    int status = 0;
    if (ranks->node.count == 1) {
        return 0;
    }
    for (size_t i = 0; memory->staged && i < RANGE_SLOTS && status == 0; i++) {
        status = neighbours_map(ranks, &memory->slots[i].memory, memory->slots[i].shared.others);
    }
    for (size_t i = 0; !memory->staged && i < memory->buffer_count && status == 0; i++) {
        status = neighbours_map(ranks, &memory->buffers[i].buffer->pages, memory->buffers[i].others);
    }
    return status;
}

/* Registers the slot's memory with the driver for direct copies, or allocates a bounce buffer. */
static int pin(struct range_memory *memory, struct range_slot *slot) {
    const struct rank_group *node = &memory->ranks->node;
    struct transfer *transfer = &memory->writes;
    bool taken = true;
    for (int i = 0; i < node->count && taken; i++) {
        const struct host_memory *piece = i == node->index ? &slot->memory : &slot->shared.others[i];
        taken = transfer_pin(transfer, &slot->pinned[i], piece->data, piece->bytes);
    }
    return taken ? 0 : transfer_allocate(transfer, &slot->bounce, slot->memory.bytes);
}

static int pin_all(struct range_memory *memory) {
    int status = 0;
    for (size_t i = 0; memory->staged && memory->ranks->node.count > 1 && i < RANGE_SLOTS && status == 0; i++) {
        status = pin(memory, &memory->slots[i]);
    }
    return status;
}

int range_memory_share(struct range_memory *memory) {
    return map(memory) || ranks_agree(memory->ranks, pin_all(memory)) ? -1 : 0;
}

/* ---- release */

bool range_memory_settle(struct range_memory *memory) {
    return transfer_settle(&memory->reads) && transfer_settle(&memory->writes);
}

static void release_slot(struct range_memory *memory, struct range_slot *slot) {
    for (int i = 0; slot->pinned && i < memory->ranks->node.count; i++) {
        transfer_free(&memory->writes, &slot->pinned[i]);
    }
    free(slot->pinned);
    transfer_free(&memory->writes, &slot->bounce);
    release_shared(memory->ranks, &slot->shared);
    host_memory_release(&slot->memory);
    buffer_release(memory->compute, &slot->packed);
    free(slot->sums);
}

void range_memory_release(struct range_memory *memory) {
    for (size_t i = 0; i < RANGE_SLOTS; i++) {
        release_slot(memory, &memory->slots[i]);
    }
    for (size_t i = 0; memory->buffers && i < memory->buffer_count; i++) {
        release_shared(memory->ranks, &memory->buffers[i]);
    }
    free(memory->buffers);
    transfer_release(&memory->reads);
    transfer_release(&memory->writes);
}

/* ---- lookup */

const struct shared_memory *range_memory_find(const struct range_memory *memory, const struct buffer *buffer) {
    for (size_t i = 0; i < memory->buffer_count; i++) {
        if (memory->buffers[i].buffer == buffer) {
            return &memory->buffers[i];
        }
    }
    return NULL;
}
