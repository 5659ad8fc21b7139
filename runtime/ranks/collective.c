#include "runtime/ranks/collective.h"
#include "runtime/device/transfer.h"
#include "runtime/ranks/range_messages.h"
#include "runtime/ranks/ranks.h"
#include "runtime/system/element.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/progress.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    SLOTS = 4,   /* ranges under way at once: enough that the next one starts while the last waits */
    TAGS = 4096, /* ranges under way have tags that differ modulo this */
};

/* The stages of an item, in their order; see collective.h. advance moves an item from one to the next. */
enum stage {
    STAGE_CLOSED,    /* not ready */
    STAGE_MARKED,    /* marked as ready, but the device still computes it, or all slots are in use */
    STAGE_READING,   /* is copied from the device to the host */
    STAGE_FILLED,    /* waits until all ranks of the node have it on the host */
    STAGE_ADDING,    /* reduce-scatter across nodes */
    STAGE_GATHERING, /* all-gather across nodes */
    STAGE_SUMMED,    /* waits until all ranks of the node have their sums */
    STAGE_WRITING,   /* is copied from the host to the device */
    STAGE_DONE,
};

/* The resources of a range under way. If ranges are not staged, only `messages` is used. */
struct slot {
    struct range_messages messages;
    char *data;                 /* the range on the host */
    struct host_memory memory;  /* holds `data` if there are other ranks on the node */
    struct host_memory *others; /* [node.count] the other ranks' `memory`, see neighbours_map */
    struct pinned *pinned;      /* [node.count] all of these for the driver, so that it can copy directly */
    struct pinned bounce;       /* what it copies from and to if it cannot; else empty */
    struct buffer packed;       /* the range in bfloat16 on the device; empty if it travels in float */
    float *sums;                /* if packed: sums of this rank's shard of the node, in float */
};

/* A buffer with ranges, and the same buffer of the other ranks of the node, which they read if not staged. */
struct shared_buffer {
    const struct buffer *buffer;
    struct host_memory *others; /* [node.count] */
};

struct item {
    struct collective_item what;
    uint64_t number; /* of the range, from 1 at the beginning of the job */
    struct slot *slot;
    char *data; /* the range in this rank's host memory, and its other ranks' memory of the same layout */
    const struct host_memory *others;
    uint64_t origin;            /* the element of the buffer at which these begin */
    struct element_range shard; /* this rank's shard of the node */
    bool packed;                /* the device rounds the range to bfloat16, in which it then travels */
    enum stage stage;
    cl_event event; /* of the marker or copy that it waits for */
};

struct collective {
    struct compute *compute;
    struct ranks *ranks;
    uint64_t largest;              /* elements of a range */
    bool bf16;                     /* gradients may travel in bfloat16 */
    bool staged;                   /* ranges are copied to slots and back: a rank's device has other memory */
    struct transfer reads, writes; /* two queues beside the compute's: copies both ways at a time */
    struct slot slots[SLOTS];
    struct shared_buffer *buffers; /* [buffer_count] */
    size_t buffer_count;
    float **targets; /* [node.count] targets and addends of a sum */
    const void **addends;
    /* of the current round */
    uint64_t before;                  /* items of earlier rounds */
    size_t count, marked, seen, done; /* items; items marked, found to be ready, done */
    size_t under_way;
    double since;       /* time since which something has been under way */
    double device_done; /* time at which the last marker was reached; 0: not yet */
    struct collective_times times;
    bool failed; /* the error text is set */
    struct item items[];
};

/* ---- creation and release */

/* Returns the elements of the largest shard of a range that a rank sums over its node. */
static uint64_t largest_shard(const struct ranks *ranks, uint64_t largest) {
    return range_shard((struct element_range){0, largest}, ranks->node.count, 0).count;
}

uint64_t collective_host_bytes(const struct compute *compute, const struct ranks *ranks, uint64_t largest,
                               bool bf16) {
    const uint64_t shard = largest_shard(ranks, largest), sums = bf16 ? shard : 0;
    const uint64_t slot = compute->device.native_kernels ? 0 : (largest + sums) * sizeof(float);
    return SLOTS * (range_messages_bytes(ranks, shard, bf16) + slot);
}

