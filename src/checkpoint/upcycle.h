/* Upcycling: a plain model (rc; ours or Hugging Face's) goes on with another residual connection, and at first
 * computes the same function, to rounding. All streams begin as the plain model's one. They stay equal, since rows
 * of H_res sum to 1 and each gets the branch's output once (H_post = 1); branches and the top read them with
 * weights that sum to 1. The weights differ by sublayer, so that training parts the streams. docs/pretrained.md
 * describes it. */
#pragma once

#include "src/model/gpt.h"

/* Completes the settings of the residual connection: stream_reduce = auto becomes head, with which a plain model
 * can go on. Refuses, in words, settings with which the function would be another. The other settings are the
 * plain model's. */
int upcycle_check(struct model_config *config);

/* Loads the plain model's weights from its folder, and the first values of what it lacks: random ones depend on the
 * seed. The config is as read from the folder. That of gpt differs from it at most in the residual connection. */
int upcycle_load(const char *folder, const struct model_config *plain, uint64_t seed, struct gpt *gpt);
