#include "src/run_log.h"
#include "runtime/error.h"
#include "runtime/files.h"
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LARGEST_LOG ((size_t)1 << 30)

/* ---- lines of an earlier process */

/* Whether a line belongs to what a run at `iteration` has done: its steps before, evaluations up to there. */
static bool keep_line(const char *line, size_t length, int64_t iteration) {
    json_t *json = json_loadb(line, length, 0, NULL);
    const json_t *number = json_object_get(json, "iter");
    const int64_t at = json_is_integer(number) ? json_integer_value(number) : INT64_MAX;
    const bool evaluation = json_object_get(json, "val_loss") != NULL;
    json_decref(json);
    return at < iteration || (evaluation && at == iteration);
}

static int drop_later_lines(const char *path, int64_t iteration) {
    char *text = NULL;
    size_t bytes = 0, kept = 0;
    if (iteration == 0 || !files_exist(path)) {
        return files_write(path, "", 0);
    }
    if (files_read(path, LARGEST_LOG, &text, &bytes)) {
        return -1;
    }
    for (size_t start = 0; start < bytes;) {
        const char *newline = memchr(text + start, '\n', bytes - start);
        const size_t length = newline ? (size_t)(newline - text) - start + 1 : bytes - start;
        if (newline && keep_line(text + start, length, iteration)) {
            memmove(text + kept, text + start, length);
            kept += length;
        }
        start += length;
    }
    const int status = files_write(path, text, kept);
    free(text);
    return status;
}

static FILE *open_lines(const char *out_dir, const char *name, int64_t iteration) {
    char *path = files_path("%s/%s", out_dir, name);
    FILE *file = NULL;
    if (path && drop_later_lines(path, iteration) == 0) {
        file = fopen(path, "ae");
        if (!file) {
            error_set_errno("cannot write %s", path);
        }
    }
    free(path);
    return file;
}

int run_log_open(struct run_log *log, const char *out_dir, const struct run_log_options *options) {
    memset(log, 0, sizeof *log);
    log->metrics = open_lines(out_dir, "metrics.jsonl", options->iteration);
    if (log->metrics && options->statistics) {
        log->statistics = open_lines(out_dir, "h_statistics.jsonl", options->iteration);
    }
    if (!log->metrics || (options->statistics && !log->statistics) ||
        (options->tensorboard && event_file_create(out_dir, &log->events))) {
        run_log_close(log);
        return -1;
    }
    return 0;
}

int run_log_close(struct run_log *log) {
    int failed = log->metrics && fclose(log->metrics) != 0;
    failed |= log->statistics && fclose(log->statistics) != 0;
    failed |= log->events && event_file_close(log->events) != 0;
    memset(log, 0, sizeof *log);
    return failed ? error_set("cannot finish the run's log files") : 0;
}

/* ---- new lines */

static int write_line(FILE *file, char *text) {
    const int failed = !text || fprintf(file, "%s\n", text) < 0 || fflush(file) != 0;
    free(text);
    return failed ? error_set_errno("cannot write to the run's metrics file") : 0;
}

static int write_json(FILE *file, json_t *json) {
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(json);
    return write_line(file, text);
}

/* JSON has no infinities or NaN: those become null. */
static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static int add_events(struct run_log *log, int64_t iteration, const struct event_scalar *scalars, size_t count) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return log->events ? event_file_add(log->events, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec, iteration,
                                        scalars, count)
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
        {"train/loss", (float)metrics->loss},
        {"train/learning_rate", (float)metrics->rate},
        {"train/gradient_norm", (float)metrics->gradient_norm},
        {"speed/tokens_per_second", (float)metrics->tokens_per_second},
        {"speed/mfu", (float)metrics->utilisation},
    };
    return write_json(log->metrics, json) || add_events(log, metrics->iteration, scalars, 5) ? -1 : 0;
}

int run_log_evaluation(struct run_log *log, int64_t iteration, double train_loss, double val_loss, double seconds) {
    json_t *json = json_pack("{s:I, s:o, s:o, s:o}", "iter", (json_int_t)iteration, "train_loss",
                             number(train_loss), "val_loss", number(val_loss), "time", number(seconds));
    const struct event_scalar scalars[] = {
        {"evaluation/train_loss", (float)train_loss},
        {"evaluation/val_loss", (float)val_loss},
    };
    return write_json(log->metrics, json) || add_events(log, iteration, scalars, 2) ? -1 : 0;
}

int run_log_statistics(struct run_log *log, const struct h_statistics *statistics, int64_t iteration) {
    const struct event_scalar scalars[] = {
        {"h_res/row_maximum_median", (float)statistics->row_maximum_median},
        {"h_res/row_maximum_p10", (float)statistics->row_maximum_p10},
        {"h_res/row_maximum_p90", (float)statistics->row_maximum_p90},
        {"h_res/diagonal_fraction", (float)statistics->diagonal_fraction},
        {"h_res/smallest_entry", (float)statistics->smallest_entry},
        {"h_res/spectral_norm_maximum", (float)statistics->norm_maximum},
        {"h_res/composite_norm_maximum", (float)statistics->composite_norm_maximum},
    };
    return write_line(log->statistics, h_statistics_json(statistics, iteration)) ||
                   add_events(log, iteration, scalars, 7)
               ? -1
               : 0;
}
