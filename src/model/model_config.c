#include "src/model/model_config.h"
#include "runtime/system/error.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- what config.json has of numbers, and of true and false */

struct key {
    const char *name;
    enum residual_setting_type type;
    void *value;           /* int64_t, double or bool of the config */
    double least, most;    /* so that every product of sizes is within 64 bits */
    bool needed;           /* config.json must have it */
    bool only_in_training; /* what a model computes does not depend on it */
};

enum { OWN_KEYS = 8, MOST_KEYS = OWN_KEYS + RESIDUAL_MAX_SETTINGS };

/* The number of keys: the model's own, and the settings of variants. */
static size_t keys_of(struct model_config *config, struct key keys[MOST_KEYS]) {
    const struct key own[OWN_KEYS] = {
        {"n_layer", RESIDUAL_INT, &config->n_layer, 1, 1024, true, false},
        {"n_head", RESIDUAL_INT, &config->n_head, 1, 1024, true, false},
        {"n_embd", RESIDUAL_INT, &config->n_embd, 1, 65536, true, false},
        {"vocab_size", RESIDUAL_INT, &config->vocab_size, 1, 1 << 24, true, false},
        {"block_size", RESIDUAL_INT, &config->block_size, 1, 1 << 20, true, false},
        {"n_streams", RESIDUAL_INT, &config->n_streams, 1, RESIDUAL_MAX_STREAMS, false, false},
        {"bias", RESIDUAL_BOOL, &config->bias, 0, 0, false, false},
        {"dropout", RESIDUAL_FLOAT, &config->dropout, 0, 0x1.fffffffffffffp-1, false, true},
    };
    const struct residual_setting *setting;
    size_t count = OWN_KEYS;
    memcpy(keys, own, sizeof own);
    for (size_t i = 0; (setting = residual_setting_at(i, NULL)); i++) {
        keys[count++] = (struct key){setting->name, setting->type, &config->settings.values[i], setting->least,
                                     setting->most, false,         setting->only_in_training};
    }
    return count;
}

static double number_of(const struct key *key) {
    return key->type == RESIDUAL_INT     ? (double)*(const int64_t *)key->value
           : key->type == RESIDUAL_FLOAT ? *(const double *)key->value
                                         : (double)*(const bool *)key->value;
}

static int check_key(const struct key *key) {
    const double number = number_of(key);
    return key->type == RESIDUAL_BOOL || (number >= key->least && number <= key->most)
               ? 0
               : error_set("%s = %.15g is out of range %g .. %.10g%s", key->name, number, key->least, key->most,
                           key->type == RESIDUAL_FLOAT && key->most < 1.0 ? " (1 excluded)" : "");
}

static int read_key(const json_t *json, const struct key *key) {
    static const char *const kinds[] = {"a whole number", "a number", "true or false"};
    const json_t *given = json_object_get(json, key->name);
    if (!given) {
        return key->needed ? error_set("'%s' is missing", key->name) : 0;
    }
    if (key->type == RESIDUAL_INT && json_is_integer(given)) {
        *(int64_t *)key->value = json_integer_value(given);
    } else if (key->type == RESIDUAL_FLOAT && json_is_number(given)) {
        *(double *)key->value = json_number_value(given);
    } else if (key->type == RESIDUAL_BOOL && json_is_boolean(given)) {
        *(bool *)key->value = json_boolean_value(given);
    } else {
        return error_set("'%s' is not %s", key->name, kinds[key->type]);
    }
    return 0;
}

static json_t *key_json(const struct key *key) {
    return key->type == RESIDUAL_INT     ? json_integer(*(const int64_t *)key->value)
           : key->type == RESIDUAL_FLOAT ? json_real(*(const double *)key->value)
                                         : json_boolean(*(const bool *)key->value);
}

/* ---- checking */

struct model_config model_config_default(void) {
    return (struct model_config){.n_streams = 1, .norm_sum = true, .settings = residual_settings_default()};
}

static int check_streams(struct model_config *config) {
    char takes[64];
    if (residual_is_plain(config->residual)) {
        config->n_streams = 1;
        config->scaled = false;
    }
    return residual_takes(config->residual, config->n_streams)
               ? 0
               : error_set("n_streams = %" PRId64 ": '%s' needs %s streams", config->n_streams,
                           config->residual->name, residual_streams_text(config->residual, takes, sizeof takes));
}

