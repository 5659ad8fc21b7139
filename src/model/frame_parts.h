/* What several frames share. */
#pragma once

#include "src/model/gpt_state.h"

/* Adds the norm of the branch, ln_1 or ln_2, or of the top, ln_f. */
void frame_add_norm(struct parameter_builder *builder, int64_t sublayer);

/* Plans mix.streams [N, S, C] and mix.squares [N, S]. Layers share them unless the mode keeps streams; with
 * recompute, the streams inside of layers are shared. True if mix.squares is new, so that other values of the same
 * life are, too. */
bool frame_plan_streams(struct gpt *gpt, struct sublayer *sublayer);
