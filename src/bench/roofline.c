/* The roofline estimate of a training step: all launches of a micro-step and of the optimizer's step, logged
 * without a device or on one in the shape of another, and the seconds that a data sheet allows for each of them. */
#include "runtime/device/gpu_model.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "src/bench/bench.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sums over launches: counts, bytes, FLOPs (padded: with those at the edges of tiles), and seconds by
 * gpu_model_time. */
enum sum { LAUNCHES, WAITS, BYTES, READ, WRITTEN, FLOPS, PADDED_FLOPS, SECONDS, SUMS };
static const char *const sum_names[SUMS] = {"launches", "waits", "bytes",        "read",
                                            "written",  "flops", "padded_flops", "seconds"};

/* The launches of a module of the model, or those among them of one kernel with one size. */
struct launch_row {
    struct launch_entry entry; /* the first of them */
    double sums[SUMS];
    const char *limit; /* what limits one of these launches, as struct gpu_time has it */
};

struct launch_table {
    struct launch_row *rows; /* owned */
    size_t count;
};

/* What one part of a step takes. */
struct estimate {
    struct launch_table kernels, modules; /* those that take most seconds first */
    double all[SUMS];
    size_t narrow; /* launches of kernels with fewer groups than twice the device's cores */
};

struct roofline {
    struct bench_model bench;
    const struct gpu_model *model;
    struct estimate micro_step, optimizer_step;
};

/* ---- adding up */

static void add(double to[SUMS], const double from[SUMS]) {
    for (size_t i = 0; i < SUMS; i++) {
        to[i] += from[i];
    }
}

/* Adds to the row of the entry's module, with `kernel` to that of its kernel and size; a new one behind the others
 * if need be. */
static void add_to_row(struct launch_table *table, const struct launch_entry *entry, const double sums[SUMS],
                       const char *limit, bool kernel) {
    size_t i = 0;
    for (; i < table->count; i++) {
        const struct launch_entry *other = &table->rows[i].entry;
        if (strcmp(other->module, entry->module) == 0 &&
            (!kernel || (strcmp(other->name, entry->name) == 0 && other->groups == entry->groups &&
                         other->local == entry->local))) {
            break;
        }
    }
    if (i == table->count) {
        table->rows = memory_resize(table->rows, ++table->count, sizeof *table->rows);
        table->rows[i] = (struct launch_row){.entry = *entry, .limit = limit};
    }
    add(table->rows[i].sums, sums);
}

static int by_seconds(const void *a, const void *b) {
    const struct launch_row *one = a, *other = b;
    return (one->sums[SECONDS] < other->sums[SECONDS]) - (one->sums[SECONDS] > other->sums[SECONDS]);
}

/* Cycles that a work-group waits for maps from projections to H. In the fused frame the first lane of a row maps
 * its token, in the kernels of the map alone each lane does; a group may have several tokens one after another.
 * Maps are of n x n matrices, and were counted with four streams. */
static double map_cycles(const struct roofline *roofline, const struct launch_entry *entry) {
    const struct model_config *config = &roofline->bench.config;
    const char *const fused[] = {"frame_enter", "frame_between", "frame_backward"};
    bool is_fused = false;
    for (size_t i = 0; i < sizeof fused / sizeof *fused; i++) {
        is_fused |= strcmp(entry->name, fused[i]) == 0;
    }
    if (!is_fused && strncmp(entry->name, "hc_map_", strlen("hc_map_")) != 0) {
        return 0.0;
    }
    const double at_once =
        (double)(entry->groups * entry->local) / (is_fused ? roofline->bench.compute->lanes : 1.0);
    const double tokens = (double)roofline->bench.train->batch_size * (double)config->block_size;
    const double cycles =
        gpu_model_map_cycles(roofline->model, config->residual->name, strstr(entry->name, "backward") != NULL);
    return ceil(tokens / at_once) * cycles * (double)(config->n_streams * config->n_streams) / 16.0;
}

