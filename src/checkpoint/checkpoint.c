#include "src/checkpoint/checkpoint.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/weights.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int fill(const char *folder, struct gpt *gpt, const struct checkpoint_content *content) {
    return config_file_write(folder, &gpt->config) ||
                   checkpoint_write_weights(path_of("%s/%s", folder, WEIGHTS_FILE).text, gpt) ||
                   (content->optimizer &&
                    checkpoint_write_moments(path_of("%s/%s", folder, OPTIMIZER_FILE).text, gpt)) ||
                   checkpoint_write_state(folder, gpt, content)
               ? -1
               : 0;
}

/* The files of a checkpoint. state.json is last: what has it is complete. */
static const char *const members[] = {"config.json", WEIGHTS_FILE, OPTIMIZER_FILE, "state.json", NULL};
static const char *const members_without_moments[] = {"config.json", WEIGHTS_FILE, "state.json", NULL};

/* What is at the place of a checkpoint that is to be written: 1 if it has to be kept beside it, 0 if not, -1 with
 * an error. */
static int look_at_older(const char *path) {
    struct stat status;
    if (lstat(path, &status) != 0) {
        return errno == ENOENT ? 0 : error_set_errno("cannot look at it");
    }
    if (S_ISLNK(status.st_mode)) {
        return error_set("it is a symbolic link, and what that leads to is no part of this run: remove the link");
    }
    if (!S_ISDIR(status.st_mode)) {
        return error_set("there is something else than a folder of this name");
    }
    const int others = files_has_others(path, members), own = others > 0 ? checkpoint_is_own(path) : 1;
    if (own == 0 && (files_exist(path_of("%s/%s", path, WEIGHTS_FILE).text) ||
                     files_exist(path_of("%s/config.json", path).text))) {
        return error_set("the folder there is no checkpoint of this program's: move it away");
    }
    return own < 0 ? -1 : others;
}

/* Beside other files, which stay. */
static int move_beside(const char *path, char *staging, bool optimizer) {
    const int status = files_move_into(path, staging, optimizer ? members : members_without_moments);
    files_stage_abandon(staging);
    return status;
}

int checkpoint_save(const char *path, struct gpt *gpt, const struct checkpoint_content *content) {
    char *staging = NULL;
    const int others = look_at_older(path);
    if (others < 0 || files_stage_begin(path, &staging)) {
        return error_prefix("cannot save checkpoint %s", path);
    }
    if (fill(staging, gpt, content)) {
        error_prefix("cannot save checkpoint %s (what was there before is untouched)", path);
        files_stage_abandon(staging);
        return -1;
    }
    return (others ? move_beside(path, staging, content->optimizer) : files_stage_commit(path, staging))
               ? error_prefix("cannot save checkpoint %s", path)
               : 0;
}

int checkpoint_resume(const char *path, struct gpt *gpt, struct training_state *state) {
    return checkpoint_resume_state(path, state, &gpt->loss_scale) || checkpoint_load_weights(path, gpt) ||
                   checkpoint_load_moments(path_of("%s/%s", path, OPTIMIZER_FILE).text, gpt)
               ? -1
               : 0;
}

/* ---- the checkpoints of a run */

int64_t checkpoint_iteration_of(const char *name) {
    if (strncmp(name, "ckpt-", 5) != 0) {
        return -1;
    }
    char canonical[32];
    const int64_t iteration = strtoll(name + 5, NULL, 10);
    snprintf(canonical, sizeof canonical, "ckpt-%" PRId64, iteration);
    return strcmp(name, canonical) == 0 ? iteration : -1;
}

static int is_numbered(const struct dirent *entry) {
    return checkpoint_iteration_of(entry->d_name) >= 0;
}

static int newest_first(const struct dirent **a, const struct dirent **b) {
    const int64_t first = checkpoint_iteration_of((*a)->d_name), second = checkpoint_iteration_of((*b)->d_name);
    return (first < second) - (first > second);
}

