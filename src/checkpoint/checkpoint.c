#include "src/checkpoint/checkpoint.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/files/token_file.h"
#include "runtime/options/options.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/adapter.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/weights.h"
#include "src/model/optimizer.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MOST_STATE_BYTES ((size_t)1 << 24)
#define STATE_FORMAT     (JSON_INDENT(1) | JSON_REAL_PRECISION(17))
#define MOST_ITERATIONS  ((json_int_t)1000000000000) /* as --max-iters */

/* The first of checkpoint_files have checksums in state.json, and some of these are an adapter's. */
enum { ADAPTER_FIRST = 2, ADAPTER_END = 5, FILES = 6 };

const char *const checkpoint_files[] = {"config.json",       WEIGHTS_FILE,      ADAPTER_FILE,
                                        ADAPTER_CONFIG_FILE, ADAPTER_BASE_FILE, OPTIMIZER_FILE,
                                        TOKENIZER_FILE_NAME, "state.json",      NULL};

/* ---- weights */

/* The tensors of a file, of these parameters. */
struct weight_tensors {
    struct gpt *gpt;
    size_t count;
    struct tensor_info *infos;
    const struct parameter **parameters;
};

/* Whether a model with an adapter has the parameter from its base. */
static bool is_of_base(const struct parameter *parameter) {
    return parameter->frozen && !parameter->adapter && !parameter->differs_from_base &&
           !parameter_is_new(parameter);
}

/* Those of an adapter; or the others, with an adapter only parameters that are new or were trained beside it. */
static struct weight_tensors list_weights(struct gpt *gpt, bool of_adapter) {
    const struct parameters *parameters = &gpt->parameters;
    struct weight_tensors all = {.gpt = gpt};
    all.infos = memory_allocate(parameters->count, sizeof *all.infos);
    all.parameters = memory_allocate(parameters->count, sizeof *all.parameters);
    for (size_t i = 0; i < parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i];
        if (parameter->adapter == of_adapter && !(parameters->adapter_rank > 0 && is_of_base(parameter))) {
            all.parameters[all.count] = parameter;
            all.infos[all.count] = weights_tensor(parameter);
            all.infos[all.count++].name =
                of_adapter ? adapter_tensor_name(&gpt->config, parameter) : memory_string(parameter->name);
        }
    }
    return all;
}

static int read_weights(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    const struct weight_tensors *all = context;
    const struct parameter *parameter = all->parameters[tensor];
    return parameters_read(all->gpt->compute, &all->gpt->parameters, parameter->offset + first, count, values)
               ? error_prefix("tensor '%s'", parameter->name)
               : 0;
}

/* Writes the file unless there are no such tensors. *count becomes their number. */
static int write_tensors(const char *path, struct gpt *gpt, bool of_adapter, size_t *count) {
    struct weight_tensors all = list_weights(gpt, of_adapter);
    const int status = all.count > 0 ? safetensors_write(path, all.infos, all.count, read_weights, &all) : 0;
    *count = all.count;
    for (size_t i = 0; i < all.count; i++) {
        free(all.infos[i].name);
    }
    free(all.infos);
    free(all.parameters);
    return status;
}

int checkpoint_write_weights(const char *folder, struct gpt *gpt, const struct model_files *files) {
    size_t trained, adapters;
    if (write_tensors(path_of("%s/" WEIGHTS_FILE, folder).text, gpt, false, &trained)) {
        return -1;
    }
    if (gpt->parameters.adapter_rank == 0) {
        return 0;
    }
    char *whole = realpath(files->base, NULL); /* who reads it may be in another folder than this process */
    const char *base = whole ? whole : files->base;
    const int status = write_tensors(path_of("%s/" ADAPTER_FILE, folder).text, gpt, true, &adapters) ||
                       adapter_config_write(folder, &gpt->config, base) ||
                       adapter_base_write(folder, base, files->checksum, (int64_t)trained);
    free(whole);
    return status ? -1 : 0;
}

/* ---- the optimizer's states */

