#include "src/checkpoint/checkpoint.h"
#include "runtime/files/checksum.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/files/safetensors.h"
#include "runtime/options/options.h"
#include "runtime/system/error.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/weights.h"
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PIECE            ((uint64_t)1 << 20) /* elements moved between file and device at a time */
#define MOST_STATE_BYTES ((size_t)1 << 20)
#define STATE_FORMAT     (JSON_INDENT(1) | JSON_REAL_PRECISION(17))
#define MOST_ITERATIONS  ((json_int_t)1000000000000) /* as --max-iters */

static const char *const optimizer_file = "optimizer.safetensors";

/* ---- tensors of the arenas, in the order of the table */

struct arena_set {
    const struct buffer *buffer;
    const char *prefix; /* of tensor names: "", "exp_avg." or "exp_avg_sq." */
};

/* Ranks may share the moments. */
static const struct moment_share *share_of(const struct gpt *gpt, const struct arena_set *set) {
    return set->buffer == gpt->parameters.weights ? NULL : gpt->options.moments;
}

static int read_arena(struct gpt *gpt, const struct arena_set *set, uint64_t first, uint64_t count, float *values) {
    const struct moment_share *share = share_of(gpt, set);
    return share ? share->read(share, gpt->compute, set->buffer, first, count, values)
                 : buffer_read(gpt->compute, set->buffer, first * sizeof *values, values, count * sizeof *values);
}

static int write_arena(struct gpt *gpt, const struct arena_set *set, uint64_t first, uint64_t count,
                       const float *values) {
    const struct moment_share *share = share_of(gpt, set);
    return share ? share->write(share, gpt->compute, set->buffer, first, count, values)
                 : buffer_write(gpt->compute, set->buffer, first * sizeof *values, values, count * sizeof *values);
}

static void tensor_name(const struct arena_set *set, const struct parameter *parameter, char name[128]) {
    snprintf(name, 128, "%s%s", set->prefix, parameter->name);
}

static struct tensor_info *describe(const struct parameters *parameters, const struct arena_set *sets,
                                    size_t count) {
    struct tensor_info *infos = calloc(count * parameters->count, sizeof *infos);
    for (size_t i = 0; infos && i < count * parameters->count; i++) {
        const struct parameter *parameter = &parameters->table[i % parameters->count];
        char name[128];
        tensor_name(&sets[i / parameters->count], parameter, name);
        infos[i] = (struct tensor_info){.name = strdup(name), .type = TENSOR_F32, .rank = parameter->rank};
        memcpy(infos[i].shape, parameter->shape, sizeof parameter->shape);
    }
    return infos;
}

/* Copies one arena tensor to the writer, piece by piece. */
static int append(struct safetensors_writer *writer, struct gpt *gpt, const struct arena_set *set,
                  const struct parameter *parameter, float *piece) {
    for (uint64_t done = 0; done < parameter->elements; done += PIECE) {
        const uint64_t count = parameter->elements - done < PIECE ? parameter->elements - done : PIECE;
        if (read_arena(gpt, set, parameter->offset + done, count, piece) ||
            safetensors_append(writer, piece, count * sizeof *piece)) {
            return error_prefix("%s", parameter->name);
        }
    }
    return 0;
}

static int write_sets(const char *path, struct gpt *gpt, const struct arena_set *sets, size_t count) {
    const struct parameters *parameters = &gpt->parameters;
    struct tensor_info *infos = describe(parameters, sets, count);
    float *piece = malloc(PIECE * sizeof *piece);
    struct safetensors_writer *writer = NULL;
    int status = infos && piece ? safetensors_create(path, infos, count * parameters->count, &writer)
                                : error_set("out of memory");
    for (size_t i = 0; status == 0 && i < count * parameters->count; i++) {
        status =
            append(writer, gpt, &sets[i / parameters->count], &parameters->table[i % parameters->count], piece);
    }
    if (status == 0) {
        status = safetensors_finish(writer);
    } else {
        safetensors_abandon(writer);
    }
    for (size_t i = 0; infos && i < count * parameters->count; i++) {
        free(infos[i].name);
    }
    free(infos);
    free(piece);
    return status;
}

static void moment_sets(const struct gpt *gpt, struct arena_set sets[2]) {
    sets[0] = (struct arena_set){gpt->parameters.first_moments, "exp_avg."};
    sets[1] = (struct arena_set){gpt->parameters.second_moments, "exp_avg_sq."};
}

