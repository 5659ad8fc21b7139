#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPORARY_PREFIX ".tmp-"

enum {
    WALK_DESCRIPTORS = 16, /* that nftw may keep open */
    MOST_ATTEMPTS = 10000, /* at a free temporary name */
    MOST_LINKS = 40,       /* followed one after the other, as Linux does */
    IDENTITY_DIGITS = 16,
};

char *files_path(const char *format, ...) {
    char *path = NULL;
    va_list arguments;
    va_start(arguments, format);
    const int length = vasprintf(&path, format, arguments);
    va_end(arguments);
    if (length < 0) {
        error_set("out of memory");
        return NULL;
    }
    return path;
}

bool files_exist(const char *path) {
    struct stat status;
    return stat(path, &status) == 0;
}

bool files_are_same(const char *a, const char *b) {
    struct stat first, second;
    return stat(a, &first) == 0 && stat(b, &second) == 0 && first.st_dev == second.st_dev &&
           first.st_ino == second.st_ino;
}

static bool is_folder(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* ---- symbolic links
 *
 * Users put a link where a folder or file is to be, and mean what it leads to: all that is written goes there, and
 * the link stays. */

/* What a link at `path` leads to, one step; NULL with an error. */
static char *read_link(const char *path) {
    char *target = malloc(PATH_MAX), *next = NULL;
    const ssize_t length = target == NULL ? -1 : readlink(path, target, PATH_MAX - 1);
    if (length < 0) {
        error_set_errno("cannot read the link %s", path);
    } else {
        const char *slash = strrchr(path, '/');
        target[length] = '\0';
        next = *target == '/' || slash == NULL ? files_path("%s", target)
                                               : files_path("%.*s/%s", (int)(slash - path), path, target);
    }
    free(target);
    return next;
}

char *files_follow_links(const char *path) {
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

static int make_folders(const char *path) {
    char *partial = files_path("%s", path);
    if (partial == NULL) {
        return -1;
    }
    int result = 0;
    for (char *at = partial; result == 0 && *at != '\0';) {
        at += strspn(at, "/");
        at += strcspn(at, "/");
        const char kept = *at;
        *at = '\0';
        const int reason = mkdir(partial, 0777) == 0 ? 0 : errno;
        if (reason != 0 && !is_folder(partial)) {
            errno = reason;
            result = error_set_errno("cannot make folder %s", partial);
        }
        *at = kept;
    }
    if (result == 0 && !is_folder(path)) {
        errno = ENOENT; /* the empty path */
        result = error_set_errno("cannot make folder '%s'", path);
    }
    free(partial);
    return result;
}

int files_make_folder(const char *path) {
    if (is_folder(path)) {
        return 0;
    }
    char *place = files_follow_links(path);
    const int result = place != NULL ? make_folders(place) : -1;
    free(place);
    return result;
}

int files_refuse_same(const char *output, const char *input) {
    return files_are_same(output, input)
               ? error_set("%s is an input of this command: writing the results there would destroy it", output)
               : 0;
}

int files_refuse_members(const char *folder, const char *const *names, const char *path) {
    int result = 0;
    for (; *names != NULL && result == 0; names++) {
        char *member = files_path("%s/%s", folder, *names);
        result = member != NULL ? files_refuse_same(member, path) : -1;
        free(member);
    }
    return result;
}

/* ---- descriptors */

ssize_t files_read_all(int descriptor, void *data, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        const ssize_t got = read(descriptor, (char *)data + done, bytes - done);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return -1;
        }
        if (got == 0) {
            break;
        }
        done += (size_t)got;
    }
    return (ssize_t)done;
}

int files_write_all(int descriptor, const void *data, size_t bytes) {
    const char *at = data;
    while (bytes > 0) {
        const ssize_t put = write(descriptor, at, bytes);
        if (put < 0 && errno == EINTR) {
            continue;
        }
        if (put < 0) {
            return -1;
        }
        at += put;
        bytes -= (size_t)put;
    }
    return 0;
}

/* ---- reading */