/* A tensor of the file: a state of a parameter. */
struct state_tensor {
    struct parameter *parameter;
    size_t state;
};

/* The tensors of the file, the first states of all parameters, then the second ones. */
struct states {
    struct gpt *gpt;
    size_t count;
    struct tensor_info *infos;    /* [count], with names */
    struct state_tensor *tensors; /* [count] */
    struct safetensors *file;     /* NULL: they are not loaded */
};

/* Lists the states that are trained, or also those that another run may have trained. */
static struct states list_states(struct gpt *gpt, bool without_gradient) {
    const struct parameters *parameters = &gpt->parameters;
    const size_t most = OPTIMIZER_MOST_STATES * parameters->count;
    struct states all = {.gpt = gpt};
    all.infos = memory_allocate(most, sizeof *all.infos);
    all.tensors = memory_allocate(most, sizeof *all.tensors);
    for (size_t i = 0; i < most; i++) {
        const struct state_tensor tensor = {&parameters->table[i % parameters->count], i / parameters->count};
        const char *state = optimizer_state(gpt->optimizer, tensor.parameter, tensor.state);
        if (state && (without_gradient || !tensor.parameter->without_gradient)) {
            struct tensor_info info = weights_tensor(tensor.parameter);
            info.type = gpt->options.optimizer.moments == ELEMENT_BF16 ? TENSOR_BF16 : TENSOR_F32;
            info.name = memory_format("%s.%s", state, tensor.parameter->name);
            all.infos[all.count] = info;
            all.tensors[all.count++] = tensor;
        }
    }
    return all;
}

static void release_states(struct states *all) {
    safetensors_close(all->file);
    for (size_t i = 0; i < all->count; i++) {
        free(all->infos[i].name);
    }
    free(all->infos);
    free(all->tensors);
}

/* Copies a piece of a tensor from or to the device. Ranks may divide the states. */
static int copy_states(const struct states *all, size_t tensor, uint64_t first, uint64_t count, float *values,
                       bool to_device) {
    const struct parameters *parameters = &all->gpt->parameters;
    const struct state_share *share = all->gpt->options.state_share;
    const size_t state = all->tensors[tensor].state;
    const uint64_t in_arena = all->tensors[tensor].parameter->offset + first;
    struct compute *compute = all->gpt->compute;
    int status;
    if (share) {
        status = share->copy(share->context, all->gpt, state, in_arena, count, values, to_device);
    } else {
        const struct buffer *buffer = parameters->states[state];
        const uint64_t at = optimizer_state_offset(all->gpt->optimizer, parameters, state, in_arena);
        status = to_device ? buffer_write_floats(compute, buffer, at, values, count)
                           : buffer_read_floats(compute, buffer, at, values, count);
    }
    return status ? error_prefix("tensor '%s'", all->infos[tensor].name) : 0;
}

/* States of bf16 are bf16 in the file, too, where this is exact. */
static int read_states(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    const struct states *all = context;
    if (copy_states(all, tensor, first, count, values, false)) {
        return -1;
    }
    for (uint64_t i = 0; all->infos[tensor].type == TENSOR_BF16 && i < count; i++) {
        element_put(values, i, values[i], ELEMENT_BF16); /* never behind what is still to be read */
    }
    return 0;
}

/* An alpha_res that stays as it is gets states of zero: what they were before would move it. */
static int load_piece(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    const struct states *all = context;
    const struct tensor_info *wanted = &all->infos[tensor];
    const struct tensor_info *info = weights_require(safetensors_find(all->file, wanted->name), wanted);
    if (!info || safetensors_read_f32(all->file, info, first, count, values)) {
        return -1; /* with the tensor's name in the file */
    }
    if (all->gpt->options.optimizer.freeze_alpha_res && parameter_is_alpha_res(all->tensors[tensor].parameter)) {
        memset(values, 0, count * sizeof *values);
    }
    return copy_states(all, tensor, first, count, values, true);
}

