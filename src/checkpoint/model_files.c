#include "src/checkpoint/model_files.h"
#include "runtime/files/files.h"
#include "runtime/files/safetensors.h"
#include "runtime/system/array.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/adapter.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/weights.h"
#include "src/model/frame.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the folders */

bool model_files_has_adapter(const char *folder) {
    return files_exist(path_of("%s/" ADAPTER_BASE_FILE, folder).text);
}

void model_files_close(struct model_files *files) {
    free(files->folder);
    free(files->base);
    free(files->adapter);
    memset(files, 0, sizeof *files);
}

/* The base model has the sizes with which it is used. */
static void use_sizes(struct model_config *base, const struct model_config *config) {
    if (base->hugging_face_rows > 0 && config->vocab_size > base->vocab_size) {
        base->vocab_size = config->vocab_size;
    }
    if (base->position != POSITION_LEARNED && config->block_size < base->block_size) {
        base->block_size = config->block_size;
    }
}

/* Whether the base model has what a checkpoint with an adapter says of it. */
static int compare_base(const struct model_files *files) {
    struct model_config copy = files->config;
    struct model_setting settings[MODEL_MOST_SETTINGS];
    for (size_t i = 0, count = model_config_settings(&copy, settings); i < count; i++) {
        const char *name = settings[i].option.name;
        if (!(settings[i].flags & (OF_CONNECTION | ONLY_IN_TRAINING)) &&
            !model_config_same(&files->plain, &files->config, name)) {
            return error_set("%s has another %s than its base model in %s", files->folder, name, files->base);
        }
    }
    return 0;
}

/* Refuses an adapter beside which more was trained, for use with another model than its checkpoint's. */
static int check_alone(const char *adapter) {
    char *base = NULL, checksum[CHECKSUM_SIZE];
    int64_t trained = 0;
    const int status = model_files_has_adapter(adapter) && adapter_base_read(adapter, &base, checksum, &trained);
    free(base);
    if (status) {
        return -1;
    }
    return trained > 0 ? error_set("%s also has weights trained beside its adapter, which --adapter would ignore: "
                                   "give --checkpoint %s",
                                   adapter, adapter)
                       : 0;
}

int model_files_verify(struct model_files *files) {
    char digest[CHECKSUM_SIZE];
    if (files->is_verified) {
        return 0;
    }
    if (weights_checksum(files->base, digest)) {
        return -1;
    }
    if (*files->checksum && strcmp(digest, files->checksum) != 0) {
        return error_set(
            "%s has other weights than those that the adapter in %s was trained on: give --base FOLDER "
            "for these",
            files->base, files->folder);
    }
    memcpy(files->checksum, digest, CHECKSUM_SIZE);
    files->is_verified = true;
    return 0;
}

int model_files_open(const char *folder, const char *adapter, const char *base, struct model_files *files) {
    const bool has_adapter = model_files_has_adapter(folder);
    *files = (struct model_files){.folder = memory_string(folder)};
    if (has_adapter && adapter) {
        return error_set(
            "%s has an adapter already, and --adapter %s would be another: adapters are not stacked; merge "
            "the first one (hc_export --merge), or give its base model",
            folder, adapter);
    }
    if (adapter && check_alone(adapter)) {
        return -1;
    }
    if (base && !has_adapter) {
        return error_set("--base names the base model of a checkpoint with an adapter; %s has no adapter: leave it "
                         "out",
                         folder);
    }
    if (!files_exist(path_of("%s/config.json", folder).text) &&
        files_exist(path_of("%s/" ADAPTER_CONFIG_FILE, folder).text)) {
        return error_set("%s is an adapter without its model: give the model's folder, and --adapter %s", folder,
                         folder);
    }
    if (config_file_read(folder, &files->config)) {
        return -1;
    }
    if (!has_adapter) {
        files->plain = files->config;
        files->base = memory_string(folder);
        files->adapter = adapter ? memory_string(adapter) : NULL;
        return adapter ? adapter_config_read(adapter, &files->config) : 0;
    }
    files->adapter = memory_string(folder);
    if (adapter_config_read(folder, &files->config) ||
        adapter_base_read(folder, &files->base, files->checksum, &files->trained)) {
        return -1;
    }
    if (base) {
        free(files->base);
        files->base = memory_string(base);
    }
    if (!files_exist(path_of("%s/config.json", files->base).text)) {
        return error_set(
            "%s is an adapter of the model in %s, which is not there: give --base FOLDER if it has moved", folder,
            files->base);
    }
    if (model_files_has_adapter(files->base)) {
        return error_set("%s is an adapter of %s, which has an adapter itself: adapters are not stacked", folder,
                         files->base);
    }
    if (config_file_read(files->base, &files->plain)) {
        return -1;
    }
    use_sizes(&files->plain, &files->config);
    return compare_base(files);
}

