/* Launches: work-groups on the processors, warps of a group, lanes of a warp; memory and what may go wrong with it.
 * */
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "tests/emulator/ptx_machine.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    GRAIN = 2,
    UNSET = 0xff,
    LONGEST_TURN = 64,
    FAULT_SIZE = 1024,
    SPLIT_ODDS = 8,
    SEVERAL = 0x8000,
    MANY = 0xffff
};

#define STEPS_MOST ((uint64_t)1 << 32) /* instructions of a warp */

/* Who touched a byte of local memory since the last barrier of the group. */
struct touch {
    uint32_t written, read;           /* the group's barrier count + 1 then; 0: never */
    uint32_t write_fence, read_fence; /* of the warp */
    uint16_t writer, reader;          /* work-items; SEVERAL + warp: several of that warp, MANY: of several warps */
    uint16_t copier;                  /* work-item + 1 that copies to it */
};

/* A launch as the threads share it. */
struct run {
    const struct ptx_launch *launch;
    size_t groups;
    atomic_size_t next;
    atomic_bool failed;
    pthread_mutex_t lock;
    char fault[FAULT_SIZE];
};

/* What a thread needs for one group at a time. */
struct group {
    struct run *run;
    size_t number, id[3];
    size_t items, warp_count;
    struct warp *warps;
    char *shared;
    struct touch *touches;
    uint32_t barriers; /* for local memory */
    uint64_t period;   /* since the last barrier for global memory: a number that no other group has */
    uint64_t random;   /* state; 0: nothing is at random */
    char nowhere[64];
};

/* ---- faults */

void fault(struct warp *warp, const struct instruction *x, unsigned lane, const char *format, ...) {
    struct group *group = warp->group;
    struct run *run = group->run;
    char what[FAULT_SIZE / 2], where[FAULT_SIZE / 4] = "";
    va_list values;
    va_start(values, format);
    vsnprintf(what, sizeof what, format, values);
    va_end(values);
    if (x->file) {
        snprintf(where, sizeof where, " at %s:%u", x->file, x->line);
    }
    pthread_mutex_lock(&run->lock);
    if (!atomic_exchange(&run->failed, true)) {
        snprintf(run->fault, sizeof run->fault, "%s%s, group %zu, work-item %u: %s (%.100s)",
                 run->launch->kernel->name, where, group->id[0], warp->index * warp->count + lane, what, x->text);
    }
    pthread_mutex_unlock(&run->lock);
}

static bool has_failed(const struct warp *warp) {
    return atomic_load_explicit(&warp->group->run->failed, memory_order_relaxed);
}

/* ---- chance: xorshift64 */

static uint64_t chance(struct group *group) {
    uint64_t x = group->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return group->random = x;
}

/* ---- races for local memory */

static unsigned item_of(const struct warp *warp, unsigned lane) {
    return warp->index * warp->count + lane;
}

/* Whether an access of `who` since the last barrier and the present one of `item` have an order: the same
 * work-item, or the same warp with a fence in between. */
static bool is_ordered(const struct warp *warp, unsigned who, unsigned item, uint32_t fence) {
    if (who == item) {
        return true;
    }
    const bool same_warp =
        who != MANY && (who & SEVERAL ? (who ^ SEVERAL) == warp->index : who / warp->count == warp->index);
    return same_warp && fence < warp->fences;
}

static void touch_byte(struct warp *warp, const struct instruction *x, unsigned lane, struct touch *touch,
                       bool writes) {
    const uint32_t now = warp->group->barriers + 1;
    const unsigned item = item_of(warp, lane);
    if (touch->copier) {
        fault(warp, x, lane, "%s local memory that work-item %u still copies to", writes ? "writes" : "reads",
              touch->copier - 1U);
    }
    if (touch->written == now && !is_ordered(warp, touch->writer, item, touch->write_fence)) {
        fault(warp, x, lane, "races: %s local memory that work-item %u writes", writes ? "writes" : "reads",
              touch->writer);
    }
    if (writes) {
        if (touch->read == now && !is_ordered(warp, touch->reader, item, touch->read_fence)) {
            fault(warp, x, lane, "races: writes local memory that another work-item (%u) reads", touch->reader);
        }
        touch->written = now;
        touch->writer = (uint16_t)item;
        touch->write_fence = warp->fences;
        return;
    }
    const bool first = touch->read != now;
    const bool same_warp =
        touch->reader != MANY && (touch->reader & SEVERAL ? (touch->reader ^ SEVERAL) == (int)warp->index
                                                          : touch->reader / warp->count == warp->index);
    touch->reader = first || touch->reader == item ? (uint16_t)item
                    : same_warp                    ? (uint16_t)(SEVERAL | warp->index)
                                                   : MANY;
    touch->read = now;
    touch->read_fence = warp->fences;
}

