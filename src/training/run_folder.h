/* A run directory: whose it is, what it holds, and where it is, also after it was renamed. */
#pragma once

#include "runtime/files/files.h"

/* Files of a run beside its checkpoints. */
#define RUN_LOG_METRICS    "metrics.jsonl"
#define RUN_LOG_STATISTICS "h_statistics.jsonl"
#define RUN_SETTINGS       "settings.conf"
#define RUN_TRACE          "trace.json"

/* How the line of settings.conf begins that has the device's name. */
#define RUN_DEVICE_COMMENT "# device: "

/* Begin with RUN_FOLDER_CLOSED. */
struct run_folder {
    struct path given; /* as the user named it */
    struct path path;  /* to work with: leads to the opened folder, whatever happens to its name */
    int descriptor;    /* of the folder, with its lock; -1: not open */
};

#define RUN_FOLDER_CLOSED {.descriptor = -1}

/* Opens the existing folder and takes it for this process until it is closed. An error if another process has it.
 */
int run_folder_open(struct run_folder *folder, const char *path);
void run_folder_close(struct run_folder *folder);

/* Where the folder is now, human-readable: as the user named it, or as it has been renamed; "" if it is not open.
 * Valid until the next call. */
const char *run_folder_name(const struct run_folder *folder);

/* Puts that name into the error text in place of `path`. */
void run_folder_explain(const struct run_folder *folder);

/* An error if a file or folder that a run writes is a symbolic link; numbered checkpoints may be: they are only
 * read. With is_free also an error if the folder holds what an earlier run left: checkpoints, or records that are
 * not empty. */
int run_folder_check(const char *path, bool is_free);

/* Removes the files of checkpoints, records and event files, and nothing else: where something else is in a
 * checkpoint's folder, that stays. Where what has a checkpoint's name is none, that is an error and nothing is
 * removed. */
int run_folder_clear(const char *path);
