/* Hugging Face's GPT-2 (model_type "gpt2" of transformers): its config.json beside ours. What corresponds to what
 * is in docs/exchange.md. */
#pragma once

#include "src/model/model_config.h"
#include <jansson.h>

/* A GPT-2 as a plain residual (rc) model with biases; hugging_face_rows is set. -1 for other models, and for
 * switches of GPT-2 that change what it computes in a way that is not known here. The result is not checked for
 * ranges. */
int hugging_face_read_config(const json_t *json, struct model_config *config);

/* The config.json of an rc model; a new reference, NULL when memory runs out. */
json_t *hugging_face_make_config(const struct model_config *config);
