#include "src/model/model_config.h"
#include "runtime/files/json_file.h"
#include "runtime/options/option_rows.h"
#include "runtime/system/error.h"
#include "runtime/system/memory.h"
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Limits keep every size that is computed from them within 64 bits. */
size_t model_config_settings(struct model_config *config, struct model_setting settings[MODEL_MOST_SETTINGS]) {
    const struct model_setting own[] = {
        {OF_CONNECTION,
         INT("n_streams", &config->n_streams, "4", 1, RESIDUAL_MAX_STREAMS, "residual streams (rc has one)")},
        {0, BOOL("embed_norm", &config->embed_norm, "false",
                 "RMSNorm of the embedding of tokens and positions, before the streams")},
        {OF_CONNECTION,
         CHOICE("stream_expand", &config->stream_expand, "copy", "copy|scaled",
                "at the bottom. copy: all streams begin as the embedding; scaled: each scales it by learned gains "
                "of its own, so that streams differ from the start (rc ignores it)")},
        {OF_CONNECTION | MAY_FOLLOW,
         CHOICE("stream_reduce", &config->stream_reduce, "auto", STREAM_REDUCE_WORDS,
                "at the top. norm_sum: norm each stream, then sum; sum_norm: sum, then norm; head: sum with "
                "learned weights that depend on the streams, as in DeepSeek-V4, then norm; last_pre, with "
                "read_delay: the weights are H_pre of the last sublayer, as in DeepSeek-V4.1; read, for the "
                "variant wide: learned weights that no token changes (auto: last_pre with read_delay, else read "
                "for wide, else norm_sum; rc ignores it)")},
        {OF_CONNECTION, BOOL("read_delay", &config->read_delay, "false",
                             "a sublayer reads the streams with the H_pre that the one before has computed, as in "
                             "DeepSeek-V4.1, and the first reads stream 0 (rc has no H_pre)")},
        {OF_CONNECTION, BOOL("hc_norm_gain", &config->hc_norm_gain, "true",
                             "a learned gain in the norm before the projections of hyper-connections")},
        {OF_CONNECTION, FLOAT("hc_eps", &config->hc_eps, "0", 0, 1,
                              "what H_pre has beside its sigmoids, and each of mhc's iterations beside its sums "
                              "(DeepSeek-V4: 1e-6; hc has no sigmoids and ignores it)")},
        {OF_CONNECTION,
         FLOAT("hc_norm_eps", &config->hc_norm_eps, "1e-6", 0, 1,
               "eps of the RMSNorm before the projections of hyper-connections. 0: they are divided by the "
               "norm, at least 1e-12, as torch.nn.functional.normalize does, and so the public code of "
               "mHC-lite, KromHC and s2HC")},
        {OF_CONNECTION,
         BOOL("h_res_transposed", &config->h_res_transposed, "false",
              "mix streams by the transpose of H_res, x'_j = sum_i H_res[i, j] x_i + H_post[j] output, as "
              "the same public code does")},
        {OF_CONNECTION, BOOL("hc_dynamic", &config->hc_dynamic, "true",
                             "H_pre, H_post and H_res depend on the token; false: only on learned biases")},
        {OF_CONNECTION, INT("hc_until", &config->hc_until, "0", 0, 2048,
                            "the first hc_until sublayers mix the streams; in later ones H_res is the identity (0: "
                            "all mix them)")},
        {OF_CONNECTION,
         BOOL("x0_lambdas", &config->x0_lambdas, "false",
              "a layer begins with lambda_resid times its streams + lambda_x0 times the model's first "
              "ones, both learned, as in nanochat")},
        {OF_CONNECTION, BOOL("value_embeds", &config->value_embeds, "false",
                             "every other layer, the last among them, adds embeddings of its tokens to the values "
                             "of attention, through a gate for each head, as in nanochat")},
        {OF_CONNECTION | ONLY_IN_TRAINING,
         CHOICE("hc_start", &config->hc_start, "sublayer", "sublayer|layer",
                "the stream that is read and written most at first: number sublayer mod n_streams, or for "
                "both sublayers of a layer number layer mod n_streams")},
        {OF_CONNECTION | ONLY_IN_TRAINING,
         CHOICE("hc_init", &config->hc_init, "zero", "zero|litgpt",
                "first values of the projections of hyper-connections. litgpt: shc's are normal with "
                "deviation sqrt(0.4 / n_embd), as LitGPT makes them in the public code of s2HC")},
        {IS_SIZE, INT("n_layer", &config->n_layer, "4", 1, 1024, "layers, each an attention and an MLP block")},
        {IS_SIZE, INT("n_head", &config->n_head, "4", 1, 1024, "attention heads")},
        {MAY_FOLLOW, INT("n_kv_head", &config->n_kv_head, "0", 0, 1024,
                         "key and value heads, each of which n_head / n_kv_head query heads share (0: n_head)")},
        {MAY_FOLLOW, INT("head_dim", &config->head_dim, "0", 0, 65536, "channels of a head (0: n_embd / n_head)")},
        {IS_SIZE, INT("n_embd", &config->n_embd, "128", 1, 65536, "channels")},
        {IS_SIZE, INT("block_size", &config->block_size, "128", 1, 1 << 20, "tokens of context")},
        {IS_SIZE | MAY_FOLLOW,
         INT("vocab_size", &config->vocab_size, "0", 0, 1 << 24,
             "tokens of the vocabulary; 0: meta.json's of data_dir (hc_bench without data: 50304)")},
        {0, BOOL("bias", &config->bias, "false", "biases in layer norms and linear layers")},
        {IS_SWITCH | MAY_FOLLOW, CHOICE("qkv_bias", &config->qkv_bias, "as_bias", "as_bias|false|true",
                                        "a bias of queries, keys and values, for or against `bias`")},
        {0,
         CHOICE("position", &config->position, "learned", POSITION_WORDS,
                "how attention knows the order of tokens. learned: embeddings of positions are added to those of "
                "tokens; rope: queries and keys turn by their positions (RoPE); none: only by its causal mask")},
        {0, FLOAT("rope_theta", &config->rope_theta, "10000", 1, 1e12,
                  "base of RoPE's wavelengths, which grow from 2 pi to 2 pi rope_theta tokens")},
        {0, FLOAT("rope_fraction", &config->rope_fraction, "1", 0, 1,
                  "share of a head's pairs of channels that turn, f: below 1 the first f head_dim / 2 turn, "
                  "their wavelengths from 2 pi to 2 pi rope_theta with both ends, and the others do not")},
        {MAY_BE_BOOLEAN, CHOICE("qk_norm", &config->qk_norm, "false", "false|true|plain",
                                "RMSNorm of every query and key head, before RoPE: with gains of its own, or plain "
                                "without")},
        {0, FLOAT("attn_scale", &config->attn_scale, "0", 0, 100,
                  "what scores of attention are multiplied by, at least 1e-6 (0: 1 / sqrt(head_dim))")},
        {0, CHOICE("norm", &config->norm, "layernorm", NORM_WORDS,
                   "before each branch and at the top; rmsnorm does not subtract the mean, and has no bias")},
        {MAY_FOLLOW, FLOAT("norm_eps", &config->norm_eps, "0", 0, 1,
                           "what the norm adds to the variance, or mean square (0: 1e-5 for layernorm, 1e-6 for "
                           "rmsnorm)")},
        {0,
         CHOICE("mlp", &config->mlp, "gelu", MLP_WORDS,
                "what becomes of the MLP's hidden channels c_fc x. gelu: the activation function of them; relu2: "
                "max(0, .)^2; swiglu: silu(c_gate x) times them")},
        {MAY_FOLLOW, INT("mlp_width", &config->mlp_width, "0", 0, 1 << 20,
                         "hidden channels (0: 4 n_embd; for swiglu 8/3 n_embd, rounded up to a multiple of 64)")},
        {0, CHOICE("activation", &config->activation, "gelu", ACTIVATION_WORDS,
                   "of MLPs of kind gelu: exact GELU, or its approximation by tanh as in OpenAI's GPT-2")},
        {0, BOOL("tie_embeddings", &config->tie_embeddings, "true",
                 "logits by the token embedding's weights; false: by weights of their own (lm_head)")},
        {0, BOOL("head_bias", &config->head_bias, "false", "a bias of the logits, before logit_softcap")},
        {0, FLOAT("logit_softcap", &config->logit_softcap, "0", 0, 1e9,
                  "largest logit s: logits become s tanh(logits / s), or as softcap_kind says (0: they stay "
                  "as they are)")},
        {0, CHOICE("softcap_kind", &config->softcap_kind, "tanh", "tanh|rsqrt",
                   "function of logit_softcap: s tanh(logits / s), or s logits / sqrt(logits^2 + s^2)")},
        {ONLY_IN_TRAINING,
         CHOICE("init", &config->init, "gpt2", "gpt2|track3|litgpt",
                "first values of embeddings and linear layers: those of GPT-2; those of "
                "modded-nanogpt's track 3, where lm_head and what writes to the streams begin as zero; or "
                "those of LitGPT, deviation sqrt(0.4 / n_embd), and 1 / (sqrt(n_embd) n_layer) of what "
                "writes to the streams")},
        {ONLY_IN_TRAINING,
         FLOAT("dropout", &config->dropout, "0", 0, 0.99, "of embedding, attention and branch outputs")},
    };
    static const enum option_type types[] = {OPTION_INT, OPTION_FLOAT, OPTION_BOOL, OPTION_CHOICE};
    const struct residual_setting *setting;
    size_t count = COUNT(own);
    _Static_assert(COUNT(own) + RESIDUAL_MAX_SETTINGS <= MODEL_MOST_SETTINGS, "settings do not fit");
    memcpy(settings, own, sizeof own);
    for (size_t i = 0; (setting = residual_setting_at(i, NULL)); i++) {
        settings[count++] =
            (struct model_setting){OF_CONNECTION | (setting->only_in_training ? ONLY_IN_TRAINING : 0),
                                   {.type = types[setting->type],
                                    .name = setting->name,
                                    .target = &config->settings.values[i],
                                    .default_value = setting->initial,
                                    .minimum = setting->least,
                                    .maximum = setting->most,
                                    .choices = setting->words,
                                    .help = setting->help}};
    }
    return count;
}

