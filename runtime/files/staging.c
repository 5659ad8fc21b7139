/* Files and folders under temporary names, to be moved into place when they are whole. The name is
 * ".tmp-<name>-<identity>-<process>-<number>", so that it tells who made a leftover. The identity is that of a
 * space of process numbers: a boot of a host, or a container. Only there can it be asked whether the process is
 * still alive, and only what such a dead process left is ever removed, by files_stage_clean. */
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include "runtime/system/memory.h"
#include "runtime/system/random.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_LINKS = 40 }; /* followed one after the other, as Linux does */

/* ---- what a path leads to */

/* The place that is written for a path. If the path is a symbolic link, the link's target is written and the link
 * stays. */
struct destination {
    struct path path;   /* no link, and without slashes at its end */
    struct path parent; /* the folder that it is in */
    const char *name;   /* its last component, in `path` */
};

/* Follows symbolic links in the last component of `path`, also to a target that does not exist yet. Takes slashes
 * off its end. */
static int follow(const char *path, struct path *followed) {
    char *text = followed->text, target[PATH_MAX];
    *followed = path_of("%s", path);
    for (int steps = 0; steps <= MOST_LINKS; steps++) {
        for (size_t end = strlen(text); end > 1 && text[end - 1] == '/'; end--) {
            text[end - 1] = '\0';
        }
        if (!files_is_link(text)) {
            return 0;
        }
        const ssize_t length = readlink(text, target, sizeof target - 1);
        if (length < 0) {
            return error_set_errno("cannot read the link %s", text);
        }
        target[length] = '\0';
        const char *slash = *target != '/' ? strrchr(text, '/') : NULL;
        *followed = path_of("%.*s%s", slash ? (int)(slash + 1 - text) : 0, text, target);
    }
    return error_set("cannot write %s: its symbolic links lead in a circle", path);
}

/* Follows links, and splits the path into parent and name. Refuses names like "." or "/". */
static int find_destination(const char *path, struct destination *destination) {
    if (follow(path, &destination->path) != 0) {
        return -1;
    }
    const char *text = destination->path.text, *slash = strrchr(text, '/');
    destination->name = slash != NULL ? slash + 1 : text;
    if (*destination->name == '\0' || strcmp(destination->name, ".") == 0 || strcmp(destination->name, "..") == 0) {
        return error_set("'%s' does not end in a name", text);
    }
    struct path copy = destination->path;
    destination->parent = path_of("%s", dirname(copy.text));
    return 0;
}

/* An error if something other than a regular file is at `path`: renaming over a device or a pipe would take it from
 * its users. */
static int check_file(const char *path) {
    struct stat status;
    if (stat(path, &status) != 0 || S_ISREG(status.st_mode)) {
        return 0;
    }
    return error_set("cannot write %s: it is %s", path,
                     S_ISDIR(status.st_mode) ? "a folder" : "not a regular file");
}

