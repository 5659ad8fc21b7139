#include "runtime/ranks/exchange.h"
#include "runtime/device/transfer.h"
#include "runtime/system/error.h"
#include "runtime/system/progress.h"
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WINDOW  4    /* ranges under way at a time: enough that the next one starts while the last waits */
#define ALIGNED 64   /* elements; parts begin where vectors do */
#define LINE    1024 /* elements added at a time, in the nearest cache */
#define TAGS    4096 /* MPI promises 32767; no two ranges under way have the same remainder */

enum stage {
    STAGE_CLOSED,  /* not said to be ready */
    STAGE_MARKED,  /* the device works on it, or the window is full */
    STAGE_READING, /* from the device to the host */
    STAGE_ADDENDS, /* parts travel to their owners */
    STAGE_SUMS,    /* owners' parts travel to all */
    STAGE_WRITING, /* from the host to the device */
    STAGE_DONE,
};

/* What a range under way works with. */
struct slot {
    struct pinned pinned;  /* the range, where the device does not work on host memory */
    void *received;        /* [R - 1, part] addends from the others; float or bfloat16 */
    uint16_t *packed;      /* the range in bfloat16 */
    MPI_Request *requests; /* [2 (R - 1)] */
    MPI_Status *statuses;  /* of them */
    int *peers;            /* whom they are with */
    int request_count;
};

struct item {
    struct exchange_range range;
    enum stage stage;
    cl_event event; /* the mark or copy that it waits for */
    float *data;    /* the range on the host */
};

struct exchange {
    struct compute *compute;
    const struct ranks *ranks;
    struct transfer transfer;
    bool bf16;
    struct item *items;
    size_t count;
    struct slot slots[WINDOW];
    /* of the round */
    enum exchange_kind kind;
    const struct buffer *buffer;
    size_t marked, done; /* items said to be ready, items done */
    size_t under_way;
    double since;       /* when something began to be under way */
    double device_done; /* when the last mark was reached; 0: not yet */
    struct exchange_times times;
    bool failed; /* the error text is set */
};

/* ---- bfloat16 */

static void pack(const float *values, uint64_t count, uint16_t *packed) {
    for (uint64_t i = 0; i < count; i++) {
        packed[i] = element_to_bf16(values[i]);
    }
}

static void unpack(const uint16_t *packed, uint64_t count, float *values) {
    for (uint64_t i = 0; i < count; i++) {
        values[i] = element_from_bf16(packed[i]);
    }
}

/* ---- making and releasing */

struct exchange_range exchange_part(struct exchange_range range, int count, int rank) {
    const uint64_t ranks = (uint64_t)count, index = (uint64_t)rank;
    const uint64_t each = ((range.count + ranks - 1) / ranks + ALIGNED - 1) / ALIGNED * ALIGNED;
    const uint64_t first = index * each < range.count ? index * each : range.count;
    const uint64_t rest = range.count - first;
    return (struct exchange_range){range.offset + first, rest < each ? rest : each};
}

static uint64_t largest_range(const struct exchange_range *ranges, size_t count) {
    uint64_t largest = 0;
    for (size_t i = 0; i < count; i++) {
        largest = ranges[i].count > largest ? ranges[i].count : largest;
    }
    return largest;
}

static uint64_t received_bytes(const struct ranks *ranks, uint64_t largest, bool bf16) {
    const uint64_t part = exchange_part((struct exchange_range){0, largest}, ranks->count, 0).count;
    return (uint64_t)(ranks->count - 1) * part * (bf16 ? sizeof(uint16_t) : sizeof(float));
}

uint64_t exchange_staging_bytes(const struct compute *compute, const struct ranks *ranks, uint64_t largest,
                                bool bf16) {
    return WINDOW * (received_bytes(ranks, largest, bf16) + (bf16 ? largest * sizeof(uint16_t) : 0) +
                     (compute->device.native_kernels ? 0 : largest * sizeof(float)));
}

static int create_slot(struct exchange *exchange, struct slot *slot, uint64_t largest) {
    const size_t peers = (size_t)exchange->ranks->count - 1;
    slot->received = malloc(received_bytes(exchange->ranks, largest, exchange->bf16));
    slot->packed = exchange->bf16 ? malloc(largest * sizeof *slot->packed) : NULL;
    slot->requests = calloc(2 * peers, sizeof *slot->requests);
    slot->statuses = calloc(2 * peers, sizeof *slot->statuses);
    slot->peers = calloc(2 * peers, sizeof *slot->peers);
    if (!slot->received || (exchange->bf16 && !slot->packed) || !slot->requests || !slot->statuses ||
        !slot->peers) {
        return error_set("out of memory for exchanging gradients");
    }
    return exchange->compute->device.native_kernels
               ? 0
               : transfer_allocate(&exchange->transfer, &slot->pinned, largest * sizeof(float));
}

