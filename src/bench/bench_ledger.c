/* The ledger of a step: recorded without a device, or with one in the shape of another. */
#include "runtime/files/json_file.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/message.h"
#include "src/bench/bench.h"
#include "src/bench/bench_model.h"
#include "src/bench/ledger.h"
#include "src/bench/schedule.h"
#include <inttypes.h>
#include <stdlib.h>

struct ledgers {
    struct ledger micro, optimiser;
    json_t *schedule;
};

/* The last micro-step, with when its gradients are complete. */
static int record_last(struct bench_model *bench, const struct gpu_model *model, struct ledgers *ledgers) {
    struct schedule_marks marks = {bench->compute->launch_log,
                                   calloc((size_t)(BRANCHES * bench->gpt.config.n_layer + 2), sizeof *marks.marks)};
    int status = marks.marks ? 0 : error_set("out of memory for the ledger");
    if (status == 0) {
        bench->parallel.watcher = (struct gpt_listener){schedule_mark, &marks};
        status = bench_model_micro_step(bench, 0, bench->micro_steps - 1);
        bench->parallel.watcher = (struct gpt_listener){0};
        ledgers->schedule = schedule_recorded(&bench->parallel, &marks, model);
    }
    free(marks.marks);
    return status;
}

/* A later micro-step (the first one writes gradients, the others add to them), and what comes between it and the next
 * step. */
static int record(struct bench_model *bench, const struct gpu_model *model, struct ledgers *ledgers) {
    struct launch_log *log = bench->compute->launch_log;
    float loss, norm;
    gpt_zero(&bench->gpt);
    if (bench_model_micro_step(bench, 0, 0)) {
        return -1;
    }
    log->count = 0;
    if (record_last(bench, model, ledgers) || ledger_create(&ledgers->micro, model, log)) {
        return -1;
    }
    log->count = 0;
    if (data_parallel_step(&bench->parallel, &bench->train->optimizer, 0) ||
        gpt_read_results(&bench->gpt, &loss, &norm)) {
        return -1;
    }
    gpt_zero(&bench->gpt);
    return compute_check(bench->compute) || ledger_create(&ledgers->optimiser, model, log) ? -1 : 0;
}

/* ---- reports */

static double tokens_of(const struct bench_model *bench) {
    return (double)(bench->train->batch_size * bench->train->model.block_size);
}

static void print(const struct bench_model *bench, const struct gpu_model *model, const struct ledgers *ledgers) {
    const struct gpt *gpt = &bench->gpt;
    const struct ledger_sum frame = ledger_part(&ledgers->micro, "hyper-connections");
    const double steps = (double)bench->micro_steps;
    const double seconds = ledgers->micro.all.seconds + ledgers->optimiser.all.seconds / steps;
    const double speed = tokens_of(bench) / seconds,
                 peak = model->matrix_core_rate > 0.0 ? model->matrix_core_rate : model->rate;
    message_print(stdout, "ledger   of %s, by its data sheet: %s\n", model->title,
                  bench->compute->dry ? "nothing has run" : "run in its shape, not on it");
    message_print(stdout,
                  "model    %s, %" PRId64 " streams, %" PRId64 " layers, %" PRId64 " channels, vocabulary %" PRId64
                  " (%s), %" PRId64 " x %" PRId64 " tokens a micro-step, in %s; products by %s\n",
                  gpt->config.residual->name, gpt->config.n_streams, gpt->config.n_layer, gpt->config.n_embd,
                  gpt->config.vocab_size, bench->vocabulary_source, bench->train->batch_size,
                  bench->train->model.block_size, element_name(gpt->options.type),
                  gemm_description(bench->compute));
    message_print(stdout,
                  "speed    %.0f tokens/s predicted at %" PRId64
                  " micro-steps a step, %.1f %% of the data sheet's %.1f "
                  "TFLOP/s\n",
                  speed, bench->micro_steps, 100.0 * speed * gpt_flops_per_token(gpt) / peak, 1e-12 * peak);
    message_print(
        stdout,
        "frame    %.1f MB of hyper-connections a sublayer, forward and backward; %zu launches of a micro-step have "
        "fewer groups than twice the cores\n",
        1e-6 * (frame.read + frame.written) / (double)(BRANCHES * gpt->config.n_layer), ledgers->micro.narrow);
    ledger_print(&ledgers->micro, "a micro-step", stdout);
    ledger_print(&ledgers->optimiser, "the optimiser's step", stdout);
}

static json_t *both(json_t *first, json_t *second) {
    if (first && second) {
        json_array_extend(first, second);
    }
    json_decref(second);
    return first;
}

static int write_json(const char *path, struct bench_model *bench, const struct gpu_model *model,
                      const struct ledgers *ledgers) {
    json_t *json = bench_model_facts(bench);
    json_t *more = json_pack(
        "{s:s, s:s, s:I, s:b, s:o, s:o, s:o, s:o, s:O}", "as", model->name, "title", model->title, "cores",
        (json_int_t)model->cores, "ran", !bench->compute->dry, "micro_step", ledger_totals(&ledgers->micro),
        "optimiser_step", ledger_totals(&ledgers->optimiser), "parts",
        both(ledger_parts(&ledgers->micro, "micro_step"), ledger_parts(&ledgers->optimiser, "optimiser_step")),
        "kernels",
        both(ledger_kernels(&ledgers->micro, "micro_step"), ledger_kernels(&ledgers->optimiser, "optimiser_step")),
        "schedule", ledgers->schedule);
    const int status = !more || json_object_update(json, more)
                           ? error_set("out of memory for %s", path)
                           : json_file_write(path, json, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
    json_decref(more);
    json_decref(json);
    return status;
}

/* ---- all of it */

static const struct gpu_model *find_model(const struct bench_settings *settings) {
    struct device device;
    if (*settings->as) {
        return gpu_model_find(settings->as, NULL);
    }
    const struct gpu_model *model =
        device_choose(settings->train.device.device, 0, &device) ? NULL : gpu_model_find(NULL, &device);
    if (!model) {
        error_prefix("--ledger without --as");
    }
    return model;
}

enum bench_status bench_ledger_run(const struct bench_settings *settings, struct ranks *ranks) {
    struct train_settings train = settings->train;
    struct bench_model bench;
    struct ledgers ledgers = {0};
    const struct gpu_model *model = find_model(settings);
    if (!model || bench_model_check(&bench, &train, ranks)) {
        return BENCH_WRONG;
    }
    train.device.model = model;
    train.device.record = true;
    train.device.dry = !settings->run;
    int status = bench_model_set_up(&bench) || record(&bench, model, &ledgers) ? -1 : 0;
    if (status == 0) {
        print(&bench, model, &ledgers);
        status = *settings->json ? write_json(settings->json, &bench, model, &ledgers) : 0;
    }
    json_decref(ledgers.schedule);
    ledger_release(&ledgers.micro);
    ledger_release(&ledgers.optimiser);
    bench_model_release(&bench);
    return status ? BENCH_FAILED : BENCH_DONE;
}
