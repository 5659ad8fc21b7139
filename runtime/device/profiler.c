#include "runtime/device/profiler.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define TRACE_LIMIT 200000

/* Everything launched under one name. */
struct entry {
    char *name;
    uint64_t calls;
    double nanoseconds;
    double flops;
};

struct launch {
    size_t entry;
    cl_event begin, end;  /* until the times are read; begin NULL: the launch begins where `end` starts */
    cl_ulong start, stop; /* nanoseconds of the device's clock */
};

struct profiler {
    struct entry *entries;
    size_t entry_count;
    struct launch *launches; /* those whose times are read, TRACE_LIMIT at most, then the others */
    size_t read_count, launch_count;
};

/* Grows an array for one more element, where its count is a power of two. */
static void *grow(void *array, size_t count, size_t element) {
    return count & (count - 1) ? array : memory_resize(array, count ? 2 * count : 1, element);
}

struct profiler *profiler_create(void) {
    return memory_zeroed(1, sizeof(struct profiler));
}

static void release_events(struct launch *launch) {
    if (launch->begin) {
        clReleaseEvent(launch->begin);
    }
    clReleaseEvent(launch->end);
}

void profiler_reset(struct profiler *profiler) {
    for (size_t i = profiler->read_count; i < profiler->launch_count; i++) {
        release_events(&profiler->launches[i]);
    }
    for (size_t i = 0; i < profiler->entry_count; i++) {
        free(profiler->entries[i].name);
    }
    profiler->read_count = profiler->launch_count = profiler->entry_count = 0;
}

void profiler_destroy(struct profiler *profiler) {
    if (profiler) {
        profiler_reset(profiler);
        free(profiler->entries);
        free(profiler->launches);
        free(profiler);
    }
}

void profiler_add(struct profiler *profiler, const char *name, double flops, cl_event begin, cl_event end) {
    size_t at = 0;
    while (at < profiler->entry_count && strcmp(profiler->entries[at].name, name) != 0) {
        at++;
    }
    if (at == profiler->entry_count) {
        profiler->entries = grow(profiler->entries, profiler->entry_count++, sizeof *profiler->entries);
        profiler->entries[at] = (struct entry){.name = memory_string(name)};
    }
    profiler->entries[at].calls++;
    profiler->entries[at].flops += flops;
    profiler->launches = grow(profiler->launches, profiler->launch_count, sizeof *profiler->launches);
    profiler->launches[profiler->launch_count++] = (struct launch){.entry = at, .begin = begin, .end = end};
}

/* 0 when the driver has no such time. */
static cl_ulong event_time(cl_event event, cl_profiling_info which) {
    cl_ulong time = 0;
    if (!event || clGetEventProfilingInfo(event, which, sizeof(time), &time, NULL) != CL_SUCCESS) {
        return 0;
    }
    return time;
}

void profiler_collect(struct profiler *profiler) {
    for (size_t i = profiler->read_count; i < profiler->launch_count; i++) {
        struct launch launch = profiler->launches[i];
        launch.start = event_time(launch.begin, CL_PROFILING_COMMAND_END);
        launch.stop = event_time(launch.end, CL_PROFILING_COMMAND_END);
        if (!launch.start) {
            launch.start = event_time(launch.end, CL_PROFILING_COMMAND_START);
        }
        release_events(&launch);
        if (launch.start > launch.stop) {
            continue; /* the times make no sense */
        }
        profiler->entries[launch.entry].nanoseconds += (double)(launch.stop - launch.start);
        if (profiler->read_count < TRACE_LIMIT) {
            profiler->launches[profiler->read_count++] = launch;
        }
    }
    profiler->launch_count = profiler->read_count;
}

static int compare_entries(const void *left, const void *right) {
    const struct entry *a = *(const struct entry *const *)left, *b = *(const struct entry *const *)right;
    if (a->nanoseconds != b->nanoseconds) {
        return a->nanoseconds < b->nanoseconds ? 1 : -1;
    }
    return strcmp(a->name, b->name);
}

/* The entries by total time, the longest first: heap memory. */
static const struct entry **rank_entries(const struct profiler *profiler) {
    const struct entry **ranking = memory_allocate(profiler->entry_count, sizeof(*ranking));
    for (size_t i = 0; i < profiler->entry_count; i++) {
        ranking[i] = &profiler->entries[i];
    }
    qsort(ranking, profiler->entry_count, sizeof(*ranking), compare_entries);
    return ranking;
}

void profiler_print_table(struct profiler *profiler, FILE *file) {
    double total = 0.0;
    const struct entry **ranking = rank_entries(profiler);
    for (size_t i = 0; i < profiler->entry_count; i++) {
        total += ranking[i]->nanoseconds;
    }
    fprintf(file, "%-32s %9s %12s %12s %7s %10s\n", "kernel", "calls", "total ms", "mean us", "share %", "GFLOP/s");
    for (size_t i = 0; i < profiler->entry_count; i++) {
        const struct entry *entry = ranking[i];
        fprintf(file, "%-32s %9" PRIu64 " %12.3f %12.3f %7.2f", entry->name, entry->calls,
                entry->nanoseconds * 1e-6, entry->nanoseconds * 1e-3 / (double)entry->calls,
                total > 0 ? 100.0 * entry->nanoseconds / total : 0.0);
        if (entry->flops > 0 && entry->nanoseconds > 0) {
            fprintf(file, " %10.2f", entry->flops / entry->nanoseconds);
        }
        fputc('\n', file);
    }
    fprintf(file, "%-32s %9s %12.3f\n", "all", "", total * 1e-6);
    free(ranking);
}

json_t *profiler_report(struct profiler *profiler) {
    const struct entry **ranking = rank_entries(profiler);
    json_t *report = json_array();
    for (size_t i = 0; i < profiler->entry_count; i++) {
        json_array_append_new(report, json_pack("{s:s, s:I, s:f, s:f}", "name", ranking[i]->name, "calls",
                                                (json_int_t)ranking[i]->calls, "seconds",
                                                1e-9 * ranking[i]->nanoseconds, "flops", ranking[i]->flops));
    }
    free(ranking);
    return report;
}

/* Names are those of kernels and of our own calls, with no character that JSON escapes. */
int profiler_write_trace(struct profiler *profiler, const char *path) {
    const cl_ulong origin = profiler->read_count ? profiler->launches[0].start : 0;
    struct output_file file = {0};
    if (output_file_open(&file, path)) {
        return error_prefix("the trace");
    }
    fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", file.stream);
    for (size_t i = 0; i < profiler->read_count; i++) {
        const struct launch *launch = &profiler->launches[i];
        const double start = (double)(cl_long)(launch->start - origin) * 1e-3;
        const double duration = (double)(launch->stop - launch->start) * 1e-3;
        fprintf(file.stream, "%s{\"name\":\"%s\",\"ph\":\"X\",\"pid\":0,\"tid\":0,\"ts\":%.3f,\"dur\":%.3f}",
                i ? ",\n" : "", profiler->entries[launch->entry].name, start, duration);
    }
    fputs("\n]}\n", file.stream);
    return output_file_end(&file, 0) ? error_prefix("the trace") : 0;
}
