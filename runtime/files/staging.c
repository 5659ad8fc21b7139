#include "runtime/files/destination.h"
#include "runtime/system/error.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- moving into place */

/* Puts the staged folder in the place of an old one, which is removed. */
static int replace_folder(const struct destination *to, const char *staging) {
    if (renameat2(AT_FDCWD, staging, AT_FDCWD, to->path.text, RENAME_EXCHANGE) == 0) {
        return files_remove_folder(staging);
    }
    if (errno != EINVAL && errno != ENOSYS) {
        return error_set_errno("cannot move the new %s into place", to->path.text);
    }
    /* A file system that cannot exchange: for a moment the folder is not there. */
    char *aside = temporary_make(to, NULL);
    int result = -1;
    if (aside == NULL) {
        return -1;
    }
    if (rename(to->path.text, aside) != 0) { /* replaces the empty folder */
        error_set_errno("cannot move the old %s aside", to->path.text);
        rmdir(aside);
    } else if (rename(staging, to->path.text) != 0) {
        error_set_errno("cannot move the new %s into place", to->path.text);
        rename(aside, to->path.text);
    } else {
        result = files_remove_folder(aside);
    }
    free(aside);
    return result;
}

static int move(const struct destination *to, const char *staging) {
    struct stat made, old;
    if (stat(staging, &made) != 0 || !S_ISDIR(made.st_mode) || lstat(to->path.text, &old) != 0) {
        return rename(staging, to->path.text) == 0
                   ? 0
                   : error_set_errno("cannot move the new %s into place", to->path.text);
    }
    return S_ISDIR(old.st_mode) ? replace_folder(to, staging)
                                : error_set("there is something else than a folder of this name");
}

/* Moves what was staged into place, or removes it if something failed before or does now. Frees `staging`. */
static int settle(const struct destination *to, char *staging, int result) {
    if (result == 0) {
        result = move(to, staging);
    }
    if (result == 0) {
        free(staging);
        result = files_sync(to->parent.text);
    } else {
        files_stage_abandon(staging);
    }
    return result;
}

/* ---- files in one go */

/* Closes the descriptor. */
static int write_synced(int descriptor, const char *path, const void *data, size_t bytes) {
    int result = 0;
    if (files_write_all(descriptor, data, bytes) != 0) {
        result = error_set_errno("cannot write %s", path);
    } else if (fsync(descriptor) != 0) {
        result = error_set_errno("cannot write %s to disk", path);
    }
    if (close(descriptor) != 0 && result == 0) {
        result = error_set_errno("cannot write %s", path);
    }
    return result;
}

int files_write(const char *path, const void *data, size_t bytes) {
    struct destination to;
    int descriptor = -1;
    char *temporary = destination_find(path, &to) == 0 ? temporary_make(&to, &descriptor) : NULL;
    const int result = temporary != NULL ? write_synced(descriptor, to.path.text, data, bytes) : -1;
    return settle(&to, temporary, result);
}

/* ---- what the caller fills */

static int begin(const char *path, bool folder, char **staging) {
    struct destination to;
    int descriptor = -1;
    *staging = NULL;
    if (destination_find(path, &to) == 0 && (!folder || files_make_folder(to.parent.text) == 0)) {
        files_stage_clean(to.parent.text);
        *staging = temporary_make(&to, folder ? NULL : &descriptor);
    }
    if (descriptor >= 0) {
        close(descriptor);
    }
    return *staging != NULL ? 0 : -1;
}

int files_stage_begin(const char *path, char **staging) {
    return begin(path, true, staging);
}

int files_stage_file(const char *path, char **staging) {
    return begin(path, false, staging);
}

int files_stage_commit(const char *path, char *staging) {
    struct destination to;
    const int result = destination_find(path, &to) != 0 || files_sync_all(staging) != 0 ? -1 : 0;
    return settle(&to, staging, result) == 0 ? 0 : error_prefix("cannot write %s", path);
}

void files_stage_abandon(char *staging) {
    if (staging != NULL) {
        char *kept = error_keep(); /* a removal that fails sets the message */
        files_remove(staging);
        error_restore(kept);
        free(staging);
    }
}

/* ---- what is to go */

struct members {
    const char *folder;
    const char *const *names; /* ends with NULL */
};

/* 1: not a regular file of these names. */
static int is_other(void *context, const char *name) {
    const struct members *members = context;
    const char *const *known = members->names;
    struct stat status;
    while (*known != NULL && strcmp(*known, name) != 0) {
        known++;
    }
    if (*known == NULL) {
        return 1;
    }
    const struct path path = path_of("%s/%s", members->folder, name);
    return lstat(path.text, &status) != 0 ? error_set_errno("cannot look at %s", path.text)
                                          : !S_ISREG(status.st_mode);
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
    char *aside = destination_find(folder, &from) == 0 ? temporary_make(&from, NULL) : NULL;
    if (aside == NULL) {
        return error_prefix("cannot remove %s", folder);
    }
    const bool moved = rename(folder, aside) == 0; /* replaces the empty folder */
    if (!moved) {
        rmdir(aside);
    }
    const int result = remove_members(moved ? aside : folder, names);
    if (moved && rename(aside, folder) == 0) { /* something was put into it meanwhile */
        files_sync(from.parent.text);
    }
    free(aside);
    return result;
}

/* ---- several files into a folder */

enum step { CHECK, REMOVE_OLD, MOVE };

/* One step for one file. Nothing is left to move of one that is no longer in `from`. */
static int take_step(enum step step, const char *folder, const char *from, const char *name) {
    const struct path source = path_of("%s/%s", from, name), target = path_of("%s/%s", folder, name);
    const bool waits = access(source.text, F_OK) == 0;
    if (!waits && errno != ENOENT) {
        return error_set_errno("cannot look at %s", source.text);
    }
    if (step == CHECK) {
        if (destination_check_file(target.text) != 0) {
            return -1;
        }
        return waits || access(target.text, F_OK) == 0
                   ? 0
                   : error_set_errno("cannot move the new %s into place", target.text);
    }
    if (waits && step == REMOVE_OLD && unlink(target.text) != 0 && errno != ENOENT) {
        return error_set_errno("cannot remove the old %s", target.text);
    }
    if (waits && step == MOVE && rename(source.text, target.text) != 0) {
        return error_set_errno("cannot move the new %s into place", target.text);
    }
    return 0;
}

int files_move_into(const char *folder, const char *from, const char *const *names) {
    size_t count = 0;
    int result = 0;
    for (; result == 0 && names[count] != NULL; count++) {
        result = take_step(CHECK, folder, from, names[count]);
    }
    if (result == 0) {
        result = files_sync_all(from);
    }
    if (result == 0) {
        result = take_step(REMOVE_OLD, folder, from, names[count - 1]);
    }
    for (size_t i = 0; result == 0 && i < count; i++) {
        result = take_step(MOVE, folder, from, names[i]);
    }
    return result == 0 ? files_sync(folder) : -1;
}