static double number_of(const struct option_spec *option) {
    switch (option->type) {
    case OPTION_INT:
        return (double)*(const int64_t *)option->target;
    case OPTION_FLOAT:
        return *(const double *)option->target;
    case OPTION_BOOL:
        return (double)*(const bool *)option->target;
    default:
        return (double)*(const int *)option->target;
    }
}

/* ---- checking */

struct model_config model_config_default(void) {
    return (struct model_config){.n_streams = 1,
                                 .hc_norm_gain = true,
                                 .hc_norm_eps = 1e-6,
                                 .hc_dynamic = true,
                                 .rope_theta = 10000.0,
                                 .rope_fraction = 1.0,
                                 .tie_embeddings = true,
                                 .settings = residual_settings_default()};
}

/* The number of streams, what the top makes of them, and whether reading can be delayed. */
static int check_streams(struct model_config *config) {
    const struct residual_variant *residual = config->residual;
    const bool is_fixed = residual_is_fixed(residual);
    const char *given = config->stream_expand != STREAM_EXPAND_COPY ? "stream_expand = scaled"
                        : config->read_delay                        ? "read_delay = true"
                        : config->h_res_transposed                  ? "h_res_transposed = true"
                                                                    : NULL;
    char takes[64];
    if (residual_is_single(residual)) {
        if (config->stream_expand == STREAM_EXPAND_SCALED && !residual_has_frame(residual, "plain")) {
            return error_set("stream_expand = scaled needs several streams, and '%s' has one", residual->name);
        }
        config->n_streams = 1;
        config->stream_expand = STREAM_EXPAND_COPY;
        config->stream_reduce = STREAM_REDUCE_NORM_SUM;
    }
    if (residual->has_fractions) {
        config->stream_reduce = STREAM_REDUCE_NORM_SUM;
    }
    if (residual->has_fractions && given) {
        return error_set("%s is for streams, and '%s' has fractions of one: leave it out", given, residual->name);
    }
    if (!residual_takes(residual, config->n_streams)) {
        return error_set("n_streams = %" PRId64 ": '%s' needs %s streams", config->n_streams, residual->name,
                         residual_streams_text(residual, takes, sizeof takes));
    }
    if (config->read_delay && !residual_has_matrices(residual)) {
        return error_set("read_delay = true: '%s' has no H_pre that a later sublayer could read with",
                         residual->name);
    }
    if (config->h_res_transposed && !residual_has_matrices(residual)) {
        return error_set("h_res_transposed = true: '%s' has no H_res; give --no-h-res-transposed", residual->name);
    }
    if (config->stream_reduce == STREAM_REDUCE_AUTO && config->read_delay) {
        config->stream_reduce = STREAM_REDUCE_LAST_PRE;
    } else if (config->stream_reduce == STREAM_REDUCE_AUTO) {
        config->stream_reduce = is_fixed ? STREAM_REDUCE_READ : STREAM_REDUCE_NORM_SUM;
    }
    if (config->stream_reduce == STREAM_REDUCE_READ && !is_fixed) {
        return error_set("stream_reduce = read is for residual = wide");
    }
    if (config->stream_reduce == STREAM_REDUCE_LAST_PRE && !config->read_delay) {
        return error_set("stream_reduce = last_pre needs read_delay = true");
    }
    return 0;
}

