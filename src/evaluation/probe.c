#include "src/evaluation/probe.h"
#include "runtime/device/compute.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/files/safetensors.h"
#include "runtime/files/token_file.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "runtime/system/progress.h"
#include "src/checkpoint/adapter.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/weights.h"
#include "src/measuring/h_measurement.h"
#include "src/model/frame.h"
#include "src/settings/settings.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* ---- results */

/* Tensors in memory, written at once: probes are of small models. */
struct dump {
    struct tensor_info *infos;
    float **values;
    size_t count;
};

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

static int write_dump(const char *path, struct dump *dump) {
    char *temporary;
    if (files_stage_begin(path, false, &temporary)) {
        return -1;
    }
    int status = safetensors_write(temporary, dump->infos, dump->count, take_values, dump);
    if (status) {
        status = error_prefix("cannot write %s (what was there before is untouched)", path);
    }
    return files_stage_end(path, temporary, status);
}

/* Writes the weights, as a checkpoint has them, to a folder that may have other files. */
static int write_weights(const char *folder, struct gpt *gpt, struct model_files *files) {
    const struct path path = path_of("%s/" WEIGHTS_FILE, folder);
    char *staging;
    if ((files->adapter && model_files_verify(files)) || files_stage_begin(path.text, true, &staging)) {
        return -1;
    }
    int status = checkpoint_write_weights(staging, gpt, files);
    if (status) {
        error_prefix("cannot write the weights to %s (what was there before is untouched)", folder);
    }
    status = status || checkpoint_move(folder, staging, false) ? -1 : 0;
    files_stage_end(path.text, staging, -1);
    return status;
}

/* Fails where that could not begin at the end. */
static int check_output(const struct probe_settings *settings) {
    const struct path path = path_of(settings->train ? "%s/" WEIGHTS_FILE : "%s", settings->out);
    char *temporary = NULL;
    if ((settings->train && files_make_folder(settings->out)) || files_stage_begin(path.text, false, &temporary)) {
        return -1;
    }
    files_stage_end(path.text, temporary, -1);
    return 0;
}

/* ---- values of the frame */

/* Numbers of a value for one token. */
static size_t numbers_of(const struct frame_value *value) {
    return (size_t)(value->shape[0] * (value->rank > 1 ? value->shape[1] : 1));
}

/* Reads them for all tokens. Waits. */
static int read_value(struct gpt *gpt, const struct frame_value *value, float *numbers) {
    const size_t tokens = gpt_tokens(gpt), count = numbers_of(value), bytes = element_size(value->buffer->type);
    const size_t elements = (tokens - 1) * value->row + value->first + count;
    void *rows = memory_allocate(elements, bytes);
    const int status = buffer_read(gpt->compute, value->buffer, 0, rows, elements * bytes);
    for (size_t i = 0; status == 0 && i < tokens * count; i++) {
        numbers[i] = element_at(rows, i / count * value->row + value->first + i % count, value->buffer->type);
    }
    free(rows);
    return status;
}

/* Calls `visit` with all values that the last forward pass has left, until it fails. */
static int each_value(struct gpt *gpt, int (*visit)(void *context, struct gpt *, const struct frame_value *),
                      void *context) {
    for (int64_t sublayer = 0; sublayer <= BRANCHES * gpt->config.n_layer; sublayer++) {
        struct frame_value values[FRAME_MOST_VALUES + 1];
        const struct buffer *gates = gpt->sublayers[sublayer].value_gates;
        const size_t heads = (size_t)gpt->config.n_kv_head;
        size_t count = gpt->frame->values ? gpt->frame->values(gpt, sublayer, values) : 0;
        if (gates) {
            values[count] = (struct frame_value){.buffer = gates, .row = heads, .rank = 1, .shape = {heads, 1}};
            snprintf(values[count++].name, sizeof values->name, "ve_gate.%" PRId64, sublayer);
        }
        for (size_t i = 0; i < count; i++) {
            if (visit(context, gpt, &values[i])) {
                return -1;
            }
        }
    }
    return 0;
}

/* ---- one pass */