void copy_begins(struct warp *warp, const struct instruction *x, unsigned lane, uint32_t to) {
    struct group *group = warp->group;
    if (to % 16 || to + 16ULL > warp->kernel->shared_bytes) {
        fault(warp, x, lane, "copies to local memory at %u of %zu bytes", to, warp->kernel->shared_bytes);
        return;
    }
    for (unsigned i = 0; i < 16; i++) {
        touch_byte(warp, x, lane, &group->touches[to + i], true);
        group->touches[to + i].copier = (uint16_t)(item_of(warp, lane) + 1);
    }
    memset(group->shared + to, UNSET, 16);
}

void copy_ends(struct warp *warp, const struct copy *copy) {
    struct group *group = warp->group;
    if (has_failed(warp)) {
        return;
    }
    memset(group->shared + copy->to, 0, 16);
    if (copy->bytes) {
        memcpy(group->shared + copy->to, copy->from, copy->bytes);
    }
    for (unsigned i = 0; i < 16; i++) {
        struct touch *touch = &group->touches[copy->to + i];
        touch->copier = 0;
        touch->written = group->barriers + 1;
        touch->writer = (uint16_t)item_of(warp, copy->lane);
        touch->write_fence = warp->fences;
    }
}

/* ---- memory */

static char *shared_place(struct warp *warp, const struct instruction *x, unsigned lane, uint64_t at, size_t bytes,
                          bool writes) {
    struct group *group = warp->group;
    if (at % bytes || at + bytes > warp->kernel->shared_bytes) {
        fault(warp, x, lane, "%zu bytes of local memory at %llu of %zu", bytes, (unsigned long long)at,
              warp->kernel->shared_bytes);
        return group->nowhere;
    }
    for (size_t i = 0; i < bytes; i++) {
        touch_byte(warp, x, lane, &group->touches[at + i], writes);
    }
    return group->shared + at;
}

static bool is_inside(const struct ptx_range *range, uint64_t address, size_t bytes) {
    const uint64_t first = (uint64_t)(uintptr_t)range->first;
    return address >= first && bytes <= range->bytes && address - first <= range->bytes - bytes;
}

/* Who wrote and read last: a time above the lowest `bits` bits, and in them who; all of them set: several. */
struct marks {
    _Atomic uint64_t writer, reader;
};

/* GRAIN bytes of a buffer: the launch's number and its work-group + 1; a group's period and its work-item + 1. */
struct ptx_touched {
    struct marks groups, items;
};
enum { GROUP_BITS = 32, ITEM_BITS = 16 };

size_t ptx_touched_size(size_t bytes) {
    return (bytes + GRAIN - 1) / GRAIN * sizeof(struct ptx_touched);
}

struct ptx_touched *ptx_touched_from(struct ptx_touched *touched, size_t offset) {
    return touched + offset / GRAIN;
}

/* Whether a mark is somebody else's of the same time. */
static bool is_other(uint64_t mark, uint64_t own, unsigned bits) {
    return mark >> bits == own >> bits && mark != own;
}

/* Whether an access races with another one. What it leaves is seen by others on other threads before they look for
 * it, or it sees what they left: whichever comes last finds the race. */
static bool races(struct marks *marks, uint64_t own, unsigned bits, bool writes) {
    if (writes) {
        const uint64_t before = atomic_exchange(&marks->writer, own);
        return is_other(before, own, bits) || is_other(atomic_load(&marks->reader), own, bits);
    }
    const uint64_t before = atomic_load_explicit(&marks->reader, memory_order_relaxed);
    const uint64_t several = own | (((uint64_t)1 << bits) - 1);
    if (before != own && before != several) {
        atomic_store(&marks->reader, is_other(before, own, bits) ? several : own);
    }
    return is_other(atomic_load(&marks->writer), own, bits);
}