/* In the order of write_sets, which rank 0 is in. */
static int hand_over(struct gpt *gpt, const struct arena_set *set, float *piece) {
    for (size_t i = 0; i < gpt->parameters.count; i++) {
        const struct parameter *parameter = &gpt->parameters.table[i];
        for (uint64_t done = 0; done < parameter->elements; done += PIECE) {
            const uint64_t count = parameter->elements - done < PIECE ? parameter->elements - done : PIECE;
            if (read_arena(gpt, set, parameter->offset + done, count, piece)) {
                return error_prefix("%s", parameter->name);
            }
        }
    }
    return 0;
}

int checkpoint_hand_over(struct gpt *gpt) {
    struct arena_set sets[2];
    if (!gpt->options.moments) {
        return 0;
    }
    moment_sets(gpt, sets);
    float *piece = malloc(PIECE * sizeof *piece);
    int status = piece ? 0 : error_set("out of memory");
    for (size_t i = 0; i < 2 && status == 0; i++) {
        status = hand_over(gpt, &sets[i], piece);
    }
    free(piece);
    return status ? error_prefix("cannot hand over the optimiser's moments for a checkpoint") : 0;
}

int checkpoint_write_weights(const char *path, struct gpt *gpt) {
    return write_sets(path, gpt, (struct arena_set[]){{gpt->parameters.weights, ""}}, 1);
}

static int load_moment(const struct safetensors *file, struct gpt *gpt, const struct arena_set *set,
                       const struct parameter *parameter, float *piece) {
    char name[128];
    const struct tensor_info *info;
    tensor_name(set, parameter, name);
    if (weights_find(file, name, parameter, &info)) {
        return -1;
    }
    for (uint64_t done = 0; done < parameter->elements; done += PIECE) {
        const uint64_t count = parameter->elements - done < PIECE ? parameter->elements - done : PIECE;
        if (safetensors_read_f32(file, info, done, count, piece) ||
            write_arena(gpt, set, parameter->offset + done, count, piece)) {
            return error_prefix("tensor '%s'", name);
        }
    }
    return 0;
}

static int load_moments(const char *folder, struct gpt *gpt) {
    const struct parameters *parameters = &gpt->parameters;
    struct arena_set sets[2];
    struct safetensors *file = NULL;
    char *path = files_path("%s/%s", folder, optimizer_file);
    float *piece = malloc(PIECE * sizeof *piece);
    moment_sets(gpt, sets);
    int status = path && piece ? safetensors_open(path, &file) : error_set("out of memory");
    status = status || weights_check_count(file, path, 2 * parameters->count) ? -1 : 0;
    for (size_t i = 0; status == 0 && i < 2 * parameters->count; i++) {
        status =
            load_moment(file, gpt, &sets[i / parameters->count], &parameters->table[i % parameters->count], piece)
                ? error_prefix("%s", path)
                : 0;
    }
    safetensors_close(file);
    free(piece);
    free(path);
    return status;
}

static int load_weight(struct weights *weights, struct gpt *gpt, const struct parameter *parameter, float *piece) {
    for (uint64_t done = 0; done < parameter->elements; done += PIECE) {
        const uint64_t count = parameter->elements - done < PIECE ? parameter->elements - done : PIECE;
        if (weights_read(weights, parameter, done, count, piece) ||
            buffer_write(gpt->compute, gpt->parameters.weights, (parameter->offset + done) * sizeof *piece, piece,
                         count * sizeof *piece)) {
            return error_prefix("tensor '%s'", parameter->name);
        }
    }
    return 0;
}

int checkpoint_load_weights(const char *path, struct gpt *gpt) {
    struct weights *weights = NULL;
    float *piece = malloc(PIECE * sizeof *piece);
    int status = piece ? weights_open(path, &gpt->config, &gpt->parameters, &weights) : error_set("out of memory");
    for (size_t i = 0; status == 0 && i < gpt->parameters.count; i++) {
        status = load_weight(weights, gpt, &gpt->parameters.table[i], piece);
    }
    weights_close(weights);
    free(piece);
    parameters_round(gpt->compute, &gpt->parameters);
    return status;
}

/* ---- state.json */

static json_t *settings_json(const struct option_spec *settings, size_t count) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = settings ? open_memstream(&text, &bytes) : NULL;
    if (stream) {
        options_write(settings, count, stream);
        fclose(stream);
    }
    json_t *json = json_string(text ? text : "");
    free(text);
    return json;
}

