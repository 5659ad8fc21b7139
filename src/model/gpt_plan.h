/* The memory plan's side of the model, for the modules that put buffers on it. */
#pragma once

#include "src/model/gpt_state.h"

/* Puts a buffer with `per_token` floats, or activations, for every token on the plan. */
struct buffer *gpt_plan_floats(struct gpt *gpt, const char *group, uint64_t per_token);
struct buffer *gpt_plan_activations(struct gpt *gpt, const char *group, uint64_t per_token);
