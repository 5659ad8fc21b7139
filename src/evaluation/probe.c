#include "src/evaluation/probe.h"
#include "runtime/device/compute.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/files/safetensors.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/weights.h"
#include "src/evaluation/perplexity.h"
#include "src/settings/schedule.h"
#include "src/settings/unused_options.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- batches */

struct batches {
    int64_t iterations, micro; /* 1, 1 for a plain batch */
    struct token_shape shape;
    int32_t *x, *y;
};

static int read_ids(const struct safetensors *file, const char *name, unsigned rank, int32_t **ids,
                    const struct tensor_info **found) {
    const struct tensor_info *info = safetensors_find(file, name);
    if (!info || info->type != TENSOR_I32 || info->rank != rank || info->elements == 0 ||
        info->elements > INT32_MAX) {
        return error_set("tensor '%s' must be there as I32 with %u dimensions, none of them 0", name, rank);
    }
    *ids = memory_allocate(info->elements, sizeof **ids);
    *found = info;
    return safetensors_read_i32(file, info, 0, info->elements, *ids);
}

static int read_batches(const char *path, bool train, struct batches *batches) {
    struct safetensors *file = NULL;
    const struct tensor_info *x = NULL, *y = NULL;
    const unsigned rank = train ? 4 : 2;
    if (safetensors_open(path, &file)) {
        return -1;
    }
    int status = read_ids(file, "x", rank, &batches->x, &x) || read_ids(file, "y", rank, &batches->y, &y);
    if (status == 0 && memcmp(x->shape, y->shape, rank * sizeof *x->shape) != 0) {
        status = error_set("x and y have different shapes");
    }
    if (status == 0) {
        batches->iterations = train ? (int64_t)x->shape[0] : 1;
        batches->micro = train ? (int64_t)x->shape[1] : 1;
        batches->shape = (struct token_shape){(int64_t)x->shape[rank - 2], (int64_t)x->shape[rank - 1]};
    }
    safetensors_close(file);
    return status ? error_prefix("%s", path) : 0;
}

/* ---- one pass */

/* Tensors in memory, written at once: probes are of small models. */
struct dump {
    struct tensor_info *infos;
    float **values;
    size_t count;
};

static void release_dump(struct dump *dump) {
    for (size_t i = 0; i < dump->count; i++) {
        free(dump->infos[i].name);
        free(dump->values[i]);
    }
    free(dump->infos);
    free(dump->values);
}

/* Takes the name and adds a tensor of zeros: its values. */
static float *add_tensor(struct dump *dump, unsigned rank, const uint64_t *shape, char *name) {
    struct tensor_info info = {.name = name, .type = TENSOR_F32, .rank = rank};
    memcpy(info.shape, shape, rank * sizeof *shape);
    tensor_measure(&info);
    const size_t index = dump->count++;
    dump->infos = memory_resize(dump->infos, dump->count, sizeof *dump->infos);
    dump->values = memory_resize(dump->values, dump->count, sizeof *dump->values);
    dump->infos[index] = info;
    return dump->values[index] = memory_zeroed(info.elements, sizeof(float));
}

static int take_values(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    const struct dump *dump = context;
    memcpy(values, dump->values[tensor] + first, count * sizeof *values);
    return 0;
}

/* The dump, or where that is NULL the weights. */
static int write_file(const char *path, struct gpt *gpt, struct dump *dump) {
    char *temporary;
    if (files_stage_begin(path, false, &temporary)) {
        return -1;
    }
    int status = dump ? safetensors_write(temporary, dump->infos, dump->count, take_values, dump)
                      : checkpoint_write_weights(temporary, gpt);
    if (status) {
        status = error_prefix("cannot write %s (what was there before is untouched)", path);
    }
    return files_stage_end(path, temporary, status);
}

/* A value of the frame, [B, T, shape]. */
static int dump_value(struct gpt *gpt, struct dump *dump, const struct frame_value *value) {
    const uint64_t shape[4] = {(uint64_t)gpt->shape.batch, (uint64_t)gpt->shape.sequence, value->shape[0],
                               value->shape[1]};
    const size_t tokens = gpt_tokens(gpt);
    const uint64_t count = value->shape[0] * (value->rank > 1 ? value->shape[1] : 1);
    const size_t bytes = element_size(value->buffer->type);
    void *rows = memory_allocate(tokens * value->row, bytes);
    float *values = add_tensor(dump, 2 + value->rank, shape, memory_string(value->name));
    const int status = buffer_read(gpt->compute, value->buffer, 0, rows, tokens * value->row * bytes);
    for (size_t i = 0; status == 0 && i < tokens * count; i++) {
        values[i] = element_at(rows, i / count * value->row + value->first + i % count, value->buffer->type);
    }
    free(rows);
    return status;
}

