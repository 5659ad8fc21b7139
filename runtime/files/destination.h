/* The target of a path that will be written. If a user has put a symbolic link there, the link's target is written
 * and the link stays. */
#pragma once

#include "runtime/files/files.h"

struct destination {
    struct path path;   /* no link, and without slashes at its end */
    struct path parent; /* the folder that it is in */
    const char *name;   /* its last component, in `path` */
};

/* Follows symbolic links in the last component of `path`, also to a target that does not exist yet. Returns 0, or
 * -1 with an error text if links lead in a circle for example. */
int destination_follow(const char *path, struct path *followed);

/* The same, split into parent and name. Names like "." or "/" are refused. */
int destination_find(const char *path, struct destination *destination);

/* An error if something other than a regular file is at `path`: renaming over a device or a pipe would take it from
 * its users. */
int destination_check_file(const char *path);
