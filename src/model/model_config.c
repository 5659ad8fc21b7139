#include "src/model/model_config.h"
#include "runtime/system/error.h"
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* the whole numbers of config.json; ranges keep every product of sizes within 64 bits */
static const struct integer_key {
    const char *name;
    size_t offset;
    int64_t minimum, maximum;
    bool optional;
} integer_keys[] = {
    {"n_layer", offsetof(struct model_config, n_layer), 1, 1024, false},
    {"n_head", offsetof(struct model_config, n_head), 1, 1024, false},
    {"n_embd", offsetof(struct model_config, n_embd), 1, 65536, false},
    {"vocab_size", offsetof(struct model_config, vocab_size), 1, 1 << 24, false},
    {"block_size", offsetof(struct model_config, block_size), 1, 1 << 20, false},
    {"n_streams", offsetof(struct model_config, n_streams), 1, RESIDUAL_MAX_STREAMS, true},
};
#define INTEGER_KEYS (sizeof integer_keys / sizeof integer_keys[0])

static int64_t *integer_at(struct model_config *config, const struct integer_key *key) {
    return (int64_t *)((char *)config + key->offset);
}

struct model_config model_config_default(void) {
    return (struct model_config){.n_streams = 1, .norm_sum = true, .settings = residual_settings_default()};
}

static int check_settings(const struct residual_settings *settings) {
    const struct residual_setting *setting;
    for (size_t i = 0; (setting = residual_setting_at(i, NULL)); i++) {
        const union residual_value *value = &settings->values[i];
        const double number = setting->type == RESIDUAL_INT ? (double)value->number : value->real;
        if (setting->type != RESIDUAL_BOOL && !(number >= setting->least && number <= setting->most)) {
            return error_set("%s = %g is out of range %g .. %g", setting->name, number, setting->least,
                             setting->most);
        }
    }
    return 0;
}

static int check_streams(struct model_config *config) {
    char takes[64];
    if (residual_is_plain(config->residual)) {
        config->n_streams = 1;
    }
    return residual_takes(config->residual, config->n_streams)
               ? 0
               : error_set("n_streams = %" PRId64 ": '%s' needs %s streams", config->n_streams,
                           config->residual->name, residual_streams_text(config->residual, takes, sizeof takes));
}

int model_config_check(struct model_config *config) {
    if (check_streams(config) || check_settings(&config->settings)) {
        return -1;
    }
    for (size_t i = 0; i < INTEGER_KEYS; i++) {
        const int64_t value = *integer_at(config, &integer_keys[i]);
        if (value < integer_keys[i].minimum || value > integer_keys[i].maximum) {
            return error_set("%s = %" PRId64 " is out of range %" PRId64 " .. %" PRId64, integer_keys[i].name,
                             value, integer_keys[i].minimum, integer_keys[i].maximum);
        }
    }
    if (config->n_embd % config->n_head != 0) {
        return error_set("n_embd = %" PRId64 " is not divisible by n_head = %" PRId64
                         ": every head needs the same whole number of channels",
                         config->n_embd, config->n_head);
    }
    if (!(config->dropout >= 0.0 && config->dropout < 1.0)) {
        return error_set("dropout = %g is out of range 0 .. 1 (1 excluded)", config->dropout);
    }
    return 0;
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

static int read_integers(const json_t *json, struct model_config *config) {
    for (size_t i = 0; i < INTEGER_KEYS; i++) {
        json_t *value = json_object_get(json, integer_keys[i].name);
        if (!value && integer_keys[i].optional) {
            continue;
        }
        if (!json_is_integer(value)) {
            return error_set("'%s' is %s", integer_keys[i].name, value ? "not a whole number" : "missing");
        }
        *integer_at(config, &integer_keys[i]) = json_integer_value(value);
    }
    return 0;
}

static int read_setting(const json_t *json, const struct residual_setting *setting, union residual_value *value) {
    json_t *given = json_object_get(json, setting->name);
    if (setting->type == RESIDUAL_INT && json_is_integer(given)) {
        value->number = json_integer_value(given);
    } else if (setting->type == RESIDUAL_FLOAT && json_is_number(given)) {
        value->real = json_number_value(given);
    } else if (setting->type == RESIDUAL_BOOL && json_is_boolean(given)) {
        value->flag = json_boolean_value(given);
    } else if (given) {
        static const char *const kinds[] = {"a whole number", "a number", "true or false"};
        return error_set("'%s' is not %s", setting->name, kinds[setting->type]);
    }
    return 0;
}

static int read_settings(const json_t *json, struct residual_settings *settings) {
    const struct residual_setting *setting;
    for (size_t i = 0; (setting = residual_setting_at(i, NULL)); i++) {
        if (read_setting(json, setting, &settings->values[i])) {
            return -1;
        }
    }
    return 0;
}

static int write_settings(json_t *json, const struct residual_settings *settings) {
    int failed = 0;
    const struct residual_setting *setting;
    for (size_t i = 0; (setting = residual_setting_at(i, NULL)); i++) {
        const union residual_value *value = &settings->values[i];
        failed |= json_object_set_new(json, setting->name,
                                      setting->type == RESIDUAL_INT     ? json_integer(value->number)
                                      : setting->type == RESIDUAL_FLOAT ? json_real(value->real)
                                                                        : json_boolean(value->flag));
    }
    return failed;
}

static int read_flag(const json_t *json, const char *name, bool *flag) {
    json_t *value = json_object_get(json, name);
    if (value && !json_is_boolean(value)) {
        return error_set("'%s' is not true or false", name);
    }
    *flag = value ? json_boolean_value(value) : *flag;
    return 0;
}

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
    *config = model_config_default();
    const char *residual = json_string_value(json_object_get(json, "residual"));
    config->residual = residual ? residual_find(residual) : NULL;
    if (!config->residual) {
        return error_set("'residual' is not one of %s", residual_names());
    }
    json_t *dropout = json_object_get(json, "dropout");
    if (dropout && !json_is_number(dropout)) {
        return error_set("'dropout' is not a number");
    }
    config->dropout = json_number_value(dropout);
    bool exact = true;
    if (read_integers(json, config) ||
        model_config_set_tokenizer(config, json_string_value(json_object_get(json, "tokenizer"))) ||
        read_flag(json, "bias", &config->bias) || read_settings(json, &config->settings) ||
        read_either(json, "stream_reduce", "norm_sum", "sum_norm", &config->norm_sum) ||
        read_either(json, "activation", "gelu", "gelu_tanh", &exact)) {
        return -1;
    }
    config->gelu_tanh = !exact;
    return 0;
}