static int create_parts(struct exchange *exchange, const struct exchange_range *ranges) {
    const uint64_t largest = largest_range(ranges, exchange->count);
    exchange->items = calloc(exchange->count, sizeof *exchange->items);
    if (!exchange->items) {
        return error_set("out of memory for exchanging gradients");
    }
    if (largest > (uint64_t)1 << 28) {
        return error_set("a range of %llu elements is too large to exchange", (unsigned long long)largest);
    }
    for (size_t i = 0; i < exchange->count; i++) {
        exchange->items[i].range = ranges[i];
    }
    if (transfer_create(exchange->compute, &exchange->transfer)) {
        return -1;
    }
    for (size_t i = 0; i < WINDOW; i++) {
        if (create_slot(exchange, &exchange->slots[i], largest)) {
            return -1;
        }
    }
    return 0;
}

int exchange_create(struct compute *compute, const struct ranks *ranks, const struct exchange_range *ranges,
                    size_t count, bool bf16, struct exchange **created) {
    *created = calloc(1, sizeof **created);
    if (!*created) {
        return error_set("out of memory for exchanging gradients");
    }
    **created = (struct exchange){.compute = compute, .ranks = ranks, .bf16 = bf16, .count = count};
    if (create_parts(*created, ranges)) {
        exchange_release(*created);
        *created = NULL;
        return -1;
    }
    return 0;
}

void exchange_release(struct exchange *exchange) {
    if (!exchange || !transfer_settle(&exchange->transfer)) {
        return;
    }
    for (size_t i = 0; i < exchange->count && exchange->items; i++) {
        if (exchange->items[i].event) {
            clReleaseEvent(exchange->items[i].event);
        }
    }
    for (size_t i = 0; i < WINDOW; i++) {
        struct slot *slot = &exchange->slots[i];
        if (exchange->transfer.queue) {
            transfer_free(&exchange->transfer, &slot->pinned);
        }
        free(slot->received);
        free(slot->packed);
        free(slot->requests);
        free(slot->statuses);
        free(slot->peers);
    }
    transfer_release(&exchange->transfer);
    free(exchange->items);
    free(exchange);
}

/* ---- messages */

static struct exchange_range part_of(const struct exchange *exchange, const struct item *item, int rank) {
    return exchange_part(item->range, exchange->ranks->count, rank);
}

/* Where a part begins in the item's data. */
static uint64_t place_of(const struct item *item, struct exchange_range part) {
    return part.offset - item->range.offset;
}

static int tag_of(const struct exchange *exchange, const struct item *item, bool sums) {
    return (int)((size_t)(item - exchange->items) % TAGS) * 2 + sums;
}

static size_t element_bytes(bool narrow) {
    return narrow ? sizeof(uint16_t) : sizeof(float);
}

static MPI_Datatype element_type(bool narrow) {
    return narrow ? MPI_UINT16_T : MPI_FLOAT;
}

/* Sums in bfloat16 only make sense for what is added: gathered weights stay as they are. */
static bool is_narrow(const struct exchange *exchange) {
    return exchange->bf16 && exchange->kind != EXCHANGE_GATHER;
}

static MPI_Request *next_request(struct slot *slot, int peer) {
    slot->peers[slot->request_count] = peer;
    return &slot->requests[slot->request_count++];
}

static void start_send(struct exchange *exchange, struct item *item, struct slot *slot, int peer, bool sums,
                       const void *data, uint64_t count) {
    if (count && !exchange->failed) {
        const bool narrow = is_narrow(exchange);
        const int code = MPI_Isend(data, (int)count, element_type(narrow), peer, tag_of(exchange, item, sums),
                                   MPI_COMM_WORLD, next_request(slot, peer));
        exchange->failed = ranks_check(code, "cannot send gradients") != 0;
        exchange->times.bytes += (double)(count * element_bytes(narrow));
    }
}

static void start_receive(struct exchange *exchange, struct item *item, struct slot *slot, int peer, bool sums,
                          void *data, uint64_t count) {
    if (count && !exchange->failed) {
        const int code = MPI_Irecv(data, (int)count, element_type(is_narrow(exchange)), peer,
                                   tag_of(exchange, item, sums), MPI_COMM_WORLD, next_request(slot, peer));
        exchange->failed = ranks_check(code, "cannot receive gradients") != 0;
    }
}

