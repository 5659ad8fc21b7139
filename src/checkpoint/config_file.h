/* <folder>/config.json: the shape of the model that a folder holds, ours or Hugging Face's GPT-2 (model_type "gpt2"
 * of transformers). docs/exchange.md says which keys correspond. */
#pragma once

#include "src/model/model_config.h"

/* Reads and checks <folder>/config.json. 0, or -1 with an error that names the file, or, if a run directory was
 * given, the checkpoints in it. Hugging Face's GPT-2 becomes a plain residual (rc) model with biases, and
 * hugging_face_rows is set; other models of theirs are refused, as are switches that change what GPT-2 computes. */
int config_file_read(const char *folder, struct model_config *config);

/* The same from parsed JSON. */
int config_file_parse(const json_t *json, struct model_config *config);

/* Writes our <folder>/config.json. */
int config_file_write(const char *folder, const struct model_config *config);

/* Whether Hugging Face's GPT-2 computes what this model does, but for biases: 0, or -1 with an error that names the
 * residual connection, norm or activation that it lacks. */
int config_file_check_hugging_face(const struct model_config *config);

/* Hugging Face's config.json of a model that passed config_file_check_hugging_face; a new reference. */
json_t *config_file_hugging_face(const struct model_config *config);
