/* hc_scaling: simulates a data-parallel step on machines that are not there. The exchange of gradients is the
 * program's own (world.h); when gradients are complete is measured, or from the roofline estimate. bench/scaling.py
 * calls it and prints tables. */
#include "bench/scaling/world.h"
#include "runtime/system/memory.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct world world;

/* ---- events in the order of time */

struct visit {
    double time;
    struct actor *actor;
};

static struct visit *visits; /* a heap with the earliest first */
static size_t visit_count, visit_capacity;

static void push(struct visit visit) {
    if (visit_count == visit_capacity) {
        visit_capacity = visit_capacity ? 2 * visit_capacity : 4096;
        visits = memory_resize(visits, visit_capacity, sizeof *visits);
    }
    size_t at = visit_count++;
    for (; at > 0 && visits[(at - 1) / 2].time > visit.time; at = (at - 1) / 2) {
        visits[at] = visits[(at - 1) / 2];
    }
    visits[at] = visit;
}

static struct visit pop(void) {
    const struct visit first = visits[0], last = visits[--visit_count];
    size_t at = 0;
    for (size_t child = 1; child < visit_count; child = 2 * at + 1) {
        child += child + 1 < visit_count && visits[child + 1].time < visits[child].time;
        if (last.time <= visits[child].time) {
            break;
        }
        visits[at] = visits[child];
        at = child;
    }
    visits[at] = last;
    return first;
}

double world_random(void) {
    world.random = world.random * 6364136223846793005U + 1442695040888963407U;
    return (double)(world.random >> 11) * 0x1p-53;
}

static bool is_computing(const struct actor *actor, double time) {
    return time < actor->computed + actor->stolen;
}

void world_wake(struct actor *actor, double time) {
    const bool busy = world.machine.cpu && is_computing(actor, time);
    push((struct visit){time + world_random() * (busy ? world.machine.long_nap : world.machine.nap), actor});
}

/* ---- a step */

struct item {
    double lead; /* seconds before the end of the backward pass */
    struct collective_item what;
};

struct plan {
    struct item *items;
    size_t count;
    uint64_t largest;
    double computing; /* seconds of all micro-steps */
};

static void begin(struct actor *actor, const struct plan *plan, double slower) {
    struct collective_item *items = memory_allocate(plan->count, sizeof *items);
    for (size_t i = 0; i < plan->count; i++) {
        items[i] = plan->items[i].what;
    }
    world.current = actor;
    actor->now = actor->stolen = actor->queues[0] = actor->queues[1] = 0.0;
    actor->seen = -1.0;
    actor->computed = plan->computing * slower;
    actor->finished = false;
    collective_begin(actor->collective, items, plan->count);
    for (size_t i = 0; i < plan->count; i++) {
        actor->next_mark = actor->computed - plan->items[i].lead * slower;
        collective_ready(actor->collective, i + 1);
    }
    free(items);
}

static void visit(struct visit due) {
    struct actor *actor = due.actor;
    bool done = false;
    if (actor->finished || due.time < actor->seen) {
        return;
    }
    if (due.time < actor->now) { /* still busy */
        push((struct visit){actor->now, actor});
        return;
    }
    world.current = actor;
    actor->seen = actor->now = due.time;
    while (collective_poll(actor->collective, &done)) {
    }
    actor->finished = done;
    actor->finish = actor->now;
}

/* Returns the seconds until the last rank has all sums. Adds to *exposed the mean time that ranks wait for them. */
static double run_step(const struct plan *plan, double *exposed) {
    const int ranks = world.machine.ranks;
    double end = 0.0;
    visit_count = 0;
    for (int i = 0; i < (ranks + world.machine.per_host - 1) / world.machine.per_host; i++) {
        world.hosts[i] = (struct host){.sent = world.hosts[i].sent};
    }
    for (int i = 0; i < ranks; i++) {
        const double slower =
            world_random() * world.machine.jitter + (i == ranks / 2 ? world.machine.straggler : 0.0);
        begin(&world.actors[i], plan, 1.0 + slower);
    }
    while (visit_count > 0) {
        visit(pop());
    }
    for (int i = 0; i < ranks; i++) {
        const struct actor *actor = &world.actors[i];
        if (!actor->finished) {
            fprintf(stderr, "hc_scaling: rank %d never came to an end\n", i);
            exit(1);
        }
        end = actor->finish > end ? actor->finish : end;
        *exposed += (actor->finish - actor->computed - actor->stolen) / ranks;
    }
    return end;
}

/* ---- setting up */

