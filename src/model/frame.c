#include "src/model/frame.h"
#include "src/model/model_config.h"
#include <string.h>

#define FRAME_ADDRESS(name) &frame_##name,
static const struct frame *const frames[] = {FRAMES(FRAME_ADDRESS)};

const struct frame *frame_of(const struct model_config *config) {
    const bool ahead = config->read_delay || residual_is_fixed(config->residual);
    const char *name = config->residual->frame ? config->residual->frame : ahead ? "ahead" : "mixed";
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        if (strcmp(frames[i]->name, name) == 0) {
            return frames[i];
        }
    }
    return NULL;
}
