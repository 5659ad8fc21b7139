#include "src/checkpoint/export.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/files/token_file.h"
#include "runtime/system/error.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/hugging_face.h"
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

static bool has_mark(const char *folder) {
    json_t *json = NULL;
    const bool marked = json_file_read(path_of("%s/config.json", folder).text, (size_t)1 << 20, &json) == 0 &&
                        json_object_get(json, mark) != NULL;
    json_decref(json);
    return marked;
}

/* Whether model.py is absent or as an export wrote it. */
static bool is_as_written(const char *out) {
    const struct path path = path_of("%s/%s", out, model_program->name);
    char *text = NULL;
    size_t bytes;
    const bool same = !files_exist(path.text) || (files_read(path.text, (size_t)1 << 24, &text, &bytes) == 0 &&
                                                  strcmp(text, model_program->text) == 0);
    free(text);
    return same;
}

/* The export may replace nothing, an empty folder, or an older export. */
static int check_target(const char *out) {
    size_t count = 0;
    if (!files_exist(out)) {
        return 0;
    }
    const int others = files_each(out, check_entry, &count);
    if (others < 0) {
        return error_prefix("cannot write the export");
    }
    if (!is_as_written(out)) {
        return error_set("%s/%s was changed since it was exported, and would be lost: choose another --out", out,
                         model_program->name);
    }
    return count == 0 || (!others && has_mark(out))
               ? 0
               : error_set("%s exists and is not just an export: choose another --out, or remove it", out);
}

/* ---- what to write */

/* The default number of rows of the token embedding: all, but for transformers only those of GPT-2's tokenizer,
 * without padding. */
static int64_t usual_rows(const struct model_config *config, enum export_format format) {
    const bool padded = strcmp(config->tokenizer, "gpt2") == 0 && config->vocab_size > GPT2_TOKENS;
    return format == EXPORT_HUGGING_FACE && padded ? GPT2_TOKENS : config->vocab_size;
}

static void set_id(struct token_ids *ids, uint32_t token, int64_t tokens) {
    if (token < tokens) {
        *ids = (struct token_ids){1, {token}};
    }
}

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
        set_id(&config->beginnings, tokenizer_beginning(tokenizer), config->vocab_size);
        set_id(&config->ends, tokenizer_end_of_text(tokenizer), config->vocab_size);
    }
    error_clear(); /* of a tokenizer.json that cannot be read: then the tokens are not known */
    tokenizer_close(tokenizer);
}

/* Sets the config of the exported model. */
static int choose_model(const struct export_settings *settings, const struct model_config *source,
                        struct model_config *target) {
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
    target->vocab_size = settings->vocab_size ? settings->vocab_size : usual_rows(source, settings->format);
    if (target->vocab_size > source->vocab_size) {
        return error_set("--vocab-size %" PRId64 " is more than the %" PRId64 " of %s", target->vocab_size,
                         source->vocab_size, settings->checkpoint);
    }
    return 0;
}

/* A tensor to write: elements of a parameter from `first` on, or of its transpose. */
struct written {
    const struct parameter *parameter;
    uint64_t first;
    bool transposed;
    struct tensor_info info; /* its name may be NULL: then `name` is it */
    char name[HUGGING_FACE_MOST_NAME];
};

struct export {
    enum export_format format;
    struct model_config source_config, config; /* as read, as written */
    struct parameters source, parameters;      /* their tables */
    struct weights *weights;
    struct written *written; /* while weights are written */
};

static int prepare(const struct export_settings *settings, struct export *export) {
    export->format = settings->format;
    if (config_file_read(settings->checkpoint, &export->source_config)) {
        return -1;
    }
    if (settings->format == EXPORT_HUGGING_FACE) {
        add_tokens(settings->checkpoint, &export->source_config);
    }
    if (choose_model(settings, &export->source_config, &export->config) ||
        (files_are_same(settings->checkpoint, settings->out) &&
         error_set("--out is the checkpoint itself: choose another folder")) ||
        check_target(settings->out)) {
        return -1;
    }
    parameters_create(&export->source_config, &export->source);
    parameters_create(&export->config, &export->parameters);
    return weights_open(settings->checkpoint, &export->source_config, &export->source, &export->weights);
}

