/* The folder of a run, out_dir: who holds it, and its logs (run_log_...). */
#include "src/training/run_folder.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_LOG_BYTES ((size_t)1 << 36) /* of an earlier process: far more than a run writes */

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

/* ---- its logs: lines of an earlier process */

/* Returns in *kept the bytes of a log up to the last line that the run has got to: of its steps before
 * state->iteration, and of its evaluations. A text that has no line of a run is refused, unless it begins as one: a
 * full disk may have left that of the first. */
static int cut_lines(const char *text, size_t bytes, const struct training_state *state, size_t *kept) {
    static const char beginning[] = "{\"iter\":";
    const size_t compared = bytes < sizeof beginning - 1 ? bytes : sizeof beginning - 1;
    bool found = memcmp(text, beginning, compared) == 0;
    *kept = 0;
    for (const char *line = text, *end; (end = memchr(line, '\n', bytes - (size_t)(line - text))); line = end + 1) {
        json_t *object = json_loadb(line, (size_t)(end - line), 0, NULL);
        const bool is_line = checkpoint_is_count(json_object_get(object, "iter"), 0);
        const int64_t at = json_integer_value(json_object_get(object, "iter"));
        const bool is_evaluation = json_object_get(object, "val_loss") != NULL;
        found |= is_line;
        if (is_line && at < (is_evaluation ? state->evaluated_at + 1 : state->iteration)) {
            *kept = (size_t)(end + 1 - text);
        }
        json_decref(object);
    }
    return found ? 0 : error_set("no line of it is of a run: it would be lost; move it away");
}

/* Writes the file anew with the lines that the run has got to, in one step for the file system: whatever happens,
 * these stay, and other names that the old file has, such as those of a backup by links, keep it as it was. Without
 * `makes`, a file that is missing stays so and *file is NULL. */
static int open_lines(const char *out_dir, const char *name, bool makes, const struct training_state *state,
                      FILE **file) {
    const struct path path = path_of("%s/%s", out_dir, name);
    const bool exists = files_exist(path.text);
    char *text = NULL;
    size_t bytes = 0, kept = 0;
    if (!makes && !exists) {
        return 0;
    }
    if (exists && files_read(path.text, MOST_LOG_BYTES, &text, &bytes)) {
        return -1;
    }
    int status = exists && cut_lines(text, bytes, state, &kept) ? error_prefix("%s", path.text)
                                                                : files_write(path.text, text ? text : "", kept);
    free(text);
    if (status == 0) {
        *file = fopen(path.text, "ae");
        status = *file ? 0 : error_set_errno("cannot write %s", path.text);
    }
    return status;
}

int run_log_open(struct run_log *log, const char *out_dir, bool has_statistics,
                 const struct training_state *state) {
    memset(log, 0, sizeof *log);
    if (open_lines(out_dir, RUN_LOG_METRICS, true, state, &log->metrics) ||
        open_lines(out_dir, RUN_LOG_STATISTICS, has_statistics, state, &log->statistics)) {
        run_log_close(log);
        return -1;
    }
    return 0;
}

int run_log_close(struct run_log *log) {
    int failed = log->metrics && fclose(log->metrics) != 0;
    failed |= log->statistics && fclose(log->statistics) != 0;
    memset(log, 0, sizeof *log);
    return failed ? error_set("cannot finish the run's log files") : 0;
}

/* ---- new lines */

/* Writes the object to the file, if there is one, and releases it. */
static int write_line(FILE *file, json_t *json) {
    if (!file) {
        json_decref(json);
        return 0;
    }
    const int status = json_file_print_line(json, file, JSON_COMPACT | JSON_REAL_PRECISION(9));
    return files_flush(file, "to the run's metrics file") || status ? -1 : 0;
}

int run_log_step(struct run_log *log, const struct step_metrics *metrics) {
    json_t *json =
        json_pack("{s:I, s:o, s:o, s:o, s:I, s:o, s:o, s:o}", "iter", (json_int_t)metrics->iteration, "loss",
                  json_file_real(metrics->loss), "lr", json_file_real(metrics->rate), "grad_norm",
                  json_file_real(metrics->gradient_norm), "tokens", (json_int_t)metrics->tokens, "tokens_per_sec",
                  json_file_real(metrics->tokens_per_second), "mfu", json_file_real(metrics->utilisation), "time",
                  json_file_real(metrics->seconds));
    if (metrics->loss_scale > 0.0) {
        json_object_set_new(json, "loss_scale", json_integer((json_int_t)metrics->loss_scale)); /* a power of 2 */
        json_object_set_new(json, "skipped", json_integer((json_int_t)metrics->skipped));
    }
    return write_line(log->metrics, json);
}

int run_log_evaluation(struct run_log *log, int64_t iteration, double train_loss, double val_loss, double val_bits,
                       double seconds, const double *part_losses, size_t parts) {
    json_t *json =
        json_pack("{s:I, s:o, s:o, s:o}", "iter", (json_int_t)iteration, "train_loss", json_file_real(train_loss),
                  "val_loss", json_file_real(val_loss), "time", json_file_real(seconds));
    if (isfinite(val_bits)) {
        json_object_set_new(json, "val_bits_per_byte", json_file_real(val_bits));
    }
    for (size_t i = 0; i < parts; i++) {
        char name[40];
        snprintf(name, sizeof name, "val_loss_%zu", i + 1);
        json_object_set_new(json, name, json_file_real(part_losses[i]));
    }
    return write_line(log->metrics, json);
}

int run_log_statistics(struct run_log *log, const struct h_measurement *statistics, int64_t iteration) {
    return write_line(log->statistics, h_measurement_line(statistics, iteration));
}