static int add_checksum(json_t *checksums, const char *folder, const char *name) {
    char digest[CHECKSUM_SIZE];
    char *path = files_path("%s/%s", folder, name);
    const int status = path ? checksum_file(path, digest) : -1;
    free(path);
    return status ? -1 : json_object_set_new(checksums, name, json_string(digest));
}

/* Of a run in fp16, or one that was: NULL otherwise. */
static json_t *loss_scale_json(const struct loss_scale *scale) {
    return scale->dynamic || scale->skipped
               ? json_pack("{s:f, s:I, s:I}", "scale", (double)scale->scale, "good_steps",
                           (json_int_t)scale->good_steps, "skipped", (json_int_t)scale->skipped)
               : NULL;
}

/* Of state.json; no loss yet is null. */
static json_t *best_loss_json(const struct training_state *state) {
    return isfinite(state->best_val_loss) ? json_real(state->best_val_loss) : json_null();
}

static int write_state(const char *folder, const struct gpt *gpt, const struct checkpoint_content *content) {
    const struct training_state *state = content->state;
    json_t *checksums = json_object();
    if (!checksums || add_checksum(checksums, folder, "config.json") ||
        add_checksum(checksums, folder, WEIGHTS_FILE) ||
        (content->optimizer && add_checksum(checksums, folder, optimizer_file))) {
        json_decref(checksums);
        return error_prefix("cannot compute checksums");
    }
    json_t *json =
        json_pack("{s:I, s:I, s:I, s:I, s:o, s:I, s:f, s:o*, s:{s:s, s:s}, s:o, s:o}", "iteration",
                  (json_int_t)state->iteration, "tokens", (json_int_t)state->tokens, "seed",
                  (json_int_t)state->seed, "best_iteration", (json_int_t)state->best_iteration, "best_val_loss",
                  best_loss_json(state), "evaluated_at", (json_int_t)state->evaluated_at, "seconds", state->seconds,
                  "loss_scale", loss_scale_json(&gpt->loss_scale), "data", "train", state->train_digest, "val",
                  state->val_digest, "settings", settings_json(content->settings, content->setting_count),
                  "checksums", checksums);
    char *path = files_path("%s/state.json", folder);
    const int status = path ? json_file_write(path, json, STATE_FORMAT) : -1;
    free(path);
    json_decref(json);
    return status;
}

int checkpoint_update(const char *folder, const struct training_state *state) {
    json_t *json = NULL;
    char *path = files_path("%s/state.json", folder);
    int status = path ? json_file_read(path, MOST_STATE_BYTES, &json) : -1;
    if (status == 0) {
        json_t *changes = json_pack("{s:I, s:o, s:I, s:f}", "best_iteration", (json_int_t)state->best_iteration,
                                    "best_val_loss", best_loss_json(state), "evaluated_at",
                                    (json_int_t)state->evaluated_at, "seconds", state->seconds);
        status = changes && json_object_update(json, changes) == 0 ? 0 : error_set("out of memory");
        json_decref(changes);
    }
    status = status || json_file_write(path, json, STATE_FORMAT) ? -1 : 0;
    json_decref(json);
    free(path);
    return status ? error_prefix("cannot save the evaluation in checkpoint %s", folder) : 0;
}

static int verify_checksums(const char *folder, json_t *json) {
    const char *name;
    json_t *value;
    json_t *checksums = json_object_get(json, "checksums");
    if (!json_object_get(checksums, "config.json") || !json_object_get(checksums, WEIGHTS_FILE) ||
        !json_object_get(checksums, optimizer_file)) {
        return error_set("%s/state.json has no checksums for resuming: start from it with init_from = %s instead",
                         folder, folder);
    }
    json_object_foreach(checksums, name, value) {
        char digest[CHECKSUM_SIZE];
        if (strchr(name, '/')) {
            return error_set("%s/state.json names a file outside of its folder", folder);
        }
        char *path = files_path("%s/%s", folder, name);
        const int status = path ? checksum_file(path, digest) : -1;
        free(path);
        if (status) {
            return -1;
        }
        if (!json_is_string(value) || strcmp(json_string_value(value), digest) != 0) {
            return error_set(
                "%s/%s is damaged: its checksum differs from the one in state.json; resume from an older "
                "checkpoint by removing this folder",
                folder, name);
        }
    }
    return 0;
}