bool model_config_weighs_embedding(const struct model_config *config) {
    return residual_has_frame(config->residual, "attnres") || residual_has_frame(config->residual, "mudd");
}

/* What only some residual connections have. */
static int check_connection(const struct model_config *config) {
    const struct residual_variant *residual = config->residual;
    const struct residual_settings *settings = &config->settings;
    const int64_t heads = residual_setting_value(settings, "attnres_heads").number;
    if (residual->has_fractions && config->n_embd % config->n_streams != 0) {
        return error_set("n_embd = %" PRId64 " is not divisible by n_streams = %" PRId64
                         ", the fractions of residual = %s",
                         config->n_embd, config->n_streams, residual->name);
    }
    if (heads > 1 && !residual_reads_depth(residual)) {
        return error_set("attnres_heads = %" PRId64 ": '%s' has no attention over depth", heads, residual->name);
    }
    if (config->n_embd % heads != 0) {
        return error_set("n_embd = %" PRId64 " is not divisible by attnres_heads = %" PRId64, config->n_embd,
                         heads);
    }
    if (residual_setting_value(settings, "mudd_norm").choice != MUDD_NORM_NONE &&
        (!residual_has_frame(residual, "mudd") || residual->fixed_ways)) {
        return error_set("mudd_norm = prepost is for residual = mudd, not '%s'", residual->name);
    }
    if (!config->hc_dynamic && !residual_has_matrices(residual)) {
        return error_set("hc_dynamic = false: '%s' has no H; leave hc_dynamic out", residual->name);
    }
    if (!config->hc_dynamic && residual_is_fixed(residual)) {
        return error_set("hc_dynamic = false: H of '%s' never depends on the token; leave hc_dynamic out",
                         residual->name);
    }
    if (config->hc_until > 0 && !residual_mixes(residual, settings)) {
        return error_set("hc_until = %" PRId64 ": '%s' does not mix its streams", config->hc_until, residual->name);
    }
    if (config->hc_until > 2 * config->n_layer) {
        return error_set("hc_until = %" PRId64 " of %" PRId64 " sublayers: each layer has two", config->hc_until,
                         2 * config->n_layer);
    }
    if (config->x0_lambdas && model_config_weighs_embedding(config)) {
        return error_set(
            "x0_lambdas = true: '%s' already mixes the embedding into every layer; leave x0_lambdas out",
            residual->name);
    }
    if (config->value_embeds && config->n_embd < VALUE_EMBED_CHANNELS) {
        return error_set("value_embeds = true: the gates read %d channels, and n_embd = %" PRId64,
                         VALUE_EMBED_CHANNELS, config->n_embd);
    }
    return 0;
}