static void estimate_make(const struct roofline *roofline, struct estimate *estimate) {
    const struct gpu_model *model = roofline->model;
    const struct launch_log *log = roofline->bench.compute->launch_log;
    for (size_t i = 0; i < log->count; i++) {
        const struct launch_entry *entry = &log->entries[i];
        const double flops = fmax(entry->padded_flops, entry->flops), bytes = entry->read + entry->written;
        const struct gpu_work work = {.groups = (double)entry->groups,
                                      .local = (double)entry->local,
                                      .bytes = bytes,
                                      .padded_flops = flops,
                                      .on_matrix_cores = entry->on_matrix_cores,
                                      .kernel = entry->name,
                                      .map_cycles = map_cycles(roofline, entry)};
        const struct gpu_time time = gpu_model_time(model, &work);
        const double sums[SUMS] = {entry->launches, entry->waits, bytes, entry->read,
                                   entry->written,  entry->flops, flops, entry->launches ? time.seconds : 0.0};
        add_to_row(&estimate->kernels, entry, sums, time.limit, true);
        add(estimate->all, sums);
        estimate->narrow += entry->groups > 0 && entry->groups < 2 * (size_t)model->cores;
    }
    if (estimate->kernels.count > 0) {
        qsort(estimate->kernels.rows, estimate->kernels.count, sizeof *estimate->kernels.rows, by_seconds);
    }
    for (size_t i = 0; i < estimate->kernels.count; i++) {
        const struct launch_row *row = &estimate->kernels.rows[i];
        add_to_row(&estimate->modules, &row->entry, row->sums, NULL, false);
    }
}

/* ---- logging a step */

/* A later micro-step, since the first one writes gradients and the others add to them, and what comes between it
 * and the next step. */
static int log_step(struct roofline *roofline) {
    struct bench_model *bench = &roofline->bench;
    struct launch_log *log = bench->compute->launch_log;
    float loss, norm;
    gpt_zero(&bench->gpt);
    if (bench_model_micro_step(bench, 0, 0)) {
        return -1;
    }
    log->count = 0;
    if (bench_model_micro_step(bench, 0, 0)) {
        return -1;
    }
    estimate_make(roofline, &roofline->micro_step);
    log->count = 0;
    if (bench_model_micro_step(bench, 0, bench->micro_steps - 1)) {
        return -1;
    }
    log->count = 0;
    if (data_parallel_step(&bench->parallel, &bench->train->optimizer, 0) ||
        gpt_read_results(&bench->gpt, &loss, &norm)) {
        return -1;
    }
    gpt_zero(&bench->gpt);
    estimate_make(roofline, &roofline->optimizer_step);
    return compute_check(bench->compute);
}

/* ---- human-readable */

static void print_sums(const double values[SUMS], double whole) {
    message_print(stdout, " %8.0f %5.0f %11.1f %11.1f %9.3f %5.1f %%\n", values[LAUNCHES], values[WAITS],
                  1e-6 * values[BYTES], 1e-9 * values[FLOPS], 1e3 * values[SECONDS],
                  whole > 0.0 ? 100.0 * values[SECONDS] / whole : 0.0);
}

static void print_head(const char *title) {
    message_print(stdout, "\n%-56s %8s %5s %11s %11s %9s %7s\n", title, "launches", "waits", "MB", "GFLOP", "ms",
                  "share");
}

/* The modules, then the kernels that take most. */
static void print_estimate(const struct estimate *estimate, const char *title) {
    enum { MOST = 40 };
    const double whole = estimate->all[SECONDS];
    print_head(title);
    for (size_t i = 0; i < estimate->modules.count; i++) {
        message_print(stdout, "  %-54s", estimate->modules.rows[i].entry.module);
        print_sums(estimate->modules.rows[i].sums, whole);
    }
    message_print(stdout, "  %-54s", "in all");
    print_sums(estimate->all, whole);
    print_head("  kernel                                    groups x size");
    for (size_t i = 0; i < estimate->kernels.count && i < MOST; i++) {
        const struct launch_entry *entry = &estimate->kernels.rows[i].entry;
        message_print(stdout, "  %-40s %6zu x %4zu", entry->name, entry->groups, entry->local);
        print_sums(estimate->kernels.rows[i].sums, whole);
    }
    if (estimate->kernels.count > MOST) {
        message_print(stdout, "  and %zu more\n", estimate->kernels.count - MOST);
    }
}