static void touch_global(struct warp *warp, const struct instruction *x, unsigned lane, struct ptx_touched *touched,
                         size_t grains, bool writes) {
    const struct group *group = warp->group;
    const uint64_t own_group = (uint64_t)group->run->launch->number << GROUP_BITS | (group->number + 1);
    const uint64_t own_item = group->period << ITEM_BITS | (item_of(warp, lane) + 1);
    const char *how = writes ? "writes to a buffer where" : "reads from a buffer where";
    for (struct ptx_touched *end = touched + grains; touched < end; touched++) {
        if (races(&touched->groups, own_group, GROUP_BITS, writes)) {
            fault(warp, x, lane, "races: %s another work-group %s", how, writes ? "reads or writes" : "writes");
        } else if (races(&touched->items, own_item, ITEM_BITS, writes)) {
            fault(warp, x, lane, "races: %s another work-item %s", how, writes ? "reads or writes" : "writes");
        }
    }
}

static char *global_place(struct warp *warp, const struct instruction *x, unsigned lane, uint64_t address,
                          size_t bytes, bool writes) {
    const struct ptx_launch *launch = warp->group->run->launch;
    if (!warp->range || !is_inside(warp->range, address, bytes)) {
        const struct ptx_range *range = launch->ranges, *end = range + launch->range_count;
        while (range < end && !is_inside(range, address, bytes)) {
            range++;
        }
        if (range == end) {
            fault(warp, x, lane, "%zu bytes outside of all buffers", bytes);
            return warp->group->nowhere;
        }
        warp->range = range;
    }
    if (warp->range->touched) {
        const size_t at = address - (uint64_t)(uintptr_t)warp->range->first;
        touch_global(warp, x, lane, warp->range->touched + at / GRAIN, (at % GRAIN + bytes + GRAIN - 1) / GRAIN,
                     writes);
    }
    return (char *)(uintptr_t)address;
}

static char *const_place(struct warp *warp, const struct instruction *x, unsigned lane, uint64_t address,
                         size_t bytes) {
    const struct ptx_range range = {warp->kernel->const_memory, warp->kernel->const_bytes, NULL};
    if (!is_inside(&range, address, bytes)) {
        fault(warp, x, lane, "%zu bytes outside of constant memory", bytes);
        return warp->group->nowhere;
    }
    return (char *)(uintptr_t)address;
}

/* A piece of memory of known size, such as a lane's private memory. */
static char *own_place(struct warp *warp, const struct instruction *x, unsigned lane, char *memory, size_t size,
                       uint64_t at, size_t bytes) {
    if (at > size || bytes > size - at) {
        fault(warp, x, lane, "%zu bytes of private memory or parameters at %llu of %zu", bytes,
              (unsigned long long)at, size);
        return warp->group->nowhere;
    }
    return memory + at;
}

char *memory_place(struct warp *warp, const struct instruction *x, unsigned lane, enum space space,
                   uint64_t address, size_t bytes, bool writes) {
    const struct ptx_kernel *kernel = warp->kernel;
    if (space == SPACE_GENERIC) {
        space = address & SHARED_WINDOW ? SPACE_SHARED : address & LOCAL_WINDOW ? SPACE_LOCAL : SPACE_GLOBAL;
        address &= ~(SHARED_WINDOW | LOCAL_WINDOW);
    }
    if (address % bytes && x->execute != execute_copy) {
        fault(warp, x, lane, "%zu bytes at an address that is not aligned to them", bytes);
        return warp->group->nowhere;
    }
    switch (space) {
    case SPACE_SHARED:
        return shared_place(warp, x, lane, address, bytes, writes);
    case SPACE_LOCAL:
        return own_place(warp, x, lane, warp->local + lane * kernel->local_bytes, kernel->local_bytes, address,
                         bytes);
    case SPACE_CALL:
        return own_place(warp, x, lane, warp->call + lane * kernel->call_bytes, kernel->call_bytes, address, bytes);
    case SPACE_PARAM:
        return own_place(warp, x, lane, (char *)warp->group->run->launch->parameters, kernel->parameter_bytes,
                         address, bytes);
    case SPACE_CONST:
        return const_place(warp, x, lane, address, bytes);
    default:
        return global_place(warp, x, lane, address, bytes, writes);
    }
}