static int check_heads(const struct model_config *config) {
    if (config->attn_scale > 0.0 && config->attn_scale < 1e-6) {
        return error_set("attn_scale = %.15g is too small: give at least 1e-6, or 0 for 1 / sqrt(head_dim)",
                         config->attn_scale);
    }
    if (!config->head_dim && config->n_embd % config->n_head != 0) {
        return error_set("n_embd = %" PRId64 " is not divisible by n_head = %" PRId64
                         ": every head needs the same whole number of channels, unless head_dim gives another",
                         config->n_embd, config->n_head);
    }
    if (config->n_kv_head && config->n_head % config->n_kv_head != 0) {
        return error_set("n_head = %" PRId64 " is not divisible by n_kv_head = %" PRId64
                         ": the same number of query heads shares each key head",
                         config->n_head, config->n_kv_head);
    }
    if (config->position != POSITION_ROPE) {
        return 0;
    }
    const int64_t size = model_config_heads(config).size;
    if (size % 2 != 0) {
        return error_set("head_dim = %" PRId64 " is odd: with position = rope a head's channels turn in pairs",
                         size);
    }
    /* a decimal number such as 0.333333 stands for the nearest whole number of pairs */
    const double pairs = config->rope_fraction * (double)size / 2.0;
    const bool nearly_all = config->rope_fraction < 1.0 && pairs > (double)(size / 2) - 0.5;
    if (pairs < 0.5 || nearly_all || fabs(pairs - round(pairs)) > 1e-5 * pairs) {
        return error_set("rope_fraction = %.15g of the %" PRId64
                         " pairs of channels of a head is no whole number of at least 1",
                         config->rope_fraction, size / 2);
    }
    return 0;
}