uint64_t collective_device_bytes(const struct compute *compute, uint64_t largest, bool bf16) {
    return compute->device.native_kernels || !bf16 ? 0 : SLOTS * largest * sizeof(uint16_t);
}

/* Allocates what ranges that are copied need: on the host the driver's pinned memory if no other rank reads it,
 * else shared memory; if they may travel in bfloat16, a buffer of that type on the device, and their sums. */
static int make_slot(struct collective *collective, struct slot *slot) {
    const size_t bytes = collective->largest * sizeof(float);
    if (collective->bf16) {
        if (buffer_create(collective->compute, &slot->packed, collective->largest * sizeof(uint16_t))) {
            return -1;
        }
        slot->packed.type = ELEMENT_BF16;
        /* builds the kernels now, not while ranks wait */
        transfer_convert(&collective->reads, (struct span){collective->buffers[0].buffer, 0},
                         (struct span){&slot->packed, 0}, 1);
        slot->sums = memory_allocate(largest_shard(collective->ranks, collective->largest), sizeof *slot->sums);
        if (compute_check(collective->compute)) {
            return -1;
        }
    }
    if (collective->ranks->node.count == 1) {
        const int status = transfer_allocate(&collective->writes, &slot->pinned[0], bytes);
        slot->data = slot->pinned[0].host;
        return status;
    }
    if (!host_memory_create(&slot->memory, bytes, true)) {
        memory_refused(bytes);
    }
    slot->data = slot->memory.data;
    return 0;
}

/* Collective: maps the memory of the node's other ranks, after all have made theirs. Registers that of slots with
 * the driver for direct copies, or allocates bounce buffers. */
static int share(struct collective *collective) {
    struct ranks *ranks = collective->ranks;
    int status = 0; /* of this rank alone */
    for (size_t i = 0; !collective->staged && i < collective->buffer_count; i++) {
        if (neighbours_map(ranks, &collective->buffers[i].buffer->pages, collective->buffers[i].others)) {
            return -1;
        }
    }
    for (size_t i = 0; collective->staged && i < SLOTS; i++) {
        struct slot *slot = &collective->slots[i];
        if (neighbours_map(ranks, &slot->memory, slot->others)) {
            return -1;
        }
        bool taken = true;
        for (int peer = 0; peer < ranks->node.count && taken; peer++) {
            const struct host_memory *memory = peer == ranks->node.index ? &slot->memory : &slot->others[peer];
            taken = transfer_pin(&collective->writes, &slot->pinned[peer], memory->data, memory->bytes);
        }
        if (!taken && status == 0) {
            status = transfer_allocate(&collective->writes, &slot->bounce, slot->memory.bytes);
        }
    }
    return ranks_agree(ranks, status);
}

int collective_create(struct compute *compute, struct ranks *ranks, const struct collective_settings *settings,
                      struct collective **created) {
    const size_t node_count = (size_t)ranks->node.count;
    double staged = !compute->device.native_kernels;
    *created = NULL;
    if (ranks_sum(ranks, &staged, 1)) { /* all ranks use slots if one must */
        return -1;
    }
    struct collective *collective =
        memory_zeroed(1, sizeof *collective + settings->items * sizeof *collective->items);
    collective->compute = compute;
    collective->ranks = ranks;
    collective->largest = settings->largest;
    collective->bf16 = settings->bf16;
    collective->staged = staged > 0.0;
    collective->targets = memory_allocate(node_count, sizeof *collective->targets);
    collective->addends = memory_allocate(node_count, sizeof *collective->addends);
    for (struct slot *slot = collective->slots; slot < collective->slots + SLOTS; slot++) {
        range_messages_create(&slot->messages, ranks, largest_shard(ranks, settings->largest), settings->bf16);
        slot->others = memory_zeroed(node_count, sizeof *slot->others);
        slot->pinned = memory_zeroed(node_count, sizeof *slot->pinned);
    }
    collective->buffer_count = settings->buffer_count;
    collective->buffers = memory_allocate(settings->buffer_count, sizeof *collective->buffers);
    for (size_t i = 0; i < settings->buffer_count; i++) {
        collective->buffers[i] =
            (struct shared_buffer){settings->buffers[i], memory_zeroed(node_count, sizeof(struct host_memory))};
    }
    int status = transfer_create(compute, &collective->reads) || transfer_create(compute, &collective->writes);
    for (size_t i = 0; collective->staged && i < SLOTS && status == 0; i++) {
        status = make_slot(collective, &collective->slots[i]);
    }
    if (ranks_agree(ranks, status) || (node_count > 1 && share(collective))) {
        collective_release(collective);
        return -1;
    }
    *created = collective;
    return 0;
}

