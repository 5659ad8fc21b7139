#include "src/checkpoint/config_file.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "src/checkpoint/hugging_face.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES ((size_t)1 << 20)

int config_file_parse(const json_t *json, struct model_config *config) {
    if (!json_object_get(json, "model_type")) { /* Hugging Face's always has this key */
        return model_config_from_json(json, config);
    }
    json_t *ours = hugging_face_to_ours(json);
    if (!ours) {
        return -1;
    }
    const int status = model_config_from_json(ours, config);
    json_decref(ours);
    config->hugging_face_rows = status ? 0 : config->vocab_size;
    return status;
}

json_t *config_file_hugging_face(const struct model_config *config) {
    struct model_config whole = *config;
    if (model_config_check(&whole)) {
        return NULL;
    }
    json_t *ours = model_config_to_json(&whole), *theirs = hugging_face_from_ours(ours);
    json_decref(ours);
    return theirs;
}

/* If the folder is a run directory, which has checkpoints in it, an error that names the last two: ckpt-best comes
 * after all numbers. */
static int refuse_run_directory(const char *folder) {
    struct dirent **entries;
    char names[256] = "";
    size_t length = strlen(folder), found = 0;
    const int count = scandir(folder, &entries, NULL, versionsort);
    for (int i = count - 1; i >= 0; i--) {
        const char *name = entries[i]->d_name;
        if (found < 2 && strncmp(name, "ckpt-", 5) == 0 &&
            files_exist(path_of("%s/%s/config.json", folder, name).text)) {
            const size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, found++ ? " (or %.60s)" : "%.60s", name);
        }
        free(entries[i]);
    }
    if (count >= 0) {
        free(entries);
    }
    while (length > 1 && folder[length - 1] == '/') {
        length--;
    }
    return found ? error_set("%s is a run directory, not a checkpoint: give %.*s/%s", folder, (int)length, folder,
                             names)
                 : 0;
}

int config_file_read(const char *folder, struct model_config *config) {
    const struct path path = path_of("%s/config.json", folder);
    json_t *json;
    if ((!files_exist(path.text) && refuse_run_directory(folder)) || json_file_read(path.text, MOST_BYTES, &json)) {
        return -1;
    }
    const int status = config_file_parse(json, config);
    json_decref(json);
    return status ? error_prefix("%s", path.text) : 0;
}

int config_file_read_tokens(const char *folder, struct model_config *config) {
    const struct path path = path_of("%s/generation_config.json", folder);
    json_t *json;
    if (config->hugging_face_rows == 0 || !files_exist(path.text)) {
        return 0;
    }
    int status = json_file_read(path.text, MOST_BYTES, &json);
    if (status == 0 && (model_config_read_ids(json, "bos_token_id", &config->beginnings) ||
                        model_config_read_ids(json, "eos_token_id", &config->ends))) {
        status = error_prefix("%s", path.text);
    }
    json_decref(json);
    return status ? -1 : 0;
}

int config_file_write(const char *folder, const struct model_config *config) {
    return json_file_write(path_of("%s/config.json", folder).text, model_config_to_json(config),
                           JSON_INDENT(1) | JSON_REAL_PRECISION(17));
}