int model_config_check(struct model_config *config) {
    struct model_setting settings[MODEL_MOST_SETTINGS];
    if (check_streams(config)) {
        return -1;
    }
    for (size_t i = 0, count = model_config_settings(config, settings); i < count; i++) {
        const struct option_spec *option = &settings[i].option;
        const double number = number_of(option), least = settings[i].flags & IS_SIZE ? 1.0 : option->minimum;
        const bool has_range = option->type == OPTION_INT || option->type == OPTION_FLOAT;
        if (has_range && !(number >= least && number <= option->maximum)) {
            return error_set("%s = %.15g is out of range %g .. %.10g", option->name, number, least,
                             option->maximum);
        }
    }
    if (check_connection(config) || check_heads(config)) {
        return -1;
    }
    const struct head_shape heads = model_config_heads(config);
    const int64_t width = config->n_embd;
    config->qkv_bias = model_config_has_qkv_bias(config) ? SWITCH_ON : SWITCH_OFF;
    config->n_kv_head = heads.kv_heads;
    config->head_dim = heads.size;
    if (config->mlp_width == 0) {
        config->mlp_width = mlp_is_gated(config->mlp) ? (8 * width + 191) / 192 * 64 : 4 * width;
    }
    config->norm_eps = config->norm_eps > 0.0 ? config->norm_eps : norm_epsilon(config->norm);
    return 0;
}

struct head_shape model_config_heads(const struct model_config *config) {
    return head_shape(&(struct operation_shape){.channels = config->n_embd,
                                                .heads = config->n_head,
                                                .kv_heads = config->n_kv_head,
                                                .head_size = config->head_dim});
}

bool model_config_has_qkv_bias(const struct model_config *config) {
    return config->qkv_bias == SWITCH_FOLLOWS ? config->bias : config->qkv_bias == SWITCH_ON;
}

struct residual_settings model_config_connection(const struct model_config *config, int64_t sublayer) {
    struct residual_settings settings = config->settings;
    settings.is_static = !config->hc_dynamic;
    settings.is_unmixed = config->hc_until > 0 && sublayer >= config->hc_until;
    return settings;
}

bool model_config_has_value_embed(const struct model_config *config, int64_t layer) {
    return config->value_embeds && layer % 2 == (config->n_layer - 1) % 2;
}