static void drop_event(struct item *item) {
    if (item->event) {
        clReleaseEvent(item->event);
    }
    item->event = NULL;
}

void collective_release(struct collective *collective) {
    /* memory that the device may still use stays */
    if (!collective || !transfer_settle(&collective->reads) || !transfer_settle(&collective->writes)) {
        return;
    }
    for (size_t i = 0; i < collective->count; i++) {
        drop_event(&collective->items[i]);
    }
    for (struct slot *slot = collective->slots; slot < collective->slots + SLOTS; slot++) {
        range_messages_release(&slot->messages);
        for (int i = 0; i < collective->ranks->node.count; i++) {
            transfer_free(&collective->writes, &slot->pinned[i]);
        }
        free(slot->pinned);
        transfer_free(&collective->writes, &slot->bounce);
        neighbours_unmap(collective->ranks, slot->others);
        host_memory_release(&slot->memory);
        buffer_release(collective->compute, &slot->packed);
        free(slot->sums);
    }
    for (size_t i = 0; i < collective->buffer_count; i++) {
        neighbours_unmap(collective->ranks, collective->buffers[i].others);
    }
    free(collective->buffers);
    transfer_release(&collective->reads);
    transfer_release(&collective->writes);
    free(collective->targets);
    free(collective->addends);
    free(collective);
}

/* ---- locations */

/* Returns whether items need slots, of which there are few: for copies between device and host, and for
 * messages. */
static bool uses_slots(const struct collective *collective) {
    return collective->staged || collective->ranks->cross_node.count > 1;
}

/* Returns whether values are sent as they are, instead of sums. */
static bool is_gather(enum collective_kind kind) {
    return kind == COLLECTIVE_ALL_GATHER || kind == COLLECTIVE_BROADCAST;
}

/* Returns the shard of a range that rank `peer` of the node has. */
static struct element_range shard_in_node(const struct ranks *ranks, const struct collective_item *what, int peer) {
    const int count = ranks->node.count;
    return what->kind == COLLECTIVE_BROADCAST ? range_of_root(what->range, what->root % count, peer)
                                              : range_shard(what->range, count, peer);
}

static size_t element_bytes(const struct item *item) {
    return item->packed ? sizeof(uint16_t) : sizeof(float);
}

/* Returns the address of an element of the item's range in the host memory of rank `peer` of the node. `element`
 * is its index in the buffer. */
static void *place_at(const struct collective *collective, const struct item *item, int peer, uint64_t element) {
    char *memory = peer == collective->ranks->node.index ? item->data : item->others[peer].data;
    return memory + (element - item->origin) * element_bytes(item);
}

/* The sums of this rank's shard of the node, in float. */
static float *own_sums(const struct collective *collective, const struct item *item) {
    return item->packed ? item->slot->sums
                        : place_at(collective, item, collective->ranks->node.index, item->shard.offset);
}

/* ---- sums and copies in host memory */

/* Adds `count` arrays, collective->addends, into collective->targets [target_count]. All point to this rank's
 * shard. */