/* ---- upcycling */

int upcycle_check(struct model_config *config) {
    const struct frame *frame = frame_of(config);
    const bool has_head = residual_has_matrices(config->residual) && !residual_is_fixed(config->residual);
    if (config->stream_reduce == STREAM_REDUCE_AUTO && has_head && !config->read_delay) {
        config->stream_reduce = STREAM_REDUCE_HEAD;
    }
    return frame->check_upcycling ? frame->check_upcycling(config) : 0;
}

/* Where a parameter's values come from; neither: it has first values. */
struct source {
    const struct tensor_info *info; /* a tensor of the adapter, or of what was trained beside it; NULL: not there */
    const struct parameter *plain;  /* the parameter of this name in the base; NULL: it has none */
};

struct model_reader {
    struct model_files *files;
    const struct model_config *config;
    const struct parameters *parameters;
    struct source *sources;                /* [parameters->count] */
    struct parameters plain;               /* of the base */
    struct weights *weights;               /* of the base */
    struct safetensors *adapter, *trained; /* NULL: there are none */
    struct transposed_tensor held;         /* of `trained` */
    const struct parameter *merged;        /* the weight of whose layer these are in memory; NULL: none */
    float *a, *b;                          /* of the adapters of that layer */
};

/* ---- reading */

static bool has_source(const struct source *source) {
    return source->info || source->plain;
}

/* Reads of the adapter, of what was trained beside it, or else of the base. */
static int read_source(struct model_reader *reader, const struct parameter *parameter, bool transposed,
                       uint64_t first, uint64_t count, float *values) {
    const struct source *source = &reader->sources[parameter - reader->parameters->table];
    const struct safetensors *file = parameter->adapter ? reader->adapter : reader->trained;
    if (!source->info) {
        return weights_read(reader->weights, source->plain, transposed, first, count, values);
    }
    return transposed ? weights_read_transposed(&reader->held, file, source->info, first, count, values)
                      : safetensors_read_f32(file, source->info, first, count, values);
}

/* ---- merging: W + s B A */

/* The layer whose weight, or a part of it, the parameter is; *row: the part's first row. NULL: it is none. */
static const struct linear *layer_of(const struct parameters *parameters, const struct parameter *parameter,
                                     size_t *row) {
    const struct sublayer_offsets *at =
        parameter->sublayer >= 0 ? &parameters->sublayers[parameter->sublayer] : NULL;
    const struct linear *layers[] = {at ? &at->in : NULL, at ? &at->out : NULL};
    for (size_t i = 0; at && i < COUNT(layers); i++) {
        const struct linear *layer = layers[i];
        const uint64_t end = layer->weight_at + layer->in * layer->out;
        if (parameter->lowp_only && parameter->offset >= layer->weight_at && parameter->offset < end) {
            *row = (size_t)(parameter->offset - layer->weight_at) / layer->in;
            return layer;
        }
    }
    return NULL;
}

