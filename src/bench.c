#include "src/bench.h"
#include "runtime/error.h"
#include "runtime/gemm.h"
#include "runtime/host.h"
#include "runtime/json_file.h"
#include "runtime/percentile.h"
#include "runtime/progress.h"
#include "runtime/random.h"
#include "src/data_parallel.h"
#include "src/train_options.h"
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Kinds of seconds measured in each step. */
enum { STEP, COMPUTE, EXPOSED, REST, ACTIVE, KINDS };

struct bench_state {
    const struct bench_settings *settings;
    struct ranks *ranks;
    struct compute *compute;
    struct gpt gpt;
    struct data_parallel parallel;
    int64_t micro_steps;
    int32_t *tokens;        /* [2, batch, block_size] */
    double *seconds[KINDS]; /* [steps] */
    double bytes;           /* sent in the last step */
    struct progress progress;
};

/* ---- steps */

/* Other tokens in every micro-step, as in training: the embedding's gradient depends on how many there are. */
static int set_batch(struct bench_state *bench, uint64_t number) {
    const struct train_settings *train = &bench->settings->train;
    const struct token_shape shape = {train->batch_size, train->model.block_size};
    const uint64_t count = (uint64_t)(shape.batch * shape.sequence);
    const uint64_t key = random_key((uint64_t)bench->ranks->index, "bench");
    for (uint64_t i = 0; i < 2 * count; i++) {
        bench->tokens[i] =
            (int32_t)random_below(key, number * 2 * count + i, (uint64_t)bench->gpt.config.vocab_size);
    }
    return gpt_set_batch(&bench->gpt, shape, bench->tokens, bench->tokens + count);
}

/* The clock when all gradients are there; what was exchanged on the way is in the times. */
static int run_backward(struct bench_state *bench, uint64_t step) {
    const struct train_settings *train = &bench->settings->train;
    gpt_zero(&bench->gpt);
    for (int64_t micro = 0; micro < bench->micro_steps; micro++) {
        if (set_batch(bench, step * (uint64_t)bench->micro_steps + (uint64_t)micro)) {
            return -1;
        }
        gpt_forward(&bench->gpt, (struct gpt_pass){.dropout = true, .iteration = (int64_t)step});
        gpt_loss(&bench->gpt, 1.0f / (float)train->gradient_accumulation_steps, true);
        data_parallel_backward(&bench->parallel, micro + 1 == bench->micro_steps);
    }
    /* alone, nothing else waits for the device here */
    return bench->parallel.exchange ? compute_check(bench->compute) : compute_finish(bench->compute);
}

static int run_step(struct bench_state *bench, uint64_t step, double seconds[KINDS]) {
    const double start = progress_clock();
    float loss, norm;
    bench->parallel.times = (struct exchange_times){0};
    if (run_backward(bench, step) ||
        data_parallel_step(&bench->parallel, &bench->settings->train.optimizer, (int64_t)step) ||
        gpt_read_results(&bench->gpt, &loss, &norm)) {
        return -1;
    }
    double sum = (double)loss;
    if (ranks_sum(bench->ranks, &sum, 1)) {
        return -1;
    }
    const double end = progress_clock();
    const double exposed = bench->parallel.gradient_times.exposed;
    seconds[STEP] = end - start;
    seconds[COMPUTE] = bench->parallel.gradients_at - exposed - start;
    seconds[EXPOSED] = exposed;
    seconds[REST] = end - bench->parallel.gradients_at;
    seconds[ACTIVE] = bench->parallel.gradient_times.active;
    bench->bytes = bench->parallel.times.bytes;
    return 0;
}

