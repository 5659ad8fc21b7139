#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct path path_of(const char *format, ...) {
    struct path path;
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(path.text, sizeof path.text, format, arguments);
    va_end(arguments);
    if (length < 0 || (size_t)length >= sizeof path.text) {
        memset(path.text, 'x', sizeof path.text - 1); /* no part of it is a shorter path of something else */
        path.text[sizeof path.text - 1] = '\0';
    }
    return path;
}

bool files_exist(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 || (errno != ENOENT && errno != ENOTDIR && errno != ENAMETOOLONG);
}

struct path files_find(const char *path) {
    char program[sizeof(struct path)];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    char *end = program + (length > 0 ? length : 0);
    if (files_exist(path) || *path == '/' || length <= 0) {
        return path_of("%s", path);
    }
    for (int parts = 0; end > program && parts < 2; end--) { /* takes off /bin/NAME */
        parts += end[-1] == '/';
    }
    *end = '\0';
    const struct path installed = path_of("%s/share/hctrain/%s", program, path);
    return files_exist(installed.text) ? installed : path_of("%s", path);
}

bool files_is_link(const char *path) {
    struct stat status;
    return lstat(path, &status) == 0 && S_ISLNK(status.st_mode);
}

bool files_are_same(const char *a, const char *b) {
    struct stat first, second;
    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

int files_refuse_same(const char *output, const char *input) {
    return files_are_same(output, input)
               ? error_set("%s is an input of this command: writing the results there would destroy it", output)
               : 0;
}

int files_refuse_members(const char *folder, const char *const *names, const char *path) {
    for (; *names != NULL; names++) {
        if (files_refuse_same(path_of("%s/%s", folder, *names).text, path) != 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- descriptors */

ssize_t files_read_all(int descriptor, void *data, size_t bytes, int64_t offset) {
    size_t done = 0;
    while (done < bytes) {
        char *at = (char *)data + done;
        const size_t left = bytes - done;
        const ssize_t got =
            offset < 0 ? read(descriptor, at, left) : pread(descriptor, at, left, (off_t)offset + (off_t)done);
        if (got < 0 && errno != EINTR) {
            return -1;
        }
        if (got == 0) {
            break;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return (ssize_t)done;
}

int files_write_all(int descriptor, const void *data, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t put = write(descriptor, (const char *)data + done, bytes - done);
        if (put < 0 && errno != EINTR) {
            return -1;
        }
        done += put > 0 ? (size_t)put : 0;
    }
    return 0;
}

int files_flush(FILE *stream, const char *name) {
    /* After an earlier failure nothing may be left to flush: errno is then still that of the failure. */
    return fflush(stream) != 0 || ferror(stream) ? error_set_errno("cannot write %s", name) : 0;
}

int files_sync(const char *path) {
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        return error_set_errno("cannot open %s", path);
    }
    /* Some file systems cannot sync folders and say EINVAL. */
    const int result =
        fsync(descriptor) == 0 || errno == EINVAL ? 0 : error_set_errno("cannot write %s to disk", path);
    close(descriptor);
    return result;
}

/* ---- reading */

int files_fail_open(const char *path, const char *name) {
    const int error = errno;
    char target[sizeof(struct path)];
    const ssize_t length = error == ENOENT ? readlink(path, target, sizeof target - 1) : -1;
    if (length > 0) {
        target[length] = '\0';
        return error_set("cannot open %s: it is a link to %s, which does not exist", name, target);
    }
    errno = error;
    return error_set_errno("cannot open %s", name);
}

int files_open(const char *path, const char *name, uint64_t *bytes) {
    struct stat status;
    /* O_NONBLOCK: a named pipe is refused, not waited for. */
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        return files_fail_open(path, name);
    }
    if (fstat(descriptor, &status) != 0) {
        error_set_errno("cannot read %s", name);
    } else if (!S_ISREG(status.st_mode)) {
        error_set("cannot read %s: it is %s", name, S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
    } else {
        *bytes = (uint64_t)status.st_size;
        return descriptor;
    }
    close(descriptor);
    return -1;
}

/* Reads all bytes, which must be at least `least` and at most `limit`, and adds a NUL. Reads no more than `most`.
 * Closes the descriptor. */
static int take(int descriptor, const char *path, size_t least, size_t most, size_t limit, char **text,
                size_t *bytes) {
    char *data = memory_allocate(most + 1, 1);
    const ssize_t got = files_read_all(descriptor, data, most, -1);
    if (got < 0) {
        error_set_errno("cannot read %s", path);
    } else if ((size_t)got < least) {
        error_set("%s became shorter while it was read", path);
    } else if ((size_t)got > limit) {
        error_set("cannot read %s: it has more than the %zu bytes that are allowed", path, limit);
    } else {
        close(descriptor);
        data[got] = '\0';
        *text = data;
        *bytes = (size_t)got;
        return 0;
    }
    close(descriptor);
    free(data);
    return -1;
}

int files_read(const char *path, size_t limit, char **text, size_t *bytes) {
    uint64_t size = 0;
    *text = NULL;
    *bytes = 0;
    const int descriptor = files_open(path, path, &size);
    if (descriptor < 0) {
        return -1;
    }
    if (size > limit) {
        close(descriptor);
        return error_set("cannot read %s: it has %" PRIu64 " bytes, more than the %zu that are allowed", path, size,
                         limit);
    }
    return take(descriptor, path, (size_t)size, (size_t)size, limit, text, bytes);
}

int files_read_stream(const char *path, size_t limit, char **text, size_t *bytes) {
    *text = NULL;
    *bytes = 0;
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    return descriptor < 0 ? error_set_errno("cannot open %s", path)
                          : take(descriptor, path, 0, limit + 1, limit, text, bytes);
}

/* ---- folders */

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