/* Reads A and B of all adapters of a layer into reader->a [adapters * rank, in] and reader->b [out, rank]. */
static int hold_adapters(struct model_reader *reader, const struct parameter *parameter,
                         const struct linear *layer) {
    const struct parameters *parameters = reader->parameters;
    const size_t rank = parameters->adapter_rank;
    if (reader->merged == parameter) {
        return 0;
    }
    reader->merged = NULL;
    free(reader->a);
    free(reader->b);
    reader->a = memory_allocate(layer->adapter_count * rank * layer->in, sizeof *reader->a);
    reader->b = memory_allocate(layer->out * rank, sizeof *reader->b);
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *other = &parameters->table[i];
        float *to = NULL;
        for (size_t k = 0; k < layer->adapter_count && other->adapter; k++) {
            const uint64_t a_at = layer->a_at + k * rank * layer->in;
            to = other->offset == a_at                      ? reader->a + (a_at - layer->a_at)
                 : other->offset == layer->adapters[k].b_at ? reader->b + layer->adapters[k].first * rank
                                                            : to;
        }
        if (to && read_source(reader, other, false, 0, other->elements, to)) {
            return -1;
        }
    }
    reader->merged = parameter;
    return 0;
}

/* Adds s B A to elements of a weight, or of its transpose: sums in double, for the numbers of a line at once. */
static int merge(struct model_reader *reader, const struct parameter *parameter, bool transposed, uint64_t first,
                 uint64_t count, float *values) {
    size_t above = 0; /* rows of the layer's weight before the parameter's */
    const struct linear *layer = layer_of(reader->parameters, parameter, &above);
    if (!layer || layer->adapter_count == 0) {
        return 0;
    }
    if (hold_adapters(reader, parameter, layer)) {
        return -1;
    }
    const size_t rank = reader->parameters->adapter_rank, in = layer->in;
    const size_t width = (size_t)parameter->shape[transposed ? 0 : 1];
    double *sums = memory_allocate(width, sizeof *sums);
    for (uint64_t done = 0; done < count;) {
        const size_t line = (size_t)((first + done) / width), from = (size_t)((first + done) % width);
        const size_t end = size_smaller(width, from + (size_t)(count - done));
        memset(sums, 0, width * sizeof *sums);
        for (size_t k = 0; k < layer->adapter_count; k++) {
            const size_t top = layer->adapters[k].first, bottom = top + layer->adapters[k].count;
            for (size_t j = 0; j < rank; j++) {
                const float *a = reader->a + (k * rank + j) * in, *b = reader->b + j;
                for (size_t i = from; transposed && i < end; i++) {
                    const size_t row = above + i;
                    sums[i] += row >= top && row < bottom ? (double)b[row * rank] * (double)a[line] : 0.0;
                }
                const size_t row = above + line;
                const bool is_covered = !transposed && row >= top && row < bottom;
                for (size_t i = from; is_covered && i < end; i++) {
                    sums[i] += (double)b[row * rank] * (double)a[i];
                }
            }
        }
        for (size_t i = from; i < end; i++) {
            values[done++] += (float)((double)reader->parameters->adapter_scale * sums[i]);
        }
    }
    free(sums);
    return 0;
}

int model_reader_read(struct model_reader *reader, const struct parameter *parameter, bool transposed,
                      uint64_t first, uint64_t count, float *values) {
    return read_source(reader, parameter, transposed, first, count, values) ||
                   (reader->adapter && merge(reader, parameter, transposed, first, count, values))
               ? -1
               : 0;
}

/* ---- opening */

/* Opens a file beside the base's, of the model's adapter or of other parameters, and finds its tensors: all of an
 * adapter's must be there, and nothing else but parameters of the base from which upcycling makes new ones. */
