#include "src/checkpoint/export.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/files/token_file.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "runtime/system/message.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/model_files.h"
#include "src/checkpoint/weights.h"
#include "src/text/tokenizer.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* The key that marks our exports in config.json. Only they are replaced. */
static const char mark[] = MODEL_CONFIG_MARK;

static const struct embedded_text *const model_program = &export_files[0]; /* model.py */

/* ---- where to write */

/* Counts an entry of a folder; 1 if it is not of an export. Importing model.py leaves a __pycache__. */
static int check_entry(void *count, const char *name) {
    const char *const known[] = {"config.json", WEIGHTS_FILE, TOKENIZER_FILE_NAME, model_program->name,
                                 "__pycache__"};
    ++*(size_t *)count;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(name, known[i]) == 0) {
            return 0;
        }
    }
    return 1;
}

/* The export may replace nothing, an empty folder, or an older export, with its model.py as it was written. */
static int check_target(const char *out) {
    const struct path program = path_of("%s/%s", out, model_program->name);
    json_t *config = NULL;
    char *text = NULL;
    size_t count = 0, bytes;
    if (!files_exist(out)) {
        return 0;
    }
    const int others = files_each(out, check_entry, &count);
    if (others < 0) {
        return error_prefix("cannot write the export");
    }
    const bool changed = files_exist(program.text) && (files_read(program.text, (size_t)1 << 24, &text, &bytes) ||
                                                       strcmp(text, model_program->text) != 0);
    free(text);
    if (changed) {
        return error_set("%s was changed since it was exported, and would be lost: choose another --out",
                         program.text);
    }
    const bool marked = json_file_read(path_of("%s/config.json", out).text, (size_t)1 << 20, &config) == 0 &&
                        json_object_get(config, mark) != NULL;
    json_decref(config);
    return count == 0 || (!others && marked)
               ? 0
               : error_set("%s exists and is not just an export: choose another --out, or remove it", out);
}

/* ---- what to write */

/* A run of ours does not say which tokens begin and end texts: its tokenizer.json does, if it has one of the usual
 * names for the end. */
static void add_tokens(const char *checkpoint, struct model_config *config) {
    const struct path path = path_of("%s/" TOKENIZER_FILE_NAME, checkpoint);
    const struct tokenizer_source source = {.kind = TOKENIZER_FILE, .path = path.text};
    struct tokenizer *tokenizer = NULL;
    if (config->hugging_face_rows > 0 || config->ends.count > 0 || strcmp(config->tokenizer, "file") != 0 ||
        !files_exist(path.text)) {
        return;
    }
    if (tokenizer_open(&source, &tokenizer) == 0) {
        const uint32_t begins = tokenizer_beginning(tokenizer), ends = tokenizer_end_of_text(tokenizer);
        if (begins < config->vocab_size) {
            config->beginnings = (struct token_ids){1, {begins}};
        }
        if (ends < config->vocab_size) {
            config->ends = (struct token_ids){1, {ends}};
        }
    }
    error_clear(); /* of a tokenizer.json that cannot be read: then the tokens are not known */
    tokenizer_close(tokenizer);
}

/* A tensor to write: elements of a parameter from `first` on, or of its transpose. */
struct written {
    const struct parameter *parameter;
    uint64_t first;
    bool transposed;
};

struct export {
    enum export_format format;
    struct model_config source_config, config; /* as read, as written */
    struct parameters source, parameters;      /* their tables */
    struct model_files files;
    struct model_reader *reader;
    struct written *written; /* while weights are written */
};

static int prepare(const struct export_settings *settings, struct export *export) {
    struct model_config *source = &export->source_config, *target = &export->config;
    export->format = settings->format;
    struct model_files *files = &export->files;
    if (model_files_open(settings->checkpoint, settings->adapter, settings->base, files)) {
        return -1;
    }
    *source = files->config;
    if (config_file_read_tokens(files->base, source)) {
        return -1;
    }
    if (files->adapter && !settings->merge) {
        return error_set("%s is an adapter, in PEFT's format already: --merge adds it to its model's weights, and "
                         "writes that model",
                         files->adapter);
    }
    if (!files->adapter && settings->merge) {
        return error_set("%s has no adapter to merge: leave --merge out, or give --adapter", settings->checkpoint);
    }
    int64_t rows = source->vocab_size; /* for transformers only those of GPT-2's tokenizer, without padding */
    if (settings->format == EXPORT_HUGGING_FACE) {
        add_tokens(settings->checkpoint, source);
        rows = strcmp(source->tokenizer, "gpt2") == 0 && rows > GPT2_TOKENS ? GPT2_TOKENS : rows;
    }
    *target = *source;
    if (settings->format == EXPORT_HUGGING_FACE) {
        json_t *theirs = config_file_hugging_face(source);
        const int status = theirs ? config_file_parse(theirs, target) : -1; /* GPT-2 has biases in any case */
        json_decref(theirs);
        if (status) {
            return error_prefix("%s", settings->checkpoint);
        }
        target->hugging_face_rows = 0;
    }
    target->vocab_size = settings->vocab_size ? settings->vocab_size : rows;
    if (target->vocab_size > source->vocab_size) {
        return error_set("--vocab-size %" PRId64 " is more than the %" PRId64 " of %s", target->vocab_size,
                         source->vocab_size, settings->checkpoint);
    }
    if (files_are_same(settings->checkpoint, settings->out)) {
        return error_set("--out is the checkpoint itself: choose another folder");
    }
    if (check_target(settings->out)) {
        return -1;
    }
    target->lora.rank = 0; /* it is merged */
    parameters_create(source, &export->source);
    parameters_create(target, &export->parameters);
    return model_reader_open(files, source, &export->source, &export->reader);
}