/* ---- lanes of a warp */

static uint64_t guarded(const struct warp *warp, const struct instruction *x, uint64_t lanes) {
    if (x->guard < 0) {
        return lanes;
    }
    const union word *guard = (const union word *)(const void *)(warp->registers + x->guard);
    uint64_t taking = 0;
    for (unsigned lane = 0; lane < warp->count; lane++) {
        taking |= (uint64_t)(guard[lane].u != 0) << lane;
    }
    return lanes & (x->guard_negated ? ~taking : taking);
}

static void split_remove(struct warp *warp, unsigned index) {
    warp->splits[index] = warp->splits[--warp->split_count];
}

static void split_add(struct warp *warp, uint64_t lanes, uint32_t at) {
    warp->splits[warp->split_count++] = (struct split){lanes, at, false};
}

/* Joins those that are at one place: all of them, or those that wait. */
static void splits_join(struct warp *warp, bool all) {
    for (unsigned i = 0; i < warp->split_count; i++) {
        for (unsigned k = warp->split_count; k-- > i + 1;) {
            struct split *one = &warp->splits[i], *other = &warp->splits[k];
            if (one->at == other->at && one->waits == other->waits && (all || one->waits)) {
                one->lanes |= other->lanes;
                split_remove(warp, k);
            }
        }
    }
}

/* The lanes of a split fall apart, as those of a warp may at any time. */
static void split_at_random(struct warp *warp, struct split *split) {
    const uint64_t some = split->lanes & chance(warp->group);
    if (some && some != split->lanes && warp->split_count < PTX_LANES_MOST) {
        split->lanes &= ~some;
        split_add(warp, some, split->at);
    }
}

/* The split that runs next; NULL if all wait or have returned. In step it is the one furthest behind. */
static struct split *split_choose(struct warp *warp) {
    struct split *chosen = NULL;
    unsigned ready = 0;
    const bool random = warp->group->random != 0;
    splits_join(warp, !random || chance(warp->group) % 2);
    for (unsigned i = 0; i < warp->split_count; i++) {
        struct split *split = &warp->splits[i];
        if (split->waits) {
            continue;
        }
        ready++;
        if (!chosen || (random ? chance(warp->group) % ready == 0 : split->at < chosen->at)) {
            chosen = split;
        }
    }
    if (chosen && random && chance(warp->group) % SPLIT_ODDS == 0) {
        split_at_random(warp, chosen);
    }
    return chosen;
}

/* Runs a split until it waits or returns, or until others may be first. */
static void split_run(struct warp *warp, struct split *split) {
    const struct ptx_kernel *kernel = warp->kernel;
    const bool random = warp->group->random != 0;
    unsigned left = random ? 1 + (unsigned)(chance(warp->group) % LONGEST_TURN) : UINT32_MAX;
    for (; left && !has_failed(warp); left--) {
        if (split->at >= kernel->code_count) {
            fault(warp, &kernel->code[kernel->code_count - 1], 0, "runs past the end");
            return;
        }
        const struct instruction *x = &kernel->code[split->at];
        if (++warp->steps > STEPS_MOST) {
            fault(warp, x, 0, "does not come to an end");
            return;
        }
        if (warp->split_count > 1 && x->is_target && !random && left != UINT32_MAX) {
            return; /* others may be here, too */
        }
        const uint64_t lanes = guarded(warp, x, split->lanes);
        switch ((enum flow)x->flow) {
        case FLOW_NEXT:
            if (lanes) {
                x->execute(warp, x, lanes);
            }
            split->at++;
            continue;
        case FLOW_BRANCH:
            if (lanes && lanes != split->lanes) {
                split->lanes &= ~lanes;
                split->at++;
                split_add(warp, lanes, x->target);
                return;
            }
            split->at = lanes ? x->target : split->at + 1;
            if (warp->split_count > 1) {
                return;
            }
            continue;
        case FLOW_EXIT:
            warp->live &= ~lanes;
            split->lanes &= ~lanes;
            split->at++;
            if (!split->lanes) {
                split_remove(warp, (unsigned)(split - warp->splits));
                return;
            }
            continue;
        default:
            if (!lanes) {
                split->at++;
                continue;
            }
            split->waits = true;
            return;
        }
    }
}

