#include "runtime/files/checksum.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include "src/checkpoint/adapter.h"
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
    return 0;
}

/* Refuses to remove what the run begins with. */
static int check_start_over(const struct train_settings *settings, const struct model_files *files) {
    const char *const folders[] = {files->folder, files->base, files->adapter};
    for (size_t i = 0; settings->start_over && i < COUNT(folders); i++) {
        if (folders[i] && files_are_same(path_of("%s/..", folders[i]).text, settings->out_dir)) {
            return error_set(
                "--start-over would remove %s, which the new run begins with: choose another --out-dir",
                folders[i]);
        }
    }
    return 0;
}

/* ---- its adapter */

/* The options of adapters that make no sense without one, and of those that are of the adapter itself. */
static const char *const adapter_options[] = {"lora_alpha", "lora_targets", "lora_rslora", "lora_dropout",
                                              "lora_train"};
enum { FIXED_OPTIONS = 3 };

static int refuse_options(const struct train_settings *settings) {
    for (size_t i = 0; i < settings->spec_count; i++) {
        const struct option_spec *spec = &settings->specs[i];
        for (size_t k = 0; k < COUNT(adapter_options); k++) {
            if (spec->name && strcmp(spec->name, adapter_options[k]) == 0 && spec->given &&
                !options_is_default(spec)) {
                return error_set("%s is of adapters, and lora_rank = 0 means none: give lora_rank, such as 16",
                                 spec->name);
            }
        }
    }
    return 0;
}

/* Whether the adapter that is there is the one that the given options describe. */
static int compare_adapter(const struct train_settings *settings, const char *folder,
                           const struct model_config *saved) {
    const struct lora_settings *own = &saved->lora, *given = &settings->model.lora;
    unsigned targets = own->targets;
    if (train_settings_given(settings, "lora_targets") &&
        lora_read_targets(model_config_modules(saved), settings->lora_targets, &targets)) {
        return -1;
    }
    const bool others[] = {given->alpha > own->alpha || given->alpha < own->alpha, targets != own->targets,
                           given->by_root != own->by_root};
    const bool other_rank = train_settings_given(settings, "lora_rank") && given->rank != own->rank;
    for (size_t i = 0; i < FIXED_OPTIONS; i++) {
        if (other_rank || (others[i] && train_settings_given(settings, adapter_options[i]))) {
            return error_set("the adapter in %s was saved with another %s: leave that option out", folder,
                             other_rank ? "lora_rank" : adapter_options[i]);
        }
    }
    return 0;
}

/* Sets saved->lora: of the adapter that is there, or of one that begins; and the options to it, for the settings
 * that are saved. */
static int choose_adapter(const struct initial_model *initial, struct train_settings *settings,
                          struct model_config *saved) {
    struct lora_settings *given = &settings->model.lora;
    if (initial->files.adapter) {
        saved->lora = initial->files.config.lora;
        if (compare_adapter(settings, initial->files.adapter, saved)) {
            return -1;
        }
        saved->lora.dropout =
            train_settings_given(settings, "lora_dropout") ? given->dropout : initial->files.config.lora.dropout;
    } else if (given->rank == 0) {
        return refuse_options(settings);
    } else if (train_settings_set_adapter(settings, saved)) {
        return -1;
    }
    saved->lora.base_has_lambdas = initial->files.plain.x0_lambdas;
    saved->lora.base_has_value_embeds = initial->files.plain.value_embeds;
    free(settings->lora_targets);
    settings->lora_targets = lora_write_targets(model_config_modules(saved), saved->lora.targets);
    return 0;
}

/* ---- reading it */

/* Weights of its layers that a plain model would lose with another connection's default are kept. */
static int keep_layers(struct train_settings *settings, const struct model_config *saved) {
    const struct {
        const char *name;
        bool is_there, *wanted;
    } keys[] = {{"x0_lambdas", saved->x0_lambdas, &settings->model.x0_lambdas},
                {"value_embeds", saved->value_embeds, &settings->model.value_embeds}};
    if (saved->x0_lambdas && model_config_weighs_embedding(&settings->model)) {
        return error_set("the model was trained with x0_lambdas, for which residual = %s has no place",
                         settings->model.residual->name);
    }
    for (size_t i = 0; i < COUNT(keys); i++) {
        *keys[i].wanted = *keys[i].wanted || (keys[i].is_there && !train_settings_given(settings, keys[i].name));
        if (keys[i].is_there && !*keys[i].wanted) {
            return error_set("%s = false takes away weights that the model was trained with: leave it out",
                             keys[i].name);
        }
    }
    return 0;
}

