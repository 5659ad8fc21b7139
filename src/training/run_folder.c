#include "src/training/run_folder.h"
#include "runtime/system/error.h"
#include "src/checkpoint/checkpoint.h"
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- where it is */

int run_folder_open(struct run_folder *folder, const char *path) {
    *folder = (struct run_folder)RUN_FOLDER_CLOSED;
    if (files_lock_folder(path, &folder->descriptor)) {
        return -1;
    }
    /* Linux keeps a path to everything that is open. It stays right when a part of the name changes. */
    folder->given = path_of("%s", path);
    folder->path = path_of("/proc/self/fd/%d", folder->descriptor);
    if (!files_are_same(folder->path.text, path)) {
        folder->path = folder->given;
    }
    return 0;
}

void run_folder_close(struct run_folder *folder) {
    if (folder->descriptor >= 0) {
        close(folder->descriptor);
    }
    *folder = (struct run_folder)RUN_FOLDER_CLOSED;
}

const char *run_folder_name(const struct run_folder *folder) {
    static char name[PATH_MAX];
    if (folder->descriptor < 0) {
        return "";
    }
    if (files_are_same(folder->given.text, folder->path.text)) {
        return folder->given.text;
    }
    const ssize_t length = readlink(folder->path.text, name, sizeof name - 1);
    name[length > 0 ? length : 0] = '\0';
    return length > 0 ? name : folder->given.text;
}

void run_folder_explain(const struct run_folder *folder) {
    if (folder->descriptor >= 0) {
        error_replace(folder->path.text, run_folder_name(folder));
    }
}

/* ---- what it holds */

static bool is_record(const char *name) {
    return strcmp(name, RUN_LOG_METRICS) == 0 || strcmp(name, RUN_LOG_STATISTICS) == 0;
}

static bool is_checkpoint(const char *name) {
    return checkpoint_iteration_of(name) >= 0 || strcmp(name, CHECKPOINT_BEST) == 0;
}

/* The functions below are for files_each; `folder` is the run's. */

static struct path entry(const void *folder, const char *name) {
    return path_of("%s/%s", (const char *)folder, name);
}

/* Settings alone make no run; settings.conf is written anew anyway. */
static int refuse_run(void *folder, const char *name) {
    const struct path path = entry(folder, name);
    struct stat status;
    if (!is_checkpoint(name) && !is_record(name)) {
        return 0;
    }
    if (stat(path.text, &status) != 0) {
        return files_exist(path.text) ? error_set_errno("cannot look at %s", path.text) : 0;
    }
    return is_record(name) && status.st_size == 0
               ? 0
               : error_set("%s already holds a run (%s): continue it with --init-from resume if there is a "
                           "checkpoint of it, choose another --out-dir, or give --start-over to remove what it "
                           "left and begin anew",
                           (const char *)folder, name);
}

/* Refuses links that a run would write to or replace. */
static int refuse_link(void *folder, const char *name) {
    const bool written = is_record(name) || strcmp(name, RUN_SETTINGS) == 0 || strcmp(name, RUN_TRACE) == 0 ||
                         strcmp(name, CHECKPOINT_BEST) == 0;
    return written && files_is_link(entry(folder, name).text)
               ? error_set("%s/%s is a symbolic link, and what it leads to would be written over: put the file or "
                           "folder itself there, or remove the link",
                           (const char *)folder, name)
               : 0;
}

/* Refuses somebody else's folder that has a checkpoint's name. */
static int refuse_stranger(void *folder, const char *name) {
    const int own = is_checkpoint(name) ? checkpoint_is_own(entry(folder, name).text) : 1;
    return own != 0 ? (own < 0 ? -1 : 0)
                    : error_set("%s/%s is no checkpoint of this program's: move it away before starting over",
                                (const char *)folder, name);
}

/* Links go, what they lead to stays. */
static int remove_entry(void *folder, const char *name) {
    struct path path = entry(folder, name);
    struct stat status;
    if (!is_checkpoint(name) && !is_record(name)) {
        return 0;
    }
    if (lstat(path.text, &status) == 0 && S_ISDIR(status.st_mode)) {
        return checkpoint_remove(path.text);
    }
    return unlink(path.text) == 0 || errno == ENOENT ? 0 : error_set_errno("cannot remove %s", path.text);
}

int run_folder_check(const char *path, bool is_free) {
    if (files_each(path, refuse_link, (void *)path)) {
        return -1;
    }
    return is_free ? files_each(path, refuse_run, (void *)path) : 0;
}

int run_folder_clear(const char *path) {
    return files_each(path, refuse_stranger, (void *)path) || files_each(path, remove_entry, (void *)path) ? -1 : 0;
}
