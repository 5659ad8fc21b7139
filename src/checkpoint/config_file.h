/* <folder>/config.json: the shape of the model that a folder holds, ours or Hugging Face's. */
#pragma once

#include "src/model/model_config.h"

/* Reads and checks <folder>/config.json, ours or that of Hugging Face's GPT-2. 0, or -1 with an error that names
 * the file, or the checkpoints of a run directory that was given in place of one. */
int config_file_read(const char *folder, struct model_config *config);

/* The same of what has been read already. */
int config_file_parse(const json_t *json, struct model_config *config);

/* Writes <folder>/config.json, ours. */
int config_file_write(const char *folder, const struct model_config *config);
