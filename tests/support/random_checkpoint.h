/* Checkpoints of models that were not trained. */
#pragma once

#include "src/model/parameters.h"

/* Writes config.json and model.safetensors to the folder `name` of the scratch folder: numbers of mean 0.1 and
 * deviation 0.3, those of random_checkpoint_values. Fails the test if it cannot. */
void random_checkpoint_write(const char *name, const struct model_config *config);

/* Elements [first, first + count) of a parameter, which depend on its name alone. `parameters` is a struct
 * parameters, as safetensors_write hands it on. Returns 0. */
int random_checkpoint_values(void *parameters, size_t parameter, uint64_t first, uint64_t count, float *values);