/* ---- writing */

static int write_config(const struct export *export, const char *folder) {
    json_t *json = export->format == EXPORT_HUGGING_FACE ? config_file_hugging_face(&export->config)
                                                         : model_config_to_json(&export->config);
    json_object_set_new(json, mark, json_string("hctrain " HC_VERSION));
    return json_file_write(path_of("%s/config.json", folder).text, json, JSON_INDENT(1) | JSON_REAL_PRECISION(15));
}

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
    return weights_read(export->weights, from, written->transposed, written->first + first, count, values);
}

/* Lists the tensors of a parameter; returns their number. */
static size_t list_tensors(const struct export *export, const struct parameter *parameter,
                           struct written *written) {
    struct hugging_face_tensors tensors;
    uint64_t first = 0;
    if (export->format != EXPORT_HUGGING_FACE) {
        *written = (struct written){.parameter = parameter};
        written->info = weights_tensor(parameter);
        return 1;
    }
    hugging_face_tensors(&export->config, parameter, &tensors);
    for (size_t i = 0; i < tensors.count; i++) {
        written[i] = (struct written){parameter, first, tensors.transposed, tensors.infos[i], ""};
        memcpy(written[i].name, tensors.names[i], sizeof written[i].name);
        tensor_measure(&tensors.infos[i]);
        first += tensors.infos[i].elements;
    }
    return tensors.count;
}

static int write_weights(struct export *export, const char *folder) {
    const size_t most = export->parameters.count * HUGGING_FACE_MOST_PARTS;
    struct tensor_info *infos = memory_allocate(most, sizeof *infos);
    size_t count = 0;
    export->written = memory_allocate(most, sizeof *export->written);
    for (size_t i = 0; i < export->parameters.count; i++) {
        count += list_tensors(export, &export->parameters.table[i], &export->written[count]);
    }
    for (size_t i = 0; i < count; i++) {
        infos[i] = export->written[i].info;
        infos[i].name = infos[i].name ? infos[i].name : export->written[i].name;
    }
    const int status =
        safetensors_write(path_of("%s/%s", folder, WEIGHTS_FILE).text, infos, count, read_piece, export);
    free(infos);
    free(export->written);
    return status;
}

static int write_program(const char *folder) {
    return files_write(path_of("%s/%s", folder, model_program->name).text, model_program->text,
                       strlen(model_program->text));
}

/* The tokenizer.json of the model's tokens, if it has one. */
static int write_tokenizer(const char *checkpoint, const char *folder) {
    const struct path path = path_of("%s/" TOKENIZER_FILE_NAME, checkpoint);
    return files_exist(path.text) ? tokenizer_copy(path.text, path_of("%s/" TOKENIZER_FILE_NAME, folder).text) : 0;
}

static int write_folder(struct export *export, const char *checkpoint, const char *out) {
    char *staging = NULL;
    if (files_stage_begin(out, true, &staging)) {
        return -1;
    }
    const bool failed = write_config(export, staging) || write_weights(export, staging) ||
                        write_tokenizer(checkpoint, staging) ||
                        (export->format == EXPORT_TORCH && write_program(staging));
    return files_stage_end(out, staging, failed ? -1 : 0);
}

int export_run(const struct export_settings *settings, struct export_report *report) {
    struct export export = {0};
    const int status = prepare(settings, &export) || write_folder(&export, settings->checkpoint, settings->out);
    *report = (struct export_report){export.source_config, export.config.vocab_size, export.parameters.total};
    weights_close(export.weights);
    parameters_release(&export.source);
    parameters_release(&export.parameters);
    return status ? error_prefix("cannot export %s to %s", settings->checkpoint, settings->out) : 0;
}
