#include "src/checkpoint/checkpoint.h"
#include "runtime/files/files.h"
#include "runtime/files/token_file.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/weights.h"
#include "src/model/optimizer.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- tensors */

/* The tensors of a file, between it and the arenas on the device: the weights in the order of the table of
 * parameters, or the optimizer's states, one after the other. */
struct tensor_place {
    size_t parameter, state; /* numbers */
};

struct arena_tensors {
    struct gpt *gpt;
    bool of_optimizer;
    size_t count;
    struct tensor_info *infos;   /* [count], with names */
    struct tensor_place *places; /* [count] */
    struct weights *weights;     /* the file, when weights are loaded */
    struct safetensors *file;    /* the file, when states are loaded */
};

/* Of the optimizer's states only those that are trained, or also those that another run may have trained. */
static struct arena_tensors describe(struct gpt *gpt, bool of_optimizer, bool without_gradient) {
    const struct parameters *parameters = &gpt->parameters;
    const size_t most = (of_optimizer ? OPTIMIZER_MOST_STATES : 1) * parameters->count;
    struct arena_tensors tensors = {.gpt = gpt, .of_optimizer = of_optimizer};
    tensors.infos = memory_allocate(most, sizeof *tensors.infos);
    tensors.places = memory_allocate(most, sizeof *tensors.places);
    for (size_t i = 0; i < most; i++) {
        const struct tensor_place place = {i % parameters->count, i / parameters->count};
        const struct parameter *parameter = &parameters->table[place.parameter];
        const char *state = of_optimizer ? optimizer_state(gpt->optimizer, parameter, place.state) : "";
        if (state && (!of_optimizer || without_gradient || !parameter->without_gradient)) {
            tensors.places[tensors.count] = place;
            tensors.infos[tensors.count] = weights_tensor(parameter);
            tensors.infos[tensors.count].type =
                of_optimizer && gpt->options.optimizer.moments == ELEMENT_BF16 ? TENSOR_BF16 : TENSOR_F32;
            tensors.infos[tensors.count++].name =
                of_optimizer ? memory_format("%s.%s", state, parameter->name) : memory_string(parameter->name);
        }
    }
    return tensors;
}

static void release(struct arena_tensors *tensors) {
    weights_close(tensors->weights);
    safetensors_close(tensors->file);
    for (size_t i = 0; i < tensors->count; i++) {
        free(tensors->infos[i].name);
    }
    free(tensors->infos);
    free(tensors->places);
}

/* Leaves out what is not wanted [count]. */
static void choose(struct arena_tensors *tensors, const bool *wanted) {
    size_t kept = 0;
    for (size_t i = 0; i < tensors->count; i++) {
        if (wanted[i]) {
            tensors->infos[kept] = tensors->infos[i];
            tensors->places[kept++] = tensors->places[i];
        } else {
            free(tensors->infos[i].name);
        }
    }
    tensors->count = kept;
}

/* Copies a piece of a tensor from or to the device. Ranks may divide the optimizer's states. */
static int copy_piece(const struct arena_tensors *tensors, size_t tensor, uint64_t first, uint64_t count,
                      float *values, bool to_device) {
    const struct parameters *parameters = &tensors->gpt->parameters;
    const struct tensor_place place = tensors->places[tensor];
    const uint64_t in_arena = parameters->table[place.parameter].offset + first;
    const struct buffer *states = parameters->states[place.state];
    const struct gpt_options *options = &tensors->gpt->options;
    const struct state_share *share = options->state_share;
    struct compute *compute = tensors->gpt->compute;
    if (!tensors->of_optimizer) {
        return to_device ? parameters_write(compute, parameters, in_arena, count, values)
                         : parameters_read(compute, parameters, in_arena, count, values);
    }
    if (share) {
        return share->copy(share->context, tensors->gpt, place.state, in_arena, count, values, to_device);
    }
    const uint64_t at = optimizer_state_offset(tensors->gpt->optimizer, parameters, place.state, in_arena);
    return to_device ? buffer_write_floats(compute, states, at, values, count)
                     : buffer_read_floats(compute, states, at, values, count);
}

/* States of bf16 are bf16 in the file, too, where this is exact. */
static int read_piece(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    const struct arena_tensors *tensors = context;
    if (copy_piece(tensors, tensor, first, count, values, false)) {
        return error_prefix("tensor '%s'", tensors->infos[tensor].name);
    }
    for (uint64_t i = 0; tensors->infos[tensor].type == TENSOR_BF16 && i < count; i++) {
        element_put(values, i, values[i], ELEMENT_BF16); /* never behind what is still to be read */
    }
    return 0;
}

/* Whether the tensor is a state of a leaf that does not move: what it was before would move it. */
static bool is_frozen(const struct arena_tensors *tensors, size_t tensor) {
    const struct gpt *gpt = tensors->gpt;
    return tensors->of_optimizer && gpt->options.optimizer.freeze_alpha_res &&
           parameter_is_alpha_res(&gpt->parameters.table[tensors->places[tensor].parameter]);
}

static int load_piece(void *context, size_t tensor, uint64_t first, uint64_t count, float *values) {
    const struct arena_tensors *tensors = context;
    const struct tensor_info *info = NULL;
    if (tensors->of_optimizer && !(info = weights_find(tensors->file, &tensors->infos[tensor]))) {
        return -1;
    }
    const int status =
        info ? safetensors_read_f32(tensors->file, info, first, count, values)
             : weights_read(tensors->weights, &tensors->gpt->parameters.table[tensors->places[tensor].parameter],
                            false, first, count, values);
    if (status == 0 && is_frozen(tensors, tensor)) {
        memset(values, 0, count * sizeof *values);
    }
    if (status) {
        return -1; /* with the tensor's name in the files */
    }
    return copy_piece(tensors, tensor, first, count, values, true)
               ? error_prefix("tensor '%s'", tensors->infos[tensor].name)
               : 0;
}