static void add(struct collective *collective, const struct item *item, int count, int target_count) {
    const uint64_t elements = item->shard.count;
    const size_t bytes = element_bytes(item) * (size_t)count + sizeof(float) * (size_t)target_count;
    /* one thread while a CPU device computes, which needs the cores */
    const bool threads = !collective->compute->device.is_cpu || collective->device_done > 0.0;
    collective->times.moved += (double)elements * (double)bytes;
    pairwise_sum(&(struct pairwise_sum){collective->addends, count, elements, item->packed, -1, collective->targets,
                                        target_count},
                 threads);
}

/* Returns whether this rank writes its sums into the memory of the node's other ranks, who then need not copy them.
 */
static bool hands_out(const struct collective *collective, const struct item *item) {
    return !collective->staged && item->what.kind != COLLECTIVE_REDUCE_SCATTER && collective->ranks->node.count > 1;
}

/* Appends this rank's shard in the memory of the node's other ranks to the targets; returns their number. */
static int add_targets(struct collective *collective, const struct item *item, int count) {
    const struct rank_group *node = &collective->ranks->node;
    for (int i = 0; i < node->count; i++) {
        if (i != node->index) {
            collective->targets[count++] = place_at(collective, item, i, item->shard.offset);
        }
    }
    return count;
}

static void add_node(struct collective *collective, const struct item *item) {
    const struct ranks *ranks = collective->ranks;
    if (is_gather(item->what.kind) || (ranks->node.count == 1 && !item->packed)) {
        return;
    }
    for (int i = 0; i < ranks->node.count; i++) {
        collective->addends[i] = place_at(collective, item, i, item->shard.offset);
    }
    collective->targets[0] = own_sums(collective, item);
    const bool at_once = hands_out(collective, item) && ranks->cross_node.count == 1;
    add(collective, item, ranks->node.count, at_once ? add_targets(collective, item, 1) : 1);
}

/* Publishes this rank's sums once they are complete: rounds them where the others read them, or writes them, or
 * weights of an all-gather or broadcast, into the others' memory, unless add_node has done so. */
static void publish(struct collective *collective, const struct item *item) {
    const bool reduces = item->what.kind == COLLECTIVE_ALL_REDUCE;
    if (item->packed && reduces) {
        const int own = collective->ranks->node.index;
        elements_to_bf16(own_sums(collective, item), item->shard.count,
                         place_at(collective, item, own, item->shard.offset));
    } else if (hands_out(collective, item) && !(reduces && collective->ranks->cross_node.count == 1)) {
        collective->addends[0] = own_sums(collective, item);
        add(collective, item, 1, add_targets(collective, item, 0));
    }
}

/* ---- copies between device and host */

/* The shard of a range that is copied from the device: all of it, or the shard that this rank owns. */
static struct element_range wanted_of(const struct collective *collective, const struct item *item) {
    const struct ranks *ranks = collective->ranks;
    switch (item->what.kind) {
    case COLLECTIVE_BROADCAST:
        return range_of_root(item->what.range, item->what.root, ranks_index(ranks));
    case COLLECTIVE_ALL_GATHER:
        return ranks_own_shard(ranks, item->what.range);
    default:
        return item->what.range;
    }
}

/* The address that the driver copies an element from or to: in a rank's shared memory, or in the bounce buffer. */
static void *copied_at(const struct collective *collective, const struct item *item, int peer, uint64_t element) {
    char *bounce = item->slot->bounce.host;
    return bounce ? bounce + (element - item->origin) * element_bytes(item)
                  : place_at(collective, item, peer, element);
}

/* Starts to copy wanted_of the range from the device. */
static void start_reading(struct collective *collective, struct item *item) {
    const struct element_range wanted = wanted_of(collective, item);
    const struct buffer *from = item->packed ? &item->slot->packed : item->what.buffer;
    void *memory = copied_at(collective, item, collective->ranks->node.index, wanted.offset);
    if (wanted.count == 0) {
        return;
    }
    if (item->packed) {
        transfer_convert(&collective->reads, (struct span){item->what.buffer, wanted.offset},
                         (struct span){from, 0}, wanted.count);
    }
    item->event = transfer_read(&collective->reads, from, item->packed ? 0 : wanted.offset * sizeof(float),
                                wanted.count * element_bytes(item), memory);
}

