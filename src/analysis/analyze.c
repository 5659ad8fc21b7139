#include "src/analysis/analyze.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/files/token_file.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "runtime/system/progress.h"
#include "src/analysis/comparison.h"
#include "src/analysis/run_reader.h"
#include "src/analysis/runs.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/config_file.h"
#include "src/measuring/h_measurement.h"
#include "src/measuring/value_means.h"
#include "src/model/frame.h"
#include "src/model/parameters.h"
#include "src/training/run_log.h"
#include <dirent.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_CONFIG_BYTES = 1 << 20, MOST_BENCH_BYTES = 1 << 26 };

/* What all inputs share. */
struct job {
    struct compute *compute;
    struct token_file *file; /* NULL: nothing is measured */
    const struct analyze_settings *settings;
};

/* ---- one checkpoint */

/* What is measured of one: of all connections that compute something, and of those with matrices. */
struct measurements {
    struct value_means values;
    struct h_measurement h;
    bool has_h;
};

/* Samples are block_size tokens, the first where index / samples of the split begins. */
static int read_samples(const struct job *job, const struct gpt *gpt, int64_t index, int64_t count,
                        int32_t *tokens) {
    const uint64_t length = (uint64_t)gpt->config.block_size, held = token_file_count(job->file);
    if (held < length) {
        return error_set("the split has %" PRIu64 " tokens, fewer than one sequence of %" PRIu64, held, length);
    }
    const unsigned __int128 places = held - length + 1;
    int result = 0;
    for (int64_t end = index + count; result == 0 && index < end; index++, tokens += length) {
        const uint64_t first = (uint64_t)(places * (uint64_t)index / (uint64_t)job->settings->samples);
        result = token_file_read(job->file, first, length, (uint32_t)gpt->config.vocab_size, tokens);
    }
    return result;
}

static int add_samples(const struct job *job, struct gpt *gpt, const char *name,
                       struct measurements *measurements) {
    const int64_t samples = job->settings->samples, batch = job->settings->batch_size;
    int32_t *tokens = memory_allocate((size_t)(batch * gpt->config.block_size), sizeof *tokens);
    struct progress progress;
    int result = 0;
    progress_start(&progress, 0);
    for (int64_t first = 0; result == 0 && first < samples; first += batch) {
        const struct token_shape shape = {samples - first < batch ? samples - first : batch,
                                          gpt->config.block_size};
        progress_show(&progress, name, first, samples, "samples", false);
        result =
            interrupt_requested() ? error_set("interrupted") : read_samples(job, gpt, first, shape.batch, tokens);
        if (result == 0 && (result = gpt_set_batch(gpt, shape, tokens, NULL)) == 0) {
            gpt_forward(gpt, (struct gpt_pass){.dropout = false});
            result = value_means_add(&measurements->values, gpt) ||
                             (measurements->has_h && h_measurement_add(&measurements->h, gpt))
                         ? -1
                         : 0;
        }
    }
    progress_end(&progress);
    free(tokens);
    return result;
}

/* A checkpoint's "value_means", and "h" if its connection has matrices; NULL with an error. */
static json_t *measure(const struct job *job, const char *path, const struct model_config *config) {
    const struct gpt_options options = {.batch = job->settings->batch_size,
                                        .sequence = config->block_size,
                                        .mode = GPT_ANALYSIS};
    struct gpt gpt = {0};
    struct measurements all = {.has_h = residual_has_matrices(config->residual)};
    json_t *json = NULL;
    if (gpt_plan(job->compute, config, &options, &gpt) == 0) {
        if (all.has_h) {
            h_measurement_begin(&all.h, config, true);
        }
        if (gpt_create(&gpt) == 0 && checkpoint_load_weights(path, &gpt) == 0 &&
            add_samples(job, &gpt, path, &all) == 0) {
            json = json_pack("{s:o, s:o*}", "value_means", value_means_json(&all.values), "h",
                             all.has_h ? h_measurement_json(&all.h) : NULL);
        }
        value_means_free(&all.values);
        h_measurement_end(&all.h);
        gpt_release(&gpt);
    }
    if (!json) {
        error_prefix("%s", path);
    }
    return json;
}

/* ---- one input */

/* The last component, for tables and legends. */
static json_t *name_of(const char *path) {
    char *copy = memory_string(path);
    json_t *name = json_file_name(basename(copy));
    free(copy);
    return name;
}

/* This checkpoint in an earlier analysis, a new reference; NULL: it is not there. */
static json_t *find_before(const json_t *before, const char *path, int64_t iteration) {
    const json_t *run, *checkpoint;
    size_t i, j;
    json_array_foreach(json_object_get(before, "runs"), i, run) {
        json_array_foreach(json_object_get(run, "checkpoints"), j, checkpoint) {
            const char *known = json_string_value(json_object_get(checkpoint, "path"));
            if (known && strcmp(known, path) == 0 &&
                json_integer_value(json_object_get(checkpoint, "iter")) == iteration) {
                return json_incref((json_t *)checkpoint);
            }
        }
    }
    return NULL;
}

