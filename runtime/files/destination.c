#include "runtime/files/destination.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_LINKS = 40 }; /* followed one after the other, as Linux does */

/* What a link at `path` leads to, one step; NULL with an error. */
static char *read_link(const char *path) {
    char target[PATH_MAX];
    const ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0) {
        error_set_errno("cannot read the link %s", path);
        return NULL;
    }
    const char *slash = strrchr(path, '/');
    target[length] = '\0';
    return *target == '/' || slash == NULL ? files_path("%s", target)
                                           : files_path("%.*s/%s", (int)(slash - path), path, target);
}

char *destination_follow(const char *path) {
    char *at = files_path("%s", path);
    for (int steps = 0; at != NULL; steps++) {
        for (size_t end = strlen(at); end > 1 && at[end - 1] == '/'; end--) {
            at[end - 1] = '\0';
        }
        struct stat status;
        if (lstat(at, &status) != 0 || !S_ISLNK(status.st_mode)) {
            return at;
        }
        char *next = steps < MOST_LINKS ? read_link(at) : NULL;
        if (steps == MOST_LINKS) {
            error_set("cannot write %s: its symbolic links lead in a circle", path);
        }
        free(at);
        at = next;
    }
    return NULL;
}

int destination_find(const char *path, struct destination *destination) {
    *destination = (struct destination){.path = destination_follow(path)};
    if (destination->path == NULL) {
        return -1;
    }
    const char *slash = strrchr(destination->path, '/');
    const int before = slash == NULL ? 0 : slash == destination->path ? 1 : (int)(slash - destination->path);
    destination->name = slash != NULL ? slash + 1 : destination->path;
    if (*destination->name == '\0' || strcmp(destination->name, ".") == 0 || strcmp(destination->name, "..") == 0) {
        return error_set("'%s' does not end in a name", destination->path);
    }
    destination->parent = before > 0 ? files_path("%.*s", before, destination->path) : files_path(".");
    return destination->parent != NULL ? 0 : -1;
}

void destination_free(struct destination *destination) {
    free(destination->path);
    free(destination->parent);
}

int destination_check_file(const char *path) {
    struct stat status;
    return stat(path, &status) != 0 || S_ISREG(status.st_mode)
               ? 0
               : error_set("cannot write %s: it is %s", path,
                           S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
}
