#include "runtime/ranks/collective.h"
#include "runtime/device/transfer.h"
#include "runtime/ranks/range_messages.h"
#include "runtime/system/error.h"
#include "runtime/system/progress.h"
#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#define WINDOW 4    /* ranges under way at a time: enough that the next one starts while the last waits */
#define TAGS   4096 /* no two ranges under way have the same remainder */

/* In the order in which an item goes through them. */
enum stage {
    STAGE_CLOSED,         /* not said to be ready */
    STAGE_MARKED,         /* the device works on it, or the window is full */
    STAGE_READING,        /* from the device to the host */
    STAGE_REDUCE_SCATTER, /* see range_messages.h */
    STAGE_ALL_GATHER,
    STAGE_WRITING, /* from the host to the device */
    STAGE_DONE,
};

struct item {
    struct element_range range;
    enum stage stage;
    cl_event event; /* the mark or copy that it waits for */
};

/* What an item under way works with. */
struct slot {
    struct range_messages messages;
    struct pinned pinned; /* the range, where the device does not work on host memory */
};

struct collective {
    struct compute *compute;
    const struct ranks *ranks;
    struct transfer transfer;
    bool bf16;
    size_t count; /* of items */
    struct slot slots[WINDOW];
    /* of the round */
    enum collective_kind kind;
    const struct buffer *buffer;
    size_t marked, done; /* items said to be ready, items done */
    size_t under_way;
    double since;       /* when something began to be under way */
    double device_done; /* when the last mark was reached; 0: not yet */
    struct collective_times times;
    bool failed; /* the error text is set */
    struct item items[];
};

/* ---- making and releasing */

uint64_t collective_staging_bytes(const struct compute *compute, const struct ranks *ranks, uint64_t largest,
                                  bool bf16) {
    return WINDOW * (range_messages_bytes(ranks, largest, bf16) +
                     (compute->device.native_kernels ? 0 : largest * sizeof(float)));
}

static int create_slot(struct collective *collective, struct slot *slot, uint64_t largest) {
    if (range_messages_create(&slot->messages, collective->ranks, largest, collective->bf16)) {
        return -1;
    }
    return collective->compute->device.native_kernels
               ? 0
               : transfer_allocate(&collective->transfer, &slot->pinned, largest * sizeof(float));
}

int collective_create(struct compute *compute, const struct ranks *ranks, const struct element_range *ranges,
                      size_t count, bool bf16, struct collective **created) {
    struct collective *collective = calloc(1, sizeof *collective + count * sizeof *collective->items);
    uint64_t largest = 0;
    *created = collective;
    if (!collective) {
        return error_set("out of memory for sums over ranks");
    }
    *collective = (struct collective){.compute = compute, .ranks = ranks, .bf16 = bf16, .count = count};
    for (size_t i = 0; i < count; i++) {
        collective->items[i].range = ranges[i];
        largest = ranges[i].count > largest ? ranges[i].count : largest;
    }
    int status = largest > (uint64_t)1 << 28 ? error_set("a range of %" PRIu64 " elements is too large", largest)
                                             : transfer_create(compute, &collective->transfer);
    for (size_t i = 0; i < WINDOW && status == 0; i++) {
        status = create_slot(collective, &collective->slots[i], largest);
    }
    if (status) {
        collective_release(collective);
        *created = NULL;
    }
    return status;
}

void collective_release(struct collective *collective) {
    if (!collective || !transfer_settle(&collective->transfer)) {
        return;
    }
    for (size_t i = 0; i < collective->count; i++) {
        if (collective->items[i].event) {
            clReleaseEvent(collective->items[i].event);
        }
    }
    for (size_t i = 0; i < WINDOW; i++) {
        transfer_free(&collective->transfer, &collective->slots[i].pinned);
        range_messages_release(&collective->slots[i].messages);
    }
    transfer_release(&collective->transfer);
    free(collective);
}

/* ---- an item from stage to stage */

/* Stages that a round of this kind, on this device, does without. */
static bool is_left_out(const struct collective *collective, enum stage stage) {
    switch (stage) {
    case STAGE_READING:
    case STAGE_WRITING:
        return collective->buffer->host;
    case STAGE_REDUCE_SCATTER:
        return collective->kind == COLLECTIVE_ALL_GATHER;
    case STAGE_ALL_GATHER:
        return collective->kind == COLLECTIVE_REDUCE_SCATTER;
    default:
        return false;
    }
}

static bool is_step(enum stage stage) {
    return stage == STAGE_REDUCE_SCATTER || stage == STAGE_ALL_GATHER;
}

static void begin_item(struct collective *collective, size_t index, struct slot *slot) {
    const struct element_range range = collective->items[index].range;
    float *host = collective->buffer->host;
    if (collective->under_way++ == 0) {
        collective->since = progress_clock();
    }
    slot->messages.range = range;
    slot->messages.data = host ? host + range.offset : slot->pinned.host;
    slot->messages.bf16 =
        collective->bf16 && collective->kind != COLLECTIVE_ALL_GATHER; /* weights stay as they are */
    slot->messages.tag = (int)(index % TAGS);
}

/* Starts to copy the range between device and host; or this rank's part, where the round needs or defines no more.
 */
