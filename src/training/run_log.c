#include "src/training/run_log.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- lines of an earlier process */

/* The object of a line, or NULL if the line is no object with an iteration. */
static json_t *parse(const char *text, size_t bytes) {
    json_t *object = json_loadb(text, bytes, 0, NULL);
    if (!checkpoint_is_count(json_object_get(object, "iter"), 0)) {
        json_decref(object);
        return NULL;
    }
    return object;
}

int record_lines_read(FILE *file, void (*take)(void *context, const struct record_line *line), void *context) {
    struct record_line line = {0};
    char *text = NULL;
    size_t capacity = 0;
    ssize_t bytes;
    while ((bytes = getline(&text, &capacity, file)) > 0 && text[bytes - 1] == '\n') {
        line.number++;
        line.end += (uint64_t)bytes;
        line.object = parse(text, (size_t)bytes);
        take(context, &line);
        json_decref(line.object);
    }
    free(text);
    if (bytes < 0 && !feof(file) && !ferror(file)) {
        memory_refused(0);
    }
    return ferror(file) ? error_set_errno("cannot read") : 0;
}

struct cut {
    const struct training_state *state;
    uint64_t end; /* of the last line that the run has got to */
    bool found;   /* a line of a run, kept or not */
};

/* A line belongs to what a run has done: its steps before where it stands, and its evaluations. */
static void note_line(void *context, const struct record_line *line) {
    struct cut *cut = context;
    const int64_t at = json_integer_value(json_object_get(line->object, "iter"));
    const bool evaluation = json_object_get(line->object, "val_loss") != NULL;
    cut->found |= line->object != NULL;
    if (line->object && at < (evaluation ? cut->state->evaluated_at + 1 : cut->state->iteration)) {
        cut->end = line->end;
    }
}

/* Whether the file begins as a run's lines do; one without a whole line may be what a full disk has left of the
 * first. */
static bool is_torn_line(FILE *file) {
    static const char beginning[] = "{\"iter\":";
    char text[sizeof beginning];
    rewind(file);
    const size_t bytes = fread(text, 1, sizeof beginning - 1, file);
    return memcmp(text, beginning, bytes) == 0;
}

/* Copies the lines that the run has got to. */
static int copy_lines(FILE *from, FILE *to, const struct training_state *state) {
    struct cut cut = {.state = state};
    char block[8192];
    if (record_lines_read(from, note_line, &cut)) {
        return -1;
    }
    if (!cut.found && !is_torn_line(from)) {
        return error_set("no line of it is of a run: it would be lost; move it away");
    }
    rewind(from);
    for (uint64_t left = cut.end; left > 0;) {
        const size_t wanted = left < sizeof block ? (size_t)left : sizeof block;
        const size_t got = fread(block, 1, wanted, from);
        if (got == 0) {
            return ferror(from) ? error_set_errno("cannot read") : error_set("it became shorter while it was read");
        }
        if (fwrite(block, 1, got, to) != got) {
            return error_set_errno("cannot write the copy");
        }
        left -= got;
    }
    return files_flush(to, "the copy");
}

/* Fills the new file, which stays empty if there is no old one. */
static int fill_anew(const char *path, const char *staging, const struct training_state *state) {
    if (!files_exist(path)) {
        return 0;
    }
    FILE *from = files_open_stream(path);
    if (!from) {
        return -1;
    }
    FILE *to = fopen(staging, "we");
    int status = to ? copy_lines(from, to, state) : error_set_errno("cannot begin the copy");
    if (to && fclose(to) != 0 && status == 0) {
        status = error_set_errno("cannot write the copy");
    }
    fclose(from);
    return status ? error_prefix("%s", path) : 0;
}

/* Writes the file anew and puts that into its place, in one step for the file system: whatever happens, the lines
 * before stay, and other names that the old file has, such as those of a backup by links, keep it as it was.
 * Without `makes`, a file that is missing stays so and *file is NULL. */
static int open_lines(const char *out_dir, const char *name, bool makes, const struct training_state *state,
                      FILE **file) {
    const struct path path = path_of("%s/%s", out_dir, name);
    char *staging = NULL;
    *file = NULL;
    if (!makes && !files_exist(path.text)) {
        return 0;
    }
    if (files_stage_file(path.text, &staging)) {
        return -1;
    }
    if (fill_anew(path.text, staging, state)) {
        files_stage_abandon(staging);
        return -1;
    }
    if (files_stage_commit(path.text, staging)) {
        return -1;
    }
    *file = fopen(path.text, "ae");
    return *file ? 0 : error_set_errno("cannot write %s", path.text);
}

/* TensorBoard draws a chart for each tag, with a line for each folder: validation's losses have the tag of
 * training's, "loss", in a folder of their own. */
static int open_events(struct run_log *log, const char *out_dir, const struct train_settings *settings,
                       const struct training_state *state) {
    const struct path folder = path_of("%s/" RUN_VALIDATION, out_dir);
    char *lines = options_text(settings->specs, settings->spec_count);
    const bool goes_on = train_settings_resume(settings);
    const int result = files_make_folder(folder.text) || event_file_create(out_dir, &log->events) ||
                               event_file_create(folder.text, &log->validation) ||
                               (goes_on && (event_file_restart(log->events, state->iteration) ||
                                            event_file_restart(log->validation, state->evaluated_at + 1))) ||
                               event_file_add_settings(log->events, state->iteration, lines)
                           ? -1
                           : 0;
    free(lines);
    return result;
}