/* Writes the states to a file. Without a path they are read alone: other ranks get those of this one. */
static int write_states(const char *path, struct gpt *gpt) {
    struct states all = list_states(gpt, false);
    const int status = path ? safetensors_write(path, all.infos, all.count, read_states, &all)
                            : tensors_each_piece(all.infos, all.count, read_states, &all);
    release_states(&all);
    return status;
}

int checkpoint_hand_over(struct gpt *gpt) {
    return gpt->options.state_share && write_states(NULL, gpt)
               ? error_prefix("cannot send the optimizer's states for a checkpoint")
               : 0;
}

/* Leaves the states that the file has. It lacks those of an embedding or a Linear layer's weight that the run
 * before has not trained: they stay zero. */
static int choose_stored(struct states *all, const char *path) {
    const struct parameter *table = all->gpt->parameters.table;
    bool *stored = memory_zeroed(all->gpt->parameters.count, sizeof *stored); /* any state of the parameter */
    size_t found = 0, kept = 0;
    int status = 0;
    for (size_t i = 0; i < all->count; i++) {
        if (safetensors_find(all->file, all->infos[i].name)) {
            stored[all->tensors[i].parameter - table] = true;
            found++;
        }
    }
    if (found < all->file->count) {
        status =
            error_set("%s has %zu tensors, of which %zu are states of this model: it belongs to another model or "
                      "optimizer",
                      path, all->file->count, found);
    }
    for (size_t i = 0; i < all->count; i++) {
        const struct parameter *parameter = all->tensors[i].parameter;
        const bool is_there = safetensors_find(all->file, all->infos[i].name) != NULL;
        const bool may_lack = parameter->lowp_only && parameter->steps == 0 && !stored[parameter - table];
        if (status == 0 && !is_there && !may_lack) {
            status = error_set("%s: tensor '%s' is missing, which %" PRId64 " steps have changed", path,
                               all->infos[i].name, parameter->steps);
        }
        if (is_there && !parameter->without_gradient) {
            all->infos[kept] = all->infos[i];
            all->tensors[kept++] = all->tensors[i];
        } else {
            free(all->infos[i].name);
        }
    }
    all->count = kept;
    free(stored);
    return status;
}

/* ---- writing state.json */

/* What evaluations change; no loss yet is null. */
static json_t *evaluation_json(const struct training_state *state) {
    return json_pack("{s:I, s:o, s:s, s:I, s:f}", "best_iteration", (json_int_t)state->best_iteration,
                     "best_val_loss", json_file_real(state->best_val_loss), "evaluation", state->evaluation,
                     "evaluated_at", (json_int_t)state->evaluated_at, "seconds", state->seconds);
}

int checkpoint_write_state(const char *folder, const struct gpt *gpt, const struct checkpoint_content *content) {
    const struct training_state *state = content->state;
    const struct loss_scale *scale = &gpt->loss_scale;
    json_t *checksums = json_object(), *steps = json_object();
    for (int i = 0; i < FILES; i++) {
        const struct path path = path_of("%s/%s", folder, checkpoint_files[i]);
        char digest[CHECKSUM_SIZE];
        if (!files_exist(path.text)) {
            continue;
        }
        if (checksum_file(path.text, digest)) {
            json_decref(checksums);
            json_decref(steps);
            return error_prefix("cannot compute checksums");
        }
        json_object_set_new(checksums, checkpoint_files[i], json_string(digest));
    }
    for (size_t i = 0; i < gpt->parameters.count; i++) { /* those that are not all of the run's */
        const struct parameter *parameter = &gpt->parameters.table[i];
        const int64_t made = optimizer_steps(gpt, parameter, state->iteration);
        if (made != state->iteration - scale->skipped) {
            json_object_set_new(steps, parameter->name, json_integer((json_int_t)made));
        }
    }
    char *settings =
        content->settings ? options_text(content->settings, content->setting_count) : memory_string("");
    json_t *json =
        json_pack("{s:s, s:I, s:I, s:I}", "version", HC_VERSION, "iteration", (json_int_t)state->iteration,
                  "tokens", (json_int_t)state->tokens, "seed", (json_int_t)state->seed);
    json_object_update_new(json, evaluation_json(state));
    if (scale->dynamic || scale->skipped) { /* the run is or was in fp16 */
        json_object_set_new(json, "loss_scale",
                            json_pack("{s:f, s:I, s:I}", "scale", (double)scale->scale, "good_steps",
                                      (json_int_t)scale->good_steps, "skipped", (json_int_t)scale->skipped));
    }
    if (json_object_size(steps) > 0) {
        json_object_set(json, "optimizer_steps", steps);
    }
    json_decref(steps);
    json_object_update_new(json, json_pack("{s:{s:s, s:s}, s:s, s:o}", "data", "train", state->train_digest, "val",
                                           state->val_digest, "settings", settings, "checksums", checksums));
    free(settings);
    return json_file_write(path_of("%s/state.json", folder).text, json, STATE_FORMAT);
}

