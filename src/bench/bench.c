#include "src/bench/bench.h"
#include "runtime/device/profiler.h"
#include "runtime/files/json_file.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/distribution.h"
#include "runtime/system/error.h"
#include "runtime/system/host.h"
#include "runtime/system/host_memory.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "runtime/system/parallel.h"
#include "runtime/system/progress.h"
#include "runtime/system/random.h"
#include "src/training/data_parallel.h"
#include "src/training/training_data.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>

/* ---- a model on random tokens: steps */

int bench_model_micro_step(struct bench_model *bench, uint64_t step, int64_t micro) {
    const struct train_settings *train = bench->train;
    const struct token_shape shape = {train->batch_size, train->model.block_size};
    const uint64_t count = 2 * (uint64_t)(shape.batch * shape.sequence);
    const uint64_t key = random_key((uint64_t)bench->ranks->index, "bench");
    /* other tokens in every one, as in training: the embedding's gradient depends on how many there are */
    const uint64_t first = (step * (uint64_t)bench->micro_steps + (uint64_t)micro) * count;
    for (uint64_t i = 0; i < count; i++) {
        bench->tokens[i] = (int32_t)random_below(key, first + i, (uint64_t)bench->gpt.config.vocab_size);
    }
    if (gpt_set_batch(&bench->gpt, shape, bench->tokens, bench->tokens + count / 2)) {
        return -1;
    }
    gpt_forward(&bench->gpt, (struct gpt_pass){.dropout = true, .iteration = (int64_t)step});
    return data_parallel_backward(&bench->parallel, 1.0f / (float)train->gradient_accumulation_steps,
                                  micro + 1 == bench->micro_steps);
}

/* Forward, backward and optimizer step number `step`, over all ranks. Collective. */
static int bench_model_step(struct bench_model *bench, uint64_t step, double seconds[BENCH_KINDS]) {
    const double start = progress_clock();
    float loss, norm;
    bench->parallel.times = (struct collective_times){0};
    gpt_zero(&bench->gpt);
    for (int64_t micro = 0; micro < bench->micro_steps; micro++) {
        if (bench_model_micro_step(bench, step, micro)) {
            return -1;
        }
    }
    /* alone, nothing else waits for the device here */
    if (!bench->parallel.collective && compute_finish(bench->compute)) {
        return -1;
    }
    if (data_parallel_step(&bench->parallel, &bench->train->optimizer, (int64_t)step) ||
        gpt_read_results(&bench->gpt, &loss, &norm) ||
        (bench->compute->profiler && compute_finish(bench->compute))) {
        return -1;
    }
    loss_scale_update(&bench->gpt.loss_scale, isfinite(norm));
    double sum = (double)loss;
    if (ranks_sum(bench->ranks, &sum, 1)) {
        return -1;
    }
    const double end = progress_clock();
    const double exposed = bench->parallel.gradient_times.exposed;
    seconds[BENCH_STEP] = end - start;
    seconds[BENCH_COMPUTE] = bench->parallel.gradients_at - exposed - start;
    seconds[BENCH_EXPOSED] = exposed;
    seconds[BENCH_REST] = end - bench->parallel.gradients_at;
    seconds[BENCH_ACTIVE] = bench->parallel.gradient_times.active;
    bench->sent = bench->parallel.times.sent;
    return 0;
}

/* ---- making and releasing */

int bench_model_check(struct bench_model *bench, const struct train_settings *train, struct ranks *ranks) {
    *bench = (struct bench_model){.train = train,
                                  .config = train->model,
                                  .vocabulary_source = "as given",
                                  .ranks = ranks};
    int64_t *vocabulary = &bench->config.vocab_size;
    if (*vocabulary == 0) { /* as training has it, but that no data have to be there unless they are asked for */
        if (training_data_read_vocabulary(train->data_dir, train_settings_given(train, "data_dir"), vocabulary)) {
            return -1;
        }
        bench->vocabulary_source = "of the data";
        if (*vocabulary == 0) {
            bench->vocabulary_source = "of GPT-2, as no data are prepared";
            *vocabulary = 50304;
        }
    }
    if (model_config_check(&bench->config) || train_settings_set_adapter(train, &bench->config)) {
        return -1;
    }
    return data_parallel_divide(train->gradient_accumulation_steps, ranks, &bench->micro_steps);
}

