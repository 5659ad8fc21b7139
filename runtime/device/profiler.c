#include "runtime/device/profiler.h"
#include "runtime/system/error.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TRACE_LIMIT 200000

/* A launch whose times were not read yet. */
struct pending {
    size_t entry;
    cl_event begin; /* NULL: the launch begins where `end` starts */
    cl_event end;
};

/* Everything launched under one name. */
struct entry {
    char *name;
    uint64_t calls;
    double nanoseconds;
    double flops;
};

struct launch {
    size_t entry;
    cl_ulong start; /* nanoseconds of the device's clock */
    cl_ulong end;
};

struct profiler {
    struct entry *entries;
    size_t entry_count, entry_room;
    struct pending *pending;
    size_t pending_count, pending_room;
    struct launch *launches;
    size_t launch_count, launch_room;
};

/* Makes room for one more element. Losing a measurement for lack of memory is no reason to stop a training run. */
static bool grow(void **array, size_t count, size_t *room, size_t element) {
    if (count < *room) {
        return true;
    }
    size_t wanted = *room ? 2 * *room : 64;
    void *larger = reallocarray(*array, wanted, element);
    if (!larger) {
        return false;
    }
    *array = larger;
    *room = wanted;
    return true;
}

struct profiler *profiler_create(void) {
    return calloc(1, sizeof(struct profiler));
}

static void pending_release(struct pending *pending) {
    if (pending->begin) {
        clReleaseEvent(pending->begin);
    }
    clReleaseEvent(pending->end);
}

void profiler_destroy(struct profiler *profiler) {
    if (!profiler) {
        return;
    }
    for (size_t i = 0; i < profiler->pending_count; i++) {
        pending_release(&profiler->pending[i]);
    }
    for (size_t i = 0; i < profiler->entry_count; i++) {
        free(profiler->entries[i].name);
    }
    free(profiler->entries);
    free(profiler->pending);
    free(profiler->launches);
    free(profiler);
}

/* The index of the entry with this name, made when new; SIZE_MAX without memory. */
static size_t entry_find(struct profiler *profiler, const char *name) {
    for (size_t i = 0; i < profiler->entry_count; i++) {
        if (!strcmp(profiler->entries[i].name, name)) {
            return i;
        }
    }
    if (!grow((void **)&profiler->entries, profiler->entry_count, &profiler->entry_room, sizeof(struct entry))) {
        return SIZE_MAX;
    }
    char *copy = strdup(name);
    if (!copy) {
        return SIZE_MAX;
    }
    profiler->entries[profiler->entry_count] = (struct entry){.name = copy};
    return profiler->entry_count++;
}

void profiler_add_range(struct profiler *profiler, const char *name, double flops, cl_event begin, cl_event end) {
    struct pending pending = {.entry = entry_find(profiler, name), .begin = begin, .end = end};
    if (pending.entry == SIZE_MAX || !grow((void **)&profiler->pending, profiler->pending_count,
                                           &profiler->pending_room, sizeof(struct pending))) {
        pending_release(&pending);
        return;
    }
    profiler->entries[pending.entry].calls++;
    profiler->entries[pending.entry].flops += flops;
    profiler->pending[profiler->pending_count++] = pending;
}

void profiler_add(struct profiler *profiler, const char *name, double flops, cl_event event) {
    profiler_add_range(profiler, name, flops, NULL, event);
}

/* 0 when the driver has no such time. */
static cl_ulong event_time(cl_event event, cl_profiling_info which) {
    cl_ulong time = 0;
    if (!event || clGetEventProfilingInfo(event, which, sizeof(time), &time, NULL) != CL_SUCCESS) {
        return 0;
    }
    return time;
}

static void pending_read(struct profiler *profiler, const struct pending *pending) {
    cl_ulong start = event_time(pending->begin, CL_PROFILING_COMMAND_END);
    cl_ulong end = event_time(pending->end, CL_PROFILING_COMMAND_END);
    if (!start) {
        start = event_time(pending->end, CL_PROFILING_COMMAND_START);
    }
    if (end < start) {
        return;
    }
    profiler->entries[pending->entry].nanoseconds += (double)(end - start);
    if (profiler->launch_count < TRACE_LIMIT &&
        grow((void **)&profiler->launches, profiler->launch_count, &profiler->launch_room, sizeof(struct launch))) {
        profiler->launches[profiler->launch_count++] = (struct launch){pending->entry, start, end};
    }
}

void profiler_collect(struct profiler *profiler) {
    for (size_t i = 0; i < profiler->pending_count; i++) {
        pending_read(profiler, &profiler->pending[i]);
        pending_release(&profiler->pending[i]);
    }
    profiler->pending_count = 0;
}