/* A peer's place among the others: parts of the received addends. */
static size_t among_others(const struct exchange *exchange, int peer) {
    return (size_t)(peer < exchange->ranks->index ? peer : peer - 1);
}

/* Peers in another order on each rank, so that not all send to the same one first. */
static int peer_at(const struct exchange *exchange, int step) {
    return (exchange->ranks->index + step) % exchange->ranks->count;
}

static void start_addends(struct exchange *exchange, struct item *item, struct slot *slot) {
    const bool narrow = is_narrow(exchange);
    const struct exchange_range own = part_of(exchange, item, exchange->ranks->index);
    slot->request_count = 0;
    if (narrow) {
        pack(item->data, item->range.count, slot->packed);
    }
    for (int step = 1; step < exchange->ranks->count; step++) {
        const int peer = peer_at(exchange, exchange->ranks->count - step);
        char *place = (char *)slot->received + among_others(exchange, peer) * own.count * element_bytes(narrow);
        start_receive(exchange, item, slot, peer, false, place, own.count);
    }
    for (int step = 1; step < exchange->ranks->count; step++) {
        const int peer = peer_at(exchange, step);
        const struct exchange_range part = part_of(exchange, item, peer);
        const uint64_t place = place_of(item, part);
        const void *data = narrow ? (const void *)(slot->packed + place) : (const void *)(item->data + place);
        start_send(exchange, item, slot, peer, false, data, part.count);
    }
    item->stage = STAGE_ADDENDS;
}

/* sum [count] = (first ? 0 : sum) + rank's addend from `at` on. */
static void add_line(const struct exchange *exchange, const struct slot *slot, const float *own, uint64_t part,
                     int rank, uint64_t at, uint64_t count, float *sum) {
    float wide[LINE];
    const float *line = own + at;
    if (rank != exchange->ranks->index) {
        const uint64_t place = among_others(exchange, rank) * part + at;
        line = (const float *)slot->received + (is_narrow(exchange) ? 0 : place);
        if (is_narrow(exchange)) {
            unpack((const uint16_t *)slot->received + place, count, wide);
            line = wide;
        }
    }
    if (rank == 0) {
        memcpy(sum, line, count * sizeof *sum);
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        sum[i] += line[i];
    }
}

static void add_addends(const struct exchange *exchange, const struct item *item, const struct slot *slot) {
    const struct exchange_range part = part_of(exchange, item, exchange->ranks->index);
    float *own = item->data + place_of(item, part), sum[LINE];
    for (uint64_t at = 0; at < part.count; at += LINE) {
        const uint64_t count = part.count - at < LINE ? part.count - at : LINE;
        for (int rank = 0; rank < exchange->ranks->count; rank++) {
            add_line(exchange, slot, own, part.count, rank, at, count, sum);
        }
        memcpy(own + at, sum, count * sizeof *sum);
    }
}

static void start_sums(struct exchange *exchange, struct item *item, struct slot *slot) {
    const bool narrow = is_narrow(exchange);
    const struct exchange_range own = part_of(exchange, item, exchange->ranks->index);
    const uint64_t own_place = place_of(item, own);
    slot->request_count = 0;
    if (narrow) { /* the owner goes on with what the others get */
        pack(item->data + own_place, own.count, slot->packed + own_place);
        unpack(slot->packed + own_place, own.count, item->data + own_place);
    }
    for (int step = 1; step < exchange->ranks->count; step++) {
        const int from = peer_at(exchange, exchange->ranks->count - step);
        const struct exchange_range part = part_of(exchange, item, from);
        const uint64_t place = place_of(item, part);
        void *data = narrow ? (void *)(slot->packed + place) : (void *)(item->data + place);
        start_receive(exchange, item, slot, from, true, data, part.count);
    }
    for (int step = 1; step < exchange->ranks->count; step++) {
        const void *data =
            narrow ? (const void *)(slot->packed + own_place) : (const void *)(item->data + own_place);
        start_send(exchange, item, slot, peer_at(exchange, step), true, data, own.count);
    }
    item->stage = STAGE_SUMS;
}

/* The error text of the first message that failed. */
static void tell_failure(const struct slot *slot, int code) {
    for (int i = 0; code == MPI_ERR_IN_STATUS && i < slot->request_count; i++) {
        const int error = slot->statuses[i].MPI_ERROR;
        if (error != MPI_SUCCESS && error != MPI_ERR_PENDING) {
            ranks_check(error, "the exchange of gradients broke off");
            error_prefix("with rank %d", slot->peers[i]);
            return;
        }
    }
    ranks_check(code, "the exchange of gradients broke off");
}