/* Copies a shard of the range between a rank's shared memory and the bounce buffer. */
static void bounce(struct collective *collective, const struct item *item, int peer, struct element_range shard,
                   bool in) {
    void *memory = place_at(collective, item, peer, shard.offset),
         *copied = copied_at(collective, item, peer, shard.offset);
    if (memory != copied) {
        memcpy(in ? memory : copied, in ? copied : memory, shard.count * element_bytes(item));
    }
}

static void write_shard(struct collective *collective, const struct buffer *buffer, size_t offset, const void *from,
                        size_t bytes) {
    cl_event event = bytes ? transfer_write(&collective->writes, buffer, offset, bytes, from) : NULL;
    if (event) {
        clReleaseEvent(event);
    }
}

/* Starts to copy to the device: the sums that this rank owns, or each rank's shard from its memory. */
static void start_writing(struct collective *collective, struct item *item) {
    const struct ranks *ranks = collective->ranks;
    const struct element_range range = item->what.range, own = ranks_own_shard(ranks, range);
    const struct buffer *to = item->packed ? &item->slot->packed : item->what.buffer;
    if (item->what.kind == COLLECTIVE_REDUCE_SCATTER) {
        write_shard(collective, item->what.buffer, own.offset * sizeof(float),
                    own_sums(collective, item) + (own.offset - item->shard.offset), own.count * sizeof(float));
        item->event = transfer_last(&collective->writes);
        return;
    }
    for (int i = 0; i < ranks->node.count; i++) {
        const struct element_range shard = shard_in_node(ranks, &item->what, i);
        bounce(collective, item, i, shard, false);
        write_shard(collective, to, (shard.offset - (item->packed ? range.offset : 0)) * element_bytes(item),
                    copied_at(collective, item, i, shard.offset), shard.count * element_bytes(item));
    }
    if (item->packed) {
        transfer_convert(&collective->writes, (struct span){to, 0}, (struct span){item->what.buffer, range.offset},
                         range.count);
    }
    item->event = transfer_last(&collective->writes);
}

/* ---- the stages of an item */

static void start_messages(struct collective *collective, const struct item *item) {
    struct range_messages *messages = &item->slot->messages;
    messages->range = item->shard;
    messages->data = own_sums(collective, item);
    messages->bf16 = collective->bf16 && !is_gather(item->what.kind); /* weights are not rounded */
    messages->root = item->what.kind == COLLECTIVE_BROADCAST ? item->what.root / collective->ranks->node.count : -1;
    messages->tag = (int)(item->number % TAGS);
    collective->failed |=
        range_messages_start(messages, item->stage == STAGE_GATHERING, &collective->times.sent) != 0;
}

/* Returns whether an item skips a stage, by its kind, the device and the ranks. */
static bool is_left_out(const struct collective *collective, const struct item *item) {
    switch (item->stage) {
    case STAGE_READING:
    case STAGE_WRITING:
        return !collective->staged;
    case STAGE_ADDING: /* add_node completed the sums at the end of STAGE_FILLED */
        return is_gather(item->what.kind) || collective->ranks->cross_node.count == 1;
    case STAGE_GATHERING:
        return item->what.kind == COLLECTIVE_REDUCE_SCATTER || collective->ranks->cross_node.count == 1;
    default:
        return false;
    }
}

static bool event_is_done(struct collective *collective, const struct item *item) {
    return !item->event || transfer_done(&collective->reads, item->event);
}

/* The number of the item that used the slot before; 0: none. */
static uint64_t slot_before(const struct collective *collective, const struct item *item) {
    return uses_slots(collective) && item->number > SLOTS ? item->number - SLOTS : 0;
}