/* What the frame computed around a sublayer's branch, or at the top. */
static int dump_frame(struct gpt *gpt, struct dump *dump, int64_t index) {
    struct frame_value values[FRAME_MOST_VALUES];
    const size_t count = gpt->frame->values ? gpt->frame->values(gpt, index, values) : 0;
    for (size_t i = 0; i < count; i++) {
        if (dump_value(gpt, dump, &values[i])) {
            return -1;
        }
    }
    return 0;
}

/* The streams that enter a sublayer, [B, T, S, C]. */
static int dump_streams(struct gpt *gpt, struct dump *dump, int64_t index) {
    const uint64_t shape[4] = {(uint64_t)gpt->shape.batch, (uint64_t)gpt->shape.sequence,
                               (uint64_t)gpt->config.n_streams, (uint64_t)gpt->config.n_embd};
    const size_t count = shape[0] * shape[1] * shape[2] * shape[3];
    float *values = add_tensor(dump, 4, shape, memory_format("streams.%" PRId64, index));
    struct buffer copy;
    if (buffer_create(gpt->compute, &copy, count * sizeof *values)) {
        return -1;
    }
    convert_elements(gpt->compute, (struct span){gpt->sublayers[index].mix.streams, 0}, (struct span){&copy, 0},
                     count);
    const int status = buffer_read(gpt->compute, &copy, 0, values, count * sizeof *values);
    buffer_release(gpt->compute, &copy);
    return status;
}

static int dump_gradients(struct gpt *gpt, struct dump *dump) {
    for (size_t i = 0; i < gpt->parameters.count; i++) {
        const struct parameter *parameter = &gpt->parameters.table[i];
        float *values =
            add_tensor(dump, parameter->rank, parameter->shape, memory_format("grad.%s", parameter->name));
        if (buffer_read(gpt->compute, gpt->parameters.gradients, parameter->offset * sizeof *values, values,
                        parameter->elements * sizeof *values)) {
            return -1;
        }
        for (uint64_t k = 0; k < parameter->elements; k++) {
            values[k] /= gpt->loss_scale.scale;
        }
    }
    return 0;
}

/* Loss, and gradients if wanted, after a forward pass; in fp16 with the largest scale that they do not overflow at.
 * What is not finite at any scale is dumped as it is. */
static int run_loss(struct gpt *gpt, bool gradients, float *loss) {
    const struct parameters *parameters = &gpt->parameters;
    float norm = 0.0f;
    do {
        gpt_zero(gpt);
        gpt_loss(gpt, 1.0f, gradients);
        if (gradients) {
            gpt_backward(gpt, NULL);
            norm_total(&gpt->operations, parameters->gradients, parameters->gradients_end, 1.0f,
                       (struct span){gpt->gradient_norm, 0});
        }
        if (gpt_read_results(gpt, loss, gradients ? &norm : NULL)) {
            return -1;
        }
    } while (!isfinite(norm) && gpt->loss_scale.dynamic && loss_scale_update(&gpt->loss_scale, false));
    return 0;
}

/* The order matters: logits are computed from the top before the loss overwrites their memory with gradients. */
static int dump_pass(struct gpt *gpt, const struct probe_settings *settings, struct dump *dump) {
    const uint64_t one[1] = {1};
    const uint64_t shape[3] = {(uint64_t)gpt->shape.batch, (uint64_t)gpt->shape.sequence,
                               (uint64_t)gpt->config.vocab_size};
    float *loss = add_tensor(dump, 1, one, memory_string("loss"));
    float *logits = settings->logits ? add_tensor(dump, 3, shape, memory_string("logits")) : NULL;
    gpt_forward(gpt, (struct gpt_pass){.dropout = false});
    if (logits && gpt_read_logits(gpt, 0, gpt_tokens(gpt), logits)) {
        return -1;
    }
    if (run_loss(gpt, settings->grad, loss)) {
        return -1;
    }
    const int64_t top = BRANCHES * gpt->config.n_layer;
    for (int64_t index = 0; index <= top; index++) {
        const bool streams = settings->streams && index < top && residual_has_matrices(gpt->config.residual);
        if (dump_frame(gpt, dump, index) || (streams && dump_streams(gpt, dump, index))) {
            return -1;
        }
    }
    return settings->grad ? dump_gradients(gpt, dump) : 0;
}

