#include "bench/scaling/world.h"
#include "runtime/device/transfer.h"
#include "runtime/ranks/pairwise_sum.h"
#include "runtime/system/element.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/parallel.h"
#include "runtime/system/progress.h"
#include <mpi.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define DEVICE_RATE 400e9 /* bytes a second of a conversion on a GPU; small beside all else */

static double later(double a, double b) {
    return a > b ? a : b;
}

static _Noreturn void give_up(const char *format, va_list arguments) {
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    exit(1);
}

int error_set(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    give_up(format, arguments);
}

int error_prefix(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    give_up(format, arguments);
}

void compute_fail(struct compute *compute, const char *format, ...) {
    va_list arguments;
    (void)compute;
    va_start(arguments, format);
    give_up(format, arguments);
}

int compute_check(struct compute *compute) {
    return compute->failure ? -1 : 0;
}

double progress_clock(void) {
    return world.current->now;
}

/* ---- the host's memory: an access takes time of the rank, and on CPUs of its device */

static bool computes(const struct actor *actor) {
    return actor->now < actor->computed + actor->stolen;
}

static void spend(double seconds) {
    struct actor *actor = world.current;
    if (world.machine.cpu && computes(actor)) {
        actor->stolen += seconds;
    }
    actor->now += seconds;
}

/* The factor by which accesses to the host's memory slow down, because its users now demand more than its
 * bandwidth. */
static double crowding(double more) {
    const int first = world.current->ranks.index / world.machine.per_host * world.machine.per_host;
    const double now = world.current->now;
    double wanted = more;
    for (int i = first; i < first + world.machine.per_host; i++) {
        const struct actor *actor = &world.actors[i];
        wanted += actor != world.current && actor->now > now ? world.machine.rank_memory : 0.0;
        wanted += (actor->queues[0] > now) * world.machine.pcie + (actor->queues[1] > now) * world.machine.pcie;
    }
    return later(1.0, wanted / world.machine.memory);
}

static void move_bytes(double bytes) {
    const double rate = world.machine.rank_memory;
    spend(bytes / rate * crowding(rate));
}

void pairwise_sum(const struct pairwise_sum *sum, uint64_t first, uint64_t count) {
    (void)first;
    move_bytes((double)count * ((double)sum->count * (sum->bf16 ? 2.0 : 4.0) + 4.0 * (double)sum->target_count));
}

void elements_to_bf16(const float *values, size_t count, uint16_t *bits) {
    (void)values, (void)bits;
    move_bytes(6.0 * (double)count);
}

void elements_from_bf16(const uint16_t *bits, size_t count, float *values) {
    (void)values, (void)bits;
    move_bytes(6.0 * (double)count);
}

/* Threads are in the rate already. */
int parallel_run(size_t count, parallel_work work, void *context) {
    for (size_t i = 0; i < count; i++) {
        work(context, i);
    }
    return 0;
}

bool host_memory_create(struct host_memory *memory, size_t bytes, bool shareable) {
    (void)shareable;
    *memory = (struct host_memory){.data = &world, .bytes = bytes, .file = -1};
    return true;
}

void host_memory_release(struct host_memory *memory) {
    *memory = (struct host_memory){0};
}

/* ---- neighbours */

static struct actor *near_actor(const struct ranks *ranks, int index) {
    return &world.actors[ranks->node.members[index]];
}

int neighbours_map(const struct ranks *ranks, const struct host_memory *own, struct host_memory *others) {
    for (int i = 0; i < ranks->node.count; i++) {
        others[i] = *own;
    }
    return 0;
}

void neighbours_publish(const struct ranks *ranks, enum neighbour_count kind, uint64_t count) {
    uint64_t *own = &world.current->counts[kind];
    for (int i = 0; i < ranks->node.count && count != *own; i++) {
        world_wake(near_actor(ranks, i), world.current->now);
    }
    *own = count;
}

bool neighbours_reached(const struct ranks *ranks, enum neighbour_count kind, uint64_t count) {
    bool reached = true;
    for (int i = 0; i < ranks->node.count && reached; i++) {
        reached = near_actor(ranks, i)->counts[kind] >= count;
    }
    return reached;
}

