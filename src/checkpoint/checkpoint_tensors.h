/* The tensors of a model between its arenas on the device and a checkpoint's files. */
#pragma once

#include "src/model/gpt.h"

/* Writes the weights alone as a safetensors file. */
int checkpoint_write_weights(const char *path, struct gpt *gpt);

/* Loads the weights of a checkpoint, or of a folder of Hugging Face's, which the model's config knows: see
 * src/checkpoint/weights.h. Every parameter of the model must be there with its shape, and nothing else. */
int checkpoint_load_weights(const char *folder, struct gpt *gpt);

/* Both moments, as a safetensors file. */
int checkpoint_write_moments(const char *path, struct gpt *gpt);
int checkpoint_load_moments(const char *path, struct gpt *gpt);

/* Where ranks share the moments, rank 0 saves them with the others' help: they call this while it saves a
 * checkpoint with moments. Else it does nothing. */
int checkpoint_hand_over(struct gpt *gpt);