static int run_steps(struct bench_state *bench) {
    const struct bench_settings *settings = bench->settings;
    for (int64_t step = 0; step < settings->warmup + settings->steps; step++) {
        double seconds[KINDS];
        char text[32];
        if (run_step(bench, (uint64_t)step, seconds)) {
            return -1;
        }
        for (int kind = 0; kind < KINDS && step >= settings->warmup; kind++) {
            bench->seconds[kind][step - settings->warmup] = seconds[kind];
        }
        snprintf(text, sizeof text, "%.1f ms", 1e3 * seconds[STEP]);
        progress_show(&bench->progress, "step", step + 1, settings->warmup + settings->steps, text, false);
    }
    progress_end(&bench->progress);
    return 0;
}

/* ---- figures */

static double median_of(double *values, size_t count) {
    percentile_sort(values, count);
    return percentile(values, count, 0.5);
}

/* Every step's seconds become those of all ranks together, the slowest or the mean; then the figure. */
static int conclude(struct bench_state *bench, int kind, struct bench_figure *figure) {
    const size_t count = (size_t)bench->settings->steps, ranks = (size_t)bench->ranks->count;
    double *all = calloc(count * ranks, sizeof *all), *values = bench->seconds[kind];
    int status = all ? ranks_gather(bench->ranks, values, count * sizeof *values, all)
                     : error_set("out of memory for the figures");
    for (size_t step = 0; status == 0 && step < count; step++) {
        double largest = 0.0, sum = 0.0;
        for (size_t rank = 0; rank < ranks; rank++) {
            const double value = all[rank * count + step];
            largest = value > largest ? value : largest;
            sum += value;
        }
        values[step] = kind == STEP ? largest : sum / (double)ranks;
    }
    free(all);
    if (status == 0) {
        figure->median = median_of(values, count);
        figure->minimum = values[0];
        figure->maximum = values[count - 1];
    }
    return status;
}

/* The sums of gradients with nothing else going on, a few times. */
static int measure_exchange(struct bench_state *bench, struct bench_result *result) {
    double seconds[5];
    if (!bench->parallel.exchange) {
        return 0;
    }
    for (int i = 0; i < 5; i++) {
        double together = 0.0;
        if (compute_finish(bench->compute) || ranks_sum(bench->ranks, &together, 1)) {
            return -1;
        }
        const double start = progress_clock();
        exchange_begin(bench->parallel.exchange, EXCHANGE_SUM, bench->gpt.parameters.gradients);
        struct exchange_times times = {0};
        if (exchange_finish(bench->parallel.exchange, &times)) {
            return -1;
        }
        result->bytes_alone = times.bytes;
        seconds[i] = progress_clock() - start;
    }
    result->exchange_alone = median_of(seconds, 5);
    return 0;
}

static int collect(struct bench_state *bench, struct bench_result *result) {
    struct bench_figure *figures[KINDS] = {&result->step, &result->compute, &result->exposed, &result->rest,
                                           &result->active};
    for (int kind = 0; kind < KINDS; kind++) {
        if (conclude(bench, kind, figures[kind])) {
            return -1;
        }
    }
    result->tokens = (double)gpt_tokens(&bench->gpt) * (double)bench->micro_steps * bench->ranks->count;
    result->tokens_per_second = result->tokens / result->step.median;
    result->bytes = bench->bytes;
    result->gradient_bytes = bench->gpt.parameters.elements * sizeof(float);
    return measure_exchange(bench, result);
}

/* ---- reports */

static void print_part(const char *name, const struct bench_figure *figure, double step) {
    printf("  %-24s %10.2f %8.1f %%\n", name, 1e3 * figure->median, 100.0 * figure->median / step);
}

