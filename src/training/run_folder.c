#include "src/training/run_folder.h"
#include "runtime/files/event_file.h"
#include "runtime/system/error.h"
#include "src/checkpoint/checkpoint.h"
#include "src/training/run_log.h"
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

int run_folder_explain(const struct run_folder *folder) {
    return folder->descriptor >= 0 ? error_replace(folder->path.text, run_folder_name(folder)) : -1;
}

/* ---- what it holds */

static bool is_record(const char *name) {
    return strcmp(name, RUN_LOG_METRICS) == 0 || strcmp(name, RUN_LOG_STATISTICS) == 0;
}

static bool is_checkpoint(const char *name) {
    return checkpoint_iteration_of(name) >= 0 || strcmp(name, CHECKPOINT_BEST) == 0;
}

/* For run_folder_check_free. Settings and event files alone make no run; settings.conf is written anew anyway. */
static int refuse_entry(const char *folder, const char *name, const char *path) {
    struct stat status;
    if (!is_checkpoint(name) && !is_record(name)) {
        return 0;
    }
    if (stat(path, &status) != 0) {
        return files_exist(path) ? error_set_errno("cannot look at %s", path) : 0;
    }
    if (is_record(name) && status.st_size == 0) {
        return 0;
    }
    return error_set("%s already holds a run (%s): continue it with --init-from resume if there is a checkpoint of "
                     "it, choose another --out-dir, or give --start-over to remove what it left and begin anew",
                     folder, name);
}

/* For run_folder_clear: somebody else's folder that has a checkpoint's name. */
static int refuse_stranger(const char *folder, const char *name, const char *path) {
    const int own = is_checkpoint(name) ? checkpoint_is_own(path) : 1;
    if (own == 0) {
        return error_set("%s/%s is no checkpoint of this program's: move it away before starting over", folder,
                         name);
    }
    return own < 0 ? -1 : 0;
}

/* For run_folder_check_links: what a run would write to or replace. */
static int refuse_link(const char *folder, const char *name, const char *path) {
    const bool written = is_record(name) || strcmp(name, RUN_SETTINGS) == 0 || strcmp(name, RUN_TRACE) == 0 ||
                         strcmp(name, CHECKPOINT_BEST) == 0 || strcmp(name, RUN_VALIDATION) == 0;
    return written && files_is_link(path)
               ? error_set("%s/%s is a symbolic link, and what it leads to would be written over: put the file or "
                           "folder itself there, or remove the link",
                           folder, name)
               : 0;
}

static int for_each_entry(const char *path, int (*visit)(const char *folder, const char *name, const char *path));

static int remove_file(const char *path) {
    return unlink(path) == 0 || errno == ENOENT ? 0 : error_set_errno("cannot remove %s", path);
}

static int remove_events(const char *folder, const char *name, const char *path) {
    (void)folder;
    return event_file_is_name(name) ? remove_file(path) : 0;
}

/* The folder of validation's events goes with them, unless something else is in it. */
static int remove_validation(const char *path) {
    const int result = for_each_entry(path, remove_events);
    return result || rmdir(path) == 0 || errno == ENOTEMPTY || errno == EEXIST
               ? result
               : error_set_errno("cannot remove %s", path);
}

/* For run_folder_clear: links go, what they lead to stays. */
static int remove_entry(const char *folder, const char *name, const char *path) {
    struct stat status;
    (void)folder;
    const bool is_folder = lstat(path, &status) == 0 && S_ISDIR(status.st_mode);
    if (strcmp(name, RUN_VALIDATION) == 0 && is_folder) {
        return remove_validation(path);
    }
    if (!is_checkpoint(name) && !is_record(name) && !event_file_is_name(name)) {
        return 0;
    }
    return is_folder ? checkpoint_remove(path) : remove_file(path);
}

struct entry_visit {
    const char *folder;
    int (*visit)(const char *folder, const char *name, const char *path);
};

static int visit_entry(void *context, const char *name) {
    const struct entry_visit *entry = context;
    return entry->visit(entry->folder, name, path_of("%s/%s", entry->folder, name).text);
}

static int for_each_entry(const char *path, int (*visit)(const char *folder, const char *name, const char *path)) {
    return files_each(path, visit_entry, &(struct entry_visit){path, visit});
}

int run_folder_check_free(const char *path) {
    return for_each_entry(path, refuse_entry);
}

int run_folder_check_links(const char *path) {
    return for_each_entry(path, refuse_link);
}

int run_folder_clear(const char *path) {
    return for_each_entry(path, refuse_stranger) || for_each_entry(path, remove_entry) ? -1 : 0;
}