static bool is_folder(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

int files_make_folder(const char *path) {
    struct path place;
    if (is_folder(path)) {
        return 0;
    }
    if (follow(path, &place) != 0) {
        return -1;
    }
    for (char *end = place.text; end != NULL;) {
        end = *end != '\0' ? strchr(end + 1, '/') : NULL;
        if (end != NULL) {
            *end = '\0';
        }
        const int reason = mkdir(place.text, 0777) == 0 ? 0 : errno;
        if (reason != 0 && !is_folder(place.text)) {
            errno = reason;
            return error_set_errno("cannot make folder %s", place.text);
        }
        if (end != NULL) {
            *end = '/';
        }
    }
    return 0;
}

/* ---- temporary names */

enum { IDENTITY_BYTES = 17 };

/* The identity of this space of process numbers, in hexadecimal digits. */
static void find_identity(char identity[IDENTITY_BYTES]) {
    char host[256] = "", *boot = host_boot(), all[512];
    struct stat space = {0};
    gethostname(host, sizeof host - 1);
    stat("/proc/self/ns/pid", &space);
    snprintf(all, sizeof all, "%s %s %ju %ju", host, boot, (uintmax_t)space.st_dev, (uintmax_t)space.st_ino);
    snprintf(identity, IDENTITY_BYTES, "%016" PRIx64, random_key(0, all));
    free(boot);
}

/* Creates an empty temporary file or folder beside its destination, with permissions by the umask. Returns its path
 * as a heap string; NULL with an error text. */
static char *make_temporary(const struct destination *destination, bool folder) {
    static unsigned number;
    char identity[IDENTITY_BYTES];
    if (!folder && check_file(destination->path.text) != 0) {
        return NULL;
    }
    find_identity(identity);
    struct path path;
    int made;
    do {
        path = path_of("%s/.tmp-%s-%s-%ld-%u", destination->parent.text, destination->name, identity,
                       (long)getpid(), __atomic_fetch_add(&number, 1, __ATOMIC_RELAXED));
        made = folder ? mkdir(path.text, 0777) : open(path.text, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (made < 0 && errno == EEXIST);
    if (made < 0) {
        error_set_errno("cannot write %s: cannot make a temporary %s in %s", destination->path.text,
                        folder ? "folder" : "file", destination->parent.text);
        return NULL;
    }
    if (!folder) {
        close(made);
    }
    return memory_string(path.text);
}

/* Removes what a process of this user, and of this space of process numbers, has left that no longer runs. */
static int clean_entry(void *parent, const char *name) {
    const struct path path = path_of("%s/%s", (const char *)parent, name);
    char identity[IDENTITY_BYTES], mark[IDENTITY_BYTES + 2];
    long process = 0;
    int used = 0;
    struct stat status;
    if (strncmp(name, ".tmp-", 5) != 0) {
        return 0;
    }
    find_identity(identity);
    snprintf(mark, sizeof mark, "-%s-", identity);
    const char *found = strstr(name + 5, mark), *end = found != NULL ? found + strlen(mark) : "";
    if (sscanf(end, "%9ld-%*u%n", &process, &used) == 1 && used > 0 && end[used] == '\0' && process > 0 &&
        process != (long)getpid() && lstat(path.text, &status) == 0 && status.st_uid == geteuid() &&
        kill((pid_t)process, 0) != 0 && errno == ESRCH) {
        files_remove(path.text);
    }
    return 0;
}

void files_stage_clean(const char *parent) {
    char *kept = error_keep();
    files_each(parent, clean_entry, (void *)(uintptr_t)parent);
    error_restore(kept);
}

/* ---- moving into place */

/* Renames a folder to a temporary name, which it returns as a heap string; NULL with an error text. */
static char *move_aside(const struct destination *folder) {
    char *aside = make_temporary(folder, true);
    if (aside != NULL && rename(folder->path.text, aside) != 0) { /* replaces the empty folder */
        error_set_errno("cannot move the old %s aside", folder->path.text);
        rmdir(aside);
        free(aside);
        return NULL;
    }
    return aside;
}

/* Puts the staged folder in the place of an old one, which is removed. */
static int replace_folder(const struct destination *to, const char *staging) {
    if (renameat2(AT_FDCWD, staging, AT_FDCWD, to->path.text, RENAME_EXCHANGE) == 0) {
        return files_remove_folder(staging);
    }
    if (errno != EINVAL && errno != ENOSYS) {
        return error_set_errno("cannot move the new %s into place", to->path.text);
    }
    /* A file system that cannot exchange: for a moment the folder is not there. */
    int result = -1;
    char *aside = move_aside(to);
    if (aside != NULL && rename(staging, to->path.text) != 0) {
        error_set_errno("cannot move the new %s into place", to->path.text);
        rename(aside, to->path.text);
    } else if (aside != NULL) {
        result = files_remove_folder(aside);
    }
    free(aside);
    return result;
}

static int move(const struct destination *to, const char *staging) {
    struct stat made, old;
    if (stat(staging, &made) == 0 && S_ISDIR(made.st_mode) && lstat(to->path.text, &old) == 0) {
        return S_ISDIR(old.st_mode) ? replace_folder(to, staging)
                                    : error_set("there is something else than a folder of this name");
    }
    return rename(staging, to->path.text) == 0
               ? 0
               : error_set_errno("cannot move the new %s into place", to->path.text);
}

int files_stage_begin(const char *path, bool folder, char **staging) {
    struct destination to;
    *staging = NULL;
    if (find_destination(path, &to) != 0 || (folder && files_make_folder(to.parent.text) != 0)) {
        return -1;
    }
    if (folder) {
        files_stage_clean(to.parent.text);
    }
    *staging = make_temporary(&to, folder);
    return *staging != NULL ? 0 : -1;
}

int files_stage_end(const char *path, char *staging, int status) {
    struct destination to;
    if (status == 0) {
        status = find_destination(path, &to) != 0 || files_sync_all(staging) != 0 || move(&to, staging) != 0
                     ? error_prefix("cannot write %s", path)
                     : files_sync(to.parent.text);
    }
    if (status != 0) {
        char *kept = error_keep(); /* a removal that fails sets the message */
        files_remove(staging);
        error_restore(kept);
    }
    free(staging);
    return status;
}

/* ---- files that are written whole */

static int open_staged(struct output_file *file, const char *path) {
    *file = (struct output_file){.path = path};
    if (files_stage_begin(path, false, &file->staging) != 0) {
        return -1;
    }
    file->stream = fopen(file->staging, "we");
    return file->stream != NULL ? 0
                                : files_stage_end(path, file->staging, error_set_errno("cannot write %s", path));
}

int output_file_open(struct output_file *file, const char *path) {
    if (strcmp(path, "-") != 0) {
        return open_staged(file, path);
    }
    *file = (struct output_file){.path = "to standard output", .stream = stdout};
    return 0;
}

int output_file_end(struct output_file *file, int status) {
    const struct output_file ended = *file;
    *file = (struct output_file){0};
    if (status == 0 && ended.stream != NULL) {
        status = files_flush(ended.stream, ended.path);
    }
    if (ended.stream == NULL || ended.staging == NULL) {
        return status;
    }
    fclose(ended.stream);
    return files_stage_end(ended.path, ended.staging, status);
}

int files_write(const char *path, const void *data, size_t bytes) {
    struct output_file file;
    if (open_staged(&file, path) != 0) {
        return -1;
    }
    if (bytes > 0) {
        fwrite(data, 1, bytes, file.stream); /* output_file_end reports a failure */
    }
    return output_file_end(&file, 0);
}

/* ---- what is to go */

struct members {
    const char *folder;
    const char *const *names; /* ends with NULL */
};

/* 1: not a regular file of these names. */
static int is_other(void *context, const char *name) {
    const struct members *members = context;
    struct stat status;
    for (const char *const *known = members->names; *known != NULL; known++) {
        if (strcmp(*known, name) == 0) {
            const struct path path = path_of("%s/%s", members->folder, name);
            return lstat(path.text, &status) != 0 ? error_set_errno("cannot look at %s", path.text)
                                                  : !S_ISREG(status.st_mode);
        }
    }
    return 1;
}

int files_has_others(const char *folder, const char *const *names) {
    return files_each(folder, is_other, &(struct members){folder, names});
}

static int remove_members(const char *folder, const char *const *names) {
    struct stat status;
    for (; *names != NULL; names++) {
        const struct path path = path_of("%s/%s", folder, *names);
        if (lstat(path.text, &status) == 0 && S_ISREG(status.st_mode) && unlink(path.text) != 0) {
            return error_set_errno("cannot remove %s", path.text);
        }
    }
    return rmdir(folder) == 0 || errno == ENOTEMPTY || errno == EEXIST
               ? 0
               : error_set_errno("cannot remove %s", folder);
}

int files_discard_members(const char *folder, const char *const *names) {
    struct destination from;
    struct stat status;
    if (lstat(folder, &status) != 0) {
        return error_set_errno("cannot remove %s", folder);
    }
    if (!S_ISDIR(status.st_mode)) { /* a link, too: what it leads to is somebody else's */
        return error_set("cannot remove %s: it is not a folder", folder);
    }
    const int others = files_has_others(folder, names);
    if (others != 0) {
        return others < 0 ? -1 : remove_members(folder, names);
    }
    if (find_destination(folder, &from) != 0) {
        return error_prefix("cannot remove %s", folder);
    }
    char *aside = move_aside(&from); /* an overlay cannot rename a folder of its lower layer */
    const int result = remove_members(aside != NULL ? aside : folder, names);
    if (aside != NULL && rename(aside, folder) == 0) { /* something was put into it meanwhile */
        files_sync(from.parent.text);
    }
    free(aside);
    return result;
}

/* ---- several files into a folder */

static int remove_old(const char *path) {
    return unlink(path) == 0 || errno == ENOENT ? 0 : error_set_errno("cannot remove the old %s", path);
}

int files_move_into(const char *folder, const char *from, const char *const *names, const char *const *old) {
    size_t count = 0;
    for (; names[count] != NULL; count++) {
        /* the file is still in the folder that it is moved from, or it has been moved before */
        const struct path target = path_of("%s/%s", folder, names[count]);
        if (check_file(target.text) != 0) {
            return -1;
        }
        if (access(path_of("%s/%s", from, names[count]).text, F_OK) != 0 && access(target.text, F_OK) != 0) {
            return error_set_errno("cannot move the new %s into place", target.text);
        }
    }
    for (size_t i = 0; old != NULL && old[i] != NULL; i++) {
        const struct path path = path_of("%s/%s", folder, old[i]);
        if (check_file(path.text) != 0) {
            return error_set("cannot remove the old %s: it is not a regular file", path.text);
        }
    }
    if (files_sync_all(from) != 0) {
        return -1;
    }
    if (access(path_of("%s/%s", from, names[count - 1]).text, F_OK) == 0 &&
        remove_old(path_of("%s/%s", folder, names[count - 1]).text) != 0) {
        return -1;
    }
    for (; old != NULL && *old != NULL; old++) {
        if (remove_old(path_of("%s/%s", folder, *old).text) != 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < count; i++) {
        const struct path source = path_of("%s/%s", from, names[i]), target = path_of("%s/%s", folder, names[i]);
        if (rename(source.text, target.text) != 0 && errno != ENOENT) {
            return error_set_errno("cannot move the new %s into place", target.text);
        }
    }
    return files_sync(folder);
}
