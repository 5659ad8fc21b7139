#include "runtime/files/checksum.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/config_file.h"
#include "src/checkpoint/weights.h"
#include "src/training/trainer.h"
#include <stdlib.h>
#include <string.h>

/* ---- the folder and its model */

/* The folder stays NULL for none. That of a resumed run is its newest checkpoint, whose settings have been read
 * already: another process may have written a newer one since. */
static int find_folder(const struct train_settings *settings, char **folder) {
    if (settings->resumes) {
        *folder = checkpoint_newest(settings->out_dir);
        if (*folder && settings->resumed_from && strcmp(*folder, settings->resumed_from) != 0) {
            return error_set("another process has just written %s: give the command again", *folder);
        }
        return *folder ? 0 : -1;
    }
    if (strcmp(settings->init_from, "scratch") == 0) {
        return 0;
    }
    *folder = memory_string(settings->init_from);
    if (settings->start_over && files_are_same(path_of("%s/..", *folder).text, settings->out_dir)) {
        return error_set("--start-over would remove %s, which the new run begins with: choose another --out-dir",
                         *folder);
    }
    return 0;
}

int initial_model_read(struct initial_model *initial, struct train_settings *settings) {
    struct model_config saved;
    const struct residual_setting *setting;
    if (find_folder(settings, &initial->folder)) {
        return -1;
    }
    if (!initial->folder) {
        return 0;
    }
    if (config_file_read(initial->folder, &saved) || config_file_read_tokens(initial->folder, &saved)) {
        return -1;
    }
    if (saved.hugging_face_rows > 0 && train_settings_given(settings, "vocab_size") &&
        settings->model.vocab_size > saved.vocab_size) {
        saved.vocab_size = settings->model.vocab_size;
    }
    if (saved.hugging_face_rows > 0 && train_settings_given(settings, "block_size") &&
        settings->model.block_size < saved.block_size && saved.position != POSITION_LEARNED) {
        saved.block_size = settings->model.block_size;
    }
    initial->plain = saved;
    /* a plain model goes on with the residual connection that is given, if one is */
    initial->upcycles = residual_has_frame(saved.residual, "plain") && train_settings_given(settings, "residual") &&
                        !residual_has_frame(settings->model.residual, "plain") && !settings->resumes;
    if (initial->upcycles) {
        model_config_take_connection(&saved, &settings->model);
        if (upcycle_check(&saved)) {
            return error_prefix("%s cannot go on with residual = %s as the same function", initial->folder,
                                saved.residual->name);
        }
    }
    for (size_t i = 0; i < settings->spec_count; i++) {
        const struct option_spec *spec = &settings->specs[i];
        if (spec->given && !model_config_same(&saved, &settings->model, spec->name)) {
            return error_set("%s was saved with another %s than the one given: leave it out, or start from scratch",
                             initial->folder, spec->name);
        }
    }
    for (size_t i = 0; (setting = residual_setting_at(i, NULL)); i++) {
        if (setting->only_in_training && train_settings_given(settings, setting->name)) {
            saved.settings.values[i] = settings->model.settings.values[i];
        }
    }
    saved.dropout = train_settings_given(settings, "dropout") ? settings->model.dropout : saved.dropout;
    settings->model = saved;
    settings->residual = (int)residual_number(saved.residual); /* for the settings that are saved */
    return 0;
}

/* ---- the same on all ranks */

/* Sets the checksum of the weights, if there are any. It must be the one that is given, if that was not given
 * before init_from. */
static int check_weights(const struct initial_model *initial, const struct train_settings *settings,
                         char digest[CHECKSUM_SIZE]) {
    const unsigned given = options_source(settings->specs, settings->spec_count, "init_checksum");
    if (initial->folder && weights_checksum(initial->folder, digest)) {
        return -1;
    }
    if (settings->init_checksum && given >= options_source(settings->specs, settings->spec_count, "init_from") &&
        strcmp(settings->init_checksum, digest) != 0) {
        return error_set(
            "init_from = %s: these are other weights than the ones whose checksum is init_checksum = %s; put those "
            "there, or leave init_checksum out",
            settings->init_from, settings->init_checksum);
    }
    return 0;
}

int initial_model_compare(const struct initial_model *initial, struct train_settings *settings,
                          struct ranks *ranks) {
    const char *name =
        settings->resumes ? "state.json" : "config.json"; /* state.json has checksums of the others */
    char digest[CHECKSUM_SIZE] = "", checksum[CHECKSUM_SIZE] = "";
    int status = initial->folder ? checksum_file(path_of("%s/%s", initial->folder, name).text, digest) : 0;
    if (same_job_digest(ranks, status, digest, "the checkpoint to begin with",
                        "let all hosts see the same folder, or copy it to them")) {
        return -1;
    }
    if (settings->resumes) {
        return 0;
    }
    /* rank 0's weights go to all ranks, and it alone reads them */
    status = ranks->index == 0 ? check_weights(initial, settings, checksum) : 0;
    if (ranks_agree(ranks, status) || ranks_broadcast(ranks, checksum, sizeof checksum)) {
        return -1;
    }
    free(settings->init_checksum);
    settings->init_checksum = *checksum ? memory_string(checksum) : NULL;
    return 0;
}