static int dump_value(void *context, struct gpt *gpt, const struct frame_value *value) {
    const uint64_t shape[4] = {(uint64_t)gpt->shape.batch, (uint64_t)gpt->shape.sequence, value->shape[0],
                               value->shape[1]};
    return read_value(gpt, value, add_tensor(context, 2 + value->rank, shape, memory_string(value->name)));
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
static int dump_pass(struct gpt *gpt, const struct probe_settings *settings, const struct batches *batches,
                     struct dump *dump) {
    const struct model_config *config = &gpt->config;
    const uint64_t batch = (uint64_t)batches->shape.batch, sequence = (uint64_t)batches->shape.sequence, one = 1;
    const uint64_t logits_shape[3] = {batch, sequence, (uint64_t)config->vocab_size};
    const uint64_t shape[4] = {batch, sequence, (uint64_t)config->n_streams,
                               (uint64_t)stream_channels(&gpt->operations.shape)};
    float *loss = add_tensor(dump, 1, &one, memory_string("loss"));
    float *logits = settings->logits ? add_tensor(dump, 3, logits_shape, memory_string("logits")) : NULL;
    if (gpt_set_batch(gpt, batches->shape, batches->x, batches->y)) {
        return -1;
    }
    gpt_forward(gpt, (struct gpt_pass){.dropout = false});
    if ((logits && gpt_read_logits(gpt, 0, gpt_tokens(gpt), logits)) || run_loss(gpt, settings->grad, loss) ||
        each_value(gpt, dump_value, dump)) {
        return -1;
    }
    const bool streams = settings->streams && residual_has_matrices(config->residual);
    for (int64_t index = 0; streams && index < BRANCHES * config->n_layer; index++) { /* that enter a sublayer */
        float *values = add_tensor(dump, 4, shape, memory_format("streams.%" PRId64, index));
        const size_t count = shape[0] * shape[1] * shape[2] * shape[3];
        struct buffer copy;
        if (buffer_create(gpt->compute, &copy, count * sizeof *values)) {
            return -1;
        }
        convert_elements(gpt->compute, (struct span){gpt->sublayers[index].mix.streams, 0}, (struct span){&copy, 0},
                         count);
        const int status = buffer_read(gpt->compute, &copy, 0, values, count * sizeof *values);
        buffer_release(gpt->compute, &copy);
        if (status) {
            return -1;
        }
    }
    for (size_t i = 0; settings->grad && i < gpt->parameters.count; i++) {
        const struct parameter *parameter = &gpt->parameters.table[i];
        if (gpt->parameters.adapter_rank > 0 && parameter->frozen) {
            continue;
        }
        char *name = parameter->adapter ? adapter_tensor_name(config, parameter) : memory_string(parameter->name);
        float *values = add_tensor(dump, parameter->rank, parameter->shape, memory_format("grad.%s", name));
        free(name);
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

static int run_pass(struct gpt *gpt, const struct probe_settings *settings, const struct batches *batches) {
    struct dump dump = {0};
    const int status = dump_pass(gpt, settings, batches, &dump) || write_dump(settings->out, &dump);
    for (size_t i = 0; i < dump.count; i++) {
        free(dump.infos[i].name);
        free(dump.values[i]);
    }
    free(dump.infos);
    free(dump.values);
    return status ? -1 : 0;
}

/* ---- optimizer steps */

static int run_training(struct gpt *gpt, const struct probe_settings *settings, struct model_files *files,
                        const struct batches *batches) {
    const size_t tokens = (size_t)(batches->shape.batch * batches->shape.sequence);
    const int32_t *x = batches->x, *y = batches->y;
    json_t *losses = json_array(), *norms = json_array();
    json_t *json = json_pack("{s:o, s:o}", "losses", losses, "grad_norms", norms);
    struct optimizer_settings optimizer = settings->optimizer;
    if (settings->specs) {
        unused_options_print(settings->specs, settings->spec_count, &gpt->config, &optimizer, false, stderr);
        schedule_complete(settings->specs, settings->spec_count, batches->iterations, &optimizer, stderr);
    }
    int status = 0;
    for (int64_t iteration = 0; status == 0 && iteration < batches->iterations; iteration++) {
        float loss = 0.0f, norm = 0.0f;
        gpt_zero(gpt);
        for (int64_t micro = 0; micro < batches->micro; micro++, x += tokens, y += tokens) {
            if (gpt_set_batch(gpt, batches->shape, x, y)) {
                status = -1;
                break;
            }
            gpt_forward(gpt, (struct gpt_pass){.dropout = false});
            gpt_loss(gpt, 1.0f / (float)batches->micro, true);
            gpt_backward(gpt, NULL);
        }
        if (status == 0) {
            optimizer_step(gpt, &optimizer, iteration);
            status = gpt_read_results(gpt, &loss, &norm);
        }
        if (status == 0 && !loss_scale_update(&gpt->loss_scale, isfinite(norm))) {
            status = error_set("the gradient norm is not finite at step %" PRId64, iteration);
        }
        json_array_append_new(losses, json_file_real((double)loss));
        json_array_append_new(norms, json_file_real((double)norm));
    }
    status = status || write_weights(settings->out, gpt, files) ||
             json_file_write(path_of("%s/losses.json", settings->out).text, json_incref(json),
                             JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(json);
    return status ? -1 : 0;
}

int probe_run(struct compute *compute, const struct probe_settings *settings) {
    struct batches batches = {0};
    struct gpt gpt = {0};
    const bool makes_folder = settings->train && !files_exist(settings->out);
    struct model_files files;
    int status = model_files_open(settings->checkpoint, settings->adapter, settings->base, &files) ||
                 read_batches(settings->batch, settings->train, &batches) || check_output(settings);
    struct gpt_options options = {.batch = batches.shape.batch,
                                  .sequence = batches.shape.sequence,
                                  .mode = settings->train || settings->grad ? GPT_TRAINING : GPT_ANALYSIS,
                                  .type = settings->dtype,
                                  .optimizer = settings->optimizer};
    if (!settings->train) { /* gradients are of all parameters */
        options.optimizer.freeze = NULL;
        options.optimizer.freeze_alpha_res = false;
    }
    status =
        status || gpt_plan(compute, &files.config, &options, &gpt) || gpt_create(&gpt) ||
        model_files_load(&files, 0, &gpt) ||
        (settings->train ? run_training(&gpt, settings, &files, &batches) : run_pass(&gpt, settings, &batches));
    if (status && makes_folder) {
        rmdir(settings->out); /* if it is empty */
    }
    gpt_release(&gpt);
    model_files_close(&files);
    free(batches.x);
    free(batches.y);
    return status ? -1 : 0;
}

/* ---- measuring */

struct measurement {
    const struct probe_settings *settings;
    struct token_file *file;
    double *sums;       /* [count] over tokens, of all values in all sublayers in their order */
    size_t count, next; /* next: where those of the value that is visited begin */
    json_t *means;      /* of them by name */
    struct h_measurement h;
};

/* So many numbers of a value, one for each channel, have one mean. */
static size_t channels_of(const struct gpt *gpt, const struct frame_value *value) {
    return value->rank > 1 && value->shape[1] == (uint64_t)gpt->config.n_embd ? (size_t)value->shape[1] : 1;
}

static int add_value(void *context, struct gpt *gpt, const struct frame_value *value) {
    struct measurement *measurement = context;
    const size_t count = numbers_of(value), channels = channels_of(gpt, value), numbers = gpt_tokens(gpt) * count;
    float *values = memory_allocate(numbers, sizeof *values);
    const int status = read_value(gpt, value, values);
    if (measurement->next == measurement->count) { /* of the first pass */
        measurement->count += count / channels;
        measurement->sums = memory_resize(measurement->sums, measurement->count, sizeof(double));
        memset(measurement->sums + measurement->next, 0, count / channels * sizeof(double));
    }
    for (size_t i = 0; status == 0 && i < numbers; i++) {
        measurement->sums[measurement->next + i % count / channels] += (double)values[i] / (double)channels;
    }
    measurement->next += count / channels;
    free(values);
    return status;
}

/* The next means, so many. */
static json_t *take_means(struct measurement *measurement, const struct gpt *gpt, uint64_t count) {
    const double tokens = (double)(measurement->settings->samples * gpt->config.block_size);
    json_t *means = json_array();
    for (uint64_t i = 0; i < count; i++) {
        json_array_append_new(means, json_file_real(measurement->sums[measurement->next++] / tokens));
    }
    return means;
}

static int put_value(void *context, struct gpt *gpt, const struct frame_value *value) {
    struct measurement *measurement = context;
    json_t *means;
    if (value->rank > 1 && channels_of(gpt, value) == 1) {
        means = json_array();
        for (uint64_t row = 0; row < value->shape[0]; row++) {
            json_array_append_new(means, take_means(measurement, gpt, value->shape[1]));
        }
    } else {
        means = take_means(measurement, gpt, value->shape[0]);
    }
    return json_object_set_new(measurement->means, value->name, means);
}

/* Samples are block_size tokens, the first where index / samples of the split begins. */
static int add_samples(struct measurement *measurement, struct gpt *gpt) {
    const struct probe_settings *settings = measurement->settings;
    const int64_t samples = settings->samples, batch = settings->batch_size, length = gpt->config.block_size;
    const uint64_t held = measurement->file->count;
    if (held < (uint64_t)length) {
        return error_set("the split has %" PRIu64 " tokens, fewer than one sequence of %" PRId64, held, length);
    }
    const unsigned __int128 places = held - (uint64_t)length + 1;
    int32_t *tokens = memory_allocate((size_t)(batch * length), sizeof *tokens);
    struct progress progress;
    int result = 0;
    progress_start(&progress, 0);
    for (int64_t first = 0; result == 0 && first < samples; first += batch) {
        const int64_t count = samples - first < batch ? samples - first : batch;
        progress_show(&progress, settings->checkpoint, first, samples, "samples");
        result = interrupt_requested() ? error_set("interrupted") : 0;
        for (int64_t i = 0; result == 0 && i < count; i++) {
            const uint64_t place = (uint64_t)(places * (uint64_t)(first + i) / (uint64_t)samples);
            result = token_file_read(measurement->file, place, (uint64_t)length, (uint32_t)gpt->config.vocab_size,
                                     tokens + i * length);
        }
        result = result || gpt_set_batch(gpt, (struct token_shape){count, length}, tokens, NULL);
        if (result == 0) {
            gpt_forward(gpt, (struct gpt_pass){.dropout = false});
            measurement->next = 0;
            result = each_value(gpt, add_value, measurement) ||
                     (residual_has_matrices(gpt->config.residual) && h_measurement_add(&measurement->h, gpt));
        }
    }
    progress_end(&progress);
    free(tokens);
    return result ? -1 : 0;
}

/* NULL with an error. */
static json_t *measure(struct compute *compute, struct model_files *files, struct measurement *measurement) {
    const struct model_config *config = &files->config;
    const struct probe_settings *settings = measurement->settings;
    const struct gpt_options options = {.batch = settings->batch_size,
                                        .sequence = config->block_size,
                                        .mode = GPT_ANALYSIS};
    struct gpt gpt = {0};
    json_t *json = NULL;
    h_measurement_begin(&measurement->h, config, true);
    if (gpt_plan(compute, config, &options, &gpt) == 0 && gpt_create(&gpt) == 0 &&
        model_files_load(files, 0, &gpt) == 0 && add_samples(measurement, &gpt) == 0) {
        measurement->means = json_object();
        measurement->next = 0;
        each_value(&gpt, put_value, measurement);
        json = json_pack("{s:I, s:o, s:o*}", "samples", (json_int_t)settings->samples, "value_means",
                         measurement->means, "h",
                         residual_has_matrices(config->residual) ? h_measurement_json(&measurement->h) : NULL);
    }
    free(measurement->sums);
    h_measurement_end(&measurement->h);
    gpt_release(&gpt);
    return json;
}

int probe_measure(struct compute *compute, const struct probe_settings *settings) {
    struct measurement measurement = {.settings = settings};
    struct model_files files;
    struct output_file out = {0};
    int status = model_files_open(settings->checkpoint, settings->adapter, settings->base, &files) ||
                 token_file_open_split(settings->data_dir, settings->split, &measurement.file) ||
                 output_file_open(&out, settings->out);
    if (status == 0) {
        json_t *json = frame_of(&files.config)->values || files.config.value_embeds
                           ? measure(compute, &files, &measurement)
                           : json_object();
        status = json ? json_file_print_line(json, out.stream, JSON_COMPACT | JSON_REAL_PRECISION(9))
                      : error_prefix("%s", settings->checkpoint);
        status = output_file_end(&out, status);
    }
    token_file_close(measurement.file);
    model_files_close(&files);
    return status ? -1 : 0;
}
