/* Hugging Face's model types that can be read and written: a row of a table for each, with the keys of its
 * config.json and the names of its tensors. docs/exchange.md lists them. */
#pragma once

#include "runtime/files/safetensors.h"
#include "src/model/parameters.h"

/* Translates a config.json of theirs to the keys of ours; a new reference. NULL with an error that names the key,
 * its value and what would do: other model types, missing keys, and values that change what is computed to
 * something that no model here computes. The values of ours are not checked. */
json_t *hugging_face_to_ours(const json_t *theirs);

/* Translates ours, with all keys as model_config_to_json writes them, to a config.json of theirs; a new reference.
 * NULL with an error that names what the nearest of their models cannot compute. */
json_t *hugging_face_from_ours(const json_t *ours);

/* The tensors of a parameter in their files, in its order: queries, keys and values may be three. */
enum { HUGGING_FACE_MOST_PARTS = 3, HUGGING_FACE_MOST_NAME = 128 };
struct hugging_face_tensors {
    size_t count;
    bool transposed; /* the only part is [in, out] */
    char names[HUGGING_FACE_MOST_PARTS][HUGGING_FACE_MOST_NAME];
    struct tensor_info infos[HUGGING_FACE_MOST_PARTS]; /* their names are not set */
};
void hugging_face_tensors(const struct model_config *config, const struct parameter *parameter,
                          struct hugging_face_tensors *tensors);

/* What all their names but the output layer's begin with; files of models without an output layer lack it. */
const char *hugging_face_prefix(const struct model_config *config);

/* Whether a tensor that is no parameter may be left out: buffers of older versions. */
bool hugging_face_ignores(const char *name);