/* Of a file of data; "" where older programs, or a run without that file, left none. */
static void read_digest(const json_t *json, const char *name, char digest[CHECKSUM_SIZE]) {
    const char *saved = json_string_value(json_object_get(json_object_get(json, "data"), name));
    snprintf(digest, CHECKSUM_SIZE, "%s", saved ? saved : "");
}

/* Whether a number can be one of iterations, or the `least` that stands for none. */
static bool is_count(const json_t *number, json_int_t least) {
    return json_is_integer(number) && json_integer_value(number) >= least &&
           json_integer_value(number) <= MOST_ITERATIONS;
}

static int read_state(const json_t *json, struct training_state *state) {
    json_t *iteration = json_object_get(json, "iteration"), *tokens = json_object_get(json, "tokens");
    json_t *seed = json_object_get(json, "seed"), *best = json_object_get(json, "best_val_loss");
    json_t *best_iteration = json_object_get(json, "best_iteration");
    json_t *evaluated = json_object_get(json, "evaluated_at"); /* older files lack it, and seconds */
    if (!is_count(iteration, 0) || !json_is_integer(tokens) || json_integer_value(tokens) < 0 ||
        !json_is_integer(seed) || !is_count(best_iteration, -1) || (evaluated && !is_count(evaluated, -1))) {
        return error_set("iteration, tokens, seed, best_iteration or evaluated_at is missing or out of range");
    }
    *state = (struct training_state){
        .iteration = json_integer_value(iteration),
        .tokens = (uint64_t)json_integer_value(tokens),
        .seed = (uint64_t)json_integer_value(seed),
        .best_val_loss = json_is_number(best) ? json_number_value(best) : HUGE_VAL,
        .best_iteration = json_integer_value(best_iteration),
        .evaluated_at = evaluated ? json_integer_value(evaluated) : json_integer_value(iteration),
        .seconds = json_number_value(json_object_get(json, "seconds")),
    };
    read_digest(json, "train", state->train_digest);
    read_digest(json, "val", state->val_digest);
    return 0;
}

/* A run in fp16 goes on with its scale; in any type the steps that were left out do not count. */
static int read_loss_scale(const json_t *json, int64_t iteration, struct loss_scale *scale) {
    const json_t *saved = json_object_get(json, "loss_scale");
    const json_t *number = json_object_get(saved, "scale"), *good = json_object_get(saved, "good_steps"),
                 *skipped = json_object_get(saved, "skipped");
    struct loss_scale read = *scale;
    if (!saved) {
        return 0;
    }
    read.scale = (float)json_number_value(number);
    read.good_steps = json_integer_value(good);
    read.skipped = json_integer_value(skipped);
    if (!json_is_number(number) || !json_is_integer(good) || !json_is_integer(skipped) ||
        !loss_scale_is_valid(&read) || read.skipped > iteration) {
        return error_set("loss_scale is not one that this program writes: resume from an older checkpoint");
    }
    scale->skipped = read.skipped;
    if (scale->dynamic) {
        *scale = read;
    }
    return 0;
}

/* *json is the caller's, NULL on failure. `scale` may be NULL. */
static int open_state(const char *folder, struct training_state *state, struct loss_scale *scale, json_t **json) {
    char *path = files_path("%s/state.json", folder);
    *json = NULL;
    int status = path ? json_file_read(path, MOST_STATE_BYTES, json) : -1;
    if (status == 0 && (read_state(*json, state) || (scale && read_loss_scale(*json, state->iteration, scale)))) {
        status = error_prefix("%s", path);
        json_decref(*json);
        *json = NULL;
    }
    free(path);
    return status;
}

int checkpoint_read_state(const char *folder, struct training_state *state, char **settings) {
    json_t *json;
    int status = open_state(folder, state, NULL, &json);
    if (status == 0 && settings) {
        const char *text = json_string_value(json_object_get(json, "settings"));
        *settings = strdup(text ? text : "");
        status = *settings ? 0 : error_set("out of memory");
    }
    json_decref(json);
    return status;
}

int checkpoint_resume(const char *folder, struct gpt *gpt, struct training_state *state) {
    json_t *json;
    const int status = open_state(folder, state, &gpt->loss_scale, &json) || verify_checksums(folder, json) ||
                       checkpoint_load_weights(folder, gpt) || load_moments(folder, gpt);
    json_decref(json);
    return status ? -1 : 0;
}