static int run_pass(struct gpt *gpt, const struct probe_settings *settings, const struct batches *batches) {
    struct dump dump = {0};
    const int status = gpt_set_batch(gpt, batches->shape, batches->x, batches->y) ||
                       dump_pass(gpt, settings, &dump) || write_file(settings->out, gpt, &dump);
    release_dump(&dump);
    return status ? -1 : 0;
}

/* ---- optimizer steps */

static int train_step(struct gpt *gpt, const struct optimizer_settings *optimizer, const struct batches *batches,
                      int64_t iteration, float *loss, float *norm) {
    const size_t tokens = (size_t)(batches->shape.batch * batches->shape.sequence);
    gpt_zero(gpt);
    for (int64_t micro = 0; micro < batches->micro; micro++) {
        const size_t at = (size_t)(iteration * batches->micro + micro) * tokens;
        if (gpt_set_batch(gpt, batches->shape, batches->x + at, batches->y + at)) {
            return -1;
        }
        gpt_forward(gpt, (struct gpt_pass){.dropout = false});
        gpt_loss(gpt, 1.0f / (float)batches->micro, true);
        gpt_backward(gpt, NULL);
    }
    optimizer_step(gpt, optimizer, iteration);
    if (gpt_read_results(gpt, loss, norm)) {
        return -1;
    }
    return loss_scale_update(&gpt->loss_scale, isfinite(*norm))
               ? 0
               : error_set("the gradient norm is not finite at step %" PRId64, iteration);
}

static int run_training(struct gpt *gpt, const struct probe_settings *settings, const struct batches *batches) {
    json_t *losses = json_array(), *norms = json_array();
    json_t *json = json_pack("{s:o, s:o}", "losses", losses, "grad_norms", norms);
    struct optimizer_settings optimizer = settings->optimizer;
    if (settings->specs) {
        unused_options_print(settings->specs, settings->spec_count, &gpt->config, &optimizer, false, stderr);
        schedule_complete(settings->specs, settings->spec_count, batches->iterations, &optimizer, stderr);
    }
    int status = files_make_folder(settings->out);
    for (int64_t iteration = 0; status == 0 && iteration < batches->iterations; iteration++) {
        float loss = 0.0f, norm = 0.0f;
        status = train_step(gpt, &optimizer, batches, iteration, &loss, &norm);
        json_array_append_new(losses, json_file_real((double)loss));
        json_array_append_new(norms, json_file_real((double)norm));
    }
    status = status || write_file(path_of("%s/%s", settings->out, WEIGHTS_FILE).text, gpt, NULL) ||
             json_file_write(path_of("%s/losses.json", settings->out).text, json_incref(json),
                             JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(json);
    return status ? -1 : 0;
}

int probe_run(struct compute *compute, const struct probe_settings *settings) {
    struct batches batches = {0};
    struct model_config config;
    struct gpt gpt = {0};
    int status =
        config_file_read(settings->checkpoint, &config) || read_batches(settings->batch, settings->train, &batches);
    struct gpt_options options = {.batch = batches.shape.batch,
                                  .sequence = batches.shape.sequence,
                                  .mode = settings->train || settings->grad ? GPT_TRAINING : GPT_ANALYSIS,
                                  .type = settings->dtype,
                                  .optimizer = settings->optimizer};
    if (!settings->train) { /* gradients are of all parameters */
        options.optimizer.freeze = NULL;
        options.optimizer.freeze_alpha_res = false;
    }
    status = status || gpt_plan(compute, &config, &options, &gpt) || gpt_create(&gpt) ||
             checkpoint_load_weights(settings->checkpoint, &gpt) ||
             (settings->train ? run_training(&gpt, settings, &batches) : run_pass(&gpt, settings, &batches));
    gpt_release(&gpt);
    free(batches.x);
    free(batches.y);
    return status ? -1 : 0;
}