/* Returns whether the item's current stage is complete. */
static bool is_through(struct collective *collective, const struct item *item) {
    const struct ranks *ranks = collective->ranks;
    bool done = false;
    switch (item->stage) {
    case STAGE_MARKED: /* and all ranks of the node have read the slot's earlier item */
        return event_is_done(collective, item) &&
               neighbours_reached(ranks, NEIGHBOUR_TAKEN, slot_before(collective, item));
    case STAGE_READING:
    case STAGE_WRITING:
        return event_is_done(collective, item);
    case STAGE_FILLED:
        return neighbours_reached(ranks, NEIGHBOUR_FILLED, item->number);
    case STAGE_ADDING:
    case STAGE_GATHERING:
        collective->failed |= range_messages_advance(&item->slot->messages, &done) != 0;
        return done;
    case STAGE_SUMMED:
        return neighbours_reached(ranks, NEIGHBOUR_SUMMED, item->number);
    default:
        return false;
    }
}

/* Begins the stage that an item has reached. */
static void begin_stage(struct collective *collective, struct item *item) {
    switch (item->stage) {
    case STAGE_READING:
        start_reading(collective, item);
        break;
    case STAGE_ADDING:
    case STAGE_GATHERING:
        start_messages(collective, item);
        break;
    case STAGE_SUMMED:
        publish(collective, item);
        break;
    case STAGE_WRITING:
        start_writing(collective, item);
        break;
    case STAGE_DONE:
        if (--collective->under_way == 0) {
            collective->times.active += progress_clock() - collective->since;
        }
        break;
    default:
        break;
    }
}

/* Moves the item to its next stage if the current one is complete; returns whether it did. */
static bool advance(struct collective *collective, struct item *item) {
    if (item->stage == STAGE_CLOSED || item->stage == STAGE_DONE || !is_through(collective, item) ||
        collective->failed || collective->compute->failure) {
        return false;
    }
    drop_event(item);
    if (item->stage == STAGE_MARKED && collective->under_way++ == 0) {
        collective->since = progress_clock();
    } else if (item->stage == STAGE_READING) {
        bounce(collective, item, collective->ranks->node.index, wanted_of(collective, item), true);
    } else if (item->stage == STAGE_FILLED) {
        add_node(collective, item);
    }
    do {
        item->stage++;
    } while (is_left_out(collective, item));
    begin_stage(collective, item);
    return true;
}

/* Counts the leading items of the round that have reached a stage. */
static uint64_t reached(const struct collective *collective, enum stage stage) {
    size_t index = collective->done;
    while (index < collective->count && collective->items[index].stage >= stage) {
        index++;
    }
    return collective->before + index;
}

/* Advances everything under way. Returns whether something moved. */
static bool progress(struct collective *collective) {
    bool moved_on = false;
    /* items are ready, perhaps before they get a slot, in the order of their marks */
    while (collective->seen < collective->marked) {
        const struct item *item = &collective->items[collective->seen];
        if (item->stage == STAGE_MARKED && !event_is_done(collective, item)) {
            break;
        }
        if (++collective->seen == collective->count) {
            collective->device_done = progress_clock();
        }
    }
    const size_t window_end = uses_slots(collective) ? collective->done + SLOTS : collective->count;
    for (size_t i = collective->done; i < window_end && i < collective->count; i++) {
        moved_on |= advance(collective, &collective->items[i]);
    }
    neighbours_publish(collective->ranks, NEIGHBOUR_FILLED, reached(collective, STAGE_FILLED));
    neighbours_publish(collective->ranks, NEIGHBOUR_SUMMED, reached(collective, STAGE_SUMMED));
    neighbours_publish(collective->ranks, NEIGHBOUR_TAKEN, reached(collective, STAGE_DONE));
    while (collective->done < collective->count && collective->items[collective->done].stage == STAGE_DONE) {
        collective->done++;
    }
    return moved_on;
}

/* ---- a round */

