#include "runtime/files/destination.h"
#include "runtime/system/error.h"
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_LINKS = 40 }; /* followed one after the other, as Linux does */

/* Puts what a link at `path` leads to, one step, in its place. */
static int read_link(struct path *path) {
    char target[PATH_MAX];
    const ssize_t length = readlink(path->text, target, sizeof target - 1);
    if (length < 0) {
        return error_set_errno("cannot read the link %s", path->text);
    }
    const char *slash = strrchr(path->text, '/');
    target[length] = '\0';
    *path = *target == '/' || slash == NULL ? path_of("%s", target)
                                            : path_of("%.*s/%s", (int)(slash - path->text), path->text, target);
    return 0;
}

int destination_follow(const char *path, struct path *followed) {
    *followed = path_of("%s", path);
    for (int steps = 0; steps <= MOST_LINKS; steps++) {
        for (size_t end = strlen(followed->text); end > 1 && followed->text[end - 1] == '/'; end--) {
            followed->text[end - 1] = '\0';
        }
        struct stat status;
        if (lstat(followed->text, &status) != 0 || !S_ISLNK(status.st_mode)) {
            return 0;
        }
        if (steps < MOST_LINKS && read_link(followed) != 0) {
            return -1;
        }
    }
    return error_set("cannot write %s: its symbolic links lead in a circle", path);
}

int destination_find(const char *path, struct destination *destination) {
    if (destination_follow(path, &destination->path) != 0) {
        return -1;
    }
    const char *text = destination->path.text, *slash = strrchr(text, '/');
    destination->name = slash != NULL ? slash + 1 : text;
    if (*destination->name == '\0' || strcmp(destination->name, ".") == 0 || strcmp(destination->name, "..") == 0) {
        return error_set("'%s' does not end in a name", text);
    }
    destination->parent = slash == NULL   ? path_of(".")
                          : slash == text ? path_of("/")
                                          : path_of("%.*s", (int)(slash - text), text);
    return 0;
}

int destination_check_file(const char *path) {
    struct stat status;
    return stat(path, &status) != 0 || S_ISREG(status.st_mode)
               ? 0
               : error_set("cannot write %s: it is %s", path,
                           S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
}