int model_config_from_json(const json_t *json, struct model_config *config) {
    return read_keys(json, config) || model_config_check(config) ? -1 : 0;
}

json_t *model_config_to_json(const struct model_config *config) {
    struct model_config copy = *config;
    json_t *json = json_object();
    int failed = json == NULL;
    for (size_t i = 0; i < INTEGER_KEYS; i++) {
        failed |=
            json_object_set_new(json, integer_keys[i].name, json_integer(*integer_at(&copy, &integer_keys[i])));
    }
    failed |= json_object_set_new(json, "bias", json_boolean(config->bias));
    failed |= json_object_set_new(json, "dropout", json_real(config->dropout));
    failed |= json_object_set_new(json, "residual", json_string(config->residual->name));
    failed |= json_object_set_new(json, "stream_reduce", json_string(config->norm_sum ? "norm_sum" : "sum_norm"));
    failed |= write_settings(json, &config->settings);
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

/* True for settings that a run may change, and for names that are none. */
static bool same_setting(const struct model_config *a, const struct model_config *b, const char *name) {
    const size_t number = residual_setting_find(name);
    const struct residual_setting *setting = residual_setting_at(number, NULL);
    if (!setting || setting->only_in_training) {
        return true;
    }
    const union residual_value *first = &a->settings.values[number], *second = &b->settings.values[number];
    return setting->type == RESIDUAL_INT     ? first->number == second->number
           : setting->type == RESIDUAL_FLOAT ? first->real == second->real
                                             : first->flag == second->flag;
}

bool model_config_same(const struct model_config *a, const struct model_config *b, const char *name) {
    struct model_config first = *a, second = *b;
    if (strcmp(name, "n_streams") == 0 && residual_is_plain(a->residual)) {
        return true; /* rc has one stream, whatever is asked for */
    }
    for (size_t i = 0; i < INTEGER_KEYS; i++) {
        if (strcmp(name, integer_keys[i].name) == 0) {
            return *integer_at(&first, &integer_keys[i]) == *integer_at(&second, &integer_keys[i]);
        }
    }
    return strcmp(name, "residual") == 0        ? a->residual == b->residual
           : strcmp(name, "bias") == 0          ? a->bias == b->bias
           : strcmp(name, "stream_reduce") == 0 ? a->norm_sum == b->norm_sum
           : strcmp(name, "activation") == 0    ? a->gelu_tanh == b->gelu_tanh
                                                : same_setting(a, b, name);
}
