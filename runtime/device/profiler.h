/* Times of everything launched, from OpenCL's event profiling: a table per kernel and a Chrome trace. */
#pragma once

#include <CL/cl.h>
#include <jansson.h>
#include <stdio.h>

struct profiler;

struct profiler *profiler_create(void);
void profiler_destroy(struct profiler *profiler); /* NULL is allowed */

/* Adds a launch named `name` with `flops` of work (0: not known), and takes over its event `end`. For work of
 * several commands on an in-order queue, `end` is the last command's and `begin` that of a marker before the first;
 * else `begin` is NULL. */
void profiler_add(struct profiler *profiler, const char *name, double flops, cl_event begin, cl_event end);

/* Reads the times of all events so far (they must be complete) and releases them. */
void profiler_collect(struct profiler *profiler);

/* A table: kernel, calls, total and mean time, share, GFLOP/s where known; sorted by total time. */
void profiler_print_table(struct profiler *profiler, FILE *file);

/* The same as an array of objects: name, calls, seconds, flops. The caller's to json_decref. */
json_t *profiler_report(struct profiler *profiler);

/* Forgets everything so far; all launches must be complete. */
void profiler_reset(struct profiler *profiler);

/* Writes Chrome's trace format (for chrome://tracing or ui.perfetto.dev), the first 200000 launches. 0 or -1. */
int profiler_write_trace(struct profiler *profiler, const char *path);