int checkpoint_update(const char *folder, const struct training_state *state) {
    json_t *json;
    const struct path path = path_of("%s/state.json", folder);
    int status = json_file_read(path.text, MOST_STATE_BYTES, &json);
    if (status == 0) {
        json_object_update_new(json, evaluation_json(state));
        status = json_file_write(path.text, json, STATE_FORMAT);
    }
    return status ? error_prefix("cannot save the evaluation in checkpoint %s", folder) : 0;
}

/* ---- reading state.json */

/* Copies a text, which may be missing: then "". */
static int read_text(const json_t *json, const char *name, char *text, size_t bytes) {
    const char *saved = "";
    const int status = json_file_get_text(json, name, &saved);
    snprintf(text, bytes, "%s", saved);
    return status;
}

bool checkpoint_is_count(const json_t *number, json_int_t least) {
    return json_is_integer(number) && json_integer_value(number) >= least &&
           json_integer_value(number) <= MOST_ITERATIONS;
}

static int read_state(const json_t *json, struct training_state *state) {
    const json_t *iteration = json_object_get(json, "iteration"), *tokens = json_object_get(json, "tokens"),
                 *seed = json_object_get(json, "seed"), *best_iteration = json_object_get(json, "best_iteration"),
                 *evaluated = json_object_get(json, "evaluated_at"); /* older files lack it, and seconds */
    evaluated = evaluated ? evaluated : iteration;
    if (!checkpoint_is_count(iteration, 0) || !json_is_integer(tokens) || json_integer_value(tokens) < 0 ||
        !json_is_integer(seed) || !checkpoint_is_count(best_iteration, -1) || !checkpoint_is_count(evaluated, -1)) {
        return error_set("iteration, tokens, seed, best_iteration or evaluated_at is missing or out of range");
    }
    *state = (struct training_state){
        .iteration = json_integer_value(iteration),
        .tokens = (uint64_t)json_integer_value(tokens),
        .seed = (uint64_t)json_integer_value(seed),
        .best_val_loss = HUGE_VAL, /* null: no evaluation yet, or none that was finite */
        .best_iteration = json_integer_value(best_iteration),
        .evaluated_at = json_integer_value(evaluated),
    };
    const json_t *data = json_object_get(json, "data");
    return json_file_get_real(json, "best_val_loss", &state->best_val_loss) ||
                   json_file_get_real(json, "seconds", &state->seconds) ||
                   read_text(json, "evaluation", state->evaluation, sizeof state->evaluation) ||
                   read_text(data, "train", state->train_digest, CHECKSUM_SIZE) ||
                   read_text(data, "val", state->val_digest, CHECKSUM_SIZE)
               ? -1
               : 0;
}