static int compare_entries(const void *left, const void *right) {
    const struct entry *a = *(const struct entry *const *)left, *b = *(const struct entry *const *)right;
    if (a->nanoseconds != b->nanoseconds) {
        return a->nanoseconds < b->nanoseconds ? 1 : -1;
    }
    return strcmp(a->name, b->name);
}

static void print_entry(const struct entry *entry, double total, FILE *file) {
    double share = total > 0 ? 100.0 * entry->nanoseconds / total : 0.0;
    fprintf(file, "%-32s %9" PRIu64 " %12.3f %12.3f %7.2f", entry->name, entry->calls, entry->nanoseconds * 1e-6,
            entry->nanoseconds * 1e-3 / (double)entry->calls, share);
    if (entry->flops > 0 && entry->nanoseconds > 0) {
        fprintf(file, " %10.2f", entry->flops / entry->nanoseconds);
    }
    fputc('\n', file);
}

/* Entries by total time, the longest first; heap memory, NULL without any. *total: nanoseconds of all. */
static const struct entry **sort_entries(const struct profiler *profiler, double *total) {
    const struct entry **sorted = calloc(profiler->entry_count + 1, sizeof(*sorted));
    *total = 0.0;
    for (size_t i = 0; sorted && i < profiler->entry_count; i++) {
        sorted[i] = &profiler->entries[i];
        *total += profiler->entries[i].nanoseconds;
    }
    if (sorted) {
        qsort(sorted, profiler->entry_count, sizeof(*sorted), compare_entries);
    }
    return sorted;
}

void profiler_print_table(struct profiler *profiler, FILE *file) {
    double total;
    const struct entry **sorted = sort_entries(profiler, &total);
    if (!sorted) {
        return;
    }
    fprintf(file, "%-32s %9s %12s %12s %7s %10s\n", "kernel", "calls", "total ms", "mean us", "share %", "GFLOP/s");
    for (size_t i = 0; i < profiler->entry_count; i++) {
        if (sorted[i]->calls) {
            print_entry(sorted[i], total, file);
        }
    }
    fprintf(file, "%-32s %9s %12.3f\n", "all", "", total * 1e-6);
    free(sorted);
}

json_t *profiler_report(struct profiler *profiler) {
    double total;
    const struct entry **sorted = sort_entries(profiler, &total);
    json_t *report = sorted ? json_array() : NULL;
    for (size_t i = 0; report && i < profiler->entry_count; i++) {
        if (sorted[i]->calls == 0) {
            continue;
        }
        json_array_append_new(report, json_pack("{s:s, s:I, s:f, s:f}", "name", sorted[i]->name, "calls",
                                                (json_int_t)sorted[i]->calls, "seconds",
                                                1e-9 * sorted[i]->nanoseconds, "flops", sorted[i]->flops));
    }
    free(sorted);
    return report;
}

void profiler_reset(struct profiler *profiler) {
    profiler->launch_count = 0;
    for (size_t i = 0; i < profiler->entry_count; i++) {
        profiler->entries[i] = (struct entry){.name = profiler->entries[i].name};
    }
}

static int write_launch(FILE *file, const char *name, const struct launch *launch, cl_ulong origin) {
    double start = (double)(cl_long)(launch->start - origin) * 1e-3;
    double duration = (double)(launch->end - launch->start) * 1e-3;
    json_t *event = json_pack("{s:s, s:s, s:i, s:i, s:f, s:f}", "name", name, "ph", "X", "pid", 0, "tid", 0, "ts",
                              start, "dur", duration);
    int result = event ? json_dumpf(event, file, JSON_COMPACT | JSON_REAL_PRECISION(15)) : -1;
    json_decref(event);
    return result;
}

static int write_launches(const struct profiler *profiler, FILE *file) {
    cl_ulong origin = profiler->launch_count ? profiler->launches[0].start : 0;
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", file);
    for (size_t i = 0; i < profiler->launch_count; i++) {
        const struct launch *launch = &profiler->launches[i];
        if (i) {
            fputs(",\n", file);
        }
        if (write_launch(file, profiler->entries[launch->entry].name, launch, origin)) {
            return -1;
        }
    }
    fputs("\n]}\n", file);
    return ferror(file) ? -1 : 0;
}

int profiler_write_trace(struct profiler *profiler, const char *path) {
    FILE *file = fopen(path, "we");
    if (!file) {
        return error_set_errno("cannot create the trace %s", path);
    }
    int result = write_launches(profiler, file);
    if (fclose(file) || result) {
        return error_set_errno("cannot write the trace %s", path);
    }
    return 0;
}