/* All lanes are at one place and wait: does what they came for. False: for the other warps, or nobody is left. */
static bool warp_go_on(struct warp *warp) {
    if (!warp->live) {
        return false;
    }
    struct split *split = &warp->splits[0];
    const struct instruction *x = &warp->kernel->code[split->at];
    if (warp->split_count != 1 || split->lanes != warp->live || guarded(warp, x, split->lanes) != split->lanes) {
        fault(warp, x, 0, "lanes of a warp wait for each other at different places");
        return false;
    }
    if (x->flow == FLOW_GROUP) {
        return false;
    }
    if (warp->live != warp->all) {
        fault(warp, x, 0, "an instruction of the whole warp after some of its lanes have returned");
        return false;
    }
    if (x->flow == FLOW_WARP) {
        x->execute(warp, x, split->lanes);
    } else {
        warp->fences++;
    }
    split->at++;
    split->waits = false;
    return true;
}

/* Until all lanes wait at a barrier of the group, or have returned. */
static void warp_run(struct warp *warp) {
    do {
        for (struct split *split; !has_failed(warp) && (split = split_choose(warp)) != NULL;) {
            split_run(warp, split);
        }
        splits_join(warp, false);
    } while (!has_failed(warp) && warp_go_on(warp));
}

/* ---- work-groups */

/* The value of a special register for a lane. */
static uint64_t special_value(const struct warp *warp, const struct constant *constant, unsigned lane) {
    const struct group *group = warp->group;
    const struct ptx_launch *launch = group->run->launch;
    const size_t *items = launch->items;
    const size_t item = item_of(warp, lane);
    const size_t place[3] = {item % items[0], item / items[0] % items[1], item / items[0] / items[1]};
    switch (constant->special) {
    case SPECIAL_TID:
        return place[constant->dimension];
    case SPECIAL_NTID:
        return items[constant->dimension];
    case SPECIAL_CTAID:
        return group->id[constant->dimension];
    case SPECIAL_NCTAID:
        return launch->groups[constant->dimension];
    case SPECIAL_LANE:
        return lane;
    default:
        return constant->value;
    }
}

static void warp_begin(struct group *group, unsigned index) {
    struct warp *warp = &group->warps[index];
    const struct ptx_kernel *kernel = warp->kernel;
    const size_t left = group->items - (size_t)index * kernel->lanes;
    warp->full = UINT64_MAX >> (64 - kernel->lanes);
    warp->all = left >= kernel->lanes ? warp->full : LANE_BIT(left) - 1;
    warp->live = warp->all;
    warp->fences = 0;
    warp->steps = 0;
    warp->split_count = 0;
    warp->copy_count = 0;
    memset(warp->committed, 0, sizeof warp->committed);
    split_add(warp, warp->all, 0);
    for (size_t i = 0; i < kernel->constant_count; i++) {
        const struct constant *constant = &kernel->constants[i];
        for (unsigned lane = 0; lane < kernel->lanes; lane++) {
            const uint64_t value = special_value(warp, constant, lane);
            if (constant->is_wide) {
                ((union wide *)(void *)(warp->registers + constant->at))[lane].u = value;
            } else {
                ((union word *)(void *)(warp->registers + constant->at))[lane].u = (uint32_t)value;
            }
        }
    }
}

static void period_begin(struct group *group) {
    static _Atomic uint64_t periods;
    group->period = atomic_fetch_add(&periods, 1) + 1;
}

/* Releases the warps from a barrier. False when all have returned. */
static bool barrier_pass(struct group *group) {
    struct warp *waiting = NULL, *returned = NULL;
    for (size_t i = 0; i < group->warp_count; i++) {
        struct warp *warp = &group->warps[i];
        if (!warp->live) {
            returned = warp;
        } else if (waiting && waiting->splits[0].at != warp->splits[0].at) {
            fault(warp, &warp->kernel->code[warp->splits[0].at], 0, "warps wait at different barriers");
            return false;
        } else {
            waiting = warp;
        }
        if (warp->live && warp->live != warp->all) {
            returned = warp;
        }
    }
    if (!waiting) {
        return false;
    }
    if (returned) {
        fault(waiting, &waiting->kernel->code[waiting->splits[0].at], 0, "waits for work-items that have returned");
        return false;
    }
    const struct instruction *x = &waiting->kernel->code[waiting->splits[0].at];
    group->barriers += x->orders_local;
    if (x->orders_global) {
        period_begin(group);
    }
    for (size_t i = 0; i < group->warp_count; i++) {
        group->warps[i].splits[0].at++;
        group->warps[i].splits[0].waits = false;
    }
    return true;
}

