#include "src/training/compile_only.h"
#include "runtime/gemm/gemm.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "runtime/system/progress.h"
#include "runtime/system/sizes.h"
#include "src/operations/attention.h"
#include "src/settings/compile_ahead.h"
#include "src/settings/type_choice.h"
#include "src/training/data_parallel.h"
#include "src/training/initial_model.h"
#include "src/training/mixture.h"
#include <stdlib.h>

enum { ROWS = 64 }; /* of tokens: other kernels multiply few rows */

struct compilation {
    struct train_settings *settings;
    struct ranks *ranks;
    struct compute *compute;
    struct gpt gpt;
    struct data_parallel parallel;
};

/* Takes the model from the folder of init_from, if there is one, and else the vocabulary from the data. */
static int choose_model(struct train_settings *settings) {
    struct initial_model initial = {0};
    struct data_set data;
    int64_t *vocabulary = &settings->model.vocab_size;
    const int status = initial_model_read(&initial, settings);
    initial_model_release(&initial);
    if (status) {
        return -1;
    }
    if (*vocabulary == 0) {
        if (mixture_read_meta(settings->data_dir, &data)) {
            return -1;
        }
        *vocabulary = data_set_model_vocabulary(&data);
    }
    return *vocabulary ? 0 : data_set_fail_without_vocabulary(settings->data_dir);
}

/* Nothing is compared with the host yet: another process may be doing that, with kernels that it compiles. */
static int open_device(struct compilation *job) {
    struct train_settings *settings = job->settings;
    struct type_choice choice;
    settings->device.unverified = true;
    if (type_choice_open(&settings->device, settings->dtype, (size_t)settings->model.n_embd, job->ranks,
                         &job->compute, &choice)) {
        return -1;
    }
    settings->dtype = (int)choice.type;
    return type_choice_optimizer(job->compute, choice.type, job->ranks, &settings->optimizer);
}

static int create_model(struct compilation *job) {
    return data_parallel_plan(&job->parallel, job->ranks, job->settings, &job->settings->model, job->compute,
                              &job->gpt) ||
                   data_parallel_create(&job->parallel)
               ? -1
               : 0;
}

static int make_step(struct compilation *job) {
    struct gpt *gpt = &job->gpt;
    const struct token_shape shape = {job->settings->batch_size, gpt->config.block_size};
    int32_t *tokens = memory_zeroed((size_t)(shape.batch * shape.sequence), sizeof *tokens);
    float loss, norm;
    gpt_zero(gpt);
    int status = gpt_set_batch(gpt, shape, tokens, tokens);
    if (status == 0) {
        status = data_parallel_micro_step(&job->parallel, (struct gpt_pass){.dropout = true}, 1.0f, true) ||
                 data_parallel_step(&job->parallel, &job->settings->optimizer, 0) ||
                 gpt_read_results(gpt, &loss, &norm);
    }
    free(tokens);
    return status ? -1 : 0;
}

static int run(struct compilation *job) {
    struct compute *compute;
    if (open_device(job) || create_model(job) || make_step(job)) {
        return -1;
    }
    compute = job->compute;
    compute->verify = true;
    return attention_check(&job->gpt.operations) ||
                   settings_verify_device(compute, (enum element_type)job->settings->dtype)
               ? -1
               : 0;
}

enum program_status compile_only_run(struct train_settings *settings, struct ranks *ranks) {
    struct compilation job = {.settings = settings, .ranks = ranks};
    const double start = progress_clock();
    if (choose_model(settings)) {
        return PROGRAM_FAILED;
    }
    compile_ahead_reduce(&settings->model);
    if (settings->optimizer.freeze) {
        *settings->optimizer.freeze = '\0'; /* it may name layers that are left out now */
    }
    const int64_t rows = (int64_t)groups_for(ROWS, (size_t)settings->model.block_size);
    settings->batch_size = rows < settings->batch_size ? rows : settings->batch_size;
    settings->gradient_accumulation_steps = 1;
    if (model_config_check(&settings->model)) {
        return PROGRAM_WRONG;
    }
    const int status = run(&job);
    if (status == 0) {
        compile_only_print(job.compute, start);
    }
    data_parallel_release(&job.parallel);
    gpt_release(&job.gpt);
    compute_close(job.compute);
    return status ? PROGRAM_FAILED : PROGRAM_DONE;
}
