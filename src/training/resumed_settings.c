#include "src/training/resumed_settings.h"
#include "runtime/files/files.h"
#include "runtime/system/error.h"
#include "src/checkpoint/checkpoint.h"
#include "src/training/run_log.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_SETTINGS_BYTES = 1 << 20 };

/* Those of the checkpoint. Versions before 0.1 left none: then settings.conf must be there. */
static int apply_state(struct option_spec *specs, size_t count, const char *folder, bool has_file) {
    struct training_state state;
    char *text = NULL, *name = files_path("%s/state.json: settings", folder);
    int result = name ? checkpoint_read_state(folder, &state, &text) : -1;
    if (result == 0) {
        result = *text || has_file ? options_apply_text(specs, count, name, text, strlen(text))
                                   : error_set("neither state.json nor " RUN_SETTINGS " has the run's settings");
    }
    free(text);
    free(name);
    return result ? error_prefix(
                        "cannot resume from %s (the checkpoint before it is resumed when that folder is removed)",
                        folder)
                  : 0;
}

/* settings.conf, which people may have changed, or removed. */
static int apply_file(struct option_spec *specs, size_t count, const char *path) {
    char *text = NULL;
    size_t bytes = 0;
    const int result = files_exist(path) && (files_read(path, MOST_SETTINGS_BYTES, &text, &bytes) ||
                                             options_apply_text(specs, count, path, text, bytes))
                           ? -1
                           : 0;
    free(text);
    return result;
}

/* Everything once more, with what the run has below what is given. */
static enum options_result apply_resumed(struct option_spec *specs, size_t count, struct train_settings *settings,
                                         const struct options_given *given, const char *out_dir) {
    if (options_set_defaults(specs, count)) {
        return OPTIONS_WRONG;
    }
    char *path = files_path("%s/" RUN_SETTINGS, out_dir);
    settings->resumed_from = checkpoint_newest(out_dir);
    const enum options_result result =
        !path || !settings->resumed_from || apply_state(specs, count, settings->resumed_from, files_exist(path))
            ? OPTIONS_FAILED
        : apply_file(specs, count, path) ? OPTIONS_WRONG
                                         : OPTIONS_OK;
    free(path);
    if (result != OPTIONS_OK) {
        return result;
    }
    const int64_t planned = settings->max_iters;
    if (options_apply_given(given, specs, count)) {
        return OPTIONS_WRONG;
    }
    settings->stop_at = settings->max_iters;
    settings->max_iters = planned > settings->max_iters ? planned : settings->max_iters;
    return OPTIONS_OK;
}

/* The folder that leads to the settings stays what it is, whatever they say of it. */
static enum options_result resume(struct option_spec *specs, size_t count, struct train_settings *settings,
                                  const struct options_given *given) {
    char *out_dir = settings->out_dir;
    settings->out_dir = NULL;
    options_free(specs, count);
    const enum options_result result = apply_resumed(specs, count, settings, given, out_dir);
    free(settings->out_dir);
    settings->out_dir = out_dir;
    return result;
}

enum options_result resumed_settings_parse(struct option_spec *specs, size_t count, struct train_settings *settings,
                                           const struct program_info *program, int argc, char **argv) {
    struct options_given *given = NULL;
    if (options_set_defaults(specs, count)) {
        return OPTIONS_WRONG;
    }
    enum options_result result = options_read(specs, count, program, argc, argv, &given);
    if (result != OPTIONS_OK) {
        return result;
    }
    const int first = options_given_order(given, argv);
    if (options_apply_given(given, specs, count)) {
        result = OPTIONS_WRONG;
    } else if (first < argc) {
        error_set("unexpected argument '%s'; see %s --help", argv[first], program->name);
        result = OPTIONS_WRONG;
    } else {
        settings->stop_at = settings->max_iters;
        result = strcmp(settings->init_from, "resume") == 0 ? resume(specs, count, settings, given) : OPTIONS_OK;
    }
    options_given_free(given);
    return result;
}