/* Adds run["parameters"]. */
static void count_parameters(const struct model_config *config, json_t *run) {
    struct parameters parameters;
    parameters_create(config, &parameters);
    json_object_set_new(run, "parameters",
                        json_pack("{s:I, s:I}", "total", (json_int_t)parameters.total, "auxiliary",
                                  (json_int_t)parameters.auxiliary));
    parameters_release(&parameters);
}

/* Adds a checkpoint to run["checkpoints"], and its config and parameters to the run. */
static int add_checkpoint(const struct job *job, const char *path, int64_t iteration, json_t *run) {
    struct model_config config;
    json_t *as_written = NULL;
    if (config_file_read(path, &config) ||
        json_file_read(path_of("%s/config.json", path).text, MOST_CONFIG_BYTES, &as_written)) {
        return -1;
    }
    json_object_set_new(run, "config", as_written);
    count_parameters(&config, run);
    if (!job->file || !frame_of(&config)->values) {
        return 0;
    }
    json_t *checkpoint = find_before(job->settings->before, path, iteration);
    if (!checkpoint && (checkpoint = measure(job, path, &config))) {
        json_object_set_new(checkpoint, "path", json_file_name(path));
        json_object_set_new(checkpoint, "iter", json_integer((json_int_t)iteration));
    }
    return json_array_append_new(json_object_get(run, "checkpoints"), checkpoint);
}

static int add_checkpoints(const struct job *job, const char *folder, json_t *run) {
    int64_t *iterations;
    size_t count;
    if (checkpoint_list(folder, &iterations, &count)) {
        return -1;
    }
    const size_t first = job->settings->all_checkpoints || count == 0 ? count : 1;
    int result = 0;
    for (size_t i = first; result == 0 && i-- > 0;) { /* oldest first */
        result = add_checkpoint(job, path_of("%s/ckpt-%" PRId64, folder, iterations[i]).text, iterations[i], run);
    }
    free(iterations);
    return result;
}

static void warn_of_damage(const json_t *record) {
    const json_t *damage;
    size_t i;
    json_array_foreach(json_object_get(record, "damaged"), i, damage) {
        message_print(stderr, "warning  %s: lines that cannot be read are left out: %.0f; the first is line %.0f\n",
                      json_string_value(json_object_get(damage, "path")), run_number(damage, "lines"),
                      run_number(damage, "first"));
    }
}

static bool is_checkpoint(const char *folder) {
    return files_exist(path_of("%s/config.json", folder).text);
}

/* A run directory or a checkpoint. */
static int add_run(const struct job *job, const char *path, json_t *runs) {
    json_t *run = json_pack("{s:o, s:o, s:[]}", "name", name_of(path), "path", json_file_name(path), "checkpoints");
    json_array_append_new(runs, run);
    if (is_checkpoint(path)) {
        return add_checkpoint(job, path, -1, run);
    }
    json_t *record = run_read(path);
    if (!record) {
        return -1;
    }
    json_object_set_new(run, "record", record);
    warn_of_damage(record);
    return add_checkpoints(job, path, run);
}

static int is_of_run(void *context, const char *name) {
    const bool *evaluations = context;
    char evaluation[NAME_MAX + 1];
    return (*evaluations && run_evaluation_name(name, evaluation)) || strcmp(name, RUN_LOG_METRICS) == 0 ||
           strcmp(name, RUN_LOG_STATISTICS) == 0 || strcmp(name, RUN_SETTINGS) == 0 ||
           checkpoint_iteration_of(name) >= 0;
}

/* 1: the folder is a run directory; with `evaluations`, one that has nothing but an evaluation of documents is,
 * too. 0, or -1 with an error. */
static int is_run(const char *folder, bool evaluations) {
    return files_each(folder, is_of_run, &evaluations);
}