/* Whether it is there and a folder; -1 where that cannot be told: to pass over the newest one would be to go on
 * from an older one. */
static int is_folder(const char *path) {
    struct stat status;
    if (stat(path, &status) == 0) {
        return S_ISDIR(status.st_mode);
    }
    return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : error_set_errno("cannot look at %s", path);
}

/* Whether it is a link: what that leads to was put there by somebody else. -1 where that cannot be told. */
static int is_link(const char *path) {
    struct stat status;
    return lstat(path, &status) ? error_set_errno("cannot look at %s", path) : S_ISLNK(status.st_mode);
}

/* Whether a folder has any file of a checkpoint. One that checkpoint_remove has left because of other files has
 * none. */
static bool has_files(const char *path) {
    for (const char *const *name = members; *name; name++) {
        if (files_exist(path_of("%s/%s", path, *name).text)) {
            return true;
        }
    }
    return false;
}

/* Appends the iterations of those that are folders with a file of a checkpoint, and with `links` of links to such
 * folders. */
static int take_folders(const char *out_dir, bool links, struct dirent *const *entries, size_t count,
                        int64_t *iterations, size_t *taken) {
    for (size_t i = 0; i < count; i++) {
        const struct path path = path_of("%s/%s", out_dir, entries[i]->d_name);
        const int link = links ? 0 : is_link(path.text), found = link ? 0 : is_folder(path.text);
        if (link < 0 || found < 0) {
            return -1;
        }
        if (found && has_files(path.text)) {
            iterations[(*taken)++] = checkpoint_iteration_of(entries[i]->d_name);
        }
    }
    return 0;
}

static int list(const char *out_dir, bool links, int64_t **iterations, size_t *count) {
    struct dirent **entries = NULL;
    const int found = scandir(out_dir, &entries, is_numbered, newest_first);
    *iterations = NULL;
    *count = 0;
    if (found < 0) {
        return error_set_errno("cannot read the run directory %s", out_dir);
    }
    *iterations = calloc((size_t)found + 1, sizeof **iterations);
    const int status = *iterations ? take_folders(out_dir, links, entries, (size_t)found, *iterations, count)
                                   : error_set("out of memory");
    for (int i = 0; i < found; i++) {
        free(entries[i]);
    }
    free(entries);
    if (status) {
        free(*iterations);
        *iterations = NULL;
        *count = 0;
    }
    return status;
}

int checkpoint_list(const char *out_dir, int64_t **iterations, size_t *count) {
    return list(out_dir, true, iterations, count);
}

char *checkpoint_newest(const char *out_dir) {
    int64_t *iterations;
    size_t count;
    if (checkpoint_list(out_dir, &iterations, &count)) {
        return NULL;
    }
    char *path = count ? memory_format("%s/ckpt-%" PRId64, out_dir, iterations[0]) : NULL;
    if (count == 0) {
        error_set(
            "there is no checkpoint in %s to resume from: start with init_from = scratch, and with --start-over "
            "if a run has left records there",
            out_dir);
    }
    free(iterations);
    return path;
}

int checkpoint_is_own(const char *path) {
    const char *name = strrchr(path, '/');
    const int64_t named = checkpoint_iteration_of(name ? name + 1 : path);
    int64_t iteration = -1;
    const int found = checkpoint_recognise(path, &iteration);
    return found == 1 ? named < 0 || named == iteration : found;
}

int checkpoint_remove(const char *path) {
    return files_discard_members(path, members);
}

int checkpoint_prune(const char *out_dir, int64_t keep) {
    int64_t *iterations, kept = 0;
    size_t count;
    int status = list(out_dir, false, &iterations, &count); /* without links */
    for (size_t i = 0; status == 0 && i < count; i++) {
        const struct path path = path_of("%s/ckpt-%" PRId64, out_dir, iterations[i]);
        const int own = checkpoint_is_own(path.text);
        kept += own > 0;
        status = own < 0 || (own > 0 && kept > keep && checkpoint_remove(path.text)) ? -1 : 0;
    }
    free(iterations);
    return status;
}