/* A run in fp16 continues with its scale; every run keeps the number of skipped steps. */
static int read_loss_scale(const json_t *json, int64_t iteration, struct loss_scale *scale) {
    const json_t *saved = json_object_get(json, "loss_scale");
    json_int_t good_steps = 0, skipped = 0;
    double number = 0;
    if (!saved) {
        return 0;
    }
    const int status = json_unpack((json_t *)(uintptr_t)saved, "{s:F, s:I, s:I}", "scale", &number, "good_steps",
                                   &good_steps, "skipped", &skipped);
    struct loss_scale read = *scale;
    read.scale = (float)number;
    read.good_steps = good_steps;
    read.skipped = skipped;
    if (status || !loss_scale_is_valid(&read) || skipped > iteration) {
        return error_set("loss_scale is not one that this program writes: resume from an older checkpoint");
    }
    scale->skipped = read.skipped;
    if (scale->dynamic) {
        *scale = read;
    }
    return 0;
}

/* Parameters that are not named have made all steps of the run. So has an alpha_res that stays as it is: it has no
 * states, and shares a launch with its neighbours then. */
static int read_steps(const json_t *json, int64_t iteration, struct gpt *gpt) {
    const json_t *saved = json_object_get(json, "optimizer_steps");
    size_t named = 0;
    gpt->resumed_steps = iteration - gpt->loss_scale.skipped;
    for (size_t i = 0; i < gpt->parameters.count; i++) {
        struct parameter *parameter = &gpt->parameters.table[i];
        const json_t *steps = json_object_get(saved, parameter->name);
        if (steps && (!checkpoint_is_count(steps, 0) || json_integer_value(steps) > gpt->resumed_steps)) {
            return error_set("optimizer_steps of '%s' is no number from 0 to %" PRId64, parameter->name,
                             gpt->resumed_steps);
        }
        const bool stays = gpt->options.optimizer.freeze_alpha_res && parameter_is_alpha_res(parameter);
        named += steps != NULL;
        parameter->steps = steps && !stays ? json_integer_value(steps) : gpt->resumed_steps;
    }
    return saved && (!json_is_object(saved) || named < json_object_size(saved))
               ? error_set("optimizer_steps is no object with numbers of this model's parameters")
               : 0;
}

/* *json is the caller's, also on failure. The model `gpt` goes on from there; it may be NULL. */
static int open_state(const char *folder, struct gpt *gpt, struct training_state *state, json_t **json) {
    const struct path path = path_of("%s/state.json", folder);
    int status = json_file_read(path.text, MOST_STATE_BYTES, json);
    if (status == 0 &&
        (read_state(*json, state) || (gpt && (read_loss_scale(*json, state->iteration, &gpt->loss_scale) ||
                                              read_steps(*json, state->iteration, gpt))))) {
        status = error_prefix("%s", path.text);
    }
    return status;
}

static bool is_file(const char *folder, const char *name) {
    struct stat status;
    return lstat(path_of("%s/%s", folder, name).text, &status) == 0 && S_ISREG(status.st_mode);
}

int checkpoint_is_own(const char *path) {
    const char *slash = strrchr(path, '/');
    const int64_t named = checkpoint_iteration_of(slash ? slash + 1 : path);
    json_t *json = NULL;
    const char *weights = is_file(path, ADAPTER_FILE) ? ADAPTER_FILE : WEIGHTS_FILE;
    if (!is_file(path, "config.json") || !is_file(path, weights) || !is_file(path, "state.json")) {
        return 0;
    }
    const int status = json_file_read(path_of("%s/state.json", path).text, MOST_STATE_BYTES, &json);
    const json_t *number = json_object_get(json, "iteration"), *checksums = json_object_get(json, "checksums");
    const bool own = checkpoint_is_count(number, 0) && json_object_get(checksums, "config.json") &&
                     json_object_get(checksums, weights) && (named < 0 || named == json_integer_value(number));
    json_decref(json);
    return status == 0 ? own : status == JSON_FILE_INVALID ? 0 : -1;
}

int checkpoint_read_state(const char *folder, struct training_state *state, char **settings) {
    json_t *json;
    const char *text = "";
    int status = open_state(folder, NULL, state, &json);
    if (status == 0 && settings) {
        status = json_file_get_text(json, "settings", &text) ? error_prefix("%s/state.json", folder) : 0;
        *settings = status ? NULL : memory_string(text);
    }
    json_decref(json);
    return status;
}