int64_t model_config_first_stream(const struct model_config *config, int64_t sublayer) {
    return (config->hc_start == HC_START_LAYER ? sublayer / 2 : sublayer) % config->n_streams;
}

int model_config_set_tokenizer(struct model_config *config, const char *name) {
    if (name && strlen(name) >= sizeof config->tokenizer) {
        return error_set("'tokenizer' has more than %zu bytes", sizeof config->tokenizer - 1);
    }
    snprintf(config->tokenizer, sizeof config->tokenizer, "%s", name ? name : "");
    return 0;
}

/* ---- JSON */

int model_config_read_ids(const json_t *json, const char *key, struct token_ids *ids) {
    const json_t *value = json_object_get(json, key);
    const size_t count = json_is_array(value) ? json_array_size(value) : 1;
    struct token_ids found = {.count = count};
    if (!value || json_is_null(value)) {
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        if (count > TOKEN_IDS_MOST || !json_is_integer(id)) {
            return error_set("'%s' must be the number of a token, or a list of at most %d", key, TOKEN_IDS_MOST);
        }
        found.ids[i] = json_integer_value(id);
    }
    *ids = found;
    return 0;
}

void model_config_write_ids(json_t *json, const char *key, const struct token_ids *ids) {
    json_t *list = json_array();
    for (size_t i = 0; i < ids->count; i++) {
        json_array_append_new(list, json_integer(ids->ids[i]));
    }
    if (ids->count > 0) {
        json_object_set(json, key, ids->count == 1 ? json_array_get(list, 0) : list);
    }
    json_decref(list);
}

static int read_setting(const json_t *json, struct model_setting *setting) {
    struct option_spec *option = &setting->option;
    const json_t *given = json_object_get(json, option->name);
    if (!given) {
        return setting->flags & IS_SIZE ? error_set("'%s' is missing", option->name) : 0;
    }
    const bool is_flag = setting->flags & IS_SWITCH || option->type == OPTION_BOOL;
    const bool fits = is_flag                         ? json_is_boolean(given)
                      : option->type == OPTION_CHOICE ? json_is_string(given)
                                                      : json_is_number(given);
    if (!fits && !(setting->flags & MAY_BE_BOOLEAN && json_is_boolean(given))) {
        return json_file_fail(option->name, given, "it is of another type");
    }
    const char *text = NULL;
    if (json_is_string(given) && json_file_get_text(json, option->name, &text)) {
        return -1;
    }
    char *value = text ? memory_string(text) : json_dumps(given, JSON_ENCODE_ANY);
    char *where = memory_format("%s = ", option->name);
    const int status = option_set(option, value, where);
    free(value);
    free(where);
    return status;
}

/* A key that this program does not know may be a part of the model that it would leave out. */
static int check_keys(const json_t *json, const struct model_setting *settings, size_t count) {
    static const char *const others[] = {"residual", "tokenizer", "bos_token_id", "eos_token_id",
                                         MODEL_CONFIG_MARK};
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)json, name, value) {
        bool known = false;
        for (size_t i = 0; i < COUNT(others); i++) {
            known |= strcmp(name, others[i]) == 0;
        }
        for (size_t i = 0; i < count; i++) {
            known |= strcmp(name, settings[i].option.name) == 0;
        }
        if (!known) {
            return error_set("'%.60s' is not a setting that this version of hctrain knows, and what it means for "
                             "the model cannot be left out: use the version that wrote the file",
                             name);
        }
    }
    return 0;
}