static int read_descriptor(int descriptor, const char *path, size_t limit, char **text, size_t *bytes) {
    struct stat status;
    if (fstat(descriptor, &status) != 0) {
        return error_set_errno("cannot read %s", path);
    }
    if (!S_ISREG(status.st_mode)) {
        return error_set("cannot read %s: it is %s", path,
                         S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
    }
    if ((uintmax_t)status.st_size > limit) {
        return error_set("cannot read %s: it has %jd bytes, more than the %zu that are allowed", path,
                         (intmax_t)status.st_size, limit);
    }
    const size_t size = (size_t)status.st_size;
    char *data = malloc(size + 1);
    if (data == NULL) {
        return error_set("cannot read %s: out of memory", path);
    }
    const ssize_t got = files_read_all(descriptor, data, size);
    if (got < (ssize_t)size) {
        if (got < 0) {
            error_set_errno("cannot read %s", path);
        } else {
            error_set("%s became shorter while it was read", path);
        }
        free(data);
        return -1;
    }
    data[got] = '\0';
    *text = data;
    *bytes = (size_t)got;
    return 0;
}

/* What comes out of a pipe until its end, NUL-terminated. */
static int read_stream(int descriptor, const char *path, size_t limit, char **text, size_t *bytes) {
    char *data = malloc(limit + 1);
    if (data == NULL) {
        return error_set("cannot read %s: out of memory", path);
    }
    const ssize_t got = files_read_all(descriptor, data, limit + 1);
    if (got < 0 || (size_t)got > limit) {
        if (got < 0) {
            error_set_errno("cannot read %s", path);
        } else {
            error_set("cannot read %s: it has more than the %zu bytes that are allowed", path, limit);
        }
        free(data);
        return -1;
    }
    data[got] = '\0';
    *text = data;
    *bytes = (size_t)got;
    return 0;
}

int files_read_stream(const char *path, size_t limit, char **text, size_t *bytes) {
    struct stat status;
    *text = NULL;
    *bytes = 0;
    if (stat(path, &status) != 0 || S_ISREG(status.st_mode) || S_ISDIR(status.st_mode)) {
        return files_read(path, limit, text, bytes);
    }
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) {
        return error_set_errno("cannot open %s", path);
    }
    const int result = read_stream(descriptor, path, limit, text, bytes);
    close(descriptor);
    return result;
}

int files_read(const char *path, size_t limit, char **text, size_t *bytes) {
    *text = NULL;
    *bytes = 0;
    /* O_NONBLOCK: a named pipe is refused, not waited for. */
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) {
        return error_set_errno("cannot open %s", path);
    }
    const int result = read_descriptor(descriptor, path, limit, text, bytes);
    close(descriptor);
    return result;
}

/* ---- temporary names
 *
 * "<parent>/.tmp-<name>-<identity>-<process>-<number>": who made a leftover can be told from its name. The identity
 * is that of a space of process numbers: a boot of a host, or a container. Only there can it be asked whether the
 * process is still alive, and only what such a dead process left is ever removed. */

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes) {
    for (const unsigned char *at = data, *end = at + bytes; at < end; at++) {
        hash = (hash ^ *at) * 0x100000001B3u; /* FNV-1a */
    }
    return hash;
}

static uint64_t own_identity(void) {
    char host[256] = "", boot[64] = "";
    struct stat space = {0};
    gethostname(host, sizeof host - 1);
    const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (files_read_all(file, boot, sizeof boot - 1) < 0) {
            boot[0] = '\0';
        }
        close(file);
    }
    uint64_t hash = hash_bytes(0xCBF29CE484222325u, host, strlen(host));
    hash = hash_bytes(hash, boot, strlen(boot));
    if (stat("/proc/self/ns/pid", &space) == 0) {
        hash = hash_bytes(hash, &space.st_dev, sizeof space.st_dev);
        hash = hash_bytes(hash, &space.st_ino, sizeof space.st_ino);
    }
    return hash;
}

/* Takes "-" and digits of this kind off the end of [name, end): where they begin, NULL if there are none. */
static const char *take_number(const char *name, const char *end, const char *digits) {
    const char *at = end;
    while (at > name && strchr(digits, at[-1]) != NULL) {
        at--;
    }
    return at < end && at > name && at[-1] == '-' ? at - 1 : NULL;
}

