/* The model that --init-from names: of a checkpoint, or of a folder as Hugging Face's transformers saves it. */
#pragma once

#include "src/training/train_settings.h"

struct initial_model {
    char *folder;              /* heap memory, the caller's; NULL: the run starts from scratch */
    struct model_config plain; /* of the folder, as read */
    bool upcycles;             /* it is a plain one, and goes on with another residual connection */
};

/* Finds the folder, and takes settings->model from its config.json; nothing changes if the run starts from scratch.
 * Settings of the model that are given must agree with the folder's, but Hugging Face's models may get a larger
 * vocabulary, and a shorter context if their positions are not learned, and plain models another residual
 * connection. Fails with an error text; free initial->folder then, too. */
int initial_model_read(struct initial_model *initial, struct train_settings *settings);

/* Checks that all ranks begin with the same checkpoint or weights, if any. Compares the weights with
 * settings->init_checksum, if that was not given before init_from, and sets it to their checksum, or to NULL
 * without weights. Collective: an error is one on all ranks. */
int initial_model_compare(const struct initial_model *initial, struct train_settings *settings,
                          struct ranks *ranks);