int bench_model_set_up(struct bench_model *bench) {
    struct train_settings chosen = *bench->train;
    if (type_choice_open(&chosen.device, chosen.dtype, (size_t)bench->config.n_embd, bench->ranks, &bench->compute,
                         &bench->choice) ||
        type_choice_optimizer(bench->compute, bench->choice.type, bench->ranks, &chosen.optimizer)) {
        return -1;
    }
    chosen.dtype = (int)bench->choice.type;
    chosen.model = bench->config;
    bench->tokens =
        memory_allocate(2 * (size_t)(chosen.batch_size * bench->config.block_size), sizeof *bench->tokens);
    if (ranks_agree(bench->ranks,
                    data_parallel_plan(&bench->parallel, bench->ranks, &chosen, bench->compute, &bench->gpt)) ||
        data_parallel_create(&bench->parallel)) {
        return -1;
    }
    const bool dry = bench->compute->dry; /* without memory that weights could go to */
    const int status = dry ? 0 : parameters_initialise(bench->compute, &bench->gpt.parameters, &bench->config, 1);
    return ranks_agree(bench->ranks, status);
}

void bench_model_release(struct bench_model *bench) {
    data_parallel_release(&bench->parallel);
    gpt_release(&bench->gpt);
    compute_close(bench->compute);
    free(bench->tokens);
    bench->tokens = NULL;
}

/* ---- facts */

/* Tokens of a step, over all ranks. */
static double bench_model_tokens(const struct bench_model *bench) {
    const struct train_settings *train = bench->train;
    return (double)(train->batch_size * train->model.block_size) * (double)train->gradient_accumulation_steps;
}

/* The most memory this process has had so far, in bytes. On a GPU the plan says what is there. */
static double bench_model_peak_bytes(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) ? 0.0 : 1024.0 * (double)usage.ru_maxrss;
}

void bench_model_print(const struct bench_model *bench) {
    const struct model_config *model = &bench->gpt.config;
    message_print(stdout, "model    %s, %s, %s, %s, vocabulary %" PRId64 " (%s)", model->residual->name,
                  message_count(model->n_streams, "stream").text, message_count(model->n_layer, "layer").text,
                  message_count(model->n_embd, "channel").text, model->vocab_size, bench->vocabulary_source);
}

json_t *bench_model_facts(struct bench_model *bench) {
    const struct gpt *gpt = &bench->gpt;
    const struct model_config *model = &gpt->config;
    const struct device *device = &bench->compute->device;
    json_t *facts = json_pack("{s:o, s:o, s:b, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I}", "device",
                              json_file_name(device->name), "platform", json_file_name(device->platform_name),
                              "cpu", (int)device->is_cpu, "gemm", gemm_facts(bench->compute).description,
                              "attention", gpt->operations.attention_by, "dtype", element_name(gpt->options.type),
                              "residual", model->residual->name, "n_streams", (json_int_t)model->n_streams,
                              "n_layer", (json_int_t)model->n_layer, "n_embd", (json_int_t)model->n_embd,
                              "block_size", (json_int_t)model->block_size, "batch_size",
                              (json_int_t)bench->train->batch_size, "micro_steps", (json_int_t)bench->micro_steps);
    json_object_update_new(facts,
                           json_pack("{s:I, s:s, s:s, s:s, s:I, s:I, s:f, s:I, s:f, s:f, s:f}", "vocab_size",
                                     (json_int_t)model->vocab_size, "vocab_source", bench->vocabulary_source,
                                     "dtype_reason", bench->choice.reason, "warning", bench->choice.warning,
                                     "parameters", (json_int_t)gpt->parameters.total, "auxiliary",
                                     (json_int_t)gpt->parameters.auxiliary, "tokens", bench_model_tokens(bench),
                                     "planned_bytes", (json_int_t)gpt->plan.total_bytes, "peak_bytes",
                                     bench_model_peak_bytes(), "flops_per_token", gpt_flops_per_token(gpt),
                                     "gemm_rate", bench->gemm_rate));
    if (bench->compute->profiler) {
        json_object_set_new(facts, "kernels", profiler_report(bench->compute->profiler));
    }
    return facts;
}

