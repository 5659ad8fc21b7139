/* The model that --init-from names: of a checkpoint, or of a folder as Hugging Face's transformers saves it. */
#pragma once

#include "src/training/train.h"

struct initial_model {
    char *folder;              /* owned; NULL: the run starts from scratch */
    struct model_config plain; /* of the folder, as read */
    bool upcycles;             /* it is a plain one, and goes on with another residual connection */
};

/* Finds the folder, and takes settings->model from its config.json; nothing changes if the run starts from scratch.
 * Settings of the model that are given must agree with the folder's, but Hugging Face's models may get a larger
 * vocabulary, and a shorter context unless they have an embedding for each place in it, and plain models another
 * residual connection. Fails with an error text; release *initial then, too. */
int initial_model_read(struct initial_model *initial, struct train_settings *settings);

/* Compares the weights that the run begins with with settings->init_checksum, unless the place of the weights was
 * given later, and sets it to their checksum, or to NULL where there are none. -1 with an error text. */
int initial_model_check_source(const struct initial_model *initial, struct train_settings *settings);

void initial_model_release(struct initial_model *initial);