int checkpoint_resume_state(const char *folder, struct gpt *gpt, struct training_state *state) {
    const bool has_adapter = gpt->parameters.adapter_rank > 0;
    json_t *json;
    int status = open_state(folder, gpt, state, &json);
    for (int i = FILES - 1; i >= 0 && status == 0; i--) {
        const char *name = checkpoint_files[i];
        const char *saved = json_file_text(json_object_get(json_object_get(json, "checksums"), name));
        const bool of_adapter = i >= ADAPTER_FIRST && i < ADAPTER_END;
        const bool may_lack = of_adapter ? !has_adapter : has_adapter && strcmp(name, WEIGHTS_FILE) == 0;
        char digest[CHECKSUM_SIZE];
        if (!saved && may_lack && !files_exist(path_of("%s/%s", folder, name).text)) {
            continue;
        }
        if (!saved) {
            status = error_set("%s/state.json has no checksum of %s, which resuming needs: start from it with "
                               "init_from = %s instead",
                               folder, name, folder);
        } else if (checksum_file(path_of("%s/%s", folder, name).text, digest)) {
            status = -1;
        } else if (strcmp(saved, digest) != 0) {
            status = error_set("%s/%s is damaged: its checksum differs from the one in state.json; resume from an "
                               "older checkpoint by removing this folder",
                               folder, name);
        }
    }
    json_decref(json);
    return status ? -1 : 0;
}

/* ---- checkpoints */

/* Looks at what has the name of a checkpoint that will be written. 1: a folder with other files, which are kept; 0:
 * an older checkpoint alone, or nothing; -1 with an error. */
static int check_older(const char *path) {
    struct stat status;
    if (lstat(path, &status) != 0) {
        return errno == ENOENT ? 0 : error_set_errno("cannot look at it");
    }
    if (S_ISLNK(status.st_mode)) {
        return error_set("it is a symbolic link, whose target is not part of this run: remove the link");
    }
    if (!S_ISDIR(status.st_mode)) {
        return error_set("there is something of this name that is not a folder");
    }
    const int own = checkpoint_is_own(path);
    for (const char *const *name = checkpoint_files; own == 0 && name[1]; name++) { /* all but state.json */
        if (files_exist(path_of("%s/%s", path, *name).text)) {
            return error_set("the folder there is not a checkpoint of this program: move it away");
        }
    }
    return own < 0 ? -1 : files_has_others(path, checkpoint_files);
}

int checkpoint_move(const char *path, const char *staging, bool whole) {
    const char *names[COUNT(checkpoint_files)], *old[COUNT(checkpoint_files)];
    size_t count = 0, old_count = 0;
    for (const char *const *name = checkpoint_files; *name; name++) {
        if (files_exist(path_of("%s/%s", staging, *name).text)) {
            names[count++] = *name;
        } else {
            old[old_count++] = *name;
        }
    }
    names[count] = old[old_count] = NULL;
    return files_move_into(path, staging, names, whole ? old : NULL);
}

int checkpoint_save(const char *path, struct gpt *gpt, const struct checkpoint_content *content) {
    char *staging = NULL;
    const int others = check_older(path);
    if (others < 0 || files_stage_begin(path, true, &staging)) {
        return error_prefix("cannot save checkpoint %s", path);
    }
    if (config_file_write(staging, &gpt->config) || checkpoint_write_weights(staging, gpt, content->files) ||
        (content->optimizer && write_states(path_of("%s/%s", staging, OPTIMIZER_FILE).text, gpt)) ||
        (content->tokenizer_json && files_write(path_of("%s/" TOKENIZER_FILE_NAME, staging).text,
                                                content->tokenizer_json, content->tokenizer_json_bytes)) ||
        checkpoint_write_state(staging, gpt, content)) {
        error_prefix("cannot save checkpoint %s (what was there before is untouched)", path);
        return files_stage_end(path, staging, -1);
    }
    int status = 0;
    if (others) { /* they stay */
        status = checkpoint_move(path, staging, true);
        files_stage_end(path, staging, -1); /* what is left of it */
    } else {
        status = files_stage_end(path, staging, 0);
    }
    return status ? error_prefix("cannot save checkpoint %s", path) : 0;
}