/* Whether a name is one of this identity's, made by make_temporary; *process is the one that made it. */
static bool is_own_name(const char *name, uint64_t identity, long *process) {
    static const char decimal[] = "0123456789", hexadecimal[] = "0123456789abcdef";
    char own[IDENTITY_DIGITS + 1];
    if (strncmp(name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) != 0) {
        return false;
    }
    const char *first = name + strlen(TEMPORARY_PREFIX), *end = name + strlen(name);
    const char *number = take_number(first, end, decimal);
    const char *owner = number != NULL ? take_number(first, number, decimal) : NULL;
    const char *space = owner != NULL ? take_number(first, owner, hexadecimal) : NULL;
    if (space == NULL || space == first || owner - space - 1 != IDENTITY_DIGITS) {
        return false;
    }
    snprintf(own, sizeof own, "%0*" PRIx64, IDENTITY_DIGITS, identity);
    *process = strtol(owner + 1, NULL, 10);
    return strncmp(space + 1, own, IDENTITY_DIGITS) == 0;
}

/* The folder that `path` is in, and its last component; both heap memory. Names like "." or "/" are refused. */
static int split_path(const char *path, char **parent, char **name) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') {
        end--;
    }
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/') {
        begin--;
    }
    size_t parent_end = begin;
    while (parent_end > 1 && path[parent_end - 1] == '/') {
        parent_end--;
    }
    *parent = parent_end == 0 ? files_path(".") : files_path("%.*s", (int)parent_end, path);
    *name = files_path("%.*s", (int)(end - begin), path + begin);
    if (*parent != NULL && *name != NULL) {
        if (**name != '\0' && strcmp(*name, "/") != 0 && strcmp(*name, ".") != 0 && strcmp(*name, "..") != 0) {
            return 0;
        }
        error_set("'%s' does not end in a name", path);
    }
    free(*parent);
    free(*name);
    return -1;
}

/* A file may be made or replaced, but renaming over a device or a pipe would take it from its users. */
static int check_replaceable(const char *path) {
    struct stat status;
    if (stat(path, &status) != 0 || S_ISREG(status.st_mode)) {
        return 0;
    }
    return error_set("cannot write %s: it is %s", path,
                     S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
}

/* Creates a temporary file (*descriptor is set) or folder (descriptor is NULL) to stand for `path` later. mkdir and
 * O_EXCL instead of mkstemp, for permissions as the user's umask wants them. */
static char *make_temporary(const char *path, int *descriptor) {
    static unsigned number; /* threads that meet in it only try once more */
    char *parent, *name;
    if ((descriptor != NULL && check_replaceable(path) != 0) || split_path(path, &parent, &name) != 0) {
        return NULL;
    }
    char *made = NULL;
    const uint64_t identity = own_identity();
    for (int attempt = 0; attempt < MOST_ATTEMPTS && made == NULL; attempt++) {
        char *wanted = files_path("%s/" TEMPORARY_PREFIX "%s-%0*" PRIx64 "-%ld-%u", parent, name, IDENTITY_DIGITS,
                                  identity, (long)getpid(), __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED));
        if (wanted == NULL) {
            break;
        }
        const int result = descriptor != NULL
                               ? (*descriptor = open(wanted, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666))
                               : mkdir(wanted, 0777);
        if (result >= 0) {
            made = wanted;
            break;
        }
        const int reason = errno;
        free(wanted);
        if (reason != EEXIST) {
            errno = reason;
            error_set_errno("cannot write %s: cannot make a temporary %s in %s", path,
                            descriptor != NULL ? "file" : "folder", parent);
            break;
        }
        error_set("cannot write %s: %s is full of temporary files", path, parent);
    }
    free(parent);
    free(name);
    return made;
}

/* ---- syncing */

static int sync_path(const char *path, int flags) {
    const int descriptor = open(path, O_RDONLY | O_CLOEXEC | flags);
    if (descriptor < 0) {
        return error_set_errno("cannot open %s", path);
    }
    int result = 0;
    /* Some file systems cannot sync folders and say EINVAL. */
    if (fsync(descriptor) != 0 && errno != EINVAL) {
        result = error_set_errno("cannot write %s to disk", path);
    }
    close(descriptor);
    return result;
}

static int sync_parent(const char *path) {
    char *parent, *name;
    if (split_path(path, &parent, &name) != 0) {
        return -1;
    }
    const int result = sync_path(parent, O_DIRECTORY);
    free(parent);
    free(name);
    return result;
}

/* A visitor that has set the error text ends the walk with this; nftw's own failures are -1. */
#define VISIT_FAILED 1

/* Visits everything in a folder, the folder itself last. An error text of before survives success. */
static int walk(const char *path, int (*visit)(const char *, const struct stat *, int, struct FTW *)) {
    const int result = nftw(path, visit, WALK_DESCRIPTORS, FTW_DEPTH | FTW_PHYS);
    if (result == -1) {
        return error_set_errno("cannot go through %s", path);
    }
    return result == 0 ? 0 : -1;
}

