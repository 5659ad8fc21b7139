#include "src/evaluation/measure.h"
#include "runtime/files/json_file.h"
#include "runtime/files/token_file.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "runtime/system/progress.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/config_file.h"
#include "src/measuring/h_measurement.h"
#include "src/measuring/value_means.h"
#include "src/model/frame.h"
#include "src/model/gpt.h"
#include <inttypes.h>
#include <stdlib.h>

struct measurement {
    const struct measure_settings *settings;
    const char *checkpoint;
    struct token_file *file;
    struct value_means values;
    struct h_measurement h;
    bool has_h;
};

/* Samples are block_size tokens, the first where index / samples of the split begins. */
static int read_samples(const struct measurement *measurement, const struct gpt *gpt, int64_t index, int64_t count,
                        int32_t *tokens) {
    const uint64_t length = (uint64_t)gpt->config.block_size, held = token_file_count(measurement->file);
    if (held < length) {
        return error_set("the split has %" PRIu64 " tokens, fewer than one sequence of %" PRIu64, held, length);
    }
    const unsigned __int128 places = held - length + 1;
    int result = 0;
    for (int64_t end = index + count; result == 0 && index < end; index++, tokens += length) {
        const uint64_t first = (uint64_t)(places * (uint64_t)index / (uint64_t)measurement->settings->samples);
        result = token_file_read(measurement->file, first, length, (uint32_t)gpt->config.vocab_size, tokens);
    }
    return result;
}

static int add_batch(struct measurement *measurement, struct gpt *gpt, int64_t first, int64_t count,
                     int32_t *tokens) {
    const struct token_shape shape = {count, gpt->config.block_size};
    if (interrupt_requested()) {
        return error_set("interrupted");
    }
    if (read_samples(measurement, gpt, first, count, tokens) || gpt_set_batch(gpt, shape, tokens, NULL)) {
        return -1;
    }
    gpt_forward(gpt, (struct gpt_pass){.dropout = false});
    if (value_means_add(&measurement->values, gpt)) {
        return -1;
    }
    return measurement->has_h ? h_measurement_add(&measurement->h, gpt) : 0;
}

static int add_samples(struct measurement *measurement, struct gpt *gpt) {
    const int64_t samples = measurement->settings->samples, batch = measurement->settings->batch_size;
    int32_t *tokens = memory_allocate((size_t)(batch * gpt->config.block_size), sizeof *tokens);
    struct progress progress;
    int result = 0;
    progress_start(&progress, 0);
    for (int64_t first = 0; result == 0 && first < samples; first += batch) {
        const int64_t count = samples - first < batch ? samples - first : batch;
        progress_show(&progress, measurement->checkpoint, first, samples, "samples", false);
        result = add_batch(measurement, gpt, first, count, tokens);
    }
    progress_end(&progress);
    free(tokens);
    return result;
}

/* NULL with an error. */
static json_t *measure(struct compute *compute, const struct model_config *config,
                       struct measurement *measurement) {
    const struct gpt_options options = {.batch = measurement->settings->batch_size,
                                        .sequence = config->block_size,
                                        .mode = GPT_ANALYSIS};
    struct gpt gpt = {0};
    json_t *json = NULL;
    if (gpt_plan(compute, config, &options, &gpt)) {
        return NULL;
    }
    if (measurement->has_h) {
        h_measurement_begin(&measurement->h, config, true);
    }
    if (gpt_create(&gpt) == 0 && checkpoint_load_weights(measurement->checkpoint, &gpt) == 0 &&
        add_samples(measurement, &gpt) == 0) {
        json = json_pack("{s:I, s:o, s:o*}", "samples", (json_int_t)measurement->settings->samples, "value_means",
                         value_means_json(&measurement->values), "h",
                         measurement->has_h ? h_measurement_json(&measurement->h) : NULL);
    }
    value_means_free(&measurement->values);
    h_measurement_end(&measurement->h);
    gpt_release(&gpt);
    return json;
}

int measure_checkpoint(struct compute *compute, const char *checkpoint, const struct measure_settings *settings,
                       const char *out) {
    struct measurement measurement = {.settings = settings, .checkpoint = checkpoint};
    struct model_config config;
    if (config_file_read(checkpoint, &config)) {
        return -1;
    }
    if (token_file_open_split(settings->data_dir, settings->split, &measurement.file)) {
        return -1;
    }
    measurement.has_h = residual_has_matrices(config.residual);
    json_t *json = frame_of(&config)->values ? measure(compute, &config, &measurement) : json_object();
    token_file_close(measurement.file);
    if (!json) {
        return error_prefix("%s", checkpoint);
    }
    return json_file_write(out, json, JSON_COMPACT | JSON_REAL_PRECISION(9));
}