/* Writes the tensors to a file. Without one they are read alone: other ranks get those of this one. */
static int write_tensors(const char *path, struct gpt *gpt, bool of_optimizer) {
    struct arena_tensors tensors = describe(gpt, of_optimizer, false);
    const int status = path ? safetensors_write(path, tensors.infos, tensors.count, read_piece, &tensors)
                            : tensors_each_piece(tensors.infos, tensors.count, read_piece, &tensors);
    release(&tensors);
    return status;
}

int checkpoint_write_weights(const char *path, struct gpt *gpt) {
    return write_tensors(path, gpt, false);
}

int checkpoint_hand_over(struct gpt *gpt) {
    return gpt->options.state_share && write_tensors(NULL, gpt, true)
               ? error_prefix("cannot send the optimizer's states for a checkpoint")
               : 0;
}

int checkpoint_load_weights(const char *folder, struct gpt *gpt) {
    struct arena_tensors tensors = describe(gpt, false, false);
    const int status = weights_open(folder, &gpt->config, &gpt->parameters, &tensors.weights) ||
                       tensors_each_piece(tensors.infos, tensors.count, load_piece, &tensors);
    release(&tensors);
    parameters_round(gpt->compute, &gpt->parameters);
    return status ? -1 : 0;
}

/* Leaves the states that the file has. It lacks those of an embedding or a Linear layer's weight that the run
 * before has not trained: they stay zero. */
static int choose_stored(struct arena_tensors *tensors, const char *path) {
    bool *wanted = memory_zeroed(tensors->count, sizeof *wanted);
    size_t *stored = memory_zeroed(tensors->gpt->parameters.count, sizeof *stored), found = 0;
    int status = 0;
    for (size_t i = 0; i < tensors->count; i++) {
        wanted[i] = safetensors_find(tensors->file, tensors->infos[i].name) != NULL;
        stored[tensors->places[i].parameter] += wanted[i];
        found += wanted[i];
    }
    if (found < safetensors_count(tensors->file)) {
        status =
            error_set("%s has %zu tensors, of which %zu are states of this model: it belongs to another model or "
                      "optimizer",
                      path, safetensors_count(tensors->file), found);
    }
    for (size_t i = 0; status == 0 && i < tensors->count; i++) {
        const struct parameter *parameter = &tensors->gpt->parameters.table[tensors->places[i].parameter];
        const bool may_lack =
            parameter->lowp_only && parameter->steps == 0 && stored[tensors->places[i].parameter] == 0;
        if (!wanted[i] && !may_lack) {
            status = error_set("%s: tensor '%s' is missing, which %" PRId64 " steps have changed", path,
                               tensors->infos[i].name, parameter->steps);
        }
        wanted[i] &= !parameter->without_gradient;
    }
    choose(tensors, wanted);
    free(wanted);
    free(stored);
    return status;
}

static int load_states(const char *path, struct gpt *gpt) {
    struct arena_tensors tensors = describe(gpt, true, true);
    int status = safetensors_open(path, &tensors.file) || choose_stored(&tensors, path);
    if (status == 0 && tensors_each_piece(tensors.infos, tensors.count, load_piece, &tensors)) {
        status = error_prefix("%s", path);
    }
    release(&tensors);
    return status ? -1 : 0;
}

/* ---- checkpoints */

static int fill(const char *folder, struct gpt *gpt, const struct checkpoint_content *content) {
    return config_file_write(folder, &gpt->config) ||
                   checkpoint_write_weights(path_of("%s/%s", folder, WEIGHTS_FILE).text, gpt) ||
                   (content->optimizer &&
                    write_tensors(path_of("%s/%s", folder, OPTIMIZER_FILE).text, gpt, true)) ||
                   (content->tokenizer_json &&
                    files_write(path_of("%s/" TOKENIZER_FILE_NAME, folder).text, content->tokenizer_json,
                                content->tokenizer_json_bytes)) ||
                   checkpoint_write_state(folder, gpt, content)
               ? -1
               : 0;
}

const char *const checkpoint_files[] = {"config.json",       WEIGHTS_FILE, OPTIMIZER_FILE,
                                        TOKENIZER_FILE_NAME, "state.json", NULL};

/* Moves the files of a checkpoint to a folder in which other files stay. */
static int move_files(const char *path, const char *staging) {
    const char *names[sizeof checkpoint_files / sizeof *checkpoint_files];
    size_t count = 0;
    for (const char *const *name = checkpoint_files; *name; name++) {
        if (files_exist(path_of("%s/%s", staging, *name).text)) {
            names[count++] = *name;
        }
    }
    names[count] = NULL;
    return files_move_into(path, staging, names, NULL);
}

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
    if (fill(staging, gpt, content)) {
        error_prefix("cannot save checkpoint %s (what was there before is untouched)", path);
        return files_stage_end(path, staging, -1);
    }
    int status = 0;
    if (others) { /* they stay */
        status = move_files(path, staging);
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

int checkpoint_list(const char *out_dir, int64_t **iterations, size_t *count) {
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
    if (checkpoint_list(out_dir, &iterations, &count)) {
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
    int status = checkpoint_list(out_dir, &iterations, &count);
    for (size_t i = 0; status == 0 && i < count; i++) {
        const struct path path = path_of("%s/ckpt-%" PRId64, out_dir, iterations[i]);
        const int own = files_is_link(path.text) ? 0 : checkpoint_is_own(path.text);
        kept += own > 0;
        status = own < 0 || (own > 0 && kept > keep && checkpoint_remove(path.text)) ? -1 : 0;
    }
    free(iterations);
    return status;
}