static int sync_visited(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)place;
    const int failed = S_ISREG(status->st_mode) ? sync_path(path, O_NOFOLLOW)
                       : kind == FTW_DP         ? sync_path(path, O_DIRECTORY | O_NOFOLLOW)
                                                : 0;
    return failed ? VISIT_FAILED : 0;
}

static int sync_folder(const char *path) {
    return walk(path, sync_visited);
}

/* ---- writing */

static int write_synced(int descriptor, const char *path, const void *data, size_t bytes) {
    if (files_write_all(descriptor, data, bytes) != 0) {
        return error_set_errno("cannot write %s", path);
    }
    return fsync(descriptor) == 0 ? 0 : error_set_errno("cannot write %s to disk", path);
}

/* Makes the temporary file for `target`, which is no link, and fills it; NULL with an error. */
static char *write_temporary(const char *target, const void *data, size_t bytes) {
    int descriptor = -1;
    char *temporary = make_temporary(target, &descriptor);
    if (temporary == NULL) {
        return NULL;
    }
    int result = write_synced(descriptor, target, data, bytes);
    if (close(descriptor) != 0 && result == 0) {
        result = error_set_errno("cannot write %s", target);
    }
    if (result != 0) {
        files_replace_abandon(temporary);
        return NULL;
    }
    return temporary;
}

/* As files_replace_commit, where `target` is no link. */
static int replace(const char *target, char *temporary) {
    if (rename(temporary, target) != 0) {
        error_set_errno("cannot move the new %s into place", target);
        files_replace_abandon(temporary);
        return -1;
    }
    free(temporary);
    return sync_parent(target);
}

int files_write(const char *path, const void *data, size_t bytes) {
    char *target = files_follow_links(path);
    char *temporary = target != NULL ? write_temporary(target, data, bytes) : NULL;
    const int result = temporary != NULL ? replace(target, temporary) : -1;
    free(target);
    return result;
}

int files_replace_begin(const char *path, char **temporary) {
    int descriptor = -1;
    char *parent, *name, *target = files_follow_links(path);
    *temporary = NULL;
    if (target != NULL && split_path(target, &parent, &name) == 0) {
        files_stage_clean(parent);
        *temporary = make_temporary(target, &descriptor);
        free(parent);
        free(name);
    }
    free(target);
    if (*temporary == NULL) {
        return -1;
    }
    close(descriptor);
    return 0;
}

int files_replace_commit(const char *path, char *temporary) {
    char *target = files_follow_links(path);
    if (target == NULL) {
        files_replace_abandon(temporary);
        return -1;
    }
    const int result = replace(target, temporary);
    free(target);
    return result;
}

void files_replace_abandon(char *temporary) {
    unlink(temporary);
    free(temporary);
}

int files_flush(FILE *stream, const char *name) {
    /* After an earlier failure nothing may be left to flush: errno is then still that of the failure. */
    return fflush(stream) != 0 || ferror(stream) ? error_set_errno("cannot write %s", name) : 0;
}

/* ---- staged folders */

int files_stage_begin(const char *path, char **staging) {
    char *parent, *name, *target = files_follow_links(path);
    *staging = NULL;
    if (target != NULL && split_path(target, &parent, &name) == 0) {
        if (files_make_folder(parent) == 0) {
            files_stage_clean(parent);
            *staging = make_temporary(target, NULL);
        }
        free(parent);
        free(name);
    }
    free(target);
    return *staging != NULL ? 0 : -1;
}

/* Replaces folder `path` by `staging`, which afterwards is the old folder's name. */
static int exchange_folders(const char *path, const char *staging) {
    if (renameat2(AT_FDCWD, staging, AT_FDCWD, path, RENAME_EXCHANGE) == 0) {
        return 0;
    }
    if (errno != EINVAL && errno != ENOSYS) {
        return error_set_errno("cannot move the new %s into place", path);
    }
    /* A file system that cannot exchange: for a moment the folder is not there. */
    char *aside = make_temporary(path, NULL);
    if (aside == NULL) {
        return -1;
    }
    int result = 0;
    if (rename(path, aside) != 0) { /* replaces the empty folder */
        result = error_set_errno("cannot move the old %s aside", path);
        rmdir(aside);
    } else if (rename(staging, path) != 0) {
        result = error_set_errno("cannot move the new %s into place", path);
        rename(aside, path);
    } else if (rename(aside, staging) != 0) {
        result = error_set_errno("cannot move the old %s aside", path);
    }
    free(aside);
    return result;
}

