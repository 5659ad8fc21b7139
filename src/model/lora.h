/* Adapters of low rank (LoRA): y = x W^T + s (drop(x) A^T) B^T, A [rank, in], B [out, rank], of Linear layers of
 * branches, s = alpha / rank or alpha / sqrt(rank). The layers themselves are frozen. What an adapter covers are
 * modules of Hugging Face's models: q, k and v are three of one layer here, gate and up two; GPT-2's c_attn is
 * one. */
#pragma once

#include <float.h>
#include <stdbool.h>
#include <stdint.h>

#define LORA_ALL          "q,k,v,o,gate,up,down"
#define LORA_MOST_RANK    1024
#define LORA_LEAST_ALPHA  ((double)FLT_MIN) /* as of every option that is a number */
#define LORA_MOST_ALPHA   1e6
#define LORA_MOST_DROPOUT 0.99

enum lora_module { LORA_Q, LORA_K, LORA_V, LORA_O, LORA_GATE, LORA_UP, LORA_DOWN, LORA_MODULES };

struct lora_settings {
    int64_t rank; /* 0: there are no adapters */
    double alpha;
    double dropout;   /* of x, in training */
    bool by_root;     /* s = alpha / sqrt(rank) */
    unsigned targets; /* a bit (1 << enum lora_module) for each module that has an adapter */
    bool base_has_lambdas, base_has_value_embeds; /* they are frozen as all that the base model has */
};

/* The modules of a model. */
struct lora_modules {
    bool gpt2;  /* q, k and v are one, c_attn, and modules have GPT-2's names */
    bool gated; /* there is a gate */
};

/* The name of a module in parameters, behind "transformer.h.<layer>.": "attn.q", or of GPT-2's "attn.c_attn". */
const char *lora_module_name(struct lora_modules modules, enum lora_module module);

/* Sets *targets from a list of modules, "q,v": their words here, or Hugging Face's names, "q_proj"; those of GPT-2
 * are c_attn, c_fc and c_proj, which are two, attn.c_proj and mlp.c_proj. The words that stand for all, q to down,
 * may name what this model lacks. -1 with an error that says which words there are; *targets has changed then,
 * too. */
int lora_read_targets(struct lora_modules modules, const char *text, unsigned *targets);

/* Targets as such a list; heap memory. */
char *lora_write_targets(struct lora_modules modules, unsigned targets);

/* The factor s. */
double lora_scale(const struct lora_settings *lora);
