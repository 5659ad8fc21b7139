/* The settings of a model, as config.json keeps them. */
#pragma once

#include "runtime/options/options.h"
#include "src/model/lora.h"
#include "src/operations/policy.h"
#include "src/variants/residual.h"
#include <jansson.h>

/* A switch that may follow another; model_config_check replaces SWITCH_FOLLOWS. In config.json it is a boolean. */
enum switch_state { SWITCH_FOLLOWS, SWITCH_OFF, SWITCH_ON };
enum first_weights { INIT_GPT2, INIT_TRACK3, INIT_LITGPT };
enum hc_start { HC_START_SUBLAYER, HC_START_LAYER };
enum hc_init { HC_INIT_ZERO, HC_INIT_LITGPT };
enum stream_expand { STREAM_EXPAND_COPY, STREAM_EXPAND_SCALED };
#define STREAM_REDUCE_WORDS "auto|norm_sum|sum_norm|head|last_pre|read"
enum stream_reduce {
    STREAM_REDUCE_AUTO,
    STREAM_REDUCE_NORM_SUM,
    STREAM_REDUCE_SUM_NORM,
    STREAM_REDUCE_HEAD,
    STREAM_REDUCE_LAST_PRE,
    STREAM_REDUCE_READ,
};

/* Numbers of tokens, as config.json has them: a number, or a list. */
enum { TOKEN_IDS_MOST = 16 };
struct token_ids {
    size_t count; /* 0: none are known */
    int64_t ids[TOKEN_IDS_MOST];
};

struct model_config {
    int64_t n_layer;
    int64_t n_head;
    int64_t n_kv_head; /* key and value heads; model_config_check replaces 0 by n_head */
    int64_t head_dim;  /* channels of a head; model_config_check replaces 0 by n_embd / n_head */
    int64_t n_embd;
    int64_t vocab_size;
    int64_t block_size;
    int64_t n_streams;     /* 1 for rc */
    bool bias;             /* of layer norms and linear layers */
    int qkv_bias;          /* enum switch_state: of c_attn alone; follows `bias` */
    bool embed_norm;       /* an RMSNorm of the embedding, ln_e, before the streams */
    int stream_expand;     /* enum stream_expand; STREAM_EXPAND_COPY for rc */
    int stream_reduce;     /* enum stream_reduce; model_config_check replaces STREAM_REDUCE_AUTO */
    bool read_delay;       /* a sublayer reads with H_pre of the sublayer before */
    int position;          /* enum position */
    double rope_theta;     /* of POSITION_ROPE */
    double rope_fraction;  /* of the pairs of channels of a head, those that turn */
    int qk_norm;           /* enum qk_norm: an RMSNorm over each head of q and k, before RoPE */
    double attn_scale;     /* of attention scores; 0: 1 / sqrt(head_dim) */
    int norm;              /* enum norm, of ln_1, ln_2 and ln_f */
    double norm_eps;       /* model_config_check replaces 0 by the norm's usual one */
    int mlp;               /* enum mlp */
    int64_t mlp_width;     /* hidden channels; model_config_check replaces 0 by the usual number */
    int activation;        /* enum activation, of MLP_GELU */
    bool hc_norm_gain;     /* of the RMSNorm before the projections of hyper-connections */
    double hc_eps;         /* added to sigmoids of H_pre, and in mhc's iterations */
    double hc_norm_eps;    /* of that RMSNorm; 0: the norm itself divides, at least 1e-12 */
    bool h_res_transposed; /* streams are mixed by the transpose of the map's matrix */
    bool hc_dynamic;       /* H depends on the token, where the variant's can */
    int64_t hc_until;      /* sublayers from this one on leave the streams unmixed; 0: none does */
    bool x0_lambdas;       /* a layer begins with a weighted sum of its streams and the model's first ones */
    bool value_embeds;     /* every other layer adds embeddings of tokens to values of attention */
    int hc_start;          /* enum hc_start: which stream a sublayer reads and writes most at first */
    int hc_init;           /* enum hc_init: first values of projections */
    bool tie_embeddings;   /* logits by the token embedding; else by lm_head.weight */
    bool head_bias;        /* a bias of the logits, lm_head.bias */
    double logit_softcap;  /* s: logits become s tanh(logits / s), or what softcap_kind says; 0: they stay */
    int softcap_kind;      /* enum softcap_kind */
    int init;              /* enum first_weights: what training begins with */
    double dropout;
    const struct residual_variant *residual;
    struct residual_settings settings; /* of all variants, those of other variants too */
    char tokenizer[16];                /* what its tokens mean: "byte", "gpt2", "" when not known */
    struct token_ids beginnings, ends; /* bos_token_id, eos_token_id: tokens that begin and end texts */
    struct lora_settings lora;         /* adapters; config.json says nothing of them */
    int64_t hugging_face_rows;         /* tokens of its vocabulary if the folder is Hugging Face's; 0: it is ours */
};

