#include "runtime/ranks/collective.h"
#include "runtime/ranks/job.h"
#include "runtime/ranks/pairwise_sum.h"
#include "runtime/ranks/range_memory.h"
#include "runtime/ranks/range_messages.h"
#include "runtime/system/element.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/parallel.h"
#include "runtime/system/progress.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TAGS  4096                /* ranges under way have tags that differ modulo this */
#define PIECE ((uint64_t)1 << 16) /* elements that a thread adds at a time */

/* The stages of an item, in their order. */
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

struct item {
    struct collective_item what;
    enum stage stage;
    cl_event event; /* of the marker or copy that it waits for */
    double ready;   /* time at which the marker was found to be reached */
};

struct collective {
    struct compute *compute;
    const struct ranks *ranks;
    struct range_memory memory;
    struct range_messages messages[RANGE_SLOTS];
    size_t most;     /* most items of a round */
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

uint64_t collective_host_bytes(const struct compute *compute, const struct ranks *ranks, uint64_t largest,
                               bool bf16) {
    const uint64_t shard = range_memory_largest_shard(ranks, largest), sums = bf16 ? shard : 0;
    const uint64_t slot = compute->device.native_kernels ? 0 : (largest + sums) * sizeof(float);
    return RANGE_SLOTS * (range_messages_bytes(ranks, shard, bf16) + slot);
}

uint64_t collective_device_bytes(const struct compute *compute, uint64_t largest, bool bf16) {
    return compute->device.native_kernels || !bf16 ? 0 : RANGE_SLOTS * largest * sizeof(uint16_t);
}

/* The work of collective_create that needs no other rank. */
static int make(struct collective *collective, const struct collective_settings *settings) {
    const struct ranks *ranks = collective->ranks;
    const size_t node_count = (size_t)ranks->node.count;
    collective->targets = memory_allocate(node_count, sizeof *collective->targets);
    collective->addends = memory_allocate(node_count, sizeof *collective->addends);
    if (settings->largest < 1 || settings->largest > (uint64_t)1 << 28) {
        return error_set("a range of %" PRIu64 " elements cannot be summed", settings->largest);
    }
    for (size_t i = 0; i < RANGE_SLOTS; i++) {
        range_messages_create(&collective->messages[i], ranks, range_memory_largest_shard(ranks, settings->largest),
                              settings->bf16);
    }
    return range_memory_make(&collective->memory, settings->buffers, settings->buffer_count);
}

int collective_create(struct compute *compute, struct ranks *ranks, const struct collective_settings *settings,
                      struct collective **created) {
    double staged = !compute->device.native_kernels;
    *created = NULL;
    if (ranks_sum(ranks, &staged, 1)) { /* all ranks use slots if one must */
        return -1;
    }
    struct collective *collective =
        memory_zeroed(1, sizeof *collective + settings->items * sizeof *collective->items);
    collective->compute = compute;
    collective->ranks = ranks;
    collective->most = settings->items;
    collective->memory = (struct range_memory){.compute = compute,
                                               .ranks = ranks,
                                               .largest = settings->largest,
                                               .bf16 = settings->bf16,
                                               .staged = staged > 0.0};
    if (ranks_agree(ranks, make(collective, settings)) || range_memory_share(&collective->memory)) {
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
    if (!collective || !range_memory_settle(&collective->memory)) {
        return;
    }
    for (size_t i = 0; i < collective->count; i++) {
        drop_event(&collective->items[i]);
    }
    for (size_t i = 0; i < RANGE_SLOTS; i++) {
        range_messages_release(&collective->messages[i]);
    }
    range_memory_release(&collective->memory);
    free(collective->targets);
    free(collective->addends);
    free(collective);
}

/* ---- locations */

/* Returns whether items need slots, of which there are RANGE_SLOTS: for copies between device and host, and for
 * messages. */
static bool uses_slots(const struct collective *collective) {
    return collective->memory.staged || collective->ranks->cross_node.count > 1;
}

static size_t slot_index(const struct collective *collective, size_t index) {
    return (collective->before + index) % RANGE_SLOTS;
}

static struct range_slot *slot_of(struct collective *collective, size_t index) {
    return &collective->memory.slots[slot_index(collective, index)];
}

static struct range_messages *messages_of(struct collective *collective, size_t index) {
    return &collective->messages[slot_index(collective, index)];
}

static struct element_range node_shard(const struct collective *collective, const struct item *item, int peer) {
    return range_shard(item->what.range, collective->ranks->node.count, peer);
}

/* Returns whether the device rounds the range to bfloat16, in which it then travels. */
static bool is_packed(const struct collective *collective, const struct item *item) {
    return collective->memory.bf16 && collective->memory.staged && item->what.kind != COLLECTIVE_ALL_GATHER;
}

static size_t element_bytes(const struct collective *collective, const struct item *item) {
    return is_packed(collective, item) ? sizeof(uint16_t) : sizeof(float);
}

/* Returns the address of an element of the item's range in the host memory of rank `peer` of the node. `element`
 * is its index in the buffer. */
static void *place_at(struct collective *collective, size_t index, int peer, uint64_t element) {
    const struct item *item = &collective->items[index];
    const struct range_slot *slot = slot_of(collective, index);
    const bool staged = collective->memory.staged, own = peer == collective->ranks->node.index;
    const struct shared_memory *shared =
        staged ? &slot->shared : range_memory_find(&collective->memory, item->what.buffer);
    char *memory = !own ? shared->others[peer].data : staged ? slot->data : item->what.buffer->host;
    return memory + (element - (staged ? item->what.range.offset : 0)) * element_bytes(collective, item);
}

/* The sums of this rank's shard of the node, in float. */
static float *own_sums(struct collective *collective, size_t index) {
    const struct item *item = &collective->items[index];
    const int own = collective->ranks->node.index;
    return is_packed(collective, item) ? slot_of(collective, index)->sums
                                       : place_at(collective, index, own, node_shard(collective, item, own).offset);
}

/* ---- sums and copies in host memory */

/* Threads for sums: one while a CPU device computes, which needs the cores. */
static bool has_threads(const struct collective *collective) {
    return !collective->compute->device.is_cpu || collective->device_done > 0.0;
}

struct addition {
    struct pairwise_sum sum;
    uint64_t count;
};

static int add_piece(void *context, size_t index) {
    const struct addition *addition = context;
    const uint64_t begin = index * PIECE, left = addition->count - begin;
    pairwise_sum(&addition->sum, begin, left < PIECE ? left : PIECE);
    return 0;
}

/* Adds `count` arrays, collective->addends, into collective->targets [target_count]. All point to this rank's
 * shard. */
static void add(struct collective *collective, const struct item *item, int count, int target_count) {
    const uint64_t elements = node_shard(collective, item, collective->ranks->node.index).count;
    const bool packed = is_packed(collective, item);
    struct addition addition = {
        .sum = {collective->addends, count, packed, -1, collective->targets, target_count},
        .count = elements,
    };
    collective->times.moved += (double)elements * (double)(element_bytes(collective, item) * (size_t)count +
                                                           sizeof(float) * (size_t)target_count);
    if (has_threads(collective)) {
        parallel_run((elements + PIECE - 1) / PIECE, add_piece, &addition);
    } else {
        pairwise_sum(&addition.sum, 0, elements);
    }
}

/* Returns whether this rank writes its sums into the memory of the node's other ranks, who then need not copy them.
 */
static bool hands_out(const struct collective *collective, const struct item *item) {
    return !collective->memory.staged && item->what.kind != COLLECTIVE_REDUCE_SCATTER &&
           collective->ranks->node.count > 1;
}

/* Appends this rank's shard in the memory of the node's other ranks to the targets; returns their number. */
static int add_targets(struct collective *collective, size_t index, int count) {
    const struct rank_group *node = &collective->ranks->node;
    const uint64_t first = node_shard(collective, &collective->items[index], node->index).offset;
    for (int i = 0; i < node->count; i++) {
        if (i != node->index) {
            collective->targets[count++] = place_at(collective, index, i, first);
        }
    }
    return count;
}

static void add_node(struct collective *collective, size_t index) {
    const struct ranks *ranks = collective->ranks;
    const struct item *item = &collective->items[index];
    const uint64_t first = node_shard(collective, item, ranks->node.index).offset;
    if (item->what.kind == COLLECTIVE_ALL_GATHER || (ranks->node.count == 1 && !is_packed(collective, item))) {
        return;
    }
    for (int i = 0; i < ranks->node.count; i++) {
        collective->addends[i] = place_at(collective, index, i, first);
    }
    collective->targets[0] = own_sums(collective, index);
    const bool at_once = hands_out(collective, item) && ranks->cross_node.count == 1;
    add(collective, item, ranks->node.count, at_once ? add_targets(collective, index, 1) : 1);
}

/* Rounds the sums of this rank's shard to bfloat16, where the others read them. */
static void round_sums(struct collective *collective, size_t index) {
    const struct item *item = &collective->items[index];
    const int own = collective->ranks->node.index;
    const struct element_range shard = node_shard(collective, item, own);
    elements_to_bf16(own_sums(collective, index), shard.count, place_at(collective, index, own, shard.offset));
}

/* Writes sums, or weights of an all-gather, into the memory of the node's other ranks. */
static void hand_out(struct collective *collective, size_t index) {
    collective->addends[0] = own_sums(collective, index);
    add(collective, &collective->items[index], 1, add_targets(collective, index, 0));
}

/* Publishes this rank's sums once they are complete. */
static void publish(struct collective *collective, size_t index) {
    const struct item *item = &collective->items[index];
    const bool handed =
        item->what.kind == COLLECTIVE_ALL_REDUCE && collective->ranks->cross_node.count == 1; /* by add_node */
    if (is_packed(collective, item) && item->what.kind == COLLECTIVE_ALL_REDUCE) {
        round_sums(collective, index);
    } else if (hands_out(collective, item) && !handed) {
        hand_out(collective, index);
    }
}

/* ---- copies between device and host */

/* The shard of a range that is copied from the device: all of it, or the shard that this rank owns. */
static struct element_range wanted_of(const struct collective *collective, const struct item *item) {
    return item->what.kind == COLLECTIVE_ALL_GATHER ? ranks_own_shard(collective->ranks, item->what.range)
                                                    : item->what.range;
}

/* The address that the driver copies an element from or to: in a rank's shared memory, or in the bounce buffer. */
static void *copied_at(struct collective *collective, size_t index, int peer, uint64_t element) {
    const struct item *item = &collective->items[index];
    const struct pinned *bounce = &slot_of(collective, index)->bounce;
    return bounce->host
               ? (char *)bounce->host + (element - item->what.range.offset) * element_bytes(collective, item)
               : place_at(collective, index, peer, element);
}

static void start_reading(struct collective *collective, size_t index) {
    struct item *item = &collective->items[index];
    struct range_slot *slot = slot_of(collective, index);
    const struct buffer *buffer = item->what.buffer;
    const struct element_range wanted = wanted_of(collective, item);
    void *memory = copied_at(collective, index, collective->ranks->node.index, wanted.offset);
    if (wanted.count == 0) {
        return;
    }
    if (is_packed(collective, item)) {
        transfer_convert(&collective->memory.reads, (struct span){buffer, wanted.offset},
                         (struct span){&slot->packed, 0}, wanted.count);
        item->event =
            transfer_read(&collective->memory.reads, &slot->packed, 0, wanted.count * sizeof(uint16_t), memory);
    } else {
        item->event = transfer_read(&collective->memory.reads, buffer, wanted.offset * sizeof(float),
                                    wanted.count * sizeof(float), memory);
    }
}

/* Copies a shard of the range between a rank's shared memory and the bounce buffer. */
static void bounce(struct collective *collective, size_t index, int peer, struct element_range shard, bool in) {
    void *memory = place_at(collective, index, peer, shard.offset),
         *copied = copied_at(collective, index, peer, shard.offset);
    if (slot_of(collective, index)->bounce.host) {
        memcpy(in ? memory : copied, in ? copied : memory,
               shard.count * element_bytes(collective, &collective->items[index]));
    }
}

static void write_shard(struct collective *collective, const struct buffer *buffer, size_t offset, const void *from,
                        size_t bytes) {
    cl_event event = bytes ? transfer_write(&collective->memory.writes, buffer, offset, bytes, from) : NULL;
    if (event) {
        clReleaseEvent(event);
    }
}

/* Copies the sums that this rank owns to the device. */
static void write_own(struct collective *collective, size_t index) {
    const struct item *item = &collective->items[index];
    const struct element_range own = ranks_own_shard(collective->ranks, item->what.range);
    const uint64_t first = node_shard(collective, item, collective->ranks->node.index).offset;
    write_shard(collective, item->what.buffer, own.offset * sizeof(float),
                own_sums(collective, index) + (own.offset - first), own.count * sizeof(float));
}

/* Copies each rank's shard from its memory to the device. */
static void write_all(struct collective *collective, size_t index) {
    const struct item *item = &collective->items[index];
    const struct range_slot *slot = slot_of(collective, index);
    const struct element_range range = item->what.range;
    const size_t size = element_bytes(collective, item);
    const bool packed = is_packed(collective, item);
    for (int i = 0; i < collective->ranks->node.count; i++) {
        const struct element_range shard = node_shard(collective, item, i);
        const uint64_t at = packed ? shard.offset - range.offset : shard.offset;
        bounce(collective, index, i, shard, false);
        write_shard(collective, packed ? &slot->packed : item->what.buffer, at * size,
                    copied_at(collective, index, i, shard.offset), shard.count * size);
    }
    if (packed) {
        transfer_convert(&collective->memory.writes, (struct span){&slot->packed, 0},
                         (struct span){item->what.buffer, range.offset}, range.count);
    }
}

static void start_writing(struct collective *collective, size_t index) {
    struct item *item = &collective->items[index];
    if (item->what.kind == COLLECTIVE_REDUCE_SCATTER) {
        write_own(collective, index);
    } else {
        write_all(collective, index);
    }
    item->event = transfer_last(&collective->memory.writes);
}

/* ---- the stages of an item */

static void start_messages(struct collective *collective, size_t index, bool gathers) {
    const struct item *item = &collective->items[index];
    struct range_messages *messages = messages_of(collective, index);
    const int own = collective->ranks->node.index;
    messages->range = node_shard(collective, item, own);
    messages->data = own_sums(collective, index);
    messages->bf16 =
        collective->memory.bf16 && item->what.kind != COLLECTIVE_ALL_GATHER; /* weights are not rounded */
    messages->tag = (int)((collective->before + index) % TAGS);
    collective->failed |= range_messages_start(messages, gathers, &collective->times.sent) != 0;
}

/* Returns whether an item skips a stage, by its kind, the device and the ranks. */
static bool is_left_out(const struct collective *collective, const struct item *item) {
    switch (item->stage) {
    case STAGE_READING:
    case STAGE_WRITING:
        return !collective->memory.staged;
    case STAGE_ADDING: /* add_node completed the sums at the end of STAGE_FILLED */
        return item->what.kind == COLLECTIVE_ALL_GATHER || collective->ranks->cross_node.count == 1;
    case STAGE_GATHERING:
        return item->what.kind == COLLECTIVE_REDUCE_SCATTER || collective->ranks->cross_node.count == 1;
    default:
        return false;
    }
}

static void enter(struct collective *collective, size_t index) {
    struct item *item = &collective->items[index];
    switch (item->stage) {
    case STAGE_READING:
        start_reading(collective, index);
        break;
    case STAGE_ADDING:
    case STAGE_GATHERING:
        start_messages(collective, index, item->stage == STAGE_GATHERING);
        break;
    case STAGE_SUMMED:
        publish(collective, index);
        break;
    case STAGE_WRITING:
        start_writing(collective, index);
        break;
    default:
        break;
    }
}

static bool event_is_done(struct collective *collective, const struct item *item) {
    return !item->event || transfer_done(&collective->memory.reads, item->event);
}

/* The number of the item that used the slot before; 0: none. */
static uint64_t slot_before(const struct collective *collective, uint64_t number) {
    return uses_slots(collective) && number > RANGE_SLOTS ? number - RANGE_SLOTS : 0;
}

/* Returns whether the item's current stage is complete. */
static bool is_through(struct collective *collective, size_t index) {
    const struct item *item = &collective->items[index];
    const struct ranks *ranks = collective->ranks;
    const uint64_t number = collective->before + index + 1;
    bool done = false;
    switch (item->stage) {
    case STAGE_MARKED: /* and all ranks of the node have read the slot's earlier item */
        return event_is_done(collective, item) &&
               neighbours_reached(ranks, NEIGHBOUR_TAKEN, slot_before(collective, number));
    case STAGE_READING:
    case STAGE_WRITING:
        return event_is_done(collective, item);
    case STAGE_FILLED:
        return neighbours_reached(ranks, NEIGHBOUR_FILLED, number);
    case STAGE_ADDING:
    case STAGE_GATHERING:
        collective->failed |= range_messages_advance(messages_of(collective, index), &done) != 0;
        return done;
    case STAGE_SUMMED:
        return neighbours_reached(ranks, NEIGHBOUR_SUMMED, number);
    default:
        return false;
    }
}

static void begin_or_end(struct collective *collective, enum stage left, enum stage reached) {
    if (left == STAGE_MARKED && collective->under_way++ == 0) {
        collective->since = progress_clock();
    }
    if (reached == STAGE_DONE && --collective->under_way == 0) {
        collective->times.active += progress_clock() - collective->since;
    }
}

/* The work between a stage that is complete and the next one. */
static void finish_stage(struct collective *collective, size_t index) {
    const struct item *item = &collective->items[index];
    if (item->stage == STAGE_READING) {
        bounce(collective, index, collective->ranks->node.index, wanted_of(collective, item), true);
    } else if (item->stage == STAGE_FILLED) {
        add_node(collective, index);
    }
}

/* Moves the item to its next stage if the current one is complete; returns whether it did. */
static bool advance(struct collective *collective, size_t index) {
    struct item *item = &collective->items[index];
    const enum stage before = item->stage;
    if (before == STAGE_CLOSED || before == STAGE_DONE || !is_through(collective, index) || collective->failed ||
        collective->compute->failure) {
        return false;
    }
    drop_event(item);
    finish_stage(collective, index);
    do {
        item->stage++;
    } while (is_left_out(collective, item));
    begin_or_end(collective, before, item->stage);
    enter(collective, index);
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

/* Records when items became ready, which may be before they get a slot. */
static void see_marks(struct collective *collective) {
    while (collective->seen < collective->marked) {
        struct item *item = &collective->items[collective->seen];
        if (item->stage == STAGE_MARKED && !event_is_done(collective, item)) {
            return;
        }
        item->ready = progress_clock();
        if (++collective->seen == collective->count) {
            collective->device_done = item->ready;
        }
    }
}

/* Advances everything under way. Returns whether something moved. */
static bool progress(struct collective *collective) {
    bool moved_on = false;
    see_marks(collective);
    const size_t window_end = uses_slots(collective) ? collective->done + RANGE_SLOTS : collective->count;
    for (size_t i = collective->done; i < window_end && i < collective->count; i++) {
        moved_on |= advance(collective, i);
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
    collective->count = collective->marked = collective->seen = collective->done = collective->under_way = 0;
    collective->times = (struct collective_times){0};
    collective->device_done = 0.0;
    collective->before = *neighbours_ranges(collective->ranks);
    if (count > collective->most) {
        compute_fail(collective->compute, "%zu ranges are too many for one round", count);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        const struct collective_item *what = &items[i];
        collective->items[i] = (struct item){.what = *what};
        if (what->range.count > collective->memory.largest ||
            !range_memory_find(&collective->memory, what->buffer)) {
            compute_fail(collective->compute, "a range of %" PRIu64 " elements was not expected",
                         what->range.count);
        }
    }
    collective->count = count;
    *neighbours_ranges(collective->ranks) += count;
}

void collective_ready(struct collective *collective, size_t count) {
    if (count <= collective->marked || collective->failed || collective->compute->failure) {
        return;
    }
    cl_event mark = transfer_mark(&collective->memory.reads);
    for (; mark && collective->marked < count; collective->marked++) {
        struct item *item = &collective->items[collective->marked];
        item->event = transfer_share(&collective->memory.reads, mark);
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
    const uint64_t number = collective->before + collective->done + 1;
    const enum stage stage = collective->items[collective->done].stage;
    char names[128] = "";
    if (stage == STAGE_ADDING || stage == STAGE_GATHERING) {
        range_messages_name_late(messages_of(collective, collective->done), names);
    } else if (stage == STAGE_FILLED || stage == STAGE_SUMMED) {
        neighbours_name_late(collective->ranks, stage == STAGE_FILLED ? NEIGHBOUR_FILLED : NEIGHBOUR_SUMMED, number,
                             names);
    } else if (stage == STAGE_MARKED) {
        neighbours_name_late(collective->ranks, NEIGHBOUR_TAKEN, slot_before(collective, number), names);
    }
    return error_set("no answer from %s for %g seconds; is it stopped, or its host away?",
                     *names ? names : "another rank", collective->ranks->timeout_seconds);
}

/* Waits between two polls. A poll costs a CPU device about 20 microseconds of a core and the contents of its
 * first-level cache, so while it computes polls are rare. */
static void pause_polling(const struct collective *collective, unsigned *turns) {
    if (collective->device_done == 0.0 && collective->compute->device.is_cpu) {
        nanosleep(&(struct timespec){0, 500000}, NULL);
    } else {
        ranks_pause(turns, false);
    }
}

/* Returns whether the round waits for the device only. */
static bool waits_for_device(struct collective *collective) {
    const struct item *oldest = &collective->items[collective->done];
    return collective->under_way == 0 && oldest->stage == STAGE_MARKED && !event_is_done(collective, oldest);
}

bool collective_poll(struct collective *collective, bool *done) {
    const bool moved = progress(collective);
    *done = collective->done == collective->count;
    return moved;
}

double collective_lead(const struct collective *collective, size_t index) {
    return collective->items[collective->count - 1].ready - collective->items[index].ready;
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
        const bool computing = collective->done < collective->count && waits_for_device(collective);
        if (ranks_late(collective->ranks, &watch, moved || computing)) {
            return fail_late(collective);
        }
        if (moved) {
            turns = 0;
        } else if (computing) {
            transfer_wait(&collective->memory.reads, collective->items[collective->done].event);
        } else {
            pause_polling(collective, &turns);
        }
    }
    if (compute_check(collective->compute)) {
        return -1;
    }
    if (times && collective->count > 0) {
        times->active += collective->times.active;
        times->exposed += progress_clock() - collective->device_done;
        times->sent += collective->times.sent;
        times->moved += collective->times.moved;
    }
    return 0;
}
