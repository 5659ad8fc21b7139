#include "src/checkpoint/checkpoint.h"
#include "runtime/files/files.h"
#include "runtime/files/token_file.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/upcycle.h"
#include "src/checkpoint/weights.h"
#include "src/model/optimizer.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- weights */

static int read_weights(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    const struct gpt *gpt = context;
    const struct parameter *parameter = &gpt->parameters.table[tensor];
    return parameters_read(gpt->compute, &gpt->parameters, parameter->offset + first, count, values)
               ? error_prefix("tensor '%s'", parameter->name)
               : 0;
}

int checkpoint_write_weights(const char *path, struct gpt *gpt) {
    struct tensor_info *infos = weights_tensors(&gpt->parameters);
    const int status = safetensors_write(path, infos, gpt->parameters.count, read_weights, gpt);
    free(infos);
    return status;
}

int checkpoint_load_weights(const char *folder, struct gpt *gpt) {
    return upcycle_load(folder, &gpt->config, 0, gpt); /* the model lacks nothing */
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
    const struct tensor_info *info = weights_find(all->file, &all->infos[tensor]);
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
    if (found < safetensors_count(all->file)) {
        status =
            error_set("%s has %zu tensors, of which %zu are states of this model: it belongs to another model or "
                      "optimizer",
                      path, safetensors_count(all->file), found);
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

static int load_states(const char *path, struct gpt *gpt) {
    struct states all = list_states(gpt, true);
    int status = safetensors_open(path, &all.file) || choose_stored(&all, path) ? -1 : 0;
    if (status == 0 && tensors_each_piece(all.infos, all.count, load_piece, &all)) {
        status = error_prefix("%s", path);
    }
    release_states(&all);
    return status;
}

/* ---- checkpoints */

const char *const checkpoint_files[] = {"config.json",       WEIGHTS_FILE, OPTIMIZER_FILE,
                                        TOKENIZER_FILE_NAME, "state.json", NULL};

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
    const int others = files_has_others(path, checkpoint_files), own = others > 0 ? checkpoint_is_own(path) : 1;
    if (own == 0 && (files_exist(path_of("%s/%s", path, WEIGHTS_FILE).text) ||
                     files_exist(path_of("%s/config.json", path).text))) {
        return error_set("the folder there is not a checkpoint of this program: move it away");
    }
    return own < 0 ? -1 : others;
}

int checkpoint_save(const char *path, struct gpt *gpt, const struct checkpoint_content *content) {
    char *staging = NULL;
    const int others = check_older(path);
    if (others < 0 || files_stage_begin(path, true, &staging)) {
        return error_prefix("cannot save checkpoint %s", path);
    }
    if (config_file_write(staging, &gpt->config) ||
        checkpoint_write_weights(path_of("%s/%s", staging, WEIGHTS_FILE).text, gpt) ||
        (content->optimizer && write_states(path_of("%s/%s", staging, OPTIMIZER_FILE).text, gpt)) ||
        (content->tokenizer_json && files_write(path_of("%s/" TOKENIZER_FILE_NAME, staging).text,
                                                content->tokenizer_json, content->tokenizer_json_bytes)) ||
        checkpoint_write_state(staging, gpt, content)) {
        error_prefix("cannot save checkpoint %s (what was there before is untouched)", path);
        return files_stage_end(path, staging, -1);
    }
    int status = 0;
    if (others) { /* they stay */
        const char *names[COUNT(checkpoint_files)];
        size_t count = 0;
        for (const char *const *name = checkpoint_files; *name; name++) {
            if (files_exist(path_of("%s/%s", staging, *name).text)) {
                names[count++] = *name;
            }
        }
        names[count] = NULL;
        status = files_move_into(path, staging, names, NULL);
        files_stage_end(path, staging, -1); /* what is left of it */
    } else {
        status = files_stage_end(path, staging, 0);
    }
    return status ? error_prefix("cannot save checkpoint %s", path) : 0;
}

int checkpoint_resume(const char *path, struct gpt *gpt, struct training_state *state) {
    return checkpoint_resume_state(path, gpt, state) || checkpoint_load_weights(path, gpt) ||
                   load_states(path_of("%s/%s", path, OPTIMIZER_FILE).text, gpt)
               ? -1
               : 0;
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

static int newest_first(const struct dirent **a, const struct dirent **b) {
    const int64_t first = checkpoint_iteration_of((*a)->d_name), second = checkpoint_iteration_of((*b)->d_name);
    return (first < second) - (first > second);
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
    const int found = scandir(out_dir, &entries, is_numbered, newest_first);
    *iterations = NULL;
    *count = 0;
    if (found < 0) {
        return error_set_errno("cannot read the run directory %s", out_dir);
    }
    *iterations = memory_allocate((size_t)found, sizeof **iterations);
    for (int i = 0; i < found; i++) {
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