static int open_file(struct model_reader *reader, const char *path, bool of_adapter, struct safetensors **file) {
    const struct parameters *parameters = reader->parameters;
    size_t found = 0;
    int status = safetensors_open(path, file);
    for (size_t i = 0; i < parameters->count && status == 0; i++) {
        const struct parameter *parameter = &parameters->table[i];
        struct tensor_info wanted = weights_tensor(parameter);
        if (parameter->adapter != of_adapter) {
            continue;
        }
        char *name = of_adapter ? adapter_tensor_name(reader->config, parameter) : memory_string(parameter->name);
        wanted.name = name;
        const struct tensor_info *info = reader->sources[i].info = safetensors_find(*file, name);
        found += info != NULL;
        if ((info || of_adapter) && !weights_require(info, &wanted)) {
            status = error_prefix("%s", path);
        }
        free(name);
    }
    for (size_t i = 0; i < reader->plain.count && status == 0 && !of_adapter; i++) {
        const char *name = reader->plain.table[i].name;
        found += !parameters_find(parameters, name) && safetensors_find(*file, name);
    }
    return status || found == (*file)->count
               ? status
               : error_set("%s has %zu tensors, of which %zu are of this model%s: it belongs to another one", path,
                           (*file)->count, found, of_adapter ? "'s adapter" : "");
}

/* Opens what was trained beside the adapter: as many tensors as base.json has counted, and no file of none. */
static int open_trained(struct model_reader *reader) {
    const struct model_files *files = reader->files;
    const struct path path = path_of("%s/" WEIGHTS_FILE, files->folder);
    const bool is_there = files_exist(path.text);
    if (is_there && open_file(reader, path.text, false, &reader->trained)) {
        return -1;
    }
    const size_t count = is_there ? reader->trained->count : 0;
    return (int64_t)count == files->trained ? 0
                                            : error_set("%s has %zu tensors, and %" PRId64
                                                        " were trained beside the adapter as " ADAPTER_BASE_FILE
                                                        " says: copy all files of the checkpoint",
                                                        path.text, count, files->trained);
}

/* Finds the parameters of the base. What neither it nor the checkpoint has must be new. */
static int find_plain(struct model_reader *reader) {
    for (size_t i = 0; i < reader->parameters->count; i++) {
        const struct parameter *parameter = &reader->parameters->table[i];
        struct source *source = &reader->sources[i];
        source->plain = parameters_find(&reader->plain, parameter->name);
        if (source->plain ? memcmp(source->plain->shape, parameter->shape, sizeof parameter->shape) != 0
                          : !source->info && !parameter->adapter && !parameter_is_new(parameter)) {
            return error_set("%s has no '%s' of this model's shape: config.json and the base model do not belong "
                             "together",
                             reader->files->base, parameter->name);
        }
    }
    return 0;
}

int model_reader_open(struct model_files *files, const struct model_config *config,
                      const struct parameters *parameters, struct model_reader **opened) {
    struct model_reader *reader = *opened = memory_zeroed(1, sizeof *reader);
    *reader = (struct model_reader){.files = files, .config = config, .parameters = parameters};
    reader->sources = memory_zeroed(parameters->count, sizeof *reader->sources);
    parameters_create(&files->plain, &reader->plain);
    if (files->adapter &&
        open_file(reader, path_of("%s/" ADAPTER_FILE, files->adapter).text, true, &reader->adapter)) {
        return -1;
    }
    const bool has_base = strcmp(files->base, files->folder) != 0; /* base.json names it */
    if ((has_base && open_trained(reader)) || find_plain(reader) || (has_base && model_files_verify(files))) {
        return -1;
    }
    return weights_open(files->base, &files->plain, &reader->plain, &reader->weights);
}

void model_reader_close(struct model_reader *reader) {
    if (reader) {
        weights_close(reader->weights);
        safetensors_close(reader->adapter);
        safetensors_close(reader->trained);
        parameters_release(&reader->plain);
        free(reader->sources);
        free(reader->held.values);
        free(reader->a);
        free(reader->b);
        free(reader);
    }
}

/* ---- loading */

struct loading {
    struct model_reader *reader;
    struct gpt *gpt;
    uint64_t seed;
    const struct norm_offsets *norm; /* whose gain and bias are in memory; NULL: none */
    float *gain, *bias;              /* [n_embd] each */
};

