#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/options/options.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/checkpoint.h"
#include "src/checkpoint/weights.h"
#include "src/model/optimizer.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MOST_STATE_BYTES ((size_t)1 << 24)
#define STATE_FORMAT     (JSON_INDENT(1) | JSON_REAL_PRECISION(17))
#define MOST_ITERATIONS  ((json_int_t)1000000000000) /* as --max-iters */

/* The first of checkpoint_files have checksums in state.json. The third one is needed to resume only. */
enum { FILES = 3 };

/* ---- writing */

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
    for (int i = 0; i < (content->optimizer ? FILES : FILES - 1); i++) {
        char digest[CHECKSUM_SIZE];
        if (checksum_file(path_of("%s/%s", folder, checkpoint_files[i]).text, digest)) {
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

/* ---- reading */

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

/* *json is the caller's, NULL on failure. The model `gpt` goes on from there; it may be NULL. */
static int open_state(const char *folder, struct gpt *gpt, struct training_state *state, json_t **json) {
    const struct path path = path_of("%s/state.json", folder);
    int status = json_file_read(path.text, MOST_STATE_BYTES, json);
    if (status == 0 &&
        (read_state(*json, state) || (gpt && (read_loss_scale(*json, state->iteration, &gpt->loss_scale) ||
                                              read_steps(*json, state->iteration, gpt))))) {
        status = error_prefix("%s", path.text);
        json_decref(*json);
        *json = NULL;
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
    if (!is_file(path, "config.json") || !is_file(path, WEIGHTS_FILE) || !is_file(path, "state.json")) {
        return 0;
    }
    const int status = json_file_read(path_of("%s/state.json", path).text, MOST_STATE_BYTES, &json);
    const json_t *number = json_object_get(json, "iteration"), *checksums = json_object_get(json, "checksums");
    const bool own = checkpoint_is_count(number, 0) && json_object_get(checksums, "config.json") &&
                     json_object_get(checksums, WEIGHTS_FILE) && (named < 0 || named == json_integer_value(number));
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
    json_t *json;
    int status = open_state(folder, gpt, state, &json);
    for (int i = FILES - 1; i >= 0 && status == 0; i--) {
        const char *name = checkpoint_files[i];
        const char *saved = json_file_text(json_object_get(json_object_get(json, "checksums"), name));
        char digest[CHECKSUM_SIZE];
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
