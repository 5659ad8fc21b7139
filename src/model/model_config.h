/* The shape of a model, as config.json keeps it. */
#pragma once

#include "src/variants/residual.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct model_config {
    int64_t n_layer;
    int64_t n_head;
    int64_t n_embd;
    int64_t vocab_size;
    int64_t block_size;
    int64_t n_streams; /* 1 for rc */
    bool bias;         /* of layer norms and linear layers */
    bool norm_sum;     /* stream_reduce: norm_sum or sum_norm */
    bool scaled;       /* stream_expand: scaled or copy; false for rc */
    bool gelu_tanh;    /* activation: gelu_tanh, the approximation of GPT-2's makers, or gelu, the exact one */
    double dropout;
    const struct residual_variant *residual;
    struct residual_settings settings; /* of all variants, those of other variants too */
    char tokenizer[16];                /* what its tokens mean: "byte", "gpt2", "" when not known */
    int64_t hugging_face_rows; /* the folder is Hugging Face's: tokens of its vocabulary, which vocab_size may
                                  exceed; 0: ours. Not written */
};

/* What stands for keys that config.json leaves out; the sizes are 0 and there is no variant. */
struct model_config model_config_default(void);

/* Checks ranges and divisibility; -1 with a message that names the setting and what would do. rc gets one stream,
 * which is not scaled. */
int model_config_check(struct model_config *config);

/* Notes the name of the tokenizer, "" for NULL. Names that do not fit are errors. */
int model_config_set_tokenizer(struct model_config *config, const char *name);

/* From and to JSON with the keys of config.json. Reading checks; unknown keys are ignored, so that files of other
 * programs can be read. What model_config_to_json returns is a new reference, NULL when memory runs out. */
int model_config_from_json(const json_t *json, struct model_config *config);
json_t *model_config_to_json(const struct model_config *config);

/* Whether a setting of the model's shape, by its name, is the same in both. True for all other names. */
bool model_config_same(const struct model_config *a, const struct model_config *b, const char *name);