/* Reads a parameter of the plain model, which the model may lack. */
static int read_plain(const struct model_reader *reader, const struct parameter *plain, float *values) {
    const struct tensor_info wanted = weights_tensor(plain);
    const struct tensor_info *info = reader->trained ? safetensors_find(reader->trained, plain->name) : NULL;
    if (!info) {
        return weights_read(reader->weights, plain, false, 0, plain->elements, values);
    }
    return weights_require(info, &wanted) ? safetensors_read_f32(reader->trained, info, 0, plain->elements, values)
                                          : -1;
}

/* Values of a parameter that the plain model lacks. They may follow from gain and bias of the plain model's norm in
 * the same sublayer, or of ln_f. */
static int new_values(struct loading *all, const struct parameter *parameter, uint64_t first, uint64_t count,
                      float *values) {
    const struct model_config *config = &all->gpt->config;
    if (!parameter->upcycled) {
        parameter_first_values(parameter, config, all->seed, first, count, values);
        return 0;
    }
    const struct norm_offsets *norm = &all->reader->plain.sublayers[parameter->sublayer].norm;
    for (size_t i = 0; all->norm != norm && i < all->reader->plain.count; i++) {
        const struct parameter *plain = &all->reader->plain.table[i];
        float *to = plain->offset_copy == &norm->gain   ? all->gain
                    : plain->offset_copy == &norm->bias ? all->bias
                                                        : NULL;
        if (to && read_plain(all->reader, plain, to)) {
            return -1;
        }
    }
    all->norm = norm;
    const struct residual_init init = {.streams = config->n_streams,
                                       .sublayer = parameter->sublayer,
                                       .stream = model_config_first_stream(config, parameter->sublayer),
                                       .settings = &config->settings,
                                       .hc_eps = config->hc_eps,
                                       .gain = all->gain,
                                       .bias = all->bias,
                                       .channels = config->n_embd};
    for (uint64_t i = 0; i < count; i++) {
        values[i] = parameter->upcycled((int64_t)(first + i), &init);
    }
    return 0;
}

static int load_piece(void *context, size_t number, uint64_t first, uint64_t count, float *values) {
    struct loading *all = context;
    const struct parameters *parameters = &all->gpt->parameters;
    const struct parameter *parameter = &parameters->table[number];
    if (has_source(&all->reader->sources[number]) ? read_source(all->reader, parameter, false, first, count, values)
                                                  : new_values(all, parameter, first, count, values)) {
        return -1;
    }
    return parameter_write(all->gpt->compute, parameters, parameter, first, count, values)
               ? error_prefix("tensor '%s'", parameter->name)
               : 0;
}

/* Marks what was trained beside the adapter. -1 with an error if checkpoints could not keep it. */
static int mark_trained(const struct model_reader *reader, const struct gpt *gpt) {
    for (size_t i = 0; i < gpt->parameters.count; i++) {
        struct parameter *parameter = &gpt->parameters.table[i];
        parameter->differs_from_base = !parameter->adapter && reader->sources[i].info;
        if (parameter->differs_from_base && parameter->narrow && gpt->options.mode == GPT_TRAINING) {
            return error_set("%s was trained beside the adapter, and cannot be saved again as it is frozen now, in "
                             "int8 or nf4: name it with --lora-train, or merge the adapter first (hc_export "
                             "--merge)",
                             parameter->name);
        }
    }
    return 0;
}

int model_files_load(struct model_files *files, uint64_t seed, struct gpt *gpt) {
    const struct parameters *parameters = &gpt->parameters;
    const size_t width = (size_t)gpt->config.n_embd;
    struct loading all = {.gpt = gpt, .seed = seed};
    struct tensor_info *infos = weights_tensors(parameters);
    all.gain = memory_zeroed(width, sizeof *all.gain);
    all.bias = memory_zeroed(width, sizeof *all.bias);
    const int status = model_reader_open(files, &gpt->config, parameters, &all.reader) ||
                       mark_trained(all.reader, gpt) ||
                       tensors_each_piece(infos, parameters->count, load_piece, &all);
    model_reader_close(all.reader);
    free(all.gain);
    free(all.bias);
    free(infos);
    parameters_round(gpt->compute, parameters);
    return status ? -1 : 0;
}
