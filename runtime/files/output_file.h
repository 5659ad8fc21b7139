/* Text written to a file that appears when it is complete, and not at all otherwise. Functions return 0 or -1 with
 * an error text that names the path. */
#pragma once

#include <stdio.h>

/* Begin with all zero. */
struct output_file {
    char *path, *temporary; /* owned; NULL where it is standard output */
    FILE *stream;           /* to write to; NULL: not open */
};

/* path: "-" is standard output, of which nothing is held back. Anything but a regular file at `path` is refused. */
int output_file_open(struct output_file *file, const char *path);

/* Syncs and moves into place. Fails also when an earlier write did. Closes in any case; without effect if not open.
 */
int output_file_commit(struct output_file *file);

/* Closes and removes what was written; leaves the error text as it is. */
void output_file_abandon(struct output_file *file);
