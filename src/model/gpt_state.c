#include "src/model/gpt_state.h"

size_t gpt_tokens(const struct gpt *gpt) {
    return (size_t)(gpt->shape.batch * gpt->shape.sequence);
}