void collective_begin(struct collective *collective, const struct collective_item *items, size_t count) {
    const struct ranks *ranks = collective->ranks;
    const bool staged = collective->staged;
    collective->marked = collective->seen = collective->done = collective->under_way = 0;
    collective->count = count;
    collective->times = (struct collective_times){0};
    collective->device_done = 0.0;
    collective->before = *neighbours_ranges(ranks);
    *neighbours_ranges(ranks) += count;
    for (size_t i = 0; i < count; i++) {
        const struct collective_item *what = &items[i];
        const uint64_t number = collective->before + i + 1;
        struct slot *slot = &collective->slots[number % SLOTS];
        const struct shared_buffer *shared = collective->buffers;
        while (shared->buffer != what->buffer) {
            shared++;
            assert(shared < collective->buffers + collective->buffer_count);
        }
        collective->items[i] = (struct item){
            .what = *what,
            .number = number,
            .slot = slot,
            .data = staged ? slot->data : what->buffer->host,
            .others = staged ? slot->others : shared->others,
            .origin = staged ? what->range.offset : 0,
            .shard = shard_in_node(ranks, what, ranks->node.index),
            .packed = collective->bf16 && staged && !is_gather(what->kind),
        };
    }
}

void collective_ready(struct collective *collective, size_t count) {
    if (count <= collective->marked || collective->failed || collective->compute->failure) {
        return;
    }
    cl_event mark = transfer_mark(&collective->reads);
    for (; mark && collective->marked < count; collective->marked++) {
        struct item *item = &collective->items[collective->marked];
        item->event = transfer_share(&collective->reads, mark);
        if (!item->event) {
            break; /* the device has failed; compute keeps the error */
        }
        item->stage = STAGE_MARKED;
    }
    if (mark) {
        clReleaseEvent(mark);
    }
    progress(collective);
}

/* Names the ranks that keep the oldest item waiting. Where sums are missing their owner may itself be waiting, so
 * it is one of those named. */
static int fail_late(struct collective *collective) {
    const struct ranks *ranks = collective->ranks;
    const struct item *item = &collective->items[collective->done];
    char names[128] = "";
    if (item->stage == STAGE_ADDING || item->stage == STAGE_GATHERING) {
        range_messages_name_late(&item->slot->messages, names);
    } else if (item->stage == STAGE_FILLED || item->stage == STAGE_SUMMED) {
        neighbours_name_late(ranks, item->stage == STAGE_FILLED ? NEIGHBOUR_FILLED : NEIGHBOUR_SUMMED, item->number,
                             names);
    } else if (item->stage == STAGE_MARKED) {
        neighbours_name_late(ranks, NEIGHBOUR_TAKEN, slot_before(collective, item), names);
    }
    return error_set("no answer from %s for %g seconds; is it stopped, or its host away?",
                     *names ? names : "another rank", ranks->timeout_seconds);
}

int collective_finish(struct collective *collective, struct collective_times *times) {
    struct ranks_watch watch = {0};
    unsigned turns = 0;
    collective_ready(collective, collective->count);
    while (collective->done < collective->count) {
        const bool moved = progress(collective);
        if (collective->failed || compute_check(collective->compute)) {
            return -1;
        }
        const struct item *oldest =
            collective->done < collective->count ? &collective->items[collective->done] : NULL;
        const bool computing = oldest && collective->under_way == 0 && oldest->stage == STAGE_MARKED &&
                               !event_is_done(collective, oldest);
        if (ranks_late(collective->ranks, &watch, moved || computing)) {
            return fail_late(collective);
        }
        if (moved) {
            turns = 0;
        } else if (computing) {
            transfer_wait(&collective->reads, oldest->event);
        } else if (collective->device_done == 0.0 && collective->compute->device.is_cpu) {
            /* a poll costs the device 20 microseconds of a core and the contents of its first-level cache */
            nanosleep(&(struct timespec){0, 500000}, NULL);
        } else {
            ranks_pause(&turns, false);
        }
    }
    if (compute_check(collective->compute)) {
        return -1;
    }
    if (times && collective->count > 0) {
        collective->times.exposed = progress_clock() - collective->device_done;
        collective_times_add(times, &collective->times);
    }
    return 0;
}