int model_config_check(struct model_config *config) {
    struct key keys[MOST_KEYS];
    int status = check_streams(config);
    for (size_t i = 0, count = keys_of(config, keys); i < count && status == 0; i++) {
        status = check_key(&keys[i]);
    }
    if (status == 0 && config->n_embd % config->n_head != 0) {
        status = error_set("n_embd = %" PRId64 " is not divisible by n_head = %" PRId64
                           ": every head needs the same whole number of channels",
                           config->n_embd, config->n_head);
    }
    return status;
}

int model_config_set_tokenizer(struct model_config *config, const char *name) {
    const size_t length = name ? strlen(name) : 0;
    if (length >= sizeof config->tokenizer) {
        return error_set("'tokenizer' has more than %zu bytes", sizeof config->tokenizer - 1);
    }
    memset(config->tokenizer, 0, sizeof config->tokenizer);
    memcpy(config->tokenizer, name ? name : "", length);
    return 0;
}

/* ---- JSON */

/* A key that is one of two words, the first if it is absent; *first says which. */
static int read_either(const json_t *json, const char *name, const char *word, const char *other, bool *first) {
    json_t *value = json_object_get(json, name);
    const char *text = value ? json_string_value(value) : word;
    if (!text || (strcmp(text, word) != 0 && strcmp(text, other) != 0)) {
        return error_set("'%s' is neither \"%s\" nor \"%s\"", name, word, other);
    }
    *first = strcmp(text, word) == 0;
    return 0;
}

static int read_keys(const json_t *json, struct model_config *config) {
    struct key keys[MOST_KEYS];
    bool exact = true, copied = true;
    *config = model_config_default();
    const char *residual = json_string_value(json_object_get(json, "residual"));
    config->residual = residual ? residual_find(residual) : NULL;
    if (!config->residual) {
        return error_set("'residual' is not one of %s", residual_names());
    }
    for (size_t i = 0, count = keys_of(config, keys); i < count; i++) {
        if (read_key(json, &keys[i])) {
            return -1;
        }
    }
    if (model_config_set_tokenizer(config, json_string_value(json_object_get(json, "tokenizer"))) ||
        read_either(json, "stream_reduce", "norm_sum", "sum_norm", &config->norm_sum) ||
        read_either(json, "stream_expand", "copy", "scaled", &copied) ||
        read_either(json, "activation", "gelu", "gelu_tanh", &exact)) {
        return -1;
    }
    config->scaled = !copied;
    config->gelu_tanh = !exact;
    return 0;
}

int model_config_from_json(const json_t *json, struct model_config *config) {
    return read_keys(json, config) || model_config_check(config) ? -1 : 0;
}

json_t *model_config_to_json(const struct model_config *config) {
    struct model_config copy = *config;
    struct key keys[MOST_KEYS];
    json_t *json = json_object();
    int failed = json == NULL;
    for (size_t i = 0, count = keys_of(&copy, keys); i < count; i++) {
        failed |= json_object_set_new(json, keys[i].name, key_json(&keys[i]));
    }
    failed |= json_object_set_new(json, "residual", json_string(config->residual->name));
    failed |= json_object_set_new(json, "stream_reduce", json_string(config->norm_sum ? "norm_sum" : "sum_norm"));
    failed |= json_object_set_new(json, "stream_expand", json_string(config->scaled ? "scaled" : "copy"));
    failed |= json_object_set_new(json, "activation", json_string(config->gelu_tanh ? "gelu_tanh" : "gelu"));
    if (*config->tokenizer) {
        failed |= json_object_set_new(json, "tokenizer", json_string(config->tokenizer));
    }
    if (failed) {
        json_decref(json);
        return NULL;
    }
    return json;
}

bool model_config_same(const struct model_config *a, const struct model_config *b, const char *name) {
    struct model_config first = *a, second = *b;
    struct key ours[MOST_KEYS], theirs[MOST_KEYS];
    const size_t count = keys_of(&first, ours);
    keys_of(&second, theirs);
    if ((strcmp(name, "n_streams") == 0 || strcmp(name, "stream_expand") == 0) && residual_is_plain(a->residual)) {
        return true; /* rc has one stream, whatever is asked for */
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, ours[i].name) == 0) {
            return ours[i].only_in_training || number_of(&ours[i]) == number_of(&theirs[i]);
        }
    }
    return strcmp(name, "residual") == 0        ? a->residual == b->residual
           : strcmp(name, "stream_reduce") == 0 ? a->norm_sum == b->norm_sum
           : strcmp(name, "stream_expand") == 0 ? a->scaled == b->scaled
           : strcmp(name, "activation") == 0    ? a->gelu_tanh == b->gelu_tanh
                                                : true;
}
