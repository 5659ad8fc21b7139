/* TensorBoard event files: TFRecord framing (masked CRC-32C) around hand-encoded Event protocol buffers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct event_file;

struct event_scalar {
    const char *tag; /* e.g. "loss" */
    float value;
};

/* Creates "<folder>/events.out.tfevents.<seconds>.<host>.<pid>.<number>", exclusively, with the version record. */
int event_file_create(const char *folder, struct event_file **created);

/* Whether a file's name is of that form. */
bool event_file_is_name(const char *name);

/* Appends one event with these scalars and flushes, so that a live TensorBoard sees it. wall_time in seconds. */
int event_file_add(struct event_file *file, double wall_time, int64_t step, const struct event_scalar *scalars,
                   size_t count);

/* Says that a run goes on at `step` after an interruption: of older files in the folder TensorBoard then leaves out
 * what they have from there on. */
int event_file_restart(struct event_file *file, int64_t step);

/* Appends one event with the settings of a run, lines "name = value" whose values are JSON (others are no
 * settings): as a text with the tag "settings", and as the run's row in TensorBoard's table of hyperparameters. */
int event_file_add_settings(struct event_file *file, int64_t step, const char *lines);

int event_file_close(struct event_file *file);