static int is_child(const struct dirent *entry) {
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

/* Adds the run directories in a folder by name, numbers in it by value: shc-2 before shc-10. Returns how many there
 * are, or -1 with an error. */
static int add_runs_in(const struct job *job, const char *folder, json_t *runs) {
    struct dirent **entries;
    struct stat status;
    const int count = scandir(folder, &entries, is_child, versionsort);
    int found = count < 0 ? error_set_errno("cannot read the folder %s", folder) : 0;
    for (int i = 0; i < count; i++) {
        const struct path path = path_of("%s/%s", folder, entries[i]->d_name);
        if (found >= 0 && stat(path.text, &status) == 0 && S_ISDIR(status.st_mode) && !is_checkpoint(path.text)) {
            const int is_one = is_run(path.text, true);
            found = is_one < 0 || (is_one && add_run(job, path.text, runs)) ? -1 : found + is_one;
        }
        free(entries[i]);
    }
    if (count >= 0) {
        free(entries);
    }
    return found;
}

/* Adds the run directories in a folder that is none itself, or else the folder if it has evaluations of documents.
 * If it has none, that is an error, or with `waits` a line on stderr. */
static int add_folder(const struct job *job, const char *folder, json_t *runs) {
    int found = add_runs_in(job, folder, runs);
    if (found == 0 && (found = is_run(folder, true)) > 0) {
        return add_run(job, folder, runs);
    }
    if (found == 0 && !job->settings->waits) {
        return error_set("%s: no run is here: neither this folder nor one in it has " RUN_LOG_METRICS
                         ", " RUN_LOG_STATISTICS ", " RUN_SETTINGS
                         ", eval-NAME.json or ckpt-N of a run directory, and it has no config.json of a checkpoint",
                         folder);
    }
    if (found == 0) {
        message_print(stderr, "waiting  %s: no run is here yet\n", folder);
    }
    return found < 0 ? -1 : 0;
}

static int add_input(const struct job *job, const char *path, json_t *runs) {
    if (job->settings->waits && !files_exist(path)) {
        message_print(stderr, "waiting  %s: it is not there yet\n", path);
        return 0;
    }
    const int alone = is_checkpoint(path) ? 1 : is_run(path, false);
    return alone < 0 ? -1 : alone > 0 ? add_run(job, path, runs) : add_folder(job, path, runs);
}

/* ---- all of them */

/* A copy of a run's settings without the seed and what decides only when and where a run writes down what it
 * does. */
static json_t *settings_of_kind(const json_t *run) {
    static const char *const others[] = {"seed",          "log_interval",        "statistics_interval",
                                         "eval_interval", "checkpoint_interval", "keep_checkpoints"};
    json_t *settings = json_copy((json_t *)run_member(run, "record.settings"));
    for (size_t i = 0; i < COUNT(others); i++) {
        json_object_del(settings, others[i]);
    }
    return settings;
}

/* Whether both runs have settings, which differ in nothing that makes them of another kind. */
static bool is_repeat(const json_t *a, const json_t *b) {
    json_t *first = settings_of_kind(a), *second = settings_of_kind(b);
    const bool equal = json_object_size(first) > 0 && json_equal(first, second);
    json_decref(first);
    json_decref(second);
    return equal;
}

/* Gives a folder of data that runs name by several paths the first run's path in all of them, so that it counts as
 * the same. Where the folder is not on this machine, paths are compared as texts. */
static void unify_data_paths(const json_t *runs) {
    for (size_t i = 0; i < json_array_size(runs); i++) {
        json_t *settings = (json_t *)run_member(json_array_get(runs, i), "record.settings");
        const char *path = json_string_value(json_object_get(settings, "data_dir"));
        for (size_t j = 0; path && j < i; j++) {
            const char *first = json_string_value(run_member(json_array_get(runs, j), "record.settings.data_dir"));
            if (first && (strcmp(first, path) == 0 || files_are_same(first, path))) {
                json_object_set_new(settings, "data_dir", json_string(first));
                break;
            }
        }
    }
}

/* Gives each run the number of the first one that it repeats, or its own. */
static void number_kinds(json_t *runs) {
    for (size_t i = 0; i < json_array_size(runs); i++) {
        size_t kind = 0;
        while (kind < i && !is_repeat(json_array_get(runs, kind), json_array_get(runs, i))) {
            kind++;
        }
        json_object_set_new(json_array_get(runs, i), "kind", json_integer((json_int_t)kind));
    }
}

/* An error unless a report shows more of some run than its name. */
static int check_content(const json_t *runs, const struct analyze_settings *settings) {
    static const char *const places[] = {"checkpoints",           "record.settings",   "record.documents",
                                         "record.tasks",          "record.steps.iter", "record.evaluations.iter",
                                         "record.statistics.iter"};
    const json_t *run;
    size_t rows = *settings->bench || settings->waits, i;
    json_array_foreach(runs, i, run) {
        for (size_t k = 0; k < COUNT(places); k++) {
            const json_t *place = run_member(run, places[k]);
            rows += json_array_size(place) + json_object_size(place);
        }
    }
    return rows > 0 ? 0
                    : error_set("there is nothing to show: looked for lines of " RUN_LOG_METRICS
                                " and " RUN_LOG_STATISTICS ", " RUN_SETTINGS
                                " and eval-NAME.json of runs, and for checkpoints with several streams, whose "
                                "H_res is measured with --data-dir%s",
                                *settings->data_dir ? "" : " (it is not given)");
}

json_t *analyze_run(struct compute *compute, const struct analyze_settings *settings) {
    struct job job = {compute, NULL, settings};
    json_t *runs = json_array(), *bench = NULL, *comparison = NULL;
    int result = *settings->data_dir ? token_file_open_split(settings->data_dir, settings->split, &job.file) : 0;
    for (size_t i = 0; result == 0 && i < settings->input_count; i++) {
        result = add_input(&job, settings->inputs[i], runs);
    }
    token_file_close(job.file);
    unify_data_paths(runs);
    number_kinds(runs);
    if (result || check_content(runs, settings) || !(comparison = comparison_make(runs, settings->baselines)) ||
        (*settings->bench && json_file_read(settings->bench, MOST_BENCH_BYTES, &bench))) {
        json_decref(runs);
        json_decref(comparison);
        return NULL;
    }
    return json_pack("{s:I, s:o, s:o, s:o*}", "samples", (json_int_t)(*settings->data_dir ? settings->samples : 0),
                     "runs", runs, "comparison", comparison, "bench", bench);
}