static void group_run(struct group *group, size_t number) {
    const struct ptx_launch *launch = group->run->launch;
    const size_t *groups = launch->groups;
    group->number = number;
    group->id[0] = number % groups[0];
    group->id[1] = number / groups[0] % groups[1];
    group->id[2] = number / groups[0] / groups[1];
    group->random = launch->seed ? (launch->seed * 0x9e3779b97f4a7c15U + number) | 1 : 0;
    group->barriers = 0;
    period_begin(group);
    memset(group->shared, UNSET, launch->kernel->shared_bytes);
    memset(group->touches, 0, launch->kernel->shared_bytes * sizeof *group->touches);
    for (unsigned i = 0; i < group->warp_count; i++) {
        warp_begin(group, i);
    }
    do {
        const size_t first = group->random ? chance(group) % group->warp_count : 0;
        for (size_t i = 0; i < group->warp_count && !atomic_load(&group->run->failed); i++) {
            warp_run(&group->warps[(first + i) % group->warp_count]);
        }
    } while (!atomic_load(&group->run->failed) && barrier_pass(group));
}

static void group_open(struct group *group, struct run *run) {
    const struct ptx_kernel *kernel = run->launch->kernel;
    const size_t *items = run->launch->items;
    *group = (struct group){.run = run, .items = items[0] * items[1] * items[2]};
    group->warp_count = (group->items - 1) / kernel->lanes + 1;
    group->warps = memory_zeroed(group->warp_count, sizeof *group->warps);
    group->shared = memory_allocate(kernel->shared_bytes, 1);
    group->touches = memory_allocate(kernel->shared_bytes, sizeof *group->touches);
    for (unsigned i = 0; i < group->warp_count; i++) {
        struct warp *warp = &group->warps[i];
        warp->group = group;
        warp->kernel = kernel;
        warp->index = i;
        warp->count = kernel->lanes;
        warp->registers = memory_allocate(kernel->register_bytes, 1);
        memset(warp->registers, UNSET, kernel->register_bytes);
        warp->local = memory_allocate(kernel->local_bytes, kernel->lanes);
        memset(warp->local, UNSET, kernel->local_bytes * kernel->lanes);
        warp->call = memory_zeroed(kernel->call_bytes, kernel->lanes);
    }
}

static void group_close(struct group *group) {
    for (size_t i = 0; i < group->warp_count; i++) {
        free(group->warps[i].registers);
        free(group->warps[i].local);
        free(group->warps[i].call);
        free(group->warps[i].copies);
    }
    free(group->warps);
    free(group->shared);
    free(group->touches);
}

static void *run_groups(void *context) {
    struct run *run = context;
    struct group group;
    group_open(&group, run);
    for (size_t number; (number = atomic_fetch_add(&run->next, 1)) < run->groups && !atomic_load(&run->failed);) {
        group_run(&group, number);
    }
    group_close(&group);
    return NULL;
}

int ptx_run(const struct ptx_launch *launch) {
    enum { THREADS_MOST = 16 };
    struct run run = {.launch = launch,
                      .groups = launch->groups[0] * launch->groups[1] * launch->groups[2],
                      .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t threads[THREADS_MOST];
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    size_t wanted = processors > 1 ? (size_t)processors : 1, started = 0;
    wanted = wanted < THREADS_MOST ? wanted : THREADS_MOST;
    wanted = wanted < run.groups ? wanted : run.groups;
    while (started + 1 < wanted && pthread_create(&threads[started], NULL, run_groups, &run) == 0) {
        started++;
    }
    run_groups(&run);
    while (started) {
        pthread_join(threads[--started], NULL);
    }
    pthread_mutex_destroy(&run.lock);
    return atomic_load(&run.failed) ? error_set("%s", run.fault) : 0;
}
