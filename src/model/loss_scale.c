#include "src/model/loss_scale.h"
#include <math.h>

/* As PyTorch's GradScaler has them; it has no limits. Gradients that overflow at a scale of 1 are above 65504. */
static const float FIRST = 65536.0f, LEAST = 1.0f, MOST = 0x1p+32f, GROWTH = 2.0f, BACKOFF = 0.5f;
static const int64_t GROWTH_INTERVAL = 2000;

struct loss_scale loss_scale_begin(enum element_type type) {
    const bool dynamic = type == ELEMENT_FP16;
    return (struct loss_scale){.scale = dynamic ? FIRST : 1.0f, .dynamic = dynamic};
}

bool loss_scale_is_valid(const struct loss_scale *scale) {
    int exponent;
    return scale->scale >= LEAST && scale->scale <= MOST && frexpf(scale->scale, &exponent) == 0.5f &&
           scale->good_steps >= 0 && scale->good_steps < GROWTH_INTERVAL && scale->skipped >= 0;
}

bool loss_scale_update(struct loss_scale *scale, bool finite) {
    if (!scale->dynamic || (!finite && scale->scale <= LEAST)) {
        return finite;
    }
    if (!finite) {
        scale->scale *= BACKOFF;
        scale->good_steps = 0;
        scale->skipped++;
    } else if (++scale->good_steps == GROWTH_INTERVAL) {
        scale->scale = fminf(scale->scale * GROWTH, MOST);
        scale->good_steps = 0;
    }
    return true;
}