static int move_folder(const char *path, const char *staging) {
    struct stat status;
    if (lstat(path, &status) != 0) {
        return rename(staging, path) == 0 ? 0 : error_set_errno("cannot move the new %s into place", path);
    }
    if (!S_ISDIR(status.st_mode)) {
        return error_set("there is something else than a folder of this name");
    }
    return exchange_folders(path, staging) == 0 ? files_remove_folder(staging) : -1;
}

int files_stage_commit(const char *path, char *staging) {
    char *target = files_follow_links(path);
    int result = target == NULL || sync_folder(staging) != 0 || move_folder(target, staging) != 0 ? -1 : 0;
    if (result != 0) {
        error_prefix("cannot write %s", path);
        files_stage_abandon(staging);
    } else {
        free(staging);
        result = sync_parent(target);
    }
    free(target);
    return result;
}

/* Both paths of a name; true if it still has to be moved. */
static bool move_paths(const char *folder, const char *from, const char *name, char **source, char **target) {
    *source = files_path("%s/%s", from, name);
    *target = files_path("%s/%s", folder, name);
    return *source && *target && files_exist(*source);
}

/* Whether all names can be moved, or have been. */
static int check_moves(const char *folder, const char *from, const char *const *names) {
    int result = 0;
    for (; result == 0 && *names; names++) {
        char *source, *target;
        const bool waits = move_paths(folder, from, *names, &source, &target);
        result = !source || !target ? -1 : check_replaceable(target);
        if (result == 0 && !waits && !files_exist(target)) {
            errno = ENOENT;
            result = error_set_errno("cannot move the new %s into place", target);
        }
        free(source);
        free(target);
    }
    return result;
}

/* Makes the folder incomplete until the last name has moved. */
static int remove_last(const char *folder, const char *from, const char *const *names) {
    while (names[0] && names[1]) {
        names++;
    }
    char *source, *target;
    int result = 0;
    if (move_paths(folder, from, *names, &source, &target) && unlink(target) != 0 && errno != ENOENT) {
        result = error_set_errno("cannot remove the old %s", target);
    }
    free(source);
    free(target);
    return result;
}

int files_move_into(const char *folder, const char *from, const char *const *names) {
    int result = check_moves(folder, from, names) || sync_folder(from) || remove_last(folder, from, names) ? -1 : 0;
    for (; result == 0 && *names; names++) {
        char *source, *target;
        if (move_paths(folder, from, *names, &source, &target) && rename(source, target) != 0) {
            result = error_set_errno("cannot move the new %s into place", target);
        }
        free(source);
        free(target);
    }
    return result == 0 ? sync_path(folder, O_DIRECTORY) : -1;
}

void files_stage_abandon(char *staging) {
    if (staging != NULL) {
        char *kept = error_keep(); /* a removal that fails sets the message */
        files_remove_folder(staging);
        error_restore(kept);
        free(staging);
    }
}

/* Whether a temporary name was left behind by a process of this user that ran here and runs no more. */
static bool is_leftover(const char *path, const char *name, uint64_t identity) {
    struct stat status;
    long process;
    return is_own_name(name, identity, &process) && process > 0 && process != (long)getpid() &&
           lstat(path, &status) == 0 && status.st_uid == geteuid() && kill((pid_t)process, 0) != 0 &&
           errno == ESRCH;
}

void files_stage_clean(const char *parent) {
    DIR *folder = opendir(parent);
    if (folder == NULL) {
        return;
    }
    const uint64_t identity = own_identity();
    const struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) {
        char *path = files_path("%s/%s", parent, entry->d_name);
        if (path != NULL && is_leftover(path, entry->d_name, identity) && unlink(path) != 0) {
            files_remove_folder(path);
        }
        free(path);
    }
    closedir(folder);
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

int files_remove_folder(const char *path) {
    struct stat status;
    if (lstat(path, &status) != 0) {
        return error_set_errno("cannot remove %s", path);
    }
    if (!S_ISDIR(status.st_mode)) {
        return error_set("cannot remove %s: it is not a folder", path);
    }
    return walk(path, remove_visited);
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
