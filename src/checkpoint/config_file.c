#include "src/checkpoint/config_file.h"
#include "runtime/files/files.h"
#include "runtime/files/json_file.h"
#include "runtime/system/error.h"
#include "src/checkpoint/hugging_face.h"

#define MOST_BYTES ((size_t)1 << 20)

int config_file_parse(const json_t *json, struct model_config *config) {
    if (!json_object_get(json, "model_type")) { /* which Hugging Face's has, and ours has not */
        return model_config_from_json(json, config);
    }
    return hugging_face_read_config(json, config) || model_config_check(config) ? -1 : 0;
}

int config_file_read(const char *folder, struct model_config *config) {
    const struct path path = path_of("%s/%s", folder, "config.json");
    json_t *json;
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