static void print_split(const struct bench_state *bench, const struct bench_result *result) {
    const double step = result->step.median, gigabyte = 1e-9;
    printf("  %-24s %10s %10s\n", "", "ms a step", "share");
    print_part("forward and backward", &result->compute, step);
    print_part("exposed communication", &result->exposed, step);
    print_part("optimiser and the rest", &result->rest, step);
    if (bench->ranks->count == 1) {
        return;
    }
    const double hidden =
        result->active.median > result->exposed.median ? 1.0 - result->exposed.median / result->active.median : 0.0;
    printf("exchange %.2f MiB of gradients in %zu buckets, %.2f MiB sent a step by each rank\n"
           "         under way for %.2f ms of a step, %.0f %% of it hidden behind computation\n"
           "         alone %.2f ms: %.2f GB/s sent by each rank\n",
           (double)result->gradient_bytes / 1048576.0, bench->gpt.buckets.count, result->bytes / 1048576.0,
           1e3 * result->active.median, 100.0 * hidden, 1e3 * result->exchange_alone,
           gigabyte * result->bytes_alone / result->exchange_alone);
}

static void print_result(const struct bench_state *bench, const struct bench_result *result) {
    const double flops = gpt_flops_per_token(&bench->gpt);
    printf("step     %.2f ms, median of %" PRId64 " (%.2f to %.2f), of %.0f tokens\n", 1e3 * result->step.median,
           bench->settings->steps, 1e3 * result->step.minimum, 1e3 * result->step.maximum, result->tokens);
    printf("speed    %.1f tokens/s, %.0f %% of the %.1f GFLOP/s in matrix products alone\n",
           result->tokens_per_second, 100.0 * result->tokens_per_second * flops / result->gemm_rate,
           1e-9 * result->gemm_rate);
    if (bench->settings->ranks) {
        print_split(bench, result);
    }
}

static json_t *figure_json(const struct bench_figure *figure) {
    return json_pack("{s:f, s:f, s:f}", "min", figure->minimum, "median", figure->median, "max", figure->maximum);
}

static json_t *seconds_json(const struct bench_result *result) {
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:f}", "step", figure_json(&result->step), "compute",
                     figure_json(&result->compute), "exposed", figure_json(&result->exposed), "rest",
                     figure_json(&result->rest), "active", figure_json(&result->active), "exchange_alone",
                     result->exchange_alone);
}