void neighbours_name_late(const struct ranks *ranks, enum neighbour_count kind, uint64_t count, char names[128]) {
    (void)ranks, (void)kind, (void)count, (void)names;
}

uint64_t *neighbours_ranges(const struct ranks *ranks) {
    (void)ranks;
    return &world.current->ranges;
}

int ranks_agree(struct ranks *ranks, int status) {
    (void)ranks;
    return status;
}

/* All have the same kind of device. */
int ranks_sum(const struct ranks *ranks, double *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        values[i] *= ranks->count;
    }
    return 0;
}

bool ranks_late(const struct ranks *ranks, struct ranks_watch *watch, bool moved) {
    (void)ranks, (void)watch, (void)moved;
    return false;
}

void ranks_pause(unsigned *turns, bool long_naps) {
    (void)turns, (void)long_naps;
}

void ranks_add_name(char names[128], int rank) {
    (void)names, (void)rank;
}

int ranks_check(int code, const char *doing) {
    return code == MPI_SUCCESS ? 0 : error_set("%s", doing);
}

/* ---- the device: marks in its queue, and copies on two queues */

struct moment {
    int holders;
    double at;
    bool of_device; /* what is stolen from the device delays it */
    double woken;   /* the rank looks then */
};

static cl_event make_event(double at, bool of_device) {
    struct moment *moment = memory_allocate(1, sizeof *moment);
    *moment = (struct moment){1, at, of_device, at};
    world_wake(world.current, at);
    return (cl_event)moment;
}

cl_int clRetainEvent(cl_event event) {
    ((struct moment *)event)->holders++;
    return CL_SUCCESS;
}

cl_int clReleaseEvent(cl_event event) {
    if (--((struct moment *)event)->holders == 0) {
        free(event);
    }
    return CL_SUCCESS;
}

int transfer_create(struct compute *compute, struct transfer *transfer) {
    struct actor *actor = (struct actor *)compute;
    *transfer = (struct transfer){compute, (cl_command_queue)&actor->queues[actor->queue_count++]};
    return 0;
}

bool transfer_settle(struct transfer *transfer) {
    (void)transfer;
    return true;
}

void transfer_release(struct transfer *transfer) {
    (void)transfer;
}

bool transfer_pin(struct transfer *transfer, struct pinned *pinned, void *host, size_t bytes) {
    (void)transfer, (void)host, (void)bytes;
    *pinned = (struct pinned){0};
    return true;
}

int transfer_allocate(struct transfer *transfer, struct pinned *pinned, size_t bytes) {
    (void)transfer, (void)pinned, (void)bytes;
    return 0;
}

void transfer_free(struct transfer *transfer, struct pinned *pinned) {
    (void)transfer, (void)pinned;
}

cl_event transfer_mark(struct transfer *transfer) {
    (void)transfer;
    return make_event(world.current->next_mark, true);
}

cl_event transfer_share(struct transfer *transfer, cl_event event) {
    (void)transfer;
    clRetainEvent(event);
    return event;
}

bool transfer_done(struct transfer *transfer, cl_event event) {
    struct moment *moment = (struct moment *)event;
    const double at = moment->at + (moment->of_device ? world.current->stolen : 0.0);
    (void)transfer;
    if (at > world.current->now && at > moment->woken) {
        moment->woken = at;
        world_wake(world.current, at);
    }
    return at <= world.current->now;
}

void transfer_wait(struct transfer *transfer, cl_event event) {
    (void)transfer, (void)event;
}

static double *queue_of(const struct transfer *transfer) {
    return (double *)transfer->queue;
}

/* Over the device's link, and through the host's memory. */
static cl_event copy(const struct transfer *transfer, size_t bytes) {
    double *queue = queue_of(transfer);
    const double now = world.current->now, more = *queue > now ? 0.0 : world.machine.pcie;
    *queue = later(*queue, now) + (double)bytes / world.machine.pcie * crowding(more);
    return make_event(*queue, false);
}

cl_event transfer_read(struct transfer *transfer, const struct buffer *buffer, size_t offset, size_t bytes,
                       void *data) {
    (void)buffer, (void)offset, (void)data;
    return copy(transfer, bytes);
}

cl_event transfer_write(struct transfer *transfer, const struct buffer *buffer, size_t offset, size_t bytes,
                        const void *data) {
    (void)buffer, (void)offset, (void)data;
    return copy(transfer, bytes);
}