int bench_model_write_json(struct bench_model *bench, const char *path, json_t *more) {
    json_t *json = bench_model_facts(bench);
    json_object_update_new(json, more);
    return json_file_write(path, json, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
}

/* ---- seconds of several steps */

struct timing {
    double minimum, median, maximum;
};

/* Sorts the values; count > 0. */
static struct timing timing_of(double *values, size_t count) {
    percentile_sort(values, count);
    return (struct timing){values[0], percentile(values, count, 0.5), values[count - 1]};
}

/* ---- measuring them */

struct bench_state {
    const struct bench_settings *settings;
    struct bench_model model;
    double *seconds; /* [BENCH_KINDS, steps] */
    struct progress progress;
    /* results: of a step; under several ranks the slowest one's whole step, and the mean of the parts */
    struct timing timings[BENCH_KINDS];
    double exchange_alone;         /* seconds for the same sums with an idle device, median */
    struct collective_times alone; /* what one of those sent and moved */
    double memory_rate;            /* bytes a second of a rank, while all read and write */
    double memory_share;           /* of that rate, which the exchange reads and writes at; medians of rounds */
};

/* ---- steps */

static int run_steps(struct bench_state *bench) {
    const struct bench_settings *settings = bench->settings;
    for (int64_t step = 0; step < settings->warmup + settings->steps; step++) {
        double seconds[BENCH_KINDS];
        char text[32];
        if (step == settings->warmup && bench->model.compute->profiler) {
            profiler_reset(bench->model.compute->profiler);
        }
        if (bench_model_step(&bench->model, (uint64_t)step, seconds)) {
            return -1;
        }
        for (int kind = 0; kind < BENCH_KINDS && step >= settings->warmup; kind++) {
            bench->seconds[kind * settings->steps + step - settings->warmup] = seconds[kind];
        }
        snprintf(text, sizeof text, "%.1f ms", 1e3 * seconds[BENCH_STEP]);
        progress_show(&bench->progress, "step", step + 1, settings->warmup + settings->steps, text);
    }
    progress_end(&bench->progress);
    return 0;
}

/* ---- what the host's memory gives to all ranks at once: copies and sums between them can reach that at most */

enum { PASSES = 3, PIECES = 64 };
#define ELEMENTS ((size_t)64 << 20) /* floats of both arrays together: 256 MiB */
#define PIECE    (ELEMENTS / 2 / PIECES)

static int add_piece(void *context, size_t index) {
    float *a = (float *)context + index * PIECE;
    const float *b = (const float *)context + ELEMENTS / 2 + index * PIECE;
    for (size_t i = 0; i < PIECE; i++) {
        a[i] += b[i];
    }
    return 0;
}

/* Bytes a second that this rank reads and writes while all do the same on all their cores: a[i] += b[i] over arrays
 * that no cache holds, the median of several passes. Ranks begin each pass together; the first one also brings the
 * pages. Collective. */
static int measure_memory_rate(const struct ranks *ranks, double *rate) {
    double seconds[PASSES];
    struct host_memory memory;
    int status = 0;
    if (!host_memory_create(&memory, ELEMENTS * sizeof(float), false)) {
        memory_refused(ELEMENTS * sizeof(float));
    }
    for (int pass = -1; pass < PASSES && status == 0; pass++) {
        double together = 0.0;
        status = ranks_sum(ranks, &together, 1);
        const double start = progress_clock();
        parallel_run(PIECES, add_piece, memory.data);
        seconds[pass < 0 ? 0 : pass] = progress_clock() - start;
    }
    host_memory_release(&memory);
    if (status == 0) { /* it reads both and writes one */
        *rate = 1.5 * (double)ELEMENTS * sizeof(float) / timing_of(seconds, PASSES).median;
    }
    return status;
}

/* ---- timings */

/* Every step's seconds become those of all ranks together, the slowest or the mean; then the timings. */
static int conclude(struct bench_state *bench) {
    const size_t count = (size_t)bench->settings->steps, ranks = (size_t)bench->model.ranks->count;
    double *all = memory_zeroed(count * ranks, sizeof *all), *values = bench->seconds;
    int status = 0;
    for (int kind = 0; kind < BENCH_KINDS && status == 0; kind++, values += count) {
        status = ranks_gather(bench->model.ranks, values, count * sizeof *values, all);
        for (size_t step = 0; status == 0 && step < count; step++) {
            double largest = 0.0, sum = 0.0;
            for (size_t rank = 0; rank < ranks; rank++) {
                largest = fmax(largest, all[rank * count + step]);
                sum += all[rank * count + step];
            }
            values[step] = kind == BENCH_STEP ? largest : sum / (double)ranks;
        }
        bench->timings[kind] = timing_of(values, count);
    }
    free(all);
    return status;
}

/* The sums of gradients with nothing else going on, and what memory gives, several rounds: machines change. */
static int measure_exchange(struct bench_state *bench) {
    enum { ROUNDS = 15 };
    double seconds[ROUNDS], rates[ROUNDS], shares[ROUNDS];
    if (!bench->model.parallel.collective) {
        return 0;
    }
    for (int i = 0; i < ROUNDS; i++) {
        double together = 0.0;
        if (compute_finish(bench->model.compute) || ranks_sum(bench->model.ranks, &together, 1)) {
            return -1;
        }
        const double start = progress_clock();
        bench->alone = (struct collective_times){0};
        if (data_parallel_exchange(&bench->model.parallel, &bench->alone)) {
            return -1;
        }
        seconds[i] = progress_clock() - start;
        if (measure_memory_rate(bench->model.ranks, &rates[i])) {
            return -1;
        }
        shares[i] = bench->alone.moved / seconds[i] / rates[i];
    }
    bench->exchange_alone = timing_of(seconds, ROUNDS).median;
    bench->memory_rate = timing_of(rates, ROUNDS).median;
    bench->memory_share = timing_of(shares, ROUNDS).median; /* each with the rate just after it */
    return 0;
}

/* ---- reports */

static void print_share(const char *name, const struct timing *timing, double step) {
    message_print(stdout, "  %-24s %10.2f %8.1f %%\n", name, 1e3 * timing->median, 100.0 * timing->median / step);
}

static void print_result(const struct bench_state *bench) {
    const struct bench_model *model = &bench->model;
    const struct timing *step = &bench->timings[BENCH_STEP];
    const double tokens = bench_model_tokens(model), speed = tokens / step->median;
    const double active = bench->timings[BENCH_ACTIVE].median, exposed = bench->timings[BENCH_EXPOSED].median;
    const double gigabyte = 1e-9, mebibyte = 1.0 / 1048576.0;
    message_print(stdout, "step     %.2f ms, median of %" PRId64 " (%.2f to %.2f), of %.0f tokens\n",
                  1e3 * step->median, bench->settings->steps, 1e3 * step->minimum, 1e3 * step->maximum, tokens);
    message_print(stdout,
                  "speed    %.1f tokens/s; the model's FLOPs a second are %.0f %% of the %.1f GFLOP/s that GEMMs "
                  "alone reach\n",
                  speed, 100.0 * speed * gpt_flops_per_token(&model->gpt) / model->gemm_rate,
                  1e-9 * model->gemm_rate);
    message_print(stdout, "memory   %.2f GiB planned on the device; this process has had %.2f GiB at most\n",
                  (double)model->gpt.plan.total_bytes / 1073741824.0, bench_model_peak_bytes() / 1073741824.0);
    if (bench->settings->ranks) {
        message_print(stdout, "  %-24s %10s %10s\n", "", "ms a step", "share");
        print_share("forward and backward", &bench->timings[BENCH_COMPUTE], step->median);
        print_share("exposed communication", &bench->timings[BENCH_EXPOSED], step->median);
        print_share("optimizer and the rest", &bench->timings[BENCH_REST], step->median);
    }
    if (bench->settings->ranks && model->ranks->count > 1) {
        message_print(
            stdout,
            "exchange %.2f MiB of gradients in %zu buckets, among %d ranks that share memory and %d across\n"
            "         under way for %.2f ms of a step, %.0f %% of it hidden behind computation\n",
            (double)model->gpt.parameters.gradients_end * sizeof(float) * mebibyte, model->parallel.buckets.count,
            model->ranks->node.count, model->ranks->cross_node.count, 1e3 * active,
            active > exposed ? 100.0 * (1.0 - exposed / active) : 0.0);
        message_print(
            stdout,
            "alone    %.2f ms; a rank sends %.2f MiB, %.2f GB/s, and reads and writes %.2f MiB of memory, "
            "%.2f GB/s: %.0f %% of the %.2f GB/s that it has\n",
            1e3 * bench->exchange_alone, mebibyte * bench->alone.sent,
            gigabyte * bench->alone.sent / bench->exchange_alone, mebibyte * bench->alone.moved,
            gigabyte * bench->alone.moved / bench->exchange_alone, 100.0 * bench->memory_share,
            gigabyte * bench->memory_rate);
    }
    if (model->compute->profiler) {
        profiler_print_table(model->compute->profiler, stdout);
    }
}

static int write_json(struct bench_state *bench) {
    static const char *const names[BENCH_KINDS] = {"step", "compute", "exposed", "rest", "active"};
    const struct bench_model *model = &bench->model;
    json_t *seconds = json_pack("{s:f}", "exchange_alone", bench->exchange_alone);
    for (int kind = 0; kind < BENCH_KINDS; kind++) {
        const struct timing *timing = &bench->timings[kind];
        json_object_set_new(seconds, names[kind],
                            json_pack("{s:f, s:f, s:f}", "min", timing->minimum, "median", timing->median, "max",
                                      timing->maximum));
    }
    json_t *more =
        json_pack("{s:i, s:i, s:i, s:i, s:f, s:I, s:I, s:f, s:f, s:f, s:f, s:o, s:I}", "ranks", model->ranks->count,
                  "hosts", model->ranks->hosts, "near", model->ranks->node.count, "across",
                  model->ranks->cross_node.count, "tokens_per_second",
                  bench_model_tokens(model) / bench->timings[BENCH_STEP].median, "gradient_bytes",
                  (json_int_t)(model->gpt.parameters.gradients_end * sizeof(float)), "buckets",
                  (json_int_t)model->parallel.buckets.count, "bytes_sent", model->sent, "bytes_alone",
                  bench->alone.sent, "bytes_moved_alone", bench->alone.moved, "memory_rate", bench->memory_rate,
                  "seconds", seconds, "profiled_steps", (json_int_t)bench->settings->steps);
    return bench_model_write_json(&bench->model, bench->settings->json, more);
}

/* ---- all of it */

static void print_head(const struct bench_model *bench) {
    type_choice_print_device(&bench->choice, bench->compute, stdout);
    bench_model_print(bench);
    message_print(stdout, ", %.4g parameters\n", (double)bench->gpt.parameters.total);
    if (bench->gpt.options.type != ELEMENT_FP32) {
        message_print(stdout, "attention on %s\n", bench->gpt.operations.attention_by);
    }
    message_print(stdout, "ranks    %d on %s, %s of %" PRId64 " x %" PRId64 " each", bench->ranks->count,
                  message_count(bench->ranks->hosts, "host").text,
                  message_count(bench->micro_steps, "micro-step").text, bench->train->batch_size,
                  bench->gpt.config.block_size);
    message_print(stdout, bench->compute->device.is_cpu ? "; cores for rank 0: %u\n" : "\n", host_cores());
    fflush(stdout);
}

static int measure(struct bench_state *bench) {
    struct bench_model *model = &bench->model;
    if (model->ranks->index == 0) {
        print_head(model);
    }
    progress_start(&bench->progress, 0);
    bench->progress.silent = model->ranks->index > 0;
    if (data_parallel_measure_rate(&model->gpt, model->ranks, &model->gemm_rate) || run_steps(bench) ||
        conclude(bench) || measure_exchange(bench)) {
        return -1;
    }
    if (model->ranks->index > 0) {
        return 0;
    }
    print_result(bench);
    return *bench->settings->json ? write_json(bench) : 0;
}

enum program_status bench_run(const struct bench_settings *settings, struct ranks *ranks) {
    struct bench_state bench = {.settings = settings};
    ranks->timeout_seconds = settings->train.rank_timeout;
    char vocabulary[24];
    const int wrong = bench_model_check(&bench.model, &settings->train, ranks);
    snprintf(vocabulary, sizeof vocabulary, "%" PRId64, bench.model.config.vocab_size);
    if (same_job_digest(ranks, wrong, vocabulary, "the vocabulary of --data-dir", "give --vocab-size")) {
        return PROGRAM_WRONG;
    }
    bench.seconds = memory_zeroed((size_t)settings->steps, BENCH_KINDS * sizeof *bench.seconds);
    const int status = bench_model_set_up(&bench.model) || measure(&bench);
    if (status) {
        ranks_end_others(ranks, "hc_bench");
    }
    bench_model_release(&bench.model);
    free(bench.seconds);
    return status ? PROGRAM_FAILED : PROGRAM_DONE;
}

/* ---- a step for each line of another program */

/* Writes the object, which it takes, as a line. */
static int answer(json_t *json) {
    int result = json_file_print_line(json, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9));
    if (!result && fflush(stdout)) {
        result = error_set_errno("cannot write");
    }
    return result ? error_prefix("cannot answer the program that asked for a step") : 0;
}

