/* <folder>/config.json: the shape of the model that a folder holds, ours or one of Hugging Face's. Of theirs, a row
 * of a table for each model type has the keys. docs/exchange.md lists the types and says which keys correspond. */
#pragma once

#include "src/model/model_config.h"

/* Reads and checks <folder>/config.json. 0, or -1 with an error that names the file, or, if a run directory was
 * given, the checkpoints in it. Hugging Face's models become plain residual (rc) models, and hugging_face_rows is
 * set; other models of theirs are refused, as are switches that change what these compute. */
int config_file_read(const char *folder, struct model_config *config);

/* The same from parsed JSON. */
int config_file_parse(const json_t *json, struct model_config *config);

/* Then, where tokens that begin and end texts matter: replaces those of one of Hugging Face's models by those of
 * its generation_config.json, where it has them, as transformers' generate() does. */
int config_file_read_tokens(const char *folder, struct model_config *config);

/* Writes our <folder>/config.json. */
int config_file_write(const char *folder, const struct model_config *config);

/* Hugging Face's config.json of a model, but for biases that only some of its linear layers have; a new reference.
 * NULL with an error that names what none of their models can compute. */
json_t *config_file_hugging_face(const struct model_config *config);

/* Translates a config.json of theirs to the keys of ours; a new reference. NULL with an error that names the key,
 * its value and what would do: other model types, missing keys, and values that change what is computed to
 * something that no model here computes. The values of ours are not checked. */
json_t *hugging_face_to_ours(const json_t *theirs);

/* Translates ours, with all keys as model_config_to_json writes them, to a config.json of theirs; a new reference.
 * NULL with an error that names what the nearest of their models cannot compute. */
json_t *hugging_face_from_ours(const json_t *ours);