/* A setting: its option, whose name is also its key in config.json. */
enum model_setting_flags {
    IS_SIZE = 1,          /* config.json must have it, and it is at least 1 */
    IS_SWITCH = 2,        /* an enum switch_state */
    MAY_BE_BOOLEAN = 4,   /* a choice whose first two words, false and true, are booleans in config.json */
    ONLY_IN_TRAINING = 8, /* what a model computes does not depend on it */
    OF_CONNECTION = 16,   /* it says how the residual connection works */
    MAY_FOLLOW = 32,      /* its default stands for a value that model_config_check works out */
};
struct model_setting {
    unsigned flags; /* of enum model_setting_flags */
    struct option_spec option;
};

enum { MODEL_MOST_SETTINGS = 44 + RESIDUAL_MAX_SETTINGS };

#define MODEL_CONFIG_MARK "exported_by" /* the key with which hc_export marks its folders */

/* Lists all settings but `residual` and those about tokens, those of residual variants included. Their options set
 * *config, which must stay where it is. Returns their number. */
size_t model_config_settings(struct model_config *config, struct model_setting settings[MODEL_MOST_SETTINGS]);

/* Returns what stands for keys that config.json leaves out; the sizes are 0 and there is no variant. */
struct model_config model_config_default(void);

/* Checks ranges and divisibility; -1 with an error that names the setting and what would do. Variants with one
 * stream get n_streams = 1; of these and of frac stream_reduce becomes norm_sum. Settings that follow from others
 * where they are 0 get their values. */
int model_config_check(struct model_config *config);

/* Return the heads of attention, and whether c_attn has a bias, of a config that was checked or not. */
struct head_shape model_config_heads(const struct model_config *config);
bool model_config_has_qkv_bias(const struct model_config *config);

/* The modules that adapters can be of. */
static inline struct lora_modules model_config_modules(const struct model_config *config) {
    return (struct lora_modules){.gpt2 = config->norm != NORM_RMS, .gated = mlp_is_gated(config->mlp)};
}

/* The settings of the residual connection around a sublayer, with what hc_dynamic and hc_until make of them. */
struct residual_settings model_config_connection(const struct model_config *config, int64_t sublayer);

/* Whether attention of a layer has embeddings of values. */
bool model_config_has_value_embed(const struct model_config *config, int64_t layer);

/* The stream that a sublayer reads and writes most at first, by hc_start. */
int64_t model_config_first_stream(const struct model_config *config, int64_t sublayer);

/* Sets the name of the tokenizer, "" for NULL. Names that do not fit are errors. */
int model_config_set_tokenizer(struct model_config *config, const char *name);

/* Reads `key` of a JSON object: a whole number, a list of at most TOKEN_IDS_MOST, or null, which leaves *ids as it
 * is. model_config_write_ids does the reverse and leaves the key out if there are none. */
int model_config_read_ids(const json_t *json, const char *key, struct token_ids *ids);
void model_config_write_ids(json_t *json, const char *key, const struct token_ids *ids);

/* Whether every layer reads the embedding beside the stream: there is no place for x0_lambdas. */
bool model_config_weighs_embedding(const struct model_config *config);

/* Takes the residual connection with all of its settings from another config. */
void model_config_take_connection(struct model_config *config, const struct model_config *from);

/* Convert from and to JSON with the keys of config.json. Reading checks; an unknown key is an error that names it.
 * model_config_to_json returns a new reference. */
int model_config_from_json(const json_t *json, struct model_config *config);
json_t *model_config_to_json(const struct model_config *config);

/* Tells whether both have the same value of a setting, by its name, or b has a default that stands for any. True
 * for names that are no settings of models. */
bool model_config_same(const struct model_config *a, const struct model_config *b, const char *name);
