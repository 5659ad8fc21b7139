#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WALK_DESCRIPTORS = 16 }; /* that nftw may keep open */

/* A visitor that has set the error text ends the walk with this; nftw's own failures are -1. */
#define VISIT_FAILED 1

/* Visits a file, or everything in a folder, the folder itself last. An error text of before survives success. */
static int walk(const char *path, int (*visit)(const char *, const struct stat *, int, struct FTW *)) {
    const int result = nftw(path, visit, WALK_DESCRIPTORS, FTW_DEPTH | FTW_PHYS);
    if (result == -1) {
        return error_set_errno("cannot go through %s", path);
    }
    return result == 0 ? 0 : -1;
}

static int sync_visited(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)place;
    return (S_ISREG(status->st_mode) || kind == FTW_DP) && files_sync(path) != 0 ? VISIT_FAILED : 0;
}

int files_sync_all(const char *path) {
    return walk(path, sync_visited);
}

static int remove_visited(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)status;
    (void)kind;
    (void)place;
    if (remove(path) != 0) {
        error_set_errno("cannot remove %s", path);
        return VISIT_FAILED;
    }
    return 0;
}

int files_remove(const char *path) {
    return walk(path, remove_visited);
}

int files_remove_folder(const char *path) {
    struct stat status;
    if (lstat(path, &status) != 0) {
        return error_set_errno("cannot remove %s", path);
    }
    if (!S_ISDIR(status.st_mode)) {
        return error_set("cannot remove %s: it is not a folder", path);
    }
    return files_remove(path);
}

int files_each(const char *folder, int (*visit)(void *context, const char *name), void *context) {
    DIR *stream = opendir(folder);
    int result = stream != NULL ? 0 : error_set_errno("cannot read the folder %s", folder);
    while (result == 0) {
        errno = 0; /* readdir tells of the end and of a failure by the same result */
        const struct dirent *entry = readdir(stream);
        if (entry == NULL) {
            result = errno == 0 ? 0 : error_set_errno("cannot read the folder %s", folder);
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
            result = visit(context, entry->d_name);
        }
    }
    if (stream != NULL) {
        closedir(stream);
    }
    return result;
}

int files_lock_folder(const char *path, int *descriptor) {
    *descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*descriptor < 0) {
        return error_set_errno("cannot open the folder %s", path);
    }
    if (flock(*descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        close(*descriptor);
        *descriptor = -1;
        return error_set("another process is writing to %s: wait for it, stop it, or choose another folder", path);
    }
    return 0;
}