int run_log_open(struct run_log *log, const char *out_dir, const struct train_settings *settings,
                 const struct training_state *state) {
    memset(log, 0, sizeof *log);
    if (open_lines(out_dir, RUN_LOG_METRICS, true, state, &log->metrics) ||
        open_lines(out_dir, RUN_LOG_STATISTICS, settings->statistics_interval > 0, state, &log->statistics) ||
        (settings->tensorboard && open_events(log, out_dir, settings, state))) {
        run_log_close(log);
        return -1;
    }
    return 0;
}

int run_log_close(struct run_log *log) {
    int failed = log->metrics && fclose(log->metrics) != 0;
    failed |= log->statistics && fclose(log->statistics) != 0;
    failed |= event_file_close(log->events) != 0;
    failed |= event_file_close(log->validation) != 0;
    memset(log, 0, sizeof *log);
    return failed ? error_set("cannot finish the run's log files") : 0;
}

/* ---- new lines */

/* Releases the object. */
static int write_line(FILE *file, json_t *json) {
    char *text = json_file_text(json, JSON_COMPACT | JSON_REAL_PRECISION(9));
    const int result = !text ? error_prefix("cannot write to the run's metrics file")
                       : fprintf(file, "%s\n", text) < 0 || fflush(file) != 0
                           ? error_set_errno("cannot write to the run's metrics file")
                           : 0;
    json_decref(json);
    free(text);
    return result;
}

/* JSON has no infinities or NaN: those become null. */
static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

/* To one of the log's two event files, which is NULL without TensorBoard. */
static int add_events(struct event_file *events, int64_t iteration, const struct event_scalar *scalars,
                      size_t count) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return events
               ? event_file_add(events, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec, iteration, scalars, count)
               : 0;
}

int run_log_step(struct run_log *log, const struct step_metrics *metrics) {
    json_t *json =
        json_pack("{s:I, s:o, s:o, s:o, s:I, s:o, s:o, s:o}", "iter", (json_int_t)metrics->iteration, "loss",
                  number(metrics->loss), "lr", number(metrics->rate), "grad_norm", number(metrics->gradient_norm),
                  "tokens", (json_int_t)metrics->tokens, "tokens_per_sec", number(metrics->tokens_per_second),
                  "mfu", number(metrics->utilisation), "time", number(metrics->seconds));
    if (metrics->loss_scale > 0.0) {
        json_object_set_new(json, "loss_scale", json_integer((json_int_t)metrics->loss_scale)); /* a power of 2 */
        json_object_set_new(json, "skipped", json_integer((json_int_t)metrics->skipped));
    }
    const struct event_scalar scalars[] = {
        {"loss", (float)metrics->loss},
        {"train/learning_rate", (float)metrics->rate},
        {"train/gradient_norm", (float)metrics->gradient_norm},
        {"speed/tokens_per_second", (float)metrics->tokens_per_second},
        {"speed/mfu", (float)metrics->utilisation},
    };
    return write_line(log->metrics, json) || add_events(log->events, metrics->iteration, scalars, 5) ? -1 : 0;
}

int run_log_evaluation(struct run_log *log, int64_t iteration, double train_loss, double val_loss, double seconds) {
    json_t *json = json_pack("{s:I, s:o, s:o, s:o}", "iter", (json_int_t)iteration, "train_loss",
                             number(train_loss), "val_loss", number(val_loss), "time", number(seconds));
    const struct event_scalar scalars[] = {{"loss", (float)val_loss}, {"evaluation/train_loss", (float)train_loss}};
    return write_line(log->metrics, json) || add_events(log->validation, iteration, scalars, 2) ? -1 : 0;
}

int run_log_statistics(struct run_log *log, const struct h_measurement *statistics, int64_t iteration) {
    const struct h_tally *each = &statistics->each, *product = &statistics->tallies[statistics->sublayers];
    const struct event_scalar scalars[] = {
        {"h_res/row_maximum_median", (float)statistics->row_maximum_median},
        {"h_res/row_maximum_p10", (float)statistics->row_maximum_p10},
        {"h_res/row_maximum_p90", (float)statistics->row_maximum_p90},
        {"h_res/diagonal_fraction", (float)(each->diagonal / each->matrices)},
        {"h_res/smallest_entry", (float)each->entry.minimum},
        {"h_res/spectral_norm_maximum", (float)each->norm.maximum},
        {"h_res/composite_norm_maximum", (float)product->norm.maximum},
        {"h_res/identity_distance", (float)h_tally_mean(each, H_DISTANCE)},
        {"h_res/composite_second_singular_value", (float)h_tally_mean(product, H_PRODUCT_SECOND)},
        {"streams/cosine", (float)h_tally_mean(each, H_COSINE)},
        {"streams/largest_share", (float)h_tally_mean(each, H_LARGEST_SHARE)},
    };
    return write_line(log->statistics, h_measurement_line(statistics, iteration)) ||
                   add_events(log->events, iteration, scalars, COUNT(scalars))
               ? -1
               : 0;
}