int checkpoint_resume(struct model_files *files, bool weights, struct gpt *gpt, struct training_state *state) {
    const struct path file = path_of("%s/%s", files->folder, OPTIMIZER_FILE);
    if (checkpoint_resume_state(files->folder, gpt, state) || (weights && model_files_load(files, 0, gpt))) {
        return -1;
    }
    struct states all = list_states(gpt, true);
    int status = safetensors_open(file.text, &all.file) || choose_stored(&all, file.text) ? -1 : 0;
    if (status == 0 && tensors_each_piece(all.infos, all.count, load_piece, &all)) {
        status = error_prefix("%s", file.text);
    }
    release_states(&all);
    return status;
}

/* ---- the checkpoints of a run */

int64_t checkpoint_iteration_of(const char *name) {
    if (strncmp(name, "ckpt-", 5) != 0) {
        return -1;
    }
    char canonical[32];
    const int64_t iteration = strtoll(name + 5, NULL, 10);
    snprintf(canonical, sizeof canonical, "ckpt-%" PRId64, iteration);
    return strcmp(name, canonical) == 0 ? iteration : -1;
}

static int is_numbered(const struct dirent *entry) {
    return checkpoint_iteration_of(entry->d_name) >= 0;
}

/* Whether it is a folder with a file of a checkpoint. checkpoint_remove leaves folders without one if they have
 * other files. A folder that cannot be read counts: resuming from an older checkpoint instead would be wrong. A
 * circle of symbolic links does not. */
static bool has_files(const char *path) {
    struct stat status;
    bool found = false;
    const bool circle = stat(path, &status) != 0 && errno == ELOOP;
    for (const char *const *name = checkpoint_files; *name && !found && !circle; name++) {
        found = files_exist(path_of("%s/%s", path, *name).text);
    }
    return found;
}

/* The iterations of all "ckpt-<iteration>" in a run directory, newest first; heap memory. */
static int list_checkpoints(const char *out_dir, int64_t **iterations, size_t *count) {
    struct dirent **entries;
    const int found = scandir(out_dir, &entries, is_numbered, versionsort);
    *iterations = NULL;
    *count = 0;
    if (found < 0) {
        return error_set_errno("cannot read the run directory %s", out_dir);
    }
    *iterations = memory_allocate((size_t)found, sizeof **iterations);
    for (int i = found - 1; i >= 0; i--) {
        if (has_files(path_of("%s/%s", out_dir, entries[i]->d_name).text)) {
            (*iterations)[(*count)++] = checkpoint_iteration_of(entries[i]->d_name);
        }
        free(entries[i]);
    }
    free(entries);
    return 0;
}

char *checkpoint_newest(const char *out_dir) {
    int64_t *iterations;
    size_t count;
    if (list_checkpoints(out_dir, &iterations, &count)) {
        return NULL;
    }
    char *path = count ? memory_format("%s/ckpt-%" PRId64, out_dir, iterations[0]) : NULL;
    if (count == 0) {
        error_set(
            "there is no checkpoint in %s to resume from: start with init_from = scratch, and with --start-over "
            "if a run has left records there",
            out_dir);
    }
    free(iterations);
    return path;
}

int checkpoint_remove(const char *path) {
    return files_discard_members(path, checkpoint_files);
}

int checkpoint_prune(const char *out_dir, int64_t keep) {
    int64_t *iterations, kept = 0;
    size_t count;
    int status = list_checkpoints(out_dir, &iterations, &count);
    for (size_t i = 0; status == 0 && i < count; i++) {
        const struct path path = path_of("%s/ckpt-%" PRId64, out_dir, iterations[i]);
        const int own = files_is_link(path.text) ? 0 : checkpoint_is_own(path.text);
        kept += own > 0;
        status = own < 0 || (own > 0 && kept > keep && checkpoint_remove(path.text)) ? -1 : 0;
    }
    free(iterations);
    return status;
}
