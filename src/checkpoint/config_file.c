#include "src/checkpoint/config_file.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "src/checkpoint/hugging_face.h"
#include <stdio.h>
#include <string.h>

#define MOST_BYTES ((size_t)1 << 20)

int config_file_parse(const json_t *json, struct model_config *config) {
    if (!json_object_get(json, "model_type")) { /* which Hugging Face's has, and ours has not */
        return model_config_from_json(json, config);
    }
    return hugging_face_read_config(json, config) || model_config_check(config) ? -1 : 0;
}

/* The folders in another one that hold checkpoints. */
struct candidates {
    const char *folder;
    char names[2][32]; /* the last ones in order, "" for none: ckpt-best is behind all numbers */
};

static int take_candidate(void *context, const char *name) {
    struct candidates *found = context;
    const size_t size = sizeof found->names[0];
    if (strncmp(name, "ckpt-", 5) != 0 || strlen(name) >= size || strverscmp(name, found->names[1]) <= 0 ||
        !files_exist(path_of("%s/%s/config.json", found->folder, name).text)) {
        return 0;
    }
    const bool first = strverscmp(name, found->names[0]) > 0;
    snprintf(found->names[1], size, "%s", first ? found->names[0] : name);
    if (first) {
        snprintf(found->names[0], size, "%s", name);
    }
    return 0;
}

/* An error that names a checkpoint if the folder is the directory of a run, which has checkpoints in it. */
static int refuse_run_directory(const char *folder) {
    struct candidates found = {.folder = folder};
    size_t length = strlen(folder);
    if (files_each(folder, take_candidate, &found)) {
        error_clear(); /* there may be no such folder: reading config.json says so */
    }
    while (length > 1 && folder[length - 1] == '/') {
        length--;
    }
    const char *first = found.names[0], *second = found.names[1];
    return *first ? error_set("%s is a run directory, not a checkpoint: give %.*s/%s%s%s%s", folder, (int)length,
                              folder, first, *second ? " (or " : "", second, *second ? ")" : "")
                  : 0;
}

int config_file_read(const char *folder, struct model_config *config) {
    const struct path path = path_of("%s/%s", folder, "config.json");
    json_t *json;
    if (!files_exist(path.text) && refuse_run_directory(folder)) {
        return -1;
    }
    int status = json_file_read(path.text, MOST_BYTES, &json);
    if (status == 0 && config_file_parse(json, config)) {
        status = error_prefix("%s", path.text);
    }
    json_decref(json);
    return status;
}

int config_file_write(const char *folder, const struct model_config *config) {
    json_t *json = model_config_to_json(config);
    const int status = json_file_write(path_of("%s/%s", folder, "config.json").text, json,
                                       JSON_INDENT(1) | JSON_REAL_PRECISION(17));
    json_decref(json);
    return status;
}
