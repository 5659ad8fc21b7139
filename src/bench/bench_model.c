#include "runtime/device/profiler.h"
#include "runtime/files/json_file.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/distribution.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "runtime/system/progress.h"
#include "runtime/system/random.h"
#include "src/bench/bench.h"
#include "src/training/training_data.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/resource.h>

/* ---- steps */

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

int bench_model_step(struct bench_model *bench, uint64_t step, double seconds[BENCH_KINDS]) {
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
    if (model_config_check(&bench->config)) {
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

double bench_model_tokens(const struct bench_model *bench) {
    const struct train_settings *train = bench->train;
    return (double)(train->batch_size * train->model.block_size) * (double)train->gradient_accumulation_steps;
}

double bench_model_peak_bytes(void) {
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
                              "cpu", (int)device->is_cpu, "gemm", gemm_description(bench->compute), "attention",
                              gpt->operations.attention_by, "dtype", element_name(gpt->options.type), "residual",
                              model->residual->name, "n_streams", (json_int_t)model->n_streams, "n_layer",
                              (json_int_t)model->n_layer, "n_embd", (json_int_t)model->n_embd, "block_size",
                              (json_int_t)model->block_size, "batch_size", (json_int_t)bench->train->batch_size,
                              "micro_steps", (json_int_t)bench->micro_steps);
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

/* ---- timings */

struct timing timing_of(double *values, size_t count) {
    percentile_sort(values, count);
    return (struct timing){values[0], percentile(values, count, 0.5), values[count - 1]};
}

json_t *timing_json(const struct timing *timing) {
    return json_pack("{s:f, s:f, s:f}", "min", timing->minimum, "median", timing->median, "max", timing->maximum);
}