static bool messages_arrived(struct exchange *exchange, struct slot *slot) {
    int done = 0;
    const int code = MPI_Testall(slot->request_count, slot->requests, &done, slot->statuses);
    if (code != MPI_SUCCESS) {
        tell_failure(slot, code);
        exchange->failed = true;
    }
    return done;
}

/* ---- an item from stage to stage */

static void finish_item(struct exchange *exchange, struct item *item) {
    item->stage = STAGE_DONE;
    if (--exchange->under_way == 0) {
        exchange->times.active += progress_clock() - exchange->since;
    }
}

/* The elements that the device needs back, or has to give: of a range only the owner's part is defined, or all. */
static struct exchange_range moved(const struct exchange *exchange, const struct item *item,
                                   enum exchange_kind own_only) {
    return exchange->kind == own_only ? part_of(exchange, item, exchange->ranks->index) : item->range;
}

static void start_writing(struct exchange *exchange, struct item *item) {
    const struct exchange_range range = moved(exchange, item, EXCHANGE_SCATTER);
    if (exchange->buffer->host || range.count == 0) {
        finish_item(exchange, item);
        return;
    }
    item->event = transfer_write(&exchange->transfer, exchange->buffer, range.offset * sizeof(float),
                                 range.count * sizeof(float), item->data + place_of(item, range));
    item->stage = STAGE_WRITING;
}

static void start_messages(struct exchange *exchange, struct item *item, struct slot *slot) {
    if (exchange->kind == EXCHANGE_GATHER) {
        start_sums(exchange, item, slot);
    } else {
        start_addends(exchange, item, slot);
    }
}

static void start_reading(struct exchange *exchange, struct item *item, struct slot *slot) {
    const struct exchange_range range = moved(exchange, item, EXCHANGE_GATHER);
    if (exchange->under_way++ == 0) {
        exchange->since = progress_clock();
    }
    if (exchange->buffer->host) {
        item->data = (float *)exchange->buffer->host + item->range.offset;
        start_messages(exchange, item, slot);
        return;
    }
    item->data = slot->pinned.host;
    item->stage = STAGE_READING;
    if (range.count) {
        item->event = transfer_read(&exchange->transfer, exchange->buffer, range.offset * sizeof(float),
                                    range.count * sizeof(float), item->data + place_of(item, range));
    }
}

static void after_sums(struct exchange *exchange, struct item *item, struct slot *slot) {
    for (int rank = 0; is_narrow(exchange) && rank < exchange->ranks->count; rank++) {
        const struct exchange_range part = part_of(exchange, item, rank);
        unpack(slot->packed + place_of(item, part), part.count, item->data + place_of(item, part));
    }
    start_writing(exchange, item);
}

static void after_addends(struct exchange *exchange, struct item *item, struct slot *slot) {
    add_addends(exchange, item, slot);
    if (exchange->kind == EXCHANGE_SCATTER) {
        start_writing(exchange, item);
    } else {
        start_sums(exchange, item, slot);
    }
}

static bool event_arrived(struct exchange *exchange, struct item *item) {
    if (item->event && !transfer_done(&exchange->transfer, item->event)) {
        return false;
    }
    if (item->event) {
        clReleaseEvent(item->event);
    }
    item->event = NULL;
    return true;
}

static bool has_arrived(struct exchange *exchange, struct item *item, struct slot *slot) {
    return item->stage == STAGE_ADDENDS || item->stage == STAGE_SUMS ? messages_arrived(exchange, slot)
                                                                     : event_arrived(exchange, item);
}

/* Everything that the device has to compute before the last item is done. */
static void note_device(struct exchange *exchange) {
    if (exchange->device_done == 0.0) {
        exchange->device_done = progress_clock();
    }
}

/* Whether the item came a stage further. */
static bool advance(struct exchange *exchange, size_t index) {
    struct item *item = &exchange->items[index];
    struct slot *slot = &exchange->slots[index % WINDOW];
    if (item->stage == STAGE_CLOSED || item->stage == STAGE_DONE || !has_arrived(exchange, item, slot) ||
        exchange->failed || exchange->compute->failure) {
        return false;
    }
    switch (item->stage) {
    case STAGE_MARKED:
        if (index + 1 == exchange->count) {
            note_device(exchange);
        }
        start_reading(exchange, item, slot);
        break;
    case STAGE_READING:
        start_messages(exchange, item, slot);
        break;
    case STAGE_ADDENDS:
        after_addends(exchange, item, slot);
        break;
    case STAGE_SUMS:
        after_sums(exchange, item, slot);
        break;
    default:
        finish_item(exchange, item);
    }
    return true;
}