void transfer_convert(struct transfer *transfer, struct span from, struct span to, size_t count) {
    double *queue = queue_of(transfer);
    (void)from, (void)to;
    *queue = later(*queue, world.current->now) + 6.0 * (double)count / DEVICE_RATE;
}

cl_event transfer_last(struct transfer *transfer) {
    return make_event(*queue_of(transfer), false);
}

int buffer_create(struct compute *compute, struct buffer *buffer, size_t bytes) {
    (void)compute;
    *buffer = (struct buffer){.bytes = bytes};
    return 0;
}

void buffer_release(struct compute *compute, struct buffer *buffer) {
    (void)compute, (void)buffer;
}

/* ---- messages: a transfer begins when both sides have posted it. A link carries transfers in the order in which
 * they were posted */

struct letter {
    int from, to, tag;
    bool sends, met;
    double bytes, arrival;
    struct letter *next; /* in its drawer: not met yet */
};

enum { DRAWERS = 1 << 16 };
static struct letter *drawers[DRAWERS];

static struct letter **drawer_of(const struct letter *letter) {
    const uint64_t mixed =
        ((uint64_t)letter->from * 1000003 + (uint64_t)letter->to) * 1000003 + (uint64_t)letter->tag;
    return &drawers[mixed * 0x9e3779b97f4a7c15U >> 48];
}

static double travel(const struct actor *from, const struct actor *to, double bytes) {
    struct host *out = host_of(from), *in = host_of(to);
    const double now = world.current->now;
    if (out == in) {
        return now + world.machine.latency + 2.0 * bytes / world.machine.rank_memory;
    }
    out->sent += bytes;
    out->out_free = later(now, out->out_free) + bytes / world.machine.wire;
    in->in_free = later(now, in->in_free) + bytes / world.machine.wire;
    return later(out->out_free, in->in_free) + world.machine.latency;
}

/* The first in its drawer that it meets is taken out. */
static struct letter *find_counterpart(const struct letter *letter) {
    struct letter **place = drawer_of(letter);
    for (; *place; place = &(*place)->next) {
        struct letter *other = *place;
        if (other->from == letter->from && other->to == letter->to && other->tag == letter->tag &&
            other->sends != letter->sends) {
            *place = other->next;
            return other;
        }
    }
    return NULL;
}

static int post(struct letter posted, MPI_Request *request) {
    struct letter *letter = memory_allocate(1, sizeof *letter);
    spend(world.machine.overhead);
    *letter = posted;
    struct letter *other = find_counterpart(letter);
    if (other) {
        struct actor *from = &world.actors[letter->from], *to = &world.actors[letter->to];
        letter->met = other->met = true;
        letter->arrival = other->arrival = travel(from, to, letter->bytes);
        world_wake(from, letter->arrival);
        world_wake(to, letter->arrival);
    } else {
        struct letter **drawer = drawer_of(letter);
        letter->next = *drawer;
        *drawer = letter;
    }
    *request = (MPI_Request)letter;
    return MPI_SUCCESS;
}

static double size_of(MPI_Datatype type) {
    return type == MPI_FLOAT ? 4.0 : 2.0;
}

int MPI_Isend(const void *data, int count, MPI_Datatype type, int rank, int tag, MPI_Comm comm,
              MPI_Request *request) {
    (void)data, (void)comm;
    return post((struct letter){world.current->ranks.index, rank, tag, true, false, count * size_of(type), 0.0,
                                NULL},
                request);
}

int MPI_Irecv(void *data, int count, MPI_Datatype type, int rank, int tag, MPI_Comm comm, MPI_Request *request) {
    (void)data, (void)comm;
    return post((struct letter){rank, world.current->ranks.index, tag, false, false, count * size_of(type), 0.0,
                                NULL},
                request);
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status) {
    struct letter *letter = (struct letter *)*request;
    (void)status;
    *done = letter->met && letter->arrival <= world.current->now;
    if (*done) {
        free(letter);
    }
    return MPI_SUCCESS;
}

int MPI_Request_get_status(MPI_Request request, int *done, MPI_Status *status) {
    (void)request, (void)status;
    *done = 1;
    return MPI_SUCCESS;
}