static int answer_requests(struct bench_model *bench) {
    if (data_parallel_measure_rate(&bench->gpt, bench->ranks, &bench->gemm_rate) ||
        answer(bench_model_facts(bench))) {
        return -1;
    }
    uint64_t step = 0;
    for (int c = getchar(); c != EOF; c = getchar(), step++) { /* a line */
        double seconds[BENCH_KINDS];
        while (c != '\n' && c != EOF) {
            c = getchar();
        }
        if (step == 1 && bench->compute->profiler) {
            profiler_reset(bench->compute->profiler); /* the first one compiles */
        }
        if (bench_model_step(bench, step, seconds) || answer(json_pack("{s:f}", "seconds", seconds[BENCH_STEP]))) {
            return -1;
        }
    }
    json_t *facts = bench_model_facts(bench);
    json_object_set_new(facts, "profiled_steps", json_integer((json_int_t)(step > 1 ? step - 1 : step)));
    return answer(facts);
}

enum program_status bench_step_on_demand_run(const struct bench_settings *settings, struct ranks *ranks) {
    struct bench_model bench;
    if (ranks->count > 1) {
        error_set("--step-on-demand is for one process: leave mpirun out");
        return PROGRAM_WRONG;
    }
    if (bench_model_check(&bench, &settings->train, ranks)) {
        return PROGRAM_WRONG;
    }
    const int status = bench_model_set_up(&bench) || answer_requests(&bench);
    bench_model_release(&bench);
    return status ? PROGRAM_FAILED : PROGRAM_DONE;
}