/* A look at everything under way. Whether something moved. */
static bool progress(struct exchange *exchange) {
    bool moved_on = false;
    const struct item *last = &exchange->items[exchange->count - 1];
    if (last->stage == STAGE_MARKED && transfer_done(&exchange->transfer, last->event)) {
        note_device(exchange); /* the window may hold the last item back */
    }
    const size_t end = exchange->done + WINDOW < exchange->count ? exchange->done + WINDOW : exchange->count;
    for (size_t i = exchange->done; i < end; i++) {
        moved_on |= advance(exchange, i);
    }
    while (exchange->done < exchange->count && exchange->items[exchange->done].stage == STAGE_DONE) {
        exchange->done++;
    }
    return moved_on;
}

/* ---- a round */

void exchange_begin(struct exchange *exchange, enum exchange_kind kind, const struct buffer *buffer) {
    exchange->kind = kind;
    exchange->buffer = buffer;
    exchange->marked = exchange->done = exchange->under_way = 0;
    exchange->times = (struct exchange_times){0};
    exchange->device_done = 0.0;
    for (size_t i = 0; i < exchange->count; i++) {
        exchange->items[i].stage = STAGE_CLOSED;
    }
}

void exchange_ready(struct exchange *exchange, size_t count) {
    if (count <= exchange->marked || exchange->failed || exchange->compute->failure) {
        return;
    }
    cl_event mark = transfer_mark(&exchange->transfer);
    for (; mark && exchange->marked < count; exchange->marked++) {
        struct item *item = &exchange->items[exchange->marked];
        item->event = mark;
        item->stage = STAGE_MARKED;
        clRetainEvent(mark);
    }
    if (mark) {
        clReleaseEvent(mark);
    }
    progress(exchange);
}

static bool owes_message(const struct slot *slot, int rank) {
    for (int i = 0; i < slot->request_count; i++) {
        int done = 1;
        if (slot->peers[i] == rank) {
            MPI_Request_get_status(slot->requests[i], &done, MPI_STATUS_IGNORE);
        }
        if (!done) {
            return true;
        }
    }
    return false;
}

/* Names the ranks that keep the oldest item waiting. Where sums are missing their owner may itself be waiting, so
 * it is one of those named. */
static int fail_late(const struct exchange *exchange) {
    const struct item *item = &exchange->items[exchange->done];
    const bool travels = item->stage == STAGE_ADDENDS || item->stage == STAGE_SUMS;
    char names[128] = "another rank";
    size_t length = 0;
    for (int rank = 0; travels && rank < exchange->ranks->count && length < 100; rank++) {
        if (owes_message(&exchange->slots[exchange->done % WINDOW], rank)) {
            length +=
                (size_t)snprintf(names + length, sizeof names - length, "%s %d", length ? " or" : "rank", rank);
        }
    }
    return error_set("no answer from %s for %g seconds; is it stopped, or its host away?", names,
                     exchange->ranks->patience);
}

/* Between two looks at messages, which move on only when they are looked at. A look costs a CPU device about 20
 * microseconds of its core and what was in its nearest caches; as long as it computes, messages have time. */
static void rest(const struct exchange *exchange, unsigned *turns) {
    if (exchange->device_done == 0.0 && exchange->compute->device.is_cpu) {
        nanosleep(&(struct timespec){0, 500000}, NULL);
    } else {
        ranks_rest(turns, false);
    }
}

int exchange_finish(struct exchange *exchange, struct exchange_times *times) {
    struct ranks_watch watch = {0};
    unsigned turns = 0;
    exchange_ready(exchange, exchange->count);
    while (exchange->done < exchange->count) {
        const bool moved = progress(exchange);
        if (exchange->failed || compute_check(exchange->compute)) {
            return -1;
        }
        if (ranks_late(exchange->ranks, &watch, moved || exchange->under_way == 0)) {
            return fail_late(exchange);
        }
        if (moved) {
            turns = 0;
        } else if (exchange->under_way == 0) {
            transfer_wait(&exchange->transfer, exchange->items[exchange->done].event);
        } else {
            rest(exchange, &turns);
        }
    }
    if (times && exchange->count > 0) {
        times->active += exchange->times.active;
        times->exposed += progress_clock() - exchange->device_done;
        times->bytes += exchange->times.bytes;
    }
    return 0;
}