static void start_copy(struct collective *collective, struct item *item, const struct range_messages *messages) {
    const bool reads = item->stage == STAGE_READING;
    const struct ranks *ranks = collective->ranks;
    const struct element_range range =
        collective->kind == (reads ? COLLECTIVE_ALL_GATHER : COLLECTIVE_REDUCE_SCATTER)
            ? rank_part(item->range, ranks->count, ranks->index)
            : item->range;
    const size_t offset = range.offset * sizeof(float), bytes = range.count * sizeof(float);
    float *data = messages->data + (range.offset - item->range.offset);
    if (bytes) {
        item->event = reads ? transfer_read(&collective->transfer, collective->buffer, offset, bytes, data)
                            : transfer_write(&collective->transfer, collective->buffer, offset, bytes, data);
    }
}

/* Whether what the item waits for has come. */
static bool has_arrived(struct collective *collective, struct item *item, struct range_messages *messages) {
    bool arrived = true;
    if (is_step(item->stage)) {
        collective->failed |= range_messages_arrived(messages, &arrived) != 0;
    } else if (item->event) {
        arrived = transfer_done(&collective->transfer, item->event);
    }
    if (arrived && item->event) {
        clReleaseEvent(item->event);
        item->event = NULL;
    }
    return arrived && !collective->failed && !collective->compute->failure;
}

/* Whether the item came a stage further. */
static bool advance(struct collective *collective, size_t index) {
    struct item *item = &collective->items[index];
    struct slot *slot = &collective->slots[index % WINDOW];
    if (item->stage == STAGE_CLOSED || item->stage == STAGE_DONE ||
        !has_arrived(collective, item, &slot->messages)) {
        return false;
    }
    if (item->stage == STAGE_MARKED) {
        begin_item(collective, index, slot);
    } else if (is_step(item->stage)) {
        range_messages_finish(&slot->messages, item->stage == STAGE_ALL_GATHER);
    }
    do {
        item->stage++;
    } while (is_left_out(collective, item->stage));
    if (is_step(item->stage)) {
        collective->failed |=
            range_messages_start(&slot->messages, item->stage == STAGE_ALL_GATHER, &collective->times.bytes) != 0;
    } else if (item->stage != STAGE_DONE) {
        start_copy(collective, item, &slot->messages);
    } else if (--collective->under_way == 0) {
        collective->times.active += progress_clock() - collective->since;
    }
    return true;
}

/* A look at everything under way. Whether something moved. */
static bool progress(struct collective *collective) {
    bool moved_on = false;
    const struct item *last = &collective->items[collective->count - 1];
    if (collective->device_done == 0.0 && last->stage != STAGE_CLOSED &&
        (last->stage != STAGE_MARKED || transfer_done(&collective->transfer, last->event))) {
        collective->device_done = progress_clock(); /* though the window may hold the last item back */
    }
    const size_t window_end = collective->done + WINDOW;
    for (size_t i = collective->done; i < window_end && i < collective->count; i++) {
        moved_on |= advance(collective, i);
    }
    while (collective->done < collective->count && collective->items[collective->done].stage == STAGE_DONE) {
        collective->done++;
    }
    return moved_on;
}

/* ---- a round */

void collective_begin(struct collective *collective, enum collective_kind kind, const struct buffer *buffer) {
    collective->kind = kind;
    collective->buffer = buffer;
    collective->marked = collective->done = collective->under_way = 0;
    collective->times = (struct collective_times){0};
    collective->device_done = 0.0;
    for (size_t i = 0; i < collective->count; i++) {
        collective->items[i].stage = STAGE_CLOSED;
    }
}

void collective_ready(struct collective *collective, size_t count) {
    if (count <= collective->marked || collective->failed || collective->compute->failure) {
        return;
    }
    cl_event mark = transfer_mark(&collective->transfer);
    for (; mark && collective->marked < count; collective->marked++) {
        struct item *item = &collective->items[collective->marked];
        item->event = mark;
        item->stage = STAGE_MARKED;
        clRetainEvent(mark);
    }
    if (mark) {
        clReleaseEvent(mark);
    }
    progress(collective);
}

/* Names the ranks that keep the oldest item waiting. Where sums are missing their owner may itself be waiting, so
 * it is one of those named. */
static int fail_late(const struct collective *collective) {
    char names[128] = "another rank";
    if (is_step(collective->items[collective->done].stage)) {
        range_messages_name_late(&collective->slots[collective->done % WINDOW].messages, names);
    }
    return error_set("no answer from %s for %g seconds; is it stopped, or its host away?", names,
                     collective->ranks->patience);
}

/* Between two looks at messages, which move on only when they are looked at. A look costs a CPU device about 20
 * microseconds of its core and what was in its nearest caches; as long as it computes, messages have time. */
static void rest(const struct collective *collective, unsigned *turns) {
    if (collective->device_done == 0.0 && collective->compute->device.is_cpu) {
        nanosleep(&(struct timespec){0, 500000}, NULL);
    } else {
        ranks_rest(turns, false);
    }
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
        if (ranks_late(collective->ranks, &watch, moved || collective->under_way == 0)) {
            return fail_late(collective);
        }
        if (moved) {
            turns = 0;
        } else if (collective->under_way == 0) {
            transfer_wait(&collective->transfer, collective->items[collective->done].event);
        } else {
            rest(collective, &turns);
        }
    }
    if (times && collective->count > 0) {
        times->active += collective->times.active;
        times->exposed += progress_clock() - collective->device_done;
        times->bytes += collective->times.bytes;
    }
    return 0;
}
