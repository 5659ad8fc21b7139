/* The two branches of a layer, attention and MLP: a linear layer in, something of its own, a linear layer out. The
 * table and what it does are in branches.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct buffer;
struct gpt;
struct sublayer;

struct branch {
    const char *norm, *in, *out;  /* names of its parameters in files, below those of the layer */
    const char *hyper_connection; /* and of those of the hyper-connection around it */
    int64_t wide, inner;          /* after the layer in, and before the one out: multiples of C */
    bool attends;                 /* keeps what attention needs, and keys and values in generation */
    bool inner_again;             /* the way back computes `inner` again, so that one buffer serves all layers;
                                     but see gpt->keeps_inner */

    /* sublayer->mix.normed -> wide -> inner */
    void (*forward)(struct gpt *gpt, const struct sublayer *sublayer);
    /* d_output -> scratch.d_normed, and the gradients of both linear layers */
    void (*backward)(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_output);
};

enum { BRANCHES = 2 };
extern const struct branch branches[BRANCHES]; /* in the order of a layer */

/* sublayer->mix.normed -> its output, dropout included. */
void branch_forward(struct gpt *gpt, const struct sublayer *sublayer);

/* d_output [N, C] (overwritten where dropout applies) -> scratch.d_normed. */
void branch_backward(struct gpt *gpt, const struct sublayer *sublayer, const struct buffer *d_output);