/* Without a folder. Plans and --compile-only need no weights, and a model that begins has nothing to adapt. */
static int read_nothing(struct train_settings *settings) {
    if (settings->model.lora.rank == 0 && !settings->adapter && !settings->base) {
        return refuse_options(settings);
    }
    if (settings->model.lora.rank > 0 && (settings->compile_only || settings->plan_only)) {
        return train_settings_set_adapter(settings, &settings->model);
    }
    return error_set(
        "an adapter (lora_rank, adapter, base) changes a model that is there: give its folder, --init-from "
        "FOLDER");
}

int initial_model_read(struct initial_model *initial, struct train_settings *settings) {
    struct model_files *files = &initial->files;
    struct model_config *plain = &files->plain;
    const struct residual_setting *setting;
    char *folder = NULL;
    const int status =
        find_folder(settings, &folder) ||
        (folder && (model_files_open(folder, settings->resumes ? NULL : settings->adapter, settings->base, files) ||
                    check_start_over(settings, files)));
    const bool has_folder = folder;
    free(folder);
    if (status || !has_folder) {
        return status ? -1 : read_nothing(settings);
    }
    struct model_config saved = files->config;
    if (config_file_read_tokens(files->base, &saved)) {
        return -1;
    }
    if (saved.hugging_face_rows > 0 && train_settings_given(settings, "vocab_size") &&
        settings->model.vocab_size > saved.vocab_size) {
        saved.vocab_size = plain->vocab_size = settings->model.vocab_size;
    }
    if (saved.hugging_face_rows > 0 && train_settings_given(settings, "block_size") &&
        settings->model.block_size < saved.block_size && saved.position != POSITION_LEARNED) {
        saved.block_size = plain->block_size = settings->model.block_size;
    }
    /* a plain model goes on with the residual connection that is given, if one is */
    initial->upcycles = residual_has_frame(saved.residual, "plain") && train_settings_given(settings, "residual") &&
                        !residual_has_frame(settings->model.residual, "plain") && !settings->resumes;
    if (initial->upcycles) {
        if (keep_layers(settings, &saved)) {
            return -1;
        }
        model_config_take_connection(&saved, &settings->model);
        if (upcycle_check(&saved)) {
            return error_prefix("%s cannot go on with residual = %s as the same function", files->folder,
                                saved.residual->name);
        }
    }
    for (size_t i = 0; i < settings->spec_count; i++) {
        const struct option_spec *spec = &settings->specs[i];
        if (spec->given && !model_config_same(&saved, &settings->model, spec->name)) {
            return error_set("%s was saved with another %s than the one given: leave it out, or start from scratch",
                             files->folder, spec->name);
        }
    }
    for (size_t i = 0; (setting = residual_setting_at(i, NULL)); i++) {
        if (setting->only_in_training && train_settings_given(settings, setting->name)) {
            saved.settings.values[i] = settings->model.settings.values[i];
        }
    }
    saved.dropout = train_settings_given(settings, "dropout") ? settings->model.dropout : saved.dropout;
    if (choose_adapter(initial, settings, &saved)) {
        return -1;
    }
    settings->model = saved;
    settings->residual = (int)residual_number(saved.residual); /* for the settings that are saved */
    return 0;
}

/* ---- the same on all ranks */

/* The checksum of all weights that the run begins with: of the base's, or of these, the adapter's and those that
 * were trained beside it. */
static int checksum_all(struct model_files *files, char digest[CHECKSUM_SIZE]) {
    char digests[3][CHECKSUM_SIZE] = {""};
    if (model_files_verify(files) ||
        (files->adapter && checksum_file(path_of("%s/" ADAPTER_FILE, files->adapter).text, digests[1])) ||
        (files->trained > 0 && checksum_file(path_of("%s/" WEIGHTS_FILE, files->folder).text, digests[2]))) {
        return -1;
    }
    memcpy(digests, files->checksum, CHECKSUM_SIZE);
    if (files->adapter) {
        checksum_memory(digests, sizeof digests, digest);
    } else {
        memcpy(digest, digests, CHECKSUM_SIZE);
    }
    return 0;
}

/* Sets the checksum of the weights, if there are any. It must be the one that is given, if that was not given
 * before init_from. */
static int check_weights(struct initial_model *initial, const struct train_settings *settings,
                         char digest[CHECKSUM_SIZE]) {
    const unsigned given = options_source(settings->specs, settings->spec_count, "init_checksum");
    if (initial->files.folder && checksum_all(&initial->files, digest)) {
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

int initial_model_compare(struct initial_model *initial, struct train_settings *settings, struct ranks *ranks) {
    const char *folder = initial->files.folder;
    const char *name =
        settings->resumes ? "state.json" : "config.json"; /* state.json has checksums of the others */
    char digest[CHECKSUM_SIZE] = "", checksum[CHECKSUM_SIZE] = "";
    int status = folder ? checksum_file(path_of("%s/%s", folder, name).text, digest) : 0;
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
