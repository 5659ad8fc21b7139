#include "src/training/resumed_settings.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "src/checkpoint/checkpoint.h"
#include "src/settings/schedule.h"
#include "src/training/run_log.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_SETTINGS_BYTES = 1 << 20 };

/* Those of the checkpoint. Versions before 0.1 left none: then settings.conf must be there. */
static int apply_state(struct option_table *table, const char *folder, bool has_file) {
    struct training_state state;
    char *text = NULL;
    int result = checkpoint_read_state(folder, &state, &text);
    if (result == 0) {
        result = *text || has_file
                     ? options_apply_text(table->rows, table->count,
                                          path_of("%s/state.json: settings", folder).text, text, strlen(text))
                     : error_set("neither state.json nor " RUN_SETTINGS " has the run's settings");
    }
    free(text);
    return result ? error_prefix(
                        "cannot resume from %s (the checkpoint before it is resumed when that folder is removed)",
                        folder)
                  : 0;
}

/* settings.conf, which people may have changed, or removed. */
static int apply_file(struct option_table *table, const char *path) {
    char *text = NULL;
    size_t bytes = 0;
    const int result = files_exist(path) && (files_read(path, MOST_SETTINGS_BYTES, &text, &bytes) ||
                                             options_apply_text(table->rows, table->count, path, text, bytes))
                           ? -1
                           : 0;
    free(text);
    return result;
}

/* Whether evaluations with these settings score other tokens. Without evaluations there is nothing to compare. */
static bool scores_others(const struct train_settings *a, const struct train_settings *b) {
    if (a->eval_iters == 0 || b->eval_iters == 0 ||
        (a->eval_batches == EVAL_BATCHES_WHOLE && b->eval_batches == EVAL_BATCHES_WHOLE)) {
        return false;
    }
    return a->eval_batches != b->eval_batches || a->eval_iters != b->eval_iters || a->batch_size != b->batch_size;
}

/* Everything once more, with what the run has below what is given. */
static enum train_result apply_all(struct option_table *table, struct train_settings *settings,
                                   const struct options_given *given, const char *out_dir) {
    if (options_set_defaults(table->rows, table->count)) {
        return TRAIN_WRONG;
    }
    /* What a run had that was saved before these settings existed. */
    settings->dtype = ELEMENT_FP32;
    settings->eval_batches = EVAL_BATCHES_BY_SEED;
    const struct path path = path_of("%s/" RUN_SETTINGS, out_dir);
    settings->resumed_from = checkpoint_newest(out_dir);
    if (!settings->resumed_from || apply_state(table, settings->resumed_from, files_exist(path.text))) {
        return TRAIN_FAILED;
    }
    const struct train_settings before = *settings;
    if (apply_file(table, path.text)) {
        return TRAIN_WRONG;
    }
    const int64_t planned = settings->max_iters;
    const struct optimizer_settings saved = settings->optimizer;
    if (options_apply_given(given)) {
        return TRAIN_WRONG;
    }
    schedule_keep(table->rows, table->count, &saved, &settings->optimizer);
    if (saved.min_lr <= saved.learning_rate &&
        schedule_check(&settings->optimizer)) { /* what has risen before may go on */
        return TRAIN_WRONG;
    }
    settings->extended = settings->max_iters > planned;
    settings->evaluation_changed = scores_others(&before, settings);
    settings->stop_at = settings->max_iters;
    settings->max_iters = planned > settings->max_iters ? planned : settings->max_iters;
    return TRAIN_DONE;
}

enum train_result resumed_settings_apply(struct option_table *table, struct train_settings *settings,
                                         const struct options_given *given) {
    settings->stop_at = settings->max_iters;
    if (!train_settings_resume(settings)) {
        return TRAIN_DONE;
    }
    char *out_dir = settings->out_dir; /* it leads to the settings, and stays what it is, whatever they say of it */
    settings->out_dir = NULL;
    const enum train_result result = apply_all(table, settings, given, out_dir);
    free(settings->out_dir);
    settings->out_dir = out_dir;
    return result;
}
