#include "src/analysis/run_reader.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/distribution.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/analysis/runs.h"
#include "src/training/run_log.h"
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_EVALUATION_BYTES = 1 << 20, MOST_SETTINGS_BYTES = 1 << 20 };
enum { FINAL_STEPS = 200 }; /* of the paper's training losses */

/* Tables are objects of columns, which are arrays. */
static json_t *empty_record(void) {
    return json_pack("{s:{s:[], s:[], s:[], s:[]}, s:{s:[], s:[], s:[]}, s:{s:[], s:[], s:[], s:[], s:[], s:[], "
                     "s:[], s:[], s:[], s:[], s:[], s:[], s:[]}, s:{}, s:{}, s:{}, s:[]}",
                     "steps", "iter", "loss", "grad_norm", "tokens_per_sec", "evaluations", "iter", "train_loss",
                     "val_loss", "statistics", "iter", "row_max_p10", "row_max_median", "row_max_p90",
                     "diagonal_fraction", "smallest_entry", "negative_fraction", "norm_mean", "composite_norm_mean",
                     "composite_norm_max", "stream_cosine", "column_sum", "row_sum", "documents", "tasks",
                     "settings", "damaged");
}

/* What goes through a file. */
struct reading {
    json_t *record;
    bool statistics;         /* lines are those, else of metrics.jsonl: steps and evaluations */
    uint64_t skipped, first; /* damaged lines, and the number of the first of them */
};

/* Whether it has a text or a flag where a number belongs. */
static bool has_other_types(const json_t *columns, json_t *object) {
    const char *key;
    json_t *column;
    json_object_foreach((json_t *)(uintptr_t)columns, key, column) {
        const json_t *value = json_object_get(object, key);
        if (json_is_string(value) || json_is_boolean(value)) {
            return true;
        }
    }
    return false;
}

/* Appends the line's values to the columns of their names; null where it has none. */
static void take_line(void *context, const struct record_line *line) {
    struct reading *reading = context;
    const char *key;
    json_t *column;
    const bool evaluation =
        json_object_get(line->object, "val_loss") || json_object_get(line->object, "train_loss");
    json_t *columns = json_object_get(reading->record, reading->statistics ? "statistics"
                                                       : evaluation        ? "evaluations"
                                                                           : "steps");
    if (!line->object || has_other_types(columns, line->object)) {
        reading->first = reading->skipped++ == 0 ? line->number : reading->first;
        return;
    }
    json_object_foreach(columns, key, column) {
        json_t *value = json_object_get(line->object, key);
        json_array_append(column, value ? value : json_null());
    }
}

/* A file that is not there has no lines. Those that are no objects, as a crash of the machine may leave them, are
 * counted. */
static int read_lines(json_t *record, const char *folder, const char *name, bool statistics) {
    struct reading reading = {.record = record, .statistics = statistics};
    const struct path path = path_of("%s/%s", folder, name);
    if (!files_exist(path.text)) {
        return 0;
    }
    FILE *file = files_open_stream(path.text);
    if (!file) {
        return -1;
    }
    const int result = record_lines_read(file, take_line, &reading) ? error_prefix("%s", path.text) : 0;
    fclose(file);
    if (reading.skipped > 0) {
        json_array_append_new(json_object_get(record, "damaged"),
                              json_pack("{s:o, s:I, s:I}", "path", json_file_name(path.text), "lines",
                                        (json_int_t)reading.skipped, "first", (json_int_t)reading.first));
    }
    return result;
}

/* ---- its end */

/* The middle one of the numbers from `first` on, NaN when there are none. */
static double median_from(const json_t *array, size_t first) {
    const size_t most = json_array_size(array) - first;
    double *values = memory_allocate(most, sizeof *values), median = (double)NAN;
    size_t count = 0;
    for (size_t i = first; i < first + most; i++) {
        const json_t *value = json_array_get(array, i);
        values[count] = json_number_value(value);
        count += json_is_number(value);
    }
    if (count > 0) {
        percentile_sort(values, count);
        median = percentile(values, count, 0.5);
    }
    free(values);
    return median;
}