static void print(const struct roofline *roofline) {
    const struct bench_model *bench = &roofline->bench;
    const struct gpu_model *model = roofline->model;
    const struct estimate *micro_step = &roofline->micro_step;
    double frame_bytes = 0.0; /* of hyper-connections */
    for (size_t i = 0; i < micro_step->modules.count; i++) {
        const struct launch_row *row = &micro_step->modules.rows[i];
        frame_bytes += strcmp(row->entry.module, "hyper-connections") == 0 ? row->sums[BYTES] : 0.0;
    }
    const double steps = (double)bench->micro_steps;
    const double tokens = (double)(bench->train->batch_size * bench->train->model.block_size);
    const double speed = tokens / (micro_step->all[SECONDS] + roofline->optimizer_step.all[SECONDS] / steps);
    const double peak = model->matrix_core_rate > 0.0 ? model->matrix_core_rate : model->rate;
    message_print(stdout, "roofline of %s, by its data sheet: %s\n", model->title,
                  bench->compute->dry ? "nothing has run" : "run in its shape, not on it");
    bench_model_print(bench);
    message_print(stdout, ", %" PRId64 " x %" PRId64 " tokens a micro-step, in %s; GEMMs by %s\n",
                  bench->train->batch_size, bench->train->model.block_size, element_name(bench->gpt.options.type),
                  gemm_facts(bench->compute).description);
    message_print(
        stdout,
        "speed    %.0f tokens/s predicted at %.0f micro-steps a step, %.1f %% of the data sheet's %.1f TFLOP/s\n",
        speed, steps, 100.0 * speed * gpt_flops_per_token(&bench->gpt) / peak, 1e-12 * peak);
    message_print(stdout,
                  "frame    %.1f MB of hyper-connections a sublayer, forward and backward; %zu launches of a "
                  "micro-step have fewer groups than twice the cores\n",
                  1e-6 * frame_bytes / (double)(BRANCHES * bench->gpt.config.n_layer), micro_step->narrow);
    print_estimate(micro_step, "a micro-step");
    print_estimate(&roofline->optimizer_step, "the optimizer's step");
}

/* ---- for programs */

static json_t *sums_json(const double sums[SUMS]) {
    json_t *json = json_object();
    for (size_t i = 0; i < SUMS; i++) {
        json_object_set_new(json, sum_names[i],
                            i <= WAITS ? json_integer((json_int_t)sums[i]) : json_real(sums[i]));
    }
    return json;
}

static void append_rows(json_t *list, const struct launch_table *table, const char *step, bool kernels) {
    for (size_t i = 0; i < table->count; i++) {
        const struct launch_entry *entry = &table->rows[i].entry;
        json_t *json = sums_json(table->rows[i].sums);
        json_object_update_new(json, json_pack("{s:s, s:s}", "step", step, "part", entry->module));
        if (kernels) {
            json_object_update_new(json, json_pack("{s:s, s:s, s:I, s:I, s:b}", "name", entry->name, "limit",
                                                   table->rows[i].limit, "groups", (json_int_t)entry->groups,
                                                   "group_size", (json_int_t)entry->local, "on_unit",
                                                   entry->on_matrix_cores));
        }
        json_array_append_new(list, json);
    }
}

/* Its sums; its rows go to the lists. */
static json_t *estimate_json(const struct estimate *estimate, const char *step, json_t *modules, json_t *kernels) {
    json_t *json = sums_json(estimate->all);
    json_object_set_new(json, "narrow", json_integer((json_int_t)estimate->narrow));
    append_rows(kernels, &estimate->kernels, step, true);
    append_rows(modules, &estimate->modules, step, false);
    return json;
}

/* ---- all of it */

enum program_status bench_roofline_run(const struct bench_settings *settings, struct ranks *ranks) {
    struct train_settings train = settings->train;
    struct roofline roofline = {.model = NULL};
    struct device device;
    if (*settings->as) {
        roofline.model = gpu_model_find(settings->as, NULL);
    } else if (device_choose(train.device.device, 0, &device) ||
               !(roofline.model = gpu_model_find(NULL, &device))) {
        error_prefix("--roofline without --as");
    }
    if (!roofline.model || bench_model_check(&roofline.bench, &train, ranks)) {
        return PROGRAM_WRONG;
    }
    train.device.model = roofline.model;
    train.device.record = true;
    train.device.dry = !settings->roofline_runs;
    int status = bench_model_set_up(&roofline.bench) || log_step(&roofline);
    if (status == 0) {
        print(&roofline);
    }
    if (status == 0 && *settings->json) {
        json_t *kernels = json_array(), *modules = json_array();
        json_t *micro_step = estimate_json(&roofline.micro_step, "micro_step", modules, kernels),
               *optimizer_step = estimate_json(&roofline.optimizer_step, "optimiser_step", modules, kernels);
        status =
            bench_model_write_json(&roofline.bench, settings->json,
                                   json_pack("{s:s, s:s, s:I, s:b, s:o, s:o, s:o, s:o}", "as", roofline.model->name,
                                             "title", roofline.model->title, "cores",
                                             (json_int_t)roofline.model->cores, "ran", !roofline.bench.compute->dry,
                                             "micro_step", micro_step, "optimiser_step", optimizer_step, "parts",
                                             modules, "kernels", kernels));
    }
    free(roofline.micro_step.kernels.rows);
    free(roofline.micro_step.modules.rows);
    free(roofline.optimizer_step.kernels.rows);
    free(roofline.optimizer_step.modules.rows);
    bench_model_release(&roofline.bench);
    return status ? PROGRAM_FAILED : PROGRAM_DONE;
}