/* ---- folders */

static int fill(const char *folder, struct gpt *gpt, const struct checkpoint_content *content) {
    struct arena_set sets[2];
    moment_sets(gpt, sets);
    char *model = files_path("%s/%s", folder, WEIGHTS_FILE),
         *optimizer = files_path("%s/%s", folder, optimizer_file);
    int status = model && optimizer ? config_file_write(folder, &gpt->config) : -1;
    status = status || checkpoint_write_weights(model, gpt) ||
             (content->optimizer && write_sets(optimizer, gpt, sets, 2)) || write_state(folder, gpt, content);
    free(model);
    free(optimizer);
    return status ? -1 : 0;
}

int checkpoint_save(const char *path, struct gpt *gpt, const struct checkpoint_content *content) {
    char *staging = NULL;
    if (files_stage_begin(path, &staging)) {
        return error_prefix("cannot save checkpoint %s", path);
    }
    if (fill(staging, gpt, content)) {
        error_prefix("cannot save checkpoint %s (what was there before is untouched)", path);
        files_stage_abandon(staging);
        return -1;
    }
    return files_stage_commit(path, staging) ? error_prefix("cannot save checkpoint %s", path) : 0;
}

int64_t checkpoint_iteration_of(const char *name) {
    if (strncmp(name, "ckpt-", 5) != 0) {
        return -1;
    }
    char canonical[32];
    const int64_t iteration = strtoll(name + 5, NULL, 10);
    snprintf(canonical, sizeof canonical, "ckpt-%" PRId64, iteration);
    return strcmp(name, canonical) == 0 ? iteration : -1;
}

static bool is_folder(DIR *parent, const char *name) {
    struct stat status;
    return fstatat(dirfd(parent), name, &status, 0) == 0 && S_ISDIR(status.st_mode);
}

/* What a link leads to was put there by somebody else. */
static bool is_link(const char *path) {
    struct stat status;
    return lstat(path, &status) == 0 && S_ISLNK(status.st_mode);
}

static int newest_first(const void *a, const void *b) {
    const int64_t first = *(const int64_t *)a, second = *(const int64_t *)b;
    return (first < second) - (first > second);
}

int checkpoint_list(const char *out_dir, int64_t **iterations, size_t *count) {
    *iterations = NULL;
    *count = 0;
    DIR *folder = opendir(out_dir);
    if (!folder) {
        return error_set_errno("cannot read the run directory %s", out_dir);
    }
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        const int64_t iteration = checkpoint_iteration_of(entry->d_name);
        if (iteration < 0 || !is_folder(folder, entry->d_name)) {
            continue;
        }
        int64_t *grown = realloc(*iterations, (*count + 1) * sizeof **iterations);
        if (!grown) {
            free(*iterations);
            closedir(folder);
            return error_set("out of memory");
        }
        *iterations = grown;
        grown[(*count)++] = iteration;
    }
    closedir(folder);
    if (*count > 0) {
        qsort(*iterations, *count, sizeof **iterations, newest_first);
    }
    return 0;
}

char *checkpoint_newest(const char *out_dir) {
    int64_t *iterations;
    size_t count;
    if (checkpoint_list(out_dir, &iterations, &count)) {
        return NULL;
    }
    char *path = count ? files_path("%s/ckpt-%" PRId64, out_dir, iterations[0]) : NULL;
    if (count == 0) {
        error_set(
            "there is no checkpoint in %s to resume from: start with init_from = scratch, and with --start-over "
            "if a run has left records there",
            out_dir);
    }
    free(iterations);
    return path;
}

/* Removes the folder unless it is among those to keep, which is counted down. Links neither count nor go. */
static int prune_one(const char *path, int64_t *keep) {
    if (is_link(path)) {
        return 0;
    }
    return (*keep)-- > 0 ? 0 : files_remove_folder(path);
}

int checkpoint_prune(const char *out_dir, int64_t keep) {
    int64_t *iterations;
    size_t count;
    int status = checkpoint_list(out_dir, &iterations, &count);
    for (size_t i = 0; status == 0 && i < count; i++) {
        char *path = files_path("%s/ckpt-%" PRId64, out_dir, iterations[i]);
        status = path ? prune_one(path, &keep) : -1;
        free(path);
    }
    free(iterations);
    return status;
}
