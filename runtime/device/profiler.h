/* Times of everything launched, from OpenCL's event profiling: a table per kernel and a Chrome trace. */
#pragma once

#include <CL/cl.h>
#include <jansson.h>
#include <stdio.h>

struct profiler;

struct profiler *profiler_create(void);
void profiler_destroy(struct profiler *profiler);

/* Takes over the event `end` of a launch named `name` with `flops` of work in it (0 if not known), and for work of
 * several commands on an in-order queue, of which it is the last, the event `begin` of a marker before the first; else
 * that is NULL. Retains nothing else of the caller's. */
void profiler_add(struct profiler *profiler, const char *name, double flops, cl_event begin, cl_event end);

/* Reads the times of all events so far (they must be complete) and releases them. */
void profiler_collect(struct profiler *profiler);

/* A table: kernel, calls, total and mean time, share, GFLOP/s where known; sorted by total time. */
void profiler_print_table(struct profiler *profiler, FILE *file);

/* The same as an array of objects: name, calls, seconds, flops. The caller's to json_decref; NULL when out of
 * memory. */
json_t *profiler_report(struct profiler *profiler);

/* Forgets everything so far; all launches must be complete. */
void profiler_reset(struct profiler *profiler);

/* Chrome's trace format (load in chrome://tracing or ui.perfetto.dev), the first 200000 launches. 0 or -1. */
int profiler_write_trace(struct profiler *profiler, const char *path);