/* ---- writing */

/* Elements of a tensor to write. A parameter that the source lacks is zero. */
static int read_piece(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    const struct export *export = context;
    const struct written *written = &export->written[tensor];
    const struct parameter *from = parameters_find(&export->source, written->parameter->name);
    if (interrupt_requested()) {
        return error_set("interrupted");
    }
    if (!from) {
        memset(values, 0, count * sizeof *values);
        return 0;
    }
    return model_reader_read(export->reader, from, written->transposed, written->first + first, count, values);
}

static int write_weights(struct export *export, const char *path) {
    const size_t most = export->parameters.count * HUGGING_FACE_MOST_PARTS;
    struct tensor_info *infos = memory_allocate(most, sizeof *infos);
    size_t count = 0;
    export->written = memory_allocate(most, sizeof *export->written);
    for (size_t i = 0; i < export->parameters.count; i++) {
        const struct parameter *parameter = &export->parameters.table[i];
        struct hugging_face_tensors tensors = {.count = 1, .infos = {weights_tensor(parameter)}};
        memcpy(tensors.names[0], parameter->name, sizeof parameter->name);
        if (export->format == EXPORT_HUGGING_FACE) {
            hugging_face_tensors(&export->config, parameter, &tensors);
        }
        uint64_t first = 0;
        for (size_t part = 0; part < tensors.count; part++, count++) {
            infos[count] = tensors.infos[part];
            infos[count].name = memory_string(tensors.names[part]);
            export->written[count] = (struct written){parameter, first, tensors.transposed};
            tensor_measure(&infos[count]);
            first += infos[count].elements;
        }
    }
    const int status = safetensors_write(path, infos, count, read_piece, export);
    for (size_t i = 0; i < count; i++) {
        free(infos[i].name);
    }
    free(infos);
    free(export->written);
    return status;
}

int export_run(const struct export_settings *settings) {
    struct export export = {0};
    const struct path tokenizer = path_of("%s/" TOKENIZER_FILE_NAME, settings->checkpoint); /* if it has one */
    char *staging = NULL;
    int status = prepare(settings, &export) || files_stage_begin(settings->out, true, &staging);
    if (status == 0) {
        json_t *config = export.format == EXPORT_HUGGING_FACE ? config_file_hugging_face(&export.config)
                                                              : model_config_to_json(&export.config);
        json_object_set_new(config, mark, json_string("hctrain " HC_VERSION));
        status = json_file_write(path_of("%s/config.json", staging).text, config,
                                 JSON_INDENT(1) | JSON_REAL_PRECISION(15)) ||
                 write_weights(&export, path_of("%s/" WEIGHTS_FILE, staging).text) ||
                 (files_exist(tokenizer.text) &&
                  tokenizer_copy(tokenizer.text, path_of("%s/" TOKENIZER_FILE_NAME, staging).text)) ||
                 (export.format == EXPORT_TORCH && files_write(path_of("%s/%s", staging, model_program->name).text,
                                                               model_program->text, strlen(model_program->text)));
        status = files_stage_end(settings->out, staging, status ? -1 : 0);
    }
    if (status == 0) {
        const struct model_config *source = &export.source_config;
        const int64_t left_out = source->vocab_size - export.config.vocab_size;
        message_print(stdout, "%s: %s with %s, %" PRIu64 " parameters, vocabulary %" PRId64, settings->out,
                      source->residual->name, message_count(source->n_layer, "layer").text, export.parameters.total,
                      export.config.vocab_size);
        message_print(stdout, left_out > 0 ? " (without the last %s)\n" : "\n",
                      message_count(left_out, "row").text);
    }
    model_reader_close(export.reader);
    model_files_close(&export.files);
    parameters_release(&export.source);
    parameters_release(&export.parameters);
    return status ? error_prefix("cannot export %s to %s", settings->checkpoint, settings->out) : 0;
}