static json_t *conclude(const json_t *record) {
    json_t *final = json_object();
    const json_t *steps = json_object_get(record, "steps"), *evaluations = json_object_get(record, "evaluations");
    const json_t *losses = json_object_get(steps, "loss"), *validated = json_object_get(evaluations, "val_loss");
    const json_t *last = run_last(validated);
    const size_t count = json_array_size(losses), first = count > FINAL_STEPS ? count - FINAL_STEPS : 0;
    double sum = 0.0, finite = 0.0, best = HUGE_VAL;
    const double speed = median_from(json_object_get(steps, "tokens_per_sec"), first);
    for (size_t i = first; i < count; i++) {
        const json_t *loss = json_array_get(losses, i); /* null: not finite, or there were no targets */
        sum += json_number_value(loss);
        finite += json_is_number(loss);
    }
    for (size_t i = 0; i < json_array_size(validated); i++) {
        const json_t *value = json_array_get(validated, i);
        best = json_is_number(value) ? fmin(best, json_number_value(value)) : best;
    }
    if (count > 0) {
        json_object_set_new(final, "train_loss", json_file_real(sum / finite));
        json_object_set_new(final, "iter",
                            json_integer(json_integer_value(run_last(json_object_get(steps, "iter"))) + 1));
    }
    if (isfinite(speed)) {
        json_object_set_new(final, "tokens_per_sec", json_real(speed));
    }
    if (best < HUGE_VAL) {
        json_object_set_new(final, "best_val_loss", json_real(best));
    }
    if (json_is_number(last)) { /* null: it was not finite */
        json_object_set_new(final, "val_loss", json_real(json_number_value(last)));
        json_object_set(final, "val_iter", (json_t *)run_last(json_object_get(evaluations, "iter")));
    }
    return final;
}

/* ---- evaluations of documents and tasks */

bool run_evaluation_name(const char *file, char name[NAME_MAX + 1]) {
    int end = 0;
    if (sscanf(file, "eval-%255[A-Za-z0-9._-]%n", name, &end) != 1 || file[end]) {
        return false;
    }
    char *ending = strrchr(name, '.');
    if (!ending || ending == name || strcmp(ending, ".json") != 0) {
        return false;
    }
    *ending = '\0';
    return true;
}

/* What evaluations are read with. */
struct folder {
    json_t *record;
    const char *path;
};

static int read_evaluation(void *context, const char *file) {
    const struct folder *folder = context;
    char name[NAME_MAX + 1];
    json_t *json = NULL;
    if (!run_evaluation_name(file, name)) {
        return 0;
    }
    if (json_file_read(path_of("%s/%s", folder->path, file).text, MOST_EVALUATION_BYTES, &json)) {
        return -1;
    }
    const char *kind = json_is_string(json_object_get(json, "task")) ? "tasks" : "documents";
    json_object_set_new(json_object_get(folder->record, kind), name, json);
    return 0;
}

/* ---- settings */

static int read_settings(json_t *record, const char *folder) {
    static const char device[] = RUN_DEVICE_COMMENT;
    const struct path path = path_of("%s/" RUN_SETTINGS, folder);
    char *text = NULL;
    size_t bytes;
    if (!files_exist(path.text)) {
        return 0;
    }
    if (files_read(path.text, MOST_SETTINGS_BYTES, &text, &bytes)) {
        return -1;
    }
    json_object_update_new(json_object_get(record, "settings"), json_file_settings(text));
    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, device, sizeof device - 1) == 0) {
            line += sizeof device - 1;
            json_object_set_new(record, "device", json_stringn(line, strcspn(line, "\n")));
        }
    }
    free(text);
    return 0;
}

json_t *run_read(const char *folder) {
    json_t *record = empty_record();
    if (read_lines(record, folder, RUN_LOG_METRICS, false) ||
        read_lines(record, folder, RUN_LOG_STATISTICS, true) ||
        files_each(folder, read_evaluation, &(struct folder){record, folder}) || read_settings(record, folder)) {
        json_decref(record);
        return NULL;
    }
    json_object_set_new(record, "final", conclude(record));
    return record;
}