static int write_json(const struct bench_state *bench, const struct bench_result *result) {
    const struct model_config *model = &bench->gpt.config;
    json_t *json = json_pack("{s:s, s:b, s:s, s:I, s:I}", "device", bench->compute->device.name, "cpu",
                             (int)bench->compute->device.is_cpu, "residual", model->residual->name, "n_streams",
                             (json_int_t)model->n_streams, "n_layer", (json_int_t)model->n_layer);
    json_t *work =
        json_pack("{s:i, s:i, s:I, s:f, s:f, s:f}", "ranks", bench->ranks->count, "hosts", bench->ranks->hosts,
                  "micro_steps", (json_int_t)bench->micro_steps, "tokens", result->tokens, "tokens_per_second",
                  result->tokens_per_second, "gemm_rate", result->gemm_rate);
    json_t *exchange = json_pack("{s:I, s:I, s:f, s:f}", "gradient_bytes", (json_int_t)result->gradient_bytes,
                                 "buckets", (json_int_t)bench->gpt.buckets.count, "bytes_sent", result->bytes,
                                 "bytes_alone", result->bytes_alone);
    json_t *seconds = seconds_json(result);
    int status = json_object_update(json, work) || json_object_update(json, exchange) ||
                         json_object_set(json, "seconds", seconds)
                     ? error_set("out of memory for %s", bench->settings->json)
                     : json_file_write(bench->settings->json, json, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(work);
    json_decref(exchange);
    json_decref(seconds);
    json_decref(json);
    return status;
}

/* ---- all of it */

/* Whether the settings can be measured at all; *config is the model with a vocabulary. */
static int check_settings(struct bench_state *bench, struct model_config *config) {
    const struct train_settings *train = &bench->settings->train;
    *config = train->model;
    config->vocab_size = config->vocab_size ? config->vocab_size : 50304;
    return model_config_check(config) ||
                   data_parallel_divide(train->gradient_accumulation_steps, bench->ranks, &bench->micro_steps)
               ? -1
               : 0;
}

static int allocate(struct bench_state *bench) {
    const struct train_settings *train = &bench->settings->train;
    bool whole = (bench->tokens = malloc(2 * (size_t)(train->batch_size * train->model.block_size) *
                                         sizeof *bench->tokens)) != NULL;
    for (int kind = 0; kind < KINDS; kind++) {
        bench->seconds[kind] = calloc((size_t)bench->settings->steps, sizeof **bench->seconds);
        whole &= bench->seconds[kind] != NULL;
    }
    return whole ? 0 : error_set("out of memory");
}

static int plan(struct bench_state *bench, const struct model_config *config) {
    const struct train_settings *train = &bench->settings->train;
    const struct gpt_options options = train_model_options(train, bench->ranks);
    return allocate(bench) ||
                   settings_open_device(&train->device, (unsigned)bench->ranks->local_index, &bench->compute) ||
                   gpt_plan(bench->compute, config, &options, &bench->gpt)
               ? -1
               : 0;
}

static int set_up(struct bench_state *bench, const struct model_config *config) {
    if (ranks_agree(bench->ranks, plan(bench, config)) || data_parallel_create_model(&bench->gpt, bench->ranks)) {
        return -1;
    }
    const int status = parameters_initialise(bench->compute, &bench->gpt.parameters, config->n_streams, 1) ||
                       data_parallel_create(&bench->parallel, &bench->gpt, bench->ranks);
    return ranks_agree(bench->ranks, status);
}

static void release(struct bench_state *bench) {
    data_parallel_release(&bench->parallel);
    gpt_release(&bench->gpt);
    compute_close(bench->compute);
    free(bench->tokens);
    for (int kind = 0; kind < KINDS; kind++) {
        free(bench->seconds[kind]);
    }
}

static void print_head(const struct bench_state *bench) {
    const struct model_config *model = &bench->gpt.config;
    printf("device   %s (%s), products by %s\n", bench->compute->device.name, bench->compute->device.platform_name,
           gemm_name(bench->compute));
    printf("model    %s, %" PRId64 " streams, %" PRId64 " layers, %" PRId64 " channels, %.4g parameters\n",
           model->residual->name, model->n_streams, model->n_layer, model->n_embd,
           (double)bench->gpt.parameters.total);
    printf("ranks    %d on %d host%s, %" PRId64 " micro-batches of %" PRId64 " x %" PRId64 " each",
           bench->ranks->count, bench->ranks->hosts, bench->ranks->hosts == 1 ? "" : "s", bench->micro_steps,
           bench->settings->train.batch_size, model->block_size);
    printf(bench->compute->device.is_cpu ? "; cores for rank 0: %u\n" : "\n", host_cores());
    fflush(stdout);
}

static int measure(struct bench_state *bench) {
    struct bench_result result = {0};
    if (bench->ranks->index == 0) {
        print_head(bench);
    }
    progress_start(&bench->progress, 0);
    bench->progress.silent = bench->ranks->index > 0;
    if (data_parallel_measure_rate(&bench->gpt, &result.gemm_rate) || run_steps(bench) || collect(bench, &result)) {
        return -1;
    }
    if (bench->ranks->index > 0) {
        return 0;
    }
    print_result(bench, &result);
    return *bench->settings->json ? write_json(bench, &result) : 0;
}

enum bench_status bench_run(const struct bench_settings *settings, struct ranks *ranks) {
    struct bench_state bench = {.settings = settings, .ranks = ranks};
    struct model_config config;
    ranks->patience = settings->train.rank_timeout;
    if (ranks_agree(ranks, check_settings(&bench, &config))) {
        return BENCH_WRONG;
    }
    const int status = set_up(&bench, &config) || measure(&bench);
    if (status) {
        ranks_end_others(ranks, "hc_bench");
    }
    release(&bench);
    return status ? BENCH_FAILED : BENCH_DONE;
}
