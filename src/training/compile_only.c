/* hc_train --compile-only: one step of a small model, which needs the same kernels as the run's. */
#include "runtime/system/memory.h"
#include "runtime/system/progress.h"
#include "src/operations/attention.h"
#include "src/settings/background_compile.h"
#include "src/settings/type_choice.h"
#include "src/training/trainer.h"
#include <stdlib.h>

enum { ROWS = 64 }; /* of tokens: other kernels multiply few rows */

/* Takes the model from the folder of init_from, if there is one, and else the vocabulary from the data; then makes
 * model and batch small. */
static enum program_status choose_model(struct train_settings *settings) {
    struct model_config *model = &settings->model;
    struct initial_model initial = {0};
    const int status = initial_model_read(&initial, settings);
    model_files_close(&initial.files);
    if (status ||
        (model->vocab_size == 0 && training_data_read_vocabulary(settings->data_dir, true, &model->vocab_size))) {
        return PROGRAM_FAILED;
    }
    compile_only_reduce(model);
    char *const patterns[] = {settings->optimizer.freeze, settings->optimizer.lora_train};
    for (size_t i = 0; i < COUNT(patterns); i++) { /* they may name layers that are left out now */
        if (patterns[i]) {
            *patterns[i] = '\0';
        }
    }
    const int64_t rows = (int64_t)groups_for(ROWS, (size_t)model->block_size);
    settings->batch_size = rows < settings->batch_size ? rows : settings->batch_size;
    settings->gradient_accumulation_steps = 1;
    return model_config_check(model) ? PROGRAM_WRONG : PROGRAM_DONE;
}

enum program_status compile_only_run(struct train_settings *settings, struct ranks *ranks) {
    struct compute *compute = NULL;
    struct type_choice choice;
    struct gpt gpt = {0};
    struct data_parallel parallel = {0};
    const double start = progress_clock();
    const enum program_status chosen = choose_model(settings);
    if (chosen != PROGRAM_DONE) {
        return chosen;
    }
    /* Another process may be comparing the device with the host, with kernels that it compiles: that comes last. */
    settings->device.unverified = true;
    int status = type_choice_open(&settings->device, settings->dtype, (size_t)settings->model.n_embd, ranks,
                                  &compute, &choice);
    if (status == 0) {
        settings->dtype = (int)choice.type;
        status = type_choice_optimizer(compute, choice.type, ranks, &settings->optimizer) ||
                 data_parallel_plan(&parallel, ranks, settings, compute, &gpt) || data_parallel_create(&parallel);
    }
    if (status == 0) {
        const struct token_shape shape = {settings->batch_size, gpt.config.block_size};
        int32_t *tokens = memory_zeroed((size_t)(shape.batch * shape.sequence), sizeof *tokens);
        gpt_zero(&gpt);
        status = gpt_set_batch(&gpt, shape, tokens, tokens);
        free(tokens);
    }
    if (status == 0) {
        float loss, norm;
        gpt_forward(&gpt, (struct gpt_pass){.dropout = true});
        status = data_parallel_backward(&parallel, 1.0f, true) ||
                 data_parallel_step(&parallel, &settings->optimizer, 0) || gpt_read_results(&gpt, &loss, &norm);
    }
    if (status == 0) {
        compute->verify = true;
        status = attention_check(&gpt.operations) || device_verify(compute, choice.type);
    }
    if (status == 0) {
        compile_only_print(compute, start);
    }
    data_parallel_release(&parallel);
    gpt_release(&gpt);
    compute_close(compute);
    return status ? PROGRAM_FAILED : PROGRAM_DONE;
}