int model_config_from_json(const json_t *json, struct model_config *config) {
    struct model_setting settings[MODEL_MOST_SETTINGS];
    *config = model_config_default();
    const char *residual = NULL, *tokenizer = NULL;
    if (json_file_get_text(json, "residual", &residual) || json_file_get_text(json, "tokenizer", &tokenizer)) {
        return -1;
    }
    config->residual = residual ? residual_find(residual) : NULL;
    if (!config->residual) {
        return error_set("'residual' is not one of %s", residual_names());
    }
    const size_t count = model_config_settings(config, settings);
    for (size_t i = 0; i < count; i++) {
        if (read_setting(json, &settings[i])) {
            return -1;
        }
    }
    if (check_keys(json, settings, count)) {
        return -1;
    }
    if (model_config_read_ids(json, "bos_token_id", &config->beginnings) ||
        model_config_read_ids(json, "eos_token_id", &config->ends) ||
        model_config_set_tokenizer(config, tokenizer)) {
        return -1;
    }
    return model_config_check(config);
}

/* NULL for a switch that follows another. */
static json_t *setting_json(const struct model_setting *setting) {
    const struct option_spec *option = &setting->option;
    char word[32];
    if (setting->flags & IS_SWITCH) {
        const int state = *(const int *)option->target;
        return state == SWITCH_FOLLOWS ? NULL : json_boolean(state == SWITCH_ON);
    }
    if (setting->flags & MAY_BE_BOOLEAN && *(const int *)option->target <= 1) {
        return json_boolean(*(const int *)option->target);
    }
    switch (option->type) {
    case OPTION_INT:
        return json_integer(*(const int64_t *)option->target);
    case OPTION_FLOAT:
        return json_real(*(const double *)option->target);
    case OPTION_BOOL:
        return json_boolean(*(const bool *)option->target);
    default:
        return json_string(options_word(option->choices, *(const int *)option->target, word, sizeof word));
    }
}

json_t *model_config_to_json(const struct model_config *config) {
    struct model_config copy = *config;
    struct model_setting settings[MODEL_MOST_SETTINGS];
    json_t *json = json_object();
    json_object_set_new(json, "residual", json_string(config->residual->name));
    for (size_t i = 0, count = model_config_settings(&copy, settings); i < count; i++) {
        json_object_set_new(json, settings[i].option.name, setting_json(&settings[i]));
    }
    if (*config->tokenizer) {
        json_object_set_new(json, "tokenizer", json_string(config->tokenizer));
    }
    model_config_write_ids(json, "bos_token_id", &config->beginnings);
    model_config_write_ids(json, "eos_token_id", &config->ends);
    return json;
}

static size_t value_bytes(enum option_type type) {
    switch (type) {
    case OPTION_INT:
        return sizeof(int64_t);
    case OPTION_FLOAT:
        return sizeof(double);
    case OPTION_BOOL:
        return sizeof(bool);
    default:
        return sizeof(int);
    }
}

void model_config_take_connection(struct model_config *config, const struct model_config *from) {
    struct model_config source = *from;
    struct model_setting ours[MODEL_MOST_SETTINGS], theirs[MODEL_MOST_SETTINGS];
    const size_t count = model_config_settings(config, ours);
    model_config_settings(&source, theirs);
    for (size_t i = 0; i < count; i++) {
        if (ours[i].flags & OF_CONNECTION) {
            memcpy(ours[i].option.target, theirs[i].option.target, value_bytes(ours[i].option.type));
        }
    }
    config->residual = from->residual;
}

bool model_config_same(const struct model_config *a, const struct model_config *b, const char *name) {
    struct model_config first = *a, second = *b;
    struct model_setting ours[MODEL_MOST_SETTINGS], theirs[MODEL_MOST_SETTINGS];
    const size_t count = model_config_settings(&first, ours);
    model_config_settings(&second, theirs);
    if ((strcmp(name, "n_streams") == 0 || strncmp(name, "stream_", 7) == 0) && residual_is_single(a->residual)) {
        return true; /* rc has one stream, whatever is asked for */
    }
    if (strcmp(name, "stream_reduce") == 0 && a->residual->has_fractions) {
        return true; /* fractions are put together, not reduced */
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(name, ours[i].option.name) == 0) {
            return ours[i].flags & ONLY_IN_TRAINING || number_of(&ours[i].option) == number_of(&theirs[i].option) ||
                   (theirs[i].flags & MAY_FOLLOW && options_is_default(&theirs[i].option));
        }
    }
    return strcmp(name, "residual") != 0 || a->residual == b->residual;
}
