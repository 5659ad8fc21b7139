/* Windows of tokens, as many as there are, scored on a device in batches and by all ranks together. */
#ifndef HC_SRC_WINDOW_LOSSES_H
#define HC_SRC_WINDOW_LOSSES_H

#include "runtime/ranks/ranks.h"
#include "src/model/gpt.h"

struct loss_window {
    const int32_t *tokens; /* [length + 1]: those that are read, and the last one's successor */
    size_t length;         /* 1 .. gpt's sequence */
    size_t scored;         /* so many predictions at its end count */
    double loss;           /* out: the sum of their -log p, natural */
};

/* Told after each batch of this rank. */
struct loss_listener {
    void (*batch_done)(void *context, size_t windows, size_t all);
    void *context;
};

/* Sets the losses of windows [count], which are the same on all ranks, before and after. Collective. Batches, and
 * so the last bit of a loss, do not depend on the number of ranks. Windows of like length share a batch, the more
 * of them the shorter they are. Stops early, with the error "interrupted" on all ranks, when one of them is
 * interrupted. */
int window_losses(struct gpt *gpt, const struct ranks *ranks, struct loss_window *windows, size_t count,
                  const struct loss_listener *listener);

#endif
