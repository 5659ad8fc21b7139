/* Where a path that is to be written leads. Users put a link where a folder or file is to be, and mean what it
 * leads to: all that is written goes there, and the link stays. */
#pragma once

#include "runtime/files/files.h"

struct destination {
    struct path path;   /* no link, and without slashes at its end */
    struct path parent; /* the folder that it is in */
    const char *name;   /* its last part, in `path` */
};

/* The path that `path` stands for when its last part is a symbolic link, or a chain of them, also one that leads to
 * nothing yet; else a copy. 0, or -1 with an error, where links lead in a circle for example; also below. */
int destination_follow(const char *path, struct path *followed);

/* The same in its parts. Names like "." or "/" are refused. */
int destination_find(const char *path, struct destination *destination);

/* A file may be made or replaced, but renaming over a device or a pipe would take it from its users: an error where
 * something else than a file is at `path`. */
int destination_check_file(const char *path);