static int by_lead(const void *a, const void *b) {
    const struct item *one = a, *other = b;
    return (one->lead < other->lead) - (one->lead > other->lead);
}

/* rows: elements of the token embedding's rows that are sent separately; 0: its gradient is sent last, whole. */
static void read_plan(const json_t *schedule, const struct buffer *buffer, uint64_t rows, struct plan *plan) {
    size_t index;
    json_t *row;
    plan->items = memory_allocate(json_array_size(schedule) + 64, sizeof *plan->items);
    json_array_foreach(schedule, index, row) {
        const uint64_t elements = (uint64_t)json_integer_value(json_array_get(row, 0));
        const bool waits = rows == 0 && json_is_true(json_array_get(row, 2));
        const double lead = waits ? 0.0 : json_number_value(json_array_get(row, 1));
        plan->items[plan->count++] = (struct item){lead, {COLLECTIVE_ALL_REDUCE, buffer, {0, elements}, 0}};
        plan->largest = elements > plan->largest ? elements : plan->largest;
    }
    for (uint64_t done = 0; done < rows && plan->count < json_array_size(schedule) + 64; done += plan->largest) {
        const uint64_t left = rows - done;
        const uint64_t elements = left < plan->largest ? left : plan->largest;
        plan->items[plan->count++] = (struct item){0.0, {COLLECTIVE_ALL_REDUCE, buffer, {0, elements}, 0}};
    }
    qsort(plan->items, plan->count, sizeof *plan->items, by_lead);
}

static void create_actors(const struct plan *plan, const struct buffer *buffer, bool bf16) {
    const int ranks = world.machine.ranks, near = world.machine.per_host, across = ranks / near;
    world.actors = memory_zeroed((size_t)ranks, sizeof *world.actors);
    world.hosts = memory_zeroed((size_t)across, sizeof *world.hosts);
    for (int i = 0; i < ranks; i++) {
        struct actor *actor = world.current = &world.actors[i];
        int *members = memory_allocate((size_t)(near + across), sizeof *members);
        for (int k = 0; k < near; k++) {
            members[k] = i / near * near + k;
        }
        for (int k = 0; k < across; k++) {
            members[near + k] = k * near + i % near;
        }
        actor->compute.device.is_cpu = actor->compute.device.native_kernels = world.machine.cpu;
        actor->ranks = (struct ranks){.index = i,
                                      .count = ranks,
                                      .node = {i % near, near, members},
                                      .cross_node = {i / near, across, members + near}};
        const struct collective_settings settings = {plan->count, plan->largest, bf16, &buffer, 1};
        if (collective_create(&actor->compute, &actor->ranks, &settings, &actor->collective)) {
            exit(1);
        }
    }
}

/* ---- the command */

static json_t *facts; /* a JSON object of the command line's */

static double number(const char *name) {
    const json_t *value = json_object_get(facts, name);
    if (!json_is_number(value)) {
        fprintf(stderr, "hc_scaling: %s is missing\n", name);
        exit(2);
    }
    return json_number_value(value);
}

int main(void) {
    static struct buffer buffer;
    struct plan plan = {0};
    double step = 0.0, exposed = 0.0;
    json_error_t error;
    facts = json_loadf(stdin, 0, &error);
    if (!facts) {
        fprintf(stderr, "hc_scaling: expects a JSON object on its input (bench/scaling.py): %s\n", error.text);
        return 2;
    }
    world.machine = (struct machine){
        .ranks = (int)number("ranks"),
        .per_host = (int)number("per_host"),
        .cpu = number("cpu") != 0.0,
        .pcie = number("pcie"),
        .memory = number("memory"),
        .rank_memory = number("rank_memory"),
        .wire = number("wire"),
        .latency = number("latency"),
        .overhead = number("overhead"),
        .nap = number("nap"),
        .long_nap = number("long_nap"),
        .jitter = number("jitter"),
        .straggler = number("straggler"),
    };
    const int steps = (int)number("steps");
    buffer.host = world.machine.cpu ? &world : NULL;
    plan.computing = number("computing");
    read_plan(json_object_get(facts, "schedule"), &buffer, (uint64_t)number("rows"), &plan);
    create_actors(&plan, &buffer, number("bf16") != 0.0);
    for (int i = 0; i < steps; i++) {
        step += run_step(&plan, &exposed) / steps;
    }
    printf("{\"gradients_at\": %.9g, \"exposed\": %.9g, \"sent_by_host\": %.9g}\n", step, exposed / steps,
           world.hosts[0].sent / steps);
    return 0;
}
